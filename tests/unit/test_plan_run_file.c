/* SPDX-License-Identifier: Apache-2.0 */
/* Run files: exact round trips, records of others, and every way in which a file can be wrong. */
#include <math.h>

#include "plan/files/run_file.h"
#include "tests/unit/edited.h"
#include "tests/unit/testing.h"

static void measure(stw_measured *m, uint64_t base) {
    m->known = true;
    m->allocated = base + 1;
    m->reserved = base + 2;
    m->device = base + 3;
    m->host = base + 4;
    m->page_locked = base + 5;
    m->gpu_components[STW_COMPONENT_PARAMS] = base + 6;
    m->gpu_components[STW_COMPONENT_PROCESS] = base + 7;
    m->host_components[STW_COMPONENT_EXP_AVG] = base + 8;
}

static stw_run_result *full_result(void) {
    stw_run_result *r = NULL;
    CHECK_OK(stw_run_result_new(&r, err));
    r->backend = "cuda";
    r->device = "NVIDIA H200";
    r->plan_hash = "0123456789abcdef";
    r->plan_terms = "optimizer.lr = 0.001\nname = \nmodel.name = a \"b\" = c\n";
    r->build = "fedcba9876543210";
    r->world = 2;
    r->steps = 5;
    r->seed = 42;
    r->not_run[STW_PHASE_FORWARD_BACKWARD] = true;
    r->n_ranks = 2;
    r->ranks = stw_pool_array(r->pool, 2, sizeof *r->ranks);
    for (uint32_t i = 0; i < 2; i++) {
        r->ranks[i].rank = i;
        r->ranks[i].kind = i == 0 ? "rank0" : "rank";
        measure(&r->ranks[i].phases[STW_PHASE_LOAD], 1000 * i);
        measure(&r->ranks[i].phases[STW_PHASE_OPTIMIZER_STEP], 1000000 * (i + 1));
    }
    r->n_nodes = 1;
    r->nodes = stw_pool_array(r->pool, 1, sizeof *r->nodes);
    for (uint32_t i = 0; i < 2; i++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            r->nodes[0].host[p] += r->ranks[i].phases[p].host;
            r->nodes[0].page_locked[p] += r->ranks[i].phases[p].page_locked;
        }
    r->time_s[STW_PHASE_OPTIMIZER_STEP] = 0.1;
    r->n_movements = 1;
    r->movements = stw_pool_array(r->pool, 1, sizeof *r->movements);
    r->movements[0] = (stw_run_movement){STW_PHASE_OPTIMIZER_STEP, "step", 2,
                                         stw_pool_array(r->pool, 2, sizeof(double))};
    r->movements[0].samples_s[0] = r->movements[0].samples_s[1] = 0.1;
    r->n_step_all = 5;
    r->step_all_s = stw_pool_array(r->pool, 5, sizeof *r->step_all_s);
    for (int i = 0; i < 5; i++) r->step_all_s[i] = 0.1 / (i + 1);
    r->params_per_s = 1e10 / 3;
    r->up_bps = 5e10;
    r->copies_s = 0.09;
    r->checked = 1000;
    r->elements = 4000;
    r->mismatched = 1;
    r->digest[0] = 0xfedcba9876543210u;
    r->digest[2] = 7;
    r->digest[3] = 9;
    r->digest_of = "00000000000000aa";
    r->clips = true;
    r->grad_norm = 1.5;
    r->weights_read_bytes = 70;
    r->weights_compared_bytes = 30;
    r->synced = (stw_run_synced){.version = 4,
                                 .rounds = 2,
                                 .messages = 12,
                                 .sent_bytes = 700,
                                 .received_bytes = 701,
                                 .folder = "some/where",
                                 .folder_version = 3,
                                 .folder_bytes = 99,
                                 .folder_s = 0.25};
    r->clip_factor = 0.5;
    r->n_links = 2;
    r->links = stw_pool_array(r->pool, 2, sizeof *r->links);
    for (uint32_t i = 0; i < 2; i++) {
        double all[] = {5e10 / 3, 4e10};
        r->links[i] = (stw_run_link){
            .bytes = 8u << i, .streams = i + 1, .ring = 3 * i, .bps = 4.5e10, .n_all = 2};
        r->links[i].all_bps = stw_pool_array(r->pool, 2, sizeof(double));
        memcpy(r->links[i].all_bps, all, sizeof all);
    }
    r->link_share = 0.97;
    r->host_growth_bytes = 4096;
    /* what a complete file repeats */
    r->gpu_bytes[STW_PHASE_LOAD] = 1003;
    r->gpu_bytes[STW_PHASE_OPTIMIZER_STEP] = r->gpu_peak_bytes = 2000003;
    r->host_bytes[STW_PHASE_LOAD] = 1008;
    r->host_bytes[STW_PHASE_OPTIMIZER_STEP] = r->host_peak_bytes = 3000008;
    return r;
}

static char *run_text(const stw_run_result *result) {
    stw_text text = STW_TEXT_INIT;
    CHECK_OK(stw_run_result_to_json(result, &text, err));
    return text.data;
}

static stw_status parse_run(const char *text, stw_run_result **out, stw_error *err) {
    return stw_run_result_parse("run.json", text, strlen(text), out, err);
}

static void round_trips(void) {
    stw_run_result *r = full_result(), *again = NULL;
    const uint64_t seeds[] = {0, 42, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        r->seed = seeds[i];
        char *text = run_text(r);
        CHECK_OK(parse_run(text, &again, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(again);
        char *second = run_text(again);
        CU_ASSERT_STRING_EQUAL(text, second);
        CU_ASSERT_EQUAL(again->seed, seeds[i]);
        free(second);
        free(text);
        if (i < 3) stw_run_result_free(again);
    }
    CU_ASSERT_EQUAL(again->digest[0], 0xfedcba9876543210u);
    CU_ASSERT_EQUAL(again->digest[1], 0);
    CU_ASSERT_TRUE(again->not_run[STW_PHASE_FORWARD_BACKWARD]);
    CU_ASSERT_FALSE(again->not_run[STW_PHASE_LOAD]);
    CU_ASSERT_TRUE(isnan(again->time_s[STW_PHASE_LOAD]));
    CU_ASSERT_TRUE(isnan(again->down_bps));
    CU_ASSERT_EQUAL(again->params_per_s, 1e10 / 3);
    CU_ASSERT_EQUAL(again->ranks[1].phases[STW_PHASE_LOAD].device, 1003);
    CU_ASSERT_EQUAL(memcmp(again->ranks[1].phases, r->ranks[1].phases, sizeof r->ranks[1].phases),
                    0);
    CU_ASSERT_EQUAL(again->step_all_s[2], 0.1 / 3);
    CU_ASSERT_EQUAL(again->digest[3], 9);
    CU_ASSERT_STRING_EQUAL(again->plan_terms, r->plan_terms);
    CU_ASSERT_STRING_EQUAL(again->build, "fedcba9876543210");
    CU_ASSERT_EQUAL(again->weights_read_bytes, 70);
    CU_ASSERT_EQUAL(again->weights_compared_bytes, 30);
    CU_ASSERT_TRUE(again->synced.version == 4 && again->synced.rounds == 2);
    CU_ASSERT_TRUE(again->synced.messages == 12 && again->synced.sent_bytes == 700);
    CU_ASSERT_TRUE(again->synced.received_bytes == 701 && again->synced.folder_bytes == 99);
    CU_ASSERT_STRING_EQUAL(again->synced.folder, "some/where");
    CU_ASSERT_TRUE(again->synced.folder_version == 3 && again->synced.folder_s == 0.25);
    CU_ASSERT_EQUAL(again->n_links, 2);
    CU_ASSERT_EQUAL(again->links[1].streams, 2);
    CU_ASSERT_EQUAL(again->links[0].ring, 0);
    CU_ASSERT_EQUAL(again->links[1].ring, 3);
    CU_ASSERT_EQUAL(again->links[1].all_bps[0], 5e10 / 3);
    CU_ASSERT_EQUAL(again->link_share, 0.97);
    CU_ASSERT_TRUE(isnan(again->gpu_growth_bytes));
    stw_run_result_free(again);
    stw_run_result_free(r);
}

static void summary_follows_from_ranks_and_nodes(void) {
    stw_run_result *r = full_result(), *again = NULL;
    memset(r->gpu_bytes, 0, sizeof r->gpu_bytes);
    memset(r->host_bytes, 0, sizeof r->host_bytes);
    r->gpu_peak_bytes = r->host_peak_bytes = 0;
    char *text = run_text(r);
    CHECK_OK(parse_run(text, &again, err));
    CU_ASSERT_EQUAL(again->gpu_bytes[STW_PHASE_LOAD], 1003);
    CU_ASSERT_EQUAL(again->gpu_peak_bytes, 2000003);
    CU_ASSERT_EQUAL(again->host_peak_bytes, 3000008);
    free(text);
    stw_run_result_free(again);
    stw_run_result_free(r);
}

static void records_of_others_may_lack_most(void) {
    stw_run_result *r = NULL;
    CHECK_OK(parse_run("{\"schema\": \"stowage.run/1\", \"source\": \"external\","
                       " \"peaks\": {\"gpu_bytes\": {\"peak\": 77, \"load\": 5}}}",
                       &r, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_EQUAL(r->gpu_peak_bytes, 77);
    CU_ASSERT_EQUAL(r->gpu_bytes[STW_PHASE_LOAD], 5);
    CU_ASSERT_EQUAL(r->n_ranks, 0);
    CU_ASSERT_STRING_EQUAL(r->backend, "");
    stw_run_result_free(r);
    r = NULL;
    CHECK_OK(parse_run("{\"schema\": \"stowage.run/1\", \"source\": \"external\", \"ranks\":"
                       " [{\"rank\": 3, \"phases\": {\"load\": {\"allocated\": 9}}}],"
                       " \"time_s\": {\"forward_backward\": 1.5}}",
                       &r, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_EQUAL(r->ranks[0].phases[STW_PHASE_LOAD].allocated, 9);
    CU_ASSERT_EQUAL(r->time_s[STW_PHASE_FORWARD_BACKWARD], 1.5);
    stw_run_result_free(r);
    r = NULL;
    CHECK_FAILS(parse_run("{\"schema\": \"stowage.run/1\", \"source\": \"external\"}", &r, err),
                STW_STATUS_BAD_INPUT, "no bytes are measured");
}

typedef struct edit {
    const char *anchor, *from, *to;
    const char *word; /* of the error */
} edit;

static const edit refused[] = {
    {"", "stowage.run/1", "stowage.run/2", "stowage.run/1"},
    {"", "\"source\": \"stowage\"", "\"source\": \"hearsay\"", "stowage or external"},
    {"", "\"world\": 2", "\"world\": -2", "not negative"},
    {"", "\"world\": 2", "\"world\": 4294967296", "4294967295"},
    {"", "\"seed\": 42", "\"seed\": \"18446744073709551616\"", "below 2^64"},
    {"", "\"seed\": 42", "\"seed\": \"\"", "below 2^64"},
    {"", "\"seed\": 42", "\"seed\": \"4x\"", "below 2^64"},
    {"\"not_run\"", "forward_backward", "sleep", "a phase"},
    {"\"gpu_bytes\"", "\"load\"", "\"lunch\"", "a phase"},
    {"\"gpu_bytes\"", "1003", "\"1003\"", "whole number"},
    {"", "\"grad_norm\": 1.5", "\"grad_norm\": \"nan\"", "\"NaN\", \"Infinity\" or null"},
    {"", "\"grad_norm\": 1.5", "\"grad_norm\": -1.5", "not negative"},
    {"", "\"clip_factor\": 0.5", "\"clip_factor\": \"\"", "\"NaN\", \"Infinity\" or null"},
    {"\"time_s\"", "\"optimizer_step\": 0.1", "\"optimizer_step\": -0.1", "not negative"},
    {"\"step_all\"", "0.1", "null", "a number"},
    {"\"step_all\"", "0.1", "-0.1", "not negative"},
    {"\"link\"", "\"streams\": 1", "\"streams\": \"one\"", "whole number"},
    {"\"link\"", "\"bytes\": 8,", "", "bytes"},
    {"\"digest\"", "fedcba9876543210", "fedcba98765432100", "hexadecimal"},
    {"\"digest\"", "fedcba9876543210", "fedcba987654321g", "hexadecimal"},
    {"\"digest\"", "\"fedcba9876543210\"", "12", "a string"},
    {"\"ranks\"", "\"rank\": 0", "\"rank\": -1", "not negative"},
    {"\"ranks\"", "\"allocated\": 1,", "", "allocated"},
    {"\"ranks\"", "\"device\": 3", "\"device\": 3.5", "whole number"},
    {"\"ranks\"", "\"params\": 6", "\"parms\": 6", "parms"},
    {"\"ranks\"", "\"params\": 6,", "\"params\": 6, \"params\": 6,", "params"},
    {"\"nodes\"", "\"host\": 1008", "\"host\": {}", "whole number"},
    {"\"nodes\"", "\"node\": 0", "\"node\": null", "whole number"},
    /* members that contradict each other */
    {"", "\"steps\": 5", "\"steps\": 0", "steps: found 0, expected at least 1"},
    {"", "\"steps\": 5", "\"steps\": 6", "step_all: found 5 samples, expected 6"},
    {"", "\"steps\": 5", "\"steps\": 5, \"first_step\": 2", "found 5 samples, expected 4"},
    {"", "\"steps\": 5", "\"steps\": 5, \"first_step\": 7", "first_step: found 7, expected at"},
    {"", "\"world\": 2", "\"world\": 0", "world: found 0, expected at least 1"},
    {"", "\"world\": 2", "\"world\": 3", "ranks: found 2 entries, expected 3"},
    {"\"ranks\"", "\"rank\": 1", "\"rank\": 0", "found rank 0 twice"},
    {"\"ranks\"", "\"rank\": 1", "\"rank\": 2", "ranks[1].rank: found 2, expected less than"},
    {"\"ranks\"", "\"node\": 0", "\"node\": 1", "ranks[0].node: found 1, expected one of the 1"},
    {"\"nodes\"", "\"node\": 0", "\"node\": 1", "nodes[0].node: found 1, expected 0"},
    {"\"nodes\"", "\"host\": 1008", "\"host\": 1007", "phases.load.host: found 1007, the node's"},
    {"\"nodes\"", "\"page_locked\": 1010", "\"page_locked\": 0", "page_locked: found 0, the node"},
    {"\"gpu_bytes\"", "1003", "1002", "peaks.gpu_bytes.load: found 1002, the largest"},
    {"\"gpu_bytes\"", "\"peak\": 2000003", "\"peak\": 9", "gpu_bytes.peak: found 9, the largest"},
    {"\"host_bytes\"", "1008", "1", "peaks.host_bytes.load: found 1, the largest"},
    {"\"not_run\"", "forward_backward", "optimizer_step", "but not_run lists this phase"},
    {"\"not_run\"", "forward_backward", "load", "found bytes, but not_run lists this phase"},
    {"\"verify\"", "\"mismatched\": 1", "\"mismatched\": 1001", "which is 1000"},
    {"\"verify\"", "\"elements\": 4000", "\"elements\": 999", "verify.elements: found 999"},
    {"\"verify\"", "\"checked\": 1000,\n    \"mismatched\": 1", "\"checked\": 0, \"mismatched\": 0",
     "verify.checked: found 0, expected at least 1"},
    {"\"verify\"", "\"elements\": 4000", "\"elements\": 0", "verify.elements: found 0"},
    /* words and figures that no run writes */
    {"", "\"backend\": \"cuda\"", "\"backend\": \"abacus\"", "cuda or host"},
    {"", "00000000000000aa", "00000000000000xy", "16 lower-case hexadecimal digits"},
    {"", "\"host_growth_bytes\": 4096.0", "\"host_growth_bytes\": 1e300", "at most 1 PiB"},
    {"", "\"host_growth_bytes\": 4096", "\"host_growth_bytes\": -1", "not negative"},
    {"\"samples_s\"", "0.1", "0.2", "the medians of its movements give 0.15"},
    {"\"time_s\"", "\"optimizer_step\": 0.1", "\"optimizer_step\": 0.2",
     "found 0.2 s, the medians"},
};

static void wrong_files_are_refused(void) {
    stw_run_result *r = full_result();
    char *text = run_text(r);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        stw_run_result *read = NULL;
        char *wrong = edited(text, refused[i].anchor, refused[i].from, refused[i].to);
        CHECK_FAILS(parse_run(wrong, &read, err), STW_STATUS_BAD_INPUT, refused[i].word);
        CU_ASSERT_PTR_NULL(read);
        free(wrong);
    }
    free(text);
    stw_run_result_free(r);
}

/* Lists of Stowage's own files are never empty; those of others may be. */
static void empty_lists_are_refused(void) {
    static const char *const lists[] = {"ranks", "nodes"};
    stw_run_result *r = full_result(), *read = NULL;
    char *text = run_text(r), anchor[32], word[48];
    for (size_t i = 0; i < 2; i++) {
        snprintf(anchor, sizeof anchor, "\"%s\": [", lists[i]);
        snprintf(word, sizeof word, "%s: found ", lists[i]);
        const char *from = strstr(text, anchor), *end = strstr(from, "\n  ]");
        char list[4096], empty[32];
        snprintf(list, sizeof list, "%.*s", (int)(end - from), from);
        snprintf(empty, sizeof empty, "%s", anchor);
        char *wrong = edited(text, "", list, empty);
        CHECK_FAILS(parse_run(wrong, &read, err), STW_STATUS_BAD_INPUT, word);
        free(wrong);
    }
    free(text);
    stw_run_result_free(r);
}

static void records_of_others_agree_with_themselves(void) {
    static const char *const members[][2] = {
        {"\"verify\": {\"checked\": 5, \"mismatched\": 6}", "verify.mismatched: found 6"},
        {"\"verify\": {\"checked\": 5, \"elements\": 4}", "verify.elements: found 4"},
        {"\"ranks\": [{\"rank\": 3}, {\"rank\": 3}]", "found rank 3 twice"},
        {"\"world\": 2, \"ranks\": [{\"rank\": 2}]", "found 2, expected less than world"},
        {"\"not_run\": [\"load\"], \"time_s\": {\"load\": 1.5}", "found 1.5 s, but not_run"},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        stw_run_result *read = NULL;
        char text[400];
        snprintf(text, sizeof text,
                 "{\"schema\": \"stowage.run/1\", \"source\": \"external\","
                 " \"peaks\": {\"gpu_bytes\": {\"peak\": 77}}, %s}",
                 members[i][0]);
        CHECK_FAILS(parse_run(text, &read, err), STW_STATUS_BAD_INPUT, members[i][1]);
        CU_ASSERT_PTR_NULL(read);
    }
}

static void every_member_is_required(void) {
    stw_run_result *r = full_result();
    char *text = run_text(r);
    size_t members = 0;
    for (const char *p = text; (p = strstr(p, "\n  \"")) != NULL; p++) {
        char from[64], to[80];
        snprintf(from, sizeof from, "%.*s", (int)(strchr(p + 4, '"') - p), p);
        snprintf(to, sizeof to, "\n  \"no_%s", from + 4);
        stw_run_result *read = NULL;
        /* earlier versions did not write these */
        if (strcmp(from + 4, "steady") == 0 || strcmp(from + 4, "movements") == 0) continue;
        char *wrong = edited(text, "", from, to);
        CHECK_FAILS(parse_run(wrong, &read, err), STW_STATUS_BAD_INPUT, from + 4);
        free(wrong);
        members++;
    }
    CU_ASSERT_EQUAL(members, 20);
    free(text);
    stw_run_result_free(r);
}

static void truncated_files_are_refused(void) {
    stw_run_result *r = full_result(), *read = NULL;
    char *text = run_text(r);
    for (size_t n = 0; n < strlen(text) - 1; n++) {
        CU_ASSERT_EQUAL(stw_run_result_parse("run.json", text, n, &read, NULL),
                        STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NULL(read);
    }
    free(text);
    stw_run_result_free(r);
}

STW_TEST_MAIN("run file", {"round trips", round_trips},
              {"summary follows from ranks and nodes", summary_follows_from_ranks_and_nodes},
              {"records of others may lack most", records_of_others_may_lack_most},
              {"wrong files are refused", wrong_files_are_refused},
              {"empty lists are refused", empty_lists_are_refused},
              {"records of others agree with themselves", records_of_others_agree_with_themselves},
              {"every member is required", every_member_is_required},
              {"truncated files are refused", truncated_files_are_refused})
