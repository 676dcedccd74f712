/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a run.yaml, and each of its lines as a `--set KEY=VALUE`. What is accepted must be
 * written and read back unchanged. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/spec/run_spec.h"
#include "plan/spec/spec_keys.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_json(const stw_run_spec *run, stw_text *out) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_run_spec_write_json(run, json, "run");
    stw_json_end(json);
    FUZZ_CHECK(stw_json_finish(json, out, NULL) == STW_STATUS_OK);
}

/* Read `text` over fresh defaults; the JSON of what was read must be `json`. */
static void read_back(const stw_text *text, bool is_yaml, const stw_text *json) {
    stw_run_spec again;
    stw_tree *tree = NULL;
    stw_text json_again = STW_TEXT_INIT;
    FUZZ_CHECK(stw_text_status(text, NULL) == STW_STATUS_OK);
    FUZZ_CHECK(stw_run_spec_init(&again, NULL) == STW_STATUS_OK);
    stw_status status = is_yaml
                            ? stw_tree_parse_yaml("again", text->data, text->length, &tree, NULL)
                            : stw_tree_parse_json("again", text->data, text->length, &tree, NULL);
    FUZZ_CHECK(status == STW_STATUS_OK);
    const stw_node *node = is_yaml ? tree->root : stw_node_get(tree->root, "run");
    FUZZ_CHECK(stw_run_spec_from_node(tree, node, &again, NULL) == STW_STATUS_OK);
    write_json(&again, &json_again);
    FUZZ_CHECK(json_again.length == json->length);
    FUZZ_CHECK(memcmp(json_again.data, json->data, json->length) == 0);
    stw_text_free(&json_again);
    stw_tree_free(tree);
    stw_run_spec_free(&again);
}

static void round_trip(const stw_run_spec *run) {
    stw_text yaml = STW_TEXT_INIT, json = STW_TEXT_INIT;
    stw_run_spec_write_yaml(run, &yaml);
    write_json(run, &json);
    read_back(&yaml, true, &json);
    read_back(&json, false, &json);
    stw_text_free(&yaml);
    stw_text_free(&json);
}

static void set_lines(const char *text, size_t size, stw_run_spec *run) {
    for (size_t at = 0, end; at < size; at = end + 1) {
        char line[256];
        for (end = at; end < size && text[end] != '\n';) end++;
        snprintf(line, sizeof line, "%.*s", (int)(end - at < 255 ? end - at : 255), text + at);
        char *value = strpbrk(line, "=:");
        if (value == NULL) continue;
        *value++ = '\0';
        while (*value == ' ') value++;
        stw_error err = STW_ERROR_INIT;
        stw_status status = stw_run_spec_set(run, line, value, "--set", &err);
        FUZZ_CHECK(status == err.status);
        const char *near[STW_SPEC_MOST_NEAR];
        if (status != STW_STATUS_OK && !stw_run_spec_has_key(line))
            FUZZ_CHECK(stw_spec_near_keys(line, near, STW_SPEC_MOST_NEAR) <= STW_SPEC_MOST_NEAR);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_error err = STW_ERROR_INIT;
    stw_tree *tree = NULL;
    stw_run_spec run;
    FUZZ_CHECK(stw_run_spec_init(&run, NULL) == STW_STATUS_OK);
    stw_status status = stw_tree_parse_yaml("input", (const char *)data, size, &tree, &err);
    if (status == STW_STATUS_OK) status = stw_run_spec_from_node(tree, tree->root, &run, &err);
    FUZZ_CHECK(status == err.status && (status == STW_STATUS_OK) == (err.text[0] == '\0'));
    if (status == STW_STATUS_OK) {
        status = stw_run_spec_check(&run, "input", &err);
        FUZZ_CHECK(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT ||
                   status == STW_STATUS_NOT_BUILT_IN);
        round_trip(&run);
    }
    set_lines((const char *)data, size, &run);
    round_trip(&run);
    stw_tree_free(tree);
    stw_run_spec_free(&run);
    return 0;
}
