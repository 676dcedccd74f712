/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/checkpoint/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

typedef struct finder {
    const stw_checkpoint *c;
    stw_safetensors **sets; /* [manifest.n_files] */
} finder;

static stw_status no_memory(const finder *f, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, f->c->path, "out of memory");
}

static const stw_safetensors_entry *find(const finder *f, const char *name, uint32_t *file) {
    const stw_safetensors_entry *entry = NULL;
    for (*file = 0; *file < f->c->manifest.n_files; ++*file) {
        entry = stw_safetensors_find(f->sets[*file], name);
        if (entry != NULL) return entry;
    }
    return NULL;
}

/* What saves write; of others nobody asks how wide their elements are. */
static stw_status check_dtype(const finder *f, const stw_safetensors_entry *e, stw_error *err) {
    if (e->dtype == STW_DTYPE_F32 || e->dtype == STW_DTYPE_BF16 || e->dtype == STW_DTYPE_F16)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, f->c->path,
                    "tensor %.200s: found dtype %s, expected F32, BF16 or F16", e->name,
                    stw_dtype_name(e->dtype));
}

/* Kinds and dtypes, by one tensor of each. */
static stw_status look(const finder *f, const stw_model *model, stw_saved_options *options,
                       stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t file;
    for (uint32_t k = 1; k < STW_N_SAVED; k++)
        for (uint32_t t = 0; t < model->n_tensors && (options->kinds & 1u << k) == 0; t++) {
            char name[1200];
            snprintf(name, sizeof name, "%s.%s", stw_saved_name((stw_saved_kind)k),
                     model->tensors[t].name);
            const stw_safetensors_entry *e = find(f, name, &file);
            if (e == NULL) continue;
            STW_TRY(check_dtype(f, e, err));
            options->kinds |= 1u << k;
            options->dtypes[k] = e->dtype;
        }
    for (uint32_t n = 0; n < f->c->manifest.n_files; n++)
        if (strncmp(f->c->manifest.files[n].name, "model-", 6) == 0) options->kinds |= 1;
out:
    return status;
}

/* dtypes of parameters: each tensor's own. */
static stw_status look_at_params(const finder *f, const stw_model *model,
                                 stw_saved_options *options, stw_dtype *dtypes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *names = NULL;
    uint32_t file, n;
    const stw_saved_options only = {.kinds = 1, .dtypes = {STW_DTYPE_BF16}};
    if ((options->kinds & 1u) == 0) return STW_STATUS_OK;
    STW_TRY(stw_saved_make(model, &only, &names, err));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_saved_part *parts = stw_saved_parts(names, STW_SAVED_PARAMS, t, &n);
        const char *name = n > 0 ? names->entries[parts[0].entry].name : model->tensors[t].name;
        const stw_safetensors_entry *e = find(f, name, &file);
        if (e == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, f->c->path,
                             "holds no tensor %.200s of the model", name));
        STW_TRY(check_dtype(f, e, err));
        dtypes[t] = e->dtype;
    }
    options->params = dtypes;
out:
    stw_saved_free(names);
    return status;
}

/* Where the checkpoint has it. */
static stw_status place(const finder *f, stw_saved_entry *entry, stw_error *err) {
    const stw_safetensors_entry *e = find(f, entry->name, &entry->file);
    bool same = e != NULL && e->dtype == entry->dtype && e->rank == entry->rank;
    for (uint32_t d = 0; same && d < e->rank; d++) same = e->shape[d] == entry->shape[d];
    if (e == NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->c->path,
                        "holds no tensor %.200s of the model", entry->name);
    if (!same)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->c->path,
                        "tensor %.200s: found dtype %s, %u dimensions and %llu bytes, expected %s, "
                        "%u and %llu",
                        entry->name, stw_dtype_name(e->dtype), e->rank,
                        (unsigned long long)e->bytes, stw_dtype_name(entry->dtype), entry->rank,
                        (unsigned long long)entry->bytes);
    entry->offset = e->offset_bytes;
    return STW_STATUS_OK;
}

static stw_status stored(const finder *f, const stw_model *model, const bool *frozen,
                         stw_saved_files **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *saved = NULL;
    stw_saved_options options = {.frozen = frozen};
    stw_dtype *dtypes = calloc((size_t)model->n_tensors + 1, sizeof *dtypes);
    if (dtypes == NULL) STW_TRY(no_memory(f, err));
    STW_TRY(look(f, model, &options, err));
    STW_TRY(look_at_params(f, model, &options, dtypes, err));
    STW_TRY(stw_saved_make(model, &options, &saved, err));
    for (uint32_t e = 0; e < saved->n_entries; e++) STW_TRY(place(f, &saved->entries[e], err));
    *out = saved;
    saved = NULL;
out:
    free(dtypes);
    stw_saved_free(saved);
    return status;
}

stw_status stw_checkpoint_stored(const stw_checkpoint *checkpoint, const stw_model *model,
                                 const bool *frozen, stw_saved_files **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = checkpoint->manifest.n_files;
    finder f = {.c = checkpoint, .sets = calloc((size_t)n + 1, sizeof *f.sets)};
    *out = NULL;
    if (f.sets == NULL) return no_memory(&f, err);
    for (uint32_t i = 0; i < n; i++) STW_TRY(stw_checkpoint_header(checkpoint, i, &f.sets[i], err));
    STW_TRY(stored(&f, model, frozen, out, err));
out:
    for (uint32_t i = 0; i < n; i++) stw_safetensors_free(f.sets[i]);
    free(f.sets);
    return status;
}

stw_status stw_stored_any_rank(const stw_saved_files *stored, stw_saved_kind kind, uint32_t tensor,
                               stw_load_needs *needs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n, last = UINT32_MAX;
    const stw_saved_part *parts = stw_saved_parts(stored, kind, tensor, &n);
    for (uint32_t i = 0; i < n; i++) {
        const stw_saved_entry *e = &stored->entries[parts[i].entry];
        if (parts[i].entry == last || e->bytes == 0) continue;
        last = parts[i].entry;
        STW_TRY(stw_load_needs_add(
            needs,
            &(stw_load_need){
                .file = e->file, .offset = e->offset, .bytes = e->bytes, .who = STW_LOAD_ANY_RANK},
            err));
    }
out:
    return status;
}
