/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/swap.h"

#include "core/checked.h"
#include "engines/deepspeed/calls.h"

/* swap_tensor/utils.py: MIN_AIO_BYTES, AIO_ALIGNED_BYTES. */
enum { LEAST_BYTES = 1 << 20, ALIGNED_BYTES = 1024 };

/* Of an update: master weights, two moments, gradients. */
enum { OPTIMIZER_BUFFERS = 4 };

static const stw_component moments[] = {STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ};

static bool swaps_optimizer(const stw_zero *z) {
    return z->set.offload_optimizer == STW_OFFLOAD_NVME;
}

static bool swaps_params(const stw_zero *z) { return z->set.offload_param == STW_OFFLOAD_NVME; }

/* ---- sizes ---- */

static uint64_t alignment(const stw_zero *z) {
    return stw_times(ALIGNED_BYTES, z->set.aio_intra_op_parallelism);
}

uint64_t stw_swap_aligned(const stw_zero *z, uint64_t bytes) {
    return stw_round_up_u64(bytes, alignment(z));
}

/* optimizer_utils.py, is_swappable_tensor; partitioned_param_swapper.py, swappable_tensor. */
static bool is_swappable(const stw_zero *z, uint64_t bytes) {
    return bytes >= stw_max_u64(LEAST_BYTES, z->set.aio_block_bytes);
}

static uint64_t shard_bytes(const stw_zero *z, uint32_t tensor) {
    return stw_times(stw_zero_shard(z, tensor), z->element);
}

uint64_t stw_swap_param_file(const stw_zero *z, uint32_t tensor) {
    const uint64_t bytes = shard_bytes(z, tensor);
    return swaps_params(z) && is_swappable(z, bytes) ? stw_swap_aligned(z, bytes) : 0;
}

bool stw_swap_reads_param(const stw_zero *z, uint32_t tensor) {
    if (stw_swap_param_file(z, tensor) == 0) return false;
    return !stw_job_trains(z->job, tensor) || z->sub_group_of[tensor] >= z->host_sub_groups;
}

uint64_t stw_swap_optimizer_buffers(const stw_zero *z) {
    if (!swaps_optimizer(z)) return 0;
    return stw_times(z->set.optimizer_buffer_count,
                     stw_swap_aligned(z, stw_times(4, z->largest_group)));
}

uint64_t stw_swap_param_buffers(const stw_zero *z) {
    return stw_times(z->set.param_buffer_count,
                     stw_swap_aligned(z, stw_times(z->set.param_buffer_size, z->element)));
}

/* stage3.py, _create_fp16_partitions_with_defragmentation: as large as the largest sub-group. */
uint64_t stw_swap_written_buffer(const stw_zero *z) {
    uint64_t most = 0, most_params = 0;
    for (uint32_t i = 0; i < z->n_sub_groups && z->host_sub_groups < z->n_sub_groups; i++) {
        if (z->sub_groups[i] > most_params) most = z->swap_groups[i].shards;
        most_params = stw_max_u64(most_params, z->sub_groups[i]);
    }
    return most;
}

/* Bytes of a shard's gradient that go to a file: whole multiples of the alignment
 * (_adjust_for_misaligned_lengths). */
static uint64_t grad_file(const stw_zero *z, uint32_t tensor) {
    const uint64_t bytes = stw_times(4, stw_zero_shard(z, tensor));
    return is_swappable(z, bytes) ? bytes / alignment(z) * alignment(z) : 0;
}

/* ---- what lies on NVMe ---- */

static void find_tensors(stw_zero *z) {
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        if (!stw_job_trains(z->job, t) || z->n_sub_groups == 0) continue;
        stw_swap_group *group = &z->swap_groups[z->sub_group_of[t]];
        const uint64_t grads = stw_times(4, stw_zero_shard(z, t)), file = grad_file(z, t);
        if (group->end == 0) group->first = t;
        group->end = t + 1;
        group->grad_files = stw_plus(group->grad_files, file);
        group->grad_rest = stw_plus(group->grad_rest, grads - file);
        group->param_files = stw_plus(group->param_files, stw_swap_param_file(z, t));
        group->in_memory += stw_swap_param_file(z, t) == 0;
        group->shards = stw_plus(group->shards, stw_swap_aligned(z, shard_bytes(z, t)));
    }
}

/* Each parameter group has a buffer on the host for its sub-groups, in order, until max_in_cpu
 * elements of all groups are taken; a sub-group that is not whole in it stays in its files
 * (stage3.py, _create_param_groups_fp16_flat_cpu_memory). */
static void find_host_shards(stw_zero *z) {
    uint64_t taken = 0;
    bool fits = true;
    uint32_t i = 0;
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++) {
        const uint64_t all = z->group_placed[g];
        uint64_t room = all, offset = 0;
        if (stw_plus(taken, all) > z->set.max_in_cpu)
            room = z->set.max_in_cpu > taken ? z->set.max_in_cpu - taken : 0;
        taken = stw_plus(taken, all);
        z->host_params[g] = room;
        for (; i < z->n_sub_groups && offset < all; i++) {
            offset = stw_plus(offset, z->sub_groups[i]);
            fits = fits && offset <= room;
            if (fits) z->host_sub_groups = i + 1;
        }
    }
}

static bool refuse(stw_zero *z, const char *key, uint64_t found, uint64_t expected,
                   const char *why) {
    z->b->status =
        stw_fail(z->b->err, STW_STATUS_BAD_INPUT, key, "found %llu, expected at least %llu: %s",
                 (unsigned long long)found, (unsigned long long)expected, why);
    return false;
}

/* The swappers assert that there is a buffer for each tensor of a sub-group: of the one that is
 * updated, of the one that is read ahead and of the one that is still being written. */
static bool check_optimizer(stw_zero *z) {
    uint32_t n = 0, at_once = 1;
    for (uint32_t i = 0; i < z->n_sub_groups; i++) n += z->swapped[i];
    at_once += z->set.pipeline_read + z->set.pipeline_write;
    const uint64_t needed = stw_times(OPTIMIZER_BUFFERS, stw_min_u64(at_once, n));
    if (z->set.optimizer_buffer_count >= needed) return true;
    return refuse(z, "deepspeed.optimizer_buffer_count", z->set.optimizer_buffer_count, needed,
                  "4 for each sub-group that is updated, read ahead or written at the same time");
}

/* get_buffer asserts that a shard fits into a buffer. Tensors that stay whole on the GPU are
 * gathered at once after a step, which needs a buffer for each that has a file. */
static bool check_params(stw_zero *z) {
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        if (stw_swap_param_file(z, t) == 0) continue;
        if (stw_zero_shard(z, t) > z->set.param_buffer_size)
            return refuse(z, "deepspeed.param_buffer_size", z->set.param_buffer_size,
                          stw_zero_shard(z, t), "the elements of the largest shard");
        if (z->job->model->tensors[t].numel <= z->set.persistence_threshold) {
            z->b->status =
                stw_fail(z->b->err, STW_STATUS_BAD_INPUT, "deepspeed.persistence_threshold",
                         "found %llu, expected at most %llu: tensors that stay on the GPU must be "
                         "too small for a file of their own",
                         (unsigned long long)z->set.persistence_threshold,
                         (unsigned long long)z->job->model->tensors[t].numel - 1);
            return false;
        }
    }
    return true;
}

bool stw_swap_init(stw_zero *z) {
    stw_pool *pool = z->b->program->pool;
    z->swapped = stw_pool_array(pool, (size_t)z->n_sub_groups + 1, sizeof *z->swapped);
    z->left = stw_pool_array(pool, z->job->model->n_tensors, sizeof *z->left);
    z->swap_groups = stw_pool_array(pool, (size_t)z->n_sub_groups + 1, sizeof *z->swap_groups);
    z->host_sub_groups = z->n_sub_groups;
    if (z->swapped == NULL || z->left == NULL || z->swap_groups == NULL) {
        z->b->status = stw_fail(z->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) z->left[t] = STW_NO_EXTENT;
    for (uint32_t i = 0; i < z->n_sub_groups; i++) {
        z->largest_group = stw_max_u64(z->largest_group, z->sub_groups[i]);
        z->swapped[i] = swaps_optimizer(z) && is_swappable(z, stw_times(4, z->sub_groups[i]));
        if (z->swapped[i]) z->swapped_params = stw_plus(z->swapped_params, z->sub_groups[i]);
    }
    find_tensors(z);
    if (swaps_params(z)) {
        z->host_sub_groups = 0;
        find_host_shards(z);
    }
    return (!swaps_optimizer(z) || check_optimizer(z)) && (!swaps_params(z) || check_params(z));
}

/* ---- files ---- */

static void make_file(stw_zero *z, stw_component component, uint64_t bytes) {
    stw_alloc_at(z->b, component, STW_TIER_NVME, STW_OFFSET_EXTERNAL, bytes);
}

/* Between a file and a buffer on the host. */
static uint32_t file_copy(stw_zero *z, bool write, stw_component component, uint64_t bytes,
                          uint32_t block, uint32_t after) {
    const stw_place_at host = {STW_TIER_HOST, 0}, disk = {STW_TIER_NVME, 0};
    if (bytes == 0) return after;
    return stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                           .stream = write ? STW_STREAM_DISK_OUT : STW_STREAM_DISK,
                                           .component = component,
                                           .unit = block,
                                           .from = write ? host : disk,
                                           .to = write ? disk : host,
                                           .bytes = bytes,
                                           .after = {after, STW_OP_NONE}});
}

/* zero.Init writes every shard. Initialization reads those that stay in their files, for the master
 * weights, and writes them again (initialize_optimizer_states). */
void stw_swap_load_params(stw_zero *z) {
    uint64_t all = 0, again = 0;
    if (!swaps_params(z)) return;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        const uint64_t bytes = stw_swap_param_file(z, t);
        const bool twice = t == stw_zero_embedding(z); /* a head that is tied later */
        make_file(z, STW_COMPONENT_PARAMS, stw_times(twice ? 2 : 1, bytes));
        all = stw_plus(all, stw_times(twice ? 2 : 1, bytes));
        if (stw_job_trains(z->job, t) && stw_swap_reads_param(z, t)) again = stw_plus(again, bytes);
    }
    uint32_t done = file_copy(z, true, STW_COMPONENT_PARAMS, all, STW_OP_NONE, STW_OP_NONE);
    done = file_copy(z, false, STW_COMPONENT_PARAMS, again, STW_OP_NONE, done);
    (void)file_copy(z, true, STW_COMPONENT_PARAMS, again, STW_OP_NONE, done);
}

static uint64_t group_file(const stw_zero *z, uint32_t sub_group) {
    return stw_swap_aligned(z, stw_times(4, z->sub_groups[sub_group]));
}

static uint64_t all_files(const stw_zero *z) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < z->n_sub_groups; i++)
        if (z->swapped[i]) bytes = stw_plus(bytes, group_file(z, i));
    return bytes;
}

/* Master weights are written twice and read in between (_create_fp32_partitions,
 * initialize_optimizer_states). */
void stw_swap_load_masters(stw_zero *z) {
    const uint64_t bytes = all_files(z);
    make_file(z, STW_COMPONENT_MASTER, bytes);
    uint32_t done = file_copy(z, true, STW_COMPONENT_MASTER, bytes, STW_OP_NONE, STW_OP_NONE);
    done = file_copy(z, false, STW_COMPONENT_MASTER, bytes, STW_OP_NONE, done);
    (void)file_copy(z, true, STW_COMPONENT_MASTER, bytes, STW_OP_NONE, done);
}

/* ---- gradients ---- */

static bool is_group_swapped(const stw_zero *z, uint32_t tensor) {
    return stw_job_trains(z->job, tensor) && z->swapped[z->sub_group_of[tensor]];
}

/* The rest of a shard keeps all of it: it is a view. */
static bool is_left(const stw_zero *z, uint32_t tensor) {
    return grad_file(z, tensor) < stw_times(4, stw_zero_shard(z, tensor));
}

/* Room in the page-locked buffers, all of which hold gradients during backward. A full buffer is
 * written; the process waits where no other one is free. @return bytes to write */
static uint64_t make_room(const stw_zero *z, stw_swap_writer *w, uint64_t bytes, bool *waits) {
    uint64_t full = 0;
    *waits = false;
    if (w->begun > 0 &&
        stw_plus(w->filled, bytes) <= stw_swap_aligned(z, stw_times(4, z->largest_group))) {
        w->filled = stw_plus(w->filled, bytes);
        return 0;
    }
    full = w->filled;
    if (w->begun == z->set.optimizer_buffer_count) {
        *waits = true;
        w->begun = 0;
    }
    w->begun++;
    w->filled = bytes;
    return full;
}

/* Gradients leave the GPU in the last micro batch of a step (stage3.py, partition_grads). */
static uint32_t in_last_micro_batch(stw_zero *z, uint32_t op) {
    const uint64_t passes = z->job->run->batch.grad_accumulation;
    if (op != STW_OP_NONE && passes > 1) z->b->program->ops[op].once_in = (uint32_t)passes;
    return op;
}

bool stw_swap_write_grad(stw_zero *z, stw_swap_writer *w, uint32_t tensor, uint64_t gpu_offset,
                         uint32_t block) {
    const uint64_t bytes = grad_file(z, tensor);
    bool waits;
    if (bytes == 0) return false;
    const uint64_t full = make_room(z, w, bytes, &waits);
    if (full > 0)
        w->written = in_last_micro_batch(
            z, file_copy(z, true, STW_COMPONENT_GRADS, full, block, w->written));
    if (waits) w->waits_for = w->written;
    const uint32_t copied = stw_copy(
        z->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                               .stream = STW_STREAM_D2H,
                               .component = STW_COMPONENT_GRADS,
                               .unit = block,
                               .from = {STW_TIER_GPU, gpu_offset},
                               .to = {STW_TIER_HOST, 0},
                               .bytes = bytes,
                               .after = {stw_zero_last(z, STW_STREAM_COMPUTE), w->waits_for}});
    if (copied != STW_OP_NONE) z->b->program->ops[copied].pageable = true;
    w->written = in_last_micro_batch(z, copied);
    z->unwritten = w->filled;
    return !is_left(z, tensor);
}

void stw_swap_grads_appear(stw_zero *z) {
    stw_swap_writer w = {.written = STW_OP_NONE, .waits_for = STW_OP_NONE};
    bool waits;
    for (uint32_t t = z->job->model->n_tensors; t-- > 0;) {
        if (!is_group_swapped(z, t)) continue;
        if (grad_file(z, t) > 0) (void)make_room(z, &w, grad_file(z, t), &waits);
        if (is_left(z, t))
            z->left[t] = stw_alloc(z->b, STW_COMPONENT_GRADS, STW_TIER_GPU,
                                   stw_times(4, stw_zero_shard(z, t)));
    }
    z->unwritten = w.filled;
}

/* ---- the step ---- */

void stw_swap_step_begin(stw_zero *z, stw_swap_step *s, bool first) {
    *s = (stw_swap_step){first, UINT32_MAX, STW_OP_NONE, STW_OP_NONE};
    if (!first || z->swapped_params == 0) return;
    uint64_t grads = 0;
    for (int m = 0; m < 2; m++) make_file(z, moments[m], all_files(z));
    for (uint32_t i = 0; i < z->n_sub_groups; i++)
        if (z->swapped[i]) grads = stw_plus(grads, z->swap_groups[i].grad_files);
    make_file(z, STW_COMPONENT_GRADS, grads);
}

static uint32_t next_swapped(const stw_zero *z, uint32_t sub_group) {
    uint32_t i = sub_group + 1;
    while (i < z->n_sub_groups && !z->swapped[i]) i++;
    return i < z->n_sub_groups ? i : UINT32_MAX;
}

/* Each file by itself, at once. A first step has no moments to read. */
static uint32_t read_state(stw_zero *z, const stw_swap_step *s, uint32_t i, uint32_t after) {
    const uint64_t bytes = group_file(z, i);
    (void)file_copy(z, false, STW_COMPONENT_MASTER, bytes, STW_OP_NONE, after);
    for (int m = 0; m < 2 && !s->first; m++)
        (void)file_copy(z, false, moments[m], bytes, STW_OP_NONE, after);
    const uint64_t grads = stw_max_u64(1, z->swap_groups[i].grad_files); /* the last of the reads */
    return file_copy(z, false, STW_COMPONENT_GRADS, grads, STW_OP_NONE, after);
}

/* Gradients that are still in a buffer are written first (_flush_gradient_swapper). */
static uint32_t flush_grads(stw_zero *z) {
    if (z->unwritten == 0) return stw_zero_last(z, STW_STREAM_CPU);
    const uint64_t bytes = z->unwritten;
    z->unwritten = 0;
    return stw_zero_call(z, 1,
                         file_copy(z, true, STW_COMPONENT_GRADS, bytes, STW_OP_NONE, z->normed));
}

static void drop_left(stw_zero *z, uint32_t sub_group) {
    for (uint32_t t = z->swap_groups[sub_group].first; t < z->swap_groups[sub_group].end; t++) {
        if (z->left[t].bytes == 0 || z->sub_group_of[t] != sub_group) continue;
        stw_free(z->b, STW_COMPONENT_GRADS, STW_TIER_GPU, z->left[t]);
        z->left[t] = STW_NO_EXTENT;
    }
}

/* Adam makes pageable moments in its first step. */
static void make_moments(stw_zero *z, uint64_t params, bool alloc) {
    z->b->pageable = true;
    for (int m = 0; m < 2; m++)
        (alloc ? stw_alloc_at : stw_free_at)(z->b, moments[m], STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                                             stw_times(4, params));
    z->b->pageable = false;
}

uint32_t stw_swap_in(stw_zero *z, stw_swap_step *s, uint32_t i) {
    uint32_t at = flush_grads(z);
    uint32_t read = s->ahead == i ? s->read_by : read_state(z, s, i, at);
    at = stw_zero_call(z, 1, read);
    const uint32_t next = z->set.pipeline_read ? next_swapped(z, i) : UINT32_MAX;
    s->ahead = next;
    if (next != UINT32_MAX) s->read_by = read_state(z, s, next, at);
    const uint64_t left = z->swap_groups[i].grad_rest;
    if (left > 0) {
        const uint32_t down = stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                                              .stream = STW_STREAM_D2H,
                                                              .component = STW_COMPONENT_GRADS,
                                                              .unit = STW_OP_NONE,
                                                              .from = {STW_TIER_GPU, 0},
                                                              .to = {STW_TIER_HOST, 0},
                                                              .bytes = left,
                                                              .after = {at, STW_OP_NONE}});
        at = stw_zero_call(z, 1, down);
    }
    if (s->first) make_moments(z, z->sub_groups[i], true);
    return at;
}

uint32_t stw_swap_out(stw_zero *z, stw_swap_step *s, uint32_t i, uint32_t after) {
    const uint64_t bytes = group_file(z, i), params = z->sub_groups[i];
    if (s->writing != STW_OP_NONE) after = stw_zero_call(z, 1, s->writing);
    s->writing = STW_OP_NONE;
    /* new moments are copied into buffers */
    if (s->first) after = stw_zero_pass(z, STW_TIER_HOST, params, 8 + 8, after);
    uint32_t written = file_copy(z, true, STW_COMPONENT_MASTER, bytes, STW_OP_NONE, after);
    for (int m = 0; m < 2; m++) written = file_copy(z, true, moments[m], bytes, STW_OP_NONE, after);
    drop_left(z, i);
    const bool pipelined = z->set.pipeline_read || z->set.pipeline_write;
    if (s->first && !pipelined) make_moments(z, params, false);
    if (z->set.pipeline_write && next_swapped(z, i) != UINT32_MAX) {
        s->writing = written;
        return stw_zero_last(z, STW_STREAM_CPU);
    }
    return stw_zero_call(z, 1, written);
}

/* PipelinedOptimizerSwapper lets go of the new moments only where a later step reads them into
 * buffers. They are counted in the first step, in which all of them are there. */
void stw_swap_step_end(stw_zero *z, const stw_swap_step *s) {
    if (!s->first || !(z->set.pipeline_read || z->set.pipeline_write)) return;
    for (uint32_t i = 0; i < z->n_sub_groups; i++)
        if (z->swapped[i]) make_moments(z, z->sub_groups[i], false);
}

uint32_t stw_swap_write_params(stw_zero *z, uint32_t sub_group, uint32_t after) {
    const uint64_t bytes = z->swap_groups[sub_group].param_files;
    if (sub_group < z->host_sub_groups) return after;
    after = stw_zero_call(z, z->swap_groups[sub_group].in_memory, after); /* a copy of each */
    if (bytes == 0) return after;
    return stw_zero_call(z, 1, file_copy(z, true, STW_COMPONENT_PARAMS, bytes, STW_OP_NONE, after));
}
