/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in three formats, and formatted values. */
#include <math.h>

#include "core/units.h"
#include "reports/table.h"
#include "tests/unit/testing.h"

#define CHECK_TEXT(word, expected) CU_ASSERT_STRING_EQUAL((word).text, (expected))

/* A table of names and numbers with a column that is empty throughout. */
static void write(stw_format format, stw_text *out) {
    static const char *const heads[] = {"name", ">bytes", "note", "odd"};
    stw_pool *pool = stw_pool_new();
    stw_table t;
    stw_table_begin(&t, pool, heads, 4);
    for (int row = 0; row < 2; row++) {
        stw_table_cell(&t, "%s", row == 0 ? "a" : "long|name");
        stw_table_cell(&t, "%d", row == 0 ? 12345678 : 5);
        stw_table_cell(&t, "%s", "");
        stw_table_cell(&t, "%s", row == 0 ? "" : "x, \"y\"");
    }
    stw_table_write(&t, format, out);
    stw_pool_free(pool);
    CHECK_OK(stw_text_status(out, err));
}

static void terminal_columns_line_up(void) {
    stw_text out = STW_TEXT_INIT;
    write(STW_FORMAT_TERMINAL, &out);
    CU_ASSERT_STRING_EQUAL(out.data, "  name          bytes  odd\n"
                                     "  ---------  --------  ------\n"
                                     "  a          12345678\n"
                                     "  long|name         5  x, \"y\"\n");
    stw_text_free(&out);
}

/* Narrower than its words and figures allow, a table continues below; no figure is cut. */
static void tables_wrap_to_the_terminal(void) {
    static const char *const heads[] = {"phase", ">seconds per step", "what limits it", ">GPU", ""};
    stw_text out = STW_TEXT_INIT;
    stw_pool *pool = stw_pool_new();
    stw_table t;
    stw_table_begin(&t, pool, heads, 5);
    for (int row = 0; row < 2; row++) {
        stw_table_cell(&t, "%s", row == 0 ? "load" : "step");
        stw_table_cell(&t, "%s", row == 0 ? "1.25 s" : "330 ms");
        stw_table_cell(&t, "%s", row == 0 ? "host memory bandwidth" : "PCIe");
        stw_table_cell(&t, "%s", row == 0 ? "28.00 GiB" : "7.00 GiB");
        stw_table_cell(&t, "%s", "[####]");
    }
    stw_report_width_set(46);
    stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
    CU_ASSERT_STRING_EQUAL(out.data, "         seconds per  what limits\n"
                                     "  phase         step  it                   GPU\n"
                                     "  -----  -----------  -------------  ---------\n"
                                     "  load        1.25 s  host memory    28.00 GiB\n"
                                     "                      bandwidth\n"
                                     "  step        330 ms  PCIe            7.00 GiB\n");
    stw_text_free(&out);
    stw_report_width_set(30);
    stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
    CU_ASSERT_STRING_EQUAL(out.data, "           seconds  what\n"
                                     "  phase   per step  limits it\n"
                                     "  -----  ---------  ----------\n"
                                     "  load      1.25 s  host\n"
                                     "                    memory\n"
                                     "                    bandwidth\n"
                                     "  step      330 ms  PCIe\n"
                                     "\n"
                                     "  phase        GPU\n"
                                     "  -----  ---------\n"
                                     "  load   28.00 GiB\n"
                                     "  step    7.00 GiB\n");
    stw_text_free(&out);
    stw_report_width_set(0);
    stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "  host memory bandwidth  28.00 GiB  [####]\n"));
    stw_text_free(&out);
    stw_pool_free(pool);
}

/* A figure keeps its unit. */
static void sentences_wrap_to_the_terminal(void) {
    stw_text out = STW_TEXT_INIT;
    stw_report_width_set(40);
    stw_doc_line(&out, STW_FORMAT_TERMINAL, "The optimizer step takes about %s of GPU memory.",
                 "12 GiB");
    stw_doc_item(&out, STW_FORMAT_TERMINAL, "%s", "short");
    stw_doc_line(&out, STW_FORMAT_MARKDOWN, "a paragraph of Markdown is never wrapped to a width");
    stw_report_width_set(0);
    CU_ASSERT_STRING_EQUAL(out.data, "  The optimizer step takes about 12 GiB\n"
                                     "    of GPU memory.\n"
                                     "  - short\n\n"
                                     "a paragraph of Markdown is never wrapped to a width\n\n");
    stw_text_free(&out);
}

/* On a narrow terminal the last columns go before cells are wrapped, as many as are spare. */
static void spare_columns_go_first(void) {
    static const char *const heads[] = {"name", ">bytes", "note", "more"};
    static const char *const cells[] = {"first", "12345678", "a long note", "and more of it"};
    static const size_t widths[] = {80, 40, 24};
    static const char *const seen[][2] = {
        {"a long note", "and more"}, {"a long note", NULL}, {NULL, NULL}};
    for (int w = 0; w < 3; w++) {
        stw_text out = STW_TEXT_INIT;
        stw_pool *pool = stw_pool_new();
        stw_table t;
        stw_report_width_set((unsigned)widths[w]);
        stw_table_begin(&t, pool, heads, 4);
        for (int c = 0; c < 4; c++) stw_table_cell(&t, "%s", cells[c]);
        t.spare = 2;
        stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
        stw_report_width_set(0);
        CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "first  12345678"));
        CU_ASSERT_EQUAL(strstr(out.data, "a long note") != NULL, seen[w][0] != NULL);
        CU_ASSERT_EQUAL(strstr(out.data, "and more") != NULL, seen[w][1] != NULL);
        stw_text_free(&out);
        stw_pool_free(pool);
    }
}

static void markdown_escapes_bars(void) {
    stw_text out = STW_TEXT_INIT;
    write(STW_FORMAT_MARKDOWN, &out);
    CU_ASSERT_STRING_EQUAL(out.data, "| name | bytes | odd |\n"
                                     "|---|---:|---|\n"
                                     "| a | 12345678 |  |\n"
                                     "| long\\|name | 5 | x, \"y\" |\n");
    stw_text_free(&out);
}

static void csv_quotes_and_keeps_columns(void) {
    stw_text out = STW_TEXT_INIT;
    write(STW_FORMAT_CSV, &out);
    CU_ASSERT_STRING_EQUAL(out.data, "name,bytes,note,odd\n"
                                     "a,12345678,,\n"
                                     "long|name,5,,\"x, \"\"y\"\"\"\n");
    stw_text_free(&out);
    /* what a spreadsheet would compute is text; figures stay */
    const char *const cells[] = {"=1+1", "+A1", "-A1", "@f, g", "-0.5", "+3%", "-", "a=b"};
    stw_csv_row(&out, cells, 8);
    CU_ASSERT_STRING_EQUAL(out.data, "'=1+1,'+A1,'-A1,\"'@f, g\",-0.5,+3%,-,a=b\n");
    stw_text_free(&out);
}

static void empty_and_broken_tables(void) {
    static const char *const heads[] = {"a", "b"};
    stw_text out = STW_TEXT_INIT;
    stw_pool *pool = stw_pool_new();
    stw_table t;
    stw_table_begin(&t, pool, heads, 2);
    stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
    CU_ASSERT_EQUAL(out.length, 0);
    stw_table_cell(&t, "%s", "a row that is not whole");
    stw_table_write(&t, STW_FORMAT_TERMINAL, &out);
    CHECK_FAILS(stw_text_status(&out, err), STW_STATUS_NO_MEMORY, "");
    stw_text_free(&out);
    stw_pool_free(pool);
}

static void figures_as_words(void) {
    CHECK_TEXT(stw_word_number(0), "0");
    CHECK_TEXT(stw_word_number(1e-9), "< 0.001");
    CHECK_TEXT(stw_word_number(0.0354), "0.0354");
    CHECK_TEXT(stw_word_number(99.96), "100");
    CHECK_TEXT(stw_word_number(999.7), "1,000");
    CHECK_TEXT(stw_word_number(2291.4), "2,290");
    CHECK_TEXT(stw_word_number(3.1256e9), "3,130,000,000");
    CHECK_TEXT(stw_word_gib(1ull << 30), "1.00 GiB");
    CHECK_TEXT(stw_word_gib(0), "0.00 GiB");
    CHECK_TEXT(stw_word_gib(65530000000ull), "61.03 GiB");
    CHECK_TEXT(stw_word_gib(1), "< 0.01 GiB");
    CHECK_TEXT(stw_word_gib(1ull << 23), "0.01 GiB");
    CHECK_TEXT(stw_word_gib(STW_UNLIMITED), "unlimited");
    CHECK_TEXT(stw_word_seconds(NAN), "unknown");
    CHECK_TEXT(stw_word_seconds(0.0123), "12.3 ms");
    CHECK_TEXT(stw_word_count(0), "0");
    CHECK_TEXT(stw_word_count(999), "999");
    CHECK_TEXT(stw_word_count(1000), "1,000");
    CHECK_TEXT(stw_word_count(4022468096ull), "4,022,468,096");
    CHECK_TEXT(stw_word_share(1, 4), "25.0%");
    CHECK_TEXT(stw_word_share(1, 0), "");
    CHECK_TEXT(stw_word_share(NAN, 1), "");
    CHECK_TEXT(stw_word_bar(1, 2), "[##########..........]");
    CHECK_TEXT(stw_word_bar(0, 2), "[....................]");
    CHECK_TEXT(stw_word_bar(1, 1000), "[#...................]");
    CHECK_TEXT(stw_word_bar(2, 2), "[####################]");
    CHECK_TEXT(stw_word_bar(3, 2), "[####################> OVER");
    CHECK_TEXT(stw_word_bar(3, STW_UNLIMITED), "");
    CHECK_TEXT(stw_word_plain_double(0.1), "0.1");
    CHECK_TEXT(stw_word_plain_double(NAN), "");
}

/* A line directly behind a table would be a row of it; one behind a list, a part of its last item.
 */
static void markdown_keeps_parts_apart(void) {
    stw_text out = STW_TEXT_INIT;
    stw_doc_gap(&out, STW_FORMAT_MARKDOWN);
    stw_text_printf(&out, "| a |\n|---|\n| 1 |\n");
    stw_doc_line(&out, STW_FORMAT_MARKDOWN, "sentence");
    stw_doc_item(&out, STW_FORMAT_MARKDOWN, "one");
    stw_doc_item(&out, STW_FORMAT_MARKDOWN, "two");
    stw_doc_line(&out, STW_FORMAT_MARKDOWN, "sentence");
    stw_doc_heading(&out, STW_FORMAT_MARKDOWN, "Next");
    CU_ASSERT_STRING_EQUAL(out.data, "| a |\n|---|\n| 1 |\n\nsentence\n\n- one\n- two\n\n"
                                     "sentence\n\n## Next\n\n");
    stw_text_free(&out);
}

STW_TEST_MAIN("reports table", {"terminal columns line up", terminal_columns_line_up},
              {"tables wrap to the terminal", tables_wrap_to_the_terminal},
              {"sentences wrap to the terminal", sentences_wrap_to_the_terminal},
              {"spare columns go first", spare_columns_go_first},
              {"markdown escapes bars", markdown_escapes_bars},
              {"markdown keeps parts apart", markdown_keeps_parts_apart},
              {"CSV quotes and keeps columns", csv_quotes_and_keeps_columns},
              {"empty and broken tables", empty_and_broken_tables},
              {"figures as words", figures_as_words})
