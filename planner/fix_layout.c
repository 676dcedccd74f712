/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks, those that the search for layouts lists (layouts_list.h), as knobs: each
 * combination of tensor, pipeline and expert parallelism is one, whose steps are its layouts on
 * some nodes, the narrowest first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"

enum { TP, PP, EP, N_WAYS };
static const stw_search KEYS[N_WAYS] = {STW_SEARCH_TP, STW_SEARCH_PP, STW_SEARCH_EP};
#define ALL_WAYS ((1u << N_WAYS) - 1)

/* ---- lists ---- */

static uint64_t cut_of(const stw_listed_layout *l) {
    return l->value[STW_SEARCH_TP] * l->value[STW_SEARCH_PP] * l->value[STW_SEARCH_EP];
}

/* Of equal cuts that with the fewest stages is the wider one. */
static int by_cut(const void *a, const void *b) {
    const stw_listed_layout *x = a, *y = b;
    if (cut_of(x) != cut_of(y)) return cut_of(x) < cut_of(y) ? -1 : 1;
    const uint64_t p = x->value[STW_SEARCH_PP], q = y->value[STW_SEARCH_PP];
    if (p != q) return p > q ? -1 : 1;
    const uint64_t s = x->value[STW_SEARCH_TP], t = y->value[STW_SEARCH_TP];
    return s < t ? -1 : s > t;
}

static bool has_key(const stw_plan *plan, stw_search key) {
    return (plan->job->engine->layouts->searches >> key & 1) != 0;
}

/* List the layouts on `nodes`, with the tokens of a step that the plan has. */
static stw_status list_on(const stw_plan *plan, uint64_t nodes, stw_rank_layouts *out,
                          stw_error *err) {
    stw_layout_case c = {.model = plan->model,
                         .cluster = &out->cluster,
                         .run = &out->run,
                         .ranks_per_node = plan->job->ranks_per_node,
                         .slow_too = true};
    out->pool = plan->pool;
    out->cluster = plan->cluster;
    out->cluster.nodes = (uint32_t)nodes;
    out->run = plan->run;
    out->run.searches.keys = 0;
    if (out->run.batch.tokens_per_step == 0)
        out->run.batch.tokens_per_step = stw_job_step_tokens(plan->job);
    c.world = (uint32_t)stw_fix_ranks(&out->run, &out->cluster, (uint32_t)nodes);
    for (int w = 0; w < N_WAYS; w++)
        if (has_key(plan, KEYS[w])) c.searched |= 1u << KEYS[w];
    if (!out->run.parallel.sequence_parallel && has_key(plan, STW_SEARCH_SEQUENCE))
        c.searched |= 1u << STW_SEARCH_SEQUENCE;
    const stw_status status =
        c.world > 0 ? stw_layouts_list(&c, plan->job->engine->layouts, plan->pool, &out->list, NULL)
                    : STW_STATUS_BAD_INPUT;
    if (status == STW_STATUS_NO_MEMORY)
        return stw_fail(err, status, "planner", "no memory for layouts");
    if (status != STW_STATUS_OK) out->list.n = 0; /* none divides the ranks or the tokens */
    if (out->list.n > 0) qsort(out->list.list, out->list.n, sizeof *out->list.list, by_cut);
    return STW_STATUS_OK;
}

/* Which ways a layout turns; bit N_WAYS: some below the run's, or without what goes with them. */
static unsigned ways_of(const stw_plan *plan, const stw_layout_list *l, uint32_t i) {
    const uint64_t *value = l->list[i].value, *own = l->own;
    unsigned ways = 0;
    for (int w = 0; w < N_WAYS; w++) {
        if (value[KEYS[w]] != own[KEYS[w]]) ways |= 1u << w;
        if (value[KEYS[w]] % own[KEYS[w]] != 0) ways |= 1u << N_WAYS;
    }
    const bool sequence = value[STW_SEARCH_SEQUENCE] != 0, was = own[STW_SEARCH_SEQUENCE] != 0;
    const bool wanted = was || (value[STW_SEARCH_TP] > 1 && (ways & 1u << TP) != 0 &&
                                has_key(plan, STW_SEARCH_SEQUENCE));
    return sequence == wanted ? ways : ways | 1u << N_WAYS;
}

stw_status stw_knob_of_ways(const stw_plan *plan, const stw_rank_layouts *layouts, unsigned ways,
                            stw_knob *out, stw_error *err) {
    static const char *const whys[N_WAYS] = {"cuts every layer over GPUs",
                                             "gives each stage a part of the layers",
                                             "cuts the experts over GPUs"};
    const stw_layout_list *l = &layouts->list;
    uint32_t *chosen = stw_pool_array(plan->pool, l->n + 1, sizeof *chosen);
    *out = (stw_knob){.key = "",
                      .why = "",
                      .kind = STW_KNOB_LAYOUT,
                      .layouts = layouts,
                      .chosen = chosen,
                      .from = 1};
    for (int w = 0; w < N_WAYS && out->why != NULL; w++)
        if ((ways & 1u << w) != 0)
            out->why = stw_pool_printf(plan->pool, "%s%s%s", out->why,
                                       out->why[0] == '\0' ? "" : "; ", whys[w]);
    if (chosen == NULL || out->why == NULL) return stw_planner_no_memory(err);
    for (int w = 0; w < N_WAYS && l->n > 0; w++) out->from *= l->own[KEYS[w]];
    for (uint32_t i = 0; i < l->n; i++) {
        const unsigned turned = ways_of(plan, l, i);
        if (turned <= ALL_WAYS && (ways == 0 || turned == ways)) chosen[out->n++] = i;
    }
    return STW_STATUS_OK;
}

stw_status stw_knob_of_layouts(const stw_plan *plan, uint64_t nodes, stw_knob *out,
                               stw_error *err) {
    stw_rank_layouts *l = stw_pool_array(plan->pool, 1, sizeof *l);
    if (l == NULL) return stw_planner_no_memory(err);
    const stw_status status = list_on(plan, nodes, l, err);
    return status == STW_STATUS_OK ? stw_knob_of_ways(plan, l, 0, out, err) : status;
}

bool stw_fix_has_layouts(const stw_plan *plan) {
    return plan->job->engine->layouts != NULL && plan->model->facts_known &&
           has_key(plan, STW_SEARCH_TP) && has_key(plan, STW_SEARCH_PP);
}

const char *stw_layout_step_words(const stw_knob *k, uint64_t i) {
    return stw_layout_words(&k->layouts->list, k->chosen[i - 1], k->layouts->pool);
}

double stw_layout_step_amount(const stw_knob *k, uint64_t i) {
    return log2((double)cut_of(&k->layouts->list.list[k->chosen[i - 1]]) / (double)k->from);
}
