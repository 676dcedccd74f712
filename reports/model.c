/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "core/json.h"

#include "reports/stored.h"
#include "reports/table.h"

static void group_shape(const stw_block_facts *f, char *out, size_t out_size) {
    char attention[80] = "", mlp[80] = "";
    if (f->kv_rank > 0)
        snprintf(attention, sizeof attention, "MLA, %llu heads", (unsigned long long)f->q_heads);
    else if (f->q_heads > 0)
        snprintf(attention, sizeof attention, "%llu heads, %llu kv", (unsigned long long)f->q_heads,
                 (unsigned long long)f->kv_heads);
    else if (f->linear_v_heads > 0)
        snprintf(attention, sizeof attention, "linear attention, %llu heads",
                 (unsigned long long)f->linear_v_heads);
    if (f->experts > 0)
        snprintf(mlp, sizeof mlp, "%llu experts, %llu per token", (unsigned long long)f->experts,
                 (unsigned long long)f->experts_per_token);
    else if (f->ffn > 0)
        snprintf(mlp, sizeof mlp, "MLP %llu", (unsigned long long)f->ffn);
    snprintf(out, out_size, "%s%s%s", attention, *attention != '\0' && *mlp != '\0' ? "; " : "",
             mlp);
}

static void write_groups(const stw_model *model, stw_format format, stw_pool *pool, stw_text *out) {
    static const char *const for_people[] = {"tensor group", ">blocks",  ">parameters", ">share",
                                             "shape",        ">tensors", ">per block"};
    static const char *const for_machines[] = {"name", "count", "tensors", "params",
                                               "active_params"};
    bool csv = format == STW_FORMAT_CSV;
    stw_table t;
    stw_table_begin(&t, pool, csv ? for_machines : for_people, csv ? 5 : 7);
    t.spare = 2;
    for (uint32_t i = 0; i < model->n_groups; i++) {
        const stw_block_group *g = &model->groups[i];
        stw_table_cell(&t, "%s", g->name);
        stw_table_cell(&t, "%u", g->count);
        if (csv) {
            stw_table_cell(&t, "%u", g->tensors);
            stw_table_cell(&t, "%llu", (unsigned long long)g->params);
            stw_table_cell(&t, "%llu", (unsigned long long)g->active_params);
            continue;
        }
        char shape[200];
        group_shape(&g->facts, shape, sizeof shape);
        stw_table_cell(&t, "%s", stw_word_count(g->params).text);
        stw_table_cell(&t, "%s", stw_word_share((double)g->params, (double)model->params).text);
        stw_table_cell(&t, "%s", shape);
        stw_table_cell(&t, "%u", g->tensors);
        stw_table_cell(&t, "%s", g->count > 1 ? stw_word_count(g->params / g->count).text : "");
    }
    stw_table_write(&t, format, out);
}

static void write_for_people(const stw_model *model, stw_format format, stw_pool *pool,
                             stw_text *out) {
    stw_stored stored = stw_stored_get(model);
    if (*model->model_type != '\0')
        stw_doc_title(out, format, "%s (%s)", model->name, model->model_type);
    else
        stw_doc_title(out, format, "%s (tensor list, unknown architecture)", model->name);
    stw_doc_line(out, format, "%s parameters in %s tensors, %s as stored (%s%s)",
                 stw_word_count(model->params).text, stw_word_count(model->n_tensors).text,
                 stw_word_gib(stored.bytes).text, stored.type, stored.mixed ? " and others" : "");
    if (stored.unused > 0)
        stw_doc_line(out, format,
                     "%s of them are block scales and tensors that training does not hold",
                     stw_word_gib(stored.unused).text);
    if (model->active_params != model->params)
        stw_doc_line(out, format, "%s parameters active per token (%s)",
                     stw_word_count(model->active_params).text,
                     stw_word_share((double)model->active_params, (double)model->params).text);
    if (model->n_buffers > 0)
        stw_doc_line(out, format, "%s elements in %u buffers (not counted as parameters)",
                     stw_word_count(model->buffers).text, model->n_buffers);
    if (model->layers > 0)
        stw_doc_line(out, format, "%llu layers, hidden size %llu, vocabulary %llu%s",
                     (unsigned long long)model->layers, (unsigned long long)model->hidden,
                     (unsigned long long)model->vocab,
                     model->tied_embeddings ? ", embedding and head tied" : "");
    if (!model->facts_known)
        stw_doc_line(out, format,
                     "State and optimizer steps can be planned. Activations and forward-backward "
                     "time cannot be predicted without a config.json.");
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
    write_groups(model, format, pool, out);
}

static stw_status write_json(const stw_model *model, stw_text *out, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.model/1");
    stw_json_string(json, "name", model->name);
    stw_json_string(json, "model_type", model->model_type);
    stw_json_u64(json, "params", model->params);
    stw_json_u64(json, "active_params", model->active_params);
    stw_json_u64(json, "tensors", model->n_tensors);
    stw_json_u64(json, "stored_bytes", model->stored_bytes);
    stw_json_begin_array(json, "groups");
    for (uint32_t i = 0; i < model->n_groups; i++) {
        const stw_block_group *g = &model->groups[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", g->name);
        stw_json_u64(json, "count", g->count);
        stw_json_u64(json, "params", g->params);
        stw_json_u64(json, "tensors", g->tensors);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

stw_status stw_report_model(const stw_model *model, stw_format format, stw_text *out,
                            stw_error *err) {
    if (format == STW_FORMAT_JSON) return write_json(model, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format == STW_FORMAT_CSV)
        write_groups(model, format, pool, out);
    else
        write_for_people(model, format, pool, out);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}
