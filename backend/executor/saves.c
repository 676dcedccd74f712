/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a run. What lies on the GPU is read before the run goes on; what lies on the host
 * or on NVMe is written while the next step runs, in the order in which that step will change it.
 * Nothing here is collective but the number that all saves of a run share, which is agreed on at
 * its start. */
#define _GNU_SOURCE /* getrandom */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "backend/checkpoint/save.h"
#include "backend/executor/saved_rows.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

struct stw_exec_saves {
    stw_saved_files *saved;
    stw_job_shares shares;
    stw_saver *saver;
    stw_save_item *items;
    uint32_t n_items, n_now;
    size_t room;
    uint32_t *turn_of;   /* [n_buckets] in the order in which a step handles them */
    uint64_t number;     /* of this run, the same on all ranks */
    uint64_t saved_step; /* of the save under way; 0: none */
    uint64_t last_step;  /* of the last one that ended well; 0: none */
    int lock;            /* rank 0's, of the folder; -1: none */
    bool tidied;
    bool *locked; /* [of the saver's buckets] they are page-locked */
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* ---- what this rank writes ---- */

typedef struct collector {
    stw_rank_run *run;
    stw_exec_saves *saves;
    const stw_saved_source *source;
    const stw_saved_row *row;
} collector;

static uint32_t bucket_at(const stw_layout *layout, uint64_t param) {
    uint32_t low = 0, high = layout->n_buckets;
    while (low + 1 < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (layout->buckets[middle].first_param <= param)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* An item for the part of a run of elements that one bucket of the step changes. Params that are
 * cut otherwise than what buckets cut change at any time: they are read first. */
static stw_status add_item(void *state, const stw_located *at, stw_error *err) {
    collector *c = state;
    const stw_layout *layout = c->run->layout;
    stw_exec_saves *s = c->saves;
    const uint64_t each = c->row->bytes / c->row->n;
    const bool in_buckets = stw_layout_in_buckets(c->run->job, layout, at->region);
    for (uint64_t done = 0, n = 0; done < at->n; done += n) {
        const uint64_t param = at->param + done;
        stw_save_item item = {.file = c->saves->saved->entries[c->row->entry].file,
                              .where = (uint32_t)at->region->tier};
        n = at->n - done;
        if (in_buckets) {
            const uint32_t index = bucket_at(layout, param);
            const stw_bucket *b = &layout->buckets[index];
            item.turn = s->turn_of[index];
            if (param >= b->first_param && param - b->first_param < b->params)
                n = stw_min_u64(n, b->first_param + b->params - param);
        }
        item.offset = c->row->offset + (at->skip + done) * each;
        item.bytes = n * each;
        item.at = at->region->offset_bytes + (param - at->region->first_param) * each;
        s->items = stw_pool_regrow(c->run->pool, s->items, s->n_items, s->n_items + 1u, &s->room,
                                   sizeof *s->items);
        if (s->items == NULL) return no_memory(err);
        s->items[s->n_items++] = item;
    }
    return STW_STATUS_OK;
}

static stw_status add_row(void *state, const stw_saved_row *row, stw_error *err) {
    collector *c = state;
    c->row = row;
    return stw_exec_locate(c->run, c->source, row, add_item, c, err);
}

/* What is on the GPU first; then in the order of the step, and of the files. */
static int compare(const void *a, const void *b) {
    const stw_save_item *x = a, *y = b;
    const bool x_now = x->where == STW_TIER_GPU, y_now = y->where == STW_TIER_GPU;
    if (x_now != y_now) return x_now ? -1 : 1;
    if (!x_now && x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static stw_status find_items(stw_rank_run *run, stw_exec_saves *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_layout *layout = run->layout;
    const stw_shares *shares = &s->shares.shares;
    const uint32_t own = s->shares.own;
    collector c = {.run = run, .saves = s};
    s->turn_of = stw_pool_array(run->pool, (size_t)layout->n_buckets + 1, sizeof *s->turn_of);
    if (s->turn_of == NULL) return no_memory(err);
    for (uint32_t i = 0; i < layout->n_buckets; i++) s->turn_of[layout->order[i]] = i + 1;
    for (uint32_t i = shares->first[own]; i < shares->first[own + 1]; i++)
        for (uint32_t k = 0; k < STW_N_SAVED; k++) {
            const stw_share *share = &shares->shares[i];
            if ((share->kinds & 1u << k) == 0) continue;
            const stw_saved_source source =
                stw_saved_in_tensor(s->saved, (stw_saved_kind)k, share->tensor, &share->box);
            c.source = &source;
            STW_TRY(stw_saved_rows(s->saved, &source, add_row, &c, err));
        }
    if (s->n_items > 1) qsort(s->items, s->n_items, sizeof *s->items, compare);
    while (s->n_now < s->n_items && s->items[s->n_now].where == STW_TIER_GPU) s->n_now++;
out:
    return status;
}

/* ---- opening ---- */

static stw_status read_item(void *state, const stw_save_item *item, uint64_t skip, void *to,
                            uint64_t bytes, stw_error *err) {
    stw_rank_run *run = state;
    const uint64_t at = item->at + skip;
    if (item->where == STW_TIER_NVME)
        return stw_nvme_read(run->backend->nvme(run->device), at, to, bytes, err);
    if (item->where == STW_TIER_GPU)
        return run->backend->get(run->device, to, stw_at(STW_TIER_GPU, at), bytes, err);
    const void *from = run->backend->host_address(run->device, at, bytes);
    if (from == NULL)
        return stw_fail(err, STW_STATUS_BUG, "checkpoint",
                        "%llu bytes at %llu are not in the arena", (unsigned long long)bytes,
                        (unsigned long long)at);
    memcpy(to, from, (size_t)bytes);
    return STW_STATUS_OK;
}

/* State on the GPU goes to buckets at the speed of the link. Where they cannot be page-locked it
 * goes more slowly. */
static void page_lock(stw_rank_run *run, bool lock) {
    stw_exec_saves *s = run->saves;
    stw_error why = STW_ERROR_INIT;
    uint64_t bytes = 0;
    if (run->backend->page_lock == NULL || s->n_now == 0) return;
    for (uint32_t b = 0; b < stw_saver_buckets(s->saver); b++) {
        void *memory = stw_saver_bucket(s->saver, b, &bytes);
        if (s->locked[b] == lock) continue;
        if (run->backend->page_lock(run->device, memory, bytes, lock, &why) != STW_STATUS_OK)
            stw_log(STW_LOG_DEBUG, "a bucket of checkpoints is pageable: %s", why.text);
        else
            s->locked[b] = lock;
    }
}

stw_status stw_exec_saves_open(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_executor_options *o = run->options;
    if (o->checkpoint == NULL) return status;
    stw_exec_saves *s = run->saves = stw_pool_alloc(run->pool, sizeof *s);
    if (s == NULL) return no_memory(err);
    s->lock = -1;
    STW_TRY(stw_job_saved(run->job, &s->saved, err));
    STW_TRY(stw_job_share(run->job, s->saved, run->ranks.rank, run->pool, &s->shares, err));
    STW_TRY(find_items(run, s, err));
    const stw_saver_options options = {.saved = s->saved,
                                       .rank = run->ranks.rank,
                                       .world = run->ranks.world,
                                       .bucket_bytes = o->checkpoint_bucket,
                                       .copies_bytes = stw_run_spec_copies(&run->plan->run)};
    STW_TRY(stw_saver_new(&options, &s->saver, err));
    s->locked = stw_pool_array(run->pool, stw_saver_buckets(s->saver), sizeof *s->locked);
    if (s->locked == NULL) STW_TRY(no_memory(err));
    page_lock(run, true);
    if (run->ranks.rank == 0) STW_TRY(stw_checkpoint_lock(o->checkpoint, &s->lock, err));
out:
    return status;
}

static uint64_t random_number(void) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number) return number;
    return ((uint64_t)time(NULL) << 24) ^ ((uint64_t)getpid() << 40) ^
           (uint64_t)(1e9 * stw_process_now_s());
}

stw_status stw_exec_saves_agree(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t mine = random_number();
    if (run->saves == NULL) return status;
    uint64_t *all = calloc(run->ranks.world, sizeof *all);
    if (all == NULL) return no_memory(err);
    stw_comm_about(run->comm, "number of the run's checkpoints");
    STW_TRY(stw_exec_gather(run, &mine, all, sizeof mine, err));
    run->saves->number = all[0];
out:
    free(all);
    return status;
}

/* ---- saving ---- */

static void warn(uint64_t step, const stw_error *why) {
    char text[1280];
    stw_error_format(why, text, sizeof text);
    stw_log_always(STW_LOG_WARN, "the checkpoint of step %" PRIu64 " was not saved: %s", step,
                   text);
}

void stw_exec_saves_finish(stw_rank_run *run) {
    stw_saver_result result;
    stw_error why = STW_ERROR_INIT;
    char bytes[32];
    if (run->saves == NULL || run->saves->saved_step == 0) return;
    const uint64_t step = run->saves->saved_step;
    run->saves->saved_step = 0;
    if (stw_saver_finish(run->saves->saver, &result, &why) != STW_STATUS_OK) {
        warn(step, &why);
        return;
    }
    run->saves->last_step = step;
    stw_bytes_format(result.bytes, bytes, sizeof bytes);
    stw_log(STW_LOG_DEBUG,
            "checkpoint of step %" PRIu64 ": rank %u wrote %s in %.3f s; the run waited %.3f s to "
            "begin and %.3f s in the next step%s",
            step, run->ranks.rank, bytes, result.seconds, result.begin_s, result.stall_s,
            result.published ? "; complete" : "");
}

static stw_status make_texts(const stw_rank_run *run, const stw_save_head *head, stw_pool *pool,
                             stw_save_text *texts, uint32_t *n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text lines = STW_TEXT_INIT;
    char sample[17] = "";
    if (run->sample.length > 0)
        snprintf(sample, sizeof sample, "%016" PRIx64,
                 (uint64_t)XXH3_64bits(run->sample.data, run->sample.length));
    stw_manifest m = {.pool = pool,
                      .save = head->save,
                      .step = head->step,
                      .world = run->ranks.world,
                      .model = run->job->model->name,
                      .n_tensors = run->job->model->n_tensors,
                      .params = run->job->model->params,
                      .seed = run->options->seed,
                      .sample = sample,
                      .n_groups = run->plan->run.optimizer.n_groups + 1};
    for (uint32_t g = 0; g < m.n_groups; g++) stw_exec_rates(run, g, &m.lr[g], &m.weight_decay[g]);
    double *factors = stw_pool_array(pool, run->options->steps, sizeof *factors);
    if (factors == NULL) STW_TRY(no_memory(err));
    m.n_factors = run->in_session || run->no_replay ? 0 : head->step;
    for (uint64_t i = 0; i < m.n_factors; i++) factors[i] = (double)run->factors[i];
    m.factors = factors;
    STW_TRY(stw_exec_state_terms(run, &lines, err));
    STW_TRY(stw_manifest_take_terms(&m, lines.data != NULL ? lines.data : "", err));
    STW_TRY(stw_save_texts(pool, &m, run->saves->saved, run->options->checkpoint_config, texts, n,
                           err));
out:
    stw_text_free(&lines);
    return status;
}

void stw_exec_save(stw_rank_run *run) {
    stw_status status = STW_STATUS_OK;
    stw_exec_saves *s = run->saves;
    stw_error why = STW_ERROR_INIT;
    stw_save_text texts[STW_SAVE_TEXTS];
    stw_save_head head = {.folder = run->options->checkpoint,
                          .keep = run->options->checkpoint_keep,
                          .step = run->step,
                          .save = stw_save_name(s->number, run->step),
                          .texts = texts,
                          .items = s->items,
                          .n_items = s->n_items,
                          .n_now = s->n_now,
                          .read = read_item,
                          .state = run};
    stw_pool *pool = stw_pool_new();
    stw_exec_saves_finish(run);
    if (pool == NULL) STW_TRY(no_memory(&why));
    if (run->ranks.rank == 0) {
        if (!s->tidied) stw_checkpoint_tidy(head.folder, head.save);
        s->tidied = true;
        STW_TRY(make_texts(run, &head, pool, texts, &head.n_texts, &why));
    }
    STW_TRY(stw_saver_begin(s->saver, &head, &why));
    s->saved_step = run->step;
out:
    stw_pool_free(pool);
    if (status != STW_STATUS_OK) warn(run->step, &why);
}

/* A step that waits for half of what peers wait for it gives the save up. */
static void wait_for(stw_rank_run *run, uint32_t turn) {
    stw_saver_wait(run->saves->saver, turn, run->timeout_s / 2);
}

void stw_exec_saves_guard(stw_rank_run *run, const stw_op *op) {
    const stw_exec_saves *s = run->saves;
    if (s == NULL || s->saved_step == 0) return;
    const bool two_copies = run->config.nvme_copies == 2;
    bool changes = false;
    switch (op->kind) {
    case STW_OP_UPDATE: /* in place on the host; elsewhere in slots, or on the GPU */
        changes = op->update == STW_UPDATE_CPU || op->update == STW_UPDATE_DIRECT;
        break;
    case STW_OP_COPY:
        changes = op->to == STW_TIER_HOST && op->stream != STW_STREAM_TO_CPU;
        break;
    case STW_OP_NVME_WRITE: /* with two copies the committed one stays as it is */
        changes = !two_copies;
        break;
    case STW_OP_COMMIT:
        if (two_copies) wait_for(run, UINT32_MAX);
        return;
    case STW_OP_COPY_PIECE:
    case STW_OP_PLACE:
    case STW_OP_MASTER:
        wait_for(run, UINT32_MAX);
        return;
    default:
        return;
    }
    if (changes)
        wait_for(run, op->unit < run->layout->n_buckets ? s->turn_of[op->unit] : UINT32_MAX);
}

/* All ranks have ended theirs. */
static void check_last(const stw_rank_run *run) {
    stw_checkpoint *whole = NULL;
    stw_error why = STW_ERROR_INIT;
    if (run->failed || run->in_session || run->ranks.rank != 0 || run->saves->last_step == 0)
        return;
    if (stw_checkpoint_newest(run->options->checkpoint, &whole, &why) != STW_STATUS_OK ||
        whole->manifest.step < run->saves->last_step)
        stw_log_always(STW_LOG_WARN,
                       "%s: the checkpoint of step %" PRIu64
                       " is not complete: another rank gave it "
                       "up, or does not see this folder. %s",
                       run->options->checkpoint, run->saves->last_step, why.text);
    stw_checkpoint_close(whole);
}

void stw_exec_saves_close(stw_rank_run *run) {
    if (run->saves == NULL) return;
    stw_exec_saves_finish(run);
    check_last(run);
    if (run->saves->locked != NULL) page_lock(run, false);
    stw_saver_free(run->saves->saver);
    stw_saved_free(run->saves->saved);
    if (run->saves->lock >= 0) (void)close(run->saves->lock);
    run->saves = NULL;
}
