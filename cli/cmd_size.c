/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "core/progress.h"
#include "planner/planner.h"
#include "planner/size.h"
#include "reports/reports.h"

enum { MOST_KINDS = 32, MOST_MODELS = 32 };

typedef struct request {
    stw_inputs in;
    stw_values models; /* each one name or several with commas */
    const char *gpus, *jobs;
} request;

/** One kind of GPU as the user names it, and its whole node. */
typedef struct kind {
    const char *name;
    char cluster[160]; /* that --cluster takes */
    stw_cluster node;
} kind;

/* A kind: "h100-80g" is the node h100-80g-x8, or the largest that is sold with it; else any
 * cluster, of which one node counts. */
static stw_status open_kind(kind *out, stw_error *err) {
    static const char *const sizes[] = {"x8", "x4", "x1"};
    stw_status status = STW_STATUS_BAD_INPUT;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && status != STW_STATUS_OK; i++) {
        stw_error why = STW_ERROR_INIT;
        snprintf(out->cluster, sizeof out->cluster, "%.150s-%s", out->name, sizes[i]);
        status = stw_inputs_cluster(out->cluster, &out->node, &why);
    }
    if (status != STW_STATUS_OK) {
        out->cluster[0] = '\0'; /* the name */
        status = stw_inputs_cluster(out->name, &out->node, err);
    }
    out->node.nodes = 1;
    return status;
}

/** Names of an option. */
typedef struct names {
    const char *option;
    stw_pool *pool;
    uint32_t n, most;
    const char *list[MOST_MODELS > MOST_KINDS ? MOST_MODELS : MOST_KINDS];
} names;

/* Add names with commas between, each once. */
static stw_status add_names(names *to, const char *list, stw_error *err) {
    for (const char *at = list; *at != '\0';) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ",");
        const bool more = at[length] == ',';
        const char *next = at + length + (more ? 1 : 0);
        while (length > 0 && at[length - 1] == ' ') length--;
        if (to->n == to->most)
            return stw_fail(err, STW_STATUS_USAGE, to->option, "more than %u names", to->most);
        if (length == 0)
            return stw_fail(err, STW_STATUS_USAGE, to->option, "found an empty name in \"%s\"",
                            list);
        const char *name = stw_pool_printf(to->pool, "%.*s", (int)length, at);
        if (name == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, to->option, "out of memory");
        for (uint32_t i = 0; i < to->n; i++)
            if (strcmp(to->list[i], name) == 0)
                return stw_fail(err, STW_STATUS_USAGE, to->option, "%s is given twice", name);
        to->list[to->n++] = name;
        at = next;
    }
    return STW_STATUS_OK;
}

/* "h100-80g=2.99": a kind and its price per GPU-hour. A file may have '=' in its name. */
static stw_status take_price(const char *given, stw_pool *pool, const char **name, double *usd,
                             stw_error *err) {
    const char *sign = strrchr(given, '=');
    *name = given;
    if (sign == NULL || stw_file_exists(given)) return STW_STATUS_OK;
    char *end = NULL;
    *usd = strtod(sign + 1, &end);
    if (end == sign + 1 || *end != '\0' || !(*usd >= 1e-6 && *usd <= 1e6))
        return stw_fail(err, STW_STATUS_USAGE, "--gpus",
                        "%s: found \"%.40s\", expected a price per GPU-hour in USD", given,
                        sign + 1);
    *name = stw_pool_printf(pool, "%.*s", (int)(sign - given), given);
    return *name != NULL ? STW_STATUS_OK
                         : stw_fail(err, STW_STATUS_NO_MEMORY, "--gpus", "out of memory");
}

static stw_status read_kinds(const char *list, stw_pool *pool, kind *kinds, uint32_t *n,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    names all = {.option = "--gpus", .pool = pool, .most = MOST_KINDS};
    STW_TRY(add_names(&all, list, err));
    for (uint32_t i = 0; i < all.n; i++) {
        double usd = 0;
        STW_TRY(take_price(all.list[i], pool, &kinds[i].name, &usd, err));
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(kinds[k].name, kinds[i].name) == 0)
                STW_TRY(
                    stw_fail(err, STW_STATUS_USAGE, "--gpus", "%s is given twice", kinds[i].name));
        STW_TRY(open_kind(&kinds[i], err));
        if (usd > 0) kinds[i].node.usd_per_gpu_hour = usd;
        stw_warn_of_gpu(kinds[i].node.gpu.name, true);
    }
    *n = all.n;
    if (all.n == 0)
        status =
            stw_fail(err, STW_STATUS_USAGE, "--gpus", "expected names, such as a100-80g,h100-80g");
out:
    return status;
}

/* A file may have commas in its name. */
static stw_status read_models(const request *r, names *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < r->models.n; i++) {
        const char *given = r->models.items[i];
        if (given[0] == '\0')
            return stw_fail(err, STW_STATUS_USAGE, all->option, "found an empty name");
        if (!stw_file_exists(given))
            STW_TRY(add_names(all, given, err));
        else if (all->n == all->most)
            return stw_fail(err, STW_STATUS_USAGE, all->option, "more than %u names", all->most);
        else
            all->list[all->n++] = given;
    }
    if (all->n > 1 && r->in.from != NULL)
        return stw_fail(err, STW_STATUS_USAGE, all->option, "--from is of one model, found %u",
                        all->n);
    if (all->n == 0) all->n = 1; /* none: that of --from, or an error */
out:
    return status;
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

/* What is opened, and the answers. */
typedef struct sizing {
    stw_pool *pool;
    names models;
    stw_opened *opened; /* [models.n] */
    uint32_t n_kinds, n;
    kind kinds[MOST_KINDS];
    stw_size_answer *answers; /* [n] by model, then kind */
    const stw_point_base **bases;
} sizing;

static stw_status open_all(request *r, sizing *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *kinds = r->gpus != NULL ? r->gpus : "a100-80g,h100-80g,h200";
    STW_TRY(read_kinds(kinds, all->pool, all->kinds, &all->n_kinds, err));
    const size_t most = (size_t)all->models.n * all->n_kinds;
    all->opened = stw_pool_array(all->pool, all->models.n, sizeof *all->opened);
    all->answers = stw_pool_array(all->pool, most, sizeof *all->answers);
    all->bases = stw_pool_array(all->pool, most, sizeof *all->bases);
    if (all->opened == NULL || all->answers == NULL || all->bases == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory"));
    r->in.cluster = "h100-80g-x8"; /* of which nothing is used */
    for (uint32_t m = 0; m < all->models.n; m++) {
        r->in.model = all->models.list[m];
        STW_TRY(stw_inputs_open(&r->in, &all->opened[m], err));
        for (uint32_t k = 0; k < all->n_kinds; k++) {
            all->bases[all->n] = &all->opened[m].base;
            all->answers[all->n++] = (stw_size_answer){.model = all->opened[m].model,
                                                       .name = all->kinds[k].name,
                                                       .cluster = all->kinds[k].node};
        }
    }
out:
    return status;
}

/* Where nothing fits is worst, then where that is not known in time, then where it may not. */
static int exit_code_of(const sizing *all) {
    bool none = false, late = false, risky = false;
    for (uint32_t i = 0; i < all->n; i++) {
        const stw_size_answer *a = &all->answers[i];
        late = late || a->row.verdict == STW_SWEEP_TIME_LIMIT;
        none = none || (!a->fits && a->row.verdict != STW_SWEEP_TIME_LIMIT);
        risky = risky || a->row.verdict != STW_SWEEP_FITS;
    }
    return stw_status_exit_code(none    ? STW_STATUS_NOTHING_FITS
                                : late  ? STW_STATUS_TIME_LIMIT
                                : risky ? STW_STATUS_AT_RISK
                                        : STW_STATUS_OK);
}

/* ---- commands ---- */

/* A word of a shell command. */
static void put_word(stw_text *out, const char *option, const char *word) {
    const char *quote = strpbrk(word, " *?[](){}|&;<>$'#~") != NULL ? "\"" : "";
    stw_text_printf(out, " %s %s%s%s", option, quote, word, quote);
}

/* The `stowage plan` of a cluster and a layout. NULL: no memory. */
static const char *command_of(const request *r, const char *model, const kind *of,
                              const stw_cluster *cluster, const char *const *settings, uint32_t n,
                              stw_pool *pool) {
    const char *name = of->cluster[0] != '\0' ? of->cluster : of->name;
    stw_text out = STW_TEXT_INIT;
    char word[4200];
    stw_text_printf(&out, "stowage plan");
    if (model != NULL) put_word(&out, "--model", model);
    if (r->in.from != NULL) put_word(&out, "--from", r->in.from);
    if (cluster->gpus < of->node.gpus)
        snprintf(word, sizeof word, "%.4000s:%u", name, cluster->gpus);
    else
        snprintf(word, sizeof word, "%.4000s", name);
    put_word(&out, "--cluster", word);
    if (r->in.run != NULL) put_word(&out, "--run", r->in.run);
    for (size_t i = 0; i < r->in.set.n; i++) put_word(&out, "--set", r->in.set.items[i]);
    snprintf(word, sizeof word, "nodes=%u", cluster->nodes);
    if (cluster->gpus == of->node.gpus) put_word(&out, "--set", word);
    for (uint32_t i = 0; i < n; i++) put_word(&out, "--set", settings[i]);
    const char *kept = out.failed ? NULL : stw_pool_string(pool, out.data);
    stw_text_free(&out);
    return kept;
}

static stw_status note_commands(const request *r, sizing *all, stw_error *err) {
    for (uint32_t i = 0; i < all->n; i++) {
        stw_size_answer *a = &all->answers[i];
        const char *model = all->models.list[i / all->n_kinds];
        const kind *of = &all->kinds[i % all->n_kinds];
        if (!a->fits) continue;
        a->command = command_of(r, model, of, &a->cluster, a->settings, a->n_settings, all->pool);
        if (a->cheapest.nodes > 0)
            a->cheapest_command = command_of(r, model, of, &a->cheapest, a->cheapest_settings,
                                             a->n_cheapest_settings, all->pool);
        if (a->command == NULL || (a->cheapest.nodes > 0 && a->cheapest_command == NULL))
            return stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory");
    }
    return STW_STATUS_OK;
}

static stw_status size(request *r, const stw_general *general, int *code, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_size_options options = {.time_limit_s = STW_PLANNER_TIME_LIMIT_S};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    uint64_t jobs = 0;
    stw_pool *pool = stw_pool_new();
    sizing *all = pool != NULL ? stw_pool_array(pool, 1, sizeof *all) : NULL;
    if (all == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory");
        goto out;
    }
    *all =
        (sizing){.pool = pool, .models = {.option = "--model", .pool = pool, .most = MOST_MODELS}};
    STW_TRY(stw_page_format(general, false, &format, err));
    const stw_named_path output = {"-o", general->output};
    const stw_named_path inputs[] = {STW_INPUT_PATHS(r->in)};
    STW_TRY(stw_check_outputs(&output, 1, inputs, sizeof inputs / sizeof inputs[0], err));
    STW_TRY(read_models(r, &all->models, err));
    for (uint32_t m = 0; m < all->models.n; m++) {
        const stw_named_path model = {"--model", all->models.list[m]};
        STW_TRY(stw_check_outputs(&output, 1, &model, 1, err));
    }
    STW_TRY(check_settings(&r->in, err));
    STW_TRY(stw_option_u64("--jobs", r->jobs, 1, &jobs, err));
    options.jobs = jobs < 1000 ? (uint32_t)jobs : 1000;
    STW_TRY(stw_option_double("--time-limit", r->in.time_limit, &options.time_limit_s, err));
    if (!(options.time_limit_s > 0)) options.time_limit_s = STW_PLANNER_TIME_LIMIT_S;
    STW_TRY(open_all(r, all, err));
    stw_progress_phase("size", STW_PROGRESS_SECONDS, 0);
    status = stw_size_find(all->bases, &options, pool, all->answers, all->n, err);
    stw_progress_end();
    if (status != STW_STATUS_OK) goto out;
    STW_TRY(note_commands(r, all, err));
    if (format == STW_FORMAT_HTML) {
        stw_page_item item = {.name = "", .sizes = all->answers, .n_sizes = all->n};
        STW_TRY(stw_page_emit(general, &item, 1, err));
    } else {
        if (stw_is_summary(general, format))
            STW_TRY(stw_report_size_summary(all->answers, all->n, &text, err));
        else
            STW_TRY(stw_report_sizes(all->answers, all->n, format, &text, err));
        STW_TRY(stw_emit(general, &text, err));
    }
    if (stw_has_summary(general)) {
        stw_text_free(&text);
        STW_TRY(stw_report_format(&(stw_general){0}, &format, err));
        STW_TRY(stw_report_size_summary(all->answers, all->n, &text, err));
        STW_TRY(stw_emit(&(stw_general){0}, &text, err));
    }
    *code = exit_code_of(all);
out:
    stw_text_free(&text);
    for (uint32_t m = 0; all != NULL && all->opened != NULL && m < all->models.n; m++)
        stw_opened_free(&all->opened[m]);
    stw_pool_free(pool);
    return status;
}

int stw_cmd_size(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {.gpus = NULL};
    size_t n = 0;
    int code = 0;
    const char *none[1];
    const stw_option options[] = {
        {"--model", "-m", "MODELS",
         "zoo names, config.json, safetensors or CSV tensor lists, with commas; repeatable",
         STW_OPTION_LIST, &r.models},
        {"--from", NULL, "FRAMEWORK:FILE", "model and run from a framework's arguments",
         STW_OPTION_ONCE, &r.in.from},
        {"--run", "-r", "FILE", "run.yaml; default: all defaults", STW_OPTION_ONCE, &r.in.run},
        {"--set", NULL, "KEY=VALUE", "set a key of run.yaml or cluster.yaml; repeatable",
         STW_OPTION_LIST, &r.in.set},
        {"--gpus", "-g", "LIST",
         "kinds of GPU (h100-80g is the node h100-80g-x8) or names of clusters, with commas; "
         "h100-80g=2.99: at so many USD per GPU-hour; default a100-80g,h100-80g,h200",
         STW_OPTION_VALUE, &r.gpus},
        {"--jobs", "-j", "N", "rows to work on at once; default: as many as cores",
         STW_OPTION_VALUE, &r.jobs},
        {"--time-limit", NULL, "SECONDS", "limit of each plan; default 30", STW_OPTION_VALUE,
         &r.in.time_limit},
        STW_ACCEPT_OPTION(r.in),
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "size",
        "--model MODELS",
        "Find the smallest cluster of each kind on which the run of each model fits, and the one "
        "with the fewest GPU-hours per token. The smallest: GPUs of a node one by one, then nodes "
        "one by one; where 4 nodes are not enough, 1,024 are looked at next, and where these are "
        "not either, none is taken to be. On each count all layouts are searched in which ranks "
        "hold less (parallel.cp, ep, tp, pp, etp, loss.fused and load.method, as far as the engine "
        "searches them and neither --set nor the run gives them; the tokens of a step stay), the "
        "run's own first; the first that fits is taken, with --set parallel=auto the fastest. "
        "The cheapest: counts up to 16 nodes, or 4 times those of the smallest, with the layouts "
        "that parallel=auto searches; counts and layouts whose rows of seconds say that they are "
        "dearer are left out, and nothing more is looked for where forward and backward compute "
        "all the time; of what costs the same to 1% the fewest GPUs. By price where every kind on "
        "which the model fits has one (node.price_per_gpu_hour), else by GPU-hours. Where nothing "
        "says the engine, one that cuts layers is tried, too: for the cheapest where the best "
        "takes 1.3 times what it computes, and for all where the default engine fits on no count. "
        "Where the run does not fit, lower precision and other engines are tried. Beside a "
        "smallest that is at risk stands the smallest count without risk. With -v: the layout, "
        "what binds, the largest micro batch, host memory and the `stowage plan` of each row. "
        "Exit code 4: there is a row that does not fit; 5: there is none, but a row of which the "
        "time limit ended the search before anything that fits was found; 9: a row is at risk, or "
        "its forward and backward are unknown; 3: every cluster refuses the settings.",
        options,
        sizeof options / sizeof options[0],
        0,
        0,
        stw_inputs_hint};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, none, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    status = stw_inputs_accept(&r.in, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    status = size(&r, &general, &code, &err);
    return status != STW_STATUS_OK ? stw_exit(status, &err) : code;
}
