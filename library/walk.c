/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says, row by row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "library/handles.h"
#include "plan/files/verdict.h"

/* ---- the whole ---- */

void stw_get_plan_info(const stw_plan_t *handle, stw_plan_info_t *out, size_t size) {
    static const stw_plan_info_t none = {0};
    if (handle == NULL) {
        stw_library_copy(out, size, &none, sizeof none);
        return;
    }
    const stw_plan *plan = handle->plan;
    stw_plan_info_t info = {.verdict = stw_verdict_name(plan->verdict),
                            .outcome = stw_outcome_name(plan->outcome),
                            .solver = plan->solver.name,
                            .engine = stw_engine_name(plan->run.engine),
                            .hash = plan->layouts[0]->hash,
                            .iteration_s = stw_plan_iteration_s(plan),
                            .world = plan->job->world,
                            .rank_kinds = plan->job->n_kinds,
                            .gpu_capacity_bytes = stw_plan_gpu_capacity(plan),
                            .host_capacity_bytes = stw_plan_host_capacity(plan),
                            .exit_code = stw_status_exit_code(stw_verdict_status(plan->verdict))};
    for (int p = 0; p < STW_N_PHASES; p++) {
        for (uint32_t k = 0; k < plan->job->n_kinds; k++)
            info.gpu_peak_bytes =
                stw_max_u64(info.gpu_peak_bytes, plan->peaks[k].phase[p][STW_TIER_GPU].total);
        for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
            info.host_peak_bytes = stw_max_u64(info.host_peak_bytes,
                                               plan->node_peaks[n].phase[p][STW_TIER_HOST].total);
    }
    stw_library_copy(out, size, &info, sizeof info);
}

int stw_get_rank_kind(const stw_plan_t *handle, uint32_t kind, stw_rank_kind_t *out, size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    if (kind >= plan->job->n_kinds) return 0;
    const stw_layout *layout = plan->layouts[kind];
    const uint64_t *arena = layout->arena_bytes, *persistent = layout->persistent_bytes;
    const stw_rank_kind_t info = {.name = plan->job->kinds[kind].name,
                                  .ranks = plan->job->kinds[kind].n_ranks,
                                  .params = plan->job->kinds[kind].params,
                                  .gpu_arena_bytes = arena[STW_TIER_GPU],
                                  .gpu_persistent_bytes = persistent[STW_TIER_GPU],
                                  .host_arena_bytes = arena[STW_TIER_HOST],
                                  .host_persistent_bytes = persistent[STW_TIER_HOST],
                                  .nvme_arena_bytes = arena[STW_TIER_NVME]};
    stw_library_copy(out, size, &info, sizeof info);
    return 1;
}

uint32_t stw_find_rank_kind(const stw_plan_t *handle, uint32_t rank) {
    if (handle == NULL) return STOWAGE_NONE;
    const stw_job *job = handle->plan->job;
    return rank < job->world ? stw_job_kind_of(job, rank) : STOWAGE_NONE;
}

/* ---- rows of a kind ---- */

/* In the order of stw_repeat. */
static const char *const repeat_names[] = {"once", "first", "later", "every"};

int stw_get_movement(const stw_plan_t *handle, uint32_t kind, uint32_t i, stw_movement_t *out,
                     size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    if (kind >= plan->job->n_kinds || i >= plan->programs[kind]->n_movements) return 0;
    const stw_movement *m = &plan->programs[kind]->movements[i];
    const stw_movement_t movement = {.phase = stw_phase_name(m->phase),
                                     .role = m->role,
                                     .repeat = repeat_names[m->repeat],
                                     .by_stowage =
                                         m->inside || (m->by_stowage && m->executable) ? 1 : 0,
                                     .first_op = m->first_op,
                                     .ops = m->n_ops,
                                     .seconds = plan->time_s[m->phase]};
    stw_library_copy(out, size, &movement, sizeof movement);
    return 1;
}

int stw_get_peak(const stw_plan_t *handle, uint32_t kind, uint32_t i, stw_peak_t *out,
                 size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    uint32_t row = 0;
    if (kind >= plan->job->n_kinds) return 0;
    const stw_peaks *peaks = &plan->peaks[kind];
    for (int p = 0; p < STW_N_PHASES; p++) {
        for (int t = 0; peaks->has[p] && t < STW_N_TIERS; t++) {
            const stw_peak *peak = &peaks->phase[p][t];
            for (int c = -1; c < STW_N_COMPONENTS; c++) {
                uint64_t bytes = c < 0 ? peak->total : peak->components[c];
                if ((c >= 0 && bytes == 0) || row++ != i) continue;
                const stw_peak_t found = {.phase = stw_phase_name((stw_phase)p),
                                          .tier = stw_tier_name((stw_tier)t),
                                          .component = c < 0 ? "total"
                                                             : stw_component_name((stw_component)c),
                                          .bytes = bytes};
                stw_library_copy(out, size, &found, sizeof found);
                return 1;
            }
        }
    }
    return 0;
}

/* In the order of stw_op_unit. */
static const char *const unit_names[] = {"", "bucket", "piece", "region", "block"};

int stw_get_op(const stw_plan_t *handle, uint32_t kind, uint32_t i, stw_op_t *out, size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    if (kind >= plan->job->n_kinds || i >= plan->programs[kind]->n_ops) return 0;
    const stw_op *o = &plan->programs[kind]->ops[i];
    const stw_op_t op = {.name = stw_op_kind_name(o->kind),
                         .counts = unit_names[stw_op_row_of(o->kind)->unit],
                         .group = stw_rank_group_name(o->group),
                         .stream = stw_stream_name(o->stream),
                         .component = stw_component_name(o->component),
                         .from = stw_tier_name(o->from),
                         .to = stw_tier_name(o->to),
                         .unit = o->unit,
                         .after = {o->after[0], o->after[1]},
                         .from_offset_bytes = o->from_offset_bytes,
                         .to_offset_bytes = o->offset_bytes,
                         .bytes = o->bytes,
                         .params = o->params};
    stw_library_copy(out, size, &op, sizeof op);
    return 1;
}

int stw_get_region(const stw_plan_t *handle, uint32_t kind, uint32_t i, stw_region_t *out,
                   size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    if (kind >= plan->job->n_kinds || i >= plan->layouts[kind]->n_regions) return 0;
    const stw_region *r = &plan->layouts[kind]->regions[i];
    const stw_region_t region = {.component = stw_component_name(r->component),
                                 .tier = stw_tier_name(r->tier),
                                 .update = stw_update_name(r->update),
                                 .first_param = r->first_param,
                                 .params = r->params,
                                 .offset_bytes = r->offset_bytes,
                                 .bytes = r->bytes};
    stw_library_copy(out, size, &region, sizeof region);
    return 1;
}

int stw_get_bucket(const stw_plan_t *handle, uint32_t kind, uint32_t i, stw_bucket_t *out,
                   size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    if (kind >= plan->job->n_kinds || i >= plan->layouts[kind]->n_buckets) return 0;
    const stw_bucket *b = &plan->layouts[kind]->buckets[i];
    const stw_update update = plan->decisions.state[b->decision].place.update;
    const stw_bucket_t bucket = {
        .update = stw_update_name(update), .first_param = b->first_param, .params = b->params};
    stw_library_copy(out, size, &bucket, sizeof bucket);
    return 1;
}

/* ---- from tensors to memory ---- */

/* The mutex is held, or the spaces are the caller's own. */
static bool load_spaces(const stw_job *job, stw_library_spaces *s, uint32_t rank) {
    if (s->pool != NULL && s->rank == rank) return true;
    stw_pool *old = s->pool;
    s->pool = NULL; /* a child that is forked now frees no pool that the parent frees */
    stw_pool_free(old);
    s->pool = stw_pool_new();
    s->rank = rank;
    bool done = s->pool != NULL;
    for (uint32_t id = 0; done && id < STW_N_STATE_SPACES; id++)
        done = stw_job_space(job, id, rank, s->pool, &s->spaces[id], NULL) == STW_STATUS_OK;
    if (done) return true;
    stw_pool_free(s->pool);
    s->pool = NULL;
    return false;
}

/* The first run of a tensor's elements, from one on, that a rank has of a component. */
static bool find_in(const stw_plan *plan, stw_library_spaces *s, uint32_t rank,
                    stw_component component, stw_view wanted, stw_overlap *out) {
    if (!load_spaces(plan->job, s, rank)) return false;
    const stw_space *space = &s->spaces[stw_component_space(component)];
    stw_meet meet = stw_meet_begin(wanted, stw_space_whole(space));
    return stw_meet_next(&meet, out);
}

/* The same by the spaces that are kept, or, while another thread uses them, by some of this call's
 * own: in a child that was forked then they would be in use for ever. */
static bool find_run(const stw_plan *plan, stw_library_spaces *s, uint32_t rank,
                     stw_component component, stw_view wanted, stw_overlap *out) {
    bool found = false;
    if (pthread_mutex_trylock(&s->mutex) == 0) {
        found = find_in(plan, s, rank, component, wanted, out);
        pthread_mutex_unlock(&s->mutex);
        return found;
    }
    stw_library_spaces *own = calloc(1, sizeof *own);
    if (own == NULL) return false;
    found = find_in(plan, own, rank, component, wanted, out);
    stw_pool_free(own->pool);
    free(own);
    return found;
}

/* How a state component is stored; false if the run has no such state. */
static bool stored_as(const stw_run_spec *run, stw_component component, stw_dtype *out) {
    switch (component) {
    case STW_COMPONENT_PARAMS:
        *out = run->precision.params;
        return true;
    case STW_COMPONENT_GRADS:
        *out = run->precision.grads;
        return true;
    case STW_COMPONENT_MASTER:
        *out = STW_DTYPE_F32;
        return run->precision.has_master;
    case STW_COMPONENT_EXP_AVG:
        *out = run->precision.exp_avg;
        return true;
    case STW_COMPONENT_EXP_AVG_SQ:
        *out = run->precision.exp_avg_sq;
        return true;
    default:
        return false;
    }
}

int stw_find_extent(const stw_plan_t *handle, uint32_t rank, const char *component, uint32_t tensor,
                    uint64_t element, stw_extent_t *out, size_t size) {
    if (handle == NULL || component == NULL || out == NULL) return 0;
    const stw_plan *plan = handle->plan;
    /* The cache of spaces is not part of what a caller sees of a plan. */
    stw_library_spaces *cache = &((stw_plan_t *)(uintptr_t)handle)->spaces;
    const stw_model *model = plan->model;
    stw_component wanted;
    stw_dtype dtype;
    stw_overlap run;
    if (rank >= plan->job->world || !stw_component_parse(component, &wanted) ||
        !stored_as(&plan->run, wanted, &dtype) || tensor >= model->n_tensors ||
        element >= model->tensors[tensor].numel)
        return 0;
    const stw_view rest = {&plan->job->files, stw_job_tensor_first(plan->job, tensor) + element,
                           model->tensors[tensor].numel - element};
    if (!find_run(plan, cache, rank, wanted, rest, &run)) return 0;
    const stw_region *r =
        stw_layout_region(plan->layouts[stw_job_kind_of(plan->job, rank)], wanted, run.b_first);
    if (r == NULL) return 0;
    uint64_t element_bytes = stw_job_element_bytes(plan->job, wanted);
    uint64_t end = stw_min_u64(run.b_first + run.n, r->first_param + r->params);
    const stw_extent_t extent = {
        .element = run.tensor_first,
        .elements = end - run.b_first,
        .tier = stw_tier_name(r->tier),
        .offset_bytes = r->offset_bytes + stw_times(run.b_first - r->first_param, element_bytes),
        .bytes = stw_times(end - run.b_first, element_bytes),
        .dtype = stw_dtype_name(dtype)};
    stw_library_copy(out, size, &extent, sizeof extent);
    return 1;
}
