/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job of the caller's: opening, verifying and loading them. */
#include <stdlib.h>
#include <string.h>

#include "backend/checkpoint/load.h"
#include "backend/checkpoint/stored.h"
#include "backend/host/kernels.h"
#include "core/checked.h"
#include "library/saved.h"

struct stw_checkpoint_t {
    stw_checkpoint *checkpoint;
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

stw_status_t stw_open_checkpoint(const char *path, stw_checkpoint_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_checkpoint_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_library_need(out, "out", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_checkpoint_newest(path, &handle->checkpoint, err));
    *out = handle;
    handle = NULL;
out:
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_checkpoint(stw_checkpoint_t *checkpoint) {
    if (checkpoint == NULL) return;
    stw_checkpoint_close(checkpoint->checkpoint);
    free(checkpoint);
}

void stw_get_checkpoint_info(const stw_checkpoint_t *checkpoint, stw_checkpoint_info_t *out,
                             size_t size) {
    stw_checkpoint_info_t info = {.path = ""};
    if (checkpoint != NULL) {
        const stw_checkpoint *c = checkpoint->checkpoint;
        info = (stw_checkpoint_info_t){.path = c->path,
                                       .step = c->manifest.step,
                                       .save = c->manifest.save,
                                       .bytes = c->bytes,
                                       .world = c->manifest.world,
                                       .terms = c->manifest.n_terms,
                                       .groups = c->manifest.n_groups,
                                       .files = c->manifest.n_files};
    }
    stw_library_copy(out, size, &info, sizeof info);
}

int stw_get_checkpoint_term(const stw_checkpoint_t *checkpoint, uint32_t i, const char **key,
                            const char **value) {
    if (checkpoint == NULL || i >= checkpoint->checkpoint->manifest.n_terms) return 0;
    const stw_saved_term *t = &checkpoint->checkpoint->manifest.terms[i];
    if (key != NULL) *key = t->key;
    if (value != NULL) *value = t->value;
    return 1;
}

int stw_get_checkpoint_group(const stw_checkpoint_t *checkpoint, uint32_t i, double *learning_rate,
                             double *weight_decay) {
    if (checkpoint == NULL || i >= checkpoint->checkpoint->manifest.n_groups) return 0;
    if (learning_rate != NULL) *learning_rate = checkpoint->checkpoint->manifest.lr[i];
    if (weight_decay != NULL) *weight_decay = checkpoint->checkpoint->manifest.weight_decay[i];
    return 1;
}

int stw_get_checkpoint_file(const stw_checkpoint_t *checkpoint, uint32_t i, const char **name,
                            uint64_t *bytes, int *model) {
    if (checkpoint == NULL || i >= checkpoint->checkpoint->manifest.n_files) return 0;
    const stw_manifest *m = &checkpoint->checkpoint->manifest;
    if (name != NULL) *name = m->files[i].name;
    if (bytes != NULL) *bytes = m->files[i].bytes;
    if (model != NULL) *model = strncmp(m->files[i].name, "model-", 6) == 0;
    return 1;
}

stw_status_t stw_verify_checkpoint(const stw_checkpoint_t *checkpoint, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_checkpoint_damage *damage = calloc(1, sizeof *damage);
    STW_TRY(stw_library_need(checkpoint, "checkpoint", err));
    if (damage == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_checkpoint_verify(checkpoint->checkpoint, NULL, NULL, damage, err));
    if (damage->damaged > 0)
        status = stw_fail(err, STW_STATUS_DISAGREE, checkpoint->checkpoint->path,
                          "%llu parts are damaged; the first: %.600s",
                          (unsigned long long)damage->damaged, damage->first);
out:
    free(damage);
    return stw_library_end(status, error);
}

/* ---- loading ---- */

#define SCRATCH_ELEMENTS (64u << 10)

typedef struct collector {
    const stw_checkpoint *checkpoint;
    stw_saved_t *h;
    stw_saved_files *stored;
    stw_saved_kind from[STW_N_SAVED];
    stw_load_who who;
    uint32_t target; /* in h->sources */
    stw_load_needs needs;
    unsigned char *scratch;
} collector;

/* What each kind is made of. */
static stw_status find_kinds(collector *c, stw_error *err) {
    const uint32_t wanted = c->h->saved->kinds, has = c->stored->kinds;
    for (uint32_t k = 0; k < STW_N_SAVED; k++) {
        c->from[k] = (stw_saved_kind)k;
        if ((wanted & 1u << k) == 0 || (has & 1u << k) != 0) continue;
        if (k != STW_SAVED_MASTER || (has & 1u) == 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, c->checkpoint->path,
                            "found no %s, which the job needs", stw_saved_name((stw_saved_kind)k));
        c->from[k] = STW_SAVED_PARAMS;
    }
    return STW_STATUS_OK;
}

/* Of F32 parameters without a master in the job the checkpoint's master has all bits. */
static stw_saved_kind kind_for(const collector *c, uint32_t kind, uint32_t tensor) {
    const bool master = (c->stored->kinds & 1u << STW_SAVED_MASTER) != 0;
    if (kind == STW_SAVED_PARAMS && master && c->stored->trains[tensor] &&
        (c->h->saved->kinds & 1u << STW_SAVED_MASTER) == 0 && c->h->dtypes[tensor] == STW_DTYPE_F32)
        return STW_SAVED_MASTER;
    return c->from[kind];
}

static stw_element element_of(stw_dtype dtype) {
    return dtype == STW_DTYPE_F32    ? STW_ELEMENT_F32
           : dtype == STW_DTYPE_BF16 ? STW_ELEMENT_BF16
                                     : STW_ELEMENT_NONE;
}

/* Values are converted to fp32 and bf16 alone. */
static stw_status check_dtypes(const collector *c, stw_error *err) {
    for (uint32_t t = 0; t < c->h->model.n_tensors; t++)
        for (uint32_t k = 0; k < STW_N_SAVED; k++) {
            if ((c->h->saved->kinds & 1u << k) == 0 || (k > 0 && c->h->frozen[t])) continue;
            const stw_dtype found = stw_saved_dtype(c->stored, kind_for(c, k, t), t);
            const stw_dtype wanted = stw_saved_dtype(c->h->saved, (stw_saved_kind)k, t);
            if (found != wanted && element_of(wanted) == STW_ELEMENT_NONE)
                return stw_fail(err, STW_STATUS_NOT_BUILT_IN, c->h->model.tensors[t].name,
                                "found %s in the checkpoint, which is not converted to %s",
                                stw_dtype_name(found), stw_dtype_name(wanted));
        }
    return STW_STATUS_OK;
}

static stw_status add_need(void *state, const stw_saved_row *row, stw_error *err) {
    collector *c = state;
    const stw_saved_entry *entry = &c->stored->entries[row->entry];
    const stw_load_need need = {.file = entry->file,
                                .offset = row->offset,
                                .bytes = row->bytes,
                                .where = c->target * STW_N_DTYPES + (uint32_t)entry->dtype,
                                .at = row->first,
                                .who = c->who};
    return stw_load_needs_add(&c->needs, &need, err);
}

/* Elements of a target, as it stores them. */
static stw_status put(const stw_save_source_t *s, uint64_t first, uint64_t n, uint64_t each,
                      const void *from, stw_error *err) {
    if (s->address == NULL)
        return stw_library_copy_elements(s, first, n, true, (void *)(uintptr_t)from, err);
    memcpy((unsigned char *)s->address + stw_times(first, each), from, (size_t)stw_times(n, each));
    return STW_STATUS_OK;
}

static stw_status place(void *state, const stw_load_need *need, uint64_t skip, const void *from,
                        uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    collector *c = state;
    const uint32_t target = need->where / STW_N_DTYPES;
    const stw_dtype dtype = (stw_dtype)(need->where % STW_N_DTYPES);
    const uint32_t tensor = c->h->held[target / STW_N_SAVED].tensor;
    const stw_dtype wanted =
        stw_saved_dtype(c->h->saved, (stw_saved_kind)(target % STW_N_SAVED), tensor);
    const uint64_t each = stw_dtype_bits(dtype) / 8, own = stw_dtype_bits(wanted) / 8;
    const uint64_t first = need->at + skip / each, n = bytes / each;
    const stw_save_source_t *s = &c->h->sources[target];
    if (skip % each != 0 || bytes % each != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, c->checkpoint->path, "a bucket cuts an element");
    if (dtype == wanted) return put(s, first, n, own, from, err);
    for (uint64_t done = 0, some = 0; done < n; done += some) {
        some = stw_min_u64(n - done, SCRATCH_ELEMENTS);
        stw_host_convert(NULL, c->scratch, element_of(wanted),
                         (const unsigned char *)from + stw_times(done, each), dtype, some);
        STW_TRY(put(s, first + done, some, own, c->scratch, err));
    }
out:
    return status;
}

static const stw_save_source_t *source_of(const collector *c, uint32_t piece, uint32_t kind) {
    return &c->h->sources[(size_t)piece * STW_N_SAVED + kind];
}

/* What the ranks of the job read between them: what all hold of this kind, unless this rank leaves
 * the kind out, as then the others do. */
static stw_status add_any_rank(collector *c, uint32_t kind, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_saved_t *h = c->h;
    for (uint32_t p = 0; p < h->n_held; p++)
        if (h->held[p].rank == h->rank && (h->held[p].kinds & 1u << kind) != 0 &&
            stw_box_volume(&h->held[p].box) > 0 && source_of(c, p, kind)->component == NULL)
            return STW_STATUS_OK;
    for (uint32_t t = 0; t < h->model.n_tensors; t++)
        if (kind == STW_SAVED_PARAMS || !h->frozen[t])
            STW_TRY(stw_stored_any_rank(c->stored, kind_for(c, kind, t), t, &c->needs, err));
out:
    return status;
}

/* A master that is made of the parameters has their bytes, too. */
static stw_status add_kind(collector *c, uint32_t kind, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    c->who = c->from[kind] == (stw_saved_kind)kind ? STW_LOAD_HERE : STW_LOAD_HERE_TOO;
    for (uint32_t p = 0; p < c->h->n_held; p++) {
        if (source_of(c, p, kind)->component == NULL) continue;
        const stw_held *held = &c->h->held[p];
        stw_saved_source source =
            stw_library_in_piece(c->h, p, kind_for(c, kind, held->tensor), &held->box);
        c->target = p * STW_N_SAVED + kind;
        STW_TRY(stw_saved_rows(c->stored, &source, add_need, c, err));
    }
    if ((c->h->saved->kinds & 1u << kind) != 0) STW_TRY(add_any_rank(c, kind, err));
out:
    return status;
}

/* What the checkpoint has for the job. The caller frees `stored`. */
static stw_status look(collector *c, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_checkpoint_stored(c->checkpoint, &c->h->model, c->h->frozen, &c->stored, err));
    STW_TRY(find_kinds(c, err));
    STW_TRY(check_dtypes(c, err));
out:
    return status;
}

static stw_status load(const stw_checkpoint *checkpoint, stw_saved_t *h, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    collector c = {.checkpoint = checkpoint, .h = h};
    c.scratch = malloc(SCRATCH_ELEMENTS * sizeof(float));
    if (c.scratch == NULL) STW_TRY(no_memory(err));
    STW_TRY(look(&c, err));
    for (uint32_t k = 0; k < STW_N_SAVED; k++) STW_TRY(add_kind(&c, k, err));
    const stw_load_options options = {.needs = c.needs.all,
                                      .n_needs = c.needs.n,
                                      .place = place,
                                      .state = &c,
                                      .one_thread = true,
                                      .part = h->rank,
                                      .parts = h->world};
    STW_TRY(stw_checkpoint_load(checkpoint, &options, err));
out:
    stw_saved_free(c.stored);
    free(c.needs.all);
    free(c.scratch);
    return status;
}

stw_status_t stw_check_checkpoint(const stw_checkpoint_t *checkpoint, stw_saved_t *saved,
                                  stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    collector c = {.h = saved};
    STW_TRY(stw_library_need(checkpoint, "checkpoint", err));
    STW_TRY(stw_library_need(saved, "saved", err));
    c.checkpoint = checkpoint->checkpoint;
    STW_TRY(look(&c, err));
out:
    stw_saved_free(c.stored);
    return stw_library_end(status, error);
}

stw_status_t stw_load_checkpoint(const stw_checkpoint_t *checkpoint, stw_saved_t *saved,
                                 const stw_save_source_t *targets, uint32_t n, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(stw_library_need(checkpoint, "checkpoint", err));
    STW_TRY(stw_library_need(saved, "saved", err));
    STW_TRY(stw_library_need_process(saved->pid, "saved", err));
    if (n > 0) STW_TRY(stw_library_need(targets, "targets", err));
    if (saved->saving)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "saved",
                         "a save is under way; expected stw_finish_save before a load"));
    STW_TRY(stw_library_take_sources(saved, targets, n, err));
    STW_TRY(load(checkpoint->checkpoint, saved, err));
out:
    return stw_library_end(status, error);
}
