/* SPDX-License-Identifier: Apache-2.0 */
/* A small model, a small cluster and plans of them for tests of libstowage, which link the library
 * alone. Files lie in the folder of the test. */
#ifndef STW_TESTS_UNIT_LIBRARY_CASE_H
#define STW_TESTS_UNIT_LIBRARY_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "include/stowage.h"
#include "tests/unit/testing.h"

static stw_error_t *error;

static inline void library_write(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    CU_ASSERT_EQUAL_FATAL(fclose(file), 0);
}

static inline void library_files(void) {
    (void)mkdir("tiny", 0777);
    library_write(
        "tiny/config.json",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\",\n"
        "\"attention_bias\": false, \"head_dim\": 32, \"hidden_size\": 64,\n"
        "\"intermediate_size\": 128, \"num_attention_heads\": 2, \"num_hidden_layers\": 2,\n"
        "\"num_key_value_heads\": 1, \"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": true,\n"
        "\"torch_dtype\": \"bfloat16\", \"vocab_size\": 1000, \"max_position_embeddings\": "
        "4096}\n");
    library_write("tiny.yaml",
                  "name: tiny\nnodes: 1\nnode:\n  gpus: 1\n"
                  "  gpu: {name: pretend, memory: 2.5 GiB, context: 0 GiB, comm: 0 GiB, "
                  "hbm: 1.25 TB/s, bf16: 100.5 TFLOP/s}\n"
                  "  host: {memory: 8 GiB, limit: 7.5 GiB, page_lock_limit: unlimited, "
                  "process: 64 MiB, bandwidth: 40 GB/s, dma: 30 GB/s, cores: 2}\n"
                  "  pcie: {h2d: 12.5 GB/s, d2h: 12 GB/s, both: 10 GB/s, latency: 10.5 us}\n"
                  "  nvlink: 100 GB/s\n"
                  "  nvme: {capacity: 16 GiB, read: 2.5 GB/s, write: 1 GB/s}\n"
                  "  cpu_adamw: 1.5 Gparam/s\n");
    if (error == NULL) error = stw_new_error();
    CU_ASSERT_PTR_NOT_NULL_FATAL(error);
}

/* A call that must succeed; its error is printed where it does not. */
static inline void library_ok(stw_status_t status, const char *what) {
    if (status != STOWAGE_OK) fprintf(stderr, "%s: %s\n", what, stw_get_error_text(error));
    CU_ASSERT_EQUAL_FATAL(status, STOWAGE_OK);
}

/* A call that is refused with a word in its error. */
static inline void library_refused(stw_status_t status, stw_status_t expected, const char *word) {
    const char *text = stw_get_error_text(error);
    if (status != expected || strstr(text, word) == NULL)
        fprintf(stderr, "status %d, \"%s\", expected %d with \"%s\"\n", (int)status, text,
                (int)expected, word);
    CU_ASSERT_EQUAL(status, expected);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, word));
}

static inline stw_model_t *library_model(void) {
    stw_model_t *model = NULL;
    library_files();
    library_ok(stw_open_model("tiny", &model, error), "open the model");
    return model;
}

/* A plan of the tiny model on the tiny cluster. @param extra NULL, or one more setting */
static inline stw_plan_t *library_plan(const stw_model_t *model, const char *extra) {
    const char *settings[] = {"optimizer.lr=2.5e-4", "optimizer.clip_norm=0.5",
                              "precision.params=bf16", extra};
    const stw_plan_options_t options = {
        .cluster = "tiny.yaml", .settings = settings, .n_settings = extra != NULL ? 4 : 3};
    stw_plan_t *plan = NULL;
    library_ok(stw_make_plan(model, &options, sizeof options, &plan, error), "make a plan");
    return plan;
}

/* The host backend, with room for files in the test's folder. */
static inline stw_session_options_t library_session(void) {
    return (stw_session_options_t){
        .backend = "host", .seed = 7, .nvme_folder = ".", .nvme_in_memory = 1};
}

static inline stw_run_options_t library_run(void) {
    return (stw_run_options_t){
        .backend = "host", .steps = 2, .seed = 7, .nvme_folder = ".", .nvme_in_memory = 1};
}

#endif
