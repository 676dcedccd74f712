/* SPDX-License-Identifier: Apache-2.0 */
/* State that is fetched before its step: runs of streamed buckets, component by component, so that
 * a run is one copy for each component however many buckets it has. */
#include "backend/executor/bound_parts.h"
#include "core/checked.h"

#define ALIGN 256u /* of every component */

static const stw_place *place_of(const stw_bound *b, uint32_t bucket) {
    return &b->plan->decisions.state[b->layout->buckets[bucket].decision].place;
}

/* Elements keep their phases modulo 16 bytes: those of a bucket begin on a multiple of it. */
stw_status stw_bound_prepare_ahead(stw_bound *b, stw_error *err) {
    const uint32_t n = b->layout->n_buckets;
    b->streamed = stw_pool_array(b->pool, n, sizeof *b->streamed);
    b->run_of = stw_pool_array(b->pool, n, sizeof *b->run_of);
    b->runs = stw_pool_array(b->pool, STW_BOUND_RUNS, sizeof *b->runs);
    b->arrivals = stw_pool_array(b->pool, n, sizeof *b->arrivals);
    if (b->streamed == NULL || b->run_of == NULL || b->runs == NULL || b->arrivals == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "optimizer", "out of memory");
    for (uint32_t i = 0; i < n; i++) b->run_of[i] = UINT32_MAX;
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = &b->program->ops[b->turns[t]];
        if (op->kind == STW_OP_UPDATE && place_of(b, op->unit)->update == STW_UPDATE_STREAM)
            b->streamed[b->n_streamed++] = op->unit;
        if (op->stream == STW_STREAM_H2D && *stw_bound_event(b, b->turns[t]) != STW_OP_NONE)
            b->arrivals[op->unit] = *stw_bound_event(b, b->turns[t]); /* updates wait for it */
    }
    return STW_STATUS_OK;
}

stw_bound_run *stw_bound_run_of(const stw_bound *b, uint32_t bucket) {
    return b->run_of[bucket] == UINT32_MAX ? NULL : &b->runs[b->run_of[bucket]];
}

static bool moves(const stw_bound *b, uint32_t bucket, int component) {
    return stw_place_moves_up(b->plan->job, place_of(b, bucket), (stw_component)component);
}

static uint64_t component_bytes(const stw_bound *b, uint64_t params, int component) {
    return stw_times(params, stw_job_element_bytes(b->plan->job, (stw_component)component));
}

/* Bytes that a run of elements takes, its components aligned. */
static uint64_t run_bytes(const stw_bound *b, uint32_t bucket, uint64_t params) {
    uint64_t bytes = 0;
    for (int c = 0; c < STW_N_STATE; c++)
        if (moves(b, bucket, c))
            bytes = stw_plus(bytes, stw_round_up_u64(component_bytes(b, params, c), ALIGN));
    return bytes;
}

/* The longest run from the next bucket on that fits; 0 elements: none does. */
static stw_bound_run longest(const stw_bound *b, uint64_t room) {
    stw_bound_run run = {.first = b->n_ahead};
    if (run.first == b->n_streamed) return run;
    const stw_bucket *buckets = b->layout->buckets, *first = &buckets[b->streamed[run.first]];
    run.first_param = first->first_param;
    for (uint32_t i = run.first; i < b->n_streamed; i++) {
        const stw_bucket *bucket = &buckets[b->streamed[i]];
        if (bucket->decision != first->decision ||
            bucket->first_param != run.first_param + run.params ||
            run_bytes(b, b->streamed[i], run.params + bucket->params) > room)
            break;
        run.params += bucket->params;
        run.n++;
    }
    return run;
}

static stw_status copy_run(stw_bound *b, const stw_bound_run *run, bool back, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_place *place = place_of(b, b->streamed[run->first]);
    for (int c = 0; c < STW_N_STATE; c++) {
        const stw_component component = (stw_component)c;
        if (run->at[c] == NULL || (back && !stw_place_moves_down(b->plan->job, place, component)))
            continue;
        const stw_location home =
            stw_at(stw_place_tier(place, component),
                   stw_layout_address(b->plan->job, b->layout, component, run->first_param));
        STW_TRY(b->backend->copy_outside(b->device, back ? STW_STREAM_D2H : STW_STREAM_H2D, home,
                                         run->at[c], component_bytes(b, run->params, c), back,
                                         err));
    }
out:
    return status;
}

static stw_status fetch_run(stw_bound *b, stw_bound_run *run, unsigned char *to, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t first = b->streamed[run->first];
    for (int c = 0; c < STW_N_STATE; c++) {
        if (!moves(b, first, c)) continue;
        run->at[c] = to;
        to += stw_round_up_u64(component_bytes(b, run->params, c), ALIGN);
    }
    run->event = b->arrivals[b->streamed[run->first + run->n - 1]];
    STW_TRY(copy_run(b, run, false, err));
    STW_TRY(b->backend->record(b->device, STW_STREAM_H2D, run->event, err));
    for (uint32_t i = 0; i < run->n; i++) b->run_of[b->streamed[run->first + i]] = b->n_runs;
    b->runs[b->n_runs++] = *run;
    b->n_ahead += run->n;
out:
    return status;
}

stw_status stw_bound_fetch_runs(stw_bound *b, unsigned char *address, uint64_t bytes, void *native,
                                uint64_t *fetched, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t used = (0u - (uintptr_t)address) % ALIGN;
    while (used < bytes && b->n_runs < STW_BOUND_RUNS) {
        stw_bound_run run = longest(b, bytes - used);
        if (run.n == 0) break;
        if (*fetched == 0) {
            STW_TRY(b->backend->follow_native(b->device, STW_STREAM_H2D, native, err));
            if (b->begun) STW_TRY(b->backend->wait(b->device, STW_STREAM_H2D, b->ended_event, err));
        }
        STW_TRY(fetch_run(b, &run, address + used, err));
        used += run_bytes(b, b->streamed[run.first], run.params);
        *fetched = used;
    }
out:
    return status;
}

bool stw_bound_is_written_back(stw_bound *b) {
    bool done = !b->begun;
    pthread_mutex_lock(&b->mutex);
    const bool issued = !b->working && b->status == STW_STATUS_OK;
    pthread_mutex_unlock(&b->mutex);
    if (done || !issued) return done;
    return b->backend->reached(b->device, b->ended_event, &done, NULL) == STW_STATUS_OK && done;
}

void stw_bound_move_operands(const stw_bound *b, const stw_bound_run *run,
                             stw_bucket_operands *operands) {
    stw_operand *const of[STW_N_STATE] = {[STW_COMPONENT_PARAMS] = &operands->params,
                                          [STW_COMPONENT_GRADS] = &operands->grads,
                                          [STW_COMPONENT_MASTER] = &operands->master,
                                          [STW_COMPONENT_EXP_AVG] = &operands->exp_avg,
                                          [STW_COMPONENT_EXP_AVG_SQ] = &operands->exp_avg_sq};
    const uintptr_t base = (uintptr_t)b->backend->device_address(b->device, 0, 0);
    for (int c = 0; c < STW_N_STATE; c++) {
        if (run->at[c] == NULL) continue;
        const uint64_t before = component_bytes(b, operands->first - run->first_param, c);
        *of[c] = (stw_operand){
            .tier = STW_TIER_GPU, .outside = true, .offset = (uintptr_t)run->at[c] + before - base};
    }
}

/* Updates are on one stream: the last one of a run is the one to wait for, and the last of all has
 * been waited for by then. */
stw_status stw_bound_write_back(stw_bound *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < b->n_runs; i++) STW_TRY(copy_run(b, &b->runs[i], true, err));
    stw_bound_forget(b);
out:
    return status;
}

void stw_bound_forget(stw_bound *b) {
    for (uint32_t i = 0; i < b->n_ahead; i++) b->run_of[b->streamed[i]] = UINT32_MAX;
    b->n_runs = b->n_ahead = 0;
}
