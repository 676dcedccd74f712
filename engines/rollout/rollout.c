/* SPDX-License-Identifier: Apache-2.0 */
/* Rollout roles: vLLM and SGLang. vLLM sizes its KV cache as gpu_memory_utilization x the GPU's
 * memory less weights and the peak of a profiling run (vllm/v1/worker/gpu_worker.py: init_device,
 * determine_available_memory; NCCL and the CUDA context lie outside, and CUDA graphs come on top).
 * SGLang: what is free before the weights are loaded x mem_fraction_static, less the weights
 * (model_runner_kv_cache_mixin.py, profile_available_bytes); here as if nothing else lay on the
 * GPU then, which is the most. Asleep, vLLM frees cache and weights
 * (device_allocator/cumem.py: CuMemAllocator.sleep): level 1 keeps weights in page-locked memory,
 * which torch's caching allocator holds from then on, level 2 discards them. SGLang's
 * torch_memory_saver discards them unless enable_weights_cpu_backup is set. Context, NCCL and CUDA
 * graphs stay, and so do tables of the cache, which are allocated before the profiling run. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "engines/rollout/engines.h"
#include "engines/rollout/sizes.h"
#include "engines/sync_plan.h"
#include "engines/weight_sync.h"
#include "plan/program/builder.h"

/* ---- figures ---- */

static const stw_rollout_figures *figures_of(const stw_job *job, uint32_t role) {
    return job->roles[role].figures;
}

static bool is_sglang(const stw_job *job, uint32_t role) {
    return job->roles[role].engine == &stw_role_engine_sglang;
}

static stw_status refuse(uint32_t number, const char *key, const char *found, const char *expected,
                         stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, NULL, "roles.%u.%s: found %s, expected %s",
                    (unsigned)number - 1, key, found, expected);
}

/* Engines are groups of tp ranks; experts are spread over one or several of them. */
static stw_status check_sizes(const stw_job *job, uint32_t number, const stw_rollout_role *role,
                              stw_error *err) {
    const uint32_t ranks = stw_job_role_ranks(job, number);
    char found[32], expected[96];
    snprintf(found, sizeof found, "%u", (unsigned)role->tp);
    snprintf(expected, sizeof expected, "a divisor of the role's %u GPUs", (unsigned)ranks);
    if (ranks % role->tp != 0) return refuse(number, "parallel.tp", found, expected, err);
    snprintf(found, sizeof found, "%u", (unsigned)role->ep);
    snprintf(expected, sizeof expected, "1, or a multiple of tp %u that divides the role's %u GPUs",
             (unsigned)role->tp, (unsigned)ranks);
    if (role->ep > 1 && (role->ep % role->tp != 0 || ranks % role->ep != 0))
        return refuse(number, "parallel.ep", found, expected, err);
    snprintf(found, sizeof found, "%llu", (unsigned long long)role->max_model_len);
    snprintf(expected, sizeof expected, "at most the model's %llu positions",
             (unsigned long long)role->model->max_positions);
    if (role->model->max_positions > 0 && role->max_model_len > role->model->max_positions)
        return refuse(number, "max_model_len", found, expected, err);
    /* vllm/config/scheduler.py, verify_max_model_len */
    snprintf(found, sizeof found, "%llu", (unsigned long long)role->spec->max_num_batched_tokens);
    snprintf(expected, sizeof expected, "at least max_num_seqs, %llu: vllm refuses fewer",
             (unsigned long long)role->spec->max_num_seqs);
    if (!is_sglang(job, number) && role->spec->max_num_batched_tokens < role->spec->max_num_seqs)
        return refuse(number, "max_num_batched_tokens", found, expected, err);
    return stw_rollout_check_cuts(role, number, err);
}

/* @param f out: the cache. Needs weights, work and process. */
static stw_status size_cache(const stw_job *job, uint32_t number, const stw_rollout_role *role,
                             stw_rollout_figures *f, stw_error *err) {
    const uint64_t all = job->cluster->gpu.memory_bytes;
    const double share = role->spec->gpu_memory_utilization;
    const bool sglang = is_sglang(job, number);
    const uint64_t free_bytes = all > f->process ? all - f->process : 0;
    const uint64_t asked = (uint64_t)((double)(sglang ? free_bytes : all) * share);
    const uint64_t taken = sglang ? f->weights : stw_plus(f->weights, f->work);
    f->cache = asked > taken ? asked - taken : 0;
    f->sequence = stw_rollout_sequence_bytes(role);
    if (stw_rollout_is_uniform(role)) {
        const uint64_t token = stw_max_u64(stw_rollout_token_bytes(role), 1);
        f->cache_tokens = f->cache / token / STW_ROLLOUT_BLOCK_TOKENS * STW_ROLLOUT_BLOCK_TOKENS;
        f->cache = stw_times(f->cache_tokens, token);
    }
    if (f->cache >= f->sequence) return STW_STATUS_OK;
    char found[32], expected[352], cache[32], sequence[32], weights[32];
    snprintf(found, sizeof found, "%.6g", share);
    stw_bytes_format(f->cache, cache, sizeof cache);
    stw_bytes_format(f->sequence, sequence, sizeof sequence);
    stw_bytes_format(taken, weights, sizeof weights);
    snprintf(expected, sizeof expected,
             "a share that leaves %s for the KV cache of one sequence of %llu tokens, it leaves %s "
             "beside %s of weights%s: raise it, parallel.tp or the GPU's memory, or lower "
             "max_model_len",
             sequence, (unsigned long long)role->max_model_len, cache, weights,
             sglang ? "" : " and activations");
    return refuse(number, "gpu_memory_utilization", found, expected, err);
}

/* The trainer's model as the trainer's engine cuts it over this role's ranks alone. */
static stw_status size_trainer_model(const stw_job *job, uint32_t number, stw_rollout_figures *f,
                                     stw_error *err) {
    stw_job *own = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_cluster cluster = *job->cluster;
    stw_run_spec run = *job->run;
    cluster.nodes = job->roles[number].n_nodes;
    run.n_roles = 0;
    run.parallel.dp_shard = STW_AUTO;
    run.parallel.dp_replicate = 1;
    stw_status status = stw_job_new(job->model, &cluster, &run, job->engine, &own, &why);
    if (status == STW_STATUS_OK)
        f->trainer_model = stw_times(own->kinds[own->largest].params,
                                     stw_job_element_bytes(own, STW_COMPONENT_PARAMS));
    else
        status = stw_fail(err, status, NULL,
                          "roles.%u.builds_trainer_model: the trainer's model on the role's nodes: "
                          "%s",
                          (unsigned)number - 1, why.text);
    stw_job_free(own);
    return status;
}

/* What the weight sync needs beside the weights. vLLM's worker maps the trainer's bucket and clones
 * each of its tensors before it loads them (verl, workers/rollout/bucketed_weight_transfer.py,
 * BucketedWeightReceiver); SGLang's reads them in place. On nodes of its own a role first receives
 * buckets in two buffers (checkpoint_engine/nccl_checkpoint_engine.py, prepare) and hands them to
 * vLLM's worker in a third. */
static uint64_t received_bytes(const stw_job *job, uint32_t number) {
    const stw_role *spec = job->roles[number].spec;
    const uint64_t bucket = spec->update_bucket_bytes;
    const uint64_t element = stw_max_u64(stw_dtype_bits(spec->dtype) / 8, 1);
    const uint64_t clones = stw_min_u64(bucket, stw_times(job->model->params, element));
    const uint64_t worker = is_sglang(job, number) ? 0 : clones;
    if (stw_synced_role(job) != spec) return 0;
    if (!stw_role_is_alone(job->roles, number)) return worker;
    return STW_SUM(stw_times(2, bucket), is_sglang(job, number) ? 0 : bucket, worker);
}

static stw_status make(const stw_job *job, uint32_t number, const void **figures, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_role *spec = job->roles[number].spec;
    const stw_cluster *cluster = job->cluster;
    const bool sglang = is_sglang(job, number), alone = stw_role_is_alone(job->roles, number);
    stw_rollout_figures *f = stw_pool_alloc(job->pool, sizeof *f);
    const stw_rollout_role role = stw_rollout_resolve(job, number);
    if (f == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    if (!job->model->facts_known)
        return stw_fail(err, STW_STATUS_BAD_INPUT, NULL,
                        "roles.%u.kind: found rollout, expected none: the attention of a list of "
                        "tensors is unknown; give a config.json as model",
                        (unsigned)number - 1);
    STW_TRY(check_sizes(job, number, &role, err));
    f->sleeps = spec->free_cache_engine == STW_AUTO ? !alone : spec->free_cache_engine != 0;
    f->keeps_on_host =
        f->sleeps && (spec->sleep_level == STW_AUTO ? !sglang : spec->sleep_level == 1);
    f->weights = stw_rollout_weight_bytes(&role, &f->host_rounding);
    f->work = stw_rollout_work_bytes(&role);
    f->graphs = stw_rollout_graph_bytes(&role, sglang);
    f->tables = stw_rollout_table_bytes(&role, sglang);
    f->process = cluster->gpu.context_bytes;
    f->host_process = cluster->host.process_bytes;
    if (alone) f->node = cluster->host.object_store_bytes / job->ranks_per_node;
    if (role.tp > 1 || role.ep > 1) {
        f->process = stw_plus(f->process, cluster->gpu.comm_bytes);
        f->host_process = stw_plus(f->host_process, cluster->host.process_comm_bytes);
    }
    STW_TRY(size_cache(job, number, &role, f, err));
    f->received = received_bytes(job, number);
    if (spec->builds_trainer_model) STW_TRY(size_trainer_model(job, number, f, err));
    *figures = f;
out:
    return status;
}

/* ---- movements ---- */

typedef struct building {
    stw_builder b;
    const stw_rollout_figures *f;
    const char *name;
    uint32_t number;
} building;

static void begin(building *r, stw_phase phase, stw_repeat repeat) {
    stw_begin_movement(
        &r->b, (stw_movement){
                   .phase = phase, .role = r->name, .role_number = r->number, .repeat = repeat});
}

/* None of it lies in the arena of an executor. */
static void take(building *r, stw_component component, stw_tier tier, uint64_t bytes) {
    stw_alloc_at(&r->b, component, tier, STW_OFFSET_EXTERNAL, bytes);
}

static void drop(building *r, stw_component component, uint64_t bytes) {
    stw_free_at(&r->b, component, STW_TIER_GPU, STW_OFFSET_EXTERNAL, bytes);
}

/* The first sleep makes the host's copy, which stays. */
static void load(building *r) {
    const stw_rollout_figures *f = r->f;
    begin(r, STW_PHASE_LOAD, STW_REPEAT_ONCE);
    take(r, STW_COMPONENT_ROLE_PROCESS, STW_TIER_GPU, f->process);
    r->b.pageable = true;
    take(r, STW_COMPONENT_ROLE_PROCESS, STW_TIER_HOST, f->host_process);
    take(r, STW_COMPONENT_OBJECT_STORE, STW_TIER_HOST, f->node);
    r->b.pageable = false;
    take(r, STW_COMPONENT_ROLLOUT_WORK, STW_TIER_GPU, f->tables);
    take(r, STW_COMPONENT_PARAMS, STW_TIER_GPU, f->trainer_model);
    take(r, STW_COMPONENT_ROLLOUT_WEIGHTS, STW_TIER_GPU, f->weights);
    take(r, STW_COMPONENT_ROLLOUT_WORK, STW_TIER_GPU, f->work);
    take(r, STW_COMPONENT_KV_CACHE, STW_TIER_GPU, f->cache);
    drop(r, STW_COMPONENT_ROLLOUT_WORK, f->work);
    take(r, STW_COMPONENT_ROLLOUT_WORK, STW_TIER_GPU, f->graphs);
    if (f->keeps_on_host) {
        take(r, STW_COMPONENT_ROLLOUT_WEIGHTS, STW_TIER_HOST, f->weights);
        take(r, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, f->host_rounding);
    }
    if (f->sleeps) {
        drop(r, STW_COMPONENT_KV_CACHE, f->cache);
        drop(r, STW_COMPONENT_ROLLOUT_WEIGHTS, f->weights);
    }
    stw_end_movement(&r->b);
}

/* Stowage's own sync: a process beside the trainer reads the trainer's buckets; ranks on nodes of
 * their own receive in buffers and place what came into their weights. */
static stw_status find_received(const stw_job *job, uint32_t role, uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_sync_plan *sync = NULL;
    *out = figures_of(job, role)->received;
    if (!job->engine->spec.own_process || stw_synced_role(job) != job->roles[role].spec) goto out;
    STW_TRY(stw_sync_plan_of(job, &sync, err));
    *out = 0;
    if (stw_role_is_alone(job->roles, role))
        *out = stw_times(sync->sets, sync->receiver.receive_room);
out:
    return status;
}

/* Weights wake up to be overwritten, the cache after them (verl's rollout_mode; slime's onload). */
static stw_status build(const stw_job *job, uint32_t role, stw_program *program, stw_error *err) {
    building r = {.f = figures_of(job, role), .name = job->roles[role].name, .number = role};
    const stw_rollout_figures *f = r.f;
    const bool alone = stw_role_is_alone(job->roles, role);
    uint64_t received = 0;
    const stw_status status = find_received(job, role, &received, err);
    if (status != STW_STATUS_OK) return status;
    stw_builder_init(&r.b, job, NULL, NULL, program, err);
    load(&r);
    begin(&r, STW_PHASE_WEIGHT_SYNC, STW_REPEAT_EVERY_ITERATION);
    if (f->sleeps) take(&r, STW_COMPONENT_ROLLOUT_WEIGHTS, STW_TIER_GPU, f->weights);
    take(&r, STW_COMPONENT_ROLLOUT_WORK, STW_TIER_GPU, received);
    if (alone) drop(&r, STW_COMPONENT_ROLLOUT_WORK, received);
    stw_end_movement(&r.b);
    begin(&r, STW_PHASE_ROLLOUT, STW_REPEAT_EVERY_ITERATION);
    if (!alone) drop(&r, STW_COMPONENT_ROLLOUT_WORK, received); /* the trainer sends last */
    if (f->sleeps) take(&r, STW_COMPONENT_KV_CACHE, STW_TIER_GPU, f->cache);
    take(&r, STW_COMPONENT_ROLLOUT_WORK, STW_TIER_GPU, f->work);
    drop(&r, STW_COMPONENT_ROLLOUT_WORK, f->work);
    if (f->sleeps) {
        drop(&r, STW_COMPONENT_KV_CACHE, f->cache);
        drop(&r, STW_COMPONENT_ROLLOUT_WEIGHTS, f->weights);
    }
    stw_end_movement(&r.b);
    return stw_builder_finish(&r.b);
}

/* ---- words ---- */

static void describe(const stw_job *job, uint32_t role, char *out, size_t out_size) {
    const stw_rollout_figures *f = figures_of(job, role);
    char weights[32], cache[32];
    stw_bytes_format(f->weights, weights, sizeof weights);
    stw_bytes_format(f->cache, cache, sizeof cache);
    snprintf(out, out_size, "weights %s, KV cache %s (%.1f sequences of %llu tokens), asleep %s",
             weights, cache, f->sequence > 0 ? (double)f->cache / (double)f->sequence : 0.0,
             (unsigned long long)stw_rollout_resolve(job, role).max_model_len,
             !f->sleeps         ? "never"
             : f->keeps_on_host ? "between rollouts, with weights on the host"
                                : "between rollouts, without weights");
}

static size_t facts(const stw_job *job, uint32_t role, stw_role_fact *out) {
    const stw_rollout_figures *f = figures_of(job, role);
    size_t n = 0;
    out[n++] = (stw_role_fact){"weights_bytes", f->weights};
    out[n++] = (stw_role_fact){"kv_cache_bytes", f->cache};
    out[n++] = (stw_role_fact){"sequence_tokens", stw_rollout_resolve(job, role).max_model_len};
    out[n++] = (stw_role_fact){"sequence_bytes", f->sequence};
    out[n++] = (stw_role_fact){"sequences", f->sequence > 0 ? f->cache / f->sequence : 0};
    return n;
}

const stw_role_engine stw_role_engine_vllm = {.name = "vllm",
                                              .kinds = 1u << STW_ROLE_ROLLOUT,
                                              .make = make,
                                              .build = build,
                                              .describe = describe,
                                              .facts = facts};
const stw_role_engine stw_role_engine_sglang = {.name = "sglang",
                                                .kinds = 1u << STW_ROLE_ROLLOUT,
                                                .make = make,
                                                .build = build,
                                                .describe = describe,
                                                .facts = facts};
