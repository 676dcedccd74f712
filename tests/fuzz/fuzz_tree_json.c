/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a JSON document. */
#include <stddef.h>
#include <stdint.h>

#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_error err = STW_ERROR_INIT;
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json("input", (const char *)data, size, &tree, &err);
    fuzz_check_tree(status, tree, &err);
    return 0;
}
