/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of bytes, one per tier, phase and instant at which the walk of a program can peak. GPU rows
 * stand for the largest kind of rank, whose shards hold every other kind's; host rows for a kind of
 * node, all of whose ranks peak together. Forward and backward on the GPU: rows_forward.c. */
#include "core/checked.h"
#include "plan/program/staging.h"
#include "planner/rows.h"

/* ---- GPU ---- */

static stw_status add_gpu_of(const stw_build *b, uint32_t kind, stw_error *err) {
    const bool trains = b->cost->job->kinds[kind].home == 0;
    stw_byte_row *row = stw_row_gpu_of(b, kind, STW_PHASE_LOAD, STW_AT_LOAD, "load");
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t l = 0; trains && l < b->cost->n_loads; l++)
        row->load_bytes[l] += stw_build_most_staging(b, l, STW_TIER_GPU);
    if (trains && stw_row_gpu_of(b, kind, STW_PHASE_OPTIMIZER_STEP, STW_AT_STEP, "step") == NULL)
        return stw_planner_no_memory(err);
    for (stw_instant at = STW_AT_LOG_PROB; at < STW_N_INSTANTS; at++) {
        const stw_phase phase = stw_instant_phase(at);
        if ((b->instants[kind] & 1u << at) != 0 &&
            stw_row_gpu_of(b, kind, phase, at,
                           at == STW_AT_OTHERS ? "others" : stw_phase_name(phase)) == NULL)
            return stw_planner_no_memory(err);
    }
    return STW_STATUS_OK;
}

/* Pipeline stages differ in more than the sizes of their shards; roles with nodes of their own have
 * no shards. */
stw_status stw_rows_add_gpu(const stw_build *b, stw_error *err) {
    const stw_job *job = b->cost->job;
    stw_status status = STW_STATUS_OK;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        if (job->engine->stage != NULL || k == job->largest || job->kinds[k].home != 0)
            STW_TRY(add_gpu_of(b, k, err));
out:
    return status;
}

/* ---- nodes ---- */

typedef struct node_row {
    stw_tier tier;
    stw_phase phase;
    stw_instant at;
    bool page_locked;
    uint64_t limit_bytes;
} node_row;

/* What one kind of rank adds to its node. */
static void add_rank(const stw_build *b, const node_row *node, uint32_t kind, uint64_t ranks,
                     stw_byte_row *row) {
    const stw_cost *cost = b->cost;
    stw_row_add_places(b, node->at, kind, ranks, row);
    if (node->tier == STW_TIER_NVME) return;
    if (cost->job->kinds[kind].home != 0) return;
    if (!node->page_locked) row->constant_bytes += stw_times(ranks, b->process_bytes);
    const bool stages =
        node->at == STW_AT_LOAD && !(node->page_locked && stw_load_is_pageable(cost->job));
    for (uint32_t l = 0; stages && l < cost->n_loads; l++)
        row->load_bytes[l] += ranks * stw_build_staging(b, kind, l, STW_TIER_HOST);
    for (uint32_t a = 0; node->at == STW_AT_BACKWARD && a < cost->n_acts; a++)
        row->act_bytes[a] += stw_times(ranks, b->stash_bytes[a]);
}

static stw_status add_node_row(const stw_build *b, uint32_t node_kind, const node_row *node,
                               stw_error *err) {
    const stw_job *job = b->cost->job;
    const char *resource = node->tier == STW_TIER_NVME ? "nvme"
                           : node->page_locked         ? "page-locked memory"
                                                       : "host memory";
    const char *word = node->tier == STW_TIER_NVME ? "nvme" : node->page_locked ? "locked" : "host";
    stw_byte_row *row = stw_row_bytes(b->cost, node->phase, node->tier, resource, node->limit_bytes,
                                      "%s_%s_n%u", word, stw_phase_name(node->phase), node_kind);
    if (row == NULL) return stw_planner_no_memory(err);
    row->page_locked = node->page_locked;
    row->node_kind = node_kind;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        uint64_t ranks = job->node_kinds[node_kind].kind_ranks[k];
        if (ranks > 0) add_rank(b, node, k, ranks, row);
    }
    return STW_STATUS_OK;
}

/* Does a node have ranks with anything at an instant of further phases? */
static bool any_at(const stw_build *b, uint32_t node_kind, stw_instant at) {
    const stw_job *job = b->cost->job;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        if (job->node_kinds[node_kind].kind_ranks[k] > 0 && (b->instants[k] & 1u << at) != 0)
            return true;
    return false;
}

static bool any_on_nvme(const stw_build *b, uint32_t node_kind, stw_instant at) {
    const stw_job *job = b->cost->job;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        for (uint32_t p = 0; p < b->cost->n_places; p++) {
            const stw_place_bytes *bytes = stw_build_bytes(b, k, p, 0);
            if (job->node_kinds[node_kind].kind_ranks[k] > 0 &&
                (bytes->unit[at][STW_TIER_NVME] > 0 || bytes->once[at][STW_TIER_NVME] > 0))
                return true;
        }
    return false;
}

static stw_status add_node(const stw_build *b, uint32_t node_kind, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cluster *cluster = b->cost->job->cluster;
    node_row rows[] = {{STW_TIER_HOST, STW_PHASE_LOAD, STW_AT_LOAD, false, 0},
                       {STW_TIER_HOST, STW_PHASE_FORWARD_BACKWARD, STW_AT_BACKWARD, false, 0},
                       {STW_TIER_HOST, STW_PHASE_OPTIMIZER_STEP, STW_AT_STEP, false, 0},
                       {STW_TIER_HOST, STW_PHASE_LOG_PROB, STW_AT_LOG_PROB, false, 0},
                       {STW_TIER_HOST, STW_PHASE_WEIGHT_SYNC, STW_AT_WEIGHT_SYNC, false, 0},
                       {STW_TIER_HOST, STW_PHASE_ROLLOUT, STW_AT_ROLLOUT, false, 0},
                       {STW_TIER_HOST, STW_PHASE_CHECKPOINT, STW_AT_CHECKPOINT, false, 0}};
    for (int locked = 0; locked < 2; locked++)
        for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            if (rows[i].at >= STW_AT_LOG_PROB && !any_at(b, node_kind, rows[i].at)) continue;
            if (rows[i].at == STW_AT_BACKWARD && !b->cost->forward_backward_known) continue;
            rows[i].page_locked = locked != 0;
            rows[i].limit_bytes =
                locked ? cluster->host.page_lock_limit_bytes : stw_cluster_host_capacity(cluster);
            if (locked && rows[i].limit_bytes == UINT64_MAX) continue;
            STW_TRY(add_node_row(b, node_kind, &rows[i], err));
        }
    /* with the files of a checkpoint there is most while one is written */
    const bool saves = any_on_nvme(b, node_kind, STW_AT_CHECKPOINT);
    const node_row nvme = {STW_TIER_NVME, saves ? STW_PHASE_CHECKPOINT : STW_PHASE_OPTIMIZER_STEP,
                           saves ? STW_AT_CHECKPOINT : STW_AT_STEP, false,
                           cluster->nvme.capacity_bytes};
    if (any_on_nvme(b, node_kind, nvme.at)) STW_TRY(add_node_row(b, node_kind, &nvme, err));
out:
    return status;
}

stw_status stw_rows_add_nodes(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t n = 0; n < b->cost->job->n_node_kinds; n++) STW_TRY(add_node(b, n, err));
out:
    return status;
}
