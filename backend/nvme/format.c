/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* O_NOFOLLOW, pread */
#include "backend/nvme/format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/nvme/sum.h"
#include "core/checked.h"

#define BLOCK 4096u

static const char header_magic[8] = {'S', 'T', 'W', 'S', 'T', 'A', 'T', 'E'};
static const char record_magic[8] = {'S', 'T', 'W', 'N', 'V', 'M', 'E', '\n'};

/* Add a part of `count` times `each` bytes behind *end, which stays within INT64_MAX. */
static bool put(uint64_t *end, uint64_t *place, uint64_t count, uint64_t each) {
    uint64_t bytes = 0;
    *place = *end;
    if (stw_mul_u64(count, each, &bytes, "nvme", NULL) != STW_STATUS_OK) return false;
    if (bytes > (uint64_t)INT64_MAX / 2 || *end > (uint64_t)INT64_MAX / 2) return false;
    *end += stw_round_up_u64(bytes, BLOCK);
    return true;
}

bool stw_nvme_places_of(uint64_t bytes, uint64_t n_cuts, uint64_t n_cells, stw_nvme_places *out) {
    *out = (stw_nvme_places){.records = BLOCK, .end = BLOCK + STW_NVME_RECORDS * BLOCK};
    return n_cuts < UINT64_MAX && put(&out->end, &out->cuts, n_cuts + 1, sizeof(uint64_t)) &&
           put(&out->end, &out->sums[0], n_cells, sizeof(uint64_t)) &&
           put(&out->end, &out->sums[1], n_cells, sizeof(uint64_t)) &&
           put(&out->end, &out->copies[0], bytes, 1) && put(&out->end, &out->copies[1], bytes, 1);
}

void stw_nvme_header_seal(stw_nvme_header *header) {
    memcpy(header->magic, header_magic, sizeof header->magic);
    header->version = STW_NVME_VERSION;
    header->hash = stw_nvme_sum(header, offsetof(stw_nvme_header, hash));
}

void stw_nvme_record_seal(stw_nvme_record *record, const stw_nvme_header *header) {
    memcpy(record->magic, record_magic, sizeof record->magic);
    record->version = STW_NVME_VERSION;
    record->bytes = header->bytes;
    record->run = header->run;
    record->rank = header->rank;
    record->world = header->world;
    record->header_hash = header->hash;
    record->hash = stw_nvme_sum(record, offsetof(stw_nvme_record, hash));
}

static bool text_ends(const char *text, size_t size) { return memchr(text, '\0', size) != NULL; }

bool stw_nvme_header_is_known(const stw_nvme_header *h) {
    return memcmp(h->magic, header_magic, sizeof h->magic) == 0 && h->version == STW_NVME_VERSION;
}

bool stw_nvme_header_is_of_other_version(const stw_nvme_header *h) {
    return memcmp(h->magic, header_magic, sizeof h->magic) == 0 && h->version != STW_NVME_VERSION;
}

bool stw_nvme_header_holds(const stw_nvme_header *h, uint64_t file_bytes, const char **why) {
    stw_nvme_places places;
    const char *unused = NULL;
    if (why == NULL) why = &unused;
    *why = "it is no state of this version";
    if (!stw_nvme_header_is_known(h)) return false;
    *why = "its header is damaged";
    if (h->hash != stw_nvme_sum(h, offsetof(stw_nvme_header, hash))) return false;
    if (h->n_parts > STW_NVME_MOST_PARTS || h->n_cuts > file_bytes || h->n_cells > file_bytes ||
        h->rank >= h->world || h->local_rank >= h->local_world || h->local_rank > h->rank ||
        !text_ends(h->host, sizeof h->host) || !text_ends(h->plan, sizeof h->plan))
        return false;
    for (uint32_t i = 0; i < h->n_parts; i++)
        if (!text_ends(h->parts[i].name, sizeof h->parts[i].name)) return false;
    *why = "it does not have the size that its header states";
    return stw_nvme_places_of(h->bytes, h->n_cuts, h->n_cells, &places) && places.end == file_bytes;
}

bool stw_nvme_record_is_whole(const stw_nvme_record *r) {
    for (size_t i = 0; i < sizeof r->rest; i++)
        if (r->rest[i] != 0) return false;
    return memcmp(r->magic, record_magic, sizeof r->magic) == 0 && r->version == STW_NVME_VERSION &&
           r->hash == stw_nvme_sum(r, offsetof(stw_nvme_record, hash)) && r->copy < 2 &&
           r->sequence > 0;
}

bool stw_nvme_record_holds(const stw_nvme_record *r, const stw_nvme_header *h) {
    return stw_nvme_record_is_whole(r) && r->bytes == h->bytes && r->run == h->run &&
           r->rank == h->rank && r->world == h->world && r->header_hash == h->hash;
}

static bool read_block(int file, uint64_t index, void *block) {
    ssize_t n;
    do {
        n = pread(file, block, sizeof(stw_nvme_header), (off_t)(index * sizeof(stw_nvme_header)));
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(stw_nvme_header);
}

bool stw_nvme_file_holds(const char *path, uint64_t step) {
    stw_nvme_header header;
    stw_nvme_record record;
    struct stat about;
    bool found = false;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0) return false;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && read_block(file, 0, &header) &&
        stw_nvme_header_holds(&header, (uint64_t)about.st_size, NULL))
        for (uint32_t i = 0; i < STW_NVME_RECORDS && !found; i++)
            found = read_block(file, i + 1, &record) && stw_nvme_record_holds(&record, &header) &&
                    record.step == step;
    close(file);
    return found;
}

const stw_nvme_part *stw_nvme_part_at(const stw_nvme_part *parts, uint32_t n, uint64_t offset) {
    for (uint32_t i = 0; i < n; i++)
        if (offset >= parts[i].first && offset - parts[i].first < parts[i].bytes) return &parts[i];
    return NULL;
}

void stw_nvme_format_range(const stw_nvme_part *parts, uint32_t n, uint64_t first, uint64_t end,
                           char *out, size_t out_size) {
    const stw_nvme_part *part = stw_nvme_part_at(parts, n, first);
    int used = snprintf(out, out_size, "bytes %" PRIu64 " to %" PRIu64, first, end);
    if (part != NULL && used > 0 && (size_t)used < out_size)
        snprintf(out + used, out_size - (size_t)used, " (%s from its byte %" PRIu64 ")", part->name,
                 first - part->first);
}
