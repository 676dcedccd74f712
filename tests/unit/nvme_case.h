/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the NVMe arena share: arenas, bytes that tell steps apart, and files as a
 * process that ends now would leave them. */
#ifndef STW_TESTS_UNIT_NVME_CASE_H
#define STW_TESTS_UNIT_NVME_CASE_H

#include <stdlib.h>
#include <unistd.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/nvme.h"
#include "core/log.h"
#include "tests/unit/testing.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define ARENA (3u * MIB + 1234u)
#define BLOCK STW_NVME_ALIGN_BYTES

static uint32_t random_state = 1;
static uint32_t random32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static unsigned char *aligned_bytes(size_t bytes) {
    void *memory = NULL;
    CU_ASSERT_EQUAL_FATAL(posix_memalign(&memory, BLOCK, bytes), 0);
    memset(memory, 0, bytes);
    return memory;
}

/* The bytes of a step, different everywhere and from step to step. */
static void step_bytes(unsigned char *to, uint64_t offset, uint64_t bytes, uint64_t step) {
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)((offset + i) * 2654435761u >> 13 ^ step * 37);
}

static stw_nvme *open_arena(const char *folder, uint64_t bytes, uint32_t copies) {
    stw_nvme_options options = {.folder = folder,
                                .bytes = bytes,
                                .copies = copies,
                                .rank = 3,
                                .shape = {.in_memory = true}};
    const stw_nvme_owner owner = {77, 3, 4, 3, 4, "plan"};
    stw_nvme *nvme = NULL;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_own(nvme, &owner, err));
    return nvme;
}

static void commit_and_agree(stw_nvme *nvme, uint64_t step) {
    CHECK_OK(stw_nvme_commit(nvme, step, err));
    CHECK_OK(stw_nvme_agree(nvme, step, err));
}

/* An empty folder for a test, that must be empty again when it is removed. */
static char folder_name[64];
static const char *make_folder(void) {
    snprintf(folder_name, sizeof folder_name, "nvme-test-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder_name));
    return folder_name;
}
static void remove_folder(void) { CU_ASSERT_EQUAL(rmdir(folder_name), 0); }

/* Write step's bytes everywhere, in uneven pieces. */
static void write_step(stw_nvme *nvme, uint64_t arena, uint64_t step) {
    unsigned char *memory = aligned_bytes(arena);
    step_bytes(memory, 0, arena, step);
    for (uint64_t done = 0; done < arena;) {
        uint64_t part = 1 + random32() % (700 * KIB);
        if (part > arena - done) part = arena - done;
        CHECK_OK(stw_nvme_write(nvme, done, memory + done, part, err));
        done += part;
    }
    free(memory);
}

static bool reads_step(stw_nvme *nvme, uint64_t arena, uint64_t step) {
    unsigned char *memory = aligned_bytes(arena), *expected = aligned_bytes(arena);
    if (step > 0) step_bytes(expected, 0, arena, step);
    memset(memory, 0xEE, arena);
    CHECK_OK(stw_nvme_read(nvme, 0, memory, arena, err));
    bool same = memcmp(memory, expected, arena) == 0;
    free(memory);
    free(expected);
    return same;
}

/* As the file would be if its process ended now. */
static const char *snapshot(const char *path) {
    static char copy[600];
    snprintf(copy, sizeof copy, "%s.copy", path);
    FILE *from = fopen(path, "rb"), *to = fopen(copy, "wb");
    CU_ASSERT_FATAL(from != NULL && to != NULL);
    unsigned char *memory = aligned_bytes(MIB);
    for (size_t n; (n = fread(memory, 1, MIB, from)) > 0;)
        CU_ASSERT_EQUAL(fwrite(memory, 1, n, to), n);
    fclose(from);
    CU_ASSERT_EQUAL(fclose(to), 0);
    free(memory);
    return copy;
}

static void check_file(const char *path, uint64_t arena, uint64_t step) {
    stw_nvme *kept = NULL;
    uint64_t bytes = 0, kept_step = 0;
    CHECK_OK(stw_nvme_open_kept(path, &bytes, &kept_step, &kept, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    CU_ASSERT_EQUAL(bytes, arena);
    CU_ASSERT_EQUAL(kept_step, step);
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(kept), path);
    CU_ASSERT_TRUE(reads_step(kept, arena, step));
    CHECK_FAILS(stw_nvme_write(kept, 0, "x", 1, err), STW_STATUS_BUG, "for reading alone");
    CHECK_FAILS(stw_nvme_commit(kept, 1, err), STW_STATUS_BUG, "for reading alone");
    stw_nvme_close(kept);
    CU_ASSERT_EQUAL(access(path, R_OK), 0);
}

static void check_kept(const char *path, uint64_t arena, uint64_t step) {
    const char *copy = snapshot(path);
    check_file(copy, arena, step);
    CU_ASSERT_EQUAL(unlink(copy), 0);
}

static char logged[1024];
static void keep_log(stw_log_level level, const char *text, void *user) {
    (void)user;
    if (level <= STW_LOG_WARN) snprintf(logged, sizeof logged, "%s", text);
}

#endif
