/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/zero.h"

#include <string.h>

#include "core/checked.h"
#include "engines/decoder.h"

/* ---- partitions ---- */

uint32_t stw_zero_representative(const stw_job *job, uint32_t rank) {
    (void)job;
    return rank;
}

static uint32_t group_of(const stw_job *job, uint32_t tensor) {
    return stw_job_trains(job, tensor) ? stw_job_param_group(job, tensor) : STW_ZERO_FROZEN;
}

static void begin_flat(stw_flat *flat, const stw_job *job) {
    *flat = (stw_flat){.job = job};
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const uint32_t group = group_of(job, t);
        if (group < STW_ZERO_GROUPS)
            flat->params[group] = stw_plus(flat->params[group], job->model->tensors[t].numel);
    }
}

/* Tensors are asked for in order. */
static stw_flat_place next_place(stw_flat *flat, uint32_t tensor) {
    stw_flat_place place = {group_of(flat->job, tensor), 0};
    if (place.group >= STW_ZERO_GROUPS) return place;
    place.first = flat->next[place.group];
    flat->next[place.group] = stw_plus(place.first, flat->job->model->tensors[tensor].numel);
    return place;
}

/* Flat buffers are cut into equal parts, aligned to two elements per rank (stage_1_and_2.py,
 * flatten_dense_tensors_aligned and get_data_parallel_partitions; bf16_optimizer.py,
 * _setup_for_real_optimizer). */
uint64_t stw_zero_part(const stw_job *job, uint64_t params) {
    return stw_times(2, stw_div_up_u64(params, stw_times(2, job->group)));
}

/* The elements of a tensor that lie in a part of its flat buffer of `params` elements. */
static uint64_t in_part(const stw_job *job, uint32_t tensor, uint64_t params, stw_flat_place place,
                        uint32_t part, uint64_t *first) {
    const uint64_t size = stw_zero_part(job, params);
    uint64_t end = stw_plus(place.first, job->model->tensors[tensor].numel);
    uint64_t from = stw_times(part, size), to = stw_plus(from, size);
    *first = stw_max_u64(place.first, from);
    end = stw_min_u64(end, to);
    if (end <= *first) return 0;
    uint64_t n = end - *first;
    *first -= place.first;
    return n;
}

/* Stage 3 cuts every tensor by itself (partition_parameters.py, _partition_param); stages 1 and 2
 * cut the optimizer's state alone. */
stw_status stw_zero_cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const bool by_tensor = stw_deepspeed_settings_of(job->run).zero_stage == 3;
    const uint32_t member = rank % job->group;
    uint64_t global = 0;
    stw_flat flat;
    begin_flat(&flat, job);
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const uint64_t numel = job->model->tensors[t].numel;
        const stw_flat_place place = next_place(&flat, t);
        const bool frozen = place.group >= STW_ZERO_GROUPS;
        uint64_t first = 0, n = numel;
        if (frozen && space != STW_SPACE_PARAMS) {
            n = 0;
        } else if (by_tensor) {
            uint64_t shard = stw_div_up_u64(numel, job->group);
            first = stw_min_u64(numel, stw_times(member, shard));
            n = stw_min_u64(shard, numel - first);
        } else if (space == STW_SPACE_OPTIMIZER) {
            n = in_part(job, t, flat.params[place.group], place, member, &first);
        }
        if (n > 0) STW_TRY(stw_space_add(out, t, global, first, n, err));
        global += numel;
    }
out:
    return status;
}

bool stw_zero_counts(const stw_job *job, uint32_t space, uint32_t rank) {
    const bool by_tensor = stw_deepspeed_settings_of(job->run).zero_stage == 3;
    return by_tensor || space == STW_SPACE_OPTIMIZER ? rank < job->group : rank == 0;
}

/* ---- what movements ask ---- */

static void end_sub_group(stw_zero *z, uint64_t *n) {
    if (*n == 0) return;
    z->sub_groups[z->n_sub_groups++] = *n;
    *n = 0;
}

/* Of one parameter group after the other. */
static void find_sub_groups(stw_zero *z, const stw_space *space) {
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++) {
        uint64_t n = 0;
        for (uint32_t s = 0; s < space->n_segments && z->group_placed[g] > 0; s++) {
            if (z->places[space->segments[s].tensor].group != g) continue;
            n += space->segments[s].n;
            z->sub_group_of[space->segments[s].tensor] = z->n_sub_groups;
            z->sub_group_tensors[z->n_sub_groups]++;
            if (n >= z->set.sub_group_size) end_sub_group(z, &n);
        }
        end_sub_group(z, &n);
    }
}

/* DeepSpeed multiplies in double precision and rounds down. */
static void find_twins(stw_zero *z) {
    z->on_gpu = z->n_sub_groups;
    if (!z->set.offload_optimizer) return;
    z->on_gpu = (uint32_t)((1 - z->set.ratio) * (double)z->n_sub_groups);
    for (uint32_t i = 0; i < z->on_gpu; i++)
        z->on_gpu_params = stw_plus(z->on_gpu_params, z->sub_groups[i]);
}

static void find_places(stw_zero *z, const stw_space *own) {
    const stw_model *model = z->job->model;
    stw_flat flat;
    begin_flat(&flat, z->job);
    memcpy(z->group_trained, flat.params, sizeof flat.params);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        z->places[t] = next_place(&flat, t);
        if (z->places[t].group >= STW_ZERO_GROUPS) continue;
        z->largest = stw_max_u64(z->largest, model->tensors[t].numel);
        z->trained = stw_plus(z->trained, model->tensors[t].numel);
        z->n_trained++;
    }
    for (uint32_t s = 0; s < own->n_segments; s++) {
        const uint32_t group = z->places[own->segments[s].tensor].group;
        z->group_placed[group] = stw_plus(z->group_placed[group], own->segments[s].n);
        z->group_tensors[group]++;
    }
}

static bool is_traced(const stw_zero *z) {
    const stw_model *model = z->job->model;
    if (!stw_tensors_wanted(z->b) || !stw_decoder_is_known(z->job, z->b->decisions)) return false;
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer && z->uses[g].first == NULL) return false;
    return true;
}

bool stw_zero_init(stw_zero *z, stw_builder *b) {
    const stw_job *job = b->job;
    const stw_space *own = &job->kinds[b->layout->kind].spaces[STW_SPACE_OPTIMIZER];
    *z = (stw_zero){.b = b,
                    .job = job,
                    .set = stw_deepspeed_settings_of(job->run),
                    .ranks = job->group,
                    .element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS),
                    .fp32_grads = job->run->precision.grads == STW_DTYPE_F32,
                    .placed = own->n,
                    .partition = STW_NO_EXTENT};
    z->bf16_optimizer = z->set.zero_stage == 1 && z->fp32_grads && !z->set.offload_optimizer &&
                        job->run->precision.params == STW_DTYPE_BF16;
    z->reduces_in_backward = z->set.zero_stage > 1 || z->set.overlap_comm;
    z->sub_group_of =
        stw_pool_array(b->program->pool, job->model->n_tensors, sizeof *z->sub_group_of);
    z->places = stw_pool_array(b->program->pool, job->model->n_tensors, sizeof *z->places);
    z->whole = stw_pool_array(b->program->pool, job->model->n_tensors, sizeof *z->whole);
    z->sub_groups =
        stw_pool_array(b->program->pool, (size_t)own->n_segments + 1, sizeof *z->sub_groups);
    z->sub_group_tensors =
        stw_pool_array(b->program->pool, (size_t)own->n_segments + 1, sizeof *z->sub_group_tensors);
    z->uses = stw_pool_array(b->program->pool, job->model->n_groups, sizeof *z->uses);
    if (b->status == STW_STATUS_OK &&
        (z->uses == NULL || !stw_uses_find(job, b->program->pool, z->uses) || z->places == NULL ||
         z->sub_group_of == NULL || z->whole == NULL || z->sub_groups == NULL ||
         z->sub_group_tensors == NULL))
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
    if (b->status != STW_STATUS_OK) return false;
    z->traced = is_traced(z);
    find_places(z, own);
    find_sub_groups(z, own);
    find_twins(z);
    return true;
}

uint32_t stw_zero_embedding(const stw_zero *z) {
    const stw_model *model = z->job->model;
    for (uint32_t t = 0; model->tied_embeddings && t < model->n_tensors; t++) {
        const stw_block_group *group = &model->groups[model->blocks[model->tensors[t].block].group];
        if (strcmp(group->name, "embed") == 0 && model->tensors[t].shape[0] == model->vocab)
            return t;
    }
    return UINT32_MAX;
}

uint64_t stw_zero_shard(const stw_zero *z, uint32_t tensor) {
    return stw_div_up_u64(z->job->model->tensors[tensor].numel, z->ranks);
}

uint64_t stw_zero_owned(const stw_zero *z, uint32_t tensor) {
    const stw_flat_place place = z->places[tensor];
    uint64_t first;
    if (place.group >= STW_ZERO_GROUPS) return 0;
    return in_part(z->job, tensor, z->group_trained[place.group], place,
                   z->reduces_in_backward ? z->ranks - 1 : 0, &first);
}

uint64_t stw_zero_owned_whole(const stw_zero *z) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        if (stw_zero_owned(z, t) > 0) n = stw_plus(n, z->job->model->tensors[t].numel);
    return n;
}

void stw_zero_parts_of(const stw_zero *z, uint32_t tensor, uint64_t *first, uint64_t *last) {
    const stw_flat_place place = z->places[tensor];
    const uint64_t part = stw_zero_part(z->job, z->group_trained[place.group]);
    *first = place.first / part;
    *last = (place.first + z->job->model->tensors[tensor].numel - 1) / part;
}
