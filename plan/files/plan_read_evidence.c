/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the planner's evidence. It is only printed; nothing is computed from it. It cannot be
 * derived again without planning: it must be consistent, and has checksums. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plan/files/file_parts.h"
#include "plan/files/plan_file.h"

/* A required list, and as many elements as it has items. */
typedef struct items {
    const stw_node *list;
    void *elements;
    uint32_t n;
} items;

static stw_status items_of(const stw_tree *tree, const stw_node *parent, const char *key,
                           stw_pool *pool, size_t size, items *out, stw_error *err) {
    stw_status status = stw_node_array(tree, parent, key, &out->list, err);
    if (status != STW_STATUS_OK) return status;
    out->elements = stw_pool_array(pool, out->list->n_items, size);
    if (out->elements == NULL || out->list->n_items >= UINT32_MAX)
        return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    out->n = (uint32_t)out->list->n_items;
    return STW_STATUS_OK;
}

/* No objective is below its bound, and the gap is what lies between them. */
static stw_status check_gap(const stw_tree *tree, const stw_node *node, double objective,
                            double bound, double gap, stw_error *err) {
    const double slack = 1e-6;
    if (!isfinite(objective) || !isfinite(bound)) return STW_STATUS_OK;
    if (bound > objective + slack * fabs(objective))
        return stw_part_fail(tree, stw_node_get(node, "bound"), err,
                             "bound: found %.9g, expected at most the objective %.9g", bound,
                             objective);
    double follows = objective > 0 ? (objective - bound) / objective : 0;
    if (!isfinite(gap) || fabs(gap - follows) <= slack) return STW_STATUS_OK;
    return stw_part_fail(tree, stw_node_get(node, "gap"), err,
                         "gap: found %.9g, objective and bound give %.9g", gap, follows);
}

static stw_status read_stage(const stw_tree *tree, const stw_node *node, stw_pool *pool,
                             stw_solver_stage *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_part_string(tree, node, "name", false, pool, &out->name, err));
    STW_TRY(stw_part_real(tree, node, "objective", &out->objective, err));
    STW_TRY(stw_part_real(tree, node, "bound", &out->bound, err));
    STW_TRY(stw_part_real(tree, node, "gap", &out->gap, err));
    STW_TRY(stw_part_seconds(tree, node, "seconds", &out->seconds, err));
    STW_TRY(check_gap(tree, node, out->objective, out->bound, out->gap, err));
out:
    return status;
}

static stw_status read_solver(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_solver_report *s = &plan->solver;
    const stw_node *node = NULL;
    items stages;
    STW_TRY(stw_node_object(tree, tree->root, "solver", &node, err));
    STW_TRY(stw_part_string(tree, node, "name", false, plan->pool, &s->name, err));
    STW_TRY(stw_part_string(tree, node, "version", false, plan->pool, &s->version, err));
    STW_TRY(stw_part_seconds(tree, node, "seconds", &s->seconds, err));
    STW_TRY(stw_part_u32(tree, node, "rows", &s->rows, err));
    STW_TRY(stw_part_u32(tree, node, "columns", &s->columns, err));
    STW_TRY(stw_part_real(tree, node, "objective", &s->objective, err));
    STW_TRY(stw_part_real(tree, node, "bound", &s->bound, err));
    STW_TRY(stw_part_real(tree, node, "gap", &s->gap, err));
    STW_TRY(check_gap(tree, node, s->objective, s->bound, s->gap, err));
    STW_TRY(stw_part_u32(tree, node, "simulated_plans", &s->simulated, err));
    STW_TRY(stw_part_real(tree, node, "plan_objective", &plan->objective_s, err));
    STW_TRY(items_of(tree, node, "stages", plan->pool, sizeof(stw_solver_stage), &stages, err));
    s->stages = stages.elements;
    s->n_stages = stages.n;
    for (uint32_t i = 0; i < stages.n; i++)
        STW_TRY(read_stage(tree, stages.list->items[i], plan->pool, &s->stages[i], err));
out:
    return status;
}

static const char *verdict_word(unsigned i) { return stw_verdict_name((stw_verdict)i); }

static stw_status read_verdict(const stw_tree *tree, const stw_node *parent, stw_verdict *out,
                               stw_error *err) {
    enum { N_VERDICTS = STW_N_VERDICTS };
    const char *text = NULL;
    stw_status status = stw_node_string(tree, parent, "verdict", &text, err);
    if (status != STW_STATUS_OK) return status;
    const unsigned v = stw_part_find(text, verdict_word, N_VERDICTS);
    if (v == N_VERDICTS)
        return stw_node_fail(tree, stw_node_get(parent, "verdict"),
                             "fits, at_risk, does_not_fit or unknown", err);
    *out = (stw_verdict)v;
    return STW_STATUS_OK;
}

/* Keys that the planner set. */
static stw_status read_turned(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = stw_node_get(tree->root, "turned");
    if (node == NULL) return STW_STATUS_OK;
    STW_TRY(stw_node_object(tree, tree->root, "turned", &node, err));
    STW_TRY(stw_part_string(tree, node, "settings", false, plan->pool, &plan->turned, err));
    STW_TRY(stw_part_seconds(tree, node, "seconds_without", &plan->unturned_s, err));
out:
    return status;
}

static stw_status read_alternatives(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    items others;
    STW_TRY(items_of(tree, tree->root, "alternatives", plan->pool, sizeof(stw_alternative), &others,
                     err));
    plan->alternatives = others.elements;
    plan->n_alternatives = others.n;
    for (uint32_t i = 0; i < others.n; i++) {
        const stw_node *node = others.list->items[i];
        stw_alternative *other = &plan->alternatives[i];
        STW_TRY(stw_part_string(tree, node, "rule", false, plan->pool, &other->rule, err));
        STW_TRY(stw_part_real(tree, node, "seconds", &other->seconds, err));
        STW_TRY(stw_part_real(tree, node, "share", &other->share, err));
        STW_TRY(stw_part_string(tree, node, "needs", false, plan->pool, &other->needs, err));
        if (strcmp(other->rule, "setting") != 0) continue;
        STW_TRY(read_verdict(tree, node, &other->verdict, err));
        STW_TRY(stw_part_string(tree, node, "asks", true, plan->pool, &other->asks, err));
    }
out:
    return status;
}

static stw_status read_prices(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    items prices;
    STW_TRY(items_of(tree, tree->root, "prices", plan->pool, sizeof(stw_price), &prices, err));
    plan->prices = prices.elements;
    plan->n_prices = prices.n;
    for (uint32_t i = 0; i < prices.n; i++) {
        const stw_node *node = prices.list->items[i];
        stw_price *price = &plan->prices[i];
        STW_TRY(stw_part_string(tree, node, "resource", false, plan->pool, &price->resource, err));
        STW_TRY(stw_part_string(tree, node, "phase", true, plan->pool, &price->phase, err));
        STW_TRY(stw_part_real(tree, node, "amount", &price->amount, err));
        STW_TRY(stw_part_string(tree, node, "unit", true, plan->pool, &price->unit, err));
        STW_TRY(stw_part_real(tree, node, "seconds", &price->seconds, err));
    }
out:
    return status;
}

/* @param most room of `out` @param expected if there are more, or fewer than `least` */
typedef struct change_list {
    stw_fix_change *out;
    uint32_t least, most;
    const char *expected;
} change_list;

static stw_status read_changes(const stw_tree *tree, const stw_node *node, stw_pool *pool,
                               const change_list *into, uint32_t *n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    STW_TRY(stw_node_array(tree, node, "changes", &list, err));
    if (list->n_items < into->least || list->n_items > into->most) {
        status = stw_node_fail(tree, list, into->expected, err);
        goto out;
    }
    *n = (uint32_t)list->n_items;
    for (uint32_t i = 0; i < *n; i++) {
        stw_fix_change *change = &into->out[i];
        STW_TRY(stw_part_string(tree, list->items[i], "set", false, pool, &change->set, err));
        STW_TRY(stw_part_string(tree, list->items[i], "value", false, pool, &change->value, err));
    }
out:
    return status;
}

/* A number; 0 where it is null or not there. */
static stw_status read_known(const stw_tree *tree, const stw_node *node, const char *key,
                             double *out, stw_error *err) {
    const stw_node *value = stw_node_get(node, key);
    if (value == NULL || value->kind == STW_NODE_NULL) return STW_STATUS_OK;
    return stw_node_double(tree, node, key, out, err);
}

static stw_status read_fix(const stw_tree *tree, const stw_node *node, stw_pool *pool, stw_fix *fix,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const change_list into = {fix->changes, 1, STW_MAX_FIX_CHANGES, "one to eight changes"};
    STW_TRY(read_changes(tree, node, pool, &into, &fix->n_changes, err));
    STW_TRY(stw_part_string(tree, node, "why", true, pool, &fix->why, err));
    if (stw_node_get(node, "at_risk") != NULL)
        STW_TRY(stw_node_bool(tree, node, "at_risk", &fix->at_risk, err));
    STW_TRY(read_known(tree, node, "iteration_s", &fix->iteration_s, err));
    STW_TRY(read_known(tree, node, "tokens_per_s", &fix->tokens_per_s, err));
out:
    return status;
}

static stw_status read_binding(const stw_tree *tree, const stw_node *node, stw_plan *plan,
                               stw_binding *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const change_list into = {b->changes, 0, STW_MAX_LIMIT_CHANGES, "at most two changes"};
    uint64_t over = 0;
    STW_TRY(stw_part_string(tree, node, "resource", false, plan->pool, &b->resource, err));
    STW_TRY(stw_part_string(tree, node, "phase", true, plan->pool, &b->phase, err));
    STW_TRY(stw_node_u64(tree, node, "over_bytes", &over, err));
    if (over != stw_plan_binding_over(plan, b)) {
        status = stw_part_fail(
            tree, stw_node_get(node, "over_bytes"), err,
            "infeasible.binding[%u].over_bytes: found %" PRIu64 ", the plan's peaks give %" PRIu64,
            (unsigned)(b - plan->bindings), over, stw_plan_binding_over(plan, b));
        goto out;
    }
    STW_TRY(stw_node_u64(tree, node, "enough_bytes", &b->enough_bytes, err));
    if (stw_node_get(node, "changes") != NULL)
        STW_TRY(read_changes(tree, node, plan->pool, &into, &b->n_changes, err));
out:
    return status;
}

static stw_status read_infeasible(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = stw_node_get(tree->root, "infeasible");
    items rows;
    if (node != NULL && node->kind == STW_NODE_NULL) return status;
    STW_TRY(stw_node_object(tree, tree->root, "infeasible", &node, err));
    STW_TRY(items_of(tree, node, "binding", plan->pool, sizeof(stw_binding), &rows, err));
    plan->bindings = rows.elements;
    plan->n_bindings = rows.n;
    for (uint32_t i = 0; i < rows.n; i++)
        STW_TRY(read_binding(tree, rows.list->items[i], plan, &plan->bindings[i], err));
    if (stw_node_get(node, "tried") != NULL)
        STW_TRY(stw_part_string(tree, node, "tried", true, plan->pool, &plan->tried, err));
    STW_TRY(items_of(tree, node, "fixes", plan->pool, sizeof(stw_fix), &rows, err));
    plan->fixes = rows.elements;
    plan->n_fixes = rows.n;
    for (uint32_t i = 0; i < rows.n; i++)
        STW_TRY(read_fix(tree, rows.list->items[i], plan->pool, &plan->fixes[i], err));
out:
    return status;
}

static const char *outcome_word(unsigned i) { return stw_outcome_name((stw_outcome)i); }

stw_status stw_plan_read_evidence(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    enum { N_OUTCOMES = STW_OUTCOME_LIMIT + 1 };
    stw_status status = STW_STATUS_OK;
    const char *outcome = NULL;
    STW_TRY(stw_node_string(tree, tree->root, "outcome", &outcome, err));
    unsigned o = stw_part_find(outcome, outcome_word, N_OUTCOMES);
    if (o == N_OUTCOMES)
        return stw_node_fail(tree, stw_node_get(tree->root, "outcome"),
                             "optimal, feasible, infeasible or limit", err);
    plan->outcome = (stw_outcome)o;
    STW_TRY(read_verdict(tree, tree->root, &plan->verdict, err));
    STW_TRY(read_solver(tree, plan, err));
    STW_TRY(read_turned(tree, plan, err));
    STW_TRY(read_alternatives(tree, plan, err));
    STW_TRY(stw_plan_read_layouts(tree, plan, err));
    STW_TRY(read_prices(tree, plan, err));
    STW_TRY(read_infeasible(tree, plan, err));
out:
    return status;
}
