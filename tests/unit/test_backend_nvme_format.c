/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of NVMe state, each by itself: the places in its file, every byte and field of header
 * and record, cells, pieces of a transfer, and the table of names with what a signal says of it. */
#define _GNU_SOURCE /* mkdtemp, O_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/cells.h"
#include "backend/nvme/format.h"
#include "backend/nvme/io.h"
#include "backend/nvme/names.h"
#include "backend/nvme/sum.h"
#include "tests/unit/testing.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define FILE_BYTES 425984ull /* of good_header */

/* ---- places ---- */

static void places_follow_each_other(void) {
    stw_nvme_places p;
    CU_ASSERT_TRUE(stw_nvme_places_of(200000, 3, 7, &p));
    const stw_nvme_places expected = {4096, 12288, {16384, 20480}, {24576, 225280}, FILE_BYTES};
    CU_ASSERT_EQUAL(memcmp(&p, &expected, sizeof p), 0);
    CU_ASSERT_TRUE(stw_nvme_places_of(0, 0, 0, &p));
    CU_ASSERT_EQUAL(p.end, 4 * 4096);                       /* header, records and one cut */
    CU_ASSERT_TRUE(stw_nvme_places_of(4096, 511, 512, &p)); /* whole blocks */
    CU_ASSERT_EQUAL(p.end, 8 * 4096);
    CU_ASSERT_TRUE(stw_nvme_places_of(4097, 512, 513, &p));
    CU_ASSERT_EQUAL(p.end, 3 * 4096 + 5 * 8192);
    /* What no file can have: no sum wraps. */
    CU_ASSERT_FALSE(stw_nvme_places_of(0, UINT64_MAX, 0, &p));
    CU_ASSERT_FALSE(stw_nvme_places_of(0, UINT64_MAX - 1, 0, &p));
    CU_ASSERT_FALSE(stw_nvme_places_of(0, 0, 1ull << 61, &p));
    CU_ASSERT_FALSE(stw_nvme_places_of(INT64_MAX / 2, 0, 0, &p));
    CU_ASSERT_FALSE(stw_nvme_places_of(INT64_MAX / 2 + 1ull, 0, 0, &p));
    CU_ASSERT_FALSE(stw_nvme_places_of(UINT64_MAX, 0, 0, &p));
    CU_ASSERT_TRUE(stw_nvme_places_of((1ull << 62) - 20 * KIB, 0, 0, &p));
    CU_ASSERT_EQUAL(p.end, (1ull << 63) - 24 * KIB);
    CU_ASSERT_FALSE(stw_nvme_places_of((1ull << 62) - 20 * KIB + 1, 0, 0, &p));
}

/* ---- header and record ---- */

static stw_nvme_header good_header(void) {
    stw_nvme_header h = {.n_parts = 2,
                         .bytes = 200000,
                         .n_cuts = 3,
                         .n_cells = 7,
                         .cuts_hash = 99,
                         .run = 77,
                         .rank = 5,
                         .world = 8,
                         .local_rank = 1,
                         .local_world = 4,
                         .host = "host",
                         .plan = "plan",
                         .parts = {{"exp_avg", 0, 100000}, {"exp_avg_sq", 100000, 100000}}};
    stw_nvme_header_seal(&h);
    return h;
}

static void every_byte_of_a_header_counts(void) {
    stw_nvme_header h = good_header();
    const char *why = NULL;
    unsigned wrong = 0;
    CU_ASSERT_TRUE(stw_nvme_header_holds(&h, FILE_BYTES, &why));
    CU_ASSERT_TRUE(stw_nvme_header_holds(&h, FILE_BYTES, NULL));
    CU_ASSERT_EQUAL(memcmp(h.magic, "STWSTATE", 8), 0);
    for (size_t i = 0; i < sizeof h; i++) {
        const bool is_known = i >= 12; /* behind magic and version */
        ((unsigned char *)&h)[i] ^= 4;
        wrong += stw_nvme_header_holds(&h, FILE_BYTES, &why);
        wrong +=
            strcmp(why, is_known ? "its header is damaged" : "it is no state of this version") != 0;
        wrong += stw_nvme_header_is_known(&h) != is_known;
        wrong += stw_nvme_header_is_of_other_version(&h) != (i >= 8 && i < 12);
        ((unsigned char *)&h)[i] ^= 4;
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* Fields that no program writes so, under a hash that is right. */
static void fields_of_a_header_are_checked(void) {
    static const char damaged[] = "its header is damaged",
                      size[] = "it does not have the size that its header states";
#define FIELD(name) offsetof(stw_nvme_header, name), sizeof((stw_nvme_header *)NULL)->name
    static const struct {
        size_t offset, bytes;
        uint64_t value;
        const char *why; /* NULL: it holds */
    } changes[] = {{FIELD(n_parts), 64, NULL},
                   {FIELD(n_parts), 65, damaged},
                   {FIELD(n_cuts), FILE_BYTES, size},
                   {FIELD(n_cuts), FILE_BYTES + 1, damaged},
                   {FIELD(n_cuts), 511, NULL},
                   {FIELD(n_cuts), 512, size},
                   {FIELD(n_cells), FILE_BYTES, size},
                   {FIELD(n_cells), FILE_BYTES + 1, damaged},
                   {FIELD(n_cells), 512, NULL},
                   {FIELD(n_cells), 513, size},
                   {FIELD(rank), 7, NULL},
                   {FIELD(rank), 8, damaged},
                   {FIELD(rank), 1, NULL},
                   {FIELD(rank), 0, damaged}, /* below its local one */
                   {FIELD(world), 6, NULL},
                   {FIELD(world), 5, damaged},
                   {FIELD(local_rank), 3, NULL},
                   {FIELD(local_rank), 4, damaged},
                   {FIELD(local_world), 2, NULL},
                   {FIELD(local_world), 1, damaged},
                   {FIELD(bytes), 200704, NULL},
                   {FIELD(bytes), 200705, size},
                   {FIELD(bytes), UINT64_MAX, size}};
#undef FIELD
    const char *why = NULL;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        stw_nvme_header h = good_header();
        memcpy((char *)&h + changes[i].offset, &changes[i].value, changes[i].bytes);
        stw_nvme_header_seal(&h);
        CU_ASSERT_EQUAL(stw_nvme_header_holds(&h, FILE_BYTES, &why), changes[i].why == NULL);
        CU_ASSERT_TRUE(changes[i].why == NULL || strcmp(why, changes[i].why) == 0);
    }
    stw_nvme_header h = good_header();
    CU_ASSERT_FALSE(stw_nvme_header_holds(&h, FILE_BYTES - 4096, &why));
    CU_ASSERT_STRING_EQUAL(why, size);
    char *const texts[] = {h.host, h.plan, h.parts[1].name};
    static const size_t sizes[] = {64, 24, 24};
    for (int i = 0; i < 3; i++) {
        h = good_header();
        memset(texts[i], 'x', sizes[i]); /* without an end */
        stw_nvme_header_seal(&h);
        CU_ASSERT_FALSE(stw_nvme_header_holds(&h, FILE_BYTES, &why));
        CU_ASSERT_STRING_EQUAL(why, damaged);
        texts[i][sizes[i] - 1] = '\0';
        stw_nvme_header_seal(&h);
        CU_ASSERT_TRUE(stw_nvme_header_holds(&h, FILE_BYTES, &why));
    }
    memset(h.parts[2].name, 'x', sizeof h.parts[2].name); /* no part of it */
    stw_nvme_header_seal(&h);
    CU_ASSERT_TRUE(stw_nvme_header_holds(&h, FILE_BYTES, &why));
}

static stw_nvme_record good_record(const stw_nvme_header *h, uint64_t sequence, uint64_t step) {
    stw_nvme_record r = {.copy = (uint32_t)(sequence % 2),
                         .sequence = sequence,
                         .step = step,
                         .sums_hash = 5,
                         .time_s = 6};
    stw_nvme_record_seal(&r, h);
    return r;
}

static void rehash(stw_nvme_record *r) {
    r->hash = stw_nvme_sum(r, offsetof(stw_nvme_record, hash));
}

static void every_byte_of_a_record_counts(void) {
    const stw_nvme_header h = good_header();
    stw_nvme_record r = good_record(&h, 1, 40);
    unsigned wrong = 0;
    CU_ASSERT_TRUE(stw_nvme_record_holds(&r, &h));
    for (size_t i = 0; i < sizeof r; i++) {
        ((unsigned char *)&r)[i] ^= 4;
        wrong += stw_nvme_record_is_whole(&r) || stw_nvme_record_holds(&r, &h);
        ((unsigned char *)&r)[i] ^= 4;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    /* Each field that is the header's, under a right hash: whole, but not of this file. */
    uint64_t *const longs[] = {&r.bytes, &r.run, &r.header_hash};
    uint32_t *const ints[] = {&r.rank, &r.world};
    for (int i = 0; i < 5; i++) {
        r = good_record(&h, 1, 40);
        if (i < 3)
            *longs[i] += 1;
        else
            *ints[i - 3] += 1;
        rehash(&r);
        CU_ASSERT_TRUE(stw_nvme_record_is_whole(&r));
        CU_ASSERT_FALSE(stw_nvme_record_holds(&r, &h));
    }
    /* What no program writes. */
    for (int i = 0; i < 4; i++) {
        r = good_record(&h, 1, 40);
        if (i == 0) r.copy = 2;
        if (i == 1) r.sequence = 0;
        if (i == 2) r.version++;
        if (i == 3) r.magic[0]++;
        rehash(&r);
        CU_ASSERT_FALSE(stw_nvme_record_is_whole(&r));
    }
    r = good_record(&h, 0, 40); /* the least that is one */
    r.sequence = 1;
    rehash(&r);
    CU_ASSERT_TRUE(stw_nvme_record_holds(&r, &h));
}

/* ---- files ---- */

static int next_descriptor(void) {
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(file);
    return file;
}

/* Steps 40 and 41; 0 in place of one: no record. */
static void write_state(const char *path, uint64_t first, uint64_t second) {
    const stw_nvme_header h = good_header();
    const uint64_t steps[2] = {first, second};
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CU_ASSERT_TRUE_FATAL(file >= 0);
    CU_ASSERT_EQUAL(ftruncate(file, (off_t)FILE_BYTES), 0);
    CU_ASSERT_EQUAL(pwrite(file, &h, sizeof h, 0), (ssize_t)sizeof h);
    for (int i = 0; i < 2; i++) {
        const stw_nvme_record r = good_record(&h, (uint64_t)i + 2, steps[i]);
        if (steps[i] == 0) continue;
        CU_ASSERT_EQUAL(pwrite(file, &r, sizeof r, 4096 * (i + 1)), (ssize_t)sizeof r);
    }
    close(file);
}

static void files_hold_steps(void) {
    static const char path[] = "held.state", link[] = "link.state";
    const int before = next_descriptor();
    (void)unlink(link);
    write_state(path, 40, 41);
    CU_ASSERT_TRUE(stw_nvme_file_holds(path, 40));
    CU_ASSERT_TRUE(stw_nvme_file_holds(path, 41));
    CU_ASSERT_FALSE(stw_nvme_file_holds(path, 42));
    CU_ASSERT_FALSE(stw_nvme_file_holds(path, 0));
    CU_ASSERT_EQUAL(symlink(path, link), 0);
    CU_ASSERT_FALSE(stw_nvme_file_holds(link, 40));
    CU_ASSERT_FALSE(stw_nvme_file_holds(".", 40));
    CU_ASSERT_FALSE(stw_nvme_file_holds("no-such.state", 40));
    write_state(path, 0, 41);
    CU_ASSERT_TRUE(stw_nvme_file_holds(path, 41));
    CU_ASSERT_FALSE(stw_nvme_file_holds(path, 0)); /* zeros are no record */
    CU_ASSERT_EQUAL(truncate(path, (off_t)FILE_BYTES - 1), 0);
    CU_ASSERT_FALSE(stw_nvme_file_holds(path, 41));
    CU_ASSERT_EQUAL(truncate(path, 4095), 0);
    CU_ASSERT_FALSE(stw_nvme_file_holds(path, 41));
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(unlink(link), 0);
    CU_ASSERT_EQUAL(next_descriptor(), before);
}

static void ranges_have_names(void) {
    static const stw_nvme_part parts[] = {{"exp_avg", 0, 100}, {"exp_avg_sq", 104, 50}};
    char text[80];
    CU_ASSERT_PTR_EQUAL(stw_nvme_part_at(parts, 2, 0), &parts[0]);
    CU_ASSERT_PTR_EQUAL(stw_nvme_part_at(parts, 2, 99), &parts[0]);
    CU_ASSERT_PTR_NULL(stw_nvme_part_at(parts, 2, 100));
    CU_ASSERT_PTR_EQUAL(stw_nvme_part_at(parts, 2, 104), &parts[1]);
    CU_ASSERT_PTR_EQUAL(stw_nvme_part_at(parts, 2, 153), &parts[1]);
    CU_ASSERT_PTR_NULL(stw_nvme_part_at(parts, 2, 154));
    CU_ASSERT_PTR_NULL(stw_nvme_part_at(parts, 1, 104));
    stw_nvme_format_range(parts, 2, 110, 200, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "bytes 110 to 200 (exp_avg_sq from its byte 6)");
    stw_nvme_format_range(parts, 2, 100, 104, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "bytes 100 to 104");
    stw_nvme_format_range(parts, 2, 1, 2, text, 20);
    CU_ASSERT_STRING_EQUAL(text, "bytes 1 to 2 (exp_a");
    memset(text, 'x', sizeof text); /* no room for the first part: nothing behind it */
    stw_nvme_format_range(parts, 2, 1, 2, text, 12);
    CU_ASSERT_STRING_EQUAL(text, "bytes 1 to ");
    CU_ASSERT_EQUAL(text[12], 'x');
}

/* ---- cells ---- */

static uint64_t random_state = 7;
static uint64_t random64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Against a walk over the arena: a cell ends after 64 KiB, at a cut, or at the end. */
static void check_cells(uint64_t bytes, const uint64_t *cuts, uint64_t n) {
    stw_nvme_cells cells;
    uint64_t at = 0, index = 0, wrong = 0, pieces = 0;
    CHECK_OK(stw_nvme_cells_make(bytes, cuts, n, &cells, err));
    for (; at < bytes; index++) {
        uint64_t interval = bytes;
        for (uint64_t i = 0; i < n; i++)
            if (cuts[i] > at && cuts[i] < interval) interval = cuts[i];
        const uint64_t end = interval - at < 64 * KIB ? interval : at + 64 * KIB;
        const stw_nvme_cell cell = stw_nvme_cells_get(&cells, index);
        wrong += cell.first != at || cell.end != end;
        wrong += stw_nvme_cells_at(&cells, at) != index;
        wrong += stw_nvme_cells_at(&cells, end - 1) != index;
        const uint64_t most = 64 * KIB * (1 + index % 3);
        wrong += stw_nvme_cells_piece_end(&cells, at, most) !=
                 (interval - at < most ? interval : at + most);
        pieces += end == interval;
        at = end;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(cells.n, index);
    CU_ASSERT_EQUAL(cells.n_cuts, pieces);
    CU_ASSERT_EQUAL(cells.cuts[0], 0);
    CU_ASSERT_EQUAL(cells.cuts[cells.n_cuts], bytes);
    CU_ASSERT_EQUAL(cells.before[cells.n_cuts], cells.n);
    stw_nvme_cells_free(&cells);
    CU_ASSERT_TRUE(cells.n == 0 && cells.cuts == NULL && cells.before == NULL);
    stw_nvme_cells_free(&cells);
}

static void cells_divide_the_arena(void) {
    uint64_t cuts[40];
    stw_nvme_cells cells;
    check_cells(0, NULL, 0);
    check_cells(1, NULL, 0);
    check_cells(64 * KIB, NULL, 0);
    check_cells(64 * KIB + 1, NULL, 0);
    for (unsigned turn = 0; turn < 200; turn++) {
        const uint64_t bytes = 1 + random64() % (turn % 2 == 0 ? 3 * MIB : 200 * KIB);
        const uint64_t n = random64() % 40;
        for (uint64_t i = 0; i < n; i++) /* some twice, some at blocks, the ends among them */
            cuts[i] = i % 5 == 4   ? cuts[i - 1]
                      : i % 3 == 0 ? random64() % (bytes + 1)
                                   : random64() % (bytes + 1) / 4096 * 4096;
        if (n > 2) cuts[1] = bytes;
        check_cells(bytes, cuts, n);
    }
    cuts[0] = 10, cuts[1] = 11;
    CHECK_OK(stw_nvme_cells_make(11, cuts, 2, &cells, err));
    stw_nvme_cells_free(&cells);
    CHECK_FAILS(stw_nvme_cells_make(10, cuts, 2, &cells, err), STW_STATUS_BUG,
                "a cut at 11 of an arena of 10 bytes");
    CU_ASSERT_PTR_NULL(cells.cuts);
}

/* ---- pieces ---- */

static void pieces_are_of_whole_cells(void) {
    const uint64_t cuts[] = {2 * MIB + 5, 5 * MIB}, bytes = 8 * MIB + 3;
    stw_nvme_cells cells;
    CHECK_OK(stw_nvme_cells_make(bytes, cuts, 2, &cells, err));
    for (int kind = 0; kind < 3; kind++) { /* bytes alone, writes, reads */
        const stw_nvme_range range = {.writes = kind == 1,
                                      .first = kind == 0 ? 77 : 64 * KIB,
                                      .bytes = bytes - 64 * KIB,
                                      .cells = kind == 0 ? NULL : &cells};
        uint64_t wrong = 0, n = 0;
        for (uint64_t done = 0; done < range.bytes; n++) {
            const uint64_t at = range.first + done, left = range.bytes - done;
            uint64_t most = kind < 2 ? MIB : left > MIB ? 256 * KIB : 64 * KIB;
            for (int c = 0; c < 2 && kind > 0; c++)
                if (at < cuts[c] && cuts[c] - at < most) most = cuts[c] - at;
            const stw_nvme_piece piece = stw_nvme_piece_at(&range, done);
            wrong += piece.done != done || piece.bytes != (left < most ? left : most);
            done += piece.bytes == 0 ? left : piece.bytes;
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT_TRUE(n >= 8);
    }
    stw_nvme_cells_free(&cells);
}

static void checksums_are_set_and_compared(void) {
    const uint64_t bytes = 3 * 64 * KIB + 100, first = 64 * KIB;
    uint64_t sums[4] = {1, 2, 3, 4};
    stw_nvme_hashing hashing = {0, 0, 0};
    stw_nvme_cells cells;
    stw_nvme_stop stop = {0};
    char *memory = malloc(bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    for (uint64_t i = 0; i < bytes; i++) memory[i] = (char)(random64() >> 9);
    CHECK_OK(stw_nvme_cells_make(bytes, NULL, 0, &cells, err));
    stw_nvme_range range = {.writes = true,
                            .memory = memory,
                            .offset = 8192,
                            .bytes = bytes - first,
                            .cells = &cells,
                            .first = first,
                            .sums = sums,
                            .hashing = &hashing};
    const stw_nvme_piece all = {0, bytes - first}, last = {128 * KIB, 100};
    CU_ASSERT_TRUE(stw_nvme_piece_check(&range, all, &stop));
    CU_ASSERT_EQUAL(sums[0], 1); /* not of the range */
    CU_ASSERT_EQUAL(sums[1], stw_nvme_sum(memory, 64 * KIB));
    CU_ASSERT_EQUAL(sums[2], stw_nvme_sum(memory + 64 * KIB, 64 * KIB));
    CU_ASSERT_EQUAL(sums[3], stw_nvme_sum(memory + 128 * KIB, 100));
    CU_ASSERT_EQUAL(hashing.bytes, bytes - first);
    CU_ASSERT_TRUE(hashing.nanoseconds > 0 && hashing.nanoseconds < 1000000000);
    range.writes = false;
    CU_ASSERT_TRUE(stw_nvme_piece_check(&range, all, &stop));
    CU_ASSERT_EQUAL(hashing.bytes, 2 * (bytes - first));
    sums[2] ^= 1;
    memory[128 * KIB + 99]++; /* the first that differs is named */
    CU_ASSERT_FALSE(stw_nvme_piece_check(&range, all, &stop));
    CU_ASSERT_TRUE(stop.damaged);
    CU_ASSERT_EQUAL(stop.offset, 8192 + 64 * KIB);
    CU_ASSERT_EQUAL(stop.found, sums[2] ^ 1);
    CU_ASSERT_EQUAL(stop.expected, sums[2]);
    CU_ASSERT_FALSE(stw_nvme_piece_check(&range, last, &stop));
    CU_ASSERT_EQUAL(stop.offset, 8192 + 128 * KIB);
    CU_ASSERT_EQUAL(stop.found, stw_nvme_sum(memory + 128 * KIB, 100));
    range.hashing = NULL;
    CU_ASSERT_FALSE(stw_nvme_piece_check(&range, last, &stop));
    range.cells = NULL;
    CU_ASSERT_TRUE(stw_nvme_piece_check(&range, last, &stop));
    stw_nvme_cells_free(&cells);
    free(memory);
}

static void direct_pieces_are_of_whole_blocks(void) {
    char *const base = (char *)(uintptr_t)(64 * KIB); /* never touched */
    stw_nvme_range range = {.direct = 0, .memory = base, .offset = 8192};
    CU_ASSERT_TRUE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){4096, 8192}));
    CU_ASSERT_FALSE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){4096, 8191}));
    CU_ASSERT_FALSE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){2048, 4096}));
    range.memory = base + 512;
    CU_ASSERT_FALSE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){4096, 8192}));
    range.offset = 8192 + 2048, range.memory = base + 2048;
    CU_ASSERT_TRUE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){2048, 4096}));
    range.direct = -1;
    CU_ASSERT_FALSE(stw_nvme_piece_is_direct(&range, (stw_nvme_piece){2048, 4096}));
    CU_ASSERT_EQUAL(stw_nvme_progress(true, 5000, 8192), 4096);
    CU_ASSERT_EQUAL(stw_nvme_progress(true, 4095, 8192), 0);
    CU_ASSERT_EQUAL(stw_nvme_progress(true, 8192, 8192), 8192);
    CU_ASSERT_EQUAL(stw_nvme_progress(true, 100, 100), 100);
    CU_ASSERT_EQUAL(stw_nvme_progress(false, 5000, 8192), 5000);
}

static void one_thread_moves_bytes(void) {
    enum { BYTES = 3 << 20 };
    struct timespec now;
    stw_nvme_stop stop = {.code = 5, .offset = 6};
    char *memory = malloc(BYTES), *back = calloc(1, BYTES);
    FILE *file = tmpfile();
    CU_ASSERT_FATAL(memory != NULL && back != NULL && file != NULL);
    for (int i = 0; i < BYTES; i++) memory[i] = (char)(random64() >> 9);
    stw_nvme_range range = {.direct = -1,
                            .buffered = fileno(file),
                            .writes = true,
                            .memory = memory,
                            .offset = 1000,
                            .bytes = BYTES};
    CU_ASSERT_TRUE(stw_nvme_move_here(&range, &stop));
    range.writes = false;
    range.memory = back;
    CU_ASSERT_TRUE(stw_nvme_move_here(&range, &stop));
    CU_ASSERT_EQUAL(memcmp(memory, back, BYTES), 0);
    CU_ASSERT_EQUAL(ftruncate(fileno(file), 1000 + BYTES - 7), 0);
    CU_ASSERT_FALSE(stw_nvme_move_here(&range, &stop)); /* it ends there */
    CU_ASSERT_EQUAL(stop.code, 0);
    CU_ASSERT_EQUAL(stop.offset, 1000 + BYTES - 7);
    CU_ASSERT_FALSE(stop.damaged);
    range.buffered = -1;
    CU_ASSERT_FALSE(stw_nvme_move_here(&range, &stop));
    CU_ASSERT_EQUAL(stop.code, EBADF);
    CU_ASSERT_EQUAL(stop.offset, 1000);
    const uint64_t before = stw_nvme_now_ns();
    CU_ASSERT_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    const uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    CU_ASSERT_TRUE(before <= ns && ns <= stw_nvme_now_ns() && ns - before < 1000000000u);
    fclose(file);
    free(memory);
    free(back);
}

/* ---- names ---- */

static void folders_have_defaults(void) {
    const char *before = getenv("TMPDIR");
    char *kept = before != NULL ? strdup(before) : NULL;
    setenv("TMPDIR", "/of/mine", 1);
    CU_ASSERT_STRING_EQUAL(stw_nvme_folder("named"), "named");
    CU_ASSERT_STRING_EQUAL(stw_nvme_folder(""), "/tmp");
    CU_ASSERT_STRING_EQUAL(stw_nvme_folder(NULL), "/of/mine");
    setenv("TMPDIR", "", 1);
    CU_ASSERT_STRING_EQUAL(stw_nvme_folder(NULL), "/tmp");
    unsetenv("TMPDIR");
    CU_ASSERT_STRING_EQUAL(stw_nvme_folder(NULL), "/tmp");
    if (kept != NULL) setenv("TMPDIR", kept, 1);
    free(kept);
    CU_ASSERT_FALSE(stw_nvme_folder_is_memory("/proc"));
    CU_ASSERT_FALSE(stw_nvme_folder_is_memory("/no/such/folder"));
    const int descriptor = next_descriptor();
    stw_nvme_folder_sync(".");
    CU_ASSERT_EQUAL(next_descriptor(), descriptor);
}

/* stderr takes some bytes of a message at a time, and is interrupted in between. */
static bool takes_little;
static unsigned writes;
ssize_t __real_write(int file, const void *bytes, size_t n);
ssize_t __wrap_write(int file, const void *bytes, size_t n);
ssize_t __wrap_write(int file, const void *bytes, size_t n) {
    if (file != STDERR_FILENO || !takes_little) return __real_write(file, bytes, n);
    if (++writes % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return __real_write(file, bytes, n < 7 ? n : 7);
}

/* In a process of its own, what a signal does, with stderr in a file. */
static void on_signal(void) {
    if (freopen("said.txt", "w", stderr) == NULL) exit(1);
    for (int i = 0; i < 62; i++) /* the table is full but for two */
        if (stw_nvme_names_set(-1, "f", "no.state", 1, STW_NVME_FATE_KEEP) != i) exit(2);
    int a = stw_nvme_names_set(-1, "folder", "a.state", 40, STW_NVME_FATE_REMOVE);
    int b = stw_nvme_names_set(-1, "folder", "b.state", 1, STW_NVME_FATE_REMOVE);
    if (a != 62 || b != 63) exit(3);
    if (stw_nvme_names_set(-1, "f", "c.state", 1, STW_NVME_FATE_REMOVE) != -1) exit(4);
    stw_nvme_names_drop(-1);
    stw_nvme_names_drop(5);
    stw_nvme_names_drop(6);
    if (stw_nvme_names_set(-1, "f", "d.state", 41, STW_NVME_FATE_KEEP) != 5) exit(5);
    if (stw_nvme_names_set(5, "d's", "c.state", 41, STW_NVME_FATE_KEEP) != 5) exit(6);
    if (stw_nvme_names_set(b, "folder", "b.state", 40, STW_NVME_FATE_KEEP) != b) exit(7);
    if (stw_nvme_names_set(-1, "f", "e.state", 10, STW_NVME_FATE_KEEP) != 6) exit(8);
    stw_nvme_names_drop(6); /* it has no name any more, whatever lies there */
    stw_nvme_on_signal();
    exit(0);
}

static void what_a_signal_does(bool little) {
    static const char *const names[] = {"a.state", "b.state", "c.state", "d.state", "e.state"};
    char text[1000] = "";
    int result = 0;
    for (int i = 0; i < 5; i++) write_state(names[i], 40, 110);
    fflush(NULL);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    takes_little = little;
    if (child == 0) on_signal();
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(result));
    CU_ASSERT_EQUAL(WEXITSTATUS(result), 0);
    FILE *said = fopen("said.txt", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(said);
    text[fread(text, 1, sizeof text - 1, said)] = '\0';
    fclose(said);
    CU_ASSERT_STRING_EQUAL(
        text, "stowage: warning: the state on NVMe of step 41 is damaged: the header or the record "
              "was changed in c.state; see: stowage state verify d's\n"
              "stowage: warning: the state on NVMe of step 40 is kept in b.state; see: stowage "
              "state list folder\n");
    for (int i = 0; i < 5; i++) CU_ASSERT_EQUAL(unlink(names[i]), i == 0 ? -1 : 0);
}

static void signals_remove_and_tell(void) {
    what_a_signal_does(false);
    what_a_signal_does(true);
}

STW_TEST_MAIN("backend nvme format", {"places follow each other", places_follow_each_other},
              {"every byte of a header counts", every_byte_of_a_header_counts},
              {"fields of a header are checked", fields_of_a_header_are_checked},
              {"every byte of a record counts", every_byte_of_a_record_counts},
              {"files hold steps", files_hold_steps}, {"ranges have names", ranges_have_names},
              {"cells divide the arena", cells_divide_the_arena},
              {"pieces are of whole cells", pieces_are_of_whole_cells},
              {"checksums are set and compared", checksums_are_set_and_compared},
              {"direct pieces are of whole blocks", direct_pieces_are_of_whole_blocks},
              {"one thread moves bytes", one_thread_moves_bytes},
              {"folders have defaults", folders_have_defaults},
              {"signals remove and tell", signals_remove_and_tell})
