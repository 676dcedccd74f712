/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration of this machine with small buffers: what it finds holds together and makes a
 * cluster that plans accept. (Rates are whatever they are.) */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <math.h>
#include <stdlib.h>

#include "backend/limits.h"
#include "backend/probe/probe.h"
#include "core/log.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)

static void quiet(stw_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

static uint64_t memory_before; /* MemTotal may grow while a test runs */

static void probe(stw_probe_depth depth, stw_cluster *out, stw_samples *samples) {
    const stw_probe_options options = {.depth = depth};
    stw_limits limits;
    CHECK_OK(stw_limits_read("", &limits, err));
    memory_before = limits.memory_bytes;
    stw_log_set(quiet, NULL); /* machines without much memory or cores are warned of */
    CHECK_OK(stw_machine_probe(&options, out, samples, err));
    stw_log_set(NULL, NULL);
}

/* Sizes do not depend on what is measured. */
static void check_sizes(const stw_cluster *c) {
    stw_limits limits;
    CHECK_OK(stw_limits_read("", &limits, err));
    CU_ASSERT_EQUAL(c->nodes, 1);
    CU_ASSERT_EQUAL(c->gpus, 0); /* tests are linked without CUDA */
    CU_ASSERT_EQUAL(c->host.cores, limits.cores);
    CU_ASSERT_TRUE(c->host.memory_bytes >= memory_before);
    CU_ASSERT_TRUE(c->host.limit_bytes + c->gpu.memory_bytes <= c->host.memory_bytes);
    CU_ASSERT_TRUE(c->host.limit_bytes <= limits.cgroup_bytes);
    CHECK_OK(stw_cluster_check(c, "probe", err));
}

static void describes_without_measuring(void) {
    stw_cluster c;
    stw_samples samples = STW_SAMPLES_INIT;
    probe(STW_PROBE_SIZES, &c, &samples);
    check_sizes(&c);
    CU_ASSERT_FALSE(c.calibration.measured);
    CU_ASSERT_STRING_EQUAL(c.calibration.date, "");
    CU_ASSERT_EQUAL(samples.n, 0);
    CU_ASSERT_TRUE(c.cpu_adamw_pps > 0 && c.host.bandwidth_bps > 0);
}

static bool near(double a, double b) { return fabs(a - b) <= 0.006 * fabs(b); }

/* The figures are the medians of the samples, in three digits. What other work on the machine makes
 * of rates that contain each other is lowered to its bound. */
static void check_medians(const stw_cluster *c, const stw_samples *samples) {
    const double disk_bps = c->nvme.read_bps + c->nvme.write_bps;
    const struct {
        const char *what;
        double figure, most;
    } figures[] = {{"cpu_adamw", c->cpu_adamw_pps, INFINITY},
                   {"cpu_norm", c->cpu_norm_pps, INFINITY},
                   {"disk, read", c->nvme.read_bps, INFINITY},
                   {"disk, write", c->nvme.write_bps, INFINITY},
                   {"disk, read and write", c->nvme.both_bps, disk_bps}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const stw_sample *sample = stw_samples_find(samples, figures[i].what, NULL);
        if (sample == NULL && i >= 2) continue; /* temporary files in memory: no disk */
        CU_ASSERT_PTR_NOT_NULL_FATAL(sample);
        CU_ASSERT_TRUE(sample->n > 0);
        CU_ASSERT_TRUE(figures[i].figure > 0);
        const double median = stw_sample_median(sample);
        CU_ASSERT_TRUE(near(figures[i].figure, fmin(median, figures[i].most)));
    }
    const stw_sample *ring = stw_samples_find(samples, "cpu_adamw_ring", NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(ring);
    CU_ASSERT_TRUE(near(c->cpu_adamw_ring_pps, fmax(stw_sample_median(ring), c->cpu_adamw_pps)));
}

static void measures_small(stw_probe_depth depth) {
    stw_cluster c;
    stw_samples samples = STW_SAMPLES_INIT;
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "32 MiB", 1), 0);
    probe(depth, &c, &samples);
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_PROBE_BYTES"), 0);
    check_sizes(&c);
    CU_ASSERT_TRUE(c.calibration.measured);
    CU_ASSERT_EQUAL(strlen(c.calibration.date), strlen("2026-11-21"));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.calibration.versions, "Stowage "));
    check_medians(&c, &samples);
    /* AdamW moves 28 bytes per parameter. */
    const stw_sample *adamw = stw_samples_find(&samples, "cpu_adamw", NULL);
    const stw_sample *seen = stw_samples_find(&samples, "host memory, CPU", NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(seen);
    CU_ASSERT_EQUAL_FATAL(adamw->n, seen->n);
    for (uint32_t i = 0; i < adamw->n; i++)
        CU_ASSERT_EQUAL(seen->values[i], 28.0 * adamw->values[i]);
    CU_ASSERT_TRUE(c.host.bandwidth_bps >= 0.99 * stw_sample_median(seen));
    const stw_sample *spent = stw_samples_find(&samples, "calibration", "whole");
    CU_ASSERT_PTR_NOT_NULL_FATAL(spent);
    /* A machine without time for it leaves it out. */
    if (depth == STW_PROBE_FULL && c.host.cores > 1 && stw_sample_median(spent) < 60)
        CU_ASSERT_PTR_NOT_NULL(
            stw_samples_find(&samples, "cpu_adamw", "1 thread of one NUMA node"));
    stw_samples_free(&samples);
}

static void measures_quickly(void) { measures_small(STW_PROBE_QUICK); }
static void measures_fully(void) { measures_small(STW_PROBE_FULL); }

static void works_without_samples(void) {
    stw_cluster c;
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "32 MiB", 1), 0);
    probe(STW_PROBE_QUICK, &c, NULL);
    CU_ASSERT_TRUE(c.calibration.measured);
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "32 pounds", 1), 0);
    const stw_probe_options options = {.depth = STW_PROBE_QUICK};
    CHECK_FAILS(stw_machine_probe(&options, &c, NULL, err), STW_STATUS_BAD_INPUT,
                "STOWAGE_PROBE_BYTES");
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_PROBE_BYTES"), 0);
}

/* Too little memory for anything: warnings and guesses, no failure. */
static void survives_without_room(void) {
    stw_cluster c;
    stw_samples samples = STW_SAMPLES_INIT;
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "4 KiB", 1), 0);
    probe(STW_PROBE_QUICK, &c, &samples);
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_PROBE_BYTES"), 0);
    check_sizes(&c);
    CU_ASSERT_PTR_NULL(stw_samples_find(&samples, "cpu_adamw", NULL));
    CU_ASSERT_PTR_NULL(stw_samples_find(&samples, "disk, read", NULL));
    stw_samples_free(&samples);
}

static void teams_work(void) {
    stw_probe_teams *teams = calloc(1, sizeof *teams);
    CU_ASSERT_PTR_NOT_NULL_FATAL(teams);
    CHECK_OK(stw_probe_teams_open(2, 1, 16 * MIB * STW_PROBE_MOST_TEAMS, teams, err));
    CU_ASSERT_TRUE(teams->n >= 1);
    CU_ASSERT_TRUE(teams->params >= MIB && teams->params % MIB == 0);
    float before = teams->team[0].memory[0];
    CU_ASSERT_TRUE(before > 7e-4f && before < 8e-4f);
    for (unsigned i = 0; i < 4; i++) { /* arrays of 2^k parameters begin in other sets of a cache */
        const stw_probe_team *team = &teams->team[0];
        for (unsigned k = 0; k < i; k++) {
            uint64_t apart =
                (uint64_t)(stw_probe_array(team, MIB, i) - stw_probe_array(team, MIB, k)) *
                sizeof(float);
            CU_ASSERT_EQUAL(apart % 64, 0);
            CU_ASSERT_NOT_EQUAL(apart % 4096, 0);
            CU_ASSERT_TRUE(apart % (MIB * sizeof(float)) >= MIB);
        }
    }
    CU_ASSERT_TRUE(stw_probe_teams_run(teams, STW_PROBE_NORM, 0) > 0);
    CU_ASSERT_EQUAL(teams->team[0].memory[0], before); /* a norm only reads */
    CU_ASSERT_TRUE(stw_probe_teams_run(teams, STW_PROBE_ADAMW, 0) > 0);
    const uint64_t last = teams->params - 1;
    for (uint32_t i = 0; i < teams->n; i++) {
        const float *memory = teams->team[i].memory;
        CU_ASSERT_NOT_EQUAL(memory[0], before); /* parameters moved, all of them alike ... */
        CU_ASSERT_EQUAL(memory[0], memory[last]);
        CU_ASSERT_EQUAL(stw_probe_array(&teams->team[i], teams->params, 1)[0],
                        before); /* ... and gradients did not */
    }
    /* A copy takes the second half to the first. */
    float moment = stw_probe_array(&teams->team[0], teams->params, 2)[0];
    CU_ASSERT_TRUE(stw_probe_teams_run(teams, STW_PROBE_COPY, 0) > 0);
    CU_ASSERT_EQUAL(teams->team[0].memory[0], moment);
    stw_probe_teams_close(teams);
    CU_ASSERT_EQUAL(teams->n, 0);
    CHECK_FAILS(stw_probe_teams_open(2, 1, MIB, teams, err), STW_STATUS_NO_RESOURCES, "at least");
    stw_probe_teams_close(teams);
    free(teams);
}

static void disks_that_are_memory_have_no_capacity(void) {
    CU_ASSERT_EQUAL(stw_probe_disk_capacity("/dev/shm"), 0);
    CU_ASSERT_EQUAL(stw_probe_disk_capacity("/no/such/folder"), 0);
}

STW_TEST_MAIN("backend probe", {"describes without measuring", describes_without_measuring},
              {"measures quickly", measures_quickly}, {"measures fully", measures_fully},
              {"works without samples", works_without_samples},
              {"survives without room", survives_without_room}, {"teams work", teams_work},
              {"disks that are memory", disks_that_are_memory_have_no_capacity})
