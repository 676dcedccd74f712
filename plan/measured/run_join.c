/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/run_join.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/checked.h"

typedef struct joiner {
    stw_run_result *out;
    const stw_run_result *from;
    uint32_t ranks_per_node;
    const char **rank_files, **node_files, **peak_files; /* by index: whose it is */
    uint32_t number, *peak_numbers;                      /* of the run; of the run of a peak */
    stw_error *err;
} joiner;

static const char *file_of(const stw_run_result *run) {
    return run->file != NULL ? run->file : "a run";
}

static stw_status no_memory(const joiner *j) {
    return stw_fail(j->err, STW_STATUS_NO_MEMORY, file_of(j->from), "out of memory");
}

static stw_status twice(const joiner *j, const char *what, int64_t number, const char *other) {
    return stw_fail(j->err, STW_STATUS_BAD_INPUT, file_of(j->from),
                    "found %s %" PRId64 ", which %.200s has too; expected files of different ranks "
                    "of one job",
                    what, number, other);
}

/* The node of a file's only node by the numbers of its ranks; else what the file says. */
static uint32_t node_of(const joiner *j, uint32_t stated) {
    const stw_run_result *r = j->from;
    if (r->n_nodes > 1 || r->n_ranks == 0) return stated;
    uint32_t node = r->ranks[0].rank / j->ranks_per_node;
    for (uint32_t i = 0; i < r->n_ranks; i++)
        if (r->ranks[i].rank / j->ranks_per_node != node) return stated;
    return node;
}

/* A log names ranks and nodes of which it has no phases: they may be in another file. */
static bool rank_is_empty(const stw_run_rank *rank) {
    for (int p = 0; p < STW_N_PHASES; p++)
        if (rank->phases[p].known) return false;
    return true;
}

static bool node_is_empty(const stw_run_node *node) {
    for (int p = 0; p < STW_N_PHASES; p++)
        if (node->host[p] > 0 || node->page_locked[p] > 0) return false;
    return true;
}

static stw_status join_ranks(joiner *j) {
    stw_run_result *out = j->out;
    for (uint32_t i = 0; i < j->from->n_ranks; i++) {
        const stw_run_rank *rank = &j->from->ranks[i];
        if (rank_is_empty(rank)) continue;
        for (uint32_t k = 0; k < out->n_ranks; k++)
            if (out->ranks[k].rank == rank->rank)
                return twice(j, "rank", rank->rank, j->rank_files[k]);
        stw_run_rank *copy = &out->ranks[out->n_ranks];
        *copy = *rank;
        copy->node = node_of(j, rank->node);
        copy->kind = "";
        j->rank_files[out->n_ranks++] = file_of(j->from);
    }
    return STW_STATUS_OK;
}

static stw_status join_nodes(joiner *j) {
    stw_run_result *out = j->out;
    for (uint32_t i = 0; i < j->from->n_nodes; i++) {
        uint32_t node = node_of(j, j->from->nodes[i].node);
        if (node_is_empty(&j->from->nodes[i])) continue;
        for (uint32_t k = 0; k < out->n_nodes; k++)
            if (out->nodes[k].node == node) return twice(j, "node", node, j->node_files[k]);
        out->nodes[out->n_nodes] = j->from->nodes[i];
        out->nodes[out->n_nodes].node = node;
        j->node_files[out->n_nodes++] = file_of(j->from);
    }
    return STW_STATUS_OK;
}

static stw_status join_peaks(joiner *j) {
    stw_run_result *out = j->out;
    for (uint32_t i = 0; i < j->from->n_peaks; i++) {
        const stw_run_peak *peak = &j->from->peaks[i];
        uint32_t node = node_of(j, peak->node);
        for (uint32_t k = 0; k < out->n_peaks; k++)
            if (out->peaks[k].metric == peak->metric && out->peaks[k].rank == peak->rank &&
                (peak->rank >= 0 || out->peaks[k].node == node) && j->peak_numbers[k] != j->number)
                return peak->rank >= 0 ? twice(j, "rank", peak->rank, j->peak_files[k])
                                       : twice(j, "bytes of node", node, j->peak_files[k]);
        stw_run_peak *copy = &out->peaks[out->n_peaks];
        *copy = *peak;
        copy->node = node;
        copy->from = stw_pool_printf(out->pool, "%s, %s", file_of(j->from),
                                     peak->from != NULL ? peak->from : "peak");
        if (copy->from == NULL) return no_memory(j);
        j->peak_numbers[out->n_peaks] = j->number;
        j->peak_files[out->n_peaks++] = file_of(j->from);
    }
    return STW_STATUS_OK;
}

static stw_status join_ooms(joiner *j) {
    stw_run_result *out = j->out;
    for (uint32_t i = 0; i < j->from->n_ooms; i++) {
        stw_run_oom *oom = &out->ooms[out->n_ooms++];
        *oom = j->from->ooms[i];
        oom->when = stw_pool_string(out->pool, oom->when);
        oom->from = stw_pool_printf(out->pool, "%s, %s", file_of(j->from), oom->from);
        if (oom->when == NULL || oom->from == NULL) return no_memory(j);
    }
    return STW_STATUS_OK;
}

/* NaN: not known. */
static void raise_to(double *most, double value) {
    if (isnan(*most) || value > *most) *most = value;
}

static void join_steps(joiner *j) {
    const stw_run_result *from = j->from;
    for (uint32_t s = 0; s < from->n_step_all; s++) {
        double *most = &j->out->step_all_s[s];
        *most = s < j->out->n_step_all ? fmax(*most, from->step_all_s[s]) : from->step_all_s[s];
    }
    j->out->n_step_all = (uint32_t)stw_max_u64(j->out->n_step_all, from->n_step_all);
    j->out->steps = (uint32_t)stw_max_u64(j->out->steps, from->steps);
}

static stw_status join_whole(joiner *j) {
    stw_run_result *out = j->out;
    const stw_run_result *from = j->from;
    for (int p = 0; p < STW_N_PHASES; p++) {
        raise_to(&out->time_s[p], from->time_s[p]);
        out->gpu_bytes[p] = stw_max_u64(out->gpu_bytes[p], from->gpu_bytes[p]);
        out->host_bytes[p] = stw_max_u64(out->host_bytes[p], from->host_bytes[p]);
    }
    raise_to(&out->train_s, from->train_s);
    raise_to(&out->iteration_s, from->iteration_s);
    out->gpu_peak_bytes = stw_max_u64(out->gpu_peak_bytes, from->gpu_peak_bytes);
    out->host_peak_bytes = stw_max_u64(out->host_peak_bytes, from->host_peak_bytes);
    if (from->device[0] != '\0' && out->device[0] != '\0' && strcmp(from->device, out->device) != 0)
        return stw_fail(j->err, STW_STATUS_BAD_INPUT, file_of(from),
                        "was measured on %.80s, the files before it on %.80s: expected one job",
                        from->device, out->device);
    if (out->exit_code == 0) out->exit_code = from->exit_code;
    if (out->date[0] == '\0') out->date = stw_pool_string(out->pool, from->date);
    if (out->device[0] == '\0') out->device = stw_pool_string(out->pool, from->device);
    if (out->backend[0] == '\0') out->backend = stw_pool_string(out->pool, from->backend);
    bool all = out->date != NULL && out->device != NULL && out->backend != NULL;
    return all ? STW_STATUS_OK : no_memory(j);
}

static stw_status make_room(joiner *j, const stw_run_result *const *runs, uint32_t n) {
    stw_run_result *out = j->out;
    size_t ranks = 0, nodes = 0, peaks = 0, ooms = 0, steps = 0;
    for (uint32_t i = 0; i < n; i++) {
        ranks += runs[i]->n_ranks;
        nodes += runs[i]->n_nodes;
        peaks += runs[i]->n_peaks;
        ooms += runs[i]->n_ooms;
        steps = stw_max_u64(steps, runs[i]->n_step_all);
    }
    out->ranks = stw_pool_array(out->pool, ranks, sizeof *out->ranks);
    out->nodes = stw_pool_array(out->pool, nodes, sizeof *out->nodes);
    out->peaks = stw_pool_array(out->pool, peaks, sizeof *out->peaks);
    out->ooms = stw_pool_array(out->pool, ooms, sizeof *out->ooms);
    out->step_all_s = stw_pool_array(out->pool, steps, sizeof *out->step_all_s);
    j->rank_files = stw_pool_array(out->pool, ranks, sizeof *j->rank_files);
    j->node_files = stw_pool_array(out->pool, nodes, sizeof *j->node_files);
    j->peak_files = stw_pool_array(out->pool, peaks, sizeof *j->peak_files);
    j->peak_numbers = stw_pool_array(out->pool, peaks, sizeof *j->peak_numbers);
    out->file = stw_pool_string(out->pool, runs[0]->file);
    out->date = stw_pool_string(out->pool, runs[0]->date);
    bool all = out->date != NULL && out->ranks != NULL && out->nodes != NULL &&
               out->peaks != NULL && out->step_all_s != NULL && j->rank_files != NULL &&
               j->node_files != NULL && j->peak_files != NULL && j->peak_numbers != NULL &&
               out->ooms != NULL;
    return all ? STW_STATUS_OK : no_memory(j);
}

stw_status stw_run_results_join(const stw_run_result *const *runs, uint32_t n,
                                uint32_t ranks_per_node, stw_run_result **out, stw_error *err) {
    joiner j = {.from = runs[0], .ranks_per_node = ranks_per_node, .err = err};
    stw_status status = stw_run_result_new(&j.out, err);
    if (status != STW_STATUS_OK) return status;
    j.out->source = "external";
    STW_TRY(make_room(&j, runs, n));
    for (uint32_t i = 0; i < n; i++) {
        j.from = runs[i];
        j.number = i;
        STW_TRY(join_ranks(&j));
        STW_TRY(join_nodes(&j));
        STW_TRY(join_peaks(&j));
        STW_TRY(join_ooms(&j));
        STW_TRY(join_whole(&j));
        join_steps(&j);
    }
    *out = j.out;
    j.out = NULL;
out:
    stw_run_result_free(j.out);
    return status;
}
