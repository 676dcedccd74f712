/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, mkdtemp, realpath */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/record/record.h"
#include "cli/commands.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"

static const char header[] = "time,rank,phase,metric,bytes\n";

typedef struct request {
    const char *every, *marks, *samples, *output;
    const char **command;
} request;

/* The file of marks, empty but for its header. Without --marks it has a temporary name. */
static stw_status create_marks(const request *r, char *path, size_t size, stw_error *err) {
    const char *folder = getenv("TMPDIR");
    if (r->marks != NULL) {
        snprintf(path, size, "%s", r->marks);
        return stw_file_write(path, header, sizeof header - 1, err);
    }
    snprintf(path, size, "%s/stowage-marks-XXXXXX",
             folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) return stw_fail_errno(err, path, "cannot be created");
    bool ok = write(fd, header, sizeof header - 1) == (ssize_t)(sizeof header - 1);
    if (close(fd) != 0 || !ok) return stw_fail_errno(err, path, "cannot be written");
    return STW_STATUS_OK;
}

/* The job may change its folder: it gets the whole path. */
static stw_status make_marks(const request *r, char *path, size_t size, stw_error *err) {
    stw_status status = create_marks(r, path, size, err);
    char *whole = status == STW_STATUS_OK ? realpath(path, NULL) : NULL;
    if (whole != NULL && strlen(whole) < size) snprintf(path, size, "%s", whole);
    free(whole);
    return status;
}

/* Marks that cannot be read must not lose the samples. @return whether they were read */
static bool add_marks(stw_recording *samples, const char *path) {
    stw_error err = STW_ERROR_INIT;
    const size_t before = samples->n;
    if (stw_recording_read_csv(samples, path, &err) == STW_STATUS_OK) return true;
    samples->n = before;
    if (!stw_file_exists(path)) {
        stw_log(STW_LOG_WARN, "%s: the command removed its file of marks; the record has no phases",
                path);
        return true;
    }
    char what[1200];
    stw_error_format(&err, what, sizeof what);
    stw_log(STW_LOG_WARN, "%s; the record has no phases", what);
    stw_log_always(STW_LOG_WARN, "the marks are kept in %s", path);
    return false;
}

/* The job may take days: a file that cannot be written is found before. */
static stw_status check_writable(const char *path, stw_error *err) {
    char folder[4096];
    if (path == NULL || strcmp(path, "-") == 0) return STW_STATUS_OK;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder ? 1 : 0] = '\0';
    if (stw_file_is_folder(path))
        return stw_fail(err, STW_STATUS_IO, path, "is a folder, expected a file to write");
    if (access(stw_file_exists(path) ? path : folder, W_OK) != 0)
        return stw_fail_errno(err, path, "cannot be written");
    return STW_STATUS_OK;
}

/* What is written later would replace what was written before. */
static stw_status check_distinct(const request *r, stw_error *err) {
    const stw_named_path outputs[] = {
        {"--marks", r->marks}, {"--samples", r->samples}, {"--output", r->output}};
    return stw_check_outputs(outputs, 3, NULL, 0, err);
}

/* "%h" in a path stands for the name of this host: on a file system that nodes share. */
static stw_status name_host(const char **path, char *out, size_t size, stw_error *err) {
    char host[256] = "";
    const char *at = *path != NULL ? strstr(*path, "%h") : NULL;
    if (at == NULL) return STW_STATUS_OK;
    if (gethostname(host, sizeof host - 1) != 0)
        return stw_fail_errno(err, *path, "the name of this host is not known");
    int n = snprintf(out, size, "%.*s%s%s", (int)(at - *path), *path, host, at + 2);
    if (n < 0 || (size_t)n >= size)
        return stw_fail(err, STW_STATUS_USAGE, *path, "is too long with the name of this host");
    *path = out;
    return STW_STATUS_OK;
}

/* ---- files at the end ---- */

typedef struct result {
    const stw_recording *samples;
    const stw_run_result *run;
} result;

typedef stw_status (*writer)(const result *what, const char *path, stw_error *err);

static stw_status write_samples(const result *what, const char *path, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_status status = stw_recording_to_csv(what->samples, &text, err);
    if (status == STW_STATUS_OK) status = stw_file_write(path, text.data, text.length, err);
    stw_text_free(&text);
    return status;
}

static stw_status write_run(const result *what, const char *path, stw_error *err) {
    return stw_run_result_write(what->run, path, err);
}

/* A job cannot be repeated for its recording: what its file does not take, because its folder is
 * gone or the disk is full, goes to a folder for temporary files. */
static stw_status write_or_keep(writer write, const result *what, const char *path,
                                stw_error *err) {
    stw_error failed = STW_ERROR_INIT, other = STW_ERROR_INIT;
    stw_status status = write(what, path, &failed);
    if (status == STW_STATUS_OK) return status;
    const char *const folders[] = {getenv("TMPDIR"), "/tmp", "/dev/shm"};
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char kept[4096] = "", why[1200];
    if (name[0] == '\0' || strcmp(name, "-") == 0) name = "record";
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && kept[0] == '\0'; i++) {
        char place[4096];
        if (folders[i] == NULL || folders[i][0] == '\0') continue;
        int n = snprintf(place, sizeof place, "%s/stowage-record-XXXXXX", folders[i]);
        if (n < 0 || (size_t)n >= sizeof place || mkdtemp(place) == NULL) continue;
        n = snprintf(kept, sizeof kept, "%s/%s", place, name);
        other = (stw_error)STW_ERROR_INIT;
        if (n >= 0 && (size_t)n < sizeof kept && write(what, kept, &other) == STW_STATUS_OK) break;
        (void)rmdir(place);
        kept[0] = '\0';
    }
    stw_error_format(&failed, why, sizeof why);
    if (kept[0] != '\0')
        stw_log_always(STW_LOG_WARN, "%s; it is kept in %s", why, kept);
    else
        stw_log_always(STW_LOG_WARN, "%s; no folder for temporary files takes it, it is lost", why);
    if (err != NULL && err->status == STW_STATUS_OK) *err = failed;
    return status;
}

/* Both are tried. @return the first failure */
static stw_status write_all(const request *r, const result *what, stw_error *err) {
    stw_status samples = STW_STATUS_OK;
    if (r->samples != NULL) samples = write_or_keep(write_samples, what, r->samples, err);
    stw_status run = write_or_keep(write_run, what, r->output, err);
    return samples != STW_STATUS_OK ? samples : run;
}

/* ---- messages ---- */

static bool has_samples(const stw_run_result *run, int32_t number) {
    for (uint32_t r = 0; r < run->n_ranks; r++)
        for (int p = 0; p < STW_N_PHASES && run->ranks[r].rank == (uint32_t)number; p++)
            if (run->ranks[r].phases[p].known) return true;
    return false;
}

/* Their phases would look as if the ranks held nothing. */
static void warn_of_lost(const stw_recording *samples, const stw_run_result *run) {
    for (uint32_t r = 0; r < run->n_ranks; r++) {
        const int32_t rank = (int32_t)run->ranks[r].rank;
        bool marked = false;
        for (size_t i = 0; i < samples->n && !marked; i++)
            marked = samples->items[i].rank == rank && samples->items[i].phase >= 0 &&
                     samples->items[i].metric == STW_METRIC_NONE;
        if (marked && !has_samples(run, rank))
            stw_log(STW_LOG_WARN,
                    "rank %d wrote marks, but no process with RANK=%d in its environment was "
                    "sampled from then on: the record has none of its bytes",
                    (int)rank, (int)rank);
    }
}

static bool has_bytes(const stw_recording *samples) {
    for (size_t i = 0; i < samples->n; i++)
        if (samples->items[i].metric != STW_METRIC_NONE) return true;
    return false;
}

static void tell(const request *r, const stw_record_summary *s, const stw_recording *samples) {
    if (s->gpus == 0)
        stw_log(STW_LOG_WARN, "no NVIDIA driver was found: device bytes are not in the record");
    if (!has_bytes(samples))
        stw_log(STW_LOG_WARN,
                "the command ended after %.3f s, before it was sampled: the record has no bytes",
                s->seconds);
    if (s->exit_code != 0)
        stw_log(STW_LOG_WARN,
                "the command ended with exit code %d: bytes of a phase that was not over once by "
                "then can refute a plan, not confirm it",
                s->exit_code);
    stw_log(STW_LOG_INFO, "recorded %u rank%s for %.1f s (%zu samples and marks): %s", s->ranks,
            s->ranks == 1 ? "" : "s", s->seconds, samples->n, r->output);
}

/* Beside an error: how the command ended. */
static void tell_end(const stw_record_summary *s) {
    if (s->started)
        stw_log_always(STW_LOG_WARN, "the command ended with exit code %d after %.1f s",
                       s->exit_code, s->seconds);
}

/* The library that makes marks of NVTX ranges, with its whole path; false: it is not there. */
static bool find_nvtx(char *path, size_t size) {
    static const char *const beside[] = {"/../lib/stowage/stowage-nvtx.so", "/stowage-nvtx.so"};
    char folder[4096], candidate[4200];
    if (!stw_code_folder(folder, sizeof folder)) return false;
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        snprintf(candidate, sizeof candidate, "%s%s", folder, beside[i]);
        char *whole = stw_file_exists(candidate) ? realpath(candidate, NULL) : NULL;
        bool found = whole != NULL && strlen(whole) < size;
        if (found) snprintf(path, size, "%s", whole);
        free(whole);
        if (found) return true;
    }
    return false;
}

static stw_status check(const request *r, double *every_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (r->every != NULL)
        STW_TRY(stw_quantity_parse(r->every, STW_UNIT_SECONDS, every_s, "--every", err));
    if (*every_s < 0.001 || *every_s > 60)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--every",
                         "found %s, expected 1 ms to 60 s such as \"20 ms\"", r->every));
    STW_TRY(check_distinct(r, err));
    STW_TRY(check_writable(r->output, err));
    STW_TRY(check_writable(r->samples, err));
out:
    return status;
}

/* What the command left is written even if its samples ended early: the first failure is returned.
 */
static stw_status finish(const request *r, const stw_record_summary *summary,
                         stw_recording *samples, stw_status status, stw_error *err) {
    stw_run_result *run = NULL;
    stw_error later = STW_ERROR_INIT, *report = status == STW_STATUS_OK ? err : &later;
    samples->may_be_empty = true;
    samples->exit_code = (uint32_t)summary->exit_code;
    stw_status folded = stw_recording_fold(samples, &run, report);
    const result what = {samples, run};
    if (folded == STW_STATUS_OK) folded = write_all(r, &what, report);
    if (run != NULL) warn_of_lost(samples, run);
    if (status == STW_STATUS_OK) status = folded;
    if (status == STW_STATUS_OK)
        tell(r, summary, samples);
    else
        tell_end(summary);
    stw_run_result_free(run);
    return status;
}

static stw_status record(const request *r, int *exit_code, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_recording *samples = NULL;
    stw_record_summary summary = {0};
    char marks[4096] = "", nvtx[4096] = "";
    double every_s = 0.02;
    bool read = true; /* or the command was not started: nobody needs the marks */
    STW_TRY(check(r, &every_s, err));
    STW_TRY(stw_recording_new(r->command[0], &samples, err));
    STW_TRY(make_marks(r, marks, sizeof marks, err));
    const stw_record_options options = {(char *const *)r->command, every_s, marks,
                                        find_nvtx(nvtx, sizeof nvtx) ? nvtx : NULL};
    status = stw_record(&options, samples, &summary, err);
    if (!summary.started) STW_TRY(status);
    *exit_code = summary.exit_code;
    read = add_marks(samples, marks);
    status = finish(r, &summary, samples, status, err);
    stw_record_end();
out:
    if (marks[0] != '\0' && r->marks == NULL && read) (void)unlink(marks);
    stw_recording_free(samples);
    return status;
}

int stw_cmd_record(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    size_t n = 0;
    int exit_code = 0;
    char paths[3][4096];
    const stw_option options[] = {
        {"--every", NULL, "TIME", "time between samples, 1 ms to 60 s; default 20 ms",
         STW_OPTION_VALUE, &r.every},
        {"--marks", NULL, "FILE", "keep the marks of phases in this file; it is emptied first",
         STW_OPTION_VALUE, &r.marks},
        {"--samples", NULL, "FILE.csv", "write all samples and marks, as validate reads them",
         STW_OPTION_VALUE, &r.samples},
    };
    const stw_usage usage = {
        "stowage",
        "record",
        "[options] -- COMMAND [ARGUMENT...]",
        "Run a command, sample what it holds, and write a run file for stowage validate; default "
        "record.json. Sampled are the device bytes of each rank's GPU, the resident bytes of each "
        "rank and of all processes of this node. The job says in which phase a rank is by "
        "appending lines TIME,RANK,PHASE to the file that the variable STOWAGE_MARKS names: TIME "
        "in seconds since 1970, PHASE one of load, rollout, log_prob, "
        "forward_backward, optimizer_step, weight_sync, checkpoint, end. NVTX ranges "
        "(push and pop) with these names are marks, too. A line "
        "TIME,RANK,PHASE,METRIC,BYTES gives a peak that only the job knows: allocated, reserved, "
        "page_locked. On several nodes run it on each, with -o run.%h.json (%h: name of the "
        "host), and give all files to stowage validate. The exit code is that of the command. "
        "Signals are passed on to it. What cannot be written where it was asked for is kept in a "
        "folder for temporary files.",
        options,
        sizeof options / sizeof options[0],
        1,
        (size_t)argc,
        NULL};
    r.command = calloc((size_t)argc + 1, sizeof *r.command);
    if (r.command == NULL) return stw_exit(STW_STATUS_NO_MEMORY, &err);
    stw_status status = stw_options_parse(argc, argv, &usage, &general, r.command, &n, &err);
    if (status == STW_STATUS_OK && general.help) {
        stw_usage_print(&usage);
    } else if (status == STW_STATUS_OK) {
        stw_general_apply(&general);
        if (general.json)
            status = stw_fail(&err, STW_STATUS_USAGE, "--json",
                              "stdout is the command's own; the record is JSON in -o FILE");
        r.output = general.output != NULL ? general.output : "record.json";
        if (status == STW_STATUS_OK) status = name_host(&r.output, paths[0], sizeof paths[0], &err);
        if (status == STW_STATUS_OK)
            status = name_host(&r.samples, paths[1], sizeof paths[1], &err);
        if (status == STW_STATUS_OK) status = name_host(&r.marks, paths[2], sizeof paths[2], &err);
        if (status == STW_STATUS_OK) status = record(&r, &exit_code, &err);
    }
    free(r.command);
    if (status == STW_STATUS_OK) return exit_code;
    int own = stw_exit(status, &err);
    return exit_code != 0 ? exit_code : own; /* a command that failed is not hidden */
}
