/* SPDX-License-Identifier: Apache-2.0 */
/* Execution with memory of the executor's own, and what it measured. */
#include <stdlib.h>
#include <string.h>

#include "backend/executor/executor.h"
#include "core/checked.h"
#include "library/handles.h"

struct stw_result_t {
    stw_run_result *result;
};

stw_status_t stw_execute_plan(const stw_plan_t *plan, const stw_run_options_t *options, size_t size,
                              stw_result_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_run_options_t mine = {0};
    stw_run_result *result = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_run_options_t, no_verify), err));
    STW_TRY(stw_library_need_seconds(mine.timeout_s, "timeout_s", err));
    const stw_executor_options executor = {.backend = mine.backend != NULL ? mine.backend : "auto",
                                           .steps = mine.steps > 0 ? mine.steps : 1,
                                           .seed = mine.seed,
                                           .weights = mine.weights,
                                           .nvme_folder = mine.nvme_folder,
                                           .nvme_in_memory = mine.nvme_in_memory != 0,
                                           .timeout_s = mine.timeout_s,
                                           .no_digest = mine.no_verify != 0,
                                           .error_if_nonfinite = mine.error_if_nonfinite != 0};
    STW_TRY(stw_execute(plan->plan, &executor, &result, err));
    if (result == NULL) goto out; /* not rank 0 */
    uint64_t checked = result->checked, differ = result->mismatched;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    (*out)->result = result;
    result = NULL;
    if (differ > 0)
        status = stw_fail(err, STW_STATUS_DISAGREE, "verify",
                          "%llu of %llu elements differ from the reference",
                          (unsigned long long)differ, (unsigned long long)checked);
out:
    stw_run_result_free(result);
    return stw_library_end(status, error);
}

void stw_free_result(stw_result_t *result) {
    if (result == NULL) return;
    stw_run_result_free(result->result);
    free(result);
}

stw_status_t stw_write_result(const stw_result_t *result, const char *path, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(stw_library_need(result, "result", err));
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_run_result_write(result->result, path, err));
out:
    return stw_library_end(status, error);
}

void stw_get_result_info(const stw_result_t *handle, stw_result_info_t *out, size_t size) {
    static const stw_result_info_t none = {0};
    if (handle == NULL) {
        stw_library_copy(out, size, &none, sizeof none);
        return;
    }
    const stw_run_result *r = handle->result;
    const stw_result_info_t info = {.backend = r->backend,
                                    .device = r->device,
                                    .world = r->world,
                                    .steps = r->steps,
                                    .verified = r->checked,
                                    .differing = r->mismatched,
                                    .grad_norm = r->grad_norm,
                                    .clip_factor = r->clip_factor,
                                    .nonfinite_steps = r->nonfinite_steps,
                                    .first_nonfinite_step = r->first_nonfinite_step};
    stw_library_copy(out, size, &info, sizeof info);
}

int stw_get_measured(const stw_result_t *handle, uint32_t i, stw_measured_t *out, size_t size) {
    if (handle == NULL || out == NULL) return 0;
    const stw_run_result *r = handle->result;
    if (i >= r->n_movements) return 0;
    const stw_run_movement *movement = &r->movements[i];
    stw_measured_t row = {.phase = stw_phase_name(movement->phase),
                          .role = movement->role,
                          .samples = movement->n_samples,
                          .seconds = r->time_s[movement->phase]};
    for (uint32_t k = 0; k < r->n_ranks; k++) {
        const stw_measured *m = &r->ranks[k].phases[movement->phase];
        row.gpu_bytes = stw_max_u64(row.gpu_bytes, stw_max_u64(m->device, m->allocated));
        row.host_bytes = stw_max_u64(row.host_bytes, m->host);
    }
    stw_library_copy(out, size, &row, sizeof row);
    return 1;
}

int stw_get_measured_seconds(const stw_result_t *handle, uint32_t i, uint32_t sample,
                             double *seconds) {
    if (handle == NULL || seconds == NULL) return 0;
    const stw_run_result *r = handle->result;
    if (i >= r->n_movements || sample >= r->movements[i].n_samples) return 0;
    *seconds = r->movements[i].samples_s[sample];
    return 1;
}

int stw_library_digest_of(const char *component) {
    static const char *const names[STW_N_DIGESTS] = {"params", "exp_avg", "exp_avg_sq", "master"};
    for (int d = 0; d < STW_N_DIGESTS; d++)
        if (strcmp(names[d], component) == 0) return d;
    return -1;
}

int stw_get_digest(const stw_result_t *handle, const char *component, uint64_t *out) {
    if (handle == NULL || component == NULL || out == NULL) return 0;
    int d = stw_library_digest_of(component);
    if (d < 0 || handle->result->digest[d] == 0) return 0;
    *out = handle->result->digest[d];
    return 1;
}
