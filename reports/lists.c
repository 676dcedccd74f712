/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of what can be named on the command line: the models of the zoo, and the clusters. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/units.h"
#include "reports/stored.h"
#include "reports/table.h"

/* Routed experts of the widest kind of block. */
static uint64_t experts_of(const stw_model *model) {
    uint64_t experts = 0;
    for (uint32_t i = 0; i < model->n_groups; i++)
        if (model->groups[i].facts.experts > experts) experts = model->groups[i].facts.experts;
    return experts;
}

static stw_word tokens(uint64_t n) {
    stw_word w = {""};
    if (n > 0) w = stw_word_count(n);
    return w;
}

static stw_word billions(uint64_t n) {
    stw_word w;
    double b = (double)n / 1e9;
    snprintf(w.text, sizeof w.text, "%.*f", b < 10 ? 2 : 1, b);
    return w;
}

static void model_row(stw_table *t, const stw_model *m, bool csv) {
    stw_stored stored = stw_stored_get(m);
    bool moe = experts_of(m) > 0;
    stw_table_cell(t, "%s", m->name);
    if (csv) {
        stw_table_cell(t, "%" PRIu64, m->params);
        stw_table_cell(t, "%" PRIu64, m->active_params);
        stw_table_cell(t, "%" PRIu64, stored.bytes);
        stw_table_cell(t, "%s", stored.type);
        stw_table_cell(t, "%s", moe ? "moe" : "dense");
        stw_table_cell(t, "%" PRIu64, m->max_positions);
        stw_table_cell(t, "%s", m->model_type);
        return;
    }
    stw_table_cell(t, "%s", billions(m->params).text);
    stw_table_cell(t, "%s", m->active_params != m->params ? billions(m->active_params).text : "");
    stw_table_cell(t, "%s", stw_word_gib(stored.bytes).text);
    stw_table_cell(t, "%s%s", stored.type, stored.mixed ? " +" : "");
    stw_table_cell(t, "%s", moe ? "MoE" : "dense");
    stw_table_cell(t, "%s", tokens(m->max_positions).text);
}

static stw_status models_json(const stw_model *const *models, size_t n, stw_text *out,
                              stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.models/1");
    stw_json_begin_array(json, "models");
    for (size_t i = 0; i < n; i++) {
        const stw_model *m = models[i];
        stw_stored stored = stw_stored_get(m);
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", m->name);
        stw_json_string(json, "model_type", m->model_type);
        stw_json_u64(json, "params", m->params);
        stw_json_u64(json, "active_params", m->active_params);
        stw_json_u64(json, "tensors", m->n_tensors);
        stw_json_u64(json, "stored_bytes", stored.bytes);
        stw_json_string(json, "stored_dtype", stored.type);
        stw_json_bool(json, "stored_mixed", stored.mixed);
        stw_json_u64(json, "experts", experts_of(m));
        stw_json_u64(json, "layers", m->layers);
        stw_json_u64(json, "hidden", m->hidden);
        stw_json_u64(json, "vocab", m->vocab);
        stw_json_u64(json, "context_length", m->max_positions);
        stw_json_bool(json, "tied_embeddings", m->tied_embeddings);
        stw_json_string(json, "digest", m->digest);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

stw_status stw_report_models(const stw_model *const *models, size_t n, stw_format format,
                             stw_text *out, stw_error *err) {
    static const char *const for_people[] = {"model", ">billion", ">active", ">as stored",
                                             "type",  "kind",     ">context"};
    static const char *const for_machines[] = {"name",           "params",       "active_params",
                                               "stored_bytes",   "stored_dtype", "kind",
                                               "context_length", "model_type"};
    if (format == STW_FORMAT_JSON) return models_json(models, n, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a list");
    bool csv = format == STW_FORMAT_CSV, mixed = false;
    stw_table t;
    stw_table_begin(&t, pool, csv ? for_machines : for_people, csv ? 8 : 7);
    for (size_t i = 0; i < n; i++) {
        model_row(&t, models[i], csv);
        mixed |= stw_stored_get(models[i]).mixed;
    }
    stw_table_write(&t, format, out);
    if (mixed && !csv)
        stw_doc_line(out, format,
                     "Billions of parameters, and of those active for a token. "
                     "+: some tensors are stored in other types.");
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* ---- clusters ---- */

static stw_word rate(double bps) {
    stw_word w = {""};
    if (bps > 0) stw_quantity_format(bps, STW_UNIT_BPS, w.text, sizeof w.text);
    return w;
}

static void cluster_row(stw_table *t, const stw_listed_cluster *listed, bool csv) {
    const stw_cluster *c = listed->cluster;
    const char *rates = c->calibration.measured              ? "measured"
                        : c->calibration.versions[0] != '\0' ? c->calibration.versions
                                                             : "not measured";
    const char *gpu = c->gpu.name;
    if (!csv && strncmp(gpu, "NVIDIA ", 7) == 0) gpu += 7;
    if (!csv && strncmp(gpu, "AMD ", 4) == 0) gpu += 4;
    stw_table_cell(t, "%s", listed->name);
    stw_table_cell(t, "%u", c->gpus);
    stw_table_cell(t, "%s", gpu);
    if (csv) {
        stw_table_cell(t, "%" PRIu64, c->gpu.memory_bytes);
        stw_table_cell(t, "%" PRIu64, c->host.memory_bytes);
        stw_table_cell(t, "%u", c->host.cores);
        stw_table_cell(t, "%s", stw_word_plain_double(c->nic_bps).text);
        stw_table_cell(t, "%" PRIu64, c->nvme.capacity_bytes);
        stw_table_cell(t, "%s", c->calibration.measured ? "yes" : "no");
        stw_table_cell(t, "%s", listed->source);
        return;
    }
    stw_table_cell(t, "%.0f GiB", (double)c->gpu.memory_bytes / (double)(1ull << 30));
    stw_table_cell(t, "%.0f GiB", (double)c->host.memory_bytes / (double)(1ull << 30));
    stw_table_cell(t, "%s", rate(c->nic_bps).text);
    stw_table_cell(t, "%s", rates);
}

static stw_status clusters_json(const stw_listed_cluster *clusters, size_t n, stw_text *out,
                                stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.clusters/1");
    stw_json_begin_array(json, "clusters");
    for (size_t i = 0; i < n; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", clusters[i].name);
        stw_json_string(json, "source", clusters[i].source);
        stw_cluster_write_json(clusters[i].cluster, json, "cluster");
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

stw_status stw_report_clusters(const stw_listed_cluster *clusters, size_t n, stw_format format,
                               stw_text *out, stw_error *err) {
    static const char *const for_people[] = {"cluster", ">GPUs",    "GPU",  ">memory",
                                             ">host",   ">network", "rates"};
    static const char *const for_machines[] = {
        "name",       "gpus",     "gpu",   "gpu_bytes", "host_bytes", "cores", "nic_bps_per_gpu",
        "nvme_bytes", "measured", "source"};
    if (format == STW_FORMAT_JSON) return clusters_json(clusters, n, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a list");
    bool csv = format == STW_FORMAT_CSV;
    stw_table t;
    stw_table_begin(&t, pool, csv ? for_machines : for_people, csv ? 10 : 7);
    t.spare = 2; /* network and rates */
    for (size_t i = 0; i < n; i++) cluster_row(&t, &clusters[i], csv);
    stw_table_write(&t, format, out);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}
