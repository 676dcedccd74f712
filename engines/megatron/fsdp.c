/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core 0.16.1, distributed/fsdp/src/megatron_fsdp):
 * - param_and_grad_buffer.py, _get_parameter_groups: parameters of a unit share a bucket, those of
 *   experts another one. Units are the transformer layers (mcore_fsdp_adapter.py), and only with
 *   optim_grads_params; all that is in no unit is one list, cut where a bucket has bucket_size
 *   elements. bucket_size is 40 M elements or 1 M per rank, and none without overlap_grad_reduce
 *   (training.py, get_model).
 * - build_data_parallel_buffer_index: the matrices of a bucket begin at multiples of the common
 *   multiple of their rows' lengths; small vectors fill the gaps; the bucket ends at a multiple of
 *   that times the ranks.
 * - _init_each_parameter_group_buffers: 16-bit weights, fp32 main weights (without the
 *   precision-aware optimizer) and main gradients of each bucket, each cut or whole by strategy.
 *   Bucket by bucket: weights are allocated, a cut one is gathered into a bucket of its own for a
 *   moment, the model's own copies go parameter by parameter. Gradients are allocated at the end.
 * - megatron_fsdp.py, _init_fsdp_param_and_grad_buffer: suggested_communication_unit_size, 1e9
 *   elements at least where it is not given; half of it is gathered ahead.
 * - FixedPoolAllocator: the largest set of units with equal buckets shares two buffers; with
 *   megatron_fsdp_max_pool_double_buffer (after 0.16.1) all units do. Other buckets come and go, or
 *   stay once they are there (fsdp_db_use_persist_buf_on_alloc_fail, after 0.16.1). */
#include "engines/megatron/fsdp.h"

#include <string.h>

#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/vision.h"

#define BUCKET_PARAMS 40000000ull
#define BUCKET_PARAMS_PER_RANK 1000000ull
#define COMMUNICATION_UNIT 1000000000ull

/* ---- length of a bucket ---- */

static uint64_t common_multiple(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    while (y > 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x > 0 ? stw_times(a / x, b) : b;
}

/* Parameters of one bucket: longest rows first. */
typedef struct members {
    uint32_t n;
    stw_megatron_param *list;
    bool *placed;
} members;

static void sort_by_row(members *m) {
    for (uint32_t i = 1; i < m->n; i++) {
        stw_megatron_param p = m->list[i];
        uint32_t k = i;
        for (; k > 0 && m->list[k - 1].row < p.row; k--) m->list[k] = m->list[k - 1];
        m->list[k] = p;
    }
}

static uint64_t chunk_of(const members *m) {
    uint64_t chunk = stw_max_u64(m->list[0].row, 1);
    for (uint32_t i = 0; i < m->n; i++) {
        const uint64_t row = stw_max_u64(m->list[i].row, 1), numel = m->list[i].numel;
        if (row == chunk || (chunk % row == 0 && numel % chunk == 0) || numel < chunk) continue;
        chunk = common_multiple(chunk, row);
    }
    return chunk;
}

/* Two matrices that leave remainders meet in one chunk where both fit; vectors fill what is left.
 */
static uint64_t length_of(members *m) {
    const uint64_t chunk = chunk_of(m);
    uint64_t length = 0;
    memset(m->placed, 0, m->n * sizeof *m->placed);
    for (uint32_t i = 0; i < m->n; i++) {
        const uint64_t numel = m->list[i].numel, remain = numel % chunk;
        if (m->placed[i] || numel < chunk) continue;
        m->placed[i] = true;
        length = stw_plus(length, stw_round_up_u64(numel, chunk));
        uint64_t space = remain > 0 ? chunk - remain : 0;
        for (uint32_t k = i + 1; k < m->n && remain > 0; k++) {
            const uint64_t other = m->list[k].numel % chunk;
            if (m->placed[k] || m->list[k].numel < chunk || other == 0 || other > space) continue;
            m->placed[k] = true;
            space -= other;
            length = stw_plus(length, m->list[k].numel - other);
            break;
        }
        for (uint32_t k = 0; k < m->n && space > 0; k++) {
            if (m->placed[k] || m->list[k].numel >= chunk || m->list[k].numel > space) continue;
            m->placed[k] = true;
            space -= m->list[k].numel;
        }
    }
    for (uint32_t k = 0; k < m->n; k++)
        if (!m->placed[k]) length = stw_plus(length, m->list[k].numel);
    return length;
}

/* ---- buckets ---- */

typedef struct making {
    const stw_job *job;
    const stw_megatron_params *params;
    stw_megatron_params *shard;
    stw_megatron_fsdp *out;
    members members;
    uint64_t full; /* elements at which a bucket of no unit ends */
} making;

/* A layer of the model is a unit; of a tower only where its layers are Megatron Core's. */
static uint32_t unit_of(const stw_job *job, uint32_t block) {
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    if (!stw_megatron_cuts_params(job->run) || !f->transformer) return STW_MEGATRON_NO_UNIT;
    if (f->vision && !stw_megatron_cuts_vision(job)) return STW_MEGATRON_NO_UNIT;
    return block;
}

/* The first rank of the group holds the first elements. */
static void add_shard(making *m, uint64_t length) {
    uint64_t left = length;
    for (uint32_t i = 0; i < m->members.n && left > 0; i++) {
        stw_megatron_param p = m->members.list[i];
        p.numel = stw_min_u64(p.numel, left);
        left -= p.numel;
        m->shard->list[m->shard->n++] = p;
        *(p.expert ? &m->shard->expert : &m->shard->dense) += p.numel;
    }
}

static void end_bucket(making *m, uint32_t unit, bool expert) {
    const uint32_t ways = expert ? m->job->expert_group : m->job->group;
    stw_megatron_bucket b = {.ways = ways, .unit = unit, .expert = expert, .first = UINT32_MAX};
    if (m->members.n == 0) return;
    for (uint32_t i = 0; i < m->members.n; i++) {
        const uint32_t block = m->members.list[i].block;
        if (block < b.first) b.first = block;
        if (block > b.last) b.last = block;
    }
    sort_by_row(&m->members);
    b.elements = stw_round_up_u64(length_of(&m->members), stw_times(ways, chunk_of(&m->members)));
    add_shard(m, b.elements / ways);
    m->out->buckets[m->out->n++] = b;
    m->members.n = 0;
}

/* Buckets of the parameters of one unit, or of none. */
static void add_group(making *m, uint32_t unit, bool expert) {
    uint64_t elements = 0;
    for (uint32_t i = 0; i < m->params->n; i++) {
        const stw_megatron_param *p = &m->params->list[i];
        if (p->expert != expert || unit_of(m->job, p->block) != unit) continue;
        m->members.list[m->members.n++] = *p;
        elements = stw_plus(elements, p->numel);
        if (unit != STW_MEGATRON_NO_UNIT || elements < m->full) continue;
        end_bucket(m, unit, expert);
        elements = 0;
    }
    end_bucket(m, unit, expert);
}

static void add_buckets(making *m) {
    add_group(m, STW_MEGATRON_NO_UNIT, false);
    add_group(m, STW_MEGATRON_NO_UNIT, true);
    for (uint32_t b = 0; b < m->job->model->n_blocks; b++) {
        if (unit_of(m->job, b) == STW_MEGATRON_NO_UNIT) continue;
        add_group(m, b, false);
        add_group(m, b, true);
    }
}

/* ---- units ---- */

static bool are_equal(const stw_megatron_fsdp *fsdp, uint32_t a, uint32_t b) {
    uint64_t of[2][2] = {{0}};
    for (uint32_t i = 0; i < fsdp->n; i++) {
        const stw_megatron_bucket *bucket = &fsdp->buckets[i];
        if (bucket->unit == a) of[0][bucket->expert] = bucket->elements;
        if (bucket->unit == b) of[1][bucket->expert] = bucket->elements;
    }
    return memcmp(of[0], of[1], sizeof of[0]) == 0;
}

/* Two buffers for the largest bucket of each kind: all units pass through them. */
static void pool_all(stw_megatron_fsdp *fsdp) {
    uint64_t most[2] = {0};
    for (uint32_t i = 0; i < fsdp->n; i++) {
        stw_megatron_bucket *b = &fsdp->buckets[i];
        b->pooled = b->unit != STW_MEGATRON_NO_UNIT;
        if (b->pooled) most[b->expert] = stw_max_u64(most[b->expert], b->elements);
    }
    fsdp->pool = stw_plus(most[0], most[1]);
}

/* The largest set of units with equal buckets. */
static void pool_equal(stw_megatron_fsdp *fsdp) {
    uint32_t best = STW_MEGATRON_NO_UNIT, most = 0;
    for (uint32_t i = 0; i < fsdp->n; i++) {
        const stw_megatron_bucket *b = &fsdp->buckets[i];
        uint32_t equal = 0;
        if (b->unit == STW_MEGATRON_NO_UNIT || b->expert) continue;
        for (uint32_t k = 0; k < fsdp->n; k++)
            equal += !fsdp->buckets[k].expert && fsdp->buckets[k].unit != STW_MEGATRON_NO_UNIT &&
                     are_equal(fsdp, fsdp->buckets[k].unit, b->unit);
        if (equal <= most) continue;
        most = equal;
        best = b->unit;
    }
    for (uint32_t i = 0; i < fsdp->n && most > 0; i++) {
        stw_megatron_bucket *b = &fsdp->buckets[i];
        b->pooled = b->unit != STW_MEGATRON_NO_UNIT && are_equal(fsdp, b->unit, best);
        if (b->unit == best) fsdp->pool = stw_plus(fsdp->pool, b->elements);
    }
}

static void choose_pool(const stw_job *job, stw_megatron_fsdp *fsdp) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    if (!s.fsdp_double_buffer) return;
    if (s.fsdp_max_pool)
        pool_all(fsdp);
    else
        pool_equal(fsdp);
    for (uint32_t i = 0; i < fsdp->n && s.fsdp_persistent; i++) {
        stw_megatron_bucket *b = &fsdp->buckets[i];
        b->kept = !b->pooled && b->ways > 1;
        if (b->kept) fsdp->kept = stw_plus(fsdp->kept, b->elements);
    }
}

/* Twice the average unit, 1e9 elements at least. */
static void choose_communication(const making *m) {
    const stw_megatron_settings s = stw_megatron_settings_of(m->job->run);
    uint64_t elements = 0, units = 0, size = s.fsdp_communication_unit;
    for (uint32_t b = 0; b < m->job->model->n_blocks; b++)
        units += unit_of(m->job, b) != STW_MEGATRON_NO_UNIT;
    for (uint32_t i = 0; i < m->params->n; i++)
        if (unit_of(m->job, m->params->list[i].block) != STW_MEGATRON_NO_UNIT)
            elements = stw_plus(elements, m->params->list[i].numel);
    if (size == 0) size = units > 0 ? stw_times(2, elements / units) : COMMUNICATION_UNIT;
    if (s.fsdp_communication_unit == 0) size = stw_max_u64(size, COMMUNICATION_UNIT);
    m->out->reduce_capacity = size;
    m->out->prefetch = size / 2;
}

stw_status stw_megatron_fsdp_of(const stw_job *job, stw_megatron_params *params, stw_pool *pool,
                                stw_megatron_params *shard, stw_megatron_fsdp *out,
                                stw_error *err) {
    *out = (stw_megatron_fsdp){0};
    if (!stw_megatron_is_fsdp(job->run)) return STW_STATUS_OK;
    *shard = (stw_megatron_params){.list = stw_pool_array(pool, params->n, sizeof *shard->list)};
    out->buckets = stw_pool_array(pool, params->n, sizeof *out->buckets);
    making m = {.job = job,
                .params = params,
                .shard = shard,
                .out = out,
                .members = {0, stw_pool_array(pool, params->n, sizeof *m.members.list),
                            stw_pool_array(pool, params->n, sizeof(bool))},
                .full = UINT64_MAX};
    if ((shard->list == NULL || out->buckets == NULL || m.members.list == NULL ||
         m.members.placed == NULL) &&
        params->n > 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "buckets of a rank", "out of memory");
    if (stw_megatron_settings_of(job->run).overlap_grad_reduce)
        m.full = stw_max_u64(BUCKET_PARAMS, stw_times(BUCKET_PARAMS_PER_RANK, job->group));
    add_buckets(&m);
    choose_pool(job, out);
    choose_communication(&m);
    params->dense_padded = params->expert_padded = 0;
    for (uint32_t i = 0; i < out->n; i++) {
        const stw_megatron_bucket *b = &out->buckets[i];
        uint64_t *padded = b->expert ? &params->expert_padded : &params->dense_padded;
        *padded = stw_plus(*padded, b->elements);
    }
    return STW_STATUS_OK;
}

uint64_t stw_megatron_fsdp_init_bytes(const stw_job *job, const stw_megatron_params *params,
                                      const stw_megatron_fsdp *fsdp) {
    const uint64_t half = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    const bool main = !stw_megatron_settings_of(job->run).precision_aware;
    uint64_t model = stw_plus(params->dense, params->expert), made = 0, most = 0;
    for (uint32_t i = 0; i < fsdp->n; i++) {
        const stw_megatron_bucket *b = &fsdp->buckets[i];
        const bool cut = stw_megatron_cuts_params(job->run) && b->ways > 1;
        made = stw_plus(made, stw_times(half, cut ? b->elements / b->ways : b->elements));
        if (main) made = stw_plus(made, stw_times(4, b->elements / b->ways));
        uint64_t now =
            STW_SUM(stw_times(half, model), made, stw_times(half, cut ? b->elements : 0));
        most = stw_max_u64(most, now);
        model -= stw_min_u64(model, b->elements);
    }
    return most;
}
