/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/checkpoint/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define HEAD "stowage.checkpoint-rank/1"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

void stw_marker_name(uint32_t rank, char out[32]) { snprintf(out, 32, "rank-%05u.done", rank); }

void stw_marker_init(stw_marker *marker, stw_pool *pool) { *marker = (stw_marker){.pool = pool}; }

bool stw_saved_file_name(const char *name) {
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strlen(name) <= STW_SAVED_FILE_NAME;
}

static stw_status file_of(stw_marker *m, const char *name, uint32_t *out, stw_error *err) {
    for (*out = m->n_files; *out > 0; --*out)
        if (strcmp(m->files[*out - 1], name) == 0) {
            --*out;
            return STW_STATUS_OK;
        }
    m->files = stw_pool_regrow(m->pool, m->files, m->n_files, m->n_files + 1u, &m->files_room,
                               sizeof *m->files);
    char *copy = stw_pool_string(m->pool, name);
    if (m->files == NULL || copy == NULL) return no_memory(err);
    *out = m->n_files;
    m->files[m->n_files++] = copy;
    return STW_STATUS_OK;
}

stw_status stw_marker_begin(stw_marker *m, const char *file, stw_error *err) {
    stw_marked_bucket bucket = {.first_extent = m->n_extents};
    stw_status status = file_of(m, file, &bucket.file, err);
    if (status != STW_STATUS_OK) return status;
    m->buckets = stw_pool_regrow(m->pool, m->buckets, m->n_buckets, m->n_buckets + 1u,
                                 &m->buckets_room, sizeof *m->buckets);
    if (m->buckets == NULL) return no_memory(err);
    m->buckets[m->n_buckets++] = bucket;
    return STW_STATUS_OK;
}

static stw_status add_extent(stw_marker *m, const stw_marked_extent *extent, stw_error *err) {
    m->extents = stw_pool_regrow(m->pool, m->extents, m->n_extents, m->n_extents + 1u,
                                 &m->extents_room, sizeof *m->extents);
    if (m->extents == NULL) return no_memory(err);
    m->extents[m->n_extents++] = *extent;
    m->buckets[m->n_buckets - 1].n_extents++;
    return STW_STATUS_OK;
}

stw_status stw_marker_add(stw_marker *m, uint64_t offset, uint64_t bytes, stw_error *err) {
    stw_marked_bucket *bucket = &m->buckets[m->n_buckets - 1];
    const stw_marked_extent extent = {offset, bytes, 1, 0};
    bucket->bytes += bytes;
    if (bucket->n_extents > 0) {
        stw_marked_extent *last = &m->extents[m->n_extents - 1];
        if (last->count == 1 && offset == last->offset + last->bytes) {
            last->bytes += bytes;
            return STW_STATUS_OK;
        }
        const bool goes_on = offset > last->offset && bytes == last->bytes;
        if (goes_on && last->count == 1) {
            last->stride = offset - last->offset;
            last->count = 2;
            return STW_STATUS_OK;
        }
        if (goes_on && offset == last->offset + last->count * last->stride) {
            last->count++;
            return STW_STATUS_OK;
        }
    }
    return add_extent(m, &extent, err);
}

stw_status stw_marker_write(const stw_marker *m, stw_text *out, stw_error *err) {
    const size_t begin = out->length;
    stw_text_printf(out, HEAD "\nsave %016" PRIx64 "\nstep %" PRIu64 "\nrank %u of %u\n", m->save,
                    m->step, m->rank, m->world);
    for (uint32_t f = 0; f < m->n_files; f++) stw_text_printf(out, "file %s\n", m->files[f]);
    for (uint32_t b = 0; b < m->n_buckets; b++) {
        const stw_marked_bucket *bucket = &m->buckets[b];
        stw_text_printf(out, "bucket %u %016" PRIx64 "\n", bucket->file, bucket->hash);
        for (uint32_t e = 0; e < bucket->n_extents; e++) {
            const stw_marked_extent *x = &m->extents[bucket->first_extent + e];
            stw_text_printf(out, "bytes %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                            x->offset, x->bytes, x->count, x->stride);
        }
    }
    if (!out->failed)
        stw_text_printf(out, "xxh3 %016" PRIx64 "\n",
                        (uint64_t)XXH3_64bits(out->data + begin, out->length - begin));
    return stw_text_status(out, err);
}

/* ---- reading markers ---- */

typedef struct reader {
    const char *file;
    stw_marker *m;
    unsigned line;
} reader;

static stw_status bad(const reader *r, const char *expected, stw_error *err) {
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, r->file, (int)r->line, 1, "expected %s",
                       expected);
}

/* The last line is the hash of what is before it. */
static stw_status check_hash(const char *file, const char *text, size_t length, size_t *body,
                             stw_error *err) {
    const size_t tail = 5 + 16 + 1;
    uint64_t stated = 0;
    char word[24] = "";
    if (length > tail) memcpy(word, text + length - tail, tail);
    if (length <= tail || text[length - tail - 1] != '\n' || word[tail - 1] != '\n' ||
        sscanf(word, "xxh3 %16" SCNx64, &stated) != 1)
        return stw_fail(err, STW_STATUS_DISAGREE, file,
                        "does not end with the hash of its text: it is torn or damaged");
    *body = length - tail;
    const uint64_t found = XXH3_64bits(text, *body);
    if (found == stated) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, file,
                    "is damaged: its text has hash %016" PRIx64 ", expected %016" PRIx64, found,
                    stated);
}

static stw_status read_bytes(const reader *r, const char *line, stw_error *err) {
    stw_marked_extent x;
    stw_marker *m = r->m;
    if (m->n_buckets == 0 || sscanf(line, "bytes %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                                    &x.offset, &x.bytes, &x.count, &x.stride) != 4)
        return bad(r, "offset, bytes, count and stride of a bucket", err);
    const uint64_t all = stw_times(x.bytes, x.count);
    const uint64_t end = stw_plus(stw_plus(x.offset, x.bytes), stw_times(x.stride, x.count));
    if (x.bytes == 0 || x.count == 0 || all == STW_TOO_LARGE || end == STW_TOO_LARGE ||
        (x.count > 1 && x.stride < x.bytes))
        return bad(r, "rows that are apart", err);
    stw_marked_bucket *bucket = &m->buckets[m->n_buckets - 1];
    bucket->bytes = stw_plus(bucket->bytes, all);
    return add_extent(m, &x, err);
}

static stw_status read_line(const reader *r, const char *line, stw_error *err) {
    stw_marker *m = r->m;
    uint32_t file = 0;
    uint64_t hash = 0;
    if (strncmp(line, "bytes ", 6) == 0) return read_bytes(r, line, err);
    if (strncmp(line, "bucket ", 7) == 0) {
        if (m->n_buckets > 0 && m->buckets[m->n_buckets - 1].n_extents == 0)
            return bad(r, "bytes of the bucket before", err);
        if (sscanf(line, "bucket %" SCNu32 " %" SCNx64, &file, &hash) != 2 || file >= m->n_files)
            return bad(r, "the number of a file and a hash", err);
        stw_status status = stw_marker_begin(m, m->files[file], err);
        if (status == STW_STATUS_OK) m->buckets[m->n_buckets - 1].hash = hash;
        return status;
    }
    if (strncmp(line, "file ", 5) == 0 && m->n_buckets == 0) {
        if (!stw_saved_file_name(line + 5) || m->n_files == STW_SAVED_MOST_FILES)
            return bad(r, "the name of a file of the folder", err);
        return file_of(m, line + 5, &file, err);
    }
    const bool known =
        (r->line == 1 && strcmp(line, HEAD) == 0) ||
        (r->line == 2 && sscanf(line, "save %16" SCNx64, &m->save) == 1) ||
        (r->line == 3 && sscanf(line, "step %" SCNu64, &m->step) == 1) ||
        (r->line == 4 && sscanf(line, "rank %" SCNu32 " of %" SCNu32, &m->rank, &m->world) == 2);
    return known ? STW_STATUS_OK : bad(r, "a line of " HEAD, err);
}

stw_status stw_marker_read(const char *file, const char *text, size_t length, stw_marker *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reader r = {.file = file, .m = out};
    size_t body = 0;
    char line[512];
    STW_TRY(check_hash(file, text, length, &body, err));
    for (size_t at = 0; at < body; at++) {
        const char *end = memchr(text + at, '\n', body - at);
        const size_t n = end != NULL ? (size_t)(end - (text + at)) : body - at;
        r.line++;
        if (end == NULL || n >= sizeof line) STW_TRY(bad(&r, "a line of " HEAD, err));
        memcpy(line, text + at, n);
        line[n] = '\0';
        STW_TRY(read_line(&r, line, err));
        at += n;
    }
    if (r.line < 4 || out->rank >= out->world || out->world > STW_SAVED_MOST_RANKS ||
        (out->n_buckets > 0 && out->buckets[out->n_buckets - 1].n_extents == 0))
        STW_TRY(bad(&r, "save, step, rank and number of ranks", err));
out:
    return status;
}
