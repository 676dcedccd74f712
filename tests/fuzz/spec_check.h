/* SPDX-License-Identifier: Apache-2.0 */
/* Run specs under a fuzzer: cheap fresh ones, and the check that what was accepted is written and
 * read back unchanged. */
#ifndef STW_TESTS_FUZZ_SPEC_CHECK_H
#define STW_TESTS_FUZZ_SPEC_CHECK_H

#include "plan/spec/run_spec.h"
#include "tests/fuzz/tree_check.h"

/** The defaults with a pool of their own. The defaults' strings are those of one spec that lives as
 * long as the process: parsing every default anew would take most of an execution. */
static inline stw_run_spec fuzz_run_spec_new(void) {
    static stw_run_spec defaults;
    if (defaults.pool == NULL) FUZZ_CHECK(stw_run_spec_init(&defaults, NULL) == STW_STATUS_OK);
    stw_run_spec run = defaults;
    run.pool = stw_pool_new();
    FUZZ_CHECK(run.pool != NULL);
    return run;
}

static inline void fuzz_run_spec_json(const stw_run_spec *run, stw_text *out) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_run_spec_write_json(run, json, "run");
    stw_json_end(json);
    FUZZ_CHECK(stw_json_finish(json, out, NULL) == STW_STATUS_OK);
}

/** Read `text` over fresh defaults; the JSON of what was read must be `json`. */
static inline void fuzz_run_spec_read_back(const stw_text *text, bool is_yaml,
                                           const stw_text *json) {
    stw_run_spec again = fuzz_run_spec_new();
    stw_tree *tree = NULL;
    stw_text json_again = STW_TEXT_INIT;
    FUZZ_CHECK(stw_text_status(text, NULL) == STW_STATUS_OK);
    stw_status status = is_yaml
                            ? stw_tree_parse_yaml("again", text->data, text->length, &tree, NULL)
                            : stw_tree_parse_json("again", text->data, text->length, &tree, NULL);
    FUZZ_CHECK(status == STW_STATUS_OK);
    const stw_node *node = is_yaml ? tree->root : stw_node_get(tree->root, "run");
    FUZZ_CHECK(stw_run_spec_from_node(tree, node, &again, NULL) == STW_STATUS_OK);
    fuzz_run_spec_json(&again, &json_again);
    FUZZ_CHECK(json_again.length == json->length);
    FUZZ_CHECK(memcmp(json_again.data, json->data, json->length) == 0);
    stw_text_free(&json_again);
    stw_tree_free(tree);
    stw_run_spec_free(&again);
}

/** Through YAML or through JSON: an input goes one way, so that it is fast. */
static inline void fuzz_run_spec_round_trip(const stw_run_spec *run, bool is_yaml) {
    stw_text yaml = STW_TEXT_INIT, json = STW_TEXT_INIT;
    fuzz_run_spec_json(run, &json);
    if (is_yaml) stw_run_spec_write_yaml(run, &yaml);
    fuzz_run_spec_read_back(is_yaml ? &yaml : &json, is_yaml, &json);
    stw_text_free(&yaml);
    stw_text_free(&json);
}

#endif
