/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job of the caller's: what ranks hold, and saves. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include "library/saved.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* A step of an optimizer that waits longer than this for a disk gives the save up. */
#define MOST_WAIT_S 300.0

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* ---- what is saved ---- */

static stw_status take_dtype(const char *text, const char *where, stw_dtype *out, stw_error *err) {
    if (stw_dtype_parse(text, out) && (*out == STW_DTYPE_F32 || *out == STW_DTYPE_BF16))
        return STW_STATUS_OK;
    if (stw_dtype_parse(text, out) && *out == STW_DTYPE_F16) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, where,
                    "found dtype \"%.40s\", expected F32, BF16 or F16", text);
}

static stw_status take_tensor(stw_pool *pool, const stw_saved_tensor_t *from, stw_tensor *to,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_library_need(from->name, "name", err));
    STW_TRY(stw_library_need(from->dtype, "dtype", err));
    *to = (stw_tensor){.name = stw_pool_string(pool, from->name),
                       .rank = from->dimensions,
                       .numel = 1,
                       .experts = 1};
    if (to->name == NULL) STW_TRY(no_memory(err));
    if (from->dimensions > STW_TENSOR_MAX_RANK)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, from->name,
                         "found %u dimensions, expected at most %d", from->dimensions,
                         STW_TENSOR_MAX_RANK));
    STW_TRY(take_dtype(from->dtype, from->name, &to->dtype, err));
    for (uint32_t d = 0; d < from->dimensions; d++) {
        to->shape[d] = from->shape[d];
        STW_TRY(stw_mul_u64(to->numel, from->shape[d], &to->numel, from->name, err));
    }
out:
    return status;
}

/* The tensors as a model, whose names are published ones of its type. */
static stw_status take_model(stw_saved_t *h, const stw_saved_options_t *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *m = &h->model;
    bool *frozen = stw_pool_array(h->pool, (size_t)o->n_tensors + 1, sizeof *frozen);
    h->dtypes = stw_pool_array(h->pool, (size_t)o->n_tensors + 1, sizeof *h->dtypes);
    m->pool = h->pool;
    m->name = m->source = "job";
    m->model_type = stw_pool_string(h->pool, o->model_type != NULL ? o->model_type : "");
    m->n_tensors = o->n_tensors;
    m->tensors = stw_pool_array(h->pool, (size_t)o->n_tensors + 1, sizeof *m->tensors);
    if (frozen == NULL || h->dtypes == NULL || m->tensors == NULL || m->model_type == NULL)
        STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < o->n_tensors; i++) {
        STW_TRY(take_tensor(h->pool, &o->tensors[i], &m->tensors[i], err));
        h->dtypes[i] = m->tensors[i].dtype;
        frozen[i] = o->tensors[i].frozen != 0;
        m->params = stw_plus(m->params, m->tensors[i].numel);
    }
    h->frozen = frozen;
out:
    return status;
}

static stw_status take_pieces(stw_saved_t *h, const stw_saved_options_t *o, stw_error *err) {
    const uint32_t state = h->saved->kinds & STW_SAVED_STATE;
    h->held = stw_pool_array(h->pool, (size_t)o->n_pieces + 1, sizeof *h->held);
    if (h->held == NULL) return no_memory(err);
    h->n_held = o->n_pieces;
    for (uint32_t i = 0; i < o->n_pieces; i++) {
        const stw_held_t *p = &o->pieces[i];
        stw_held *own = &h->held[i];
        *own = (stw_held){.rank = p->rank, .tensor = p->tensor};
        memcpy(own->box.first, p->first, sizeof own->box.first);
        memcpy(own->box.count, p->count, sizeof own->box.count);
        const bool frozen = p->tensor < h->model.n_tensors && h->frozen[p->tensor];
        own->kinds = (p->params != 0 ? 1u : 0) | (p->state != 0 && !frozen ? state : 0);
    }
    return STW_STATUS_OK;
}

static stw_status take_kinds(const stw_saved_options_t *o, stw_saved_options *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *const texts[STW_N_SAVED] = {NULL, o->master, o->exp_avg, o->exp_avg_sq};
    out->kinds = 1u << STW_SAVED_PARAMS;
    for (uint32_t k = 1; k < STW_N_SAVED; k++) {
        if (texts[k] == NULL) continue;
        out->kinds |= 1u << k;
        STW_TRY(take_dtype(texts[k], stw_saved_name((stw_saved_kind)k), &out->dtypes[k], err));
    }
out:
    return status;
}

static stw_status make(stw_saved_t *h, const stw_saved_options_t *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_options options = {0};
    if (o->rank >= o->world)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "rank", "found %u of %u ranks", o->rank, o->world));
    if (o->bucket_bytes % 4096 != 0)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "bucket_bytes",
                         "found %" PRIu64 ", expected a multiple of 4096", o->bucket_bytes));
    h->rank = o->rank;
    h->world = o->world;
    h->bucket_bytes = o->bucket_bytes;
    h->copies_bytes = o->copies_bytes;
    STW_TRY(take_model(h, o, err));
    STW_TRY(take_kinds(o, &options, err));
    options.params = h->dtypes;
    options.frozen = h->frozen;
    STW_TRY(stw_saved_make(&h->model, &options, &h->saved, err));
    STW_TRY(take_pieces(h, o, err));
    STW_TRY(stw_shares_make(h->pool, h->saved, h->world, h->held, h->n_held, &h->shares, err));
    STW_TRY(stw_shares_check(h->saved, &h->shares, err));
    h->sources = stw_pool_array(h->pool, ((size_t)h->n_held + 1) * STW_N_SAVED, sizeof *h->sources);
    if (h->sources == NULL) STW_TRY(no_memory(err));
out:
    return status;
}

stw_status_t stw_plan_checkpoint(const stw_saved_options_t *options, size_t size, stw_saved_t **out,
                                 stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_saved_options_t mine = {0};
    stw_saved_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_saved_options_t, bucket_bytes), err));
    if (mine.n_tensors > 0) STW_TRY(stw_library_need(mine.tensors, "tensors", err));
    if (mine.n_pieces > 0) STW_TRY(stw_library_need(mine.pieces, "pieces", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(no_memory(err));
    handle->pid = (long)getpid();
    handle->pool = stw_pool_new();
    if (handle->pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(make(handle, &mine, err));
    *out = handle;
    handle = NULL;
out:
    stw_free_saved(handle);
    return stw_library_end(status, error);
}

void stw_get_saved_info(const stw_saved_t *saved, stw_saved_info_t *out, size_t size) {
    stw_saved_info_t info = {0};
    if (saved != NULL) {
        uint64_t sum = XXH3_64bits(saved->shares.bytes, saved->world * sizeof(uint64_t));
        for (uint32_t f = 0; f < saved->saved->n_files; f++)
            sum = XXH3_64bits_withSeed(saved->saved->files[f].header,
                                       saved->saved->files[f].header_bytes, sum);
        for (uint32_t i = 0; i < saved->shares.first[saved->world]; i++)
            sum = XXH3_64bits_withSeed(&saved->shares.shares[i], sizeof(stw_share), sum);
        info = (stw_saved_info_t){.files = saved->saved->n_files,
                                  .bytes = saved->saved->bytes,
                                  .rank_bytes = saved->shares.bytes[saved->rank],
                                  .sum = sum};
        for (uint32_t r = 0; r < saved->world; r++)
            info.most_bytes = stw_max_u64(info.most_bytes, saved->shares.bytes[r]);
    }
    stw_library_copy(out, size, &info, sizeof info);
}

/* ---- where it comes from ---- */

stw_status stw_library_take_sources(stw_saved_t *h, const stw_save_source_t *sources, uint32_t n,
                                    stw_error *err) {
    memset(h->sources, 0, ((size_t)h->n_held + 1) * STW_N_SAVED * sizeof *h->sources);
    for (uint32_t i = 0; i < n; i++) {
        const stw_save_source_t *s = &sources[i];
        uint32_t k = 0;
        while (k < STW_N_SAVED &&
               (s->component == NULL || strcmp(s->component, stw_saved_name((stw_saved_kind)k))))
            k++;
        if (k == STW_N_SAVED)
            return stw_fail(err, STW_STATUS_USAGE, "component",
                            "found \"%.60s\", expected params, master, exp_avg or exp_avg_sq",
                            s->component != NULL ? s->component : "");
        if (s->piece >= h->n_held || h->held[s->piece].rank != h->rank)
            return stw_fail(err, STW_STATUS_USAGE, "piece",
                            "found %u, which is no piece of rank %u", s->piece, h->rank);
        const int ways = (s->address != NULL) + (s->optimizer != NULL) + (s->copy != NULL);
        if (ways != 1 && stw_box_volume(&h->held[s->piece].box) > 0)
            return stw_fail(err, STW_STATUS_USAGE, h->model.tensors[h->held[s->piece].tensor].name,
                            "found %d of address, optimizer and copy, expected one", ways);
        h->sources[(size_t)s->piece * STW_N_SAVED + k] = *s;
    }
    return STW_STATUS_OK;
}

stw_saved_source stw_library_in_piece(const stw_saved_t *h, uint32_t piece, stw_saved_kind kind,
                                      const stw_box *box) {
    const stw_held *held = &h->held[piece];
    stw_saved_source out = {.kind = kind, .tensor = held->tensor, .box = *box};
    uint64_t step = 1;
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        out.stride[d] = step;
        out.first += step * (box->first[d] - held->box.first[d]);
        step *= held->box.count[d];
    }
    return out;
}

/* What an item's bytes are: one row, or the part of it that lies somewhere. */
enum { NOW, MEMORY, DISK, N_WAYS };

typedef struct collector {
    stw_saved_t *h;
    uint32_t source; /* in h->sources */
    const stw_saved_row *row;
    stw_status (*add)(struct collector *c, const stw_save_item *item, stw_error *err);
} collector;

static stw_status add_item(stw_saved_t *h, stw_save_item item, stw_error *err) {
    h->items = stw_pool_regrow(h->save_pool, h->items, h->n_items, h->n_items + 1u, &h->items_room,
                               sizeof *h->items);
    if (h->items == NULL) return no_memory(err);
    h->items[h->n_items++] = item;
    return STW_STATUS_OK;
}

/* An optimizer's state on the host or on NVMe may wait; what is on the GPU may not. */
static stw_status add_home(void *state, const stw_bound_home *home, stw_error *err) {
    const collector *c = state;
    const uint64_t each = c->row->bytes / c->row->n;
    stw_save_item item = {.file = c->h->saved->entries[c->row->entry].file,
                          .offset = c->row->offset + home->skip * each,
                          .bytes = home->n * each,
                          .turn = home->turn + 1,
                          .where = c->source * N_WAYS + MEMORY,
                          .at = (uint64_t)(uintptr_t)home->address};
    if (home->tier == STW_TIER_NVME) {
        item.where = c->source * N_WAYS + DISK;
        item.at = home->offset;
    } else if (home->tier == STW_TIER_GPU) {
        item.where = c->source * N_WAYS + NOW;
        item.at = c->row->first + home->skip;
        item.turn = 0;
    }
    return add_item(c->h, item, err);
}

static stw_status add_row(void *state, const stw_saved_row *row, stw_error *err) {
    collector *c = state;
    const stw_save_source_t *s = &c->h->sources[c->source];
    const uint64_t each = row->bytes / row->n;
    c->row = row;
    if (s->optimizer != NULL) {
        const stw_bound_range range = {.component = stw_library_component(s->component),
                                       .tensor = s->tensor,
                                       .first = row->first,
                                       .n = row->n};
        return stw_bound_locate(s->optimizer->bound, &range, add_home, c, err);
    }
    stw_save_item item = {.file = c->h->saved->entries[row->entry].file,
                          .offset = row->offset,
                          .bytes = row->bytes,
                          .where = c->source * N_WAYS + NOW,
                          .at = row->first};
    if (s->address != NULL) {
        item.where = c->source * N_WAYS + MEMORY;
        item.at = (uint64_t)(uintptr_t)s->address + stw_times(row->first, each);
    }
    return add_item(c->h, item, err);
}

static stw_status add_share(stw_saved_t *h, const stw_share *share, stw_saved_kind kind,
                            stw_error *err) {
    collector c = {.h = h, .source = share->held * STW_N_SAVED + (uint32_t)kind};
    const stw_save_source_t *s = &h->sources[c.source];
    const stw_saved_source source = stw_library_in_piece(h, share->held, kind, &share->box);
    if (s->component == NULL)
        return stw_fail(err, STW_STATUS_USAGE, h->model.tensors[share->tensor].name,
                        "found no source of its %s, piece %u", stw_saved_name(kind), share->held);
    return stw_saved_rows(h->saved, &source, add_row, &c, err);
}

static int compare(const void *a, const void *b) {
    const stw_save_item *x = a, *y = b;
    const bool x_now = x->where % N_WAYS == NOW, y_now = y->where % N_WAYS == NOW;
    if (x_now != y_now) return x_now ? -1 : 1;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static stw_status find_items(stw_saved_t *h, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    h->items = NULL;
    h->n_items = h->n_now = 0;
    h->items_room = 0;
    for (uint32_t i = h->shares.first[h->rank]; i < h->shares.first[h->rank + 1]; i++)
        for (uint32_t k = 0; k < STW_N_SAVED; k++)
            if ((h->shares.shares[i].kinds & 1u << k) != 0)
                STW_TRY(add_share(h, &h->shares.shares[i], (stw_saved_kind)k, err));
    if (h->n_items > 1) qsort(h->items, h->n_items, sizeof *h->items, compare);
    while (h->n_now < h->n_items && h->items[h->n_now].where % N_WAYS == NOW) h->n_now++;
out:
    return status;
}

stw_status stw_library_copy_elements(const stw_save_source_t *s, uint64_t first, uint64_t n,
                                     bool write, void *memory, stw_error *err) {
    if (s->copy != NULL) {
        if (s->copy(s->user, first, n, memory) == 0) return STW_STATUS_OK;
        return stw_fail(err, STW_STATUS_IO, s->component, "the caller's copy of piece %u failed",
                        s->piece);
    }
    const stw_bound_range range = {.component = stw_library_component(s->component),
                                   .tensor = s->tensor,
                                   .first = first,
                                   .n = n};
    return stw_bound_copy_state(s->optimizer->bound, &range, write, memory, err);
}

static stw_status read_item(void *state, const stw_save_item *item, uint64_t skip, void *to,
                            uint64_t bytes, stw_error *err) {
    const stw_saved_t *h = state;
    const uint32_t source = item->where / N_WAYS;
    const stw_save_source_t *s = &h->sources[source];
    if (item->where % N_WAYS == MEMORY) {
        memcpy(to, (const unsigned char *)(uintptr_t)item->at + skip, (size_t)bytes);
        return STW_STATUS_OK;
    }
    if (item->where % N_WAYS == DISK)
        return stw_bound_read_disk(s->optimizer->bound, item->at + skip, to, bytes, err);
    const stw_held *held = &h->held[source / STW_N_SAVED];
    const uint64_t each = stw_dtype_bits(stw_saved_dtype(
                              h->saved, (stw_saved_kind)(source % STW_N_SAVED), held->tensor)) /
                          8;
    return stw_library_copy_elements(s, item->at + skip / each, bytes / each, false, to, err);
}

/* ---- saves ---- */

static void guard(void *state, uint32_t turn) { stw_saver_wait(state, turn + 1, MOST_WAIT_S); }

/* Steps of the optimizers ask before they change what is not read. */
static void set_guards(stw_saved_t *h, bool on) {
    for (size_t i = 0; i < (size_t)h->n_held * STW_N_SAVED; i++)
        if (h->sources[i].optimizer != NULL)
            stw_bound_set_guard(h->sources[i].optimizer->bound, on ? guard : NULL, h->saver);
}

static stw_status finish_steps(stw_saved_t *h, stw_error *err) {
    const stw_optimizer_t *last = NULL;
    for (size_t i = 0; i < (size_t)h->n_held * STW_N_SAVED; i++) {
        stw_optimizer_t *o = h->sources[i].optimizer;
        if (o == NULL || o == last) continue;
        last = o;
        stw_status status = stw_library_need_process(o->pid, "optimizer", err);
        if (status == STW_STATUS_OK) status = stw_bound_finish(o->bound, NULL, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

static stw_status make_texts(stw_saved_t *h, const stw_save_options_t *o, const stw_save_head *head,
                             stw_save_text *texts, uint32_t *n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_manifest m = {.pool = h->save_pool,
                      .save = head->save,
                      .step = head->step,
                      .world = h->world,
                      .model = h->model.model_type,
                      .n_tensors = h->model.n_tensors,
                      .params = h->model.params,
                      .n_groups = o->n_groups};
    for (uint32_t g = 0; g < o->n_groups; g++) {
        m.lr[g] = o->learning_rates != NULL ? o->learning_rates[g] : 0;
        m.weight_decay[g] = o->weight_decays != NULL ? o->weight_decays[g] : 0;
    }
    STW_TRY(stw_manifest_take_terms(&m, o->terms != NULL ? o->terms : "", err));
    STW_TRY(stw_save_texts(h->save_pool, &m, h->saved, o->config, texts, n, err));
out:
    return status;
}

/* The save before: its failure is told. */
static stw_status end_save(stw_saved_t *h, stw_saver_result *result, stw_error *err) {
    *result = (stw_saver_result){0};
    if (h->saver == NULL || !h->saving) return STW_STATUS_OK;
    h->saving = false;
    stw_status status = stw_saver_finish(h->saver, result, err);
    set_guards(h, false);
    return status;
}

void stw_free_saved(stw_saved_t *saved) {
    if (saved == NULL) return;
    if (saved->pid == (long)getpid()) {
        stw_saver_result result;
        /* a failure is nobody's any more; steps must not ask a saver that is gone */
        if (end_save(saved, &result, NULL) != STW_STATUS_OK) saved->saving = false;
        stw_saver_free(saved->saver);
    }
    stw_saved_free(saved->saved);
    stw_pool_free(saved->save_pool);
    stw_pool_free(saved->pool);
    free(saved);
}

static stw_status begin(stw_saved_t *h, const stw_save_options_t *o,
                        const stw_save_source_t *sources, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_save_text texts[STW_SAVE_TEXTS];
    STW_TRY(stw_library_take_sources(h, sources, n, err));
    STW_TRY(finish_steps(h, err));
    stw_pool_free(h->save_pool);
    h->save_pool = stw_pool_new();
    if (h->save_pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(find_items(h, err));
    if (h->saver == NULL) {
        const stw_saver_options options = {.saved = h->saved,
                                           .rank = h->rank,
                                           .world = h->world,
                                           .bucket_bytes = h->bucket_bytes,
                                           .copies_bytes = h->copies_bytes};
        STW_TRY(stw_saver_new(&options, &h->saver, err));
    }
    stw_save_head head = {.folder = stw_pool_string(h->save_pool, o->folder),
                          .keep = o->keep,
                          .step = o->step,
                          .save = stw_save_name(o->number, o->step),
                          .texts = texts,
                          .items = h->items,
                          .n_items = h->n_items,
                          .n_now = h->n_now,
                          .read = read_item,
                          .state = h};
    if (head.folder == NULL) STW_TRY(no_memory(err));
    if (h->rank == 0) {
        if (!h->tidied) stw_checkpoint_tidy(head.folder, head.save);
        h->tidied = true;
        STW_TRY(make_texts(h, o, &head, texts, &head.n_texts, err));
    }
    set_guards(h, true);
    status = stw_saver_begin(h->saver, &head, err);
    h->saving = status == STW_STATUS_OK;
    if (!h->saving) set_guards(h, false);
out:
    return status;
}

static stw_status need(const stw_saved_t *saved, stw_error *err) {
    stw_status status = stw_library_need(saved, "saved", err);
    return status == STW_STATUS_OK ? stw_library_need_process(saved->pid, "saved", err) : status;
}

stw_status_t stw_begin_save(stw_saved_t *saved, const stw_save_options_t *options, size_t size,
                            const stw_save_source_t *sources, uint32_t n, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_save_options_t mine = {0};
    stw_saver_result before;
    STW_TRY(need(saved, err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_save_options_t, config), err));
    STW_TRY(stw_library_need(mine.folder, "folder", err));
    if (n > 0) STW_TRY(stw_library_need(sources, "sources", err));
    if (mine.n_groups > STOWAGE_PARAM_GROUPS)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "n_groups", "found %u, expected at most %d",
                         mine.n_groups, STOWAGE_PARAM_GROUPS));
    STW_TRY(end_save(saved, &before, err));
    STW_TRY(begin(saved, &mine, sources, n, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_wait_read(stw_saved_t *saved, stw_error_t *error) {
    stw_error *err = stw_library_begin(error);
    stw_status status = need(saved, err);
    /* the caller's memory has turn 0, before all state of optimizers */
    if (status == STW_STATUS_OK && saved->saver != NULL) stw_saver_wait(saved->saver, 0, 1e9);
    return stw_library_end(status, error);
}

int stw_is_saving(stw_saved_t *saved) {
    return saved != NULL && saved->pid == (long)getpid() && saved->saver != NULL &&
           stw_saver_is_busy(saved->saver);
}

stw_status_t stw_finish_save(stw_saved_t *saved, stw_save_result_t *out, size_t size,
                             stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_saver_result result = {0};
    STW_TRY(need(saved, err));
    status = end_save(saved, &result, err);
    const stw_save_result_t mine = {.bytes = result.bytes,
                                    .seconds = result.seconds,
                                    .begin_seconds = result.begin_s,
                                    .stall_seconds = result.stall_s,
                                    .complete = result.published};
    stw_library_copy(out, size, &mine, sizeof mine);
out:
    return stw_library_end(status, error);
}
