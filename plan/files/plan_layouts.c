/* SPDX-License-Identifier: Apache-2.0 */
/* How the layout of ranks was found. It is only printed; nothing is computed from it. A plan whose
 * run left nothing open has no such member. */
#include <math.h>

#include "plan/files/file_parts.h"
#include "plan/files/plan_file.h"

static const char member[] = "layouts";

static const char *verdict_word(unsigned v) { return stw_verdict_name((stw_verdict)v); }

static void write_row(const stw_layout_row *row, stw_json *json) {
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "settings", row->settings);
    stw_json_string(json, "verdict", stw_verdict_name(row->verdict));
    stw_json_double(json, "iteration_s", row->iteration_s);
    stw_json_u64(json, "gpu_peak_bytes", row->gpu_peak_bytes);
    stw_json_u64(json, "host_peak_bytes", row->host_peak_bytes);
    stw_json_end(json);
}

void stw_plan_write_layouts(const stw_plan *plan, stw_json *json) {
    const stw_layout_search *s = &plan->layout_search;
    if (s->searched == NULL) return;
    stw_json_begin_object(json, member);
    stw_json_string(json, "searched", s->searched);
    stw_json_u64(json, "admitted", s->admitted);
    stw_json_u64(json, "planned", s->planned);
    stw_json_u64(json, "compared", s->compared);
    stw_json_u64(json, "unfinished", s->unfinished);
    stw_json_u64(json, "refused", s->refused);
    stw_json_u64(json, "too_slow", s->too_slow);
    stw_json_u64(json, "too_big", s->too_big);
    stw_json_u64(json, "unfit", s->unfit);
    stw_json_u64(json, "left", s->left);
    stw_json_u64(json, "late", s->late);
    stw_json_double(json, "seconds", s->seconds);
    stw_json_begin_array(json, "best");
    for (uint32_t i = 0; i < s->n_rows; i++) write_row(&s->rows[i], json);
    stw_json_end(json);
    stw_json_end(json);
}

static stw_status read_row(const stw_tree *tree, const stw_node *node, stw_pool *pool,
                           stw_layout_row *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    enum { N_VERDICTS = STW_N_VERDICTS };
    const char *verdict = NULL;
    STW_TRY(stw_part_string(tree, node, "settings", false, pool, &out->settings, err));
    STW_TRY(stw_node_string(tree, node, "verdict", &verdict, err));
    const unsigned v = stw_part_find(verdict, verdict_word, N_VERDICTS);
    if (v == N_VERDICTS)
        return stw_node_fail(tree, stw_node_get(node, "verdict"),
                             "fits, at_risk, does_not_fit or unknown", err);
    out->verdict = (stw_verdict)v;
    STW_TRY(stw_part_real(tree, node, "iteration_s", &out->iteration_s, err));
    STW_TRY(stw_part_u64(tree, node, "gpu_peak_bytes", UINT64_MAX, &out->gpu_peak_bytes, err));
    STW_TRY(stw_part_u64(tree, node, "host_peak_bytes", UINT64_MAX, &out->host_peak_bytes, err));
out:
    return status;
}

static stw_status read_counts(const stw_tree *tree, const stw_node *node, stw_layout_search *s,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const struct {
        const char *key;
        uint64_t *out;
    } counts[] = {
        {"admitted", &s->admitted}, {"planned", &s->planned},   {"compared", &s->compared},
        {"refused", &s->refused},   {"too_slow", &s->too_slow}, {"too_big", &s->too_big},
        {"unfit", &s->unfit},       {"left", &s->left},         {"late", &s->late}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        STW_TRY(stw_part_u64(tree, node, counts[i].key, UINT32_MAX, counts[i].out, err));
    if (stw_node_get(node, "unfinished") != NULL) /* older plans have none */
        STW_TRY(stw_part_u64(tree, node, "unfinished", UINT32_MAX, &s->unfinished, err));
    const uint64_t sum = s->planned + s->refused + s->too_slow + s->too_big + s->left + s->late;
    if (sum != s->admitted)
        return stw_part_fail(tree, stw_node_get(node, "admitted"), err,
                             "admitted: found %llu, the layouts that are counted below it are "
                             "%llu",
                             (unsigned long long)s->admitted, (unsigned long long)sum);
out:
    return status;
}

stw_status stw_plan_read_layouts(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_layout_search *s = &plan->layout_search;
    const stw_node *node = stw_node_get(tree->root, member), *rows = NULL;
    if (node == NULL) return STW_STATUS_OK;
    STW_TRY(stw_node_object(tree, tree->root, member, &node, err));
    STW_TRY(stw_part_string(tree, node, "searched", false, plan->pool, &s->searched, err));
    STW_TRY(read_counts(tree, node, s, err));
    STW_TRY(stw_part_seconds(tree, node, "seconds", &s->seconds, err));
    STW_TRY(stw_node_array(tree, node, "best", &rows, err));
    if (rows->n_items > STW_MAX_LAYOUT_ROWS)
        return stw_node_fail(tree, rows, "at most 8 layouts", err);
    for (; s->n_rows < rows->n_items; s->n_rows++)
        STW_TRY(read_row(tree, rows->items[s->n_rows], plan->pool, &s->rows[s->n_rows], err));
out:
    return status;
}
