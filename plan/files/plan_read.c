/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a plan file. Inputs and decisions are read. Everything else is derived from them again and
 * must equal the file. What cannot be derived again, inputs and the planner's evidence, has
 * checksums. Edited or foreign files are found before they are used. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/files/checksums.h"
#include "plan/files/file_parts.h"
#include "plan/files/model_json.h"
#include "plan/files/plan_file.h"
#include "plan/program/collectives.h"

/* As the keys prefetch.depth and prefetch.bucket, so that no ring comes near 2^64. */
#define MAX_DEPTH 1024
#define MAX_BUCKET_BYTES (1ull << 40)

/* ---- inputs ---- */

static stw_status read_inputs(const stw_tree *tree, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = NULL;
    stw_model *model = NULL;
    stw_cluster cluster;
    stw_run_spec run = {0};
    STW_TRY(stw_node_object(tree, tree->root, "cluster", &node, err));
    STW_TRY(stw_cluster_from_node(tree, node, &cluster, err));
    STW_TRY(stw_cluster_check(&cluster, tree->file, err));
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_node_object(tree, tree->root, "run", &node, err));
    STW_TRY(stw_run_spec_from_node(tree, node, &run, err));
    STW_TRY(stw_run_spec_check(&run, tree->file, err));
    STW_TRY(stw_node_object(tree, tree->root, "model", &node, err));
    STW_TRY(stw_model_from_node(tree, node, &model, err));
    stw_model *taken = model;
    model = NULL; /* stw_plan_new takes it over, and what `run` holds, whatever comes of it */
    status = stw_plan_new(taken, &cluster, &run, out, err);
out:
    stw_model_free(model);
    stw_run_spec_free(&run);
    return status;
}

/* ---- decisions ---- */

static stw_status read_tier(const stw_tree *tree, const stw_node *row, const char *key,
                            stw_tier *out, stw_error *err) {
    const char *word = NULL;
    stw_status status = stw_node_string(tree, row, key, &word, err);
    if (status == STW_STATUS_OK && !stw_tier_parse(word, out))
        status = stw_node_fail(tree, stw_node_get(row, key), "gpu, host or nvme", err);
    return status;
}

/* The tier of a component that goes with the moments: theirs, or null where there is none. */
static stw_status same_tier(const stw_tree *tree, const stw_node *row, const stw_plan *plan,
                            stw_component component, stw_tier moments, stw_error *err) {
    const char *key = stw_component_name(component);
    const stw_node *node = stw_node_get(row, key);
    stw_tier tier = moments;
    if (stw_job_element_bytes(plan->job, component) > 0) {
        stw_status status = read_tier(tree, row, key, &tier, err);
        if (status != STW_STATUS_OK) return status;
    } else if (node != NULL && node->kind != STW_NODE_NULL) {
        return stw_node_fail(tree, node, "null, as the run has no such state", err);
    }
    if (tier != moments) return stw_node_fail(tree, node, "the tier of exp_avg", err);
    return STW_STATUS_OK;
}

static stw_status read_state_row(const stw_tree *tree, const stw_node *row, stw_plan *plan,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_decisions *d = &plan->decisions;
    const char *group = NULL, *update = NULL;
    if (d->n_state == STW_MAX_PLACES)
        return stw_part_fail(tree, row, err, "found more than %d placements", STW_MAX_PLACES);
    stw_state_decision *decision = &d->state[d->n_state];
    stw_place *place = &decision->place;
    STW_TRY(stw_node_string(tree, row, "group", &group, err));
    if (strcmp(group, stw_plan_state_group(plan)) != 0)
        return stw_node_fail(tree, stw_node_get(row, "group"), stw_plan_state_group(plan), err);
    STW_TRY(read_tier(tree, row, "params", &place->params, err));
    STW_TRY(read_tier(tree, row, "grads", &place->grads, err));
    STW_TRY(read_tier(tree, row, "exp_avg", &place->moments, err));
    STW_TRY(same_tier(tree, row, plan, STW_COMPONENT_EXP_AVG_SQ, place->moments, err));
    STW_TRY(same_tier(tree, row, plan, STW_COMPONENT_MASTER, place->moments, err));
    STW_TRY(stw_node_string(tree, row, "update", &update, err));
    if (!stw_update_parse(update, &place->update))
        return stw_node_fail(tree, stw_node_get(row, "update"), "resident, stream, direct or cpu",
                             err);
    STW_TRY(stw_part_u32(tree, row, "units", &decision->units, err));
    d->n_state++;
out:
    return status;
}

static stw_status read_block_row(const stw_tree *tree, const stw_node *row, stw_plan *plan,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_model *model = plan->job->model;
    stw_block_decision *decision = &plan->decisions.blocks[plan->decisions.n_blocks];
    const char *group = NULL, *act = NULL;
    STW_TRY(stw_node_string(tree, row, "group", &group, err));
    while (decision->group < model->n_groups &&
           strcmp(model->groups[decision->group].name, group) != 0)
        decision->group++;
    if (decision->group == model->n_groups)
        return stw_node_fail(tree, stw_node_get(row, "group"), "a group of the model", err);
    STW_TRY(stw_node_string(tree, row, "activations", &act, err));
    if (!stw_act_parse(act, &decision->act))
        return stw_node_fail(tree, stw_node_get(row, "activations"), "keep, recompute or offload",
                             err);
    STW_TRY(stw_part_u32(tree, row, "count", &decision->count, err));
    plan->decisions.n_blocks++;
out:
    return status;
}

static stw_status read_rows(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *rows = NULL;
    STW_TRY(stw_node_array(tree, tree->root, "decisions", &rows, err));
    plan->decisions.blocks =
        stw_pool_array(plan->pool, rows->n_items, sizeof *plan->decisions.blocks);
    if (plan->decisions.blocks == NULL || rows->n_items >= UINT32_MAX)
        return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    for (size_t i = 0; i < rows->n_items; i++) {
        const stw_node *row = rows->items[i];
        if (row->kind != STW_NODE_OBJECT) return stw_node_fail(tree, row, "a decision", err);
        const stw_node *act = stw_node_get(row, "activations");
        if (act != NULL && act->kind == STW_NODE_STRING)
            STW_TRY(read_block_row(tree, row, plan, err));
        else
            STW_TRY(read_state_row(tree, row, plan, err));
    }
out:
    return status;
}

static stw_status read_block_order(const stw_tree *tree, stw_decisions *d, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = NULL;
    const char *order = NULL;
    uint64_t ahead = 0;
    STW_TRY(stw_node_object(tree, tree->root, "blocks", &node, err));
    STW_TRY(stw_node_string(tree, node, "order", &order, err));
    d->blocks_in_turn = strcmp(order, "in_turn") == 0;
    if (!d->blocks_in_turn && strcmp(order, "spread") != 0)
        return stw_node_fail(tree, stw_node_get(node, "order"), "spread or in_turn", err);
    STW_TRY(stw_part_u64(tree, node, "fetch_ahead", STW_MAX_FETCH_AHEAD, &ahead, err));
    d->fetch_ahead = (uint32_t)ahead;
out:
    return status;
}

static stw_status read_ring(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_decisions *d = &plan->decisions;
    const stw_node *node = NULL;
    const char *unit = NULL, *method = NULL;
    uint64_t depth = 0, live = 0;
    STW_TRY(stw_node_object(tree, tree->root, "prefetch", &node, err));
    STW_TRY(stw_node_string(tree, node, "unit", &unit, err));
    d->prefetch.by_group = strcmp(unit, "group") == 0;
    if (!d->prefetch.by_group && strcmp(unit, "bucket") != 0)
        return stw_node_fail(tree, stw_node_get(node, "unit"), "bucket or group", err);
    STW_TRY(read_block_order(tree, d, err));
    if (!stw_plan_streams(plan)) depth = live = 1; /* null, or a number that means nothing */
    if (stw_plan_streams(plan)) {
        STW_TRY(stw_part_u64(tree, node, "depth", MAX_DEPTH, &depth, err));
        STW_TRY(stw_part_u64(tree, node, "bucket_bytes", MAX_BUCKET_BYTES,
                             &d->prefetch.bucket_bytes, err));
        STW_TRY(stw_node_u64(tree, node, "live", &live, err));
    }
    d->prefetch.depth = (uint32_t)depth;
    if (stw_plan_streams(plan) && live != stw_plan_prefetch_live(plan))
        return stw_part_fail(tree, stw_node_get(node, "live"), err,
                             "live: found %" PRIu64 ", the depth gives %" PRIu32, live,
                             stw_plan_prefetch_live(plan));
    STW_TRY(stw_node_object(tree, tree->root, "load", &node, err));
    STW_TRY(stw_node_string(tree, node, "method", &method, err));
    if (!stw_load_parse(method, &d->load))
        return stw_node_fail(tree, stw_node_get(node, "method"),
                             "all_ranks, rank0_broadcast, node_leader or sharded_read", err);
out:
    return status;
}

/* Rows repeat the parameters that their quanta cover. */
static stw_status check_counts(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    const stw_node *rows = stw_node_get(tree->root, "decisions");
    uint32_t next = 0;
    for (size_t i = 0; i < rows->n_items; i++) {
        const stw_node *row = rows->items[i], *act = stw_node_get(row, "activations");
        uint64_t stated = 0;
        if (act != NULL && act->kind == STW_NODE_STRING) continue;
        stw_status status = stw_node_u64(tree, row, "count", &stated, err);
        if (status != STW_STATUS_OK) return status;
        uint64_t count = stw_plan_decision_count(plan, next++);
        if (stated != count)
            return stw_part_fail(tree, stw_node_get(row, "count"), err,
                                 "decisions[%zu].count: found %" PRIu64 ", its units cover %" PRIu64
                                 " parameters",
                                 i, stated, count);
    }
    return STW_STATUS_OK;
}

/* ---- decisions must be among those that the run's settings leave ---- */

static bool is_admitted(const stw_place *place, const stw_place *places, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (places[i].params == place->params && places[i].grads == place->grads &&
            places[i].moments == place->moments && places[i].update == place->update)
            return true;
    return false;
}

static stw_status check_settings(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    const stw_decisions *d = &plan->decisions;
    const stw_node *rows = stw_node_get(tree->root, "decisions");
    const uint32_t acts = plan->run.placement.activations;
    stw_place places[STW_MAX_PLACES];
    char text[96];
    const uint32_t n = plan->job->engine->places(plan->job, places, err);
    if (n == 0) return STW_STATUS_BAD_INPUT; /* the engine said why */
    for (uint32_t i = 0; i < d->n_state; i++) {
        const stw_place *place = &d->state[i].place;
        if (d->state[i].units == 0 || is_admitted(place, places, n)) continue;
        stw_place_format(place, text, sizeof text);
        return stw_part_fail(tree, rows, err,
                             "decisions: found %s, which the settings in \"run\" (placement, "
                             "update, optimizer.implementation) do not admit; plan again",
                             text);
    }
    /* Blocks that save nothing are kept whatever the setting. */
    for (uint32_t i = 0; acts != STW_AUTO && i < d->n_blocks; i++)
        if (d->blocks[i].count > 0 && d->blocks[i].act != STW_ACT_KEEP &&
            (uint32_t)d->blocks[i].act != acts)
            return stw_part_fail(tree, rows, err,
                                 "decisions: found blocks with activations %s, "
                                 "run.placement.activations is %s; plan again",
                                 stw_act_name(d->blocks[i].act), stw_act_name((stw_act)acts));
    return STW_STATUS_OK;
}

/* ---- what follows from the decisions must be what the file says ---- */

typedef struct place {
    const stw_tree *tree;
    const char *list; /* "regions" */
    size_t index;
} place;

static stw_status differs(const place *at, const stw_node *item, const char *key,
                          const char *expected, stw_error *err) {
    char found[192];
    const stw_node *node = stw_node_get(item, key);
    if (node == NULL) node = item;
    stw_node_describe(node, found, sizeof found);
    return stw_part_fail(at->tree, node, err,
                         "%s[%zu].%s: found %s, the decisions give %s; the file was changed: plan "
                         "again",
                         at->list, at->index, key, found, expected);
}

static stw_status same_text(const place *at, const stw_node *item, const char *key,
                            const char *expected, stw_error *err) {
    const stw_node *node = stw_node_get(item, key);
    if (node != NULL && node->kind == STW_NODE_STRING && strcmp(node->text, expected) == 0)
        return STW_STATUS_OK;
    return differs(at, item, key, expected, err);
}

static stw_status same_number(const place *at, const stw_node *item, const char *key,
                              uint64_t expected, stw_error *err) {
    const stw_node *node = stw_node_get(item, key);
    char text[32];
    if (node != NULL && node->kind == STW_NODE_INT && node->integer >= 0 &&
        (uint64_t)node->integer == expected)
        return STW_STATUS_OK;
    snprintf(text, sizeof text, "%" PRIu64, expected);
    return differs(at, item, key, text, err);
}

static stw_status same_length(const stw_tree *tree, const stw_node *list, const char *name,
                              size_t expected, stw_error *err) {
    if (list->n_items == expected) return STW_STATUS_OK;
    return stw_part_fail(tree, list, err, "%s: found %zu entries, the decisions give %zu", name,
                         list->n_items, expected);
}

static stw_status check_region(const place *at, const stw_node *item, const char *kind,
                               const stw_region *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(same_text(at, item, "kind", kind, err));
    STW_TRY(same_text(at, item, "component", stw_component_name(r->component), err));
    STW_TRY(same_text(at, item, "tier", stw_tier_name(r->tier), err));
    STW_TRY(same_text(at, item, "update", stw_update_name(r->update), err));
    STW_TRY(same_number(at, item, "first_unit", r->first_unit, err));
    STW_TRY(same_number(at, item, "units", r->units, err));
    STW_TRY(same_number(at, item, "offset", r->offset_bytes, err));
    STW_TRY(same_number(at, item, "bytes", r->bytes, err));
out:
    return status;
}

static stw_status check_layout(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = plan->job;
    const stw_node *layout = NULL, *regions = NULL, *hashes = NULL;
    uint64_t version = 0;
    size_t total = 0;
    place at = {tree, "regions", 0};
    STW_TRY(stw_node_object(tree, tree->root, "layout", &layout, err));
    STW_TRY(stw_node_u64(tree, layout, "version", &version, err));
    if (version != STW_LAYOUT_VERSION)
        return stw_part_fail(tree, stw_node_get(layout, "version"), err,
                             "version: found %" PRIu64 ", this program makes layouts of version %d",
                             version, STW_LAYOUT_VERSION);
    STW_TRY(stw_node_array(tree, layout, "regions", &regions, err));
    STW_TRY(stw_node_object(tree, layout, "hash", &hashes, err));
    for (uint32_t k = 0; k < job->n_kinds; k++)
        for (uint32_t i = 0; i < plan->layouts[k]->n_regions; i++, total++) {
            if (total >= regions->n_items) continue;
            at.index = total;
            STW_TRY(check_region(&at, regions->items[total], job->kinds[k].name,
                                 &plan->layouts[k]->regions[i], err));
        }
    STW_TRY(same_length(tree, regions, "regions", total, err));
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const char *hash = NULL;
        STW_TRY(stw_node_string(tree, hashes, job->kinds[k].name, &hash, err));
        if (strcmp(hash, plan->layouts[k]->hash) == 0) continue;
        char quoted[160];
        stw_text_quote(hash, quoted, sizeof quoted);
        return stw_part_fail(tree, stw_node_get(hashes, job->kinds[k].name), err,
                             "layout.hash.%s: found %s, the decisions give \"%s\"",
                             job->kinds[k].name, quoted, plan->layouts[k]->hash);
    }
    STW_TRY(same_length(tree, hashes, "layout.hash", job->n_kinds, err));
out:
    return status;
}

static stw_status check_movements(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = plan->programs[0];
    const stw_node *list = NULL;
    place at = {tree, "movements", 0};
    STW_TRY(stw_node_array(tree, tree->root, "movements", &list, err));
    STW_TRY(same_length(tree, list, "movements", program->n_movements, err));
    for (; at.index < list->n_items; at.index++) {
        const stw_movement *movement = &program->movements[at.index];
        const stw_node *item = list->items[at.index], *node = stw_node_get(item, "executable");
        STW_TRY(same_text(&at, item, "phase", stw_phase_name(movement->phase), err));
        STW_TRY(same_text(&at, item, "role", movement->role, err));
        STW_TRY(same_text(&at, item, "by", stw_plan_movement_by(plan, movement), err));
        if (node == NULL || node->kind != STW_NODE_BOOL || node->boolean != movement->executable)
            return differs(&at, item, "executable", movement->executable ? "true" : "false", err);
    }
out:
    return status;
}

static stw_status check_rank_map(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *map = NULL, *list = NULL;
    stw_text ranks = STW_TEXT_INIT, node_kinds = STW_TEXT_INIT;
    place at = {tree, "rank_map.kinds", 0};
    STW_TRY(stw_node_object(tree, tree->root, "rank_map", &map, err));
    STW_TRY(stw_node_array(tree, map, "kinds", &list, err));
    STW_TRY(same_length(tree, list, "rank_map.kinds", plan->job->n_kinds, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        at.index = k;
        STW_TRY(stw_plan_kind_texts(plan, k, &ranks, &node_kinds, err));
        STW_TRY(same_text(&at, list->items[k], "kind", plan->job->kinds[k].name, err));
        STW_TRY(same_text(&at, list->items[k], "ranks", ranks.data, err));
        STW_TRY(same_number(&at, list->items[k], "stage", plan->job->kinds[k].stage, err));
        STW_TRY(same_text(&at, list->items[k], "node_kind", node_kinds.data, err));
    }
out:
    stw_text_free(&ranks);
    stw_text_free(&node_kinds);
    return status;
}

static stw_status check_collectives(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    stw_collectives all;
    size_t total = 0;
    place at = {tree, "collectives", 0};
    STW_TRY(stw_node_array(tree, tree->root, "collectives", &list, err));
    for (uint32_t k = 0; k < plan->job->n_kinds && plan->verdict != STW_VERDICT_DOES_NOT_FIT; k++) {
        STW_TRY(stw_program_collectives(plan->job, plan->programs[k], plan->pool, &all, err));
        for (uint32_t i = 0; i < all.n; i++, total++) {
            const stw_collectives_row *row = &all.rows[i];
            if (total >= list->n_items) continue;
            const stw_node *item = list->items[total];
            at.index = total;
            STW_TRY(same_text(&at, item, "kind", plan->job->kinds[k].name, err));
            STW_TRY(same_text(&at, item, "phase", stw_phase_name(row->phase), err));
            STW_TRY(same_text(&at, item, "group", stw_rank_group_name(row->group), err));
            STW_TRY(same_number(&at, item, "ranks", row->ranks, err));
            STW_TRY(same_text(&at, item, "collective", stw_op_kind_name(row->kind), err));
            STW_TRY(same_text(&at, item, "tier", stw_tier_name(row->tier), err));
            STW_TRY(same_number(&at, item, "count", row->count, err));
            STW_TRY(same_number(&at, item, "bytes", row->bytes, err));
        }
    }
    STW_TRY(same_length(tree, list, "collectives", total, err));
out:
    return status;
}

static stw_status check_ledger(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    stw_ledger ledger;
    size_t total = 0;
    place at = {tree, "host_ledger", 0};
    STW_TRY(stw_node_array(tree, tree->root, "host_ledger", &list, err));
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            if (!plan->node_peaks[n].has[p]) continue;
            STW_TRY(stw_plan_ledger(plan, n, (stw_phase)p, &ledger, err));
            for (uint32_t i = 0; i < ledger.n; i++, total++) {
                const stw_ledger_line *line = &ledger.lines[i];
                if (total >= list->n_items) continue;
                const stw_node *item = list->items[total];
                at.index = total;
                STW_TRY(same_number(&at, item, "node_kind", n, err));
                STW_TRY(same_text(&at, item, "phase", stw_phase_name((stw_phase)p), err));
                STW_TRY(
                    same_text(&at, item, "component", stw_component_name(line->component), err));
                STW_TRY(same_text(&at, item, "from", line->from, err));
                STW_TRY(same_number(&at, item, "bytes", line->bytes, err));
            }
        }
    STW_TRY(same_length(tree, list, "host_ledger", total, err));
out:
    return status;
}

/* ---- the whole ---- */

/* All members: an edit of what is derived again is named by its own key before this. */
static stw_status check_checksums(const stw_tree *tree, stw_error *err) {
    static const char *const known[] = {
        "outcome",    "verdict",     "solver", "cluster",     "run",          "decisions",
        "prefetch",   "blocks",      "load",   "layout",      "ranks",        "movements",
        "rank_map",   "peaks",       "nodes",  "time_s",      "alternatives", "prices",
        "infeasible", "collectives", "roles",  "host_ledger", "model"};
    return stw_checksums_check(tree, known, sizeof known / sizeof known[0], "plan again", err);
}

static stw_status from_tree(const stw_tree *tree, bool edited, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    STW_TRY(stw_tree_schema(tree, "stowage.plan", 1, err));
    STW_TRY(read_inputs(tree, &plan, err));
    plan->file = stw_pool_string(plan->pool, tree->file);
    STW_TRY(read_rows(tree, plan, err));
    STW_TRY(read_ring(tree, plan, err));
    STW_TRY(stw_decisions_check(plan->job, &plan->decisions, err));
    STW_TRY(check_counts(tree, plan, err));
    STW_TRY(check_settings(tree, plan, err));
    STW_TRY(stw_plan_derive(plan, err));
    STW_TRY(check_layout(tree, plan, err));
    STW_TRY(check_movements(tree, plan, err));
    STW_TRY(check_rank_map(tree, plan, err));
    STW_TRY(stw_plan_read_evidence(tree, plan, err));
    STW_TRY(stw_plan_read_figures(tree, plan, err));
    STW_TRY(stw_plan_check_roles(tree, plan, err));
    STW_TRY(check_collectives(tree, plan, err));
    STW_TRY(check_ledger(tree, plan, err));
    if (!edited) STW_TRY(check_checksums(tree, err));
out:
    if (status == STW_STATUS_OK)
        *out = plan;
    else
        stw_plan_free(plan);
    return stw_error_in(status, tree->file, err);
}

stw_status stw_plan_parse(const char *file, const char *text, size_t length, stw_plan **out,
                          stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json(file, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, false, out, err);
    stw_tree_free(tree);
    return status;
}

stw_status stw_plan_parse_edited(const char *file, const char *text, size_t length, stw_plan **out,
                                 stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json(file, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, true, out, err);
    stw_tree_free(tree);
    return status;
}

stw_status stw_plan_read(const char *path, stw_plan **out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_read_json(path, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, false, out, err);
    stw_tree_free(tree);
    return status;
}
