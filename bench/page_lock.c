/* SPDX-License-Identifier: Apache-2.0 */
/* How long does page-locked host memory take, by Stowage's way (mapped exactly, touched by all
 * threads, then page-locked) and by one cudaHostAlloc of the same size?
 *
 *     page_lock [BYTES [ROUNDS]]      default 32 GiB, once
 *
 * JSON on stdout, a line for people on stderr. A first time is measured apart: on virtual machines
 * it also gets the memory from the host. Memory and page-lock limits are checked before anything is
 * allocated; each allocation is freed before the next. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "backend/cuda/device.h"
#include "backend/limits.h"
#include "cli/common.h"
#include "core/units.h"

#define MOST_ROUNDS 16u

typedef struct bench {
    uint64_t bytes, rounds;
    char gpu[256];
    stw_cpus cpus;
    stw_threads *threads;
    double first_s, stowage_s[MOST_ROUNDS], cuda_s[MOST_ROUNDS];
} bench;

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static stw_status check_limits(uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_limits limits;
    STW_TRY(stw_limits_read("", &limits, err));
    STW_TRY(stw_limits_check(&limits, bytes, bytes, err));
    if (limits.available_bytes > 0 && bytes > limits.available_bytes) {
        char need[32], have[32];
        stw_bytes_format(bytes, need, sizeof need);
        stw_bytes_format(limits.available_bytes, have, sizeof have);
        STW_TRY(
            stw_fail(err, STW_STATUS_NO_RESOURCES, "host", "%s needed, %s available", need, have));
    }
out:
    return status;
}

/* The context, and threads near the GPU as the backend has them. */
static stw_status prepare(bench *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char bus_id[32] = "";
    struct cudaDeviceProp properties;
    STW_CUDA_TRY(cudaSetDevice(0), "choosing the first GPU");
    STW_CUDA_TRY(cudaFree(NULL), "making the context");
    STW_CUDA_TRY(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's name");
    STW_CUDA_TRY(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, 0), "asking for its address");
    snprintf(b->gpu, sizeof b->gpu, "%s", properties.name);
    stw_cpus_allowed(&b->cpus);
    stw_cpus_near_pci(&b->cpus, bus_id, NULL);
    STW_TRY(stw_threads_new_on(b->cpus.n, &b->cpus, &b->threads, err));
out:
    return status;
}

static stw_status time_stowage(bench *b, double *seconds, stw_error *err) {
    stw_cuda_pinned pinned = {0};
    double start = now_s();
    stw_status status = stw_cuda_pinned_new_on(&pinned, b->bytes, b->threads, &b->cpus, err);
    *seconds = now_s() - start;
    stw_cuda_pinned_free(&pinned);
    return status;
}

static stw_status time_cuda(const bench *b, double *seconds, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    double start = now_s();
    STW_CUDA_TRY(
        cudaHostAlloc(&memory, (size_t)b->bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "allocating page-locked memory");
    *seconds = now_s() - start;
    STW_CUDA_TRY(cudaFreeHost(memory), "freeing page-locked memory");
out:
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Lower middle of a few values. */
static double median(const double *values, uint64_t n) {
    double sorted[MOST_ROUNDS];
    for (uint64_t i = 0; i < n; i++) sorted[i] = values[i];
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[(n - 1) / 2];
}

static void print_all(const char *name, const double *values, uint64_t n) {
    printf("  \"%s\": [", name);
    for (uint64_t i = 0; i < n; i++) printf("%s%.6f", i > 0 ? ", " : "", values[i]);
    printf("],\n");
}

static void report(const bench *b) {
    char size[32], rate[32];
    double ours = median(b->stowage_s, b->rounds), cuda = median(b->cuda_s, b->rounds);
    stw_bytes_format(b->bytes, size, sizeof size);
    stw_quantity_format((double)b->bytes / ours, STW_UNIT_BPS, rate, sizeof rate);
    printf("{\n  \"schema\": \"stowage.page_lock/1\",\n  \"device\": \"%s\",\n", b->gpu);
    printf("  \"bytes\": %llu,\n  \"threads\": %u,\n", (unsigned long long)b->bytes,
           stw_threads_count(b->threads));
    printf("  \"stowage_first_s\": %.6f,\n", b->first_s);
    print_all("stowage_all_s", b->stowage_s, b->rounds);
    print_all("cuda_host_alloc_all_s", b->cuda_s, b->rounds);
    printf("  \"stowage_s\": %.6f,\n  \"cuda_host_alloc_s\": %.6f,\n  \"ratio\": %.3f\n}\n", ours,
           cuda, cuda / ours);
    fprintf(stderr,
            "%s: %.3f s (%s; the first time %.3f s), cudaHostAlloc %.3f s: %.1f times as fast\n",
            size, ours, rate, b->first_s, cuda, cuda / ours);
}

int main(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    bench b = {.rounds = 1};
    if (argc > 3) {
        fprintf(stderr, "usage: page_lock [BYTES [ROUNDS]]\n");
        return 2;
    }
    STW_TRY(stw_u64_parse(argc > 1 ? argv[1] : "32 GiB", STW_UNIT_BYTES, &b.bytes, "BYTES", &err));
    STW_TRY(stw_option_u64("ROUNDS", argc > 2 ? argv[2] : NULL, 1, &b.rounds, &err));
    if (b.bytes == 0 || b.rounds > MOST_ROUNDS)
        STW_TRY(stw_fail(&err, STW_STATUS_USAGE, "page_lock",
                         "found %llu bytes and %llu rounds, expected at least 1 and at most %u",
                         (unsigned long long)b.bytes, (unsigned long long)b.rounds, MOST_ROUNDS));
    STW_TRY(check_limits(b.bytes, &err));
    STW_TRY(prepare(&b, &err));
    STW_TRY(time_stowage(&b, &b.first_s, &err));
    for (uint64_t i = 0; i < b.rounds; i++) {
        STW_TRY(time_stowage(&b, &b.stowage_s[i], &err));
        STW_TRY(time_cuda(&b, &b.cuda_s[i], &err));
    }
    report(&b);
out:
    stw_threads_free(b.threads);
    return stw_exit(status, &err);
}
