/* SPDX-License-Identifier: Apache-2.0 */
/* Where a bucket lives never changes a bit of the result: runs of one model, seed, number of steps,
 * optimizer and precision have the same digests, whatever their placement, backend and number of
 * ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/measured/compare.h"

static bool has_digests(const stw_run_result *run) {
    for (int d = 0; d < STW_N_DIGESTS; d++)
        if (run->digest[d] != 0) return true;
    return false;
}

/* The digest that most runs have; the first of those that are as frequent. */
static uint64_t shared_by_most(const stw_compare_run *runs, uint32_t n, int d) {
    uint32_t most = 0;
    uint64_t shared = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++) same += runs[k].digest[d] == runs[i].digest[d];
        if (same > most) {
            most = same;
            shared = runs[i].digest[d];
        }
    }
    return shared;
}

static stw_status check_comparable(const stw_run_result *const *runs, const char *const *names,
                                   uint32_t n, stw_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (!has_digests(runs[i]))
            return stw_fail(err, STW_STATUS_BAD_INPUT, names[i],
                            "the run has no digests to be compared with those of other runs");
        if (runs[i]->steps != runs[0]->steps || runs[i]->seed != runs[0]->seed)
            return stw_fail(err, STW_STATUS_BAD_INPUT, names[i],
                            "found a run of %" PRIu32 " steps with seed %" PRIu64
                            ", expected %" PRIu32 " steps with seed %" PRIu64 " as in %s",
                            runs[i]->steps, runs[i]->seed, runs[0]->steps, runs[0]->seed, names[0]);
        if (runs[i]->digest_of[0] != '\0' && runs[0]->digest_of[0] != '\0' &&
            strcmp(runs[i]->digest_of, runs[0]->digest_of) != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, names[i],
                            "found digests of another model, optimizer, precision or weights than "
                            "those of %s",
                            names[0]);
    }
    return STW_STATUS_OK;
}

stw_status stw_compare_digests(stw_comparison *comparison, const stw_run_result *const *runs,
                               const char *const *names, uint32_t n, stw_error *err) {
    stw_status status = n > 1 ? check_comparable(runs, names, n, err) : STW_STATUS_OK;
    if (status != STW_STATUS_OK) return status;
    comparison->runs = stw_pool_array(comparison->pool, n, sizeof *comparison->runs);
    if (comparison->runs == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "comparison", "out of memory");
    comparison->n_runs = n;
    comparison->differing = 0;
    for (uint32_t i = 0; i < n; i++) {
        stw_compare_run *run = &comparison->runs[i];
        *run = (stw_compare_run){
            .name = names[i], .checked = runs[i]->checked, .mismatched = runs[i]->mismatched};
        for (int d = 0; d < STW_N_DIGESTS; d++) {
            run->digest[d] = runs[i]->digest[d];
            run->known[d] = run->digest[d] != 0;
        }
    }
    for (int d = 0; d < STW_N_DIGESTS; d++) {
        uint64_t shared = shared_by_most(comparison->runs, n, d);
        for (uint32_t i = 0; i < n; i++) {
            comparison->runs[i].differs[d] = comparison->runs[i].digest[d] != shared;
            comparison->differing += comparison->runs[i].differs[d];
        }
    }
    return STW_STATUS_OK;
}

void stw_comparison_first_difference(const stw_comparison *comparison, char *out, size_t out_size) {
    out[0] = '\0';
    for (uint32_t i = 0; i < comparison->n_runs; i++)
        for (int d = 0; d < STW_N_DIGESTS; d++)
            if (comparison->runs[i].differs[d]) {
                snprintf(out, out_size, "%s: %s", comparison->runs[i].name, stw_digest_name(d));
                return;
            }
}

static void write_digests(const stw_compare_run *run, stw_json *json) {
    stw_json_begin_object(json, "digest");
    for (int d = 0; d < STW_N_DIGESTS; d++) {
        char hex[17];
        snprintf(hex, sizeof hex, "%016" PRIx64, run->digest[d]);
        if (run->known[d]) stw_json_string(json, stw_digest_name(d), hex);
    }
    stw_json_end(json);
    stw_json_begin_array(json, "differs");
    for (int d = 0; d < STW_N_DIGESTS; d++)
        if (run->differs[d]) stw_json_string(json, NULL, stw_digest_name(d));
    stw_json_end(json);
}

void stw_comparison_write_verify(const stw_comparison *comparison, stw_json *json) {
    stw_json_begin_object(json, "verify");
    stw_json_u64(json, "differing", comparison->differing);
    stw_json_begin_array(json, "runs");
    for (uint32_t i = 0; i < comparison->n_runs; i++) {
        const stw_compare_run *run = &comparison->runs[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "run", run->name);
        stw_json_u64(json, "checked", run->checked);
        stw_json_u64(json, "mismatched", run->mismatched);
        write_digests(run, json);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}
