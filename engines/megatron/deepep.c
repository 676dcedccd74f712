/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core 0.16.1; DeepEP 1.2):
 * - transformer/moe/token_dispatcher.py, _DeepepManager: top-k indices and probabilities of the
 *   rank's tokens; rows arrive once per rank and are permuted into those of each expert; on the way
 *   back they are added up before they are sent. DeepEP's kernels take fp32 probabilities.
 * - transformer/moe/fused_a2a.py, get_buffer: the larger one of the dispatch's and the combine's
 *   hints, of 16-bit rows; 20 SMs (moe_deepep_num_sms).
 * - DeepEP, csrc/config.hpp, get_nvl_buffer_size_hint and get_rdma_buffer_size_hint;
 *   deep_ep/buffer.py, get_dispatch_config: tokens of a chunk by the ranks of the group.
 *   csrc/deep_ep.cpp, Buffer: a workspace of 32 MiB. Beyond 8 ranks NVSHMEM's heap grows by 512 MiB
 *   (buffer.py, NVSHMEM_CUMEM_GRANULARITY). */
#include "engines/megatron/deepep.h"

#include "core/checked.h"
#include "engines/megatron/megatron.h"

enum { DEEPEP = 2, NVL_RANKS = 8, CHANNELS = 20 / 2, META = 8, MOST_TOP = 128, MOST_SCALES = 128 };
#define WORKSPACE_BYTES (32ull << 20)
#define HEAP_STEP_BYTES (512ull << 20)

/* Tokens of a chunk that a rank receives through NVLink and RDMA; those of RDMA rounded up to a
 * multiple of what is sent. */
static const struct {
    uint32_t ranks, nvl, rdma;
} chunks[] = {{2, 256, 0},    {4, 256, 0},     {8, 256, 0},     {16, 288, 140},
              {24, 288, 128}, {32, 288, 128},  {48, 288, 128},  {64, 288, 128},
              {96, 480, 132}, {128, 560, 132}, {144, 720, 132}, {160, 720, 132}};
enum { N_CHUNKS = sizeof chunks / sizeof chunks[0] };

static uint32_t chunk_of(uint64_t ranks) {
    uint32_t i = 0;
    while (i < N_CHUNKS && chunks[i].ranks != ranks) i++;
    return i;
}

stw_status stw_megatron_check_deepep(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (run->moe.dispatcher != DEEPEP) return STW_STATUS_OK;
    if (chunk_of(run->parallel.ep) == N_CHUNKS)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.ep",
                                         "2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144 or 160 with "
                                         "moe.dispatcher: deepep");
    if (run->parallel.etp > 1)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.etp",
                                         "1 with moe.dispatcher: deepep, or moe.dispatcher: "
                                         "alltoall");
    if (stw_megatron_settings_of(run).pad_to_capacity)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.pad_to_capacity",
                                         "false with moe.dispatcher: deepep");
    return STW_STATUS_OK;
}

bool stw_megatron_uses_deepep(const stw_job *job) { return job->run->moe.dispatcher == DEEPEP; }

/* ---- rows ---- */

/* Even routing: a token misses a rank if all its experts are elsewhere. */
uint64_t stw_megatron_deepep_rows(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t tokens = stw_megatron_row_tokens(job), ep = job->run->parallel.ep;
    const double experts = (double)f->experts, local = experts / (double)ep;
    double missed = 1;
    for (uint64_t i = 0; i < f->experts_per_token; i++) {
        const double rest = experts - (double)i;
        missed *= rest > local ? (rest - local) / rest : 0;
    }
    return stw_scaled(stw_scaled(stw_times(tokens, ep), 1 - missed), job->run->moe.imbalance);
}

void stw_megatron_deepep_moe(const stw_job *job, uint32_t group, stw_megatron_moe *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8, h = f->hidden;
    const uint64_t ep = job->run->parallel.ep, top = f->experts_per_token;
    const uint64_t tokens = stw_megatron_row_tokens(job), local = f->experts / ep;
    const uint64_t rows = stw_megatron_deepep_rows(job, group);
    out->sent = rows;
    /* logits, softmax and probabilities in fp32, the map; indices and probabilities of the token */
    const uint64_t of_token = stw_plus(stw_times(f->experts, 3 * 4 + 1), stw_times(top, 8 + 4));
    /* which rank has it, and where in the queue to it */
    const uint64_t of_rank = stw_times(ep, 1 + 4);
    /* indices and probabilities as they came, probabilities and map by local expert, the
     * probabilities' transposed copy; whence it came */
    const uint64_t of_row =
        STW_SUM(stw_times(top, 8 + 4), stw_times(local, 4 + 4 + 1), (uint64_t)META);
    out->router = STW_SUM(stw_times(tokens, stw_plus(of_token, of_rank)), stw_times(rows, of_row),
                          stw_times(out->rows, 8 + 4)); /* index and probability */
    out->forward = out->backward = stw_times(stw_times(STW_SUM(out->rows, rows, tokens), h), c);
}

/* ---- buffers ---- */

uint64_t stw_megatron_deepep_bytes(const stw_job *job) {
    const uint64_t ranks = job->run->parallel.ep, channels = CHANNELS;
    const uint32_t i = chunk_of(ranks);
    if (!stw_megatron_uses_deepep(job) || i == N_CHUNKS) return 0;
    const uint64_t nodes = stw_max_u64(ranks / NVL_RANKS, 1);
    const uint64_t queues = stw_times(channels, stw_min_u64(ranks, NVL_RANKS));
    const uint64_t row = STW_SUM(stw_times(job->model->hidden, 2), (uint64_t)META,
                                 (uint64_t)MOST_TOP * (8 + 4), (uint64_t)MOST_SCALES * 4);
    const uint64_t nvl =
        stw_round_up_u64(stw_plus(stw_times(queues, stw_times(4, stw_plus(stw_times(2, nodes), 3))),
                                  stw_times(stw_times(queues, chunks[i].nvl), row)),
                         128);
    if (ranks <= NVL_RANKS) return stw_plus(nvl, WORKSPACE_BYTES);
    const uint64_t ways = stw_times(channels, nodes);
    const uint64_t rdma = STW_SUM(
        stw_times(ways, (NVL_RANKS * 2 + 2) * 2 * 4),
        stw_times(stw_times(ways, chunks[i].rdma), stw_times(2, stw_plus(row, 16))), 1ull << 20);
    return STW_SUM(nvl, WORKSPACE_BYTES, stw_round_up_u64(rdma, HEAP_STEP_BYTES));
}
