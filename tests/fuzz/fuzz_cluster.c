/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a cluster.yaml. What is accepted must be written and read back unchanged. An edit of
 * the bytes is refused, or changes what was edited alone. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/tree_edit.h"
#include "plan/spec/cluster.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_back(const stw_cluster *cluster, const stw_text *text, bool is_yaml) {
    stw_cluster again;
    stw_tree *tree = NULL;
    FUZZ_CHECK(stw_text_status(text, NULL) == STW_STATUS_OK);
    stw_status status = is_yaml
                            ? stw_tree_parse_yaml("again", text->data, text->length, &tree, NULL)
                            : stw_tree_parse_json("again", text->data, text->length, &tree, NULL);
    FUZZ_CHECK(status == STW_STATUS_OK);
    const stw_node *node = is_yaml ? tree->root : stw_node_get(tree->root, "cluster");
    FUZZ_CHECK(stw_cluster_from_node(tree, node, &again, NULL) == STW_STATUS_OK);
    FUZZ_CHECK(memcmp(cluster, &again, sizeof again) == 0);
    stw_tree_free(tree);
}

static void round_trip(const stw_cluster *cluster) {
    stw_text yaml = STW_TEXT_INIT, text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_cluster_write_yaml(cluster, &yaml);
    read_back(cluster, &yaml, true);
    stw_json_begin_object(json, NULL);
    stw_cluster_write_json(cluster, json, "cluster");
    stw_json_end(json);
    FUZZ_CHECK(stw_json_finish(json, &text, NULL) == STW_STATUS_OK);
    read_back(cluster, &text, false);
    stw_text_free(&yaml);
    stw_text_free(&text);
}

static void edit(const stw_cluster *cluster, const uint8_t *data, size_t size, const char *key) {
    stw_text text = STW_TEXT_INIT;
    stw_cluster wanted = *cluster;
    stw_text_append(&text, (const char *)data, size);
    FUZZ_CHECK(stw_cluster_set(&wanted, key, "3 GiB", "fuzz", NULL) == STW_STATUS_OK);
    stw_status status = stw_yaml_put("input", &text, key, "3 GiB", NULL);
    FUZZ_CHECK(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT);
    if (status == STW_STATUS_OK) read_back(&wanted, &text, true);
    stw_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_error err = STW_ERROR_INIT;
    stw_tree *tree = NULL;
    stw_cluster cluster;
    stw_status status = stw_tree_parse_yaml("input", (const char *)data, size, &tree, &err);
    if (status == STW_STATUS_OK) {
        status = stw_cluster_from_node(tree, tree->root, &cluster, &err);
        if (status == STW_STATUS_OK) {
            round_trip(&cluster);
            edit(&cluster, data, size, "node.torch.process");
            edit(&cluster, data, size, "learned.process.value");
            stw_status checked = stw_cluster_check(&cluster, "input", &err);
            FUZZ_CHECK(checked == STW_STATUS_OK || checked == STW_STATUS_BAD_INPUT);
            status = checked;
        }
    }
    FUZZ_CHECK(status == err.status && (status == STW_STATUS_OK) == (err.text[0] == '\0'));
    stw_tree_free(tree);
    return 0;
}
