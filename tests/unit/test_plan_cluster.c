/* SPDX-License-Identifier: Apache-2.0 */
/* Cluster specs: the contract's keys, exact round trips, ranges. */
#include <math.h>
#include <stdlib.h>

#include "core/units.h"
#include "plan/spec/cluster_assumed.h"
#include "plan/spec/cluster_check.h"
#include "tests/unit/testing.h"

static stw_status cluster_from_yaml(const char *text, stw_cluster *out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_yaml("cluster.yaml", text, strlen(text), &tree, err);
    if (status == STW_STATUS_OK) status = stw_cluster_from_node(tree, tree->root, out, err);
    stw_tree_free(tree);
    return status;
}

static char *cluster_json(const stw_cluster *cluster) {
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_cluster_write_json(cluster, json, "cluster");
    stw_json_end(json);
    CHECK_OK(stw_json_finish(json, &text, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    return text.data;
}

static const char contract_cluster[] =
    "name: h200-x4\n"
    "nodes: 1\n"
    "network: {nic: 50 GB/s}\n"
    "node:\n"
    "  gpus: 4\n"
    "  gpu: {name: NVIDIA H200, memory: 139.8 GiB, context: 530 MiB, comm: 1.2 GiB, hbm: 4.3 "
    "TB/s,\n"
    "        bf16: 790 TFLOP/s}\n"
    "  host: {memory: 503 GiB, limit: 500 GiB, page_lock_limit: unlimited, process: 1.4 GiB,\n"
    "         bandwidth: 190 GB/s, dma: 165 GB/s, cores: 64}\n"
    "  pcie: {h2d: 55.4 GB/s, d2h: 55.3 GB/s, both: 50.1 GB/s, latency: 10 us}\n"
    "  nvlink: 360 GB/s\n"
    "  nvme: {capacity: 0 GiB, read: 3.0 GB/s, write: 1.7 GB/s}\n"
    "  cpu_adamw: 4.8 Gparam/s\n";

static void clusters_round_trip(void) {
    stw_cluster c, again;
    stw_text yaml = STW_TEXT_INIT;
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err));
    CU_ASSERT_STRING_EQUAL(c.gpu.name, "NVIDIA H200");
    CU_ASSERT_EQUAL(c.gpus, 4);
    CU_ASSERT_EQUAL(c.gpu.memory_bytes, 150109106995u); /* 139.8 * 2^30 = 150109106995.2 */
    CU_ASSERT_EQUAL(c.gpu.context_bytes, 530u << 20);
    CU_ASSERT_EQUAL(c.gpu.bf16_flops, 790e12);
    CU_ASSERT_EQUAL(c.host.page_lock_limit_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(c.pcie.both_bps, 50.1e9);
    CU_ASSERT_EQUAL(c.pcie.latency_s, 10e-6);
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, 4.8e9);
    CU_ASSERT_FALSE(c.calibration.measured);
    CU_ASSERT_EQUAL(c.gpu.norm_bps, 0); /* what older files do not say has a meaning: derive it */
    CU_ASSERT_EQUAL(c.gpu.update_bps, 0);
    CU_ASSERT_EQUAL(c.gpu.norm_bf16_bps, 0);
    CU_ASSERT_EQUAL(c.host.process_comm_bytes, 0);
    CU_ASSERT_EQUAL(c.host.dma_up_bps, 0);
    CU_ASSERT_EQUAL(c.host.dma_down_bps, 0);
    CU_ASSERT_EQUAL(c.host.page_lock_bps, 0);
    CU_ASSERT_EQUAL(c.pcie.direct_bps, 0);
    CU_ASSERT_EQUAL(c.nvme.both_bps, 0);
    CU_ASSERT_EQUAL(c.cpu_norm_pps, 0);

    /* Awkward values, as a measurement gives them. */
    c.pcie.h2d_bps = 1e11 / 3;
    c.pcie.latency_s = 1e-5 / 7;
    c.gpu.hbm_bps = nextafter(4.3e12, 5e12);
    c.host.process_bytes = 1500000001;
    c.gpu.norm_bps = 1.87e12;
    c.gpu.update_bps = 4.13e12;
    c.gpu.norm_bf16_bps = 1.77e12;
    c.host.process_comm_bytes = 370000001;
    c.host.dma_up_bps = 101e9;
    c.host.dma_down_bps = 99e9;
    c.host.page_lock_bps = 1.58e10;
    c.pcie.direct_bps = 4.1e10;
    c.nvme.both_bps = 2.9e9;
    c.cpu_norm_pps = 11e9;
    c.calibration.measured = true;
    snprintf(c.calibration.date, sizeof c.calibration.date, "2026-11-21");
    snprintf(c.calibration.versions, sizeof c.calibration.versions, "driver 580: \"CUDA\" \\ #1");
    stw_cluster_write_yaml(&c, &yaml);
    CU_ASSERT_FALSE_FATAL(yaml.failed);
    CHECK_OK(cluster_from_yaml(yaml.data, &again, err));
    CU_ASSERT_EQUAL(memcmp(&c, &again, sizeof c), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(yaml.data, "memory: 139.8 GiB"));
    CU_ASSERT_PTR_NOT_NULL(strstr(yaml.data, "both: 50.1 GB/s"));
    stw_text_free(&yaml);

    char *json = cluster_json(&c);
    stw_tree *tree = NULL;
    CHECK_OK(stw_tree_parse_json("plan.json", json, strlen(json), &tree, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    memset(&again, 0, sizeof again);
    CHECK_OK(stw_cluster_from_node(tree, stw_node_get(tree->root, "cluster"), &again, err));
    CU_ASSERT_EQUAL(memcmp(&c, &again, sizeof c), 0);
    stw_tree_free(tree);
    free(json);
}

/* The defaults, but for what says that they were assumed. */
static bool is_default(stw_cluster c) {
    stw_cluster defaults;
    CHECK_OK(stw_cluster_defaults(&defaults, err));
    memset(c.assumed, 0, sizeof c.assumed);
    memcpy(c.gpu.name, defaults.gpu.name, sizeof c.gpu.name);
    return memcmp(&c, &defaults, sizeof c) == 0;
}

static void clusters_are_checked(void) {
    static const struct {
        const char *key, *value, *word;
    } cases[] = {
        {"nodes", "0", "nodes: found \"0\", expected 1 to 65536"},
        {"nodes", "2000000", "nodes"},
        {"node.gpus", "5000", "node.gpus"},
        {"node.gpu.memory", "0", "node.gpu.memory"},
        {"node.gpu.context", "200 GiB", "less than node.gpu.memory"},
        {"node.gpu.comm", "139.7 GiB", "node.gpu.comm"},
        {"node.host.limit", "504 GiB", "node.host.limit: found 504.00 GiB, expected at most"},
        {"node.host.process", "500 GiB", "node.host.process"},
        {"node.host.process_comm", "500 GiB", "node.host.process_comm"},
        {"node.host.cores", "0", "node.host.cores"},
        {"node.host.dma", "0", "node.host.dma: found \"0\", expected 1 MB/s to 1 PB/s"},
        {"node.pcie.both", "0", "node.pcie.both"},
        {"node.nvlink", "0", "node.nvlink"},
        {"node.cpu_adamw", "0", "node.cpu_adamw"},
        {"node.pcie.both", "55.35 GB/s",
         "node.pcie.both: found 55.4 GB/s, expected at most node.pcie.d2h = 55.3 GB/s"},
        {"node.pcie.direct", "60 GB/s",
         "node.pcie.direct: found 60 GB/s, expected at most node.pcie.h2d"},
        {"node.gpu.norm_bf16", "20 TB/s", "found 20 TB/s, expected at most 1.25 x node.gpu.hbm = "},
        {"node.gpu.norm", "20 TB/s", "expected at most 1.25 x node.gpu.hbm = "},
        {"node.gpu.update", "20 TB/s", "node.gpu.hbm"},
        {"node.host.dma", "900 GB/s", "expected at most node.host.bandwidth = "},
        {"node.host.dma_up", "900 GB/s", "node.host.bandwidth"},
        {"node.host.dma_down", "900 GB/s", "node.host.bandwidth"},
        {"node.host.dma_beside", "900 GB/s", "node.host.bandwidth"},
        {"node.nvme.both", "900 GB/s", "expected at most node.nvme.read + node.nvme.write = "},
    };
    stw_cluster c, defaults;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
        stw_error bound = STW_ERROR_INIT;
        if (stw_cluster_set(&c, cases[i].key, cases[i].value, "--set", &bound) == STW_STATUS_OK)
            CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT,
                        cases[i].word);
        else
            CU_ASSERT_PTR_NOT_NULL(strstr(bound.text, cases[i].word));
    }
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    c.host.object_store_bytes = 2ull << 30;
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err)); /* /dev/shm is not known */
    c.host.shm_bytes = 1ull << 30;
    CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT,
                "node.host.object_store: found 2.00 GiB, expected at most node.host.shm = ");
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    c.nic_bps = 0; /* one node needs no network */
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err));
    c.nodes = 2;
    CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT, "network.nic");
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    c.nvme.capacity_bytes = 1;
    c.nvme.write_bps = 0;
    CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT,
                "node.nvme.write");

    CHECK_OK(stw_cluster_defaults(&defaults, err));
    CU_ASSERT_EQUAL(defaults.gpus, 1);
    CHECK_OK(stw_cluster_check(&defaults, "default", err));
    CHECK_OK(cluster_from_yaml("assumed: []", &c, err)); /* which does not make it true */
    CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT,
                "node.gpu.memory: found nothing");
    CU_ASSERT_TRUE(is_default(c));
    CHECK_OK(cluster_from_yaml("node: {host: {memory: 64 GiB}}", &c, err));
    CU_ASSERT_EQUAL(c.host.limit_bytes, (uint64_t)64 << 30); /* follows the memory */

    memset(&c, 7, sizeof c);
    CHECK_FAILS(cluster_from_yaml("node: {gpu: {memroy: 80 GiB}}", &c, err), STW_STATUS_BAD_INPUT,
                "cluster.yaml:1:14: unknown key \"node.gpu.memroy\"; did you mean "
                "\"node.gpu.memory\"?");
    CHECK_FAILS(cluster_from_yaml("node: {gpu: {memory: unlimited}}", &c, err),
                STW_STATUS_BAD_INPUT, "found \"unlimited\"");
    CHECK_FAILS(cluster_from_yaml("node: {pcie: {h2d: 55 GiB}}", &c, err), STW_STATUS_BAD_INPUT,
                "unit");
    CHECK_FAILS(cluster_from_yaml("node: {pcie: {h2d: -1}}", &c, err), STW_STATUS_BAD_INPUT,
                "negative");
    CHECK_FAILS(cluster_from_yaml("name: a-name-that-is-longer-than-the-sixty-three-bytes-which-"
                                  "fit-into-it",
                                  &c, err),
                STW_STATUS_BAD_INPUT, "at most 63 bytes");
    CHECK_FAILS(cluster_from_yaml("node: {gpus: 1.5}", &c, err), STW_STATUS_BAD_INPUT, "whole");
    CU_ASSERT_EQUAL(c.nodes, 0x07070707u); /* nothing was written */
}

/* ---- raw samples ---- */

static stw_samples two_samples(void) {
    stw_samples samples = STW_SAMPLES_INIT;
    stw_sample link = stw_sample_make("h2d", "32 MiB, 4 GPUs", "B/s");
    stw_sample odd = stw_sample_make("disk, read", "a \"name\"\n\\ {of: [it]}", "B/s");
    stw_sample none = stw_sample_make("nothing", "", "s");
    stw_sample_add(&link, 55.1234567e9);
    stw_sample_add(&link, 54e9);
    stw_sample_add(&odd, 2.5e-6);
    stw_samples_add(&samples, &link);
    stw_samples_add(&samples, &none); /* without values: left out */
    stw_samples_add(&samples, &odd);
    stw_samples_add(NULL, &odd);
    return samples;
}

static void samples_are_kept(void) {
    stw_sample s = stw_sample_make("a-name-that-is-longer-than-the-field-it-goes-into", "d", "s");
    CU_ASSERT_EQUAL(strlen(s.what), sizeof s.what - 1);
    CU_ASSERT_EQUAL(stw_sample_median(&s), 0);
    stw_sample_add(&s, 3);
    CU_ASSERT_EQUAL(stw_sample_median(&s), 3);
    stw_sample_add(&s, 1);
    CU_ASSERT_EQUAL(stw_sample_median(&s), 2);
    stw_sample_add(&s, 100);
    CU_ASSERT_EQUAL(stw_sample_median(&s), 3);
    CU_ASSERT_EQUAL(s.values[1], 1); /* in the order of measurement */
    for (int i = 0; i < 2 * STW_SAMPLE_VALUES; i++) stw_sample_add(&s, 7);
    CU_ASSERT_EQUAL(s.n, STW_SAMPLE_VALUES);

    stw_samples samples = STW_SAMPLES_INIT;
    for (int i = 0; i < 1000; i++) {
        stw_sample one = stw_sample_make("n", i % 2 == 0 ? "even" : "odd", "s");
        stw_sample_add(&one, i);
        stw_samples_add(&samples, &one);
    }
    CHECK_OK(stw_samples_status(&samples, err));
    CU_ASSERT_EQUAL(samples.n, 1000);
    CU_ASSERT_EQUAL(samples.items[999].values[0], 999);
    CU_ASSERT_PTR_EQUAL(stw_samples_find(&samples, "n", "odd"), &samples.items[1]);
    CU_ASSERT_PTR_EQUAL(stw_samples_find(&samples, "n", NULL), &samples.items[0]);
    CU_ASSERT_PTR_NULL(stw_samples_find(&samples, "m", NULL));
    samples.failed = true;
    CHECK_FAILS(stw_samples_status(&samples, err), STW_STATUS_NO_MEMORY, "samples");
    stw_samples_free(&samples);
    CU_ASSERT_EQUAL(samples.n, 0);
    static const double quiet[] = {8.39e9, 9.75e9, 9.86e9}, disturbed[] = {5.2e9, 3.89e9, 3.36e9};
    stw_sample steady = stw_sample_make("cpu_adamw", "", "param/s"), unsteady = steady;
    CU_ASSERT_TRUE(stw_sample_is_steady(&steady)); /* of nothing, one and two values: unknown */
    for (int i = 0; i < 3; i++) {
        stw_sample_add(&steady, quiet[i]);
        if (i == 2) CU_ASSERT_TRUE(stw_sample_is_steady(&unsteady));
        stw_sample_add(&unsteady, disturbed[i]);
    }
    CU_ASSERT_TRUE(stw_sample_is_steady(&steady));
    CU_ASSERT_FALSE(stw_sample_is_steady(&unsteady));
    for (int i = 0; i < 4; i++) stw_sample_add(&unsteady, 3.9e9); /* two of seven are apart */
    CU_ASSERT_TRUE(stw_sample_is_steady(&unsteady));
}

/* What was written holds the samples; what is read back is the cluster without them. */
static void check_written(const stw_tree *tree, const stw_cluster *c) {
    stw_cluster again;
    CHECK_OK(stw_cluster_from_node(tree, tree->root, &again, err));
    CU_ASSERT_EQUAL(memcmp(c, &again, sizeof again), 0);
    const stw_node *list = stw_node_path(tree->root, "calibration.samples");
    CU_ASSERT_PTR_NOT_NULL_FATAL(list);
    CU_ASSERT_EQUAL_FATAL(list->n_items, 2);
    CU_ASSERT_STRING_EQUAL(stw_node_get(list->items[0], "what")->text, "h2d");
    CU_ASSERT_STRING_EQUAL(stw_node_get(list->items[0], "detail")->text, "32 MiB, 4 GPUs");
    CU_ASSERT_STRING_EQUAL(stw_node_get(list->items[0], "unit")->text, "B/s");
    const stw_node *values = stw_node_get(list->items[0], "values");
    CU_ASSERT_EQUAL_FATAL(values->n_items, 2);
    CU_ASSERT_EQUAL(values->items[0]->real, 55.123e9);
    CU_ASSERT_EQUAL(values->items[1]->real, 54e9);
    CU_ASSERT_STRING_EQUAL(stw_node_get(list->items[1], "detail")->text,
                           "a \"name\"\n\\ {of: [it]}");
    CU_ASSERT_EQUAL(stw_node_get(list->items[1], "values")->items[0]->real, 2.5e-6);
}

static void samples_are_written_and_skipped(void) {
    stw_cluster c;
    stw_text yaml = STW_TEXT_INIT, json_text = STW_TEXT_INIT;
    stw_samples samples = two_samples(), none = STW_SAMPLES_INIT;
    stw_tree *tree = NULL;
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    c.calibration.measured = true;
    snprintf(c.calibration.date, sizeof c.calibration.date, "2026-11-21");
    stw_cluster_write_measured_yaml(&c, &samples, &yaml);
    CU_ASSERT_FALSE_FATAL(yaml.failed);
    CHECK_OK(stw_tree_parse_yaml("cluster.yaml", yaml.data, yaml.length, &tree, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    check_written(tree, &c);
    stw_tree_free(tree);
    stw_text_free(&yaml);

    stw_json *json = stw_json_new();
    stw_cluster_write_measured_json(&c, &samples, json, NULL);
    CHECK_OK(stw_json_finish(json, &json_text, err));
    CHECK_OK(stw_tree_parse_json("cluster.json", json_text.data, json_text.length, &tree, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    check_written(tree, &c);
    stw_tree_free(tree);
    stw_text_free(&json_text);

    stw_cluster_write_measured_yaml(&c, &none, &yaml); /* nothing measured is a list too */
    CHECK_OK(stw_tree_parse_yaml("cluster.yaml", yaml.data, yaml.length, &tree, err));
    CU_ASSERT_EQUAL(stw_node_path(tree->root, "calibration.samples")->n_items, 0);
    stw_tree_free(tree);
    stw_text_free(&yaml);
    stw_samples_free(&samples);

    /* Skipped is the list, and nothing beside it. */
    CHECK_OK(cluster_from_yaml("calibration: {samples: [{what: x}, 7]}", &c, err));
    CU_ASSERT_TRUE(is_default(c));
    CHECK_OK(cluster_from_yaml("calibration: {date: d, samples: [], measured: true}", &c, err));
    CU_ASSERT_TRUE(c.calibration.measured);
    CU_ASSERT_STRING_EQUAL(c.calibration.date, "d");
    CHECK_FAILS(cluster_from_yaml("calibration: {samples: 7}", &c, err), STW_STATUS_BAD_INPUT,
                "cluster.yaml:1:24");
    CHECK_FAILS(cluster_from_yaml("calibration: {samples: {a: 1}}", &c, err), STW_STATUS_BAD_INPUT,
                "list of samples");
    CHECK_FAILS(cluster_from_yaml("calibration: {samples: [], dat: x}", &c, err),
                STW_STATUS_BAD_INPUT, "did you mean \"calibration.date\"?");
    CHECK_FAILS(cluster_from_yaml("samples: []", &c, err), STW_STATUS_BAD_INPUT, "unknown key");
    CHECK_FAILS(cluster_from_yaml("node: {samples: []}", &c, err), STW_STATUS_BAD_INPUT,
                "unknown key");
    CU_ASSERT_FALSE(stw_cluster_has_key("calibration.samples"));
}

/* The limit keeps its share of a memory that is set alone. */
static void limits_follow_memory(void) {
    static const char *const memory[] = {"nodes=2", "node.host.memory=250 GiB"};
    static const char *const both[] = {"node.host.limit=100 GiB", "node.host.memory=250 GiB"};
    stw_cluster before, after;
    CHECK_OK(cluster_from_yaml("node: {host: {memory: 125 GiB, limit: 100 GiB}}", &before, err));
    after = before;
    after.host.memory_bytes = 250ull << 30;
    stw_cluster_follow(&before, both, 2, &after);
    CU_ASSERT_EQUAL(after.host.limit_bytes, 100ull << 30);
    stw_cluster_follow(&before, memory, 2, &after);
    CU_ASSERT_EQUAL(after.host.limit_bytes, 200ull << 30);
    CHECK_OK(
        cluster_from_yaml("node: {gpu: {memory: 24 GB}, host: {memory: 125 GiB}}", &before, err));
    after = before;
    after.host.memory_bytes = 50ull << 30;
    stw_cluster_follow(&before, memory, 2, &after);
    CU_ASSERT_EQUAL(after.host.limit_bytes, 50ull << 30);
    CHECK_OK(stw_cluster_check(&after, "cluster.yaml", err));
}

/* A slower link that is given alone is slower both ways; what is given twice is kept. */
static void rates_follow_what_bounds_them(void) {
    static const char *const h2d[] = {"node.pcie.h2d=20 GB/s"};
    static const char *const both[] = {"node.pcie.h2d=20 GB/s", "node.pcie.both=30 GB/s"};
    static const char *const host[] = {"node.host.bandwidth=60 GB/s"};
    stw_cluster before, c;
    CHECK_OK(cluster_from_yaml("node: {pcie: {h2d: 25 GB/s}}", &c, err));
    CU_ASSERT_EQUAL(c.pcie.both_bps, 25e9);
    CHECK_OK(cluster_from_yaml("node: {pcie: {h2d: 25 GB/s, both: 30 GB/s}}", &c, err));
    CU_ASSERT_EQUAL(c.pcie.both_bps, 30e9);
    CHECK_OK(stw_cluster_defaults(&before, err));
    before.host.dma_beside_bps = 80e9;
    c = before;
    c.pcie.h2d_bps = 20e9;
    stw_cluster_follow(&before, h2d, 1, &c);
    CU_ASSERT_EQUAL(c.pcie.both_bps, 20e9);
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err));
    c.pcie.both_bps = 30e9;
    stw_cluster_follow(&before, both, 2, &c);
    CU_ASSERT_EQUAL(c.pcie.both_bps, 30e9);
    c = before;
    c.host.bandwidth_bps = 60e9;
    stw_cluster_follow(&before, host, 1, &c);
    CU_ASSERT_EQUAL(c.host.dma_bps, 60e9);
    CU_ASSERT_EQUAL(c.host.dma_beside_bps, 60e9);
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err));
    c.gpu.norm_bps = c.gpu.norm_bf16_bps = c.nvme.both_bps = 1e15; /* a measurement that scatters */
    stw_cluster_lower_rates(&c, NULL);
    CHECK_OK(stw_cluster_check(&c, "cluster.yaml", err));
}

/* A peak that is set makes products faster, and no product is faster than the peak. */
static void products_follow_the_peak(void) {
    static const char *const peak[] = {"node.gpu.bf16=500 TFLOP/s"};
    static const char *const own[] = {"node.gpu.bf16=500 TFLOP/s",
                                      "node.gpu.best_bf16=600 TFLOP/s"};
    stw_cluster before, c;
    CHECK_OK(stw_cluster_defaults(&before, err));
    before.gpu.bf16_flops = 1000e12;
    before.gpu.best_bf16_flops = 800e12;
    c = before;
    c.gpu.bf16_flops = 500e12;
    stw_cluster_follow(&before, peak, 1, &c);
    CU_ASSERT_EQUAL(c.gpu.best_bf16_flops, 400e12);
    c.gpu.best_bf16_flops = 600e12;
    stw_cluster_follow(&before, own, 2, &c);
    CU_ASSERT_EQUAL(c.gpu.best_bf16_flops, 600e12);
    CHECK_FAILS(stw_cluster_check(&c, "cluster.yaml", err), STW_STATUS_BAD_INPUT,
                "node.gpu.best_bf16: found 600 TFLOP/s, expected at most node.gpu.bf16 = 500");
}

static void check_assumed(const stw_cluster *c, const char *expected) {
    stw_text words = STW_TEXT_INIT;
    (void)stw_cluster_assumed_words(c, &words);
    CU_ASSERT_STRING_EQUAL(words.data != NULL ? words.data : "", expected);
    stw_text_free(&words);
}

/* Defaults that decide a plan are named, and survive a round trip; --set gives keys as well. */
static void missing_keys_are_named(void) {
    static const char *const none[] = {"nodes=1"};
    stw_cluster c, again;
    stw_text yaml = STW_TEXT_INIT;
    CHECK_OK(cluster_from_yaml(contract_cluster, &c, err));
    check_assumed(&c, "");
    CHECK_OK(stw_cluster_defaults(&c, err));
    check_assumed(&c, ""); /* the default machine and presets */
    CHECK_OK(cluster_from_yaml("node: {gpus: 2, host: {memory: 64 GiB}, pcie: {h2d: 25 GB/s}}", &c,
                               err));
    CU_ASSERT_STRING_EQUAL(c.gpu.name, "GPU");
    CU_ASSERT_TRUE(c.assumed[0]);
    CHECK_FAILS(stw_cluster_check(&c, "box.yaml", err), STW_STATUS_BAD_INPUT, "node.gpu.memory");
    CHECK_OK(stw_cluster_set(&c, "node.gpu.memory", "24 GB", "--set", err));
    CHECK_OK(stw_cluster_check(&c, "box.yaml", err));
    CHECK_OK(stw_cluster_set(&c, "node.gpu", "{hbm: 1 TB/s, bf16: 165 TFLOP/s}", "--set", err));
    CHECK_OK(stw_cluster_set(&c, "node.pcie.d2h", "24 GB/s", "--set", err));
    stw_cluster_follow(&c, none, 1, &c); /* no network and no NVMe in it */
    const char *words = "node.host.bandwidth 120 GB/s, node.host.dma 90 GB/s, node.pcie.both "
                        "25 GB/s, node.nvlink 300 GB/s, node.cpu_adamw 3 Gparam/s";
    check_assumed(&c, words);
    stw_cluster_write_yaml(&c, &yaml);
    CHECK_OK(cluster_from_yaml(yaml.data, &again, err));
    check_assumed(&again, words);
    stw_text_free(&yaml);
    CHECK_OK(cluster_from_yaml("node: {host: {limit: 64 GiB}}", &c, err));
    stw_cluster_assumed_words(&c, &yaml);
    CU_ASSERT_PTR_NULL(strstr(yaml.data, "node.host.memory")); /* the limit decides */
    stw_text_free(&yaml);
}

STW_TEST_MAIN("plan cluster", {"clusters round-trip", clusters_round_trip},
              {"samples are kept", samples_are_kept},
              {"samples are written and skipped", samples_are_written_and_skipped},
              {"clusters are checked", clusters_are_checked},
              {"limits follow memory", limits_follow_memory},
              {"missing keys are named", missing_keys_are_named},
              {"rates follow what bounds them", rates_follow_what_bounds_them},
              {"products follow the peak", products_follow_the_peak})
