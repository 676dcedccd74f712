/* SPDX-License-Identifier: Apache-2.0 */
/* What a weight sync packs and places on a GPU, bit for bit what the host backend packs and places:
 * random pieces with casts, from GPU memory and from page-locked host memory; then a table of
 * rates. With an argument no rates. Exit 77 without a GPU. */
#include <cuda_runtime_api.h>

#include "backend/boxes.h"
#include "backend/executor/sync.h"
#include "tests/unit/sync_case.h"

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static bool rates = true;

static bool has_gpu(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static void randomize(sync_case *c, unsigned char *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0) c->state = stw_mix64(c->state);
        to[i] = (unsigned char)(c->state >> (8 * (i % 8)));
    }
}

/* ---- bits ---- */

/* One rank's memories and buffers: host memory, and what the GPU works on. */
enum { SEND, RECEIVE, BUCKET, SOURCE0, SOURCE1, TARGET0, TARGET1, N_MEMORIES };
typedef struct side {
    unsigned char *at[N_MEMORIES];
    const void *sources[SYNC_MEMORIES];
    void *targets[SYNC_MEMORIES];
    stw_sync_device *device;
} side;

typedef struct rank_case {
    sync_case *c;
    stw_sync_schedule *schedule;
    const stw_sync_view *view;
    uint32_t rank;
    bool pinned; /* sources in page-locked host memory */
    size_t bytes[N_MEMORIES];
    side host, gpu;
} rank_case;

static bool is_pinned(const rank_case *x, int m) {
    return x->pinned && (m == SOURCE0 || m == SOURCE1);
}

static void open_side(rank_case *x, side *s, const char *backend) {
    const stw_sync_options options = {.backend = backend};
    for (int m = 0; m < SYNC_MEMORIES; m++) {
        s->sources[m] = s->at[SOURCE0 + m];
        s->targets[m] = s->at[TARGET0 + m];
    }
    const stw_sync_memories memories = {s->sources, s->targets, SYNC_MEMORIES, SYNC_MEMORIES};
    CHECK_OK(stw_sync_device_open(x->schedule, x->rank, &options, &memories, &s->device, err));
}

static void start(rank_case *x) {
    const sync_case *c = x->c;
    const size_t bytes[N_MEMORIES] = {x->view->send_bytes,
                                      x->view->receive_bytes,
                                      x->view->bucket_bytes,
                                      c->elements[0][x->rank][0] * 4,
                                      c->elements[0][x->rank][1] * 2,
                                      c->elements[1][x->rank][0] * 4,
                                      c->elements[1][x->rank][1] * 2};
    for (int m = 0; m < N_MEMORIES; m++) {
        void *memory = NULL;
        x->bytes[m] = bytes[m] + 16;
        x->host.at[m] = malloc(x->bytes[m]);
        randomize(x->c, x->host.at[m], x->bytes[m]);
        if (is_pinned(x, m))
            CUDA(cudaHostAlloc(&memory, x->bytes[m], cudaHostAllocDefault));
        else
            CUDA(cudaMalloc(&memory, x->bytes[m]));
        x->gpu.at[m] = memory;
        CUDA(cudaMemcpy(memory, x->host.at[m], x->bytes[m], cudaMemcpyDefault));
    }
    open_side(x, &x->host, "host");
    open_side(x, &x->gpu, "cuda");
}

static void end(rank_case *x) {
    stw_sync_device_close(x->host.device);
    stw_sync_device_close(x->gpu.device);
    for (int m = 0; m < N_MEMORIES; m++) {
        free(x->host.at[m]);
        if (is_pinned(x, m))
            CUDA(cudaFreeHost(x->gpu.at[m]));
        else
            CUDA(cudaFree(x->gpu.at[m]));
    }
}

static void compare(const rank_case *x, int m) {
    unsigned char *came = malloc(x->bytes[m]);
    CUDA(cudaMemcpy(came, x->gpu.at[m], x->bytes[m], cudaMemcpyDefault));
    CU_ASSERT_EQUAL(memcmp(came, x->host.at[m], x->bytes[m]), 0);
    free(came);
}

static void run_rank(rank_case *x, cudaStream_t stream) {
    uint64_t sums[2] = {0, 1};
    start(x);
    for (uint32_t round = 0; round < stw_sync_schedule_rounds(x->schedule); round++) {
        CHECK_OK(stw_sync_device_pack(x->host.device, round, x->host.at[SEND], NULL, err));
        CHECK_OK(stw_sync_device_pack(x->gpu.device, round, x->gpu.at[SEND], stream, err));
        CHECK_OK(stw_sync_device_place(x->host.device, round, x->host.at[RECEIVE],
                                       x->host.at[BUCKET], NULL, err));
        CHECK_OK(stw_sync_device_place(x->gpu.device, round, x->gpu.at[RECEIVE], x->gpu.at[BUCKET],
                                       stream, err));
        CUDA(cudaStreamSynchronize(stream));
        compare(x, SEND);
        compare(x, BUCKET);
    }
    for (int m = TARGET0; m <= TARGET1; m++) {
        compare(x, m);
        CHECK_OK(stw_sync_device_sum(x->host.device, x->host.at[m], x->bytes[m] - (size_t)m, NULL,
                                     &sums[0], err));
        CHECK_OK(stw_sync_device_sum(x->gpu.device, x->gpu.at[m], x->bytes[m] - (size_t)m, stream,
                                     &sums[1], err));
        CU_ASSERT_EQUAL(sums[0], sums[1]);
    }
    end(x);
}

static void bits_are_the_hosts(void) {
    cudaStream_t stream = NULL;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint64_t seed = 0; seed < 60; seed++) {
        sync_case c = {.casts = seed % 4 != 0, .buckets = seed % 3 == 0};
        rank_case x = {.c = &c, .pinned = seed % 2 == 1};
        sync_case_make(&c, seed, 1 + (uint32_t)(seed % 4), seed % 10 == 0 ? 1u << 20 : 1u << 14);
        CHECK_OK(stw_sync_schedule_new(c.pool, &c.job, &x.schedule, err));
        for (x.rank = 0; x.rank < c.job.world; x.rank++) {
            CHECK_OK(stw_sync_schedule_view(x.schedule, x.rank, &x.view, err));
            run_rank(&x, stream);
        }
        stw_sync_schedule_free(x.schedule);
    }
    CUDA(cudaStreamDestroy(stream));
}

/* More copies than GPU memory keeps: tables go to their slots round by round, on two streams. */
static void long_tables_arrive(void) {
    enum { ROWS = 20000, ROUNDS = 9 };
    stw_box_copy *copies = calloc((size_t)ROWS * ROUNDS, sizeof *copies);
    uint32_t first[ROUNDS + 1] = {0}, tiles[ROUNDS];
    stw_box_device *device = NULL;
    cudaStream_t streams[2];
    unsigned char *from = NULL, *to = NULL, *came = malloc(ROWS * 64);
    void *memory = NULL;
    CU_ASSERT_FATAL(copies != NULL && came != NULL);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ROWS; i++) /* row i of the round to row i + round */
            copies[round * ROWS + i] =
                (stw_box_copy){.from = i * 64u,
                               .to = (i + round) % ROWS * 64u,
                               .from_stride = {0, 0, 0, 2},
                               .to_stride = {0, 0, 0, 2},
                               .count = {1, 1, 1, 32},
                               .from_base = round % 2 == 0 ? STW_BOX_FIRST_BASE : 0,
                               .to_base = STW_BOX_TO_BUFFER,
                               .first_tile = i,
                               .from_type = STW_BOX_F16,
                               .to_type = STW_BOX_F16};
        first[round + 1] = first[round] + ROWS;
        tiles[round] = ROWS;
    }
    const stw_box_config config = {.lists = {copies, first, tiles, ROUNDS}, .n_bases = 1};
    CUDA(cudaMallocManaged(&memory, ROWS * 64, cudaMemAttachGlobal));
    from = memory;
    for (uint32_t i = 0; i < ROWS; i++) memset(from + i * 64u, (int)(i % 251), 64);
    CUDA(cudaMalloc(&memory, (size_t)ROWS * 64 * ROUNDS));
    to = memory;
    for (int s = 0; s < 2; s++) CUDA(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    const stw_box_ops *ops = stw_box_cuda_ops();
    const void *bases[1] = {from};
    CHECK_OK(ops->open(&config, &device, err));
    CHECK_OK(ops->bind(device, bases, err));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const stw_box_buffers buffers = {.from = from, .to = to + (size_t)ROWS * 64 * round};
        CHECK_OK(ops->run(device, round, &buffers, streams[round % 2], err));
    }
    CUDA(cudaDeviceSynchronize());
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t wrong = 0;
        CUDA(cudaMemcpy(came, to + (size_t)ROWS * 64 * round, ROWS * 64, cudaMemcpyDefault));
        for (uint32_t i = 0; i < ROWS; i++) wrong += came[(i + round) % ROWS * 64u + 63] != i % 251;
        CU_ASSERT_EQUAL(wrong, 0);
    }
    ops->close(device);
    CUDA(cudaFree(from));
    CUDA(cudaFree(to));
    for (int s = 0; s < 2; s++) CUDA(cudaStreamDestroy(streams[s]));
    free(copies);
    free(came);
}

static void other_memory_is_refused(void) {
    static unsigned char pageable[64];
    static const uint32_t first[1] = {0};
    const stw_box_config config = {.lists = {.first = first}, .n_bases = 1};
    const stw_box_config beyond = {.lists = {.first = first}, .gpu_is_given = true, .gpu = 99};
    const void *bases[1] = {pageable};
    stw_box_device *device = NULL;
    CHECK_FAILS(stw_box_cuda_ops()->open(&beyond, &device, err), STW_STATUS_USAGE, "gpu");
    CHECK_OK(stw_box_cuda_ops()->open(&config, &device, err));
    CHECK_FAILS(stw_box_cuda_ops()->bind(device, bases, err), STW_STATUS_USAGE, "page-locked");
    stw_box_cuda_ops()->close(device);
}

/* ---- rates ---- */

typedef struct shape {
    const char *name;
    uint32_t rows, run, from_pitch, to_pitch; /* elements */
    uint16_t from_type, to_type;
    bool pinned;
} shape;

static double rate(const shape *s) {
    const uint64_t from_width = stw_box_width(s->from_type), to_width = stw_box_width(s->to_type);
    const uint64_t bytes[2] = {s->rows * from_width * s->from_pitch,
                               s->rows * to_width * s->to_pitch};
    const bool dense = s->from_pitch == s->run && s->to_pitch == s->run;
    stw_box_copy copy = {.from_stride = {0, 0, s->from_pitch * from_width, from_width},
                         .to_stride = {0, 0, s->to_pitch * to_width, to_width},
                         .count = {1, 1, dense ? 1 : s->rows, dense ? s->rows * s->run : s->run},
                         .from_base = STW_BOX_FIRST_BASE,
                         .to_base = STW_BOX_TO_BUFFER,
                         .from_type = s->from_type,
                         .to_type = s->to_type};
    const uint32_t first[2] = {0, 1}, tiles[1] = {stw_box_tiles(&copy)};
    const stw_box_config config = {.lists = {&copy, first, tiles, 1}, .n_bases = 1};
    stw_box_device *device = NULL;
    void *from = NULL, *to = NULL;
    cudaEvent_t begin, done;
    float best = 1e9f;
    if (s->pinned)
        CUDA(cudaHostAlloc(&from, bytes[0], cudaHostAllocDefault));
    else
        CUDA(cudaMalloc(&from, bytes[0]));
    CUDA(cudaMalloc(&to, bytes[1]));
    CUDA(cudaMemset(from, 0, bytes[0]));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&done));
    const void *bases[1] = {from};
    CHECK_OK(stw_box_cuda_ops()->open(&config, &device, err));
    CHECK_OK(stw_box_cuda_ops()->bind(device, bases, err));
    for (int i = 0; i < 8; i++) {
        float ms = 0;
        CUDA(cudaEventRecord(begin, NULL));
        CHECK_OK(stw_box_cuda_ops()->run(device, 0, &(stw_box_buffers){.to = to}, NULL, err));
        CUDA(cudaEventRecord(done, NULL));
        CUDA(cudaEventSynchronize(done));
        CUDA(cudaEventElapsedTime(&ms, begin, done));
        if (ms < best) best = ms;
    }
    stw_box_cuda_ops()->close(device);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(done));
    CUDA(s->pinned ? cudaFreeHost(from) : cudaFree(from));
    CUDA(cudaFree(to));
    const double moved = (double)(s->rows * (uint64_t)s->run) *
                         (double)(s->pinned ? from_width : from_width + to_width);
    return moved / (double)best / 1e6;
}

static void print_rates(void) {
    enum { F32 = STW_BOX_F32, BF16 = STW_BOX_BF16 };
    static const shape shapes[] = {
        {"one run, bf16", 8192, 8192, 8192, 8192, BF16, BF16, false},
        {"one run, fp32 to bf16", 8192, 8192, 8192, 8192, F32, BF16, false},
        {"pack columns, TP 4 (runs of 4 KiB)", 8192, 2048, 8192, 2048, BF16, BF16, false},
        {"place columns, TP 4", 8192, 2048, 2048, 8192, BF16, BF16, false},
        {"pack columns, TP 4, fp32 to bf16", 8192, 2048, 8192, 2048, F32, BF16, false},
        {"pack runs of 256 bytes", 65536, 128, 1024, 128, BF16, BF16, false},
        {"place runs of 256 bytes", 65536, 128, 128, 1024, BF16, BF16, false},
        {"pack runs of 2 KiB + 2", 8192, 1025, 8193, 1025, BF16, BF16, false},
        {"one run, from the host", 8192, 8192, 8192, 8192, BF16, BF16, true},
        {"pack columns, TP 4, from the host", 8192, 2048, 8192, 2048, BF16, BF16, true},
        {"pack fp32 to bf16, from the host", 8192, 4096, 4096, 4096, F32, BF16, true},
    };
    if (!rates) return;
    printf("\n%-40s %10s\n", "GB/s, bytes read and written", "");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        printf("%-40s %10.1f\n", shapes[i].name, rate(&shapes[i]));
}

int main(int argc, char **argv) {
    static const stw_test tests[] = {{"bits are the host's", bits_are_the_hosts},
                                     {"long tables arrive", long_tables_arrive},
                                     {"other memory is refused", other_memory_is_refused},
                                     {"rates", print_rates}};
    (void)argv;
    rates = argc < 2;
    if (!has_gpu()) {
        printf("skipped: no GPU\n");
        return 77;
    }
    return stw_test_run_all("weight syncs on a GPU", tests, sizeof tests / sizeof tests[0]);
}
