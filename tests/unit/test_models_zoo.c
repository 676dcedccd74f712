/* SPDX-License-Identifier: Apache-2.0 */
/* Published names: every row of zoo/aliases.csv, endings, paths and caches, and names that are
 * refused. --model and inspect open a name as --from does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/log.h"
#include "models/table.h"
#include "models/zoo.h"
#include "planner/frameworks/import/import.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static char said[512]; /* the last message */

static void keep(stw_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    snprintf(said, sizeof said, "%s", text);
}

static bool sees(const stw_model *model) {
    for (uint32_t g = 0; model != NULL && g < model->n_groups; g++)
        if (model->groups[g].facts.vision) return true;
    return false;
}

/* As the command line has it, and as a framework's file does. */
static void opens_as(const char *name, const char *zoo, uint64_t positions) {
    stw_model *direct = NULL, *own = NULL, *from = NULL;
    stw_import import = {.pool = NULL};
    char text[512];
    said[0] = '\0';
    CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &direct, err));
    CHECK_OK(stw_model_open(zoo, STW_SOURCE_MODELS, &own, err));
    if (!sees(own)) { /* a file must say how many image tokens there are */
        snprintf(text, sizeof text,
                 "swift sft --model %s --tuner_type full --torch_dtype bfloat16\n", name);
        CHECK_OK(stw_import_parse("ms-swift", "file", text, strlen(text), &import, err));
        CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &from, err));
    }
    if (direct != NULL && own != NULL) {
        CU_ASSERT_STRING_EQUAL(direct->name, zoo);
        CU_ASSERT_STRING_EQUAL(direct->digest, own->digest);
        const uint64_t expected = positions > 0 ? positions : own->max_positions;
        CU_ASSERT_EQUAL(direct->max_positions, expected);
        if (from != NULL) CU_ASSERT_STRING_EQUAL(from->digest, own->digest);
        if (from != NULL) CU_ASSERT_EQUAL(from->max_positions, expected);
    }
    stw_import_free(&import);
    stw_model_free(direct);
    stw_model_free(own);
    stw_model_free(from);
}

static void every_row(void) {
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    size_t aliases = 0;
    stw_log_set(keep, NULL);
    CHECK_OK(stw_table_read(pool, STW_SOURCE_MODELS "/zoo/aliases.csv", &table, err));
    for (size_t i = 1; i < table.n_rows; i++) {
        const char *const *row = table.rows[i].fields;
        stw_zoo_name found;
        for (size_t k = 1; k < i; k++)
            CU_ASSERT_FALSE(strcmp(row[0], table.rows[k].fields[0]) == 0 &&
                            strcasecmp(row[1], table.rows[k].fields[1]) == 0);
        if (strcmp(row[0], "other") == 0) {
            CHECK_OK(stw_zoo_find(STW_SOURCE_MODELS, row[1], pool, &found, err));
            CU_ASSERT(found.model == NULL && found.why != NULL && found.why[0] != '\0');
        }
        if (strcmp(row[0], "alias") != 0) continue;
        aliases++;
        char name[256];
        snprintf(name, sizeof name, "org/%s", row[1]);
        opens_as(name, row[2], strtoull(row[3], NULL, 10));
        CU_ASSERT_PTR_NOT_NULL(strstr(said, row[2]));
        /* no row hides behind a model of its own name */
        snprintf(name, sizeof name, "%s/zoo/%s.json", STW_SOURCE_MODELS, row[1]);
        struct stat info;
        CU_ASSERT(stat(name, &info) != 0);
    }
    CU_ASSERT(aliases > 40);
    stw_log_set(NULL, NULL);
    stw_pool_free(pool);
}

/* Every model under its own name, in small letters, and with each ending. */
static void every_model(void) {
    stw_pool *pool = stw_pool_new();
    const char *const *names = NULL;
    size_t n = 0;
    CHECK_OK(stw_zoo_list(STW_SOURCE_MODELS, pool, &names, &n, err));
    CU_ASSERT(n > 60);
    static const char *const endings[] = {"", "-Instruct", "-Base", "-Chat", "-2507", "-it-hf"};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof endings / sizeof endings[0]; k++) {
            char name[256];
            stw_zoo_name found;
            snprintf(name, sizeof name, "Org/%s%s", names[i], endings[k]);
            if (strcmp(endings[k], "-Instruct") == 0 && strstr(names[i], "8x22B") != NULL) continue;
            for (char *c = name; *c != '\0' && k == 0; c++)
                if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
            CHECK_OK(stw_zoo_find(STW_SOURCE_MODELS, name, pool, &found, err));
            CU_ASSERT(found.model != NULL && strcmp(found.model, names[i]) == 0);
            CU_ASSERT_EQUAL(found.alias, k > 0);
        }
    stw_pool_free(pool);
}

static void names(void) {
    static const struct {
        const char *name, *model;
    } cases[] = {{"Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"},
                 {"$HOME/models/qwen3-30b-a3b-Instruct-2507/", "Qwen3-30B-A3B"},
                 {"Qwen3-30B-A3B-Base-mcore", "Qwen3-30B-A3B"},
                 {"LLM-Research/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"},
                 {"Qwen/Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-7B-Instruct"},
                 {"Qwen/Qwen2.5-VL-7B", "Qwen2.5-VL-7B-Instruct"},
                 {"google/gemma-3-27b-it", "Gemma-3-27b"},
                 {"deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"},
                 {"mistralai/Mistral-Small-24B-Instruct-2501", "Mistral-Small-24B"},
                 {"/data/models--Qwen--Qwen3-1.7B/snapshots/70d244cc", "Qwen3-1.7B"},
                 {"models--gpt2/snapshots/70d244cc", "GPT-2"},
                 {"models--Qwen--Qwen3-1.7B", "Qwen3-1.7B"},
                 {"Qwen/Qwen3-30B-A3B-FP8", NULL},
                 {"meta-llama/Llama-3.2-11B-Vision-Instruct", NULL},
                 {"-Instruct", NULL},
                 {"-2507", NULL},
                 {"models--", NULL},
                 {"/", NULL},
                 {"", NULL}};
    stw_pool *pool = stw_pool_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_zoo_name found;
        CHECK_OK(stw_zoo_find(STW_SOURCE_MODELS, cases[i].name, pool, &found, err));
        CU_ASSERT_EQUAL(found.model == NULL, cases[i].model == NULL);
        if (found.model != NULL && cases[i].model != NULL)
            CU_ASSERT_STRING_EQUAL(found.model, cases[i].model);
    }
    stw_pool_free(pool);
}

static void said_words(void) {
    stw_model *model = NULL;
    stw_log_set(keep, NULL);
    opens_as("Qwen/Qwen3-8B-Base", "Qwen3-8B", 0);
    CU_ASSERT_STRING_EQUAL(said, "Qwen/Qwen3-8B-Base is planned as Qwen3-8B (same shapes)");
    opens_as("Qwen/qwen3-8b", "Qwen3-8B", 0);
    CU_ASSERT_STRING_EQUAL(said, "");
    opens_as("Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B", 262144);
    CU_ASSERT_PTR_NOT_NULL(strstr(said, "same shapes; context of 262144 tokens"));
    stw_log_set(NULL, NULL);
    CHECK_FAILS(
        stw_model_open("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", STW_SOURCE_MODELS, &model, err),
        STW_STATUS_BAD_INPUT, "a quantized copy of Qwen3-30B-A3B-Instruct-2507");
    CHECK_FAILS(stw_model_open("meta-llama/Llama-3.2-11B-Vision", STW_SOURCE_MODELS, &model, err),
                STW_STATUS_BAD_INPUT, "cross attention");
    CHECK_FAILS(stw_model_open("Qwen/Qwen3-8C-Instruct", STW_SOURCE_MODELS, &model, err),
                STW_STATUS_BAD_INPUT, "did you mean Qwen3-8B?");
    CHECK_FAILS(
        stw_model_open("deepseek-ai/DeepSeek-R1-Distill-Llama-80B", STW_SOURCE_MODELS, &model, err),
        STW_STATUS_BAD_INPUT, "did you mean DeepSeek-R1-Distill-Llama-8B?");
}

static void damaged_tables(void) {
    static const struct {
        const char *text, *expected;
    } cases[] = {{"row,name\n", "expected the columns"},
                 {"row,name,model,positions,note\nalias,a\n", "found 2 columns"},
                 {"row,name,model,positions,note\nnick,a,b,,\n", "nick"},
                 {"row,name,model,positions,note\nalias,,b,,\n", "is empty"},
                 {"row,name,model,positions,note\nalias,a,,,\n", "an alias names one"},
                 {"row,name,model,positions,note\nalias,a,b,many,\n", "expected a number"},
                 {"row,name,model,positions,note\nalias,a,b,12345678901,\n", "expected a number"}};
    (void)mkdir("names.dir", 0777);
    (void)mkdir("names.dir/zoo", 0777);
    stw_pool *pool = stw_pool_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_zoo_name found;
        FILE *file = fopen("names.dir/zoo/aliases.csv", "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fputs(cases[i].text, file);
        fclose(file);
        CHECK_FAILS(stw_zoo_find("names.dir", "a", pool, &found, err), STW_STATUS_BAD_INPUT,
                    cases[i].expected);
    }
    stw_pool_free(pool);
}

STW_TEST_MAIN("models zoo", {"every row", every_row}, {"every model", every_model},
              {"names", names}, {"said words", said_words}, {"damaged tables", damaged_tables})
