/* SPDX-License-Identifier: Apache-2.0 */
/* Reading manifest and markers of a checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/checkpoint/cover.h"
#include "backend/nvme/sum.h"
#include "core/checked.h"
#include "core/file.h"

#define MOST_BYTES (1ull << 30) /* of a manifest or a marker */

typedef struct opener {
    stw_checkpoint *c;
    char file[STW_CHECKPOINT_PATH + 64];
    char *text;
    uint64_t length;
} opener;

static stw_status no_memory(const opener *o, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, o->c->path, "out of memory");
}

static stw_status read_file(opener *o, const char *name, const char *lacks, stw_error *err) {
    free(o->text);
    o->text = NULL;
    snprintf(o->file, sizeof o->file, "%s/%s", o->c->path, name);
    if (!stw_file_exists(o->file))
        return stw_fail(err, STW_STATUS_BAD_INPUT, o->c->path, "%s (%s)", lacks, name);
    return stw_file_read(o->file, MOST_BYTES, &o->text, &o->length, err);
}

/* The manifest has the hash that rank 0's marker states. */
static stw_status check_manifest(opener *o, stw_error *err) {
    const stw_marker *m = &o->c->markers[0];
    const uint64_t hash = stw_nvme_sum(o->text, o->length);
    for (uint32_t b = 0; b < m->n_buckets; b++) {
        const stw_marked_bucket *bucket = &m->buckets[b];
        if (strcmp(m->files[bucket->file], STW_MANIFEST_NAME) != 0) continue;
        if (bucket->hash == hash && bucket->bytes == o->length) return STW_STATUS_OK;
        return stw_fail(err, STW_STATUS_DISAGREE, o->file,
                        "is damaged: its %" PRIu64 " bytes have hash %016" PRIx64
                        ", expected %" PRIu64 " bytes with %016" PRIx64,
                        o->length, hash, bucket->bytes, bucket->hash);
    }
    return stw_fail(err, STW_STATUS_DISAGREE, o->c->path, "rank 0's marker lists no manifest");
}

/* BAD_INPUT says that something is not there, and a reader then takes an older checkpoint. What is
 * there and says what this version does not understand is no such case. */
static stw_status understood(stw_status status, stw_error *err) {
    if (status != STW_STATUS_BAD_INPUT) return status;
    if (err != NULL && err->status == status) err->status = STW_STATUS_DISAGREE;
    return STW_STATUS_DISAGREE;
}

static stw_status read_marker(opener *o, uint32_t rank, stw_marker *m, stw_error *err) {
    char name[32], lacks[80];
    stw_marker_name(rank, name);
    snprintf(lacks, sizeof lacks, "is not complete: rank %u did not end its save", rank);
    stw_status status = read_file(o, name, lacks, err);
    stw_marker_init(m, o->c->pool);
    if (status != STW_STATUS_OK) return status;
    return understood(stw_marker_read(o->file, o->text, (size_t)o->length, m, err), err);
}

/* Of the save of which rank 0's marker is. */
static stw_status check_save(const opener *o, const stw_marker *m, uint32_t rank, stw_error *err) {
    const stw_marker *of = &o->c->markers[0];
    if (m->save == of->save && m->step == of->step && m->rank == rank && m->world == of->world)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, o->file,
                    "found rank %u of %u, step %" PRIu64 ", save %016" PRIx64
                    "; expected rank %u of %u, step %" PRIu64 ", save %016" PRIx64,
                    m->rank, m->world, m->step, m->save, rank, of->world, of->step, of->save);
}

/* How long a file is; it may be a link. */
static stw_status examine(opener *o, const char *name, uint64_t *bytes, stw_error *err) {
    struct stat info;
    snprintf(o->file, sizeof o->file, "%s/%s", o->c->path, name);
    if (stat(o->file, &info) != 0)
        return stw_fail(err, STW_STATUS_DISAGREE, o->file, "is missing or cannot be read: %s",
                        strerror(errno));
    if (!S_ISREG(info.st_mode))
        return stw_fail(err, STW_STATUS_DISAGREE, o->file, "is no file of bytes");
    *bytes = (uint64_t)info.st_size;
    return STW_STATUS_OK;
}

/* Bytes of a small file of rank 0. */
static uint64_t marked_bytes(const stw_marker *m, uint32_t file) {
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < m->n_buckets; b++)
        if (m->buckets[b].file == file) bytes = stw_plus(bytes, m->buckets[b].bytes);
    return bytes;
}

static bool is_listed(const stw_manifest *m, const char *name) {
    for (uint32_t f = 0; f < m->n_files; f++)
        if (strcmp(m->files[f].name, name) == 0) return true;
    return false;
}

/* Files are there, as long as stated, and have every byte in one bucket. */
static stw_status check_files(opener *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_manifest *manifest = &o->c->manifest;
    const stw_marker *first = &o->c->markers[0]; /* rank 0 writes files without tensors, too */
    const size_t most = (size_t)manifest->n_files + first->n_files;
    stw_covered *files = stw_pool_array(o->c->pool, most + 1, sizeof *files);
    uint32_t n = 0;
    if (files == NULL) STW_TRY(no_memory(o, err));
    for (uint32_t f = 0; f < manifest->n_files; f++)
        files[n++] = (stw_covered){manifest->files[f].name, manifest->files[f].bytes};
    for (uint32_t f = 0; f < n; f++) o->c->bytes = stw_plus(o->c->bytes, files[f].bytes);
    for (uint32_t f = 0; f < first->n_files; f++)
        if (!is_listed(manifest, first->files[f]))
            files[n++] = (stw_covered){first->files[f], marked_bytes(first, f)};
    for (uint32_t f = 0; f < n; f++) {
        uint64_t bytes = 0;
        STW_TRY(examine(o, files[f].name, &bytes, err));
        if (bytes != files[f].bytes)
            STW_TRY(stw_fail(err, STW_STATUS_DISAGREE, o->file,
                             "found %" PRIu64 " bytes, expected %" PRIu64, bytes, files[f].bytes));
    }
    STW_TRY(stw_checkpoint_cover(o->c, files, n, err));
out:
    return status;
}

static stw_status read_manifest(opener *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_manifest *m = &o->c->manifest;
    snprintf(o->file, sizeof o->file, "%s/" STW_MANIFEST_NAME, o->c->path);
    if (!stw_file_exists(o->file))
        STW_TRY(stw_fail(err, STW_STATUS_DISAGREE, o->file,
                         "is missing; expected a manifest of step %" PRIu64,
                         o->c->markers[0].step));
    STW_TRY(read_file(o, STW_MANIFEST_NAME, "is not complete: it has no manifest", err));
    STW_TRY(check_manifest(o, err));
    STW_TRY(understood(stw_manifest_read(o->file, o->text, (size_t)o->length, o->c->pool, m, err),
                       err));
    const stw_marker same = {.save = m->save, .step = m->step, .rank = 0, .world = m->world};
    STW_TRY(check_save(o, &same, 0, err));
out:
    return status;
}

static stw_status read_all(opener *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_checkpoint *c = o->c;
    stw_marker first;
    STW_TRY(read_marker(o, 0, &first, err));
    c->markers = stw_pool_array(c->pool, first.world, sizeof *c->markers);
    if (c->markers == NULL) STW_TRY(no_memory(o, err));
    c->markers[0] = first;
    STW_TRY(check_save(o, &first, 0, err));
    STW_TRY(read_manifest(o, err));
    for (uint32_t r = 1; r < first.world; r++) {
        STW_TRY(read_marker(o, r, &c->markers[r], err));
        STW_TRY(check_save(o, &c->markers[r], r, err));
    }
    STW_TRY(check_files(o, err));
out:
    return status;
}

stw_status stw_checkpoint_open(const char *path, stw_checkpoint **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    opener *o = pool != NULL ? stw_pool_alloc(pool, sizeof *o) : NULL;
    *out = NULL;
    if (o != NULL) o->c = stw_pool_alloc(pool, sizeof *o->c);
    if (o == NULL || o->c == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    }
    o->c->pool = pool;
    if ((size_t)snprintf(o->c->path, sizeof o->c->path, "%s", path) >= sizeof o->c->path)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, path,
                         "the path is too long: expected fewer than %d bytes",
                         STW_CHECKPOINT_PATH));
    STW_TRY(read_all(o, err));
    *out = o->c;
out:
    free(o->text);
    if (status != STW_STATUS_OK) stw_pool_free(pool);
    return status;
}

void stw_checkpoint_close(stw_checkpoint *checkpoint) {
    if (checkpoint != NULL) stw_pool_free(checkpoint->pool);
}
