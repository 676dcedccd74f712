/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/sizes.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/checked.h"

/* Bytes per parameter of all that a rank can hold of a model at once: state with two copies on
 * NVMe, gathered parameters and gradients, weights that are loaded. Above any such sum. */
#define BYTES_PER_PARAM 128

static uint64_t ranks_of_node(const stw_cluster *cluster) {
    return cluster->gpus > 0 ? cluster->gpus : 1;
}

stw_status stw_check_model_sizes(const stw_model *model, const stw_cluster *cluster,
                                 stw_error *err) {
    const uint64_t ranks = ranks_of_node(cluster);
    uint64_t state = stw_times(model->params, BYTES_PER_PARAM);
    uint64_t stored = stw_times(model->stored_bytes, 2);
    uint64_t process = STW_SUM(cluster->host.process_bytes, cluster->torch.process_bytes,
                               cluster->host.process_comm_bytes, cluster->torch.launcher_bytes);
    if (stw_times(ranks, stw_plus(state, stored)) > STW_MOST_NODE_BYTES)
        return stw_fail(
            err, STW_STATUS_BAD_INPUT, model->source,
            "found %" PRIu64 " parameters, %" PRIu64 " bytes as stored; expected at most %" PRIu64
            " parameters, so that the sizes of a node with %" PRIu64 " ranks fit in 64 bits",
            model->params, model->stored_bytes,
            STW_MOST_NODE_BYTES / ranks / (BYTES_PER_PARAM + 16), ranks);
    if (stw_times(ranks, process) > STW_MOST_NODE_BYTES)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "cluster",
                        "node.host.process: found %" PRIu64 " bytes with node.host.process_comm, "
                        "expected at most %" PRIu64 " with %" PRIu64 " ranks in a node",
                        process, STW_MOST_NODE_BYTES / ranks, ranks);
    return STW_STATUS_OK;
}

/* Would the job's sizes do with so many tokens? */
static bool tokens_fit(const stw_job *job, uint64_t tokens, uint64_t seq_len) {
    stw_run_spec run = *job->run;
    stw_job other = *job;
    run.batch.seq_len = seq_len;
    other.run = &run;
    other.tokens = tokens;
    return job->engine->batch_bytes(&other) <= STW_MOST_NODE_BYTES;
}

static bool batch_fits(const stw_job *job, uint64_t micro_batch, uint64_t seq_len) {
    return tokens_fit(job, stw_times(micro_batch, seq_len) / job->run->parallel.cp, seq_len);
}

/* The largest value below `most` that would do, 0 if none; other sequences or other lengths. */
static uint64_t largest(const stw_job *job, bool of_micro_batch, uint64_t most) {
    uint64_t low = 0, high = most; /* low does, high does not */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        bool fits = of_micro_batch ? batch_fits(job, middle, job->run->batch.seq_len)
                                   : batch_fits(job, 1, middle);
        if (fits)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The largest number of tokens below `most` that would do. */
static uint64_t largest_tokens(const stw_job *job, uint64_t most) {
    uint64_t low = 0, high = most;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (tokens_fit(job, middle, job->run->batch.seq_len))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Of micro batches that batch.micro_batch does not set. */
static stw_status check_other_batches(const stw_job *job, stw_error *err) {
    const uint64_t seq_len = job->run->batch.seq_len, packed = job->run->batch.max_tokens_per_gpu;
    const uint64_t log_prob = job->run->batch.log_prob_micro_batch;
    if (packed > 0 && !tokens_fit(job, packed, seq_len))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.max_tokens_per_gpu",
                        "found %" PRIu64 ", expected at most %" PRIu64
                        ", so that sizes fit in 64 bits",
                        packed, largest_tokens(job, packed));
    if (log_prob > 0 && !batch_fits(job, log_prob, seq_len))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.log_prob_micro_batch",
                        "found %" PRIu64 ", expected at most %" PRIu64 " with sequences of %" PRIu64
                        " tokens, so that sizes fit in 64 bits",
                        log_prob, largest(job, true, log_prob), seq_len);
    return STW_STATUS_OK;
}

/* batch.tokens_per_step is kept by a search; elsewhere it is held to what the other keys come to.
 * Packed sequences may leave room in micro batches, but not in a whole one. */
static stw_status check_step_tokens(const stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    const uint64_t full = stw_run_spec_full_step_tokens(run, job->world);
    const uint64_t micro = full / stw_max_u64(run->batch.grad_accumulation, 1);
    const uint64_t tokens = run->batch.tokens_per_step;
    const bool packed = run->batch.max_tokens_per_gpu > 0;
    char expected[96];
    if (tokens == 0 || tokens == full) return STW_STATUS_OK;
    if (packed && tokens <= full && full - tokens < micro) return STW_STATUS_OK;
    snprintf(expected, sizeof expected, "%" PRIu64, full);
    if (packed)
        snprintf(expected, sizeof expected, "%" PRIu64 " to %" PRIu64, full - micro + 1, full);
    return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.tokens_per_step",
                    "found %" PRIu64 ", expected %s: all ranks' micro batches have %" PRIu64
                    " tokens, batch.grad_accumulation is %" PRIu64 " (auto: as many as it takes)",
                    tokens, expected, micro, run->batch.grad_accumulation);
}

stw_status stw_check_batch_sizes(const stw_job *job, stw_error *err) {
    stw_status step = check_step_tokens(job, err);
    if (step != STW_STATUS_OK) return step;
    const uint64_t micro_batch = job->run->batch.micro_batch, seq_len = job->run->batch.seq_len;
    stw_status others = check_other_batches(job, err);
    if (others != STW_STATUS_OK) return others;
    if (batch_fits(job, micro_batch, seq_len)) return STW_STATUS_OK;
    uint64_t most = largest(job, true, micro_batch);
    if (most > 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.micro_batch",
                        "found %" PRIu64 ", expected at most %" PRIu64 " with sequences of %" PRIu64
                        " tokens, so that sizes fit in 64 bits",
                        micro_batch, most, seq_len);
    most = largest(job, false, seq_len);
    if (most > 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.seq_len",
                        "found %" PRIu64 ", expected at most %" PRIu64
                        ", so that sizes fit in 64 bits",
                        seq_len, most);
    return stw_fail(err, STW_STATUS_BAD_INPUT, job->model->source,
                    "what one token needs in the model's blocks does not fit in 64 bits");
}
