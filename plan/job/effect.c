/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/effect.h"

#include <stdio.h>
#include <string.h>

#include "plan/job/images.h"
#include "plan/job/place.h"
#include "plan/spec/registry.h"

enum { USUAL_TOKENS = 4096 };

static bool has_experts(const stw_model *model) {
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].expert) return true;
    return false;
}

static bool has_own_embedding(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (strcmp(model->groups[g].name, "embed") == 0) return !model->tied_embeddings;
    return false;
}

/* An engine that places all state alike streams all of it or none: every admissible placement must
 * stream. */
static bool may_stream(const stw_job *job) {
    stw_place places[STW_MAX_PLACES];
    uint32_t n = job->engine->places(job, places, NULL), with = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool uses = false;
        for (int r = 0; r < STW_N_RINGS; r++)
            uses = uses || stw_place_uses_ring(job, &places[i], (stw_ring_kind)r);
        with += uses;
    }
    return job->engine->whole ? with == n : with > 0;
}

/* Is there a tier for state on NVMe: an engine that may use it, or a placement that does? */
static bool has_tier(const stw_job *job) {
    stw_place places[STW_MAX_PLACES];
    if (job->engine->nvme_commits) return true;
    uint32_t n = job->engine->places(job, places, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (stw_place_disk_element_bytes(job, &places[i]) > 0) return true;
    return false;
}

/* Does any admissible placement update on the CPU? */
static bool may_update_on_cpu(const stw_job *job) {
    stw_place places[STW_MAX_PLACES];
    uint32_t n = job->engine->places(job, places, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (places[i].update == STW_UPDATE_CPU) return true;
    return false;
}

/* Is the rate of this row that of the optimizer which the framework runs on the CPU? */
static bool uses_rate(const stw_job *job, const stw_spec_row *row) {
    if (job->engine->cpu_rate == NULL || !may_update_on_cpu(job)) return false;
    const char *rate = (const char *)job->engine->cpu_rate(job);
    const char *of_row = (const char *)job->cluster + row->offset;
    return of_row >= rate && of_row < rate + sizeof(stw_cpu_rate);
}

static bool has_rollout(const stw_run_spec *run) {
    for (uint32_t i = 0; i < run->n_roles; i++)
        if (run->roles[i].kind == STW_ROLE_ROLLOUT) return true;
    return false;
}

static bool cuts_loss(const stw_job *job) {
    const uint64_t chunk = job->run->loss.chunk > 0 ? job->run->loss.chunk : STW_LOSS_CHUNK;
    return job->tokens > chunk || (job->run->loss.checkpoint && job->tokens > STW_LOSS_CHUNK);
}

static bool holds(const stw_job *job, const stw_spec_row *row, stw_need need) {
    const stw_run_spec *run = job->run;
    const stw_engine_spec *engine = &job->engine->spec;
    const bool tiered = has_tier(job);
    const bool nvme = tiered && job->cluster->nvme.capacity_bytes > 0;
    switch (need) {
    case STW_NEED_OWN:
        return engine->own_process;
    case STW_NEED_STEP:
        return engine->own_step;
    case STW_NEED_HIDES:
        return stw_job_may_hide_step(job);
    case STW_NEED_FOREIGN:
    case STW_NEED_CACHES:
        return !engine->own_process;
    case STW_NEED_CLIP:
        return engine->own_step && run->optimizer.clip_norm > 0;
    case STW_NEED_BF16_GRADS:
        return run->precision.grads == STW_DTYPE_BF16;
    case STW_NEED_FORWARD:
        return job->model->facts_known;
    case STW_NEED_ENCODER:
        return stw_job_has_encoder(job);
    case STW_NEED_VISION:
        return stw_model_has_vision(job->model);
    case STW_NEED_EXPERTS:
        return has_experts(job->model);
    case STW_NEED_RANKS:
    case STW_NEED_SHARDS:
        return job->world > 1;
    case STW_NEED_GATHERS:
        return job->group > 1 || run->precision.params != run->precision.compute;
    case STW_NEED_NODES:
        return job->roles[0].n_nodes > 1;
    case STW_NEED_PEERS:
        return job->ranks_per_node > 1;
    case STW_NEED_TP:
        return stw_job_tp(job) > 1;
    case STW_NEED_NVME:
        return nvme;
    case STW_NEED_STORES:
        return tiered || (run->checkpoint.every > 0 && run->checkpoint.keep > 0);
    case STW_NEED_WRITES:
        return nvme || run->checkpoint.every > 0;
    case STW_NEED_COMMITS:
        return job->engine->nvme_commits;
    case STW_NEED_FILES:
        return nvme || !run->load.page_cached;
    case STW_NEED_CACHED:
        return run->load.page_cached;
    case STW_NEED_CPU_STEP:
        return may_update_on_cpu(job);
    case STW_NEED_STORE:
        return job->cluster->host.object_store_bytes > 0;
    case STW_NEED_CALLS:
        return job->engine->cpu_pass != NULL;
    case STW_NEED_ISSUES:
        return job->engine->cpu_pass != NULL ||
               job->run->optimizer.kind != STW_OPTIMIZER_KIND_ADAMW || /* one matrix at a time */
               (job->engine->sync_calls && has_rollout(job->run));
    case STW_NEED_RATE:
        return uses_rate(job, row);
    case STW_NEED_OWN_KERNELS:
        return job->engine->cpu_step == NULL;
    case STW_NEED_ACCUMULATES:
        return run->batch.grad_accumulation > 1;
    case STW_NEED_DIRECT:
        return stw_run_spec_update_share(run, STW_UPDATE_DIRECT) > 0;
    case STW_NEED_RINGS:
        return may_stream(job);
    case STW_NEED_UNTIED:
        return has_own_embedding(job->model);
    case STW_NEED_FUSED:
        return run->loss.fused || run->loss.checkpoint ||
               run->batch.log_prob_method == STW_LOG_PROB_CHUNKED ||
               run->batch.log_prob_method == STW_LOG_PROB_FUSED;
    case STW_NEED_LOG_PROB:
        return run->batch.log_prob_micro_batch > 0;
    case STW_NEED_CHUNKS:
        return cuts_loss(job);
    case STW_NEED_SYNCS:
        return has_rollout(run);
    case STW_NEED_CHECKPOINTS:
        return run->checkpoint.every > 0;
    case STW_NEED_OWN_SAVES:
        return stw_run_spec_saves_own(run);
    case STW_NEED_FOREIGN_SAVES:
        return !stw_run_spec_saves_own(run);
    case STW_NEED_PARKED_PARAMS:
        return run->park.params;
    case STW_NEED_PARKED_MOMENTS:
        return run->park.moments;
    default:
        return false;
    }
}

static const struct {
    const char *why, *instead;
} needs[STW_N_NEEDS] = {
#define X(name, why, instead) {why, instead},
    STW_NEED_TABLE(X)
#undef X
};

/* The first need of a key that this job does not meet, STW_N_NEEDS if it meets all. */
static stw_need unmet(const stw_job *job, const stw_spec_row *row) {
    for (unsigned need = 0; need < STW_N_NEEDS; need++)
        if ((row->needs & 1ull << need) != 0 && !holds(job, row, (stw_need)need))
            return (stw_need)need;
    return STW_N_NEEDS;
}

/* @param leave what to do with the key, "leave it at none" */
static stw_status refuse(const stw_spec_row *row, const char *found, const char *leave,
                         stw_need need, const char *origin, stw_error *err) {
    const char *instead = needs[need].instead;
    return stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                    "%s: found %.120s, which has no effect: %s; %.120s%s%s", row->key, found,
                    needs[need].why, leave, instead != NULL ? ", or use " : "",
                    instead != NULL ? instead : "");
}

static stw_status check_row(const stw_job *job, const stw_spec_row *row,
                            const stw_run_spec *defaults, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text found = STW_TEXT_INIT, usual = STW_TEXT_INIT, leave = STW_TEXT_INIT;
    const stw_need need = unmet(job, row);
    if (need == STW_N_NEEDS) return STW_STATUS_OK;
    stw_spec_write_value(row, job->run, &found);
    stw_spec_write_value(row, defaults, &usual);
    STW_TRY(stw_text_status(&found, err));
    STW_TRY(stw_text_status(&usual, err));
    if (found.length != usual.length || memcmp(found.data, usual.data, found.length) != 0)
        stw_text_printf(&leave, "leave it at %s", usual.data);
    if (leave.data != NULL) status = refuse(row, found.data, leave.data, need, origin, err);
out:
    stw_text_free(&leave);
    stw_text_free(&found);
    stw_text_free(&usual);
    return status;
}

/* A group of parameters that is empty, or changes nothing, does not do what its writer means. */
static stw_status check_groups(const stw_job *job, const char *origin, stw_error *err) {
    const stw_run_spec *run = job->run;
    for (uint32_t g = 0; g < run->optimizer.n_groups; g++) {
        const stw_param_group *group = &run->optimizer.groups[g];
        char key[32];
        bool used = false;
        snprintf(key, sizeof key, "optimizer.groups.%u", g);
        if (g + 1 == run->optimizer.n_groups && group->lr >= STW_AUTO_NUMBER &&
            group->weight_decay >= STW_AUTO_NUMBER) /* no later group is kept from its tensors */
            return stw_run_spec_refuse(origin, err, key, "lr and weight_decay the same",
                                       "a rate of its own");
        for (uint32_t t = 0; t < job->model->n_tensors && !used; t++)
            used = stw_job_param_group(job, t) == g + 1;
        if (!used)
            return stw_run_spec_refuse(origin, err, key, "no tensor that its patterns match",
                                       "a pattern of a tensor that no earlier group matches "
                                       "(`stowage inspect --tensors` lists the names)");
    }
    return STW_STATUS_OK;
}

/* ---- positions ---- */

/* Learned positions are a matrix with a row for each, beside the token embedding. */
static bool learns_positions(const stw_model *model) {
    for (uint32_t t = 0; t < model->n_tensors && model->max_positions > 0; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        const char *group = model->groups[model->blocks[tensor->block].group].name;
        if (strcmp(group, "embed") == 0 && tensor->rank == 2 &&
            tensor->shape[0] == model->max_positions && tensor->shape[0] != model->vocab)
            return true;
    }
    return false;
}

static bool is_beyond(const stw_job *job) {
    return job->model->facts_known && job->model->max_positions > 0 &&
           job->run->batch.seq_len > job->model->max_positions;
}

bool stw_job_exceeds_positions(const stw_job *job) {
    return is_beyond(job) && !learns_positions(job->model);
}

uint64_t stw_default_seq_len(const stw_model *model) {
    const uint64_t most = model->max_positions;
    return most > 0 && most < USUAL_TOKENS ? most : USUAL_TOKENS;
}

static stw_status check_positions(const stw_job *job, const char *origin, stw_error *err) {
    char found[32], expected[128];
    if (!is_beyond(job) || !learns_positions(job->model)) return STW_STATUS_OK;
    snprintf(found, sizeof found, "%llu", (unsigned long long)job->run->batch.seq_len);
    snprintf(expected, sizeof expected, "at most %llu: %.60s has that many learned positions",
             (unsigned long long)job->model->max_positions, job->model->name);
    return stw_run_spec_refuse(origin, err, "batch.seq_len", found, expected);
}

/* ---- checks ---- */

stw_status stw_job_check_effect(const stw_job *job, const char *origin, stw_error *err) {
    const stw_spec_table *table = stw_run_spec_table();
    stw_run_spec defaults;
    stw_status status = stw_run_spec_init_as(job->run, &defaults, err);
    if (status != STW_STATUS_OK) return status;
    defaults.batch.seq_len = stw_default_seq_len(job->model);
    STW_TRY(check_positions(job, origin, err));
    for (size_t i = 0; i < table->n_rows; i++)
        STW_TRY(check_row(job, &table->rows[i], &defaults, origin, err));
    STW_TRY(check_groups(job, origin, err));
out:
    stw_run_spec_free(&defaults);
    return status;
}

stw_status stw_job_check_setting(const stw_job *job, const char *setting, const char *origin,
                                 stw_error *err) {
    const char *equals = strchr(setting, '=');
    if (equals == NULL) return STW_STATUS_OK;
    const stw_spec_row *row =
        stw_spec_find(stw_cluster_table(), setting, (size_t)(equals - setting));
    const stw_need need = row != NULL ? unmet(job, row) : STW_N_NEEDS;
    if (need == STW_N_NEEDS) return STW_STATUS_OK;
    return refuse(row, equals + 1, "leave it out", need, origin, err);
}
