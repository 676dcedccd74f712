/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a run.yaml. What is accepted must be written and read back unchanged. */
#include <stddef.h>
#include <stdint.h>

#include "tests/fuzz/spec_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_error err = STW_ERROR_INIT;
    stw_tree *tree = NULL;
    stw_run_spec run = fuzz_run_spec_new();
    stw_status status = stw_tree_parse_yaml("input", (const char *)data, size, &tree, &err);
    if (status == STW_STATUS_OK) status = stw_run_spec_from_node(tree, tree->root, &run, &err);
    FUZZ_CHECK(status == err.status && (status == STW_STATUS_OK) == (err.text[0] == '\0'));
    if (status == STW_STATUS_OK) {
        status = stw_run_spec_check(&run, "input", &err);
        FUZZ_CHECK(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT ||
                   status == STW_STATUS_NOT_BUILT_IN);
        if (tree->root->n_items > 0) fuzz_run_spec_round_trip(&run, size % 2 == 0);
    }
    stw_tree_free(tree);
    stw_run_spec_free(&run);
    return 0;
}
