/* SPDX-License-Identifier: Apache-2.0 */
/* State on NVMe that runs left, and checkpoints: list, verify, remove. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/names.h"
#include "cli/cmd_checkpoints.h"
#include "cli/commands.h"
#include "core/checked.h"
#include "core/json.h"
#include "core/pool.h"
#include "core/progress.h"
#include "reports/table.h"

/* What is known of a file. */
typedef struct found {
    int whole; /* index into its steps; -1: none */
    char why[160];
    bool verified;
    stw_kept_check checks[STW_NVME_RECORDS];
} found;

typedef struct state {
    const char *folder;
    stw_kept_list list;
    found *found; /* [list.n] */
    stw_pool *pool;
} state;

static bool is_damaged(const stw_kept *kept, const found *f) {
    bool damaged = kept->problem != NULL || kept->damaged > 0;
    for (uint32_t s = 0; s < kept->n_steps; s++) damaged = damaged || f->checks[s].damaged > 0;
    return damaged;
}

/* What verify finds wrong: damage, or a state that lacks a rank. */
static bool is_bad(const stw_kept *kept, const found *f) {
    return f->verified && (is_damaged(kept, f) || f->whole < 0);
}

/* Bytes that verifying reads, for the progress. */
static uint64_t bytes_to_verify(const state *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (!s->list.files[i]->live)
            bytes = stw_plus(bytes,
                             stw_times(s->list.files[i]->n_steps, s->list.files[i]->header.bytes));
    return bytes;
}

static stw_status look(state *s, bool verifies, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_kept_scan(s->folder, &s->list, err));
    s->found = stw_pool_array(s->pool, s->list.n, sizeof *s->found);
    if (s->found == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, s->folder, "out of memory");
    if (verifies) stw_progress_phase("verifying", STW_PROGRESS_BYTES, bytes_to_verify(s));
    for (uint32_t i = 0; i < s->list.n; i++) {
        const stw_kept *kept = s->list.files[i];
        s->found[i].whole = stw_kept_whole(&s->list, i, s->found[i].why, sizeof s->found[i].why);
        s->found[i].verified = verifies && !kept->live;
        for (uint32_t k = 0; s->found[i].verified && k < kept->n_steps; k++)
            STW_TRY(stw_kept_verify(kept, &kept->steps[k], &s->found[i].checks[k], err));
    }
out:
    stw_progress_end();
    return status;
}

/* ---- tables ---- */

static void age(int64_t since_s, char *out, size_t out_size) {
    const int64_t seconds = (int64_t)time(NULL) - since_s;
    if (seconds < 120)
        snprintf(out, out_size, "%" PRId64 " s", seconds > 0 ? seconds : 0);
    else if (seconds < 7200)
        snprintf(out, out_size, "%" PRId64 " min", seconds / 60);
    else if (seconds < 172800)
        snprintf(out, out_size, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(out, out_size, "%" PRId64 " days", seconds / 86400);
}

static int64_t time_of(const stw_kept *kept) {
    return kept->n_steps > 0 ? kept->steps[0].time_s : kept->changed_s;
}

static void list_row(stw_table *table, const stw_kept *kept, const found *f) {
    const stw_nvme_header *h = &kept->header;
    const int step = f->whole >= 0 ? f->whole : 0;
    char when[32];
    if (kept->file >= 0)
        age(time_of(kept), when, sizeof when);
    else
        snprintf(when, sizeof when, "unknown");
    stw_table_cell(table, "%s", kept->path);
    if (kept->n_steps > 0)
        stw_table_cell(table, "%" PRIu64, kept->steps[step].step);
    else
        stw_table_cell(table, "none");
    if (kept->problem == NULL)
        stw_table_cell(table, "%" PRIu32 " of %" PRIu32, h->rank, h->world);
    else
        stw_table_cell(table, "unknown");
    stw_table_cell(table, "%s", stw_word_size(kept->bytes).text);
    if (f->whole >= 0)
        stw_table_cell(table, "yes%s",
                       kept->damaged > 0 ? "; another step's record is damaged" : "");
    else
        stw_table_cell(table, "no: %s", f->why);
    stw_table_cell(table, "%s", when);
    if (h->pid > 0)
        stw_table_cell(table, "%sprocess %" PRId64 " on %s%s",
                       kept->is_copy ? "copy of a file of " : "", h->pid, h->host,
                       kept->live      ? ", running"
                       : kept->is_copy ? ""
                                       : ", ended");
    else
        stw_table_cell(table, "%s", kept->live ? "running" : "unknown");
}

static void verify_row(stw_table *table, const stw_kept *kept, const found *f, uint32_t step) {
    const stw_kept_check *check = &f->checks[step];
    stw_table_cell(table, "%s", kept->path);
    if (kept->live || kept->n_steps == 0) {
        stw_table_cell(table, "none");
        stw_table_cell(table, "0");
        stw_table_cell(table, "%s", kept->live ? "not verified: its run goes on" : f->why);
        return;
    }
    stw_table_cell(table, "%" PRIu64, kept->steps[step].step);
    stw_table_cell(table, "%s", stw_word_size(check->bytes).text);
    if (check->damaged > 0)
        stw_table_cell(table, "%" PRIu64 " part%s damaged; the first: %s", check->damaged,
                       check->damaged > 1 ? "s" : "", check->first);
    else
        stw_table_cell(table, "all checksums are right%s%s%s",
                       kept->damaged > 0 ? "; another step's record is damaged" : "",
                       f->whole < 0 ? "; " : "", f->whole < 0 ? f->why : "");
}

static void put_table(const state *s, bool verifies, stw_format format, stw_text *out) {
    static const char *const list_heads[] = {"file",  ">step", "rank", ">size",
                                             "whole", ">age",  "owner"};
    static const char *const verify_heads[] = {"file", ">step", ">verified", "result"};
    stw_table table;
    uint64_t bytes = 0;
    if (s->list.n == 0) {
        stw_doc_line(out, format, "%s holds no state on NVMe.", s->folder);
        return;
    }
    stw_table_begin(&table, s->pool, verifies ? verify_heads : list_heads, verifies ? 4 : 7);
    for (uint32_t i = 0; i < s->list.n; i++) {
        const stw_kept *kept = s->list.files[i];
        bytes += kept->bytes;
        if (!verifies) list_row(&table, kept, &s->found[i]);
        for (uint32_t k = 0; verifies && k < (kept->n_steps > 0 ? kept->n_steps : 1); k++)
            if (k == 0 || !kept->live) verify_row(&table, kept, &s->found[i], k);
    }
    stw_table_write(&table, format, out);
    stw_doc_gap(out, format);
    if (!verifies && format != STW_FORMAT_CSV)
        stw_doc_line(out, format,
                     "%" PRIu32 " file%s of %s. To remove those whose runs have ended: stowage "
                     "state remove %s",
                     s->list.n, s->list.n > 1 ? "s" : "", stw_word_size(bytes).text, s->folder);
}

/* ---- JSON ---- */

static void put_file(const stw_kept *kept, const found *f, stw_json *json) {
    const stw_nvme_header *h = &kept->header;
    char run[17];
    snprintf(run, sizeof run, "%016" PRIx64, h->run);
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "file", kept->path);
    stw_json_u64(json, "bytes", kept->bytes);
    stw_json_string(json, "run", run);
    stw_json_string(json, "plan_hash", h->plan);
    stw_json_u64(json, "rank", h->rank);
    stw_json_u64(json, "world", h->world);
    stw_json_string(json, "host", h->host);
    stw_json_u64(json, "pid", h->pid > 0 ? (uint64_t)h->pid : 0);
    stw_json_bool(json, "running", kept->live);
    stw_json_bool(json, "copy", kept->is_copy);
    stw_json_double(json, "age_s",
                    kept->file < 0 ? (double)NAN : difftime(time(NULL), (time_t)time_of(kept)));
    stw_json_bool(json, "whole", f->whole >= 0);
    if (f->whole >= 0)
        stw_json_u64(json, "step", kept->steps[f->whole].step);
    else
        stw_json_string(json, "why", f->why);
    stw_json_u64(json, "damaged_records", kept->damaged);
    if (f->verified) stw_json_bool(json, "damaged", is_damaged(kept, f));
    stw_json_begin_array(json, "steps");
    for (uint32_t k = 0; k < kept->n_steps; k++) {
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "step", kept->steps[k].step);
        if (f->verified) {
            stw_json_u64(json, "verified_bytes", f->checks[k].bytes);
            stw_json_u64(json, "damaged_parts", f->checks[k].damaged);
            if (f->checks[k].damaged > 0) stw_json_string(json, "first_damage", f->checks[k].first);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

static stw_status put_json(const state *s, stw_text *out, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.state/1");
    stw_json_string(json, "folder", s->folder);
    stw_json_begin_array(json, "files");
    for (uint32_t i = 0; i < s->list.n; i++) put_file(s->list.files[i], &s->found[i], json);
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

/* ---- the three actions ---- */

static stw_status show(state *s, bool verifies, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    uint32_t bad = 0;
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(look(s, verifies, err));
    if (format == STW_FORMAT_JSON)
        STW_TRY(put_json(s, &text, err));
    else
        put_table(s, verifies, format, &text);
    STW_TRY(stw_emit(general, &text, err));
    for (uint32_t i = 0; i < s->list.n; i++) bad += is_bad(s->list.files[i], &s->found[i]);
    if (bad > 0)
        status =
            stw_fail(err, STW_STATUS_DISAGREE, s->folder,
                     "%" PRIu32 " of %" PRIu32 " files of NVMe state: damaged, not readable, or "
                     "without the other ranks' state",
                     bad, s->list.n);
out:
    stw_text_free(&text);
    return status;
}

/* What another version may read goes only where it is named itself. */
static stw_status remove_one(const state *s, stw_kept *kept, stw_error *err) {
    if (kept->foreign && strcmp(s->folder, kept->path) != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, kept->path,
                        "it is no state of this version, and another may read it: it is not "
                        "removed; to remove it, name the file: stowage state remove %s",
                        kept->path);
    return stw_kept_remove(kept, err);
}

/* Files in use stay, and are an error once the others are removed. */
static stw_status remove_files(state *s, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    uint32_t removed = 0;
    uint64_t bytes = 0;
    STW_TRY(stw_kept_scan(s->folder, &s->list, err));
    for (uint32_t i = 0; i < s->list.n; i++) {
        stw_status one = remove_one(s, s->list.files[i], err);
        if (one != STW_STATUS_OK) {
            if (status == STW_STATUS_OK) status = one;
            continue;
        }
        removed++;
        bytes += s->list.files[i]->bytes;
        stw_doc_line(&text, STW_FORMAT_TERMINAL, "removed %s", s->list.files[i]->path);
    }
    stw_doc_line(&text, STW_FORMAT_TERMINAL, "%" PRIu32 " of %" PRIu32 " files removed, %s",
                 removed, s->list.n, stw_word_size(bytes).text);
    stw_status written = stw_emit(general, &text, err);
    if (status == STW_STATUS_OK) status = written;
out:
    stw_text_free(&text);
    return status;
}

static stw_status run(const char *action, state *s, const stw_general *general, stw_error *err) {
    static const char *const actions[] = {"list", "verify", "remove"};
    bool checkpoints = false;
    const stw_status scanned = stw_state_has_checkpoints(s->folder, &checkpoints, err);
    if (scanned != STW_STATUS_OK) return scanned;
    if (checkpoints && (strcmp(action, "list") == 0 || strcmp(action, "verify") == 0))
        return stw_state_show_checkpoints(s->folder, action[0] == 'v', general, err);
    if (checkpoints && strcmp(action, "remove") == 0)
        return stw_state_remove_checkpoints(s->folder, general, err);
    if (strcmp(action, "list") == 0 || strcmp(action, "verify") == 0)
        return show(s, action[0] == 'v', general, err);
    if (strcmp(action, "remove") == 0) return remove_files(s, general, err);
    const char *near = stw_nearest(action, actions, 3);
    return stw_fail(err, STW_STATUS_USAGE, action, "expected list, verify or remove%s%s%s",
                    near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                    near != NULL ? "?" : "");
}

/* Completions end folders with a slash, and what is removed is renamed first. */
static const char *without_slash(stw_pool *pool, const char *path) {
    size_t n = path != NULL ? strlen(path) : 0;
    while (n > 1 && path[n - 1] == '/') n--;
    const char *own = n > 0 && path[n] == '/' ? stw_pool_printf(pool, "%.*s", (int)n, path) : NULL;
    return own != NULL ? own : path;
}

int stw_cmd_state(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *words[2] = {NULL, NULL};
    size_t n = 0;
    const stw_usage usage = {
        "stowage",
        "state",
        "list|verify [FOLDER], state remove FOLDER",
        "Checkpoints, and state on NVMe that runs with --keep-state left: list says of which step, "
        "whose, and whether it is whole (all ranks have written their parts; on NVMe: all ranks of "
        "this node have committed the step); verify reads it and compares every checksum; remove "
        "removes, without asking, what no running process uses. FOLDER is that of --checkpoint, "
        "one checkpoint in it, that of --nvme, or one file; for list and verify the default is "
        "$TMPDIR or /tmp. Of a folder of checkpoints remove removes those that are not complete; "
        "one that is, and what is no state of this version, must be named itself. Exit code 8: "
        "verify found damage, a file that it cannot read, or a rank without state.",
        NULL,
        0,
        1,
        2,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, words, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    state s = {.pool = stw_pool_new()};
    s.folder = stw_nvme_folder(without_slash(s.pool, words[1]));
    if (words[1] == NULL && strcmp(words[0], "remove") == 0)
        status = stw_fail(&err, STW_STATUS_USAGE, "state remove",
                          "expected FOLDER or a file; `stowage state list` shows what there is");
    else
        status = run(words[0], &s, &general, &err);
    stw_kept_list_free(&s.list);
    stw_pool_free(s.pool);
    return stw_exit(status, &err);
}
