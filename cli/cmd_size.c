/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/progress.h"
#include "planner/size.h"
#include "reports/reports.h"

enum { MOST_KINDS = 32 };

typedef struct request {
    stw_inputs in;
    const char *gpus, *jobs;
} request;

/* A kind: "h100-80g" is the node h100-80g-x8; else any cluster, of which one node counts. */
static stw_status open_kind(const char *name, stw_cluster *out, stw_error *err) {
    char whole[160];
    stw_error why = STW_ERROR_INIT;
    snprintf(whole, sizeof whole, "%.150s-x8", name);
    stw_status status = stw_cluster_open(whole, out, &why);
    if (status != STW_STATUS_OK) status = stw_cluster_open(name, out, err);
    out->nodes = 1;
    return status;
}

static stw_status read_kinds(const char *list, stw_pool *pool, stw_size_answer *answers,
                             uint32_t *n, stw_error *err) {
    for (const char *at = list; *at != '\0';) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ",");
        const bool more = at[length] == ',';
        const char *next = at + length + (more ? 1 : 0);
        while (length > 0 && at[length - 1] == ' ') length--;
        if (*n == MOST_KINDS)
            return stw_fail(err, STW_STATUS_USAGE, "--gpus", "more than %d kinds", MOST_KINDS);
        if (length == 0)
            return stw_fail(err, STW_STATUS_USAGE, "--gpus", "found an empty name in \"%s\"", list);
        char *name = stw_pool_printf(pool, "%.*s", (int)length, at);
        if (name == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "--gpus", "out of memory");
        for (uint32_t i = 0; i < *n; i++)
            if (strcmp(answers[i].name, name) == 0)
                return stw_fail(err, STW_STATUS_USAGE, "--gpus", "%s is given twice", name);
        answers[*n].name = name;
        stw_status status = open_kind(name, &answers[*n].cluster, err);
        if (status != STW_STATUS_OK) return status;
        (*n)++;
        at = next;
    }
    if (*n > 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, "--gpus", "expected names, such as a100-80g,h100-80g");
}

/* The number of nodes and GPUs is the answer, not an input. */
static stw_status check_settings(const stw_inputs *in, stw_error *err) {
    static const char *const keys[] = {"nodes", "node.gpus"};
    for (size_t i = 0; i < in->set.n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            size_t length = strlen(keys[k]);
            if (strncmp(in->set.items[i], keys[k], length) == 0 && in->set.items[i][length] == '=')
                return stw_fail(err, STW_STATUS_USAGE, "--set", "%s is what size finds; omit it",
                                keys[k]);
        }
    return STW_STATUS_OK;
}

static stw_status size(request *r, const stw_general *general, bool *all_fit, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_opened opened = {0};
    stw_size_answer answers[MOST_KINDS] = {{0}};
    stw_size_options options = {.time_limit_s = STW_PLANNER_TIME_LIMIT_S};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    uint64_t jobs = 0;
    uint32_t n = 0;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory");
    STW_TRY(stw_report_format(general, &format, err));
    const stw_named_path output = {"-o", general->output};
    const stw_named_path inputs[] = {STW_INPUT_PATHS(r->in)};
    STW_TRY(stw_check_outputs(&output, 1, inputs, sizeof inputs / sizeof inputs[0], err));
    STW_TRY(check_settings(&r->in, err));
    STW_TRY(stw_option_u64("--jobs", r->jobs, 1, &jobs, err));
    options.jobs = jobs < 1000 ? (uint32_t)jobs : 1000;
    STW_TRY(stw_option_double("--time-limit", r->in.time_limit, &options.time_limit_s, err));
    if (!(options.time_limit_s > 0)) options.time_limit_s = STW_PLANNER_TIME_LIMIT_S;
    STW_TRY(
        read_kinds(r->gpus != NULL ? r->gpus : "a100-80g,h100-80g,h200", pool, answers, &n, err));
    r->in.cluster = "h100-80g-x8"; /* of which nothing is used */
    STW_TRY(stw_inputs_open(&r->in, &opened, err));
    stw_progress_phase("size", STW_PROGRESS_SECONDS, 0);
    status = stw_size_find(&opened.base, &options, pool, answers, n, err);
    stw_progress_end();
    if (status != STW_STATUS_OK) goto out;
    STW_TRY(stw_report_sizes(opened.model, answers, n, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
    *all_fit = true;
    for (uint32_t i = 0; i < n; i++) *all_fit &= answers[i].fits;
out:
    stw_text_free(&text);
    stw_opened_free(&opened);
    stw_pool_free(pool);
    return status;
}

int stw_cmd_size(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {.gpus = NULL};
    size_t n = 0;
    bool all_fit = false;
    const char *none[1];
    const stw_option options[] = {
        {"--model", "-m", "MODEL", "zoo name, config.json, safetensors or CSV tensor list",
         STW_OPTION_ONCE, &r.in.model},
        {"--from", NULL, "FRAMEWORK:FILE", "model and run from a framework's arguments",
         STW_OPTION_ONCE, &r.in.from},
        {"--run", "-r", "FILE", "run.yaml; default: all defaults", STW_OPTION_ONCE, &r.in.run},
        {"--set", NULL, "KEY=VALUE", "set a key of run.yaml or cluster.yaml; repeatable",
         STW_OPTION_LIST, &r.in.set},
        {"--gpus", "-g", "LIST",
         "kinds of GPU (h100-80g is the node h100-80g-x8) or names of clusters, with commas; "
         "default a100-80g,h100-80g,h200",
         STW_OPTION_VALUE, &r.gpus},
        {"--jobs", "-j", "N", "kinds to work on at once; default: as many as cores",
         STW_OPTION_VALUE, &r.jobs},
        {"--time-limit", NULL, "SECONDS", "limit of each plan; default 30", STW_OPTION_VALUE,
         &r.in.time_limit}};
    const stw_usage usage = {
        "stowage",
        "size",
        "--model MODEL",
        "Find the smallest cluster of each kind on which the run fits: 1, 2, 4, ... GPUs of a "
        "node, then 2, 4, 8, ... nodes, then the exact number of nodes. Where the run's layout "
        "does not fit, one or two of parallel.cp, ep, tp and pp are raised, in powers of two and "
        "with the fewest ranks first, as far as the run leaves these keys at 1 and the engine "
        "takes them; with --set parallel=auto every point searches its layout. Says host memory "
        "per node, throughput, GPU-hours, what binds, and the "
        "longest sequence (in steps of 1,024 tokens) and largest micro batch that fit there. "
        "Exit code 4: there is a kind on which it does not fit, up to 1,024 nodes.",
        options,
        sizeof options / sizeof options[0],
        0,
        0,
        stw_inputs_hint};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, none, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    status = size(&r, &general, &all_fit, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    return all_fit ? 0 : stw_status_exit_code(STW_STATUS_NOTHING_FITS);
}
