/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* prctl, setenv, waitid */
#include "backend/record/record.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvml.h"
#include "backend/process.h"
#include "backend/record/signals.h"
#include "backend/record/tree.h"
#include "core/file.h"
#include "core/progress.h"

enum { MAX_GPUS = 64, MAX_RANKS = 256 };
/* Resident bytes change by pages all the time; smaller changes are not kept. */
#define CHANGE_BYTES (1ull << 20)
#define TREE_EVERY_S 0.25
#define SLICE_S 0.05 /* after which the end of the command is seen */

typedef struct series {
    int32_t rank; /* STW_ALL_RANKS: the node */
    stw_metric metric;
    uint64_t last, now; /* that was kept, and that was read in this pass */
    bool any, read;
} series;

typedef struct recorder {
    const stw_record_options *options;
    stw_recording *samples;
    stw_nvml *nvml;
    uint32_t n_gpus;
    stw_nvml_gpu *gpus[MAX_GPUS];
    uint64_t before[MAX_GPUS]; /* used when the command began */
    stw_record_tree tree;
    uint32_t node;
    bool ranks_known, lost; /* lost: the process of a rank ended since the pass before */
    uint32_t n_series;
    series series[2 * MAX_RANKS + 1];
    stw_error *err;
} recorder;

static double wall_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- GPUs ---- */

static void open_gpus(recorder *r) {
    char name[96] = "";
    r->nvml = stw_nvml_open();
    uint32_t n = r->nvml != NULL ? stw_nvml_count(r->nvml) : 0;
    for (uint32_t i = 0; i < n && i < MAX_GPUS; i++) {
        r->gpus[i] = stw_nvml_by_index(r->nvml, i);
        if (r->gpus[i] == NULL) break;
        (void)stw_nvml_used(r->nvml, r->gpus[i], &r->before[i]);
        if (i == 0) stw_nvml_name(r->nvml, r->gpus[i], name, sizeof name);
        r->n_gpus++;
    }
    const char *copy = stw_pool_string(r->samples->pool, name);
    if (copy != NULL) r->samples->device = copy;
}

/* Item i of "2,3" or "GPU-8c1..,GPU-77b.."; of "*" the GPU i. MAX_GPUS: none. */
static uint32_t visible_gpu(const recorder *r, const char *visible, uint32_t i) {
    char item[80];
    if (strcmp(visible, "*") == 0) return i < r->n_gpus ? i : MAX_GPUS;
    for (; i > 0 && visible != NULL; i--) {
        visible = strchr(visible, ',');
        if (visible != NULL) visible++;
    }
    if (visible == NULL) return MAX_GPUS;
    snprintf(item, sizeof item, "%.*s", (int)strcspn(visible, ","), visible);
    if (strncmp(item, "GPU-", 4) == 0) {
        const stw_nvml_gpu *gpu = stw_nvml_by_uuid(r->nvml, item);
        for (uint32_t g = 0; g < r->n_gpus; g++)
            if (gpu != NULL && r->gpus[g] == gpu) return g;
        return MAX_GPUS;
    }
    char *end = NULL;
    unsigned long number = strtoul(item, &end, 10);
    return end != item && *end == '\0' && number < r->n_gpus ? (uint32_t)number : MAX_GPUS;
}

/* A rank that sees one GPU has that; one that sees several has that of its local rank. */
static uint32_t gpu_of(const recorder *r, const stw_record_process *p) {
    bool alone = strcmp(p->visible, "*") != 0 && strchr(p->visible, ',') == NULL;
    int32_t local = p->local_rank >= 0 ? p->local_rank : p->rank;
    return visible_gpu(r, p->visible, alone ? 0 : (uint32_t)local);
}

/* ---- samples ---- */

static series *find_series(recorder *r, int32_t rank, stw_metric metric) {
    for (uint32_t i = 0; i < r->n_series; i++)
        if (r->series[i].rank == rank && r->series[i].metric == metric) return &r->series[i];
    if (r->n_series == sizeof r->series / sizeof r->series[0]) return NULL;
    r->series[r->n_series] = (series){.rank = rank, .metric = metric};
    return &r->series[r->n_series++];
}

static void note(recorder *r, int32_t rank, stw_metric metric, uint64_t bytes) {
    series *s = find_series(r, rank, metric);
    if (s == NULL) return;
    s->now = bytes;
    s->read = true;
}

static bool changed(const series *s) {
    const uint64_t change = s->now > s->last ? s->now - s->last : s->last - s->now;
    return s->read && (!s->any || change >= CHANGE_BYTES || (s->now == 0) != (s->last == 0));
}

/* What one pass read is kept whole or not at all, with one time: the ranks of a node never hold
 * more than the node does. */
static stw_status keep(recorder *r, double now) {
    stw_status status = STW_STATUS_OK;
    bool any = false;
    for (uint32_t i = 0; i < r->n_series; i++) any |= changed(&r->series[i]);
    for (uint32_t i = 0; i < r->n_series && status == STW_STATUS_OK; i++) {
        series *s = &r->series[i];
        const stw_recorded sample = {.time_s = now,
                                     .rank = s->rank,
                                     .node = r->node,
                                     .phase = STW_NO_PHASE,
                                     .metric = s->metric,
                                     .bytes = s->now};
        if (any && s->read) {
            s->any = true;
            s->last = s->now;
            status = stw_recording_add(r->samples, &sample, r->err);
        }
        s->read = false;
    }
    return status;
}

/* A rank whose process ended holds nothing: what was read last does not go on. */
static void note_ended(recorder *r) {
    for (uint32_t i = 0; i < r->n_series; i++) {
        series *s = &r->series[i];
        if (s->rank == STW_ALL_RANKS || s->metric != STW_METRIC_HOST || s->read || s->last == 0)
            continue;
        s->now = 0;
        s->read = true;
        r->lost = true;
    }
}

static uint64_t used_since(const recorder *r, uint32_t gpu) {
    uint64_t used = 0;
    if (!stw_nvml_used(r->nvml, r->gpus[gpu], &used)) return 0;
    return used > r->before[gpu] ? used - r->before[gpu] : 0;
}

static void sample_rank(recorder *r, const stw_record_process *p) {
    uint32_t gpu = gpu_of(r, p);
    note(r, p->rank, STW_METRIC_HOST, p->resident);
    if (gpu != MAX_GPUS) note(r, p->rank, STW_METRIC_DEVICE, used_since(r, gpu));
}

/* Nobody has a rank: a GPU stands for one once something is on it. */
static void sample_gpus(recorder *r) {
    for (uint32_t g = 0; g < r->n_gpus; g++) {
        uint64_t used = used_since(r, g);
        const series *s = find_series(r, (int32_t)g, STW_METRIC_DEVICE);
        if (used > 0 || (s != NULL && s->any)) note(r, (int32_t)g, STW_METRIC_DEVICE, used);
    }
}

static stw_status sample(recorder *r) {
    double now = wall_s();
    uint64_t all = stw_record_tree_measure(&r->tree);
    for (size_t i = 0; i < r->tree.n; i++) {
        const stw_record_process *p = &r->tree.items[i];
        if (!p->is_rank || p->resident == 0) continue;
        r->ranks_known = true;
        if (p->node >= 0) r->node = (uint32_t)p->node;
        sample_rank(r, p);
    }
    if (!r->ranks_known && r->nvml != NULL) sample_gpus(r);
    if (all > 0) note(r, STW_ALL_RANKS, STW_METRIC_HOST, all);
    if (all > 0) note_ended(r);
    return keep(r, now);
}

/* ---- the command ---- */

static void wait_s(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    (void)nanosleep(&t, NULL);
}

/* Children that lost their parent come to this process and are waited for, too. A signal is passed
 * on only while the command's number is its own. */
static bool ended(pid_t child, stw_record_summary *out) {
    bool gone = false;
    siginfo_t next = {0};
    while (waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) == 0 && next.si_pid > 0) {
        int state = 0;
        const pid_t pid = next.si_pid;
        if (pid == child) stw_record_signals_ended();
        if (waitpid(pid, &state, 0) != pid) break;
        next.si_pid = 0;
        if (pid != child) continue;
        gone = true;
        out->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    }
    return gone;
}

/* A command whose samples cannot be kept goes on, and is waited for.
 * @return the first failure */
static stw_status follow(recorder *r, pid_t child, stw_record_summary *out) {
    stw_status status = STW_STATUS_OK;
    double last_tree = 0;
    for (bool gone = false; !gone;) {
        double now = stw_process_now_s();
        if (status == STW_STATUS_OK &&
            (last_tree == 0 || r->lost || now - last_tree >= TREE_EVERY_S)) {
            r->lost = false;
            status = stw_record_tree_read(&r->tree, getpid(), r->err);
            last_tree = now;
        }
        if (status == STW_STATUS_OK) status = sample(r);
        gone = ended(child, out);
        for (double left_s = r->options->every_s; left_s > 0 && !gone; left_s -= SLICE_S) {
            wait_s(left_s < SLICE_S ? left_s : SLICE_S);
            gone = ended(child, out);
        }
    }
    return status;
}

static stw_status start(const stw_record_options *o, pid_t *child, stw_error *err) {
    if (setenv("STOWAGE_MARKS", o->marks, 1) != 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "STOWAGE_MARKS", "out of memory");
    /* A profiler that is there keeps its place. */
    if (o->nvtx != NULL && setenv("NVTX_INJECTION64_PATH", o->nvtx, 0) != 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "NVTX_INJECTION64_PATH", "out of memory");
    const int code = stw_record_signals_start(o->command, child);
    if (code == 0) return STW_STATUS_OK;
    errno = code;
    const char *name = o->command[0][0] != '\0' ? o->command[0] : "\"\"";
    return stw_fail_errno(err, name, "cannot be started");
}

static void summarize(const recorder *r, stw_record_summary *out) {
    out->gpus = r->n_gpus;
    for (uint32_t i = 0; i < r->n_series; i++)
        if (r->series[i].rank != STW_ALL_RANKS && r->series[i].any &&
            r->series[i].metric == (r->ranks_known ? STW_METRIC_HOST : STW_METRIC_DEVICE))
            out->ranks++;
}

stw_status stw_record(const stw_record_options *options, stw_recording *samples,
                      stw_record_summary *out, stw_error *err) {
    pid_t child = 0;
    recorder *r = calloc(1, sizeof *r);
    *out = (stw_record_summary){0};
    if (r == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "record", "out of memory");
    *r = (recorder){.options = options, .samples = samples, .err = err};
    r->tree.proc = "/proc";
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    open_gpus(r);
    double began = stw_process_now_s();
    stw_status status = start(options, &child, err);
    out->started = status == STW_STATUS_OK;
    if (out->started) status = follow(r, child, out);
    out->seconds = stw_process_now_s() - began;
    summarize(r, out);
    stw_record_tree_free(&r->tree);
    stw_nvml_close(r->nvml);
    free(r);
    return status;
}

void stw_record_end(void) { stw_record_signals_end(); }
