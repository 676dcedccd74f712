/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/run_spec.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/cluster_check.h"
#include "plan/spec/registry.h"

/* Reading every default takes longer than most plans' own keys do. Lists are empty by default, so
 * that all that specs share with `defaults` are strings that nobody writes to. */
static struct {
    pthread_mutex_t mutex;
    stw_run_spec spec; /* its pool stays */
    size_t n_rows;     /* of the table that it was made from; engines may add some */
    uint32_t n_engines;
} defaults = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The mutex is held. */
static stw_status read_defaults(stw_error *err) {
    const stw_spec_table *table = stw_run_spec_table();
    stw_run_spec read = {.pool = defaults.spec.pool};
    if (defaults.n_rows == table->n_rows && defaults.n_engines == stw_engine_spec_count())
        return STW_STATUS_OK;
    if (read.pool == NULL) read.pool = stw_pool_new();
    if (read.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "run spec", "out of memory");
    defaults.spec.pool = read.pool;
    const stw_spec spec = {table, &read, read.pool, NULL};
    stw_status status = stw_spec_defaults(&spec, err);
    if (status != STW_STATUS_OK) return status;
    defaults.spec = read;
    defaults.n_rows = table->n_rows;
    defaults.n_engines = stw_engine_spec_count();
    return status;
}

stw_status stw_run_spec_init(stw_run_spec *run, stw_error *err) {
    memset(run, 0, sizeof *run);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "run spec", "out of memory");
    pthread_mutex_lock(&defaults.mutex);
    stw_status status = read_defaults(err);
    if (status == STW_STATUS_OK) *run = defaults.spec;
    pthread_mutex_unlock(&defaults.mutex);
    if (status == STW_STATUS_OK)
        run->pool = pool;
    else
        stw_pool_free(pool);
    return status;
}

/* ---- defaults of an engine's own ---- */

static const char precision[] = "precision";
static const char *const precisions[] = {"params", "compute", "grads",     "reduce",
                                         "master", "exp_avg", "exp_avg_sq"};
enum { N_PRECISIONS = sizeof precisions / sizeof precisions[0] };

static void give(stw_run_spec *run, const char *name) {
    for (uint32_t i = 0; i < N_PRECISIONS; i++)
        if (strcmp(name, precisions[i]) == 0) run->given_precision |= 1u << i;
}

static void give_all(stw_run_spec *run, const stw_node *map) {
    for (size_t i = 0; map != NULL && map->kind == STW_NODE_OBJECT && i < map->n_items; i++)
        give(run, map->items[i]->key);
}

enum { PARAMS, COMPUTE }; /* of precisions */

/* The defaults that the run asks of its engine. */
static const stw_engine_default *asked(const stw_run_spec *run) {
    const stw_engine_spec *engine = stw_run_spec_engine(run);
    const unsigned given = run->given_precision;
    const bool params = (given >> PARAMS & 1) != 0, compute = (given >> COMPUTE & 1) != 0;
    const bool half = (params && run->precision.params == STW_DTYPE_F16) ||
                      (compute && run->precision.compute == STW_DTYPE_F16);
    return half && engine->fp16 != NULL ? engine->fp16 : engine->defaults;
}

static const char *default_of(const stw_engine_default *of, const char *key) {
    for (const stw_engine_default *d = of; d != NULL && d->key != NULL; d++)
        if (strcmp(d->key, key) == 0) return d->value;
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    return row != NULL ? row->fallback : NULL;
}

/* Keys precision.* that are not given take defaults of the run's engine. */
static stw_status follow(stw_run_spec *run, const stw_engine_default *defaults_of_engine,
                         stw_error *err) {
    const stw_spec spec = {stw_run_spec_table(), run, run->pool, NULL};
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < N_PRECISIONS && status == STW_STATUS_OK; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s.%s", precision, precisions[i]);
        const char *value = default_of(defaults_of_engine, key);
        if ((run->given_precision >> i & 1) == 0 && value != NULL)
            status = stw_spec_set(&spec, key, value, "default", err);
    }
    return status;
}

stw_status stw_run_spec_init_as(const stw_run_spec *run, stw_run_spec *out, stw_error *err) {
    stw_status status = stw_run_spec_init(out, err);
    if (status != STW_STATUS_OK) return status;
    status = follow(out, asked(run), err);
    if (status != STW_STATUS_OK) stw_run_spec_free(out);
    return status;
}

void stw_run_spec_free(stw_run_spec *run) {
    if (run == NULL) return;
    stw_pool_free(run->pool);
    memset(run, 0, sizeof *run);
}

stw_status stw_run_spec_from_node(const stw_tree *tree, const stw_node *node, stw_run_spec *run,
                                  stw_error *err) {
    stw_run_spec read = *run; /* so that a spec that cannot be read changes nothing */
    const stw_engine_default *before = asked(run);
    const stw_spec spec = {stw_run_spec_table(), &read, run->pool, &read.searches};
    stw_status status = stw_spec_read(&spec, tree, node, err);
    if (status == STW_STATUS_OK && node->kind == STW_NODE_OBJECT)
        give_all(&read, stw_node_get(node, precision));
    if (status == STW_STATUS_OK && asked(&read) != before)
        status = follow(&read, asked(&read), err);
    if (status == STW_STATUS_OK) *run = read;
    return stw_error_in(status, tree->file, err);
}

stw_status stw_run_spec_read(const char *path, stw_run_spec *run, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_tree_read_yaml(path, &tree, err));
    STW_TRY(stw_run_spec_from_node(tree, tree->root, run, err));
out:
    stw_tree_free(tree);
    return status;
}

stw_status stw_run_spec_set(stw_run_spec *run, const char *key, const char *value,
                            const char *origin, stw_error *err) {
    const stw_spec spec = {stw_run_spec_table(), run, run->pool, &run->searches};
    const stw_engine_default *before = asked(run);
    const size_t length = strlen(precision);
    stw_tree *tree = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_spec_set(&spec, key, value, origin, err));
    /* the short form searches what was set before it, too */
    if (strcmp(key, "parallel") == 0 && strcmp(value, "auto") == 0) run->searches.given = 0;
    if (strcmp(key, precision) == 0) {
        STW_TRY(stw_tree_parse_yaml(origin, value, strlen(value), &tree, err));
        give_all(run, tree->root);
    } else if (strncmp(key, precision, length) == 0 && key[length] == '.') {
        give(run, key + length + 1);
    }
    if (asked(run) != before) STW_TRY(follow(run, asked(run), err));
out:
    stw_tree_free(tree);
    return status;
}

uint32_t stw_run_spec_searched(const stw_run_spec *run, uint32_t engine) {
    const uint32_t all = run->search_all ? engine & ~run->searches.given : 0;
    return run->searches.keys | all;
}

bool stw_run_spec_is_open(const stw_run_spec *run) {
    return run->search_all || run->searches.keys != 0;
}

uint64_t stw_run_spec_steps(const stw_run_spec *run) {
    return stw_times(run->batch.mini_batches, run->batch.epochs);
}

uint64_t stw_run_spec_full_step_tokens(const stw_run_spec *run, uint64_t world) {
    const stw_parallel *by = &run->parallel;
    const uint64_t ways = stw_max_u64(stw_times(by->tp, by->pp), 1);
    const uint64_t each =
        run->batch.max_tokens_per_gpu > 0
            ? run->batch.max_tokens_per_gpu
            : stw_times(run->batch.micro_batch, run->batch.seq_len) / stw_max_u64(by->cp, 1);
    return stw_times(stw_times(each, world) / ways, run->batch.grad_accumulation);
}

uint64_t stw_run_spec_step_tokens(const stw_run_spec *run, uint64_t world) {
    const uint64_t given = run->batch.tokens_per_step;
    return given > 0 ? given : stw_run_spec_full_step_tokens(run, world);
}

double stw_run_spec_update_share(const stw_run_spec *run, stw_update update) {
    switch (update) {
    case STW_UPDATE_RESIDENT:
        return run->update.resident;
    case STW_UPDATE_STREAM:
        return run->update.stream;
    case STW_UPDATE_CPU:
        return run->update.cpu;
    default: {
        bool wanted = run->optimizer.implementation == STW_OPTIMIZER_DIRECT;
        return wanted && run->update.direct <= 0 ? STW_AUTO_NUMBER : run->update.direct;
    }
    }
}

bool stw_run_spec_has_key(const char *key) { return stw_spec_has_key(stw_run_spec_table(), key); }

size_t stw_spec_near_keys(const char *key, const char **out, size_t most) {
    const stw_spec_table *const tables[] = {stw_run_spec_table(), stw_cluster_table()};
    return stw_spec_near(tables, 2, key, out, most);
}

size_t stw_spec_meant_keys(const char *key, const char **out, size_t most) {
    const stw_spec_table *const tables[] = {stw_run_spec_table(), stw_cluster_table()};
    return stw_spec_meant(tables, 2, key, out, most);
}

stw_status stw_specs_set(stw_cluster *cluster, stw_run_spec *run, const char *setting,
                         const char *origin, stw_error *err) {
    const char *equals = strchr(setting, '=');
    char key[160];
    if (equals == NULL || equals == setting || equals - setting >= (long)sizeof key)
        return stw_fail(err, STW_STATUS_USAGE, origin, "found \"%s\", expected KEY=VALUE", setting);
    snprintf(key, sizeof key, "%.*s", (int)(equals - setting), setting);
    if (stw_run_spec_has_key(key)) return stw_run_spec_set(run, key, equals + 1, origin, err);
    if (stw_cluster_has_key(key)) return stw_cluster_set(cluster, key, equals + 1, origin, err);
    const char *near[STW_SPEC_MOST_NEAR];
    char hint[512];
    size_t n_near = stw_spec_near_keys(key, near, STW_SPEC_MOST_NEAR);
    stw_spec_hint("", near, n_near, hint, sizeof hint);
    const bool of_role = strncmp(key, "roles", 5) == 0;
    return stw_fail(err, STW_STATUS_USAGE, origin, "unknown key \"%s\"%s", key,
                    of_role      ? "; keys of roles have their number: roles.0.name, ..."
                    : n_near > 0 ? hint
                                 : "; default.yaml among the examples lists the keys of a run");
}

stw_status stw_specs_set_all(stw_cluster *cluster, stw_run_spec *run, const char *const *settings,
                             size_t n, const char *option, stw_error *err) {
    const stw_cluster before = *cluster;
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < n && status == STW_STATUS_OK; i++) {
        char origin[200];
        snprintf(origin, sizeof origin, "%s %s", option, settings[i]);
        status = stw_specs_set(cluster, run, settings[i], origin, err);
    }
    if (status == STW_STATUS_OK) stw_cluster_follow(&before, settings, n, cluster);
    return status;
}

void stw_run_spec_write_json(const stw_run_spec *run, stw_json *json, const char *key) {
    stw_json_begin_object(json, key);
    stw_spec_write_json(stw_run_spec_table(), run, json);
    stw_json_end(json);
}

void stw_run_spec_write_yaml(const stw_run_spec *run, stw_text *out) {
    stw_spec_write_yaml(stw_run_spec_table(), run, out);
}
