/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/layouts_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"
#include "planner/simulate.h"

#define BIT(name) (1u << STW_SEARCH_##name)
#define MOST_ACCUMULATION 65536

/* Ways in which ranks share work. */
static const uint32_t WAYS =
    BIT(TP) | BIT(PP) | BIT(VPP) | BIT(CP) | BIT(EP) | BIT(ETP) | BIT(REPLICAS);

static bool is_searched(const stw_layout_list *l, int key) {
    return (l->c.searched >> key & 1) != 0;
}

/* Ways and the batch; the others say how the same work is done. */
static bool is_width(int key) { return key < STW_SEARCH_FUSED_LOSS; }

/* What a key is where nothing speaks for another value: sequence parallelism belongs to tensor
 * parallelism. */
static uint64_t plain_value(const stw_layout_list *l, const uint64_t *value, int key) {
    if (key == STW_SEARCH_SEQUENCE && is_searched(l, key)) return value[STW_SEARCH_TP] > 1;
    return l->own[key];
}

/* ---- the batch ---- */

static uint64_t data_ranks(const stw_layout_list *l, const uint64_t *value) {
    const uint64_t ways =
        stw_times(stw_times(value[STW_SEARCH_TP], value[STW_SEARCH_PP]), value[STW_SEARCH_CP]);
    return ways > 0 && l->c.world % ways == 0 ? l->c.world / ways : 0;
}

/* Tokens of an optimizer step: batch.tokens_per_step, or those of the run as it stands. */
static stw_status count_tokens(stw_layout_list *l, stw_error *err) {
    const stw_run_spec *run = l->c.run;
    const uint64_t packed = run->batch.max_tokens_per_gpu, tokens = run->batch.tokens_per_step;
    const uint64_t each = run->batch.seq_len;
    char found[32], expected[96];
    l->tokens = stw_run_spec_step_tokens(run, l->c.world);
    if (tokens > 0 && packed == 0 && each > 0 && tokens % each != 0) {
        snprintf(found, sizeof found, "%" PRIu64, tokens);
        snprintf(expected, sizeof expected, "a multiple of batch.seq_len, %" PRIu64, each);
        return stw_run_spec_refuse("run", err, "batch.tokens_per_step", found, expected);
    }
    if (tokens == 0 && data_ranks(l, l->own) == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                        "tp %u x pp %u x cp %u does not divide %u GPUs, so the tokens of a step "
                        "are unknown; set batch.tokens_per_step",
                        run->parallel.tp, run->parallel.pp, run->parallel.cp, l->c.world);
    return STW_STATUS_OK;
}

/* Accumulation follows from the other keys. Ranks that share sequences by context parallelism have
 * no fewer tokens where sequences are packed; these need not fill the micro batches of a step whose
 * tokens are given. */
static bool set_accumulation(const stw_layout_list *l, uint64_t *value) {
    const stw_run_spec *run = l->c.run;
    const uint64_t packed = run->batch.max_tokens_per_gpu, ranks = data_ranks(l, value);
    const uint64_t once =
        packed > 0 ? stw_times(stw_times(ranks, value[STW_SEARCH_CP]), packed)
                   : stw_times(stw_times(ranks, value[STW_SEARCH_MICRO_BATCH]), run->batch.seq_len);
    const bool fills = packed == 0 || run->batch.tokens_per_step == 0;
    if (once == 0 || (fills && l->tokens % once != 0)) return false;
    value[STW_SEARCH_ACCUMULATION] = stw_div_up_u64(l->tokens, once);
    return value[STW_SEARCH_ACCUMULATION] <= MOST_ACCUMULATION;
}

/* ---- the list ---- */

static void measure(const stw_layout_list *l, stw_listed_layout *out) {
    out->ways = out->changes = 0;
    out->width = 1;
    for (int k = 0; k < STW_N_SEARCHES; k++) {
        const bool way = (WAYS >> k & 1) != 0;
        if (k == STW_SEARCH_ACCUMULATION) continue;
        out->ways += way && out->value[k] > 1;
        out->changes += !way && out->value[k] != plain_value(l, out->value, k);
        if (is_width(k)) out->width = stw_times(out->width, out->value[k]);
    }
}

/* Fewer ways, then fewer other changes, then narrower ones; then by values, so that the order is
 * one. */
static int by_plainness(const void *a, const void *b) {
    const stw_listed_layout *x = a, *y = b;
    if (x->ways != y->ways) return x->ways < y->ways ? -1 : 1;
    if (x->changes != y->changes) return x->changes < y->changes ? -1 : 1;
    if (x->width != y->width) return x->width < y->width ? -1 : 1;
    for (int k = 0; k < STW_N_SEARCHES; k++)
        if (x->value[k] != y->value[k]) return x->value[k] < y->value[k] ? -1 : 1;
    return 0;
}

static stw_status add(stw_layout_list *l, const uint64_t *value, stw_pool *pool, stw_error *err) {
    stw_listed_layout *grown =
        stw_pool_grow(pool, l->list, l->n, (size_t)l->n + 1, &l->room, sizeof *l->list);
    if (grown == NULL) return stw_planner_no_memory(err);
    l->list = grown;
    memcpy(grown[l->n].value, value, sizeof grown->value);
    measure(l, &grown[l->n++]);
    return STW_STATUS_OK;
}

/* All values of the keys from `key` on. */
static stw_status add_all(stw_layout_list *l, int key, uint64_t *value, stw_pool *pool,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (key == STW_N_SEARCHES) {
        if (!set_accumulation(l, value)) return STW_STATUS_OK;
        l->divides = true;
        if (!l->rules->admits(&l->c, value)) return STW_STATUS_OK;
        return add(l, value, pool, err);
    }
    for (uint32_t i = 0; i < l->n_values[key] && status == STW_STATUS_OK; i++) {
        value[key] = l->values[key][i];
        status = add_all(l, key + 1, value, pool, err);
    }
    return status;
}

/* `auto` of a key of which the engine searches nothing. */
static stw_status check_keys(const stw_layout_case *c, const stw_layout_rules *rules,
                             stw_error *err) {
    const uint32_t unknown = c->run->searches.keys & ~rules->searches;
    const stw_spec_table *table = stw_run_spec_table();
    for (size_t r = 0; r < table->n_rows; r++)
        if ((table->rows[r].search & unknown) != 0)
            return stw_run_spec_refuse("run", err, table->rows[r].key, "auto",
                                       "a value: the engine's layouts have no such key");
    return STW_STATUS_OK;
}

stw_status stw_layouts_list(const stw_layout_case *c, const stw_layout_rules *rules, stw_pool *pool,
                            stw_layout_list *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t value[STW_N_SEARCHES];
    *out = (stw_layout_list){.c = *c, .rules = rules};
    STW_TRY(check_keys(c, rules, err));
    stw_layout_of_run(c, rules, out->own);
    STW_TRY(count_tokens(out, err));
    for (int k = 0; k < STW_N_SEARCHES; k++) {
        out->n_values[k] = 1;
        out->values[k][0] = out->own[k];
        if (is_searched(out, k) && k != STW_SEARCH_ACCUMULATION)
            out->n_values[k] = stw_layout_values(c, rules, (stw_search)k, out->values[k]);
    }
    STW_TRY(add_all(out, 0, value, pool, err));
    if (out->n > 0) qsort(out->list, out->n, sizeof *out->list, by_plainness);
    if (out->n == 0 && out->divides)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                         "found auto: the engine admits no layout of %u GPUs with the keys of "
                         "parallel that are set to a value; set fewer of them",
                         c->world));
    if (out->n == 0)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                         "found auto: no layout divides the %" PRIu64
                         " tokens of a step, in sequences of %" PRIu64
                         ", over %u GPUs; change batch.tokens_per_step",
                         out->tokens, c->run->batch.seq_len, c->world));
out:
    return status;
}

/* ---- neighbours ---- */

static int index_of(const stw_layout_list *l, int key, uint64_t value) {
    for (uint32_t i = 0; i < l->n_values[key]; i++)
        if (l->values[key][i] == value) return (int)i;
    return -1;
}

/* Two keys may change at once where one takes ranks from the other, or where etp follows tp. */
static bool is_trade(int first, int first_step, int second, int second_step) {
    static const uint32_t TRADE = BIT(TP) | BIT(PP) | BIT(CP) | BIT(EP) | BIT(MICRO_BATCH);
    if (first == STW_SEARCH_TP && second == STW_SEARCH_ETP) return first_step == second_step;
    return (TRADE >> first & 1) != 0 && (TRADE >> second & 1) != 0 && first_step == -second_step;
}

bool stw_layouts_are_near(const stw_layout_list *l, uint32_t a, uint32_t b) {
    const uint64_t *x = l->list[a].value, *y = l->list[b].value;
    int key[2] = {0}, step[2] = {0}, n = 0;
    for (int k = 0; k < STW_N_SEARCHES; k++) {
        if (k == STW_SEARCH_ACCUMULATION || x[k] == y[k]) continue;
        /* comes and goes with tensor parallelism */
        if (k == STW_SEARCH_SEQUENCE && (x[STW_SEARCH_TP] == 1) != (y[STW_SEARCH_TP] == 1))
            continue;
        if (n == 2) return false;
        key[n] = k;
        step[n] = index_of(l, k, y[k]) - index_of(l, k, x[k]);
        /* most numbers of chunks do not divide the layers: any is a step */
        if (step[n] != 1 && step[n] != -1 && k != STW_SEARCH_VPP) return false;
        n++;
    }
    return n == 1 || (n == 2 && is_trade(key[0], step[0], key[1], step[1]));
}

bool stw_layout_is_seed(const stw_layout_list *l, uint32_t i) {
    static const uint32_t SKELETON = BIT(TP) | BIT(PP) | BIT(EP) | BIT(ACCUMULATION);
    for (int k = 0; k < STW_N_SEARCHES; k++) {
        const uint64_t *value = l->list[i].value;
        const uint64_t plainest = is_width(k) ? l->values[k][0] : plain_value(l, value, k);
        if ((SKELETON >> k & 1) == 0 && value[k] != plainest) return false;
    }
    return true;
}

bool stw_layout_is_own(const stw_layout_list *l, uint32_t i) {
    return memcmp(l->list[i].value, l->own, sizeof l->own) == 0;
}

/* ---- settings ---- */

/* @param out [STW_LAYOUT_SETTING] @return false: the key is not searched, or as the run has it */
static bool setting_of(const stw_layout_list *l, uint32_t i, int key, char *out) {
    const char *name = stw_layout_key(l->rules, (stw_search)key);
    const uint64_t value = l->list[i].value[key];
    if (name == NULL || value == l->own[key]) return false;
    if (stw_layout_is_truth(l->rules, (stw_search)key))
        snprintf(out, STW_LAYOUT_SETTING, "%s=%s", name, value != 0 ? "true" : "false");
    else
        snprintf(out, STW_LAYOUT_SETTING, "%s=%" PRIu64, name, value);
    return true;
}

static stw_status set(stw_run_spec *run, const char *setting, stw_error *err) {
    const char *equals = strchr(setting, '=');
    char key[STW_LAYOUT_SETTING];
    snprintf(key, sizeof key, "%.*s", (int)(equals - setting), setting);
    return stw_run_spec_set(run, key, equals + 1, "parallel", err);
}

static uint32_t own_settings(const stw_layout_list *l, uint32_t i, char out[][STW_LAYOUT_SETTING]) {
    return l->rules->settings != NULL ? l->rules->settings(&l->c, l->list[i].value, out) : 0;
}

stw_status stw_layout_apply(const stw_layout_list *l, uint32_t i, stw_run_spec *run,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char setting[STW_LAYOUT_SETTING], more[STW_LAYOUT_MOST_OWN][STW_LAYOUT_SETTING];
    const uint32_t n = own_settings(l, i, more); /* by the run as it was, which `run` may be */
    for (int k = 0; k < STW_N_SEARCHES; k++)
        if (setting_of(l, i, k, setting)) STW_TRY(set(run, setting, err));
    for (uint32_t k = 0; k < n; k++) STW_TRY(set(run, more[k], err));
    run->search_all = false;
    run->searches.keys = 0;
out:
    return status;
}

const char *stw_layout_words(const stw_layout_list *l, uint32_t i, stw_pool *pool) {
    char setting[STW_LAYOUT_SETTING], more[STW_LAYOUT_MOST_OWN][STW_LAYOUT_SETTING];
    const char *words = "";
    for (int k = 0; k < STW_N_SEARCHES && words != NULL; k++)
        if (setting_of(l, i, k, setting))
            words = stw_pool_printf(pool, "%s%s%s", words, words[0] != '\0' ? " " : "", setting);
    const uint32_t n = own_settings(l, i, more);
    for (uint32_t k = 0; k < n && words != NULL; k++)
        words = stw_pool_printf(pool, "%s%s%s", words, words[0] != '\0' ? " " : "", more[k]);
    return words;
}
