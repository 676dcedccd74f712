/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint says about itself: a manifest (begins with a brace), or a marker, which also
 * gets the hash that it needs to be read. What is read is written, and read again as the same; the
 * buckets of a marker have every byte of their files once, or are refused. */
#include <stdlib.h>
#include <string.h>

#include "backend/checkpoint/cover.h"
#include "core/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MOST_ROWS 1000000u /* of cases that are gone through */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool holds) {
    if (!holds) abort();
}

static void told(stw_status status, const stw_error *err) {
    expect(status == STW_STATUS_OK || err->text[0] != '\0');
    expect(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT ||
           status == STW_STATUS_DISAGREE);
}

static void read_manifest(const char *text, size_t length) {
    stw_error err = STW_ERROR_INIT;
    stw_pool *pool = stw_pool_new();
    stw_manifest m, again;
    stw_text first = STW_TEXT_INIT, second = STW_TEXT_INIT;
    const stw_status status = stw_manifest_read("stowage.json", text, length, pool, &m, &err);
    told(status, &err);
    if (status == STW_STATUS_OK) {
        for (uint32_t f = 0; f < m.n_files; f++) expect(stw_saved_file_name(m.files[f].name));
        expect(m.n_groups <= STW_SAVED_GROUPS && m.n_files <= STW_SAVED_MOST_FILES);
        expect(stw_manifest_write(&m, &first, NULL) == STW_STATUS_OK);
        expect(stw_manifest_read("again", first.data, first.length, pool, &again, NULL) ==
               STW_STATUS_OK);
        expect(stw_manifest_write(&again, &second, NULL) == STW_STATUS_OK);
        expect(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
    }
    stw_text_free(&first);
    stw_text_free(&second);
    stw_pool_free(pool);
}

/* Files as long as the marker's buckets of them. */
static void check_cover(stw_marker *m) {
    stw_error err = STW_ERROR_INIT;
    stw_checkpoint c = {.pool = m->pool, .path = "fuzz", .manifest = {.world = 1}, .markers = m};
    stw_covered *files = stw_pool_array(m->pool, (size_t)m->n_files + 1, sizeof *files);
    uint64_t n_rows = 0, covered = 0, stated = 0;
    expect(files != NULL);
    for (uint32_t f = 0; f < m->n_files; f++) files[f].name = m->files[f];
    for (uint32_t b = 0; b < m->n_buckets; b++) {
        stw_covered *file = &files[m->buckets[b].file];
        file->bytes = stw_plus(file->bytes, m->buckets[b].bytes);
    }
    for (uint32_t e = 0; e < m->n_extents; e++) n_rows = stw_plus(n_rows, m->extents[e].count);
    if (n_rows > MOST_ROWS) return;
    const stw_status status = stw_checkpoint_cover(&c, files, m->n_files, &err);
    told(status, &err);
    /* by the sizes alone: the largest end of a row is that of its file */
    for (uint32_t f = 0; f < m->n_files; f++) stated = stw_plus(stated, files[f].bytes);
    for (uint32_t b = 0; status == STW_STATUS_OK && b < m->n_buckets; b++)
        for (uint32_t i = 0; i < m->buckets[b].n_extents; i++) {
            const stw_marked_extent *x = &m->extents[m->buckets[b].first_extent + i];
            expect(x->offset + (x->count - 1) * x->stride + x->bytes <=
                   files[m->buckets[b].file].bytes);
            covered += x->bytes * x->count;
        }
    expect(status != STW_STATUS_OK || covered == stated);
}

static void read_marker(const char *text, size_t length) {
    stw_error err = STW_ERROR_INIT;
    stw_pool *pool = stw_pool_new();
    stw_marker m, again;
    stw_text out = STW_TEXT_INIT;
    stw_marker_init(&m, pool);
    stw_marker_init(&again, pool);
    const stw_status status = stw_marker_read("rank-00000.done", text, length, &m, &err);
    told(status, &err);
    if (status == STW_STATUS_OK) {
        expect(m.rank < m.world && m.world <= STW_SAVED_MOST_RANKS);
        for (uint32_t f = 0; f < m.n_files; f++) expect(stw_saved_file_name(m.files[f]));
        for (uint32_t b = 0; b < m.n_buckets; b++)
            expect(m.buckets[b].file < m.n_files && m.buckets[b].n_extents > 0 &&
                   m.buckets[b].first_extent + m.buckets[b].n_extents <= m.n_extents);
        expect(stw_marker_write(&m, &out, NULL) == STW_STATUS_OK);
        expect(stw_marker_read("again", out.data, out.length, &again, NULL) == STW_STATUS_OK);
        expect(again.n_buckets == m.n_buckets && again.n_extents == m.n_extents &&
               again.n_files == m.n_files && again.save == m.save && again.step == m.step);
        check_cover(&m);
    }
    stw_text_free(&out);
    stw_pool_free(pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    stw_text hashed = STW_TEXT_INIT;
    if (size > 0 && text[0] == '{') {
        read_manifest(text, size);
        return 0;
    }
    read_marker(text, size);
    stw_text_append(&hashed, text, size);
    if (size > 0 && text[size - 1] != '\n') stw_text_append(&hashed, "\n", 1);
    stw_text_printf(&hashed, "xxh3 %016llx\n",
                    (unsigned long long)XXH3_64bits(hashed.data, hashed.length));
    read_marker(hashed.data, hashed.length);
    stw_text_free(&hashed);
    return 0;
}
