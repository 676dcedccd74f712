/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/builder.h"

#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"

void stw_builder_init(stw_builder *b, const stw_job *job, const stw_decisions *decisions,
                      const stw_layout *layout, stw_program *program, stw_error *err) {
    memset(b, 0, sizeof *b);
    b->job = job;
    b->decisions = decisions;
    b->layout = layout;
    b->program = program;
    b->err = err;
    b->shard_grads = stw_pool_array(program->pool, job->model->n_blocks, sizeof(stw_extent));
    if (b->shard_grads == NULL)
        b->status = stw_fail(err, STW_STATUS_NO_MEMORY, "program", "out of memory");
    if (program->with_tensors) {
        b->shard_tensors = program->n_tensors;
        program->n_tensors += job->model->n_blocks + 2 + job->model->n_tensors;
    }
}

stw_status stw_builder_finish(stw_builder *b) { return b->status; }

static void no_memory(stw_builder *b) {
    if (b->status == STW_STATUS_OK)
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program",
                             "out of memory after %u operations", b->program->n_ops);
}

void stw_begin_movement(stw_builder *b, stw_movement like) {
    stw_program *p = b->program;
    if (b->status != STW_STATUS_OK) return;
    b->skipping = !stw_program_is_full(p, like.phase);
    stw_movement *list = stw_pool_grow(p->pool, p->movements, p->n_movements,
                                       (size_t)p->n_movements + 1, &p->movement_room, sizeof *list);
    if (list == NULL) {
        no_memory(b);
        return;
    }
    p->movements = list;
    like.first_op = p->n_ops;
    like.n_ops = 0;
    like.executable = like.by_stowage && like.executable;
    if (like.role == NULL) like.role = "trainer";
    p->movements[p->n_movements++] = like;
}

void stw_end_movement(stw_builder *b) {
    if (b->status != STW_STATUS_OK) return;
    stw_movement *movement = &b->program->movements[b->program->n_movements - 1];
    movement->n_ops = b->program->n_ops - movement->first_op;
}

/* Is there time and room for one more operation? */
static bool may_append(stw_builder *b) {
    const uint32_t n = b->program->n_ops;
    if (b->status == STW_STATUS_OK)
        b->status = stw_deadline_check_step(n, "building programs", b->err);
    if (b->status == STW_STATUS_OK && n >= STW_MAX_OPS)
        b->status = stw_fail(b->err, STW_STATUS_BAD_INPUT, "program",
                             "found more than %u operations in the program of a rank, expected at "
                             "most so many: use more ranks, larger buckets or a smaller model",
                             STW_MAX_OPS);
    return b->status == STW_STATUS_OK;
}

uint32_t stw_append(stw_builder *b, stw_op op) {
    stw_program *p = b->program;
    if (!may_append(b)) return STW_OP_NONE;
    if (b->skipping && op.kind != STW_OP_ALLOC && op.kind != STW_OP_FREE) return STW_OP_NONE;
    stw_op *ops =
        stw_pool_regrow(p->pool, p->ops, p->n_ops, (size_t)p->n_ops + 1, &b->capacity, sizeof *ops);
    if (ops == NULL || p->n_ops == STW_OP_NONE - 1) {
        no_memory(b);
        return STW_OP_NONE;
    }
    p->ops = ops;
    for (int i = 0; i < 2; i++)
        if (op.after[i] != STW_OP_NONE && ops[op.after[i]].stream == op.stream)
            op.after[i] = STW_OP_NONE;
    if (op.after[0] == STW_OP_NONE) {
        op.after[0] = op.after[1];
        op.after[1] = STW_OP_NONE;
    }
    if (op.to == STW_TIER_HOST && stw_op_is(&op, STW_OP_CLASS_MEMORY)) op.from_what = b->from_what;
    ops[p->n_ops] = op;
    return p->n_ops++;
}

static stw_op bytes_op(stw_op_kind kind, stw_component component, stw_tier tier, uint64_t offset,
                       uint64_t bytes, bool pageable) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = component;
    op.from = op.to = tier;
    op.offset_bytes = offset;
    op.bytes = bytes;
    op.pageable = pageable && tier == STW_TIER_HOST;
    return op;
}

void stw_alloc_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                  uint64_t bytes) {
    if (bytes > 0)
        (void)stw_append(b, bytes_op(STW_OP_ALLOC, component, tier, offset, bytes, b->pageable));
}

void stw_free_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                 uint64_t bytes) {
    if (bytes > 0)
        (void)stw_append(b, bytes_op(STW_OP_FREE, component, tier, offset, bytes, b->pageable));
}

/* Where the next bytes may begin after the first `at` of the live ones. */
static uint64_t end_of(const stw_builder *b, stw_tier tier, size_t at) {
    const stw_extent *live = b->transient[tier].live;
    if (at == 0) return b->layout->persistent_bytes[tier];
    return stw_round_up_u64(live[at - 1].offset + live[at - 1].bytes, STW_ALIGN_BYTES);
}

stw_extent stw_alloc(stw_builder *b, stw_component component, stw_tier tier, uint64_t bytes) {
    stw_extent extent = {0, bytes, STW_OP_NONE, b->pageable};
    if (bytes == 0 || b->status != STW_STATUS_OK) return extent;
    size_t n = b->transient[tier].n, at = b->transient[tier].packed;
    stw_extent *live = stw_pool_grow(b->program->pool, b->transient[tier].live, n, n + 1,
                                     &b->transient[tier].capacity, sizeof *live);
    if (live == NULL) {
        no_memory(b);
        return extent;
    }
    b->transient[tier].live = live;
    uint64_t room = stw_round_up_u64(bytes, STW_ALIGN_BYTES);
    while (at < n && live[at].offset < end_of(b, tier, at) + room) at++;
    extent.offset = end_of(b, tier, at);
    memmove(&live[at + 1], &live[at], (n - at) * sizeof *live);
    stw_op op = bytes_op(STW_OP_ALLOC, component, tier, extent.offset, bytes, b->pageable);
    op.pool = b->pool;
    extent.alloc = stw_append(b, op);
    live[at] = extent;
    b->transient[tier].n = ++n;
    size_t *packed = &b->transient[tier].packed;
    while (*packed < n && live[*packed].offset == end_of(b, tier, *packed)) ++*packed;
    return extent;
}

void stw_free_after(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent,
                    uint32_t after) {
    if (extent.bytes == 0 || b->status != STW_STATUS_OK) return;
    stw_extent *live = b->transient[tier].live;
    size_t n = b->transient[tier].n, at = 0;
    for (size_t end = n; at < end;) { /* by offset, ascending */
        size_t middle = at + (end - at) / 2;
        if (live[middle].offset < extent.offset)
            at = middle + 1;
        else
            end = middle;
    }
    if (at == n || live[at].offset != extent.offset) {
        b->status = stw_fail(b->err, STW_STATUS_BUG, "program", "%s freed that was not live",
                             stw_component_name(component));
        return;
    }
    memmove(&live[at], &live[at + 1], (n - at - 1) * sizeof *live);
    b->transient[tier].n--;
    if (b->transient[tier].packed > at) b->transient[tier].packed = at;
    stw_op op =
        bytes_op(STW_OP_FREE, component, tier, extent.offset, extent.bytes, extent.pageable);
    op.after[0] = after;
    (void)stw_append(b, op);
}

void stw_free(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent) {
    stw_free_after(b, component, tier, extent, STW_OP_NONE);
}

uint32_t stw_copy(stw_builder *b, const stw_transport *copy) {
    stw_op_kind kind = copy->from.tier == STW_TIER_NVME ? STW_OP_NVME_READ
                       : copy->to.tier == STW_TIER_NVME ? STW_OP_NVME_WRITE
                                                        : copy->kind;
    stw_op op = stw_op_make(kind, copy->stream, copy->unit);
    op.component = copy->component;
    op.from = copy->from.tier;
    op.to = copy->to.tier;
    op.from_offset_bytes = copy->from.offset;
    op.offset_bytes = copy->to.offset;
    op.bytes = copy->bytes;
    op.ranks = copy->ranks;
    op.after[0] = copy->after[0];
    op.after[1] = copy->after[1];
    return stw_append(b, op);
}

/* Writes are on the commit's stream or made by MASTER operations, of which it awaits the last. */
void stw_build_commit(stw_builder *b) {
    if (b->status != STW_STATUS_OK || b->skipping) return;
    if (b->layout->persistent_bytes[STW_TIER_NVME] == 0) return;
    uint32_t first = b->program->movements[b->program->n_movements - 1].first_op;
    stw_op commit = stw_op_make(STW_OP_COMMIT, STW_STREAM_DISK_OUT, STW_OP_NONE);
    commit.from = STW_TIER_HOST;
    commit.to = STW_TIER_NVME;
    for (uint32_t i = first; i < b->program->n_ops; i++)
        if (b->program->ops[i].kind == STW_OP_MASTER) commit.after[0] = i;
    (void)stw_append(b, commit);
}

/* torch 2.11 with a CUDA context, imported modules and NCCL, before it holds a tensor. */
#define TORCH_PROCESS_BYTES 1503238553ull /* 1.4 GiB */

/* A calibration measures Stowage's own process, which is smaller than a framework's. */
uint64_t stw_build_process_base(const stw_job *job, const stw_cluster *cluster, const char **key) {
    uint64_t bytes = cluster->host.process_bytes;
    *key = "node.host.process";
    if (job->world > 1) bytes = stw_plus(bytes, cluster->host.process_comm_bytes);
    if (job->engine->spec.own_process) return bytes;
    if (cluster->torch.process_bytes > 0) {
        *key = "node.torch.process";
        return cluster->torch.process_bytes;
    }
    if (!cluster->calibration.measured || bytes >= TORCH_PROCESS_BYTES) return bytes;
    *key = "a default";
    return TORCH_PROCESS_BYTES;
}

static uint64_t process_bytes_of(const stw_job *job) {
    const stw_cluster *cluster = job->cluster;
    const char *key;
    uint64_t bytes = stw_build_process_base(job, cluster, &key);
    if (job->engine->spec.own_process) return bytes;
    /* what a node has once is shared out over its ranks, whose sum is the node's */
    return stw_plus(bytes, cluster->torch.launcher_bytes / stw_max_u64(job->ranks_per_node, 1));
}

void stw_build_externals(stw_builder *b) {
    const stw_cluster *cluster = b->job->cluster;
    stw_alloc_at(b, STW_COMPONENT_CONTEXT, STW_TIER_GPU, STW_OFFSET_EXTERNAL,
                 cluster->gpu.context_bytes);
    if (b->job->world > 1)
        stw_alloc_at(b, STW_COMPONENT_COMM, STW_TIER_GPU, STW_OFFSET_EXTERNAL,
                     cluster->gpu.comm_bytes);
    uint64_t process_bytes = process_bytes_of(b->job);
    const char *const from_what = b->from_what;
    b->pageable = true;
    if (!b->job->engine->spec.own_process && cluster->torch.process_bytes > 0)
        b->from_what = cluster->torch.launcher_bytes > 0 ? "node.torch.process, node.torch.launcher"
                                                         : "node.torch.process";
    stw_alloc_at(b, STW_COMPONENT_PROCESS, STW_TIER_HOST, STW_OFFSET_EXTERNAL, process_bytes);
    b->from_what = from_what;
    /* what a node has once is shared out over its ranks, whose sum is the node's */
    const uint64_t ranks = stw_max_u64(b->job->ranks_per_node, 1);
    stw_alloc_at(b, STW_COMPONENT_OBJECT_STORE, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 cluster->host.object_store_bytes / ranks);
    stw_alloc_at(b, STW_COMPONENT_DATA_LOADERS, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 cluster->host.data_loaders_bytes / ranks);
    b->pageable = false;
}

void stw_build_regions(stw_builder *b, bool alloc, bool (*which)(const stw_region *region)) {
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        if (!which(r)) continue;
        if (alloc)
            stw_alloc_at(b, r->component, r->tier, r->offset_bytes, r->bytes);
        else
            stw_free_at(b, r->component, r->tier, r->offset_bytes, r->bytes);
    }
}
