/* SPDX-License-Identifier: Apache-2.0 */
/* megatron/core/optimizer/layer_wise_optimizer.py at d98e8a6, _compute_per_buffer_param_layout:
 * matrices fill buckets in the order of the backward; in each bucket the costliest goes first, to
 * the rank with the least work of those that stay below 1.3 times their share of the elements. All
 * ranks' parts of a bucket are as long as the longest. */
#include "engines/megatron/layer_wise.h"

#include <stdlib.h>
#include <string.h>

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/megatron/megatron.h"

enum { PARAM_STEP = 64, BUCKET_STEP = 128 };
/* Of a bucket's least size: of so many elements of its largest matrix for each rank. */
static const double PADDING_FLOOR = 0.9;
static const double MOST_OF_SHARE = 1.3;

bool stw_megatron_deals(const stw_job *job) {
    return stw_optimizer_divides(job->run) &&
           stw_megatron_settings_of(job->run).distributed_optimizer;
}

typedef struct dealt {
    stw_megatron_param *param;
    uint64_t cost;
    uint32_t order;
} dealt;

typedef struct deal {
    uint32_t ranks, n; /* n: matrices of the bucket */
    dealt *bucket;
    uint64_t *cursors, *estimates; /* [ranks] of the bucket: ends of parts, and a guess of them */
    uint64_t *costs, *elements;    /* [ranks] of all buckets of the chunk; of all chunks */
    uint64_t in_bucket, largest;   /* elements */
    uint64_t padded;
} deal;

/* Newton-Schulz of a matrix: its longer side times the square of the other. */
static uint64_t cost_of(const stw_megatron_param *p) {
    const uint64_t columns = stw_max_u64(p->row, 1), rows = p->numel / columns;
    return stw_times(p->numel, stw_min_u64(rows, columns));
}

static int costliest_first(const void *a, const void *b) {
    const dealt *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static uint32_t least_of(const uint64_t *values, uint32_t n) {
    uint32_t least = 0;
    for (uint32_t i = 1; i < n; i++)
        if (values[i] < values[least]) least = i;
    return least;
}

static uint64_t most_of(const uint64_t *values, uint32_t n) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = stw_max_u64(most, values[i]);
    return most;
}

/* Parts of a bucket end at multiples of 64 elements, all of it at one of 128. */
static uint64_t part_step(uint32_t ranks) { return ranks % 2 == 0 ? PARAM_STEP : BUCKET_STEP; }

static uint64_t placed(uint64_t cursor, uint64_t numel) {
    return stw_plus(stw_round_up_u64(cursor, PARAM_STEP), numel);
}

static uint32_t rank_for(const deal *d, uint64_t numel) {
    const double most = (double)d->in_bucket / d->ranks * MOST_OF_SHARE;
    uint32_t best = UINT32_MAX;
    for (uint32_t r = 0; r < d->ranks; r++)
        if ((double)placed(d->cursors[r], numel) <= most &&
            (best == UINT32_MAX || d->costs[r] < d->costs[best]))
            best = r;
    return best < d->ranks ? best : least_of(d->cursors, d->ranks);
}

static void end_bucket(deal *d) {
    if (d->n == 0) return;
    qsort(d->bucket, d->n, sizeof *d->bucket, costliest_first);
    memset(d->cursors, 0, d->ranks * sizeof *d->cursors);
    memset(d->estimates, 0, d->ranks * sizeof *d->estimates);
    for (uint32_t i = 0; i < d->n; i++) {
        stw_megatron_param *p = d->bucket[i].param;
        const uint32_t r = rank_for(d, p->numel);
        p->owner = r;
        d->cursors[r] = placed(d->cursors[r], p->numel);
        d->costs[r] = stw_plus(d->costs[r], d->bucket[i].cost);
        d->elements[r] = stw_plus(d->elements[r], p->numel);
    }
    const uint64_t part = stw_round_up_u64(most_of(d->cursors, d->ranks), part_step(d->ranks));
    d->padded = stw_plus(d->padded, stw_times(part, d->ranks));
    d->n = 0;
    d->in_bucket = d->largest = 0;
}

/* Would it make the bucket longer, by a guess that takes matrices as they come? */
static bool lengthens(const deal *d, uint64_t numel) {
    const uint64_t end = stw_round_up_u64(most_of(d->estimates, d->ranks), part_step(d->ranks));
    return placed(d->estimates[least_of(d->estimates, d->ranks)], numel) > end;
}

static void add(deal *d, stw_megatron_param *p, uint64_t full) {
    const double least = PADDING_FLOOR * (double)stw_times(d->largest, d->ranks);
    const bool is_full = d->in_bucket >= full && d->in_bucket >= (uint64_t)least;
    if (d->n > 0 && is_full && lengthens(d, p->numel)) end_bucket(d);
    uint64_t *guess = &d->estimates[least_of(d->estimates, d->ranks)];
    *guess = placed(*guess, p->numel);
    d->bucket[d->n] = (dealt){p, cost_of(p), d->n};
    d->n++;
    d->in_bucket = stw_plus(d->in_bucket, p->numel);
    d->largest = stw_max_u64(d->largest, p->numel);
}

static void deal_all(const stw_job *job, stw_megatron_params *params, bool expert, uint64_t full,
                     deal *d) {
    for (uint32_t chunk = 0; chunk < job->run->parallel.vpp; chunk++) {
        memset(d->costs, 0, d->ranks * sizeof *d->costs);
        for (uint32_t i = params->n; i-- > 0;) {
            stw_megatron_param *p = &params->list[i];
            if (p->matrix && p->expert == expert && p->chunk == chunk) add(d, p, full);
        }
        end_bucket(d);
    }
    /* shard_params: one data-parallel rank keeps all, the matrices of experts, too */
    const bool all = job->group == 1;
    params->dealt_padded[expert] = d->padded;
    for (uint32_t r = 0; r < d->ranks; r++) {
        uint64_t *share = &params->dealt_share[expert];
        if (all) {
            *share = stw_plus(*share, d->elements[r]);
        } else if (d->elements[r] > *share) {
            *share = d->elements[r];
            params->dealt_rank[expert] = r;
        }
    }
    for (uint32_t i = 0; i < params->n && all; i++)
        if (params->list[i].matrix && params->list[i].expert == expert) params->list[i].owner = 0;
}

stw_status stw_megatron_deal(const stw_job *job, stw_megatron_params *params, bool expert,
                             uint64_t full, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    deal d = {.ranks = expert ? job->expert_group : job->group};
    if (!stw_megatron_deals(job)) return STW_STATUS_OK;
    for (uint32_t i = 0; i < params->n; i++)
        if (params->list[i].expert && !params->list[i].matrix)
            return stw_run_spec_refuse_value(job->run, NULL, err, "megatron.distributed_optimizer",
                                             "false: biases of experts are refused beside "
                                             "matrices that are dealt to ranks");
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) {
        d.bucket = stw_pool_array(pool, params->n, sizeof *d.bucket);
        d.cursors = stw_pool_array(pool, d.ranks, sizeof *d.cursors);
        d.estimates = stw_pool_array(pool, d.ranks, sizeof *d.estimates);
        d.costs = stw_pool_array(pool, d.ranks, sizeof *d.costs);
        d.elements = stw_pool_array(pool, d.ranks, sizeof *d.elements);
    }
    if (d.bucket == NULL || d.cursors == NULL || d.estimates == NULL || d.costs == NULL ||
        d.elements == NULL)
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "parameters of a rank", "out of memory");
    else
        deal_all(job, params, expert, full, &d);
    stw_pool_free(pool);
    return status;
}
