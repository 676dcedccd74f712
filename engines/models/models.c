/* SPDX-License-Identifier: Apache-2.0 */
/* Roles that are models of their own beside the trainer, in its processes and with its engine:
 * reference, reward and critic. Each is a job whose engine builds its program; of that the role
 * keeps the movements that it has.
 *
 * - reference, reward: parameters, and a forward without gradients. verl wraps both with
 *   CPUOffloadPolicy, so that parameters lie on the host (workers/fsdp_workers.py,
 *   _build_model_optimizer: cpu_offload of roles other than the actor; the reference is loaded in
 *   bf16). With LoRA the reference is the actor with its adapters switched off (ref_in_actor), and
 *   holds nothing of its own.
 *   Megatron-LM's are described in megatron/reference.c.
 * - critic: trained like the actor, with one output per token (CriticWorker); it finishes its
 * update before the actor begins.
 *
 * The load method is the run's, or rank0_broadcast. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "engines/models/roles.h"
#include "plan/program/program.h"
#include "plan/spec/registry.h"

typedef struct figures {
    stw_cluster cluster;
    stw_run_spec run;
    const stw_engine *engine;
    stw_job *job; /* NULL: the role holds nothing of its own */
    bool on_host; /* parameters of a model that is not trained */
} figures;

static const figures *figures_of(const stw_job *job, uint32_t role) {
    return job->roles[role].figures;
}

/* ---- the role's job ---- */

static stw_status set(stw_run_spec *run, const char *key, const char *value, stw_error *err) {
    return stw_run_spec_set(run, key, value, "roles", err);
}

/* A forward alone, of parameters in the role's dtype. */
static stw_status freeze(const stw_role *spec, figures *f, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const char *const plain[][2] = {{"park.params", "none"},
                                           {"park.grads", "none"},
                                           {"park.moments", "none"},
                                           {"placement.params", "auto"},
                                           {"placement.grads", "auto"},
                                           {"placement.moments", "auto"},
                                           {"placement.master", "auto"},
                                           {"precision.master", "none"},
                                           {"optimizer.implementation", "auto"}};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        STW_TRY(set(&f->run, plain[i][0], plain[i][1], err));
    f->run.precision.params = spec->dtype;
    STW_TRY(set(&f->run, "fsdp.offload_policy", f->on_host ? "true" : "false", err));
out:
    return status;
}

/* The same model with one output: logits of a single entry. */
static stw_status with_value_head(const stw_model *from, stw_pool *pool, const stw_model **out,
                                  stw_error *err) {
    stw_model *m = stw_pool_alloc(pool, sizeof *m);
    stw_tensor *tensors = stw_pool_array(pool, from->n_tensors, sizeof *tensors);
    stw_block *blocks = stw_pool_array(pool, from->n_blocks, sizeof *blocks);
    stw_block_group *groups = stw_pool_array(pool, from->n_groups, sizeof *groups);
    if (m == NULL || tensors == NULL || blocks == NULL || groups == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    *m = *from;
    m->pool = pool;
    m->tensors = memcpy(tensors, from->tensors, from->n_tensors * sizeof *tensors);
    m->blocks = memcpy(blocks, from->blocks, from->n_blocks * sizeof *blocks);
    m->groups = memcpy(groups, from->groups, from->n_groups * sizeof *groups);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        stw_tensor *tensor = &tensors[t];
        stw_block *block = &blocks[tensor->block];
        if (strcmp(groups[block->group].name, "head") != 0 || tensor->rank == 0 ||
            tensor->shape[0] != from->vocab)
            continue;
        const uint64_t less = tensor->numel - tensor->numel / from->vocab;
        tensor->shape[0] = 1;
        tensor->numel -= less;
        block->params -= less;
        groups[block->group].params -= less;
        m->params -= less;
    }
    m->vocab = 1;
    *out = m;
    return STW_STATUS_OK;
}

static stw_status refuse(uint32_t number, const char *key, const char *found, const char *expected,
                         stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, NULL, "roles.%u.%s: found %s, expected %s",
                    (unsigned)number - 1, key, found, expected);
}

/* Can models of some kind be beside a trainer of this engine? */
static bool has_models(const char *engine) {
    const stw_role_engine *const *all = stw_role_engines_built_in;
    for (uint32_t e = 0; all[e] != NULL; e++)
        if (strcmp(all[e]->name, engine) == 0) return true;
    return false;
}

/* The engine whose partition, forward and backward the trainer has. */
static stw_status find_engine(const stw_job *job, uint32_t number, figures *f, stw_error *err) {
    const stw_engine_spec *trainer = &job->engine->spec;
    const char *name = trainer->trains_as != NULL ? trainer->trains_as : trainer->name;
    char expected[160];
    if (strcmp(name, job->roles[number].engine->name) != 0) {
        if (has_models(name) && job->roles[number].spec->engine != NULL)
            return refuse(number, "engine", job->roles[number].engine->name, name, err);
        snprintf(expected, sizeof expected, "%s, because the trainer's engine is %.40s",
                 has_models(name) ? "rollout, reference or reward" : "rollout", trainer->name);
        return refuse(number, "kind", stw_role_kind_name(job->roles[number].spec->kind), expected,
                      err);
    }
    for (uint32_t e = 0; e < stw_engine_spec_count(); e++)
        if (strcmp(stw_engine_name(e), name) == 0) f->run.engine = e;
    if (trainer->with != NULL) f->run.optimizer.implementation = STW_OPTIMIZER_AUTO;
    f->engine = (const stw_engine *)stw_engine_spec_at(f->run.engine); /* the first member */
    return STW_STATUS_OK;
}

static stw_status fill_run(const stw_job *job, uint32_t number, figures *f, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job_role *role = &job->roles[number];
    const bool trains = role->spec->kind == STW_ROLE_CRITIC;
    f->cluster = *job->cluster;
    f->cluster.nodes = role->n_nodes;
    f->run = *job->run;
    f->run.n_roles = 0;
    f->run.checkpoint.every = trains ? f->run.checkpoint.every : 0;
    f->run.trainable.lora_rank = 0;
    f->run.trainable.lora_targets.n = f->run.trainable.freeze.n = 0;
    f->run.optimizer.n_groups = 0;
    f->run.update.resident = f->run.update.stream = f->run.update.cpu = STW_AUTO_NUMBER;
    f->run.update.direct = 0;
    if (f->run.batch.log_prob_micro_batch == 0)
        f->run.batch.log_prob_micro_batch = f->run.batch.micro_batch;
    if (!trains) f->run.batch.micro_batch = f->run.batch.log_prob_micro_batch;
    if (role->home != 0) {
        f->run.parallel.dp_shard = STW_AUTO;
        f->run.parallel.dp_replicate = 1;
    }
    f->on_host = !trains && role->spec->params != STW_TIER_GPU;
    STW_TRY(find_engine(job, number, f, err));
    if (!trains) STW_TRY(freeze(role->spec, f, err));
out:
    return status;
}

static stw_status make(const stw_job *job, uint32_t number, const void **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_job_role *role = &job->roles[number];
    const stw_model *model = job->model;
    figures *f = stw_pool_alloc(job->pool, sizeof *f);
    if (f == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    *out = f;
    if (!model->facts_known)
        return refuse(number, "kind", stw_role_kind_name(role->spec->kind),
                      "none: forward and backward of a list of tensors are unknown", err);
    if (job->run->trainable.lora_rank > 0 && role->spec->kind != STW_ROLE_REFERENCE)
        return refuse(number, "kind", stw_role_kind_name(role->spec->kind),
                      "reference or rollout: beside adapters other models are not implemented",
                      err);
    if (job->run->trainable.lora_rank > 0) return STW_STATUS_OK; /* the actor's own weights */
    STW_TRY(fill_run(job, number, f, err));
    if (role->spec->kind == STW_ROLE_CRITIC)
        STW_TRY(with_value_head(model, job->pool, &model, err));
    stw_error why = STW_ERROR_INIT;
    status = stw_job_new(model, &f->cluster, &f->run, f->engine, &role->own, &why);
    if (status != STW_STATUS_OK)
        return stw_fail(err, status, NULL, "roles.%u, on the role's nodes: %s",
                        (unsigned)number - 1, why.text);
    f->job = role->own;
out:
    return status;
}

/* ---- movements ---- */

static bool keeps(const stw_job_role *role, const stw_movement *movement) {
    return role->spec->kind == STW_ROLE_CRITIC || movement->phase == STW_PHASE_LOAD ||
           movement->phase == STW_PHASE_LOG_PROB;
}

/* Processes are the trainer's where it has the same nodes, and data loaders its own. What a node
 * has once counts with the role whose nodes they are. Of load staging the planner takes care for
 * the trainer alone. */
static bool keep_op(const stw_job *job, uint32_t role, stw_op *op) {
    const uint32_t home = job->roles[role].home;
    switch (op->component) {
    case STW_COMPONENT_DATA_LOADERS:
        return false;
    case STW_COMPONENT_OBJECT_STORE:
        if (home != role) return false;
        break;
    case STW_COMPONENT_CONTEXT:
    case STW_COMPONENT_COMM:
    case STW_COMPONENT_PROCESS:
        if (!stw_op_is(op, STW_OP_CLASS_MEMORY)) break;
        if (home == 0) return false;
        op->component = STW_COMPONENT_ROLE_PROCESS;
        break;
    default:
        break;
    }
    if (op->component == STW_COMPONENT_LOAD_STAGING) {
        op->component = STW_COMPONENT_STAGE;
        op->from_what = "load.method, load.dtype";
    }
    op->offset_bytes = op->from_offset_bytes = STW_OFFSET_EXTERNAL; /* in no executor's arena */
    return true;
}

typedef struct copying {
    const stw_job *job;
    uint32_t role;
    const stw_program *from;
    stw_program *to;
    uint32_t *places; /* [from->n_ops] where an operation has gone */
    stw_op *ops;
    stw_movement *movements;
    bool lost; /* out of memory */
} copying;

static void copy_movement(copying *c, const stw_movement *movement) {
    stw_movement *to = &c->movements[c->to->n_movements++];
    *to = *movement;
    to->role = c->job->roles[c->role].name;
    to->role_number = c->role;
    to->by_stowage = to->executable = false;
    memset(&to->transfer, 0, sizeof to->transfer);
    to->first_op = c->to->n_ops;
    for (uint32_t o = movement->first_op; o < movement->first_op + movement->n_ops; o++) {
        stw_op op = c->from->ops[o];
        if (!keep_op(c->job, c->role, &op)) continue;
        for (int a = 0; a < 2; a++)
            if (op.after[a] != STW_OP_NONE) op.after[a] = c->places[op.after[a]];
        if (op.n_work > 0) op.work = stw_work_keep(c->to->pool, op.work, op.n_work);
        c->lost |= op.n_work > 0 && op.work == NULL;
        c->places[o] = c->to->n_ops;
        c->ops[c->to->n_ops++] = op;
    }
    to->n_ops = c->to->n_ops - to->first_op;
}

static stw_status copy_kept(const stw_job *job, uint32_t role, const stw_program *from,
                            stw_program *to, stw_error *err) {
    copying c = {.job = job, .role = role, .from = from, .to = to};
    c.places = stw_pool_array(to->pool, from->n_ops, sizeof *c.places);
    c.ops = stw_pool_array(to->pool, from->n_ops, sizeof *c.ops);
    c.movements = stw_pool_array(to->pool, from->n_movements, sizeof *c.movements);
    if (c.places == NULL || c.ops == NULL || c.movements == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    for (uint32_t o = 0; o < from->n_ops; o++) c.places[o] = STW_OP_NONE;
    for (uint32_t m = 0; m < from->n_movements; m++)
        if (keeps(&job->roles[role], &from->movements[m])) copy_movement(&c, &from->movements[m]);
    if (c.lost) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    to->ops = c.ops;
    to->movements = c.movements;
    return STW_STATUS_OK;
}

/* What the planner would try first: everything in one place, blocks recomputed if that is left
 * open. */
static stw_status decide(const figures *f, stw_pool *pool, stw_decisions *d, stw_error *err) {
    const stw_model *model = f->job->model;
    stw_place places[STW_MAX_PLACES];
    memset(d, 0, sizeof *d);
    if (f->engine->places(f->job, places, err) == 0) return STW_STATUS_BAD_INPUT;
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], f->job->n_units};
    d->blocks = stw_pool_array(pool, model->n_groups, sizeof *d->blocks);
    if (d->blocks == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    const stw_act act = f->run.recompute.granularity == 0 || f->run.recompute.granularity == 2
                            ? STW_ACT_KEEP
                            : STW_ACT_RECOMPUTE;
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer)
            d->blocks[d->n_blocks++] = (stw_block_decision){g, act, model->groups[g].count};
    d->fetch_ahead = 1;
    d->prefetch.by_group = f->engine->prefetch_by_group;
    d->prefetch.depth = 1;
    d->load =
        f->run.load.method == STW_AUTO ? STW_LOAD_RANK0_BROADCAST : (stw_load)f->run.load.method;
    return STW_STATUS_OK;
}

static stw_status build(const stw_job *job, uint32_t role, stw_program *program, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const figures *f = figures_of(job, role);
    stw_layout *layout = NULL;
    stw_program *own = NULL;
    stw_decisions decisions;
    if (f->job == NULL) return STW_STATUS_OK;
    const uint32_t rank =
        job->kinds[program->kind].ranks[0] - job->roles[role].first_node * job->ranks_per_node;
    if (f->engine->build_untrained != NULL && job->roles[role].spec->kind != STW_ROLE_CRITIC) {
        stw_program untrained = {.pool = program->pool,
                                 .kind = stw_job_kind_of(f->job, rank),
                                 .phases = program->phases};
        STW_TRY(f->engine->build_untrained(f->job, f->on_host, &untrained, err));
        STW_TRY(copy_kept(job, role, &untrained, program, err));
        goto out;
    }
    STW_TRY(decide(f, program->pool, &decisions, err));
    STW_TRY(stw_layout_new(f->job, &decisions, stw_job_kind_of(f->job, rank), &layout, err));
    STW_TRY(stw_program_new_phases(f->job, &decisions, layout, program->phases, &own, err));
    STW_TRY(copy_kept(job, role, own, program, err));
out:
    stw_program_free(own);
    stw_layout_free(layout);
    return status;
}

/* ---- words ---- */

static uint64_t params_bytes(const figures *f) {
    return f->job == NULL ? 0
                          : stw_times(f->job->kinds[f->job->largest].params,
                                      stw_job_element_bytes(f->job, STW_COMPONENT_PARAMS));
}

static size_t facts(const stw_job *job, uint32_t role, stw_role_fact *out) {
    out[0] = (stw_role_fact){"weights_bytes", params_bytes(figures_of(job, role))};
    return 1;
}

static void describe(const stw_job *job, uint32_t role, char *out, size_t out_size) {
    const figures *f = figures_of(job, role);
    char params[32];
    if (f->job == NULL) {
        snprintf(out, out_size, "the trainer's weights without adapters, nothing of its own");
        return;
    }
    stw_bytes_format(params_bytes(f), params, sizeof params);
    if (job->roles[role].spec->kind == STW_ROLE_CRITIC)
        snprintf(out, out_size, "parameters %s, gradients and moments as the trainer's", params);
    else
        snprintf(out, out_size, "parameters %s on the %s", params, f->on_host ? "host" : "GPU");
}

const stw_role_engine stw_role_engine_fsdp2 = {
    .name = "fsdp2",
    .kinds = 1u << STW_ROLE_REFERENCE | 1u << STW_ROLE_REWARD | 1u << STW_ROLE_CRITIC,
    .make = make,
    .build = build,
    .describe = describe,
    .facts = facts};

const stw_role_engine stw_role_engine_megatron = {.name = "megatron",
                                                  .kinds = 1u << STW_ROLE_REFERENCE |
                                                           1u << STW_ROLE_REWARD,
                                                  .make = make,
                                                  .build = build,
                                                  .describe = describe,
                                                  .facts = facts};
