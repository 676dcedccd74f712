/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an optimizer of bound tensors: does the plan suit, are these its tensors, memory,
 * addresses that change. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/bound_parts.h"
#include "core/checked.h"

/* ---- does the plan suit ---- */

static stw_status refuse(const char *where, const char *found, const char *expected,
                         stw_error *err) {
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, where,
                    "found %s, an optimizer of bound tensors expects %s", found, expected);
}

static stw_status check_place(const stw_place *place, stw_error *err) {
    if (place->params != STW_TIER_GPU)
        return refuse("placement.params", stw_tier_name(place->params), "gpu", err);
    if (place->grads != STW_TIER_GPU)
        return refuse("placement.grads", stw_tier_name(place->grads), "gpu", err);
    if (place->update != STW_UPDATE_RESIDENT && place->update != STW_UPDATE_STREAM)
        return refuse("update", stw_update_name(place->update), "resident and stream", err);
    return STW_STATUS_OK;
}

static const stw_movement *find_step(const stw_program *program) {
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        if (movement->phase == STW_PHASE_OPTIMIZER_STEP && movement->by_stowage &&
            movement->executable)
            return movement;
    }
    return NULL;
}

static stw_status check_plan(const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char ranks[48];
    snprintf(ranks, sizeof ranks, "%u ranks", plan->job->ranks);
    if (plan->job->ranks != 1)
        STW_TRY(refuse("plan", ranks, "one: a plan of this rank's shards", err));
    if (find_step(plan->programs[0]) == NULL && stw_run_spec_parks(&plan->run) != NULL)
        STW_TRY(refuse(stw_run_spec_parks(&plan->run), "host",
                       "none: parked state is planned, not executed", err));
    if (find_step(plan->programs[0]) == NULL)
        STW_TRY(refuse("engine", stw_engine_name(plan->run.engine),
                       "one whose optimizer step Stowage executes (stowage)", err));
    for (uint32_t i = 0; i < plan->decisions.n_state; i++)
        if (plan->decisions.state[i].units > 0)
            STW_TRY(check_place(&plan->decisions.state[i].place, err));
    if (plan->layouts[0]->persistent_bytes[STW_TIER_NVME] > 0 && stw_nvme_copies(plan->job) != 1)
        STW_TRY(refuse("placement.nvme_copies", "2", "1: its file goes with it", err));
out:
    return status;
}

/* ---- memory ---- */

/* Params and grads come first in the GPU arena: where they end. */
static stw_status end_of_bound(const stw_layout *layout, uint64_t *out, stw_error *err) {
    uint64_t end = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < layout->n_regions; i++) {
            const stw_region *r = &layout->regions[i];
            const bool is_bound =
                r->component == STW_COMPONENT_PARAMS || r->component == STW_COMPONENT_GRADS;
            if (r->tier != STW_TIER_GPU) continue;
            if (pass == 0 && is_bound)
                end =
                    stw_max_u64(end, stw_round_up_u64(r->offset_bytes + r->bytes, STW_ALIGN_BYTES));
            if (pass == 1 && !is_bound && r->offset_bytes < end)
                return stw_fail(err, STW_STATUS_BUG, stw_component_name(r->component),
                                "lies before params and grads in the GPU arena");
        }
    *out = end;
    return STW_STATUS_OK;
}

static uint64_t streamed_bytes(const stw_program *program) {
    const stw_movement *movement = find_step(program);
    uint64_t bytes = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
        if (program->ops[i].kind == STW_OP_COPY && program->ops[i].stream == STW_STREAM_H2D)
            bytes = stw_plus(bytes, program->ops[i].bytes);
    return bytes;
}

/* Regions and ring of a tier; not what a load would need besides. */
static uint64_t end_of(const stw_layout *layout, stw_tier tier, stw_ring_kind kind,
                       uint64_t least) {
    const stw_ring *ring = &layout->rings[kind];
    uint64_t end = stw_max_u64(layout->persistent_bytes[tier], least);
    if (ring->slots > 0)
        end = stw_max_u64(end, ring->offset_bytes + stw_times(ring->slots, ring->slot_bytes));
    return end;
}

static stw_status measure(const stw_plan *plan, stw_bound_sizes *out, uint64_t *skipped,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_layout *layout = plan->layouts[0];
    stw_element_types types;
    STW_TRY(check_plan(plan, err));
    STW_TRY(stw_exec_types(&plan->run, &types, err));
    STW_TRY(end_of_bound(layout, skipped, err));
    *out = (stw_bound_sizes){.gpu_bytes =
                                 end_of(layout, STW_TIER_GPU, STW_RING_GPU, *skipped) - *skipped,
                             .host_bytes = end_of(layout, STW_TIER_HOST, STW_RING_HOST_DISK, 0),
                             .nvme_bytes = layout->persistent_bytes[STW_TIER_NVME],
                             .buckets = layout->n_buckets,
                             .streamed_bytes = streamed_bytes(plan->programs[0])};
out:
    return status;
}

stw_status stw_bound_measure(const stw_plan *plan, stw_bound_sizes *out, stw_error *err) {
    uint64_t skipped = 0;
    return measure(plan, out, &skipped, err);
}

/* ---- tensors ---- */

typedef struct named {
    const char *name;
    uint32_t index;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static stw_status check_tensor(const stw_bound *b, const stw_bound_tensor *found,
                               const stw_tensor *expected, stw_error *err) {
    const stw_dtype dtype = b->plan->run.precision.params;
    if (found->elements != expected->numel)
        return stw_fail(err, STW_STATUS_BAD_INPUT, found->name,
                        "found %llu elements, the plan has %llu",
                        (unsigned long long)found->elements, (unsigned long long)expected->numel);
    if (found->dtype != dtype)
        return stw_fail(err, STW_STATUS_BAD_INPUT, found->name,
                        "found %s, the plan has %s (precision.params)",
                        stw_dtype_name(found->dtype), stw_dtype_name(dtype));
    if (found->address == NULL && found->elements > 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, found->name,
                        "found no address, expected that of %llu elements",
                        (unsigned long long)found->elements);
    if ((uintptr_t)found->address % stw_element_bytes(b->types.params) != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, found->name,
                        "found address %p, expected a multiple of %llu bytes", found->address,
                        (unsigned long long)stw_element_bytes(b->types.params));
    if (found->group >= STW_MAX_PARAM_GROUPS)
        return stw_fail(err, STW_STATUS_BAD_INPUT, found->name,
                        "found parameter group %u, expected one below %d", found->group,
                        STW_MAX_PARAM_GROUPS);
    return STW_STATUS_OK;
}

/* The tensors of the plan are those bound, each once. */
static stw_status match_tensors(stw_bound *b, const stw_bound_tensor *tensors, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_model *model = b->plan->job->model;
    named *list = stw_pool_array(b->pool, b->n_tensors, sizeof *list);
    b->by_tensor = stw_pool_array(b->pool, model->n_tensors, sizeof *b->by_tensor);
    b->places = stw_pool_array(b->pool, b->n_tensors, sizeof *b->places);
    b->names = stw_pool_array(b->pool, b->n_tensors, sizeof *b->names);
    if (list == NULL || b->by_tensor == NULL || b->places == NULL || b->names == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "tensors", "out of memory"));
    for (uint32_t i = 0; i < b->n_tensors; i++) list[i] = (named){tensors[i].name, i};
    qsort(list, b->n_tensors, sizeof *list, by_name);
    for (uint32_t i = 1; i < b->n_tensors; i++)
        if (strcmp(list[i - 1].name, list[i].name) == 0)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, list[i].name, "is bound twice"));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const named key = {model->tensors[t].name, 0};
        const named *found = bsearch(&key, list, b->n_tensors, sizeof *list, by_name);
        if (found == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, key.name,
                             "is a tensor of the plan, and is not among the %u that are bound",
                             b->n_tensors));
        const stw_bound_tensor *tensor = &tensors[found->index];
        STW_TRY(check_tensor(b, tensor, &model->tensors[t], err));
        b->by_tensor[t] = found->index;
        b->names[found->index] = key.name;
        b->places[found->index] = (stw_bound_place){.params = tensor->address,
                                                    .elements = tensor->elements,
                                                    .group = tensor->group,
                                                    .first_part = UINT32_MAX,
                                                    .turn = UINT32_MAX};
    }
    for (uint32_t i = 0; i < b->n_tensors; i++)
        if (b->names[i] == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, tensors[i].name,
                             "is bound, and is no tensor of the plan"));
out:
    return status;
}

/* Runs of the flat space that belong to one tensor, and what of them each bucket has. */
static stw_status cut_spans(stw_bound *b, stw_error *err) {
    const stw_layout *layout = b->layout;
    const uint32_t n = b->space.n_segments;
    stw_span_range *ranges = stw_pool_array(b->pool, layout->n_buckets, sizeof *ranges);
    b->parts = stw_pool_array(b->pool, n, sizeof *b->parts);
    b->spans = stw_pool_array(b->pool, n, sizeof *b->spans);
    b->operands = stw_pool_array(b->pool, layout->n_buckets, sizeof *b->operands);
    if (ranges == NULL || b->parts == NULL || b->spans == NULL || b->operands == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory");
    b->n_spans = n;
    for (uint32_t i = 0; i < n; i++) {
        const stw_segment *s = &b->space.segments[i];
        const uint32_t tensor = b->by_tensor[s->tensor];
        b->parts[i] = (stw_bound_part){tensor, s->tensor_first};
        b->spans[i] = (stw_span){.first = s->first, .n = s->n, .group = b->places[tensor].group};
        if (b->places[tensor].first_part == UINT32_MAX) b->places[tensor].first_part = i;
    }
    stw_exec_match_spans(layout, b->spans, n, ranges);
    for (uint32_t i = 0; i < layout->n_buckets; i++) {
        stw_bucket_operands *o = &b->operands[i];
        stw_operand *const state[] = {&o->master, &o->exp_avg, &o->exp_avg_sq};
        stw_exec_operands(b->plan, layout, i, o);
        o->first_span = ranges[i].first;
        o->n_spans = ranges[i].n;
        for (int c = 0; c < 3; c++)
            if (state[c]->tier == STW_TIER_GPU) state[c]->offset -= b->skipped_bytes;
    }
    return STW_STATUS_OK;
}

/* Bytes of a tensor before a part of it. */
static uint64_t bytes_before(const stw_bound_part *part, uint64_t elements, stw_element type) {
    return stw_times(part->tensor_first + elements, stw_element_bytes(type));
}

/* Offsets of spans count from the arena's base, modulo 2^64. */
static void place_spans(stw_bound *b) {
    const uintptr_t base = (uintptr_t)b->backend->device_address(b->device, 0, 0);
    for (uint32_t i = 0; i < b->n_spans; i++) {
        const stw_bound_part *part = &b->parts[i];
        const stw_bound_place *place = &b->places[part->tensor];
        b->spans[i].params =
            (uintptr_t)place->params + bytes_before(part, 0, b->types.params) - base;
        b->spans[i].grads = (uintptr_t)place->grads + bytes_before(part, 0, b->types.grads) - base;
    }
    b->moved = true;
}

/* ---- opening ---- */

static stw_status open_device(stw_bound *b, const stw_bound_options *options, uint32_t n_events,
                              stw_error *err) {
    stw_ranks ranks = {.local_world = 1};
    stw_device_config c = {.n_events = n_events,
                           .n_marks = b->backend->mark != NULL ? 2 : 0,
                           .n_spans = b->n_spans,
                           .spans_outside = true,
                           .urgent = true,
                           .types = b->types,
                           .gpu_is_given = options->gpu_is_given,
                           .gpu_is_current = !options->gpu_is_given,
                           .gpu = options->gpu_number,
                           .local_world = 1,
                           .nvme_copies = 1,
                           .nvme_folder = options->nvme_folder};
    stw_nvme_shape shape = {.in_memory = options->nvme_in_memory};
    stw_status status = stw_exec_nvme_shape(b->layout, b->program, b->pool, &shape, err);
    if (status != STW_STATUS_OK) return status;
    c.nvme_shape = &shape;
    c.arena_bytes[STW_TIER_GPU] = b->sizes.gpu_bytes;
    c.arena_bytes[STW_TIER_HOST] = b->sizes.host_bytes;
    c.arena_bytes[STW_TIER_NVME] = b->sizes.nvme_bytes;
    c.capacity_bytes[STW_TIER_GPU] = stw_plan_gpu_capacity(b->plan);
    c.capacity_bytes[STW_TIER_HOST] = stw_plan_host_capacity(b->plan);
    c.capacity_bytes[STW_TIER_NVME] = b->plan->cluster.nvme.capacity_bytes;
    c.external[STW_TIER_GPU] = options->gpu;
    c.machine_host_bytes = b->sizes.host_bytes;
    if (!b->backend->gpu && options->gpu.address == NULL)
        c.machine_host_bytes = stw_plus(c.machine_host_bytes, b->sizes.gpu_bytes);
    /* The job's other ranks on this node take their cores. */
    if (stw_ranks_from_environment(&ranks, NULL) == STW_STATUS_OK && ranks.local_world > 0)
        c.local_world = ranks.local_world;
    c.local_rank = c.local_world > ranks.local_rank ? ranks.local_rank : 0;
    c.threads = stw_threads_cores() / c.local_world;
    if (c.threads == 0) c.threads = 1;
    return b->backend->open(&c, &b->device, err);
}

static stw_status open_bound(stw_bound *b, const stw_bound_tensor *tensors,
                             const stw_bound_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n_events = 0;
    STW_TRY(measure(b->plan, &b->sizes, &b->skipped_bytes, err));
    b->layout = b->plan->layouts[0];
    b->program = b->plan->programs[0];
    b->movement = find_step(b->program);
    for (int g = 0; g < STW_MAX_PARAM_GROUPS; g++)
        b->rates[g] =
            (stw_bound_rates){b->plan->run.optimizer.lr, b->plan->run.optimizer.weight_decay};
    STW_TRY(stw_exec_types(&b->plan->run, &b->types, err));
    STW_TRY(stw_backend_select(options->backend, &b->backend, err));
    STW_TRY(match_tensors(b, tensors, err));
    STW_TRY(stw_job_space(b->plan->job, STW_SPACE_OPTIMIZER, 0, b->pool, &b->space, err));
    STW_TRY(cut_spans(b, err));
    STW_TRY(stw_bound_prepare_step(b, &n_events, err));
    STW_TRY(open_device(b, options, n_events, err));
    place_spans(b);
    STW_TRY(stw_bound_first_values(b, err));
    STW_TRY(stw_bound_start(b, err));
out:
    return status;
}

stw_status stw_bound_open(const stw_plan *plan, const stw_bound_tensor *tensors, uint32_t n,
                          const stw_bound_options *options, stw_bound **out, stw_error *err) {
    stw_bound *b = calloc(1, sizeof *b);
    stw_pool *pool = stw_pool_new();
    *out = NULL;
    if (b == NULL || pool == NULL) {
        free(b);
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "optimizer", "out of memory");
    }
    b->pool = pool;
    b->plan = plan;
    b->n_tensors = n;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_mutex_init(&b->guard_mutex, NULL);
    pthread_cond_init(&b->change, NULL);
    stw_status status = open_bound(b, tensors, options, err);
    if (status == STW_STATUS_OK)
        *out = b;
    else
        stw_bound_close(b);
    return status;
}

void stw_bound_close(stw_bound *b) {
    if (b == NULL) return;
    stw_bound_stop(b);
    if (b->device != NULL) b->backend->close(b->device);
    pthread_cond_destroy(&b->change);
    pthread_mutex_destroy(&b->mutex);
    pthread_mutex_destroy(&b->guard_mutex);
    stw_pool_free(b->pool);
    free(b);
}

const stw_backend *stw_bound_backend(const stw_bound *b) { return b->backend; }

void stw_bound_get_sizes(const stw_bound *b, stw_bound_sizes *out) { *out = b->sizes; }

/* ---- what changes between steps ---- */

stw_status stw_bound_set_group(stw_bound *b, uint32_t group, double lr, double weight_decay,
                               stw_error *err) {
    if (group >= STW_MAX_PARAM_GROUPS)
        return stw_fail(err, STW_STATUS_USAGE, "group", "found %u, expected one below %d", group,
                        STW_MAX_PARAM_GROUPS);
    if (!(lr >= 0 && lr <= STW_MOST_LR))
        return stw_fail(err, STW_STATUS_USAGE, "learning_rate", "found %g, expected 0 to %g", lr,
                        STW_MOST_LR);
    if (!(weight_decay >= 0) || isinf(weight_decay))
        return stw_fail(err, STW_STATUS_USAGE, "weight_decay", "found %g, expected at least 0",
                        weight_decay);
    b->rates[group] = (stw_bound_rates){lr, weight_decay};
    return STW_STATUS_OK;
}

/* Addresses of all tensors; `each` bytes an element. */
static stw_status check_addresses(const stw_bound *b, const char *what,
                                  const void *const *addresses, uint32_t n, bool may_stay,
                                  stw_element type, stw_error *err) {
    const uint64_t each = stw_element_bytes(type);
    if (n != b->n_tensors)
        return stw_fail(err, STW_STATUS_USAGE, what,
                        "found %u addresses, expected one for each of the %u tensors", n,
                        b->n_tensors);
    for (uint32_t i = 0; i < n; i++) {
        if (b->places[i].elements == 0) continue;
        if (addresses[i] == NULL && !may_stay)
            return stw_fail(err, STW_STATUS_BAD_INPUT, b->names[i],
                            "found no address among %s, expected that of %llu elements", what,
                            (unsigned long long)b->places[i].elements);
        if ((uintptr_t)addresses[i] % each != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, b->names[i],
                            "found address %p among %s, expected a multiple of %llu bytes",
                            addresses[i], what, (unsigned long long)each);
    }
    return STW_STATUS_OK;
}

stw_status stw_bound_set_gradients(stw_bound *b, const void *const *addresses, uint32_t n,
                                   stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_addresses(b, "gradients", addresses, n, false, b->types.grads, err));
    STW_TRY(stw_bound_settle(b, err));
    for (uint32_t i = 0; i < n; i++) b->places[i].grads = addresses[i];
    place_spans(b);
    b->bound_grads = true;
    b->has_norm = false;
out:
    return status;
}

stw_status stw_bound_set_params(stw_bound *b, void *const *addresses, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_addresses(b, "parameters", (const void *const *)addresses, n, true,
                            b->types.params, err));
    STW_TRY(stw_bound_settle(b, err));
    for (uint32_t i = 0; i < n; i++)
        if (addresses[i] != NULL) b->places[i].params = addresses[i];
    place_spans(b);
out:
    return status;
}
