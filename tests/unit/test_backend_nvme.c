/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena: exact bytes for every mix of alignments, direct and buffered calls on one file,
 * and disks that are full or missing. */
#define _GNU_SOURCE /* RLIMIT_FSIZE, posix_memalign */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "backend/nvme.h"
#include "tests/unit/testing.h"

#define KIB 1024u
#define ARENA (3u * 1024u * KIB + 1234u)

static uint32_t random_state = 1;
static uint32_t random32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static unsigned char *aligned_bytes(size_t bytes) {
    void *memory = NULL;
    CU_ASSERT_EQUAL_FATAL(posix_memalign(&memory, STW_NVME_ALIGN_BYTES, bytes), 0);
    memset(memory, 0, bytes);
    return memory;
}

/* Against a plain array: random ranges, written and read at random places in memory. */
static void behaves_like_memory(void) {
    stw_nvme *nvme = NULL;
    const size_t room = ARENA + 2 * STW_NVME_ALIGN_BYTES;
    unsigned char *model = aligned_bytes(room), *memory = aligned_bytes(room);
    CHECK_OK(stw_nvme_open(NULL, ARENA, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    printf(" (direct: %s) ", stw_nvme_is_direct(nvme) ? "yes" : "no");
    unsigned wrong = 0;
    for (int turn = 0; turn < 600; turn++) {
        /* A third of the ranges is aligned as a whole, a third shares its place in a block. */
        uint32_t unit = turn % 3 == 0 ? STW_NVME_ALIGN_BYTES : 1;
        uint64_t offset = random32() % ARENA / unit * unit;
        uint64_t most = ARENA - offset < 300 * KIB ? ARENA - offset : 300 * KIB;
        uint64_t bytes = random32() % (most + 1) / unit * unit;
        uint64_t place =
            turn % 3 == 2 ? random32() % STW_NVME_ALIGN_BYTES : offset % STW_NVME_ALIGN_BYTES;
        if (turn % 2 == 0) {
            for (uint64_t i = 0; i < bytes; i++) memory[place + i] = (unsigned char)random32();
            CHECK_OK(stw_nvme_write(nvme, offset, memory + place, bytes, err));
            memcpy(model + offset, memory + place, bytes);
        } else {
            memset(memory, 0xEE, bytes + place + 1);
            CHECK_OK(stw_nvme_read(nvme, offset, memory + place, bytes, err));
            wrong += memcmp(memory + place, model + offset, bytes) != 0;
            wrong += memory[place + bytes] != 0xEE || (place > 0 && memory[place - 1] != 0xEE);
        }
    }
    CHECK_OK(stw_nvme_read(nvme, 0, memory, ARENA, err));
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(memcmp(memory, model, ARENA), 0);
    stw_nvme_close(nvme);
    free(model);
    free(memory);
}

static void refuses_ranges_beyond_the_end(void) {
    stw_nvme *nvme = NULL;
    char bytes[16] = "";
    CHECK_OK(stw_nvme_open(NULL, 8192, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_read(nvme, 8192, bytes, 0, err));
    CHECK_OK(stw_nvme_read(nvme, 8176, bytes, 16, err));
    CHECK_FAILS(stw_nvme_read(nvme, 8177, bytes, 16, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(stw_nvme_write(nvme, 8193, bytes, 1, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(stw_nvme_write(nvme, UINT64_MAX, bytes, 2, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(stw_nvme_write(nvme, 16, bytes, UINT64_MAX, err), STW_STATUS_BUG, "outside");
    stw_nvme_close(nvme);
}

static void refuses_what_does_not_fit(void) {
    stw_nvme *nvme = NULL;
    CHECK_FAILS(stw_nvme_open(NULL, 1ull << 62, &nvme, err), STW_STATUS_NO_RESOURCES, "free");
    CU_ASSERT_PTR_NULL(nvme);
    CHECK_FAILS(stw_nvme_open("/nonexistent/folder", 4096, &nvme, err), STW_STATUS_IO,
                "/nonexistent/folder");
    CU_ASSERT_PTR_NULL(nvme);
    char *longer = malloc(6000);
    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    memset(longer, 'x', 5999);
    longer[5999] = '\0';
    CHECK_FAILS(stw_nvme_open(longer, 4096, &nvme, err), STW_STATUS_USAGE, "too long");
    free(longer);
    stw_nvme_close(NULL);
}

/* A limit on file sizes stands for a disk that fills: reserving fails, and nothing is left. */
static void reports_a_file_that_cannot_grow(void) {
    struct rlimit before, small;
    stw_nvme *nvme = NULL;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1u << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_FAILS(stw_nvme_open(NULL, 2u << 20, &nvme, err), STW_STATUS_IO, "reserving");
    CU_ASSERT_PTR_NULL(nvme);
    CHECK_OK(stw_nvme_open(NULL, 1u << 20, &nvme, err));
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    stw_nvme_close(nvme);
}

static void starts_as_zeros(void) {
    stw_nvme *nvme = NULL;
    unsigned char *memory = aligned_bytes(64 * KIB);
    memset(memory, 1, 64 * KIB);
    CHECK_OK(stw_nvme_open(NULL, 64 * KIB, &nvme, err));
    CHECK_OK(stw_nvme_read(nvme, 0, memory, 64 * KIB, err));
    unsigned nonzero = 0;
    for (unsigned i = 0; i < 64 * KIB; i++) nonzero += memory[i] != 0;
    CU_ASSERT_EQUAL(nonzero, 0);
    stw_nvme_close(nvme);
    CHECK_OK(stw_nvme_open(NULL, 0, &nvme, err));
    CHECK_OK(stw_nvme_write(nvme, 0, memory, 0, err));
    stw_nvme_close(nvme);
    free(memory);
}

STW_TEST_MAIN("backend nvme", {"behaves like memory", behaves_like_memory},
              {"ranges beyond the end are refused", refuses_ranges_beyond_the_end},
              {"what does not fit is refused", refuses_what_does_not_fit},
              {"a file that cannot grow", reports_a_file_that_cannot_grow},
              {"starts as zeros", starts_as_zeros})
