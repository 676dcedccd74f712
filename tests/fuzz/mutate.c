/* SPDX-License-Identifier: Apache-2.0 */
/* Sets every scalar of a plan file, a run file, run.yaml, cluster.yaml and config.json to hostile
 * values, one at a time. What a reader accepts is checked, planned, simulated and reported. Nothing
 * may crash, hang, or be called a bug of Stowage.
 *
 * Usage: mutate [-t SECONDS] [-s SEED] MODELS_FOLDER
 * All of them, or as many as the time allows in an order that the seed gives. */
#define _XOPEN_SOURCE 700
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "models/internal.h"
#include "plan/files/run_file.h"
#include "plan/files/verdict.h"
#include "planner/planner.h"
#include "reports/reports.h"
#include "sim/sim.h"
#include "tests/fuzz/spec_check.h"
#include "tests/unit/fixture.h"

static const char *models;

static const char *const hostile[] = {
    "0",
    "-1",
    "1",
    "1.5",
    "1e308",
    "-1e308",
    "1e-320",
    "2147483648",
    "4294967295",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "4611686018427387904",
    "NaN",
    ".nan",
    ".inf",
    "null",
    "true",
    "{}",
    "[]",
    "[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]",
    "{\"a\": {\"a\": {\"a\": 1}}}",
    "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
    "\"\"",
    "\"0\"",
    "\"auto\"",
    "\"none\"",
    "\"unlimited\"",
    "\"16777216 TiB\"",
    "\"-1 GiB\"",
    "\"1e300 s\"",
    "\"\\u001b[2J\\u0007\"",
    "\"\\u0000\"",
    "\"%s%n%s\"",
    "\"../../../../etc/passwd\"",
    NULL, /* very long text */
};
enum { N_HOSTILE = sizeof hostile / sizeof hostile[0], LONG_TEXT = 70000, LIMIT_S = 60 };

/* ---- what is done with a document ---- */

static void must_be_told(stw_status status, const stw_error *err) {
    FUZZ_CHECK(status == err->status && status != STW_STATUS_BUG);
    FUZZ_CHECK((status == STW_STATUS_OK) == (err->text[0] == '\0'));
}

static void report(const stw_plan *plan) {
    stw_text text = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    FUZZ_CHECK(stw_report_plan_summary(plan, 22, &text, &err) == STW_STATUS_OK);
    FUZZ_CHECK(text.length > 0);
    stw_text_free(&text);
}

/* The error of a reader begins with the name of its file. */
static void must_name(const char *file, stw_status status, const stw_error *err) {
    char text[1400];
    must_be_told(status, err);
    if (status == STW_STATUS_OK) return;
    stw_error_format(err, text, sizeof text);
    FUZZ_CHECK(strncmp(text, file, strlen(file)) == 0);
}

/* Takes over the model and the run. */
static void plan_it(stw_model *model, const stw_cluster *cluster, stw_run_spec *run) {
    const stw_planner_options options = {
        .time_limit_s = 0.1, .no_fixes = true, .no_prices = true, .simulate = stw_sim_seconds};
    stw_plan *plan = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_plan_new(model, cluster, run, &plan, &err);
    must_be_told(status, &err);
    if (status == STW_STATUS_OK) {
        status = stw_planner_solve(plan, &options, &err);
        must_be_told(status, &err);
    }
    if (status == STW_STATUS_OK) report(plan);
    stw_plan_free(plan);
}

static void try_plan(const char *text, size_t length) {
    stw_plan *plan = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_plan_parse_edited("plan.json", text, length, &plan, &err);
    must_name("plan.json", status, &err);
    if (status == STW_STATUS_OK) {
        status = stw_sim_check(plan, "plan.json", NULL, &err);
        must_be_told(status, &err);
    }
    if (status == STW_STATUS_OK) report(plan);
    stw_plan_free(plan);
}

static void try_run_file(const char *text, size_t length) {
    stw_run_result *result = NULL;
    stw_text out = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_run_result_parse_edited("run.json", text, length, &result, &err);
    must_name("run.json", status, &err);
    if (status == STW_STATUS_OK)
        FUZZ_CHECK(stw_run_result_to_json(result, &out, &err) == STW_STATUS_OK);
    stw_text_free(&out);
    stw_run_result_free(result);
}

static void try_run_spec(const char *text, size_t length) {
    stw_tree *tree = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_run_spec run = fuzz_run_spec_new();
    stw_cluster cluster = fixture_cluster(1);
    stw_status status = stw_tree_parse_yaml("run.yaml", text, length, &tree, &err);
    if (status == STW_STATUS_OK) status = stw_run_spec_from_node(tree, tree->root, &run, &err);
    if (status == STW_STATUS_OK) status = stw_run_spec_check(&run, "run.yaml", &err);
    must_name("run.yaml", status, &err);
    stw_tree_free(tree);
    if (status != STW_STATUS_OK) {
        stw_run_spec_free(&run);
        return;
    }
    fuzz_run_spec_round_trip(&run, true);
    plan_it(fixture_model((fixture_size){2, 64, 128, 512}), &cluster, &run);
}

static void try_cluster(const char *text, size_t length) {
    stw_tree *tree = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_cluster cluster;
    stw_status status = stw_tree_parse_yaml("cluster.yaml", text, length, &tree, &err);
    if (status == STW_STATUS_OK) status = stw_cluster_from_node(tree, tree->root, &cluster, &err);
    if (status == STW_STATUS_OK) status = stw_cluster_check(&cluster, "cluster.yaml", &err);
    must_name("cluster.yaml", status, &err);
    stw_tree_free(tree);
    if (status != STW_STATUS_OK) return;
    stw_run_spec run = fuzz_run_spec_new();
    plan_it(fixture_model((fixture_size){2, 64, 128, 512}), &cluster, &run);
}

static void try_config(const char *text, size_t length) {
    stw_model *model = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_cluster cluster = fixture_cluster(1);
    stw_status status = stw_model_parse_config("config.json", text, length, models, &model, &err);
    must_name("config.json", status, &err);
    if (status != STW_STATUS_OK) return;
    stw_run_spec run = fuzz_run_spec_new();
    plan_it(model, &cluster, &run);
}

/* ---- documents ---- */

typedef struct document {
    const char *name;
    bool json;
    void (*attempt)(const char *text, size_t length);
    char *text;
    size_t length, n_scalars;
    size_t (*scalars)[2]; /* offset and length of each */
} document;

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": "
    "128,\n"
    " \"intermediate_size\": 128, \"moe_intermediate_size\": 32, \"num_experts\": 4,\n"
    " \"num_experts_per_tok\": 2, \"tie_word_embeddings\": false, \"decoder_sparse_step\": 1,\n"
    " \"mlp_only_layers\": [1], \"torch_dtype\": \"bfloat16\"}\n";

static char *made_plan(size_t *length) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    static const uint32_t units[] = {10, 0};
    const stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan((fixture_size){2, 64, 128, 512}, &cluster, NULL);
    stw_text text = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    fixture_state(plan, 2, places, units);
    FUZZ_CHECK(stw_plan_derive(plan, &err) == STW_STATUS_OK);
    stw_plan_judge(plan);
    FUZZ_CHECK(stw_sim_plan(plan, NULL, &err) == STW_STATUS_OK);
    FUZZ_CHECK(stw_plan_to_json(plan, &text, &err) == STW_STATUS_OK);
    stw_plan_free(plan);
    *length = text.length;
    return text.data;
}

static char *file(const char *folder, const char *name, size_t *length) {
    char path[4096];
    uint64_t bytes = 0;
    char *text = NULL;
    stw_error err = STW_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (stw_file_read(path, 1 << 20, &text, &bytes, &err) != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", path, err.text);
        exit(2);
    }
    *length = (size_t)bytes;
    return text;
}

/* Where a scalar of the tree stands in its text, and how long it is there. */
static void add_scalar(document *d, const stw_node *node) {
    size_t at = 0;
    for (int line = 1; line < node->line; at++) line += d->text[at] == '\n';
    for (int column = 1; column < node->column; at++) /* characters, not bytes */
        column += (d->text[at + 1] & 0xC0) != 0x80;
    size_t n = strlen(node->text);
    char quote = d->text[at];
    if (quote == '"' || quote == '\'') {
        for (n = 1; at + n < d->length && d->text[at + n] != quote;)
            n += d->text[at + n] == '\\' ? 2 : 1;
        n++;
    } else if (strncmp(d->text + at, node->text, n) != 0) {
        return; /* an empty value, or one that is folded */
    }
    d->scalars = realloc(d->scalars, (d->n_scalars + 1) * sizeof *d->scalars);
    FUZZ_CHECK(d->scalars != NULL);
    d->scalars[d->n_scalars][0] = at;
    d->scalars[d->n_scalars++][1] = n;
}

static void find_scalars(document *d, const stw_node *node) {
    if (node->text != NULL) add_scalar(d, node);
    for (size_t i = 0; i < node->n_items; i++) find_scalars(d, node->items[i]);
}

static void prepare(document *d) {
    stw_tree *tree = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = d->json ? stw_tree_parse_json(d->name, d->text, d->length, &tree, &err)
                                : stw_tree_parse_yaml(d->name, d->text, d->length, &tree, &err);
    FUZZ_CHECK(status == STW_STATUS_OK);
    find_scalars(d, tree->root);
    stw_tree_free(tree);
    FUZZ_CHECK(d->n_scalars > 5);
}

/* ---- the walk ---- */

static char under_way[400];

static void tell(int signal_number) {
    static const char hang[] = "\nunder way: ";
    (void)signal_number;
    if (write(STDERR_FILENO, hang, sizeof hang - 1) < 0 ||
        write(STDERR_FILENO, under_way, strlen(under_way)) < 0)
        _exit(3);
    _exit(1);
}

static void mutate(const document *d, size_t scalar, size_t value) {
    static char long_text[LONG_TEXT + 3];
    const char *with = hostile[value];
    if (with == NULL) {
        memset(long_text, 'x', LONG_TEXT + 2);
        long_text[0] = long_text[LONG_TEXT + 1] = '"';
        with = long_text;
    }
    size_t at = d->scalars[scalar][0], old = d->scalars[scalar][1], n = strlen(with);
    size_t length = d->length - old + n;
    char *text = malloc(length + 1); /* of exactly that size: a read behind it shows */
    FUZZ_CHECK(text != NULL);
    memcpy(text, d->text, at);
    memcpy(text + at, with, n);
    memcpy(text + at + n, d->text + at + old, d->length - at - old);
    text[length] = '\0';
    int line_start = (int)at;
    while (line_start > 0 && d->text[line_start - 1] != '\n') line_start--;
    snprintf(under_way, sizeof under_way, "%s: %.*s <- %.60s\n", d->name,
             (int)(at - (size_t)line_start + old < 200 ? at - (size_t)line_start + old : 200),
             d->text + line_start, with);
    alarm(LIMIT_S);
    d->attempt(text, length);
    alarm(0);
    free(text);
}

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* All pairs of a scalar and a value, in steps that are coprime to their number. */
static size_t walk(document *documents, size_t n_documents, double seconds, size_t seed) {
    size_t all = 0, done = 0;
    for (size_t i = 0; i < n_documents; i++) all += documents[i].n_scalars * N_HOSTILE;
    size_t step = seconds > 0 ? 7919 : 1, at = seed % all;
    while (seconds > 0 && all % step == 0) step += 2;
    double end = now_s() + seconds;
    for (; done < all && (seconds <= 0 || now_s() < end); done++, at = (at + step) % all) {
        size_t k = at, i = 0;
        while (k >= documents[i].n_scalars * N_HOSTILE) k -= documents[i++].n_scalars * N_HOSTILE;
        mutate(&documents[i], k / N_HOSTILE, k % N_HOSTILE);
    }
    printf("%zu of %zu mutations of %zu documents\n", done, all, n_documents);
    return done;
}

int main(int argc, char **argv) {
    double seconds = 0;
    size_t seed = 1;
    for (int c; (c = getopt(argc, argv, "t:s:")) != -1;) {
        if (c == 't') seconds = strtod(optarg, NULL);
        if (c == 's') seed = strtoul(optarg, NULL, 10);
    }
    if (optind + 1 != argc) return fprintf(stderr, "usage: mutate [-t S] [-s SEED] MODELS\n"), 2;
    models = argv[optind];
    stw_log_level_set(STW_LOG_ERROR);
    (void)signal(SIGALRM, tell);
    (void)signal(SIGABRT, tell);
    document documents[] = {{"plan.json", true, try_plan, NULL, 0, 0, NULL},
                            {"run.json", true, try_run_file, NULL, 0, 0, NULL},
                            {"run.yaml", false, try_run_spec, NULL, 0, 0, NULL},
                            {"cluster.yaml", false, try_cluster, NULL, 0, 0, NULL},
                            {"config.json", true, try_config, NULL, 0, 0, NULL}};
    enum { N = sizeof documents / sizeof documents[0] };
    documents[0].text = made_plan(&documents[0].length);
    documents[1].text =
        file(STW_SOURCE_DIR, "tests/fuzz/corpus/run_file/stowage.json", &documents[1].length);
    documents[2].text = file(models, "examples/default.yaml", &documents[2].length);
    documents[3].text = file(models, "examples/h200-x1.yaml", &documents[3].length);
    documents[4].text = strdup(config);
    documents[4].length = sizeof config - 1;
    for (size_t i = 0; i < N; i++) prepare(&documents[i]);
    size_t done = walk(documents, N, seconds, seed);
    for (size_t i = 0; i < N; i++) {
        printf("%-14s %zu scalars\n", documents[i].name, documents[i].n_scalars);
        free(documents[i].text);
        free(documents[i].scalars);
    }
    return done == 0;
}
