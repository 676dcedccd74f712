/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* strcasecmp, posix_spawnp */
/* Reports as HTML pages: the time lines that they draw, and the command that makes them again. */
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>

#include "cli/commands.h"
#include "core/file.h"
#include "core/log.h"

extern char **environ;

stw_status stw_page_format(const stw_general *general, bool of_plans, stw_format *out,
                           stw_error *err) {
    static const char *const suffixes[] = {".html", ".om", ".prom"};
    for (int i = 0; i < 3 && !general->json; i++) {
        if (strcasecmp(stw_path_suffix(general->output), suffixes[i]) != 0) continue;
        *out = i == 0 ? STW_FORMAT_HTML : STW_FORMAT_OPENMETRICS;
        if (i == 0 || of_plans) return STW_STATUS_OK;
    }
    const stw_status status = stw_report_format(general, out, err);
    if (status != STW_STATUS_USAGE || general->json) return status;
    *err = (stw_error)STW_ERROR_INIT;
    return stw_check_suffix(
        general->output, "a report",
        of_plans ? ".txt .md .csv .json .html .om .prom" : ".txt .md .csv .json .html", err);
}

/* A word as a shell takes it. */
static void put_word(stw_text *out, const char *word) {
    const bool plain = *word != '\0' && strpbrk(word, " \t\n\"'\\$`*?[](){}|&;<>~#!") == NULL;
    if (out->length > 0) stw_text_printf(out, " ");
    if (plain) {
        stw_text_append_printable(out, word);
        return;
    }
    stw_text_printf(out, "'");
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            stw_text_printf(out, "'\\''");
        else
            stw_text_append(out, word, 1);
    }
    stw_text_printf(out, "'");
}

/* Of a simulated kind of rank. */
static stw_status make_track(const stw_plan *plan, uint32_t kind, stw_page_track *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = plan->programs[kind];
    stw_sim *sim = NULL;
    bool *predicted = stw_pool_array(plan->pool, program->n_movements, sizeof *predicted);
    stw_op_span *ops = stw_pool_array(plan->pool, program->n_ops, sizeof *ops);
    if (predicted == NULL || ops == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a time line");
    STW_TRY(stw_sim_run(plan->job, program, &sim, err));
    for (uint32_t m = 0; m < program->n_movements; m++)
        predicted[m] = stw_sim_predicts(plan, &program->movements[m]);
    for (uint32_t i = 0; i < program->n_ops; i++)
        ops[i] = (stw_op_span){sim->ops[i].start_s, sim->ops[i].end_s};
    *out = (stw_page_track){ops, predicted};
out:
    stw_sim_free(sim);
    return status;
}

/* Programs of plans that do not fit have no operations that take time. */
stw_status stw_page_tracks(stw_page_item *item, stw_error *err) {
    const stw_plan *plan = item->plan;
    stw_status status = STW_STATUS_OK;
    if (plan == NULL || plan->programs == NULL || plan->verdict == STW_VERDICT_DOES_NOT_FIT)
        return STW_STATUS_OK;
    stw_page_track *tracks = stw_pool_array(plan->pool, plan->job->n_kinds, sizeof *tracks);
    if (tracks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a time line");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) STW_TRY(make_track(plan, k, &tracks[k], err));
    item->tracks = tracks;
out:
    return status;
}

stw_status stw_page_emit(const stw_general *general, stw_page_item *items, size_t n,
                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text command = STW_TEXT_INIT, text = STW_TEXT_INIT;
    put_word(&command, "stowage");
    for (int i = 0; i < general->argc; i++) put_word(&command, general->argv[i]);
    STW_TRY(stw_text_status(&command, err));
    for (size_t i = 0; i < n; i++) STW_TRY(stw_page_tracks(&items[i], err));
    STW_TRY(stw_report_page(items, n, command.data, &text, err));
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&command);
    stw_text_free(&text);
    return status;
}

void stw_page_open(const char *path) {
    char program[] = "xdg-open", file[4096];
    char *arguments[] = {program, file, NULL};
    pid_t child;
    int code = 0;
    snprintf(file, sizeof file, "%s", path);
    if (posix_spawnp(&child, program, NULL, NULL, arguments, environ) != 0 ||
        waitpid(child, &code, 0) != child || code != 0)
        stw_log(STW_LOG_WARN, "%s is written; xdg-open did not open it", path);
}
