/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* sigaction, SIGXCPU */
#include "cli/run_state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/comm/comm.h"
#include "backend/comm/watch.h"
#include "backend/nvme/names.h"
#include "cli/common.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "plan/files/verdict.h"

bool stw_run_is_told(void) {
    stw_ranks ranks;
    return stw_ranks_from_environment(&ranks, NULL) != STW_STATUS_OK || ranks.rank == 0;
}

/* The plan counted one copy: do two fit on the NVMe of its nodes? */
static stw_status check_copies(const stw_plan *plan, stw_error *err) {
    const uint64_t capacity = plan->cluster.nvme.capacity_bytes;
    uint64_t over = 0;
    char need[32], have[32];
    for (int p = 0; p < STW_N_PHASES; p++)
        over = stw_max_u64(over, stw_plan_over_bytes(plan, "nvme", (stw_phase)p));
    stw_bytes_format(stw_plus(capacity, over), need, sizeof need);
    stw_bytes_format(capacity, have, sizeof have);
    if (over > 0)
        return stw_fail(err, STW_STATUS_NO_RESOURCES, "--keep-state",
                        "the plan counts one copy of the state on NVMe; two take %s per node, the "
                        "plan's cluster has %s. Plan again with --set placement.nvme_copies=2",
                        need, have);
    if (!stw_run_is_told()) return STW_STATUS_OK;
    stw_log(STW_LOG_WARN,
            "--keep-state writes two copies of the state on NVMe, the plan counts one; to plan "
            "both: --set placement.nvme_copies=2");
    return STW_STATUS_OK;
}

stw_status stw_run_keep_state(stw_plan *plan, stw_plan_terms *terms, stw_error *err) {
    bool any = false;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        any = any || plan->layouts[k]->arena_bytes[STW_TIER_NVME] > 0;
    if (!any)
        return stw_fail(err, STW_STATUS_USAGE, "--keep-state",
                        "the plan has no state on NVMe, which alone can survive a run");
    stw_status status = stw_plan_terms_of(plan, terms, err);
    if (status != STW_STATUS_OK || stw_nvme_copies(plan->job) == 2) return status;
    plan->run.placement.nvme_copies = 2;
    status = stw_plan_derive(plan, err);
    return status == STW_STATUS_OK ? check_copies(plan, err) : status;
}

static volatile sig_atomic_t failure_is_told, failed_code;

/* Batch systems announce the end of a job's time by SIGUSR1 or SIGXCPU. */
static const struct {
    int number;
    char text[64];
} ending[] = {{SIGINT, "stowage: ended by SIGINT; no result is written\n"},
              {SIGTERM, "stowage: ended by SIGTERM; no result is written\n"},
              {SIGHUP, "stowage: ended by SIGHUP; no result is written\n"},
              {SIGUSR1, "stowage: ended by SIGUSR1; no result is written\n"},
              {SIGALRM, "stowage: ended by SIGALRM; no result is written\n"},
              {SIGXCPU, "stowage: ended by SIGXCPU; no result is written\n"}};

/* What ends the run and what becomes of state is told first; then the signal does what it would
 * have done. */
static void on_signal(int number) {
    const char *text = "";
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        if (ending[i].number == number) text = ending[i].text;
    struct sigaction plain;
    if (failure_is_told) text = ""; /* a launcher ends the ranks that remain */
    if (stw_log_line_is_open() && write(STDERR_FILENO, "\r\033[K", 4) < 0) errno = 0;
    if (write(STDERR_FILENO, text, strlen(text)) < 0) errno = 0; /* nobody can be told */
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    stw_file_on_signal();
    stw_nvme_on_signal();
    stw_watch_on_signal();
    (void)sigaction(number, &plain, NULL);
    (void)raise(number);
}

#define CLOSE_S 4 /* with an abort of 5 s: less than 10 s after the deadline */

static void on_alarm(int number) {
    static const char text[] = "stowage: warning: closing after the failure takes longer than 4 s "
                               "and is left to the system\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) errno = 0;
    stw_file_on_signal();
    stw_nvme_on_signal();
    _exit(failed_code);
}

void stw_run_failed(void *unused, stw_error *err, bool broken) {
    struct sigaction action;
    (void)unused;
    failed_code = stw_exit(err->status, err);
    err->told = true;
    failure_is_told = 1;
    if (!broken) return;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    (void)sigfillset(&action.sa_mask);
    if (sigaction(SIGALRM, &action, NULL) == 0) (void)alarm(CLOSE_S);
}

void stw_run_catch_signals(void) {
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        /* What a launcher ignores (nohup) stays ignored. */
        if (sigaction(ending[i].number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(ending[i].number, &action, NULL);
}
