/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer step on parameters and gradients that the caller owns. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/executor/bound.h"
#include "backend/norm.h"
#include "backend/process.h"
#include "library/handles.h"

_Static_assert(STOWAGE_NORM_COUNTERS == STW_NORM_COUNTERS, "counters of a norm");
_Static_assert(STOWAGE_PARAM_GROUPS == STW_MAX_PARAM_GROUPS, "parameter groups");

static void describe(const stw_bound_sizes *sizes, stw_optimizer_info_t *out) {
    out->gpu_bytes = sizes->gpu_bytes;
    out->host_bytes = sizes->host_bytes;
    out->nvme_bytes = sizes->nvme_bytes;
    out->buckets = sizes->buckets;
    out->streamed_bytes = sizes->streamed_bytes;
}

stw_status_t stw_measure_optimizer(const stw_plan_t *plan, stw_optimizer_info_t *out, size_t size,
                                   stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_optimizer_info_t info = {.backend = ""};
    stw_bound_sizes sizes;
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_bound_measure(plan->plan, &sizes, err));
    describe(&sizes, &info);
    stw_library_copy(out, size, &info, sizeof info);
out:
    return stw_library_end(status, error);
}

stw_status_t stw_spill_state(stw_plan_t *plan, uint64_t host_bytes, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_bound_spill(plan->plan, host_bytes, err));
out:
    return stw_library_end(status, error);
}

/* The caller's tensors as the backend takes them; the array is the caller's to free. */
static stw_status take_tensors(const stw_bound_t *tensors, uint32_t n, stw_bound_tensor **out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_bound_tensor *mine = calloc((size_t)n + 1, sizeof *mine);
    *out = mine;
    if (mine == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "tensors", "out of memory"));
    for (uint32_t i = 0; i < n; i++) {
        const stw_bound_t *t = &tensors[i];
        STW_TRY(stw_library_need(t->name, "name", err));
        STW_TRY(stw_library_need(t->dtype, "dtype", err));
        mine[i] = (stw_bound_tensor){
            .name = t->name, .address = t->address, .elements = t->elements, .group = t->group};
        if (!stw_dtype_parse(t->dtype, &mine[i].dtype))
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                             "found dtype \"%.40s\", expected one such as F32 or BF16", t->dtype));
    }
out:
    return status;
}

stw_status_t stw_open_optimizer(const stw_plan_t *plan, const stw_bound_t *tensors, uint32_t n,
                                const stw_optimizer_options_t *options, size_t size,
                                stw_optimizer_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_optimizer_options_t mine = {0};
    stw_optimizer_t *handle = NULL;
    stw_bound_tensor *taken = NULL;
    const double begin_s = stw_process_now_s();
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_library_need(out, "out", err));
    if (n > 0) STW_TRY(stw_library_need(tensors, "tensors", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_optimizer_options_t, gpu), err));
    STW_TRY(take_tensors(tensors, n, &taken, err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "optimizer", "out of memory"));
    const stw_bound_options bound = {.backend = mine.backend != NULL ? mine.backend : "auto",
                                     .gpu = {mine.gpu_address, mine.gpu_bytes},
                                     .gpu_is_given = mine.gpu_is_given != 0,
                                     .gpu_number = mine.gpu,
                                     .nvme_folder = mine.nvme_folder,
                                     .nvme_in_memory = mine.nvme_in_memory != 0};
    STW_TRY(stw_bound_open(plan->plan, taken, n, &bound, &handle->bound, err));
    handle->pid = (long)getpid();
    handle->open_s = stw_process_now_s() - begin_s;
    *out = handle;
    handle = NULL;
out:
    free(taken);
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_optimizer(stw_optimizer_t *optimizer) {
    if (optimizer == NULL) return;
    /* A child's copy has no threads, and what it would close is the parent's. */
    if (optimizer->pid == (long)getpid()) {
        (void)stw_library_begin(NULL); /* it may say something */
        stw_bound_close(optimizer->bound);
        (void)stw_library_end(STW_STATUS_OK, NULL);
    }
    free(optimizer);
}

void stw_get_optimizer_info(const stw_optimizer_t *optimizer, stw_optimizer_info_t *out,
                            size_t size) {
    stw_optimizer_info_t info = {0};
    if (optimizer != NULL) {
        stw_bound_sizes sizes;
        stw_bound_get_sizes(optimizer->bound, &sizes);
        info.backend = stw_bound_backend(optimizer->bound)->name;
        info.open_seconds = optimizer->open_s;
        describe(&sizes, &info);
    }
    stw_library_copy(out, size, &info, sizeof info);
}

static stw_status need(const stw_optimizer_t *optimizer, stw_error *err) {
    stw_status status = stw_library_need(optimizer, "optimizer", err);
    return status == STW_STATUS_OK ? stw_library_need_process(optimizer->pid, "optimizer", err)
                                   : status;
}

stw_status_t stw_set_group(stw_optimizer_t *optimizer, uint32_t group, double learning_rate,
                           double weight_decay, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_bound_set_group(optimizer->bound, group, learning_rate, weight_decay, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_bind_gradients(stw_optimizer_t *optimizer, const void *const *gradients,
                                uint32_t n, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_library_need(gradients, "gradients", err));
    STW_TRY(stw_bound_set_gradients(optimizer->bound, gradients, n, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_bind_params(stw_optimizer_t *optimizer, void *const *params, uint32_t n,
                             stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_library_need(params, "params", err));
    STW_TRY(stw_bound_set_params(optimizer->bound, params, n, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_begin_norm(stw_optimizer_t *optimizer, int counts, void *stream,
                            uint64_t **counters, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    if (counters != NULL) *counters = NULL;
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_library_need(counters, "counters", err));
    STW_TRY(stw_bound_begin_norm(optimizer->bound, counts != 0, stream, counters, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_begin_step(stw_optimizer_t *optimizer, const stw_step_options_t *options,
                            size_t size, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_step_options_t mine = {0};
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_step_options_t, stream), err));
    const stw_bound_step step = {.step = mine.step,
                                 .beta1 = mine.beta1,
                                 .beta2 = mine.beta2,
                                 .eps = mine.eps,
                                 .clip_norm = mine.clip_norm,
                                 .native = mine.stream};
    STW_TRY(stw_bound_begin_step(optimizer->bound, &step, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_wait_tensor(stw_optimizer_t *optimizer, uint32_t tensor, void *stream,
                             stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_bound_wait(optimizer->bound, tensor, stream, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_finish_step(stw_optimizer_t *optimizer, stw_sample_t *out, size_t size,
                             stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_bound_sample sample;
    STW_TRY(need(optimizer, err));
    STW_TRY(
        stw_library_take(NULL, 0, out, size, STW_LIBRARY_UP_TO(stw_sample_t, clip_factor), err));
    STW_TRY(stw_bound_finish(optimizer->bound, &sample, err));
    const stw_sample_t measured = {
        .seconds = sample.seconds, .grad_norm = sample.norm, .clip_factor = sample.clip_factor};
    stw_library_copy(out, size, &measured, sizeof measured);
out:
    return stw_library_end(status, error);
}

/* ---- state ---- */

static stw_status copy_state(stw_optimizer_t *optimizer, const char *component,
                             const stw_bound_range *range, bool write, void *memory,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_bound_range wanted = *range;
    STW_TRY(need(optimizer, err));
    STW_TRY(stw_library_need(component, "component", err));
    if (range->n > 0) STW_TRY(stw_library_need(memory, write ? "from" : "out", err));
    if (!stw_component_parse(component, &wanted.component))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "component",
                         "found \"%.60s\", expected exp_avg, exp_avg_sq or master", component));
    STW_TRY(stw_bound_copy_state(optimizer->bound, &wanted, write, memory, err));
out:
    return status;
}

stw_status_t stw_read_state(stw_optimizer_t *optimizer, const char *component, uint32_t tensor,
                            uint64_t first, uint64_t elements, void *out, stw_error_t *error) {
    stw_error *err = stw_library_begin(error);
    const stw_bound_range range = {.tensor = tensor, .first = first, .n = elements};
    stw_status status = copy_state(optimizer, component, &range, false, out, err);
    return stw_library_end(status, error);
}

stw_status_t stw_write_state(stw_optimizer_t *optimizer, const char *component, uint32_t tensor,
                             uint64_t first, uint64_t elements, const void *from,
                             stw_error_t *error) {
    stw_error *err = stw_library_begin(error);
    const stw_bound_range range = {.tensor = tensor, .first = first, .n = elements};
    void *memory = (void *)(uintptr_t)from; /* it is only read */
    stw_status status = copy_state(optimizer, component, &range, true, memory, err);
    return stw_library_end(status, error);
}
