/* SPDX-License-Identifier: Apache-2.0 */
/* The executor on a backend whose k-th call fails: every such run ends with that call's error. A
 * backend that computes something else is found out. */
#define _DEFAULT_SOURCE /* alarm */
#include <unistd.h>

#include "backend/executor/run.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"

static const fixture_size small_size = {2, 64, 128, 512};
static const stw_place resident[] = {FIXTURE_RESIDENT};
static const uint32_t all_units[] = {UINT32_MAX};

static stw_executor_options options_of(uint32_t steps) {
    return (stw_executor_options){.backend = "host",
                                  .steps = steps,
                                  .seed = 11,
                                  .nvme_in_memory = true,
                                  .nvme_folder = ".",
                                  .caller = lent_memory()};
}

static stw_plan *plan_of(fixture_size size, const char *const *settings, uint32_t n,
                         const stw_place *places, const uint32_t *units) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, n, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static struct {
    unsigned calls, fail_at; /* atomic; fail_at 0: never */
    stw_device *device;      /* opened once and lent, to be quick */
    bool tamper;             /* scale every update a little */
} probe;

static bool fails(stw_error *err) {
    unsigned call = __atomic_add_fetch(&probe.calls, 1, __ATOMIC_RELAXED);
    if (call != probe.fail_at) return false;
    (void)stw_fail(err, STW_STATUS_DEVICE, "probe", "call %u was made to fail", call);
    return true;
}
#define PROBE(call) return fails(err) ? STW_STATUS_DEVICE : stw_backend_host.call

static stw_status probe_open(const stw_device_config *c, stw_device **out, stw_error *err) {
    *out = NULL;
    if (fails(err)) return STW_STATUS_DEVICE;
    stw_status status = STW_STATUS_OK;
    if (probe.device == NULL) status = stw_backend_host.open(c, &probe.device, err);
    *out = probe.device;
    return status;
}
static void probe_close(stw_device *d) { (void)d; }
static stw_status probe_copy(stw_device *d, stw_stream s, stw_location to, stw_location from,
                             uint64_t bytes, stw_error *err) {
    PROBE(copy(d, s, to, from, bytes, err));
}
static stw_status probe_set_spans(stw_device *d, const stw_span *spans, uint32_t n,
                                  stw_error *err) {
    PROBE(set_spans(d, spans, n, err));
}
static stw_status probe_update(stw_device *d, stw_stream s, const stw_adamw *a,
                               const stw_bucket_operands *o, stw_error *err) {
    stw_adamw used = *a;
    if (probe.tamper) used.eps *= 1.5f;
    PROBE(update(d, s, &used, o, err));
}
static stw_status probe_norm_add(stw_device *d, stw_stream s, stw_typed_range grads,
                                 stw_error *err) {
    PROBE(norm_add(d, s, grads, err));
}
static stw_status probe_norm_reset(stw_device *d, stw_stream s, stw_error *err) {
    PROBE(norm_reset(d, s, err));
}
static stw_status probe_norm_counters(stw_device *d, stw_stream s, bool counts, uint64_t **out,
                                      stw_error *err) {
    PROBE(norm_counters(d, s, counts, out, err));
}
static stw_status probe_norm_factor(stw_device *d, stw_stream s, double clip, stw_error *err) {
    PROBE(norm_factor(d, s, clip, err));
}
static stw_status probe_commit(stw_device *d, uint64_t step, stw_error *err) {
    PROBE(commit(d, step, err));
}
static stw_status probe_read(stw_device *d, uint64_t h, uint64_t n, uint64_t b, stw_error *err) {
    PROBE(read(d, h, n, b, err));
}
static stw_status probe_write(stw_device *d, uint64_t n, uint64_t h, uint64_t b, stw_error *err) {
    PROBE(write(d, n, h, b, err));
}
static stw_status probe_convert(stw_device *d, stw_stream s, stw_typed_range to, stw_location from,
                                stw_dtype dtype, stw_error *err) {
    PROBE(convert(d, s, to, from, dtype, err));
}
static stw_status probe_seed(stw_device *d, stw_typed_range to, uint64_t e, uint64_t seed,
                             uint64_t step, stw_error *err) {
    PROBE(seed_grads(d, to, e, seed, step, err));
}
static stw_status probe_zero(stw_device *d, stw_location to, uint64_t b, stw_error *err) {
    PROBE(zero(d, to, b, err));
}
static stw_status probe_digest(stw_device *d, stw_typed_range values, uint64_t e, uint64_t *out,
                               stw_error *err) {
    PROBE(digest(d, values, e, out, err));
}
static stw_status probe_record(stw_device *d, stw_stream s, uint32_t e, stw_error *err) {
    PROBE(record(d, s, e, err));
}
static stw_status probe_wait(stw_device *d, stw_stream s, uint32_t e, stw_error *err) {
    PROBE(wait(d, s, e, err));
}
static stw_status probe_wait_host(stw_device *d, uint32_t e, stw_error *err) {
    PROBE(wait_host(d, e, err));
}
static stw_status probe_synchronize(stw_device *d, stw_error *err) { PROBE(synchronize(d, err)); }

static stw_backend probe_backend(void) {
    stw_backend b = stw_backend_host;
    b.name = "probe";
    b.open = probe_open;
    b.close = probe_close;
    b.copy = probe_copy;
    b.update = probe_update;
    b.norm_add = probe_norm_add;
    b.norm_reset = probe_norm_reset;
    b.norm_counters = probe_norm_counters;
    b.norm_factor = probe_norm_factor;
    b.set_spans = probe_set_spans;
    b.commit = probe_commit;
    b.read = probe_read;
    b.write = probe_write;
    b.convert = probe_convert;
    b.seed_grads = probe_seed;
    b.zero = probe_zero;
    b.digest = probe_digest;
    b.record = probe_record;
    b.wait = probe_wait;
    b.wait_host = probe_wait_host;
    b.synchronize = probe_synchronize;
    return b;
}

static void probe_end(void) {
    if (probe.device != NULL) stw_backend_host.close(probe.device);
    memset(&probe, 0, sizeof probe);
}

static void every_failing_call_is_an_error(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
    static const uint32_t units[] = {10, 12, 12, 0};
    stw_plan *plan = plan_of(small_size, NULL, 4, places, units);
    stw_executor_options options = options_of(2);
    stw_backend backend = probe_backend();
    stw_run_result *result = NULL;
    alarm(250); /* a hang must not look like patience */
    options.no_digest = false;
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    stw_run_result_free(result);
    unsigned total = probe.calls, wrong = 0;
    CU_ASSERT_TRUE(total > 200);
    for (unsigned k = 1; k <= total; k += k < 150 ? 1 : 3) {
        stw_error error = STW_ERROR_INIT;
        char word[64];
        probe.calls = 0;
        probe.fail_at = k;
        stw_status status = stw_execute_with(plan, &options, &backend, &result, &error);
        snprintf(word, sizeof word, "call %u was made to fail", k);
        if (status != STW_STATUS_DEVICE || strstr(error.text, word) == NULL || result != NULL) {
            if (wrong++ == 0) fprintf(stderr, "call %u: %d %s\n", k, (int)status, error.text);
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
    alarm(0);
    probe_end();
    stw_plan_free(plan);
}

/* A backend that computes something else must be found out. */
static void wrong_updates_are_noticed(void) {
    stw_plan *plan = plan_of(small_size, NULL, 1, resident, all_units);
    stw_executor_options options = options_of(2);
    stw_backend backend = probe_backend();
    stw_run_result *result = NULL;
    probe.tamper = true;
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    if (result != NULL) CU_ASSERT_TRUE(result->mismatched > 0);
    stw_run_result_free(result);
    probe_end();
    stw_plan_free(plan);
}

STW_TEST_MAIN("backend failing", {"every failing call is an error", every_failing_call_is_an_error},
              {"wrong updates are noticed", wrong_updates_are_noticed})
