/* SPDX-License-Identifier: Apache-2.0 */
/* Going on from a checkpoint: of another world, another placement, other precisions. What makes the
 * state another one is refused; what can be converted is. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/checkpoint/load.h"
#include "backend/checkpoint/stored.h"
#include "backend/executor/resume_kept.h"
#include "backend/executor/saved_rows.h"
#include "backend/host/kernels.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"
#include "plan/files/plan_terms.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

struct stw_exec_resume {
    stw_resume_kept kept;       /* state on NVMe, */
    stw_checkpoint *checkpoint; /* or a checkpoint; NULL: none */
    stw_saved_files *stored;
    stw_saved_kind source[STW_N_SAVED]; /* which kind a kind is made of */
    unsigned char *scratch;             /* [SCRATCH_BYTES] converted values */
};

#define SCRATCH_BYTES (1u << 20)

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "--resume", "out of memory");
}

/* ---- does it suit the plan ---- */

typedef enum verdict { REFUSED, CONVERTED, TAKEN_OVER, CHANGED } verdict;

/* What a key that differs means. */
static verdict judge(const char *key) {
    static const struct {
        const char *key;
        verdict verdict;
    } rules[] = {{"model.digest", REFUSED},      {"precision.", CONVERTED},
                 {"optimizer.lr", TAKEN_OVER},   {"optimizer.clip_norm", CHANGED},
                 {"optimizer.overlap", CHANGED}, {"optimizer.", REFUSED},
                 {"trainable.", REFUSED}};
    const size_t length = strlen(key);
    if (strncmp(key, "optimizer.groups", 16) == 0 && length > 3 &&
        strcmp(key + length - 3, ".lr") == 0)
        return TAKEN_OVER;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strncmp(key, rules[i].key, strlen(rules[i].key)) == 0) return rules[i].verdict;
    return CHANGED;
}

/* The state is not what this run would have made of the first weights. */
static void forgo_replay(stw_rank_run *run, const char *why) {
    if (!run->no_replay && !run->in_session && run->ranks.rank == 0)
        stw_log(STW_LOG_INFO, "no element is compared with a replay from the first step: %s", why);
    run->no_replay = true;
}

static stw_status compare_term(stw_rank_run *run, const char *key, const char *found,
                               const char *expected, stw_error *err) {
    const verdict what = judge(key);
    if (strcmp(found, expected) == 0) return STW_STATUS_OK;
    if (what == REFUSED)
        return stw_fail(err, STW_STATUS_BAD_INPUT, key,
                        "found %.200s in the checkpoint %.300s, expected %.200s, which the plan "
                        "has",
                        found, run->resume->checkpoint->path, expected);
    forgo_replay(run, key);
    if (what != CONVERTED && run->ranks.rank == 0)
        stw_log(STW_LOG_WARN, "%s: the checkpoint has %s, the plan %s; the %s counts", key, found,
                expected, what == TAKEN_OVER ? "checkpoint's" : "plan's");
    return STW_STATUS_OK;
}

/* Keys that only one of them has count as "none". */
static stw_status compare_terms(stw_rank_run *run, const char *lines, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_manifest *m = &run->resume->checkpoint->manifest;
    char key[256], value[512];
    for (uint32_t i = 0; i < m->n_terms; i++) {
        snprintf(value, sizeof value, "none");
        for (stw_term t = stw_term_at(lines); t.key_length > 0; t = stw_term_at(stw_term_next(&t)))
            if (strncmp(t.key, m->terms[i].key, (size_t)t.key_length) == 0 &&
                m->terms[i].key[t.key_length] == '\0')
                snprintf(value, sizeof value, "%.*s", t.value_length, t.value);
        STW_TRY(compare_term(run, m->terms[i].key, m->terms[i].value, value, err));
    }
    for (stw_term t = stw_term_at(lines); t.key_length > 0; t = stw_term_at(stw_term_next(&t))) {
        bool has = false;
        snprintf(key, sizeof key, "%.*s", t.key_length, t.key);
        snprintf(value, sizeof value, "%.*s", t.value_length, t.value);
        for (uint32_t i = 0; i < m->n_terms && !has; i++) has = strcmp(m->terms[i].key, key) == 0;
        if (!has) STW_TRY(compare_term(run, key, "none", value, err));
    }
out:
    return status;
}

/* A run on seeded gradients goes on with the same ones. */
static stw_status compare_run(stw_rank_run *run, stw_error *err) {
    const stw_manifest *m = &run->resume->checkpoint->manifest;
    if (run->in_session) return STW_STATUS_OK;
    if (m->seed != run->options->seed)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "--seed",
                        "found %" PRIu64 " in the checkpoint %.300s, expected %" PRIu64, m->seed,
                        run->resume->checkpoint->path, run->options->seed);
    if (m->step > run->options->steps)
        return stw_fail(err, STW_STATUS_USAGE, "--steps",
                        "found %u, expected at least %" PRIu64 ": that many are in the checkpoint "
                        "%.300s",
                        run->options->steps, m->step, run->resume->checkpoint->path);
    for (uint64_t i = 0; i < m->n_factors && i < m->step; i++)
        run->factors[i] = (float)m->factors[i];
    if (run->plan->run.optimizer.clip_norm > 0.0 && m->n_factors < m->step)
        forgo_replay(run, "the checkpoint has no clip factors");
    return STW_STATUS_OK;
}

/* What each kind is made of. */
static stw_status find_sources(stw_rank_run *run, stw_error *err) {
    stw_exec_resume *r = run->resume;
    const uint32_t kinds = r->stored->kinds;
    const bool has_master = (kinds & 1u << STW_SAVED_MASTER) != 0;
    for (uint32_t k = 0; k < STW_N_SAVED; k++) {
        r->source[k] = (stw_saved_kind)k;
        const bool wanted =
            stw_job_element_bytes(run->job, stw_saved_component((stw_saved_kind)k)) > 0;
        if (!wanted || (kinds & 1u << k) != 0) continue;
        if (k != STW_SAVED_MASTER || (kinds & 1u) == 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, r->checkpoint->path,
                            "found no %s, which the plan needs", stw_saved_name((stw_saved_kind)k));
        r->source[k] = STW_SAVED_PARAMS;
    }
    if (run->types.master == STW_ELEMENT_NONE && has_master) {
        if (run->types.params == STW_ELEMENT_F32)
            r->source[STW_SAVED_PARAMS] = STW_SAVED_MASTER;
        else if (run->ranks.rank == 0)
            stw_log(STW_LOG_WARN, "precision.master: the checkpoint has fp32, the plan none: its "
                                  "parameters alone are taken over");
    }
    if (run->types.master != STW_ELEMENT_NONE && !has_master && run->ranks.rank == 0 &&
        r->stored->dtypes[STW_SAVED_PARAMS] != STW_DTYPE_F32)
        stw_log(STW_LOG_WARN, "precision.master: the checkpoint has none: it is made of its "
                              "parameters, as at the start of a training");
    return STW_STATUS_OK;
}

static stw_status open_checkpoint(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_exec_resume *r = run->resume;
    stw_text lines = STW_TEXT_INIT;
    STW_TRY(stw_checkpoint_newest(run->options->resume, &r->checkpoint, err));
    STW_TRY(stw_exec_state_terms(run, &lines, err));
    STW_TRY(compare_terms(run, lines.data != NULL ? lines.data : "", err));
    STW_TRY(compare_run(run, err));
    STW_TRY(
        stw_checkpoint_stored(r->checkpoint, run->job->model, run->job->frozen, &r->stored, err));
    STW_TRY(find_sources(run, err));
    const stw_manifest *m = &r->checkpoint->manifest;
    for (uint32_t g = 0; g < m->n_groups; g++) run->lr[g] = m->lr[g];
    run->first_step = m->step + 1;
    snprintf(run->resumed, sizeof run->resumed, "step %" PRIu64 " of save %016" PRIx64, m->step,
             m->save);
out:
    stw_text_free(&lines);
    return status;
}

static stw_status open_kept(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_resume_kept *k = &run->resume->kept;
    STW_TRY(stw_resume_kept_open(run, k, err));
    if (!run->in_session && k->step.step > run->options->steps)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--steps",
                         "found %u, expected at least %" PRIu64 ": that many are in %.300s",
                         run->options->steps, k->step.step, k->file->path));
    if (run->plan->run.optimizer.clip_norm > 0.0)
        forgo_replay(run, "state on NVMe has no clip factors");
    run->first_step = k->step.step + 1;
    snprintf(run->resumed, sizeof run->resumed, "step %" PRIu64 " of run %016" PRIx64, k->step.step,
             k->file->header.run);
out:
    return status;
}

/* A folder of checkpoints, or one of state on NVMe. */
stw_status stw_exec_resume_open(stw_rank_run *run, stw_error *err) {
    const char *path = run->options->resume;
    if (path == NULL) return STW_STATUS_OK;
    stw_checkpoint_list list;
    const bool scanned = stw_checkpoint_scan(path, &list, NULL) == STW_STATUS_OK;
    const bool any = scanned && list.n > 0;
    if (scanned) stw_checkpoint_list_free(&list);
    run->resume = stw_pool_alloc(run->pool, sizeof *run->resume);
    if (run->resume == NULL) return no_memory(err);
    return !any && stw_resume_kept_is(path) ? open_kept(run, err) : open_checkpoint(run, err);
}

void stw_exec_resume_close(stw_rank_run *run) {
    if (run->resume == NULL) return;
    stw_resume_kept_close(&run->resume->kept);
    stw_checkpoint_close(run->resume->checkpoint);
    stw_saved_free(run->resume->stored);
    free(run->resume->scratch);
    run->resume = NULL;
}

/* ---- loading ---- */

typedef struct collector {
    stw_rank_run *run;
    stw_load_needs needs;
    stw_load_who who;
    const stw_saved_source *source;
    const stw_saved_row *row;
} collector;

/* A need's `where`: the region, and the dtype of the file. */
static stw_status add_need(void *state, const stw_located *at, stw_error *err) {
    collector *c = state;
    const stw_saved_entry *entry = &c->run->resume->stored->entries[c->row->entry];
    const uint64_t each = c->row->bytes / c->row->n;
    const uint32_t region = (uint32_t)(at->region - c->run->layout->regions);
    const stw_load_need need = {.file = entry->file,
                                .offset = c->row->offset + at->skip * each,
                                .bytes = at->n * each,
                                .where = region * STW_N_DTYPES + (uint32_t)entry->dtype,
                                .at = at->param - at->region->first_param,
                                .who = c->who};
    return stw_load_needs_add(&c->needs, &need, err);
}

static stw_status add_row(void *state, const stw_saved_row *row, stw_error *err) {
    collector *c = state;
    c->row = row;
    return stw_exec_locate(c->run, c->source, row, add_need, c, err);
}

/* Which kind a tensor's state is made of. */
static stw_saved_kind source_of(const stw_exec_resume *r, stw_saved_kind kind, uint32_t tensor) {
    return r->stored->trains[tensor] ? r->source[kind] : STW_SAVED_PARAMS;
}

/* Everything of one kind that this rank holds, from rows of its source, and what all ranks hold of
 * it. The rows are those of the source kind, the regions those of the kind. A master that is made
 * of the parameters has their bytes, too. */
static stw_status add_kind(collector *c, stw_saved_kind kind, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_exec_resume *r = c->run->resume;
    const stw_space *space = &c->run->spaces[stw_component_space(stw_saved_component(kind))];
    stw_box boxes[STW_BOX_RUNS];
    c->who = kind == STW_SAVED_MASTER && r->source[kind] == STW_SAVED_PARAMS ? STW_LOAD_HERE_TOO
                                                                             : STW_LOAD_HERE;
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *s = &space->segments[i];
        const unsigned n =
            stw_box_of_run(r->stored->shapes[s->tensor], s->tensor_first, s->n, boxes);
        for (unsigned b = 0; b < n; b++) {
            stw_saved_source source =
                stw_saved_in_tensor(r->stored, source_of(r, kind, s->tensor), s->tensor, &boxes[b]);
            const stw_saved_source placed = {.kind = kind, .tensor = s->tensor};
            c->source = &placed;
            STW_TRY(stw_saved_rows(r->stored, &source, add_row, c, err));
        }
    }
    for (uint32_t t = 0; t < r->stored->n_tensors; t++)
        if (kind == STW_SAVED_PARAMS || r->stored->trains[t])
            STW_TRY(stw_stored_any_rank(r->stored, source_of(r, kind, t), t, &c->needs, err));
out:
    return status;
}

static stw_status put(stw_rank_run *run, const stw_region *region, uint64_t offset,
                      const void *from, uint64_t bytes, stw_error *err) {
    if (region->tier == STW_TIER_NVME)
        return stw_nvme_write(run->backend->nvme(run->device), offset, from, bytes, err);
    return run->backend->put(run->device, stw_at(region->tier, offset), from, bytes, err);
}

static stw_status place(void *state, const stw_load_need *need, uint64_t skip, const void *from,
                        uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_rank_run *run = ((collector *)state)->run;
    const stw_region *region = &run->layout->regions[need->where / STW_N_DTYPES];
    const stw_dtype dtype = (stw_dtype)(need->where % STW_N_DTYPES);
    const stw_element type = stw_exec_type(&run->types, region->component);
    const uint64_t each = stw_dtype_bits(dtype) / 8, to = stw_element_bytes(type);
    const uint64_t element = need->at + skip / each, n = bytes / each;
    const uint64_t offset = region->offset_bytes + stw_times(element, to);
    if (skip % each != 0 || bytes % each != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, run->resume->checkpoint->path,
                        "a bucket cuts an element");
    stw_exec_progress_add(run, bytes);
    if ((dtype == STW_DTYPE_F32 && type == STW_ELEMENT_F32) ||
        (dtype == STW_DTYPE_BF16 && type == STW_ELEMENT_BF16))
        return put(run, region, offset, from, bytes, err);
    for (uint64_t done = 0, some = 0; done < n; done += some) {
        some = stw_min_u64(n - done, SCRATCH_BYTES / sizeof(float));
        stw_host_convert(NULL, run->resume->scratch, type,
                         (const unsigned char *)from + done * each, dtype, some);
        STW_TRY(put(run, region, offset + done * to, run->resume->scratch, some * to, err));
    }
out:
    return status;
}

static stw_status load(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    collector c = {.run = run};
    if (run->resume->checkpoint == NULL) {
        STW_TRY(stw_resume_kept_load(run, &run->resume->kept, err));
        goto out;
    }
    run->resume->scratch = malloc(SCRATCH_BYTES);
    if (run->resume->scratch == NULL) STW_TRY(no_memory(err));
    for (uint32_t k = 0; k < STW_N_SAVED; k++)
        if (stw_job_element_bytes(run->job, stw_saved_component((stw_saved_kind)k)) > 0)
            STW_TRY(add_kind(&c, (stw_saved_kind)k, err));
    const stw_load_options options = {.needs = c.needs.all,
                                      .n_needs = c.needs.n,
                                      .place = place,
                                      .state = &c,
                                      .one_thread = run->backend->gpu,
                                      .part = run->ranks.rank,
                                      .parts = run->ranks.world};
    STW_TRY(stw_checkpoint_load(run->resume->checkpoint, &options, err));
out:
    free(c.needs.all);
    return status;
}

/* A rank that does not see weights files has no sample of them, and replays nothing. */
static void compare_weights(stw_rank_run *run) {
    char sample[17] = "";
    if (run->resume->checkpoint == NULL) return;
    if (run->sample.length == 0 && run->weights_path != NULL) return;
    if (run->sample.length > 0)
        snprintf(sample, sizeof sample, "%016" PRIx64,
                 (uint64_t)XXH3_64bits(run->sample.data, run->sample.length));
    if (strcmp(sample, run->resume->checkpoint->manifest.sample) != 0)
        forgo_replay(run, "the training began with other weights files");
}

stw_status stw_exec_resume_load(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double begin_s = stw_process_now_s();
    const stw_checkpoint *c = run->resume->checkpoint;
    stw_exec_progress(run, "reading the checkpoint",
                      c != NULL ? STW_PROGRESS_BYTES : STW_PROGRESS_SECONDS,
                      c != NULL ? c->bytes / run->ranks.world : 0);
    run->step = run->first_step - 1;
    compare_weights(run);
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        const stw_movement *movement = &run->program->movements[m];
        if (movement->phase != STW_PHASE_LOAD || run->schedules[m] == NULL) continue;
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
            if (stw_op_is(&run->program->ops[i], STW_OP_CLASS_MEMORY))
                STW_TRY(stw_exec_issue(run, i, err));
    }
    stw_status loaded = load(run, err);
    if (loaded == STW_STATUS_OK) loaded = run->backend->synchronize(run->device, err);
    if (loaded == STW_STATUS_OK) loaded = run->backend->commit(run->device, run->step, err);
    STW_TRY(stw_exec_agree_status(run, loaded, err));
    if (run->ranks.rank == 0)
        stw_log(STW_LOG_INFO, "resumed from %s, %s, in %.1f s",
                c != NULL ? c->path : run->resume->kept.file->path, run->resumed,
                stw_process_now_s() - begin_s);
out:
    return status;
}
