/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a run: who am I, does this plan suit, find the others, do they do the same, open the
 * device with all memory, join, load, step, check, collect. */
#define _POSIX_C_SOURCE 200809L
#include "backend/executor/executor.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/run.h"
#include "backend/executor/run_export.h"
#include "backend/executor/run_sync.h"
#include "backend/nvme/kept.h"
#include "backend/nvme/names.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/units.h"
#include "plan/checkpoint/buckets.h"

#define TIMEOUT_S 120.0

/* ---- does the plan suit this executor and this world ---- */

static stw_status check_plan(const stw_plan *plan, const stw_executor_options *options,
                             stw_error *err) {
    bool any = false;
    if (options->steps == 0)
        return stw_fail(err, STW_STATUS_USAGE, "--steps", "found 0, expected at least 1");
    if (stw_engine_steps_inside(&plan->job->engine->spec))
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "optimizer.implementation",
                        "the optimizer of this plan works inside a job of %s "
                        "(stowage.torch.AdamW(plan=...)); a run by itself needs a plan with "
                        "--set engine=stowage --set optimizer.implementation=auto",
                        stw_engine_name(plan->run.engine));
    if (plan->job->engine->spec.own_process && stw_run_spec_parks(&plan->run) != NULL)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_run_spec_parks(&plan->run),
                        "found host, expected none: this version plans and simulates parked state, "
                        "but does not execute it");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        for (uint32_t m = 0; m < plan->programs[k]->n_movements; m++)
            any |= plan->programs[k]->movements[m].by_stowage &&
                   plan->programs[k]->movements[m].executable;
    if (!any)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "engine",
                        "Stowage executes no part of this plan (engine %s); plan with "
                        "--set engine=stowage",
                        stw_engine_name(plan->run.engine));
    return STW_STATUS_OK;
}

static stw_status check_world(const stw_plan *plan, const stw_ranks *ranks, stw_error *err) {
    if (ranks->world == plan->job->world) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DEVICE, ranks->world > 1 ? ranks->launcher : "run",
                    "the plan is for %u ranks, the environment has %u; start %u process%s with "
                    "mpirun, srun or torchrun",
                    plan->job->world, ranks->world, plan->job->world,
                    plan->job->world > 1 ? "es" : "");
}

/* ---- memory ---- */

static uint64_t plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* Bytes that the ranks of this node take of a tier together. */
static uint64_t node_bytes(const stw_rank_run *run, stw_tier tier) {
    uint32_t first = run->ranks.rank - run->ranks.local_rank;
    uint64_t bytes = 0;
    for (uint32_t r = first; r < first + run->ranks.local_world && r < run->ranks.world; r++)
        bytes = plus(bytes, run->plan->layouts[stw_job_kind_of(run->job, r)]->arena_bytes[tier]);
    return bytes;
}

/* Buckets of the checkpoints of this node's ranks. */
static uint64_t save_bytes(const stw_rank_run *run) {
    const uint64_t bucket = run->options->checkpoint_bucket > 0 ? run->options->checkpoint_bucket
                                                                : STW_SAVE_BUCKET_BYTES;
    const uint32_t n = stw_save_buckets(bucket, stw_run_spec_copies(&run->plan->run));
    if (run->options->checkpoint == NULL) return 0;
    return stw_times(stw_times(n, bucket), run->ranks.local_world);
}

static stw_status check_node(const stw_rank_run *run, stw_tier tier, uint64_t capacity,
                             stw_error *err) {
    uint64_t need = node_bytes(run, tier);
    if (need <= capacity) return STW_STATUS_OK;
    char need_text[32], have_text[32];
    stw_bytes_format(need, need_text, sizeof need_text);
    stw_bytes_format(capacity, have_text, sizeof have_text);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, stw_tier_name(tier),
                    "the state of the %u rank%s of this node takes %s, the plan's cluster has %s",
                    run->ranks.local_world, run->ranks.local_world == 1 ? "" : "s", need_text,
                    have_text);
}

static void take_from_caller(const stw_device_config *caller, stw_device_config *out) {
    memcpy(out->external, caller->external, sizeof out->external);
    memcpy(out->streams, caller->streams, sizeof out->streams);
    out->gpu_is_given = caller->gpu_is_given;
    out->gpu = caller->gpu;
}

static stw_status open_device(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_device_config *c = &run->config;
    uint64_t host = stw_plan_host_capacity(run->plan);
    memcpy(c->arena_bytes, run->layout->arena_bytes, sizeof c->arena_bytes);
    stw_run_export_take_room(run);
    c->capacity_bytes[STW_TIER_GPU] = stw_plan_gpu_capacity(run->plan);
    c->capacity_bytes[STW_TIER_HOST] = host;
    c->capacity_bytes[STW_TIER_NVME] = run->plan->cluster.nvme.capacity_bytes;
    STW_TRY(check_node(run, STW_TIER_HOST, host, err));
    STW_TRY(check_node(run, STW_TIER_NVME, run->plan->cluster.nvme.capacity_bytes, err));
    if (run->options->caller != NULL) take_from_caller(run->options->caller, c);
    if (c->external[STW_TIER_HOST].address == NULL)
        c->machine_host_bytes = node_bytes(run, STW_TIER_HOST);
    if (!run->backend->gpu && c->external[STW_TIER_GPU].address == NULL) /* host memory as well */
        c->machine_host_bytes = plus(c->machine_host_bytes, node_bytes(run, STW_TIER_GPU));
    c->machine_host_bytes = plus(c->machine_host_bytes, save_bytes(run));
    c->local_rank = run->ranks.local_rank;
    c->local_world = run->ranks.local_world;
    c->types = run->types;
    c->n_spans = run->n_spans;
    c->nvme_copies = (uint32_t)stw_nvme_copies(run->job);
    c->nvme_folder = run->options->nvme_folder;
    stw_nvme_shape shape = {.in_memory = run->options->nvme_in_memory};
    STW_TRY(stw_exec_nvme_shape(run->layout, run->program, run->pool, &shape, err));
    c->nvme_shape = &shape;
    c->threads = stw_threads_cores() / run->ranks.local_world;
    if (c->threads == 0) c->threads = 1;
    for (uint32_t m = 0; m < run->program->n_movements; m++)
        if (run->schedules[m] != NULL && run->schedules[m]->n_events > c->n_events)
            c->n_events = run->schedules[m]->n_events;
    c->n_marks = stw_timeline_marks(run);
    if (c->local_rank == 0 && c->arena_bytes[STW_TIER_NVME] > 0)
        stw_kept_warn(stw_nvme_folder(c->nvme_folder));
    STW_TRY(run->backend->open(c, &run->device, err));
    c->nvme_shape = NULL;
    STW_TRY(run->backend->set_spans(run->device, run->spans, run->n_spans, err));
out:
    return status;
}

/* ---- movements ---- */

/* An error says which operation met it. */
static stw_status issue(void *state, uint32_t index, stw_error *err) {
    stw_rank_run *run = state;
    stw_exec_saves_guard(run, &run->program->ops[index]);
    stw_status status =
        run->timed ? stw_timeline_issue(run, index, err) : stw_exec_issue(run, index, err);
    const stw_op *op = &run->program->ops[index];
    if (status == STW_STATUS_OK) stw_exec_progress_op(run, op);
    if (status == STW_STATUS_OK || err == NULL) return status;
    stw_op_unit counts = stw_op_row_of(op->kind)->unit;
    size_t used = strlen(err->text);
    char unit[320] = "", bucket[256] = "";
    if (counts == STW_OP_UNIT_PIECE && op->unit != STW_OP_NONE)
        snprintf(unit, sizeof unit, " of %.120s", stw_transfer_piece_name(run, op->unit));
    else if (counts == STW_OP_UNIT_BUCKET && op->unit != STW_OP_NONE)
        stw_exec_bucket_words(run, op->unit, bucket, sizeof bucket);
    if (bucket[0] != '\0') snprintf(unit, sizeof unit, " of %s", bucket);
    snprintf(err->text + used, sizeof err->text - used,
             " [operation %u, %s%s, stream %s, step %llu]", index, stw_op_kind_name(op->kind), unit,
             stw_stream_name(op->stream), (unsigned long long)run->step);
    if (run->ranks.world > 1 && err->rank < 0) err->rank = (int)run->ranks.rank;
    stw_comm_fail(run->comm, err);
    return status;
}
static stw_status settle(void *state, uint32_t op, stw_error *err) {
    return stw_exec_settle(state, op, err);
}

/* Before anything waits for a device that may wait for a peer. */
static void tell_failure(stw_rank_run *run, stw_error *err) {
    const stw_executor_options *o = run->options;
    if (o->failed != NULL && err != NULL && !run->told)
        o->failed(o->failed_state, err, run->ranks.world > 1 && !run->agreed);
    run->told = true;
}

static void failed(void *state, stw_error *error) {
    stw_rank_run *run = state;
    stw_comm_abort(run->comm);
    tell_failure(run, error);
}

stw_status stw_exec_schedule(stw_rank_run *run, const stw_schedule *schedule, double *seconds,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    run->movement = schedule->movement;
    STW_TRY(run->backend->norm_reset(run->device, STW_STREAM_COMPUTE, err));
    STW_TRY(run->backend->synchronize(run->device, err));
    if (schedule->movement->barrier) STW_TRY(stw_exec_begin_together(run, schedule->movement, err));
    run->refused = false;
    if (run->options->error_if_nonfinite &&
        stw_movement_has(run->program, schedule->movement, STW_OP_UPDATE))
        STW_TRY(stw_exec_refuse_nonfinite(run, err));
    const bool reads = schedule->movement->transfer.used && schedule->movement->transfer.from_files;
    if (reads) stw_read_sums_begin(run);
    STW_TRY(stw_timeline_begin(run, err));
    double start = stw_process_now_s();
    STW_TRY(stw_streams_run(run->streams, schedule, err));
    if (run->sending) STW_TRY(stw_comm_wait(run->comm, run->sending_what, err));
    run->sending = false;
    STW_TRY(run->backend->synchronize(run->device, err));
    *seconds = stw_process_now_s() - start;
    STW_TRY(stw_timeline_end(run, err));
    if (reads) STW_TRY(stw_same_compare(run, err));
    if (schedule->movement->barrier && !stw_run_sync_is(run, schedule->movement))
        STW_TRY(stw_exec_agree_state(run, err));
out:
    if (status != STW_STATUS_OK && !run->refused) run->failed = true;
    return status;
}

static stw_status run_movement(stw_rank_run *run, uint32_t m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_movement *movement = &run->program->movements[m];
    bool updates = stw_movement_has(run->program, movement, STW_OP_UPDATE);
    stw_movement_samples *samples = &run->samples[m];
    if (run->schedules[m] == NULL) return STW_STATUS_OK;
    for (int t = 0; t < STW_N_TIERS; t++) {
        run->peak[t].total = run->live.total[t];
        memcpy(run->peak[t].components, run->live.bytes[t], sizeof run->peak[t].components);
    }
    if (updates) STW_TRY(stw_exec_seed_grads(run, run->step, err));
    if (updates) STW_TRY(stw_exec_put_other_grad(run, run->step, err));
    const stw_comm_counts before = stw_comm_counted(run->comm);
    stw_exec_progress_movement(run, movement);
    STW_TRY(stw_exec_schedule(run, run->schedules[m], &samples->seconds[samples->n++], err));
    if (updates) stw_exec_note_norm(run, &run->norm, &run->factors[run->step - 1]);
    if (stw_run_sync_is(run, movement)) stw_run_sync_end(run, before);
    STW_TRY(stw_exec_note_phase(run, movement->phase, err));
out:
    return status;
}

/* The base is what the first tenth of the steps that this run takes leaves, two at least: until
 * then the driver and the threads may still touch a few pages that last. */
static void note_growth(stw_rank_run *run, uint32_t step) {
    stw_device_info info;
    const uint32_t before = (uint32_t)run->first_step - 1;
    const uint32_t base = before + (uint32_t)stw_max_u64((run->options->steps - before) / 10, 2);
    if (step + 1 != base && step + 1 != run->options->steps) return;
    run->backend->info(run->device, &info);
    uint64_t host = stw_process_resident_bytes();
    if (step + 1 == base) {
        run->gpu_base = info.used_now;
        run->host_base = host;
    }
    run->gpu_growth = info.used_now > run->gpu_base ? info.used_now - run->gpu_base : 0;
    run->host_growth = host > run->host_base ? host - run->host_base : 0;
}

static bool repeats(const stw_movement *movement, uint32_t iteration) {
    switch (movement->repeat) {
    case STW_REPEAT_FIRST:
        return iteration == 0;
    case STW_REPEAT_LATER:
        return iteration > 0;
    case STW_REPEAT_EVERY_ITERATION:
        return true;
    default:
        return false;
    }
}

/* After this step, or because it is the last one. */
static bool saves_after(const stw_rank_run *run, uint32_t iteration) {
    const uint64_t every = run->options->checkpoint_every;
    return run->saves != NULL &&
           (iteration + 1 == run->options->steps || (every > 0 && (iteration + 1) % every == 0));
}

static stw_status run_iterations(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = (uint32_t)run->first_step - 1; i < run->options->steps; i++) {
        run->step = i + 1u;
        run->adamw = stw_exec_adamw(run, run->step);
        run->factors[i] = 1.0f;
        for (uint32_t m = 0; m < run->program->n_movements; m++)
            if (repeats(&run->program->movements[m], i)) STW_TRY(run_movement(run, m, err));
        STW_TRY(stw_run_export_step(run, err));
        if (run->options->after_iteration != NULL)
            STW_TRY(run->options->after_iteration(run->options->after_state, run, i, err));
        if (saves_after(run, i)) stw_exec_save(run);
        note_growth(run, i);
    }
    stw_exec_saves_finish(run);
out:
    return status;
}

static stw_status run_once(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        if (run->program->movements[m].repeat != STW_REPEAT_ONCE) continue;
        if (run->resume != NULL && run->program->movements[m].phase == STW_PHASE_LOAD)
            STW_TRY(stw_exec_resume_load(run, err));
        else
            STW_TRY(run_movement(run, m, err));
    }
out:
    return status;
}

/* ---- all of it ---- */

static stw_status prepare_movements(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = run->program->n_movements;
    run->schedules = stw_pool_array(run->pool, n, sizeof(stw_schedule *));
    run->samples = stw_pool_array(run->pool, n, sizeof *run->samples);
    if (run->schedules == NULL || run->samples == NULL) goto no_memory;
    for (uint32_t m = 0; m < n; m++) {
        const stw_movement *movement = &run->program->movements[m];
        if (!movement->executable) continue;
        STW_TRY(stw_schedule_new(run->program, movement, run->pool, &run->schedules[m], err));
        run->samples[m].seconds = stw_pool_array(run->pool, run->options->steps, sizeof(double));
        if (run->samples[m].seconds == NULL) goto no_memory;
    }
out:
    return status;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory");
}

/* Would --compare-weights find anything? */
static stw_status check_compare(const stw_rank_run *run, stw_error *err) {
    const stw_load method = run->plan->decisions.load;
    const char *why = NULL;
    if (!run->options->compare_weights) return STW_STATUS_OK;
    if (run->weights_path == NULL)
        why = "it needs --weights: random weights come from no file";
    else if (run->plan->job->world == 1)
        why = "the plan is for one rank, which has nobody to compare with";
    else if (method == STW_LOAD_ALL_RANKS || method == STW_LOAD_ALL_RANKS_GPU)
        why = "all ranks read everything, and compare it without this option";
    else if (method != STW_LOAD_SHARDED_READ)
        why = "one rank, or one of each node, reads for all; several compare without this option";
    if (why == NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, "--compare-weights",
                    "has no effect with load.method %s: %s", stw_load_name(method), why);
}

static stw_status prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_plan(run->plan, run->options, err));
    STW_TRY(check_compare(run, err));
    STW_TRY(stw_exec_types(&run->plan->run, &run->types, err));
    STW_TRY(check_world(run->plan, &run->ranks, err));
    run->kind = stw_job_kind_of(run->job, run->ranks.rank);
    run->layout = run->plan->layouts[run->kind];
    run->program = run->plan->programs[run->kind];
    run->factors = stw_pool_array(run->pool, run->options->steps, sizeof *run->factors);
    run->spaces = stw_pool_array(run->pool, run->job->n_spaces, sizeof *run->spaces);
    if (run->factors == NULL || run->spaces == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory"));
    for (uint32_t id = 0; id < run->job->n_spaces; id++)
        STW_TRY(stw_job_space(run->job, id, run->ranks.rank, run->pool, &run->spaces[id], err));
    STW_TRY(stw_exec_check_other_grad(run, err));
    STW_TRY(stw_exec_resume_open(run, err));
    STW_TRY(stw_exec_make_spans(run, err));
    STW_TRY(prepare_movements(run, err));
    STW_TRY(stw_run_sync_prepare(run, err));
    STW_TRY(stw_run_export_prepare(run, err));
    STW_TRY(stw_timeline_prepare(run, err));
out:
    return status;
}

/* Find the others and compare with them what this rank is about to do, before any memory is taken
 * where that needs no device.
 * @param prepared what this rank found for itself; told to all */
static stw_status join(stw_rank_run *run, stw_status prepared, stw_error *err) {
    stw_status status = stw_comm_open(&run->ranks, run->backend, run->timeout_s, &run->comm, err);
    if (status != STW_STATUS_OK) return prepared != STW_STATUS_OK ? prepared : status;
    if (prepared == STW_STATUS_OK && stw_comm_meets(run->comm))
        prepared = stw_transfer_open(run, err);
    return stw_comm_meets(run->comm) ? stw_exec_agree(run, prepared, err) : prepared;
}

static stw_status attach(stw_rank_run *run, stw_error *err) {
    stw_exec_progress(run, "taking memory", STW_PROGRESS_SECONDS, 0);
    stw_status status = open_device(run, err);
    if (stw_comm_meets(run->comm)) status = stw_exec_agree_status(run, status, err);
    STW_TRY(status);
    STW_TRY(stw_comm_attach(run->comm, run->device, run->layout->comm_offset_bytes, err));
    if (!stw_comm_meets(run->comm)) STW_TRY(stw_exec_agree(run, stw_transfer_open(run, err), err));
out:
    return status;
}

static stw_status open_streams(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_streams_calls calls = {run, issue, settle, failed, run->options->one_thread};
    STW_TRY(stw_threads_new(stw_transfer_readers(run), &run->readers, err));
    STW_TRY(stw_exec_saves_open(run, err));
    STW_TRY(stw_streams_new(run->backend, run->device, &calls, &run->streams, err));
    STW_TRY(stw_exec_zero_moments(run, err));
    STW_TRY(stw_run_sync_open(run, err));
    STW_TRY(stw_run_export_open(run, err));
out:
    return status;
}

static stw_status open_run(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_ranks_from_environment(&run->ranks, err));
    STW_TRY(join(run, prepare(run, err), err));
    STW_TRY(attach(run, err));
    STW_TRY(stw_exec_own_state(run, err));
    STW_TRY(stw_transfer_prepare(run, err));
    STW_TRY(stw_same_prepare(run, err));
    STW_TRY(stw_exec_agree_status(run, open_streams(run, err), err));
    STW_TRY(stw_exec_saves_agree(run, err));
out:
    return status;
}

stw_status stw_exec_open(const stw_plan *plan, const stw_executor_options *options,
                         const stw_backend *backend, stw_rank_run **out, stw_error *err) {
    *out = NULL;
    stw_rank_run *run = calloc(1, sizeof *run);
    stw_pool *pool = stw_pool_new();
    if (run == NULL || pool == NULL) {
        free(run);
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory");
    }
    run->pool = pool;
    run->plan = plan;
    run->options = options;
    run->backend = backend;
    run->weights_path = options->weights != NULL ? options->weights : plan->run.load.weights;
    run->job = plan->job;
    run->norm = (double)NAN;
    run->first_step = 1;
    for (int g = 0; g < STW_MAX_PARAM_GROUPS; g++) run->lr[g] = (double)NAN;
    run->source_rank = UINT32_MAX;
    run->timeout_s = options->timeout_s > 0.0 ? options->timeout_s : TIMEOUT_S;
    pthread_mutex_init(&run->mutex, NULL);
    stw_status status = open_run(run, err);
    if (status == STW_STATUS_OK) {
        *out = run;
    } else {
        tell_failure(run, err);
        if (!run->agreed) stw_comm_abort(run->comm);
        stw_exec_close(run);
    }
    return status;
}

void stw_exec_close(stw_rank_run *run) {
    if (run == NULL) return;
    bool tells = run->ranks.rank == 0;
    stw_streams_free(run->streams);
    stw_run_sync_close(run);
    stw_run_export_close(run);
    stw_exec_saves_close(run);
    stw_exec_resume_close(run);
    stw_threads_free(run->readers);
    stw_weights_close(run->weights);
    stw_text_free(&run->sample);
    stw_comm_close(run->comm);
    stw_exec_end_state(run);
    if (run->device != NULL) run->backend->close(run->device);
    pthread_mutex_destroy(&run->mutex);
    stw_pool_free(run->pool);
    free(run);
    if (tells) stw_progress_end();
}

static stw_status execute(stw_rank_run *run, stw_run_result **result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(run_once(run, err));
    STW_TRY(run_iterations(run, err));
    if (!run->options->no_digest) {
        STW_TRY(stw_exec_digest(run, err));
        STW_TRY(stw_exec_verify(run, err));
        STW_TRY(stw_run_sync_verify(run, err));
        STW_TRY(stw_run_export_verify(run, err));
    }
    stw_exec_progress(run, "collecting results", STW_PROGRESS_SECONDS, 0);
    STW_TRY(stw_exec_collect(run, result, err));
    STW_TRY(stw_comm_barrier(run->comm, err));
out:
    if (status != STW_STATUS_OK) {
        if (!run->agreed) stw_comm_abort(run->comm);
        tell_failure(run, err);
    }
    run->failed |= status != STW_STATUS_OK;
    return status;
}

stw_status stw_execute_with(const stw_plan *plan, const stw_executor_options *options,
                            const stw_backend *backend, stw_run_result **result, stw_error *err) {
    stw_rank_run *run = NULL;
    *result = NULL;
    stw_status status = stw_exec_open(plan, options, backend, &run, err);
    if (status == STW_STATUS_OK) status = execute(run, result, err);
    stw_exec_close(run);
    if (status != STW_STATUS_OK) {
        stw_run_result_free(*result);
        *result = NULL;
    }
    return status;
}

#define REFUSE_S 10.0 /* a rank that refuses waits no longer for the others */

stw_status stw_execute_refuse(const stw_executor_options *options, stw_status refused,
                              stw_error *err) {
    stw_rank_run run = {.options = options, .timeout_s = options->timeout_s};
    stw_error own = STW_ERROR_INIT;
    if (err != NULL) own = *err;
    if (stw_ranks_from_environment(&run.ranks, NULL) != STW_STATUS_OK || run.ranks.world == 1)
        return refused;
    if (stw_backend_select(options->backend, &run.backend, NULL) != STW_STATUS_OK) return refused;
    if (run.timeout_s <= 0 || run.timeout_s > REFUSE_S) run.timeout_s = REFUSE_S;
    if (stw_comm_open(&run.ranks, run.backend, run.timeout_s, &run.comm, NULL) != STW_STATUS_OK)
        return refused;
    stw_status status = refused;
    if (stw_comm_meets(run.comm)) status = stw_exec_agree(&run, refused, err);
    if (!run.agreed) {
        stw_comm_abort(run.comm);
        status = refused;
        if (err != NULL) *err = own;
    }
    stw_comm_close(run.comm);
    return status;
}

stw_status stw_execute(const stw_plan *plan, const stw_executor_options *options,
                       stw_run_result **result, stw_error *err) {
    const stw_backend *backend = NULL;
    *result = NULL;
    stw_status status = stw_backend_select(options->backend, &backend, err);
    if (status != STW_STATUS_OK) return status;
    return stw_execute_with(plan, options, backend, result, err);
}
