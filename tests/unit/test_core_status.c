/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of core/: status, checked arithmetic, pool, text, JSON writer, log. */
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/json.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/printable.h"
#include "core/progress.h"
#include "core/status.h"
#include "core/text.h"
#include "core/tree.h"
#include "tests/unit/testing.h"

static void statuses_have_exit_codes(void) {
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_OK), 0);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_NO_MEMORY), 1);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_USAGE), 2);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_IO), 3);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_NOTHING_FITS), 4);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_DISAGREE), 8);
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_BUG), 70);
    CU_ASSERT_EQUAL(stw_status_exit_code((stw_status)1000), 70);
    CU_ASSERT_STRING_EQUAL(stw_status_text(STW_STATUS_BAD_INPUT), "bad input");
    CU_ASSERT_PTR_NOT_NULL(stw_status_text((stw_status)-1));
}

static void first_error_wins(void) {
    stw_error e = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_fail_at(&e, STW_STATUS_BAD_INPUT, "run.yaml", 3, 7, "found %d", 5),
                    STW_STATUS_BAD_INPUT);
    CU_ASSERT_EQUAL(stw_fail_native(&e, STW_STATUS_IO, 2, "other", "second"), STW_STATUS_IO);
    CU_ASSERT_EQUAL(e.status, STW_STATUS_BAD_INPUT);
    CU_ASSERT_EQUAL(e.native, 0);
    char text[100];
    stw_error_format(&e, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "run.yaml:3:7: found 5");
    e.column = 0;
    e.rank = 2;
    stw_error_format(&e, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "rank 2: run.yaml:3: found 5");
    stw_error_format(&e, text, 8);
    CU_ASSERT_STRING_EQUAL(text, "rank...");
    CU_ASSERT_EQUAL(stw_fail(NULL, STW_STATUS_BUG, NULL, "nobody listens"), STW_STATUS_BUG);
    stw_error bare = STW_ERROR_INIT;
    stw_error_format(&bare, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "ok");
    stw_failure_format(STW_STATUS_BAD_INPUT, &bare, text, sizeof text); /* nobody said why */
    CU_ASSERT_STRING_EQUAL(text, "bad input");
    stw_failure_format(STW_STATUS_NO_MEMORY, NULL, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "out of memory");
    stw_failure_format(STW_STATUS_BUG, &e, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "rank 2: run.yaml:3: found 5");
}

/* Names come from files: they neither move the cursor nor begin a line. */
static void errors_are_one_line(void) {
    stw_error e = STW_ERROR_INIT;
    char text[200], line[16];
    (void)stw_fail(&e, STW_STATUS_IO, "a\nb\033[2J.json", "found \"\302\233m\377\tx\" \303\274");
    stw_error_format(&e, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "a\\nb\\x1b[2J.json: found \"\\xc2\\x9bm\\xff\\tx\" \303\274");
    /* override, isolate, Arabic letter mark, zero width, line separator; letters of such scripts
     * stay, and so do accents */
    static const char *const hidden[] = {
        "\342\200\256", "\342\200\252", "\342\201\246", "\342\201\251", "\342\200\216", "\330\234",
        "\342\200\213", "\342\200\215", "\342\201\240", "\342\200\250", "\342\200\251", "\303\255"};
    enum { N_HIDDEN = sizeof hidden / sizeof hidden[0] - 1 };
    for (size_t i = 0; i <= N_HIDDEN; i++)
        CU_ASSERT_EQUAL(stw_printable_length(hidden[i]), i < N_HIDDEN ? 0 : 2);
    CU_ASSERT_EQUAL(stw_printable_length("\327\220"), 2);
    (void)stw_printable_copy("a\342\200\256b", line, sizeof line);
    CU_ASSERT_STRING_EQUAL(line, "a\\xe2\\x80\\xaeb");
    CU_ASSERT_EQUAL(stw_printable_copy("a\001b", line, sizeof line), 6);
    CU_ASSERT_STRING_EQUAL(line, "a\\x01b");
    CU_ASSERT_EQUAL(stw_printable_copy("a\001b", NULL, 0), 6);
    CU_ASSERT_EQUAL(stw_printable_copy("a\001b", line, 6), 6); /* no escape is cut in two */
    CU_ASSERT_STRING_EQUAL(line, "a...");
    CU_ASSERT_EQUAL(stw_printable_copy("abcdef", line, 6), 6);
    CU_ASSERT_STRING_EQUAL(line, "ab...");
    CU_ASSERT_EQUAL(stw_printable_copy("abcdef", line, 7), 6);
    CU_ASSERT_STRING_EQUAL(line, "abcdef");
    CU_ASSERT_EQUAL(stw_printable_copy("abcdef", line, 3), 6);
    CU_ASSERT_STRING_EQUAL(line, "ab");
}

static void long_errors_are_cut(void) {
    char path[600], words[1200];
    memset(path, 'd', sizeof path);
    memcpy(path + sizeof path - 10, "/file.csv", 10);
    memset(words, 'w', sizeof words);
    words[sizeof words - 1] = '\0';
    stw_error e = STW_ERROR_INIT;
    stw_fail_native(&e, STW_STATUS_IO, 5, path, "%s", words);
    CU_ASSERT_EQUAL(e.native, 5);
    CU_ASSERT_EQUAL(strlen(e.where), sizeof e.where - 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.where, "/file.csv")); /* the end says more */
    CU_ASSERT_EQUAL(strncmp(e.where, "...", 3), 0);
    CU_ASSERT_EQUAL(strlen(e.text), sizeof e.text - 1);
    CU_ASSERT_STRING_EQUAL(e.text + sizeof e.text - 4, "...");
}

static void errors_of_readers_begin_with_the_file(void) {
    char text[400], name[400], expected[400];
    stw_error err = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_error_in(STW_STATUS_OK, "a.json", &err), STW_STATUS_OK);
    CU_ASSERT_EQUAL(stw_error_in(STW_STATUS_IO, "a.json", NULL), STW_STATUS_IO);
    CU_ASSERT_EQUAL(err.where[0], '\0');
    stw_status status = stw_fail(&err, STW_STATUS_BAD_INPUT, "a.json", "found 7");
    CU_ASSERT_EQUAL(stw_error_in(status, "a.json", &err), STW_STATUS_BAD_INPUT);
    stw_error_format(&err, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "a.json: found 7"); /* as it was */
    err = (stw_error)STW_ERROR_INIT;
    (void)stw_fail_at(&err, STW_STATUS_BAD_INPUT, "b.csv", 3, 4, "found %d%%", 7);
    CU_ASSERT_EQUAL(stw_error_in(status, "a.json", &err), STW_STATUS_BAD_INPUT);
    stw_error_format(&err, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "a.json: b.csv:3:4: found 7%");
    err = (stw_error)STW_ERROR_INIT;
    (void)stw_fail(&err, STW_STATUS_BAD_INPUT, NULL, "found 7");
    (void)stw_error_in(status, "a.json", &err);
    stw_error_format(&err, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "a.json: found 7");
    /* a name that does not fit keeps its end, and is known again */
    memset(name, 'x', sizeof name);
    strcpy(name + 390, "a.json");
    err = (stw_error)STW_ERROR_INIT;
    (void)stw_fail(&err, STW_STATUS_BAD_INPUT, name, "found 7");
    stw_error_format(&err, expected, sizeof expected);
    (void)stw_error_in(status, name, &err);
    stw_error_format(&err, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, expected);
}

static void arithmetic_is_checked(void) {
    uint64_t out = 0;
    CHECK_OK(stw_mul_u64(UINT32_MAX, UINT32_MAX, &out, "k", err));
    CU_ASSERT_EQUAL(out, UINT64_C(18446744065119617025));
    CHECK_OK(stw_mul_u64(0, UINT64_MAX, &out, "k", err));
    CU_ASSERT_EQUAL(out, 0);
    CHECK_OK(stw_add_u64(UINT64_MAX, 0, &out, "k", err));
    CU_ASSERT_EQUAL(out, UINT64_MAX);
    CHECK_FAILS(stw_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out, "shape", err),
                STW_STATUS_BAD_INPUT, "shape: 4294967296 times 4294967296");
    CHECK_FAILS(stw_add_u64(UINT64_MAX, 1, &out, NULL, err), STW_STATUS_BAD_INPUT,
                "18446744073709551615 plus 1");
    CU_ASSERT_EQUAL(stw_div_up_u64(7, 3), 3);
    CU_ASSERT_EQUAL(stw_div_up_u64(UINT64_MAX, 2), UINT64_C(1) << 63);
    CU_ASSERT_EQUAL(stw_round_up_u64(513, 512), 1024);
    CU_ASSERT_EQUAL(stw_round_up_u64(0, 512), 0);
    CU_ASSERT_EQUAL(stw_round_up_u64(UINT64_MAX - 5, 512), STW_TOO_LARGE);
}

static void formulas_saturate(void) {
    const uint64_t half = UINT64_C(1) << 32;
    CU_ASSERT_EQUAL(stw_times(half, half - 1), UINT64_C(18446744069414584320));
    CU_ASSERT_EQUAL(stw_times(half, half), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_times(STW_TOO_LARGE, 0), 0);
    CU_ASSERT_EQUAL(stw_plus(STW_TOO_LARGE - 1, 1), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_plus(STW_TOO_LARGE, 1), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(STW_SUM(1, 2, 3), 6);
    CU_ASSERT_EQUAL(STW_SUM(1, STW_TOO_LARGE - 1, 3), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_scaled(10, 1.29), 12);
    CU_ASSERT_EQUAL(stw_scaled(UINT64_C(1) << 63, 2), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_scaled(1, 1e308), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_scaled(1, (double)NAN), 0);
    CU_ASSERT_EQUAL(stw_scaled(5, -1), 0);
    CU_ASSERT_EQUAL(stw_ratio_up(7, 3, 2), 11);
    CU_ASSERT_EQUAL(stw_ratio_up(half * half - 1, half, half), UINT64_MAX);
    CU_ASSERT_EQUAL(stw_ratio_up(UINT64_MAX, UINT64_MAX, 1), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_ratio_up(UINT64_C(1) << 40, UINT64_C(1) << 40, UINT64_C(1) << 20),
                    UINT64_C(1) << 60);
}

static void pool_gives_zeroed_aligned_memory(void) {
    stw_pool *pool = stw_pool_new();
    CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
    unsigned char *objects[300];
    unsigned wrong = 0;
    for (size_t i = 0; i < 300; i++) { /* small, then larger than any chunk, mixed */
        size_t size = i % 50 == 49 ? 100000 + i : i * 7 % 200;
        objects[i] = stw_pool_alloc(pool, size);
        CU_ASSERT_PTR_NOT_NULL_FATAL(objects[i]);
        wrong += (uintptr_t)objects[i] % _Alignof(max_align_t) != 0;
        for (size_t k = 0; k < size; k++) wrong += objects[i][k] != 0;
        memset(objects[i], (int)(i % 255) + 1, size);
    }
    for (size_t i = 0; i < 300; i++) { /* nobody wrote over a neighbour */
        size_t size = i % 50 == 49 ? 100000 + i : i * 7 % 200;
        for (size_t k = 0; k < size; k++) wrong += objects[i][k] != i % 255 + 1;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_PTR_NULL(stw_pool_array(pool, SIZE_MAX / 2, 3));
    CU_ASSERT_PTR_NULL(stw_pool_alloc(pool, SIZE_MAX));
    CU_ASSERT_PTR_NOT_EQUAL(stw_pool_alloc(pool, 0), stw_pool_alloc(pool, 0));
    stw_pool_free(pool);
    stw_pool_free(NULL);
}

static void pool_holds_strings_and_arrays(void) {
    stw_pool *pool = stw_pool_new();
    CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
    CU_ASSERT_PTR_NULL(stw_pool_string(pool, NULL));
    CU_ASSERT_STRING_EQUAL(stw_pool_string(pool, "embedding"), "embedding");
    CU_ASSERT_STRING_EQUAL(stw_pool_printf(pool, "%s.%d", "layers", 17), "layers.17");
    int *numbers = NULL;
    size_t capacity = 0;
    unsigned wrong = 0;
    for (size_t i = 0; i < 1000; i++) {
        numbers = stw_pool_grow(pool, numbers, i, i + 1, &capacity, sizeof *numbers);
        CU_ASSERT_PTR_NOT_NULL_FATAL(numbers);
        numbers[i] = (int)i;
    }
    for (size_t i = 0; i < 1000; i++) wrong += numbers[i] != (int)i;
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(capacity >= 1000 && capacity <= 2048);
    CU_ASSERT_PTR_NULL(stw_pool_grow(pool, numbers, 1000, SIZE_MAX / 2, &capacity, 8));
    stw_pool_free(pool);
}

/* An array that begins a chunk which other objects fill is not the chunk's only object. */
static void pool_regrows_only_what_is_alone(void) {
    enum { OBJECT = 64, BEFORE = (1024 + 2048 + 4096 + 8192) / OBJECT, CHUNK = 16384 };
    enum { BESIDE = CHUNK / OBJECT - 8 };
    stw_pool *pool = stw_pool_new();
    unsigned char *objects[BESIDE], expected[OBJECT];
    size_t capacity = 0, damaged = 0;
    memset(expected, 0xa5, sizeof expected);
    for (int i = 0; i < BEFORE; i++) CU_ASSERT_PTR_NOT_NULL_FATAL(stw_pool_alloc(pool, OBJECT));
    unsigned char *array = stw_pool_regrow(pool, NULL, 0, 1, &capacity, OBJECT);
    CU_ASSERT_PTR_NOT_NULL_FATAL(array);
    CU_ASSERT_EQUAL(capacity, 8);
    for (int i = 0; i < BESIDE; i++) {
        objects[i] = stw_pool_alloc(pool, OBJECT);
        CU_ASSERT_PTR_NOT_NULL_FATAL(objects[i]);
        memcpy(objects[i], expected, sizeof expected);
    }
    CU_ASSERT_PTR_EQUAL(objects[BESIDE - 1], array + CHUNK - OBJECT); /* the chunk is full */
    CU_ASSERT_PTR_NOT_NULL_FATAL(stw_pool_regrow(pool, array, 8, 9, &capacity, OBJECT));
    for (int i = 0; i < BESIDE; i++) damaged += memcmp(objects[i], expected, sizeof expected) != 0;
    CU_ASSERT_EQUAL(damaged, 0);
    stw_pool_free(pool);
}

static void text_grows(void) {
    stw_text text = STW_TEXT_INIT;
    for (int i = 0; i < 500; i++) stw_text_printf(&text, "%d,", i);
    stw_text_append(&text, "", 0);
    stw_text_append(&text, "a\0b", 3);
    CHECK_OK(stw_text_status(&text, err));
    CU_ASSERT_EQUAL(text.length, 10 * 2 + 90 * 3 + 400 * 4 + 3);
    CU_ASSERT_EQUAL(strncmp(text.data, "0,1,2,3", 7), 0);
    CU_ASSERT_EQUAL(text.data[text.length], '\0');
    stw_text_append(&text, "x", SIZE_MAX - 5); /* refused before a byte is read */
    CHECK_FAILS(stw_text_status(&text, err), STW_STATUS_NO_MEMORY, "memory");
    stw_text_free(&text);
    CU_ASSERT_PTR_NULL(text.data);
    CHECK_OK(stw_text_status(&text, err));
}

static void text_quotes(void) {
    char out[160], small[12];
    stw_text_quote("a\"b\\c\n\t\r\x01\x7f\xc3\xbc", out, sizeof out);
    CU_ASSERT_STRING_EQUAL(out, "\"a\\\"b\\\\c\\n\\t\\r\\x01\\x7f\xc3\xbc\"");
    stw_text_quote("", out, sizeof out);
    CU_ASSERT_STRING_EQUAL(out, "\"\"");
    char longer[400];
    memset(longer, 'y', sizeof longer);
    longer[399] = '\0';
    stw_text_quote(longer, out, sizeof out);
    CU_ASSERT_TRUE(strlen(out) >= 60 && strlen(out) <= 70);
    CU_ASSERT_STRING_EQUAL(out + strlen(out) - 5, "y...\"");
    stw_text_quote(longer, small, sizeof small);
    CU_ASSERT_TRUE(strlen(small) < sizeof small);
    CU_ASSERT_STRING_EQUAL(small + strlen(small) - 4, "...\"");
    for (size_t i = 0; i < 398; i += 2) memcpy(longer + i, "\xc3\xbc", 2); /* two bytes each */
    longer[398] = '\0';
    stw_text_quote(longer, out, sizeof out);
    CU_ASSERT_EQUAL((strlen(out) - 5) % 2, 0); /* no half character */
}

static void doubles_are_shortest(void) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {3, "3"},
                 {1e300, "1e+300"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "5e-324"},
                 {-0.5, "-0.5"},
                 {DBL_MAX, "1.7976931348623157e+308"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[32];
        stw_text_double(cases[i].value, out, sizeof out);
        CU_ASSERT_STRING_EQUAL(out, cases[i].text);
        CU_ASSERT_EQUAL(strtod(out, NULL), cases[i].value);
    }
}

static void json_is_written(void) {
    stw_json *j = stw_json_new();
    stw_json_begin_object(j, NULL);
    stw_json_string(j, "schema", "stowage.test/1");
    stw_json_string(j, "odd \"key\"", "\x01\n\t\\ \xc3\xbc \xff \xed\xa0\x80");
    stw_json_string(j, "none", NULL);
    stw_json_begin_array(j, "numbers");
    stw_json_u64(j, NULL, 0);
    stw_json_u64(j, NULL, (uint64_t)INT64_MAX);
    stw_json_u64(j, NULL, UINT64_MAX);
    stw_json_double(j, NULL, 0.1);
    stw_json_double(j, NULL, 2);
    stw_json_double(j, NULL, NAN);
    stw_json_end(j);
    stw_json_begin_array(j, "objects");
    stw_json_begin_object(j, NULL);
    stw_json_bool(j, "yes", true);
    stw_json_null(j, "nothing");
    stw_json_end(j);
    stw_json_begin_object(j, NULL);
    stw_json_end(j);
    stw_json_end(j);
    stw_json_end(j);
    stw_text text = STW_TEXT_INIT;
    CHECK_OK(stw_json_finish(j, &text, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    CU_ASSERT_STRING_EQUAL(
        text.data, "{\n"
                   "  \"schema\": \"stowage.test/1\",\n"
                   "  \"odd \\\"key\\\"\": \"\\u0001\\n\\t\\\\ \xc3\xbc \xef\xbf\xbd "
                   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",\n"
                   "  \"none\": null,\n"
                   "  \"numbers\": [0, 9223372036854775807, \"unlimited\", 0.1, 2.0, null],\n"
                   "  \"objects\": [\n"
                   "    {\n"
                   "      \"yes\": true,\n"
                   "      \"nothing\": null\n"
                   "    },\n"
                   "    {}\n"
                   "  ]\n"
                   "}\n");
    stw_tree *tree = NULL; /* what is written can be read */
    CHECK_OK(stw_tree_parse_json("written", text.data, text.length, &tree, err));
    if (tree != NULL) CHECK_OK(stw_tree_schema(tree, "stowage.test", 1, err));
    const stw_node *numbers = tree != NULL ? stw_node_get(tree->root, "numbers") : NULL;
    CU_ASSERT_TRUE(numbers != NULL && numbers->items[4]->kind == STW_NODE_REAL);
    stw_tree_free(tree);
    stw_text_free(&text);
}

static stw_status finish_after(int misuse, stw_error *err) {
    stw_json *j = stw_json_new();
    stw_text text = STW_TEXT_INIT;
    if (misuse != 0) stw_json_begin_object(j, misuse == 1 ? "key" : NULL);
    if (misuse == 2) stw_json_u64(j, NULL, 1);
    if (misuse == 3) stw_json_begin_array(j, "a");
    if (misuse == 3) stw_json_u64(j, "key", 1);
    if (misuse == 5) {
        stw_json_end(j);
        stw_json_end(j);
    }
    if (misuse == 6) {
        stw_json_end(j);
        stw_json_null(j, NULL);
    }
    for (int i = 0; misuse == 7 && i < 100; i++) stw_json_begin_object(j, "deeper");
    stw_status status = stw_json_finish(j, &text, err);
    CU_ASSERT_EQUAL(text.length, 0);
    stw_text_free(&text);
    return status;
}

static void json_misuse_is_a_bug(void) {
    CHECK_FAILS(finish_after(0, err), STW_STATUS_BUG, "without a value");
    CHECK_FAILS(finish_after(1, err), STW_STATUS_BUG, "outside an object");
    CHECK_FAILS(finish_after(2, err), STW_STATUS_BUG, "without a key");
    CHECK_FAILS(finish_after(3, err), STW_STATUS_BUG, "inside an array");
    CHECK_FAILS(finish_after(4, err), STW_STATUS_BUG, "without an end");
    CHECK_FAILS(finish_after(5, err), STW_STATUS_BUG, "without a begin");
    CHECK_FAILS(finish_after(6, err), STW_STATUS_BUG, "second document");
    CHECK_FAILS(finish_after(7, err), STW_STATUS_BUG, "too deep");
    stw_text text = STW_TEXT_INIT;
    stw_json_u64(NULL, "key", 1); /* a writer that could not be made */
    CHECK_FAILS(stw_json_finish(NULL, &text, err), STW_STATUS_NO_MEMORY, "memory");
}

typedef struct heard {
    int n;
    stw_log_level level;
    char text[4096];
} heard;

static void listen_to(stw_log_level level, const char *text, void *user) {
    heard *h = user;
    h->n++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void log_has_levels(void) {
    heard h = {0};
    stw_log_set(listen_to, &h);
    stw_log(STW_LOG_DEBUG, "not by default");
    CU_ASSERT_EQUAL(h.n, 0);
    stw_log(STW_LOG_INFO, "took %d s", 3);
    CU_ASSERT_EQUAL(h.n, 1);
    CU_ASSERT_STRING_EQUAL(h.text, "took 3 s");
    stw_log_level_set(STW_LOG_ERROR);
    stw_log(STW_LOG_WARN, "quiet");
    CU_ASSERT_EQUAL(h.n, 1);
    stw_log_level_set(STW_LOG_DEBUG);
    stw_log(STW_LOG_DEBUG, "%3000d", 1);
    CU_ASSERT_EQUAL(h.n, 2);
    CU_ASSERT_EQUAL(h.level, STW_LOG_DEBUG);
    CU_ASSERT_EQUAL(strlen(h.text), 2047);
    stw_log_level_set(STW_LOG_INFO);
    stw_log_set(NULL, NULL);
}

static void log_goes_to_stderr(void) {
    FILE *file = tmpfile();
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    stw_log(STW_LOG_WARN, "the page-lock limit is %d", 64);
    stw_progress_phase("loading", STW_PROGRESS_SHARE, 2); /* not a terminal, no 10 s: no line */
    stw_progress_end();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    char text[200] = "";
    rewind(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    CU_ASSERT_STRING_EQUAL(text, "stowage: warning: the page-lock limit is 64\n");
}

static void progress_is_drawn_on_terminals(void) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    CU_ASSERT_FATAL(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int far_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    int saved = dup(STDERR_FILENO);
    CU_ASSERT_FATAL(far_end >= 0 && saved >= 0);
    fflush(stderr);
    dup2(far_end, STDERR_FILENO);
    stw_progress_phase("quick", STW_PROGRESS_SHARE, 1); /* over at once: no line */
    stw_progress_end();
    stw_log_level_set(STW_LOG_ERROR);
    stw_progress_phase("silent", STW_PROGRESS_SHARE, 1);
    stw_log_level_set(STW_LOG_INFO);
    stw_progress_phase("load", STW_PROGRESS_BYTES, 4ull << 20);
    stw_progress_add(1ull << 20);
    while (!stw_log_line_is_open()) (void)poll(NULL, 0, 1);
    stw_log(STW_LOG_WARN, "slow");
    stw_progress_phase("step 2 of 3", STW_PROGRESS_SHARE, 8);
    stw_progress_add(1);
    stw_progress_add(1);
    while (!stw_log_line_is_open()) (void)poll(NULL, 0, 1);
    stw_progress_end();
    stw_progress_end(); /* nothing to end */
    CU_ASSERT_FALSE(stw_log_line_is_open());
    fprintf(stderr, "!");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    char text[800] = "";
    size_t used = 0;
    struct pollfd ready = {.fd = terminal, .events = POLLIN};
    while (strchr(text, '!') == NULL && poll(&ready, 1, 5000) == 1) { /* it comes in pieces */
        ssize_t got = read(terminal, text + used, sizeof text - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(far_end);
    close(terminal);
    const char *begins = "\r\033[Kload: 1.00 MiB of 4.00 MiB (25%), ";
    CU_ASSERT_NSTRING_EQUAL(text, begins, strlen(begins));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\r\033[Kstowage: warning: slow\r\n"
                                        "\r\033[Kstep 2 of 3: 25% of it done, "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, " s\r\033[K!"));
}

STW_TEST_MAIN("core status", {"statuses have exit codes", statuses_have_exit_codes},
              {"the first error wins", first_error_wins},
              {"errors are one line", errors_are_one_line},
              {"long errors are cut", long_errors_are_cut},
              {"errors of readers begin with the file", errors_of_readers_begin_with_the_file},
              {"arithmetic is checked", arithmetic_is_checked},
              {"formulas saturate", formulas_saturate},
              {"a pool gives zeroed, aligned memory", pool_gives_zeroed_aligned_memory},
              {"a pool holds strings and arrays", pool_holds_strings_and_arrays},
              {"a pool regrows only what is alone", pool_regrows_only_what_is_alone},
              {"a text grows", text_grows}, {"a text quotes", text_quotes},
              {"doubles are shortest", doubles_are_shortest}, {"JSON is written", json_is_written},
              {"misuse of the JSON writer is a bug", json_misuse_is_a_bug},
              {"the log has levels", log_has_levels},
              {"the log goes to stderr", log_goes_to_stderr},
              {"progress is drawn on terminals", progress_is_drawn_on_terminals})
