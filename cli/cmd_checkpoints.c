/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cmd_checkpoints.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/checkpoint/load.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/progress.h"
#include "reports/table.h"

/* A checkpoint and what is known of it. */
typedef struct found {
    const stw_checkpoint_entry *entry;
    stw_checkpoint *whole; /* NULL: it is not, `status` and `why` say what is wrong */
    stw_status status;
    stw_error why;
    stw_checkpoint_damage damage;
    int64_t changed_s;
} found;

typedef struct look {
    const char *path;
    bool verifies;
    stw_checkpoint_list list;
    found *found; /* [list.n] */
} look;

stw_status stw_state_has_checkpoints(const char *path, bool *out, stw_error *err) {
    stw_checkpoint_list list = {0, NULL};
    *out = false;
    if (!stw_file_is_folder(path)) return STW_STATUS_OK;
    const stw_status status = stw_checkpoint_scan(path, &list, err);
    *out = list.n > 0;
    stw_checkpoint_list_free(&list);
    return status;
}

static void progress(void *state, uint64_t bytes) {
    (void)state;
    stw_progress_add(bytes);
}

/* A folder that a save left under its first name says so by it. */
static bool is_bad(const found *f) {
    return f->damage.damaged > 0 || (f->whole == NULL && !f->entry->partial);
}

static stw_status find(look *l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = 0;
    STW_TRY(stw_checkpoint_scan(l->path, &l->list, err));
    l->found = calloc((size_t)l->list.n + 1, sizeof *l->found);
    if (l->found == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, l->path, "out of memory"));
    for (uint32_t i = 0; i < l->list.n; i++) {
        struct stat info;
        found *f = &l->found[i];
        f->entry = &l->list.entries[i];
        f->why = (stw_error)STW_ERROR_INIT;
        f->status = stw_checkpoint_open(f->entry->path, &f->whole, &f->why);
        if (f->status == STW_STATUS_NO_MEMORY)
            STW_TRY(stw_fail(err, f->status, f->why.where, "%s", f->why.text));
        if (stat(f->entry->path, &info) == 0) f->changed_s = (int64_t)info.st_mtime;
        if (f->whole != NULL) bytes += f->whole->bytes;
    }
    if (!l->verifies) goto out;
    stw_progress_phase("verifying", STW_PROGRESS_BYTES, bytes);
    for (uint32_t i = 0; i < l->list.n; i++)
        if (l->found[i].whole != NULL)
            STW_TRY(
                stw_checkpoint_verify(l->found[i].whole, progress, NULL, &l->found[i].damage, err));
out:
    stw_progress_end();
    return status;
}

static void end(look *l) {
    for (uint32_t i = 0; l->found != NULL && i < l->list.n; i++)
        stw_checkpoint_close(l->found[i].whole);
    free(l->found);
    stw_checkpoint_list_free(&l->list);
}

static void age(int64_t since_s, stw_table *table) {
    const int64_t seconds = (int64_t)time(NULL) - since_s;
    if (seconds < 7200)
        stw_table_cell(table, "%" PRId64 " min", seconds > 0 ? seconds / 60 : 0);
    else if (seconds < 172800)
        stw_table_cell(table, "%" PRId64 " h", seconds / 3600);
    else
        stw_table_cell(table, "%" PRId64 " days", seconds / 86400);
}

/* Without its folder: tables shorten what takes half of a terminal, and names are copied. */
static void put_row(const look *l, const found *f, stw_format format, stw_table *table) {
    const char *slash = format != STW_FORMAT_CSV ? strrchr(f->entry->path, '/') : NULL;
    stw_table_cell(table, "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : f->entry->path);
    stw_table_cell(table, "%" PRIu64, f->entry->step);
    if (f->whole != NULL)
        stw_table_cell(table, "%u", f->whole->manifest.world);
    else
        stw_table_cell(table, "unknown");
    stw_table_cell(table, "%s", f->whole != NULL ? stw_word_size(f->whole->bytes).text : "unknown");
    if (f->whole == NULL && f->status == STW_STATUS_BAD_INPUT)
        stw_table_cell(table, "%s", f->why.text);
    else if (f->whole == NULL)
        stw_table_cell(table, "%s: %s: %s",
                       f->status == STW_STATUS_DISAGREE ? "damaged" : "cannot be read",
                       f->why.where, f->why.text);
    else if (f->damage.damaged > 0)
        stw_table_cell(table, "%" PRIu64 " part%s damaged; the first: %s", f->damage.damaged,
                       f->damage.damaged > 1 ? "s" : "", f->damage.first);
    else
        stw_table_cell(table, "%s", l->verifies ? "all hashes are right" : "yes");
    age(f->changed_s, table);
}

static void put_folder(const look *l, stw_format format, stw_text *out) {
    uint32_t partial = 0;
    if (format == STW_FORMAT_CSV || stw_checkpoint_is(l->path)) return;
    for (uint32_t i = 0; i < l->list.n; i++) partial += l->found[i].whole == NULL;
    stw_doc_gap(out, format);
    stw_doc_line(out, format, "%" PRIu32 " checkpoint%s in %s%s%s", l->list.n,
                 l->list.n > 1 ? "s" : "", l->path,
                 partial > 0 ? ". To remove those that are not complete: stowage state remove "
                             : "",
                 partial > 0 ? l->path : "");
}

static void put_json(const look *l, stw_json *json) {
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.state/1");
    stw_json_string(json, "folder", l->path);
    stw_json_begin_array(json, "checkpoints");
    for (uint32_t i = 0; i < l->list.n; i++) {
        const found *f = &l->found[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "path", f->entry->path);
        stw_json_u64(json, "step", f->entry->step);
        stw_json_bool(json, "complete", f->whole != NULL);
        stw_json_bool(json, "renamed", !f->entry->partial);
        if (f->whole == NULL) stw_json_string(json, "why", f->why.text);
        if (f->whole != NULL) {
            stw_json_u64(json, "world", f->whole->manifest.world);
            stw_json_u64(json, "bytes", f->whole->bytes);
            stw_json_string(json, "model", f->whole->manifest.model);
        }
        stw_json_double(json, "age_s", difftime(time(NULL), (time_t)f->changed_s));
        if (l->verifies && f->whole != NULL) {
            stw_json_u64(json, "verified_bytes", f->damage.bytes);
            stw_json_u64(json, "damaged_parts", f->damage.damaged);
            if (f->damage.damaged > 0) stw_json_string(json, "first_damage", f->damage.first);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

static stw_status put(const look *l, stw_format format, stw_text *out, stw_error *err) {
    static const char *const heads[] = {"checkpoint", ">step",    ">ranks",
                                        ">size",      "complete", ">age"};
    static const char *const verify_heads[] = {"checkpoint", ">step",  ">ranks",
                                               ">size",      "result", ">age"};
    stw_table table;
    if (format == STW_FORMAT_JSON) {
        stw_json *json = stw_json_new();
        put_json(l, json);
        return stw_json_finish(json, out, err);
    }
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, l->path, "out of memory");
    stw_table_begin(&table, pool, l->verifies ? verify_heads : heads, 6);
    for (uint32_t i = 0; i < l->list.n; i++) put_row(l, &l->found[i], format, &table);
    stw_table_write(&table, format, out);
    stw_pool_free(pool);
    put_folder(l, format, out);
    return STW_STATUS_OK;
}

stw_status stw_state_show_checkpoints(const char *path, bool verifies, const stw_general *general,
                                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    look l = {.path = path, .verifies = verifies};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    uint32_t bad = 0;
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(find(&l, err));
    STW_TRY(put(&l, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
    for (uint32_t i = 0; i < l.list.n; i++) bad += is_bad(&l.found[i]);
    if (verifies && bad > 0)
        status = stw_fail(err, STW_STATUS_DISAGREE, path,
                          "%" PRIu32 " of %" PRIu32 " checkpoints: damaged or not complete", bad,
                          l.list.n);
out:
    stw_text_free(&text);
    end(&l);
    return status;
}

/* Of a folder what is not complete goes; a checkpoint that is must be named itself. */
static stw_status remove_some(const look *l, bool one, stw_text *text, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t removed = 0;
    for (uint32_t i = 0; i < l->list.n; i++) {
        const found *f = &l->found[i];
        if (!one && f->whole != NULL) continue;
        if (!one && !f->entry->partial && !stw_checkpoint_is_own(f->entry->path)) {
            stw_log(STW_LOG_WARN, "%s: has neither manifest nor marker and is not removed",
                    f->entry->path);
            continue;
        }
        STW_TRY(stw_checkpoint_remove(f->entry->path, err));
        stw_doc_line(text, STW_FORMAT_TERMINAL, "removed %s", f->entry->path);
        removed++;
    }
    stw_doc_line(text, STW_FORMAT_TERMINAL, "%" PRIu32 " of %" PRIu32 " checkpoints removed%s",
                 removed, l->list.n,
                 one || removed == l->list.n ? ""
                                             : "; to remove one that is complete, name its folder");
out:
    return status;
}

stw_status stw_state_remove_checkpoints(const char *path, const stw_general *general,
                                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    look l = {.path = path};
    stw_text text = STW_TEXT_INIT;
    const bool one = stw_checkpoint_is(path);
    int lock = -1;
    if (!one) STW_TRY(stw_checkpoint_lock(path, &lock, err));
    STW_TRY(find(&l, err));
    status = remove_some(&l, one, &text, err);
    stw_status written = stw_emit(general, &text, err);
    if (status == STW_STATUS_OK) status = written;
out:
    if (lock >= 0) (void)close(lock);
    stw_text_free(&text);
    end(&l);
    return status;
}
