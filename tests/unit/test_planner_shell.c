/* SPDX-License-Identifier: Apache-2.0 */
/* Launch scripts as a shell reads them: what surrounds a command is no part of it. */
#include "core/deadline.h"
#include "core/text.h"
#include "planner/frameworks/shell/shell.h"
#include "tests/unit/testing.h"

static bool trains(const stw_shell_word *words, size_t n) {
    return n > 0 && strcmp(words[0].text, "train") == 0;
}

/* The words of the command that is found, each in brackets. */
static const char *words_of(const char *script, size_t *n_found) {
    stw_pool *pool = stw_pool_new();
    stw_shell shell;
    stw_text text = STW_TEXT_INIT;
    static char out[512];
    CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
    CHECK_OK(stw_shell_find("s.sh", script, strlen(script), trains, pool, &shell, err));
    for (size_t i = 0; i < shell.n_words && shell.n_found > 0; i++)
        stw_text_printf(&text, "[%s]", shell.words[i].text);
    if (n_found != NULL) *n_found = shell.n_found;
    snprintf(out, sizeof out, "%s", text.data != NULL ? text.data : "");
    stw_text_free(&text);
    stw_pool_free(pool);
    return out;
}

static void check(const char *script, const char *expected) {
    CU_ASSERT_STRING_EQUAL(words_of(script, NULL), expected);
}

static void redirections_go(void) {
    check("train a=1 2>&1 | tee log.txt\n", "[train][a=1]");
    check("train a=1 \\\n    2>&1 | tee -a log.txt\n", "[train][a=1]");
    check("nohup train a=1 >log.txt 2>&1 &\n", "[train][a=1]");
    check("train 2>err.txt a=2 </dev/null\n", "[train][a=2]");
    check("train a=2 b=2\n", "[train][a=2][b=2]"); /* digits alone are no descriptor */
}

static void here_documents_go(void) {
    check("cat <<EOF\nDon't (\nEOF\ntrain a=1\n", "[train][a=1]");
    check("train a=1\ncat <<'END' >notes\ntrain a=2\nEND\n", "[train][a=1]");
    check("cat <<-EOF\n\tIt's\n\tEOF\ntrain a=1\n", "[train][a=1]");
    check("cat <<A <<B\n'\nA\n\"\nB\ntrain a=1\n", "[train][a=1]");
    check("cat <<EOF\r\nit's\r\nEOF\r\ntrain a=1\r\n", "[train][a=1]");
    check("cat <<<\"x\"\ntrain a=1\n", "[train][a=1]"); /* a string, not a document */
    check("cat <<EOF\ntrain a=1\n", "");                /* never ends */
}

static void arguments_of_the_script_are_none(void) {
    check("train a \"$@\"\n", "[train][a]");
    check("train a $@ b\n", "[train][a][b]");
    check("train a \"${@:2}\"\n", "[train][a]");
    check("X=()\ntrain a \"${X[@]}\" b\n", "[train][a][b]");
    check("train a \"\" b\n", "[train][a][][b]");
}

static void commands_inside_stay_whole(void) {
    check("name=run_$(date +%Y %H)\ntrain name=$name b\n", "[train][name=run_$(date +%Y %H)][b]");
    check("n=`ls x | wc -l`\ntrain n=$n b\n", "[train][n=`ls x | wc -l`][b]");
    check("train n=$(ls x | wc -l) b\n", "[train][n=$(ls x | wc -l)][b]");
    check("dir=\"$(cd \"$(dirname \"$0\")\" && pwd)\"\ntrain \"a=$dir\"\n",
          "[train][a=$(cd \"$(dirname \"$0\")\" && pwd)]");
    check("echo \"$(echo \"it's\")\"\ntrain a\n", "[train][a]");
    check("train n=$((2 * (3 + 1)))\n", "[train][n=8]");
}

static void sums_stay_within_64_bits(void) {
    check("train $(((1073741824 + 1073741824) * 1073741824))\n", "[train][2305843009213693952]");
    check("train $((9223372036854775807 + 1)) $((1 << 63))\n",
          "[train][-9223372036854775808][-9223372036854775808]");
}

static void several_commands_are_counted(void) {
    size_t n;
    const char *script = "if x; then\ntrain a=1\nelse\ntrain a=2\nfi\n";
    CU_ASSERT_STRING_EQUAL(words_of(script, &n), "[train][a=2]");
    CU_ASSERT_EQUAL(n, 2);
}

/* A function that nothing calls does not run. */
static void functions_wait_for_calls(void) {
    check("S=5\nf() { S=9; }\ntrain $S\n", "[train][5]");
    check("S=5\nf ()\n{\n S=9\n { S=8; }\n}\ntrain $S\n", "[train][5]");
    check("S=5\nfunction f {\n S=9\n}\ntrain $S\n", "[train][5]");
    check("train a\nf() { train b; }\n", "[train][a]");
}

/* Brackets that never close are not searched again and again. */
static void open_brackets_take_no_time(void) {
    static const char *const opens[] = {"${", "$(", "${A:-"};
    for (size_t i = 0; i < 3; i++) {
        stw_pool *pool = stw_pool_new();
        stw_shell shell;
        stw_error err = STW_ERROR_INIT;
        stw_text text = STW_TEXT_INIT;
        stw_text_printf(&text, "A=");
        while (text.length < 1000000) stw_text_printf(&text, "%s", opens[i]);
        stw_text_printf(&text, "\ntrain a\n");
        CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
        CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
        CU_ASSERT_EQUAL(stw_shell_find("s.sh", text.data, text.length, trains, pool, &shell, &err),
                        STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "brackets"));
        stw_text_free(&text);
        stw_pool_free(pool);
    }
}

/* In as many steps as the product of the lengths of text and pattern. */
static void patterns_take_no_time(void) {
    stw_text text = STW_TEXT_INIT;
    stw_text_printf(&text, "X=");
    for (int i = 0; i < 500; i++) stw_text_printf(&text, "%c", i % 3 == 0 ? 'b' : 'a');
    stw_text_printf(&text, "\n");
    for (int i = 0; i < 200; i++) stw_text_printf(&text, "Y=${X//[!b]*[!b]*[!b]*[!b]*c/q}\n");
    stw_text_printf(&text, "train ${#Y}\n");
    check(text.data, "[train][500]");
    stw_text_free(&text);
}

static void reading_ends_with_its_time(void) {
    const char *script = "i=0\nwhile [ $i -lt 2000 ]; do i=$((i+1)); done\ntrain a\n";
    stw_pool *pool = stw_pool_new();
    stw_shell shell;
    const double before = stw_deadline_set(stw_now_s() - 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
    CHECK_FAILS(stw_shell_find("s.sh", script, strlen(script), trains, pool, &shell, err),
                STW_STATUS_TIME_LIMIT, "reading");
    (void)stw_deadline_set(before);
    stw_pool_free(pool);
}

STW_TEST_MAIN("planner shell", {"redirections go", redirections_go},
              {"here-documents go", here_documents_go},
              {"arguments of the script are none", arguments_of_the_script_are_none},
              {"commands inside stay whole", commands_inside_stay_whole},
              {"sums stay within 64 bits", sums_stay_within_64_bits},
              {"several commands are counted", several_commands_are_counted},
              {"functions wait for calls", functions_wait_for_calls},
              {"open brackets take no time", open_brackets_take_no_time},
              {"patterns take no time", patterns_take_no_time},
              {"reading ends with its time", reading_ends_with_its_time})
