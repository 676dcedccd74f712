/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/emission.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "engines/megatron/recompute.h"
#include "plan/job/images.h"
#include "plan/spec/registry.h"

static void fail(stw_emission *e) {
    if (e->status == STW_STATUS_OK)
        e->status = stw_fail(e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
}

/* ---- the plan's settings ---- */

/* Without quotes; NULL for the words that stand for no value. */
static const char *plain(stw_emission *e, const stw_spec_row *row, const void *base) {
    stw_text text = STW_TEXT_INIT;
    if (row == NULL) return NULL;
    stw_spec_write_value(row, base, &text);
    const char *start = text.data != NULL ? text.data : "";
    size_t length = strlen(start);
    if (length >= 2 && (*start == '"' || *start == '\'') && start[length - 1] == *start)
        start++, length -= 2;
    char *out = stw_pool_printf(e->pool, "%.*s", (int)length, start);
    if (out == NULL) fail(e);
    stw_text_free(&text);
    if (out == NULL || strcmp(out, "auto") == 0 || strcmp(out, "none") == 0) return NULL;
    return out;
}

static const stw_spec_row *row_of(const char *key) {
    return stw_spec_find(stw_run_spec_table(), key, strlen(key));
}

const char *stw_emit_text(stw_emission *e, const char *key) {
    return plain(e, row_of(key), &e->plan->run);
}

const char *stw_emit_role_text(stw_emission *e, uint32_t role, const char *key) {
    const stw_spec_row *row = stw_spec_find(stw_role_table(), key, strlen(key));
    return role < e->plan->run.n_roles ? plain(e, row, &e->plan->run.roles[role]) : NULL;
}

uint64_t stw_emit_count(stw_emission *e, const char *key) {
    const stw_spec_row *row = row_of(key);
    if (row == NULL || stw_spec_word_of(row, &e->plan->run) != NULL) return 0;
    return stw_spec_get_u64(row, &e->plan->run);
}

bool stw_emit_on(stw_emission *e, const char *key) { return stw_emit_has(e, key, "true"); }

bool stw_emit_has(stw_emission *e, const char *key, const char *value) {
    const char *text = stw_emit_text(e, key);
    return text != NULL && strcmp(text, value) == 0;
}

uint64_t stw_emit_ranks(stw_emission *e) {
    const stw_parallel *p = &e->plan->run.parallel;
    const uint64_t ways = stw_times(stw_times(p->tp, p->cp), p->pp), world = e->plan->job->world;
    return ways > 0 && world >= ways ? world / ways : 1;
}

static stw_megatron_recompute recompute_of(const stw_emission *e) {
    const stw_job *job = e->plan->job;
    if (strcmp(stw_run_spec_engine(&e->plan->run)->name, "megatron") != 0)
        return (stw_megatron_recompute){NULL, 0, false};
    return stw_megatron_recompute_of(job, &e->plan->decisions);
}

const char *stw_emit_recompute_method(stw_emission *e) { return recompute_of(e).method; }

const char *stw_emit_recompute_layers(stw_emission *e) {
    const stw_megatron_recompute is = recompute_of(e);
    if (is.method == NULL) return NULL;
    const char *text = stw_pool_printf(e->pool, "%llu", (unsigned long long)is.num_layers);
    if (text == NULL) fail(e);
    return text;
}

const char *stw_emit_recompute(stw_emission *e) {
    const char *text = stw_emit_text(e, "recompute.granularity");
    const stw_decisions *d = &e->plan->decisions;
    uint64_t kept = 0, recomputed = 0;
    /* an automatic choice, and the word none, have no text */
    if (text != NULL || e->plan->run.recompute.granularity != STW_AUTO)
        return text != NULL ? text : "none";
    if (stw_emit_recompute_method(e) != NULL) return "full";
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        if (d->blocks[i].act == STW_ACT_KEEP) kept += d->blocks[i].count;
        if (d->blocks[i].act == STW_ACT_RECOMPUTE) recomputed += d->blocks[i].count;
    }
    return recomputed > kept ? "full" : "none";
}

const char *stw_emit_allocator(stw_emission *e) {
    const bool expandable = stw_emit_on(e, "allocator.expandable_segments");
    const uint64_t split = e->plan->run.allocator.max_split_bytes;
    const char *divisions = stw_emit_text(e, "allocator.roundup_power2_divisions");
    const char *out = expandable ? "expandable_segments:True" : "";
    if (split > 0 && split != UINT64_MAX)
        out = stw_pool_printf(e->pool, "%s%smax_split_size_mb:%llu", out, *out != '\0' ? "," : "",
                              (unsigned long long)(split >> 20));
    if (divisions != NULL && out != NULL)
        out = stw_pool_printf(e->pool, "%s%sroundup_power2_divisions:%s", out,
                              *out != '\0' ? "," : "", divisions);
    if (out == NULL) fail(e);
    return out == NULL || *out == '\0' ? NULL : out;
}

/* ---- the framework's flags ---- */

stw_emit_flag *stw_emit_find(stw_emission *e, const char *name) {
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->flags[i].name, name) == 0) return &e->flags[i];
    return NULL;
}

void stw_emit_put(stw_emission *e, const char *name, const char *value) {
    stw_emit_flag *known = stw_emit_find(e, name);
    if (e->status != STW_STATUS_OK) return;
    if (known != NULL) {
        known->value = value;
        return;
    }
    stw_emit_flag *grown =
        stw_pool_grow(e->pool, e->flags, e->n, e->n + 1, &e->capacity, sizeof *grown);
    if (grown == NULL) {
        fail(e);
        return;
    }
    e->flags = grown;
    e->flags[e->n++] = (stw_emit_flag){name, value};
}

void stw_emit_put_count(stw_emission *e, const char *name, uint64_t value) {
    const char *text = stw_pool_printf(e->pool, "%llu", (unsigned long long)value);
    if (text == NULL) fail(e);
    stw_emit_put(e, name, text);
}

void stw_emit_put_pixels(stw_emission *e, const char *name, uint64_t usual_tokens,
                         uint64_t usual_pixels) {
    const uint64_t each = stw_model_token_pixels(e->plan->model);
    const uint64_t tokens = e->plan->run.batch.image_tokens;
    const stw_flag *flag = e->import != NULL ? stw_flags_find(&e->import->flags, name) : NULL;
    if (each == 0 || tokens == 0) return;
    uint64_t now = usual_tokens > 0 ? usual_tokens : usual_pixels / each;
    if (flag != NULL) now = strtoull(flag->value, NULL, 10) / each;
    if (stw_min_u64(now, e->plan->run.batch.seq_len) == tokens) return;
    stw_emit_put_count(e, name, stw_times(tokens, each));
}

void stw_emit_put_switch(stw_emission *e, const char *name, bool value) {
    stw_emit_put(e, name, value ? "true" : "false");
}

const char *stw_emit_list(stw_emission *e, const char *list, const char *between) {
    const char *out = "";
    if (list == NULL || *list != '[') return list;
    for (const char *at = list + 1; *at != '\0' && *at != ']' && out != NULL;) {
        at += strspn(at, " ,");
        const size_t length = strcspn(at, ",]");
        if (length == 0) break;
        out =
            stw_pool_printf(e->pool, "%s%s%.*s", out, *out != '\0' ? between : "", (int)length, at);
        at += length;
    }
    if (out == NULL) fail(e);
    return out != NULL ? out : "";
}
