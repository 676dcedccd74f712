/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_DIRECT */
#include "backend/nvme.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/units.h"

#define CALL_BYTES (64ull << 20) /* of one system call, at most */
#define ALIGN ((uint64_t)STW_NVME_ALIGN_BYTES)

struct stw_nvme {
    int buffered, direct; /* two descriptions of one file; direct is -1 where there is none */
    atomic_bool use_direct;
    uint64_t bytes;
    char folder[PATH_MAX];
};

static stw_status fail(const stw_nvme *nvme, int code, const char *doing, stw_error *err) {
    return stw_fail_native(err, code == ENOSPC ? STW_STATUS_NO_RESOURCES : STW_STATUS_IO, code,
                           nvme->folder, "%s the NVMe arena's file: %s", doing, strerror(code));
}

static stw_status check_room(const stw_nvme *nvme, stw_error *err) {
    struct statvfs room;
    if (statvfs(nvme->folder, &room) != 0) return fail(nvme, errno, "finding room for", err);
    uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    if (nvme->bytes <= free_bytes) return STW_STATUS_OK;
    char need[32], have[32];
    stw_bytes_format(nvme->bytes, need, sizeof need);
    stw_bytes_format(free_bytes, have, sizeof have);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, nvme->folder,
                    "the NVMe arena needs %s, the file system has %s free", need, have);
}

/* Blocks are taken now: a write that finds the disk full in the middle of a step would be too late.
 * A file system that cannot reserve gives a file of the right size with holes. */
static stw_status reserve(stw_nvme *nvme, stw_error *err) {
    if (nvme->bytes == 0) return STW_STATUS_OK;
    if (nvme->bytes > (uint64_t)INT64_MAX) return fail(nvme, EFBIG, "making", err);
    int code;
    do {
        code = fallocate(nvme->buffered, 0, 0, (off_t)nvme->bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code == EOPNOTSUPP || code == ENOSYS)
        code = ftruncate(nvme->buffered, (off_t)nvme->bytes) == 0 ? 0 : errno;
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "reserving", err);
}

stw_status stw_nvme_open(const char *folder, uint64_t bytes, stw_nvme **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char path[PATH_MAX + 32] = "";
    *out = NULL;
    stw_nvme *nvme = calloc(1, sizeof *nvme);
    if (nvme == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    nvme->buffered = nvme->direct = -1;
    nvme->bytes = bytes;
    if (folder == NULL) folder = getenv("TMPDIR");
    if (folder == NULL || folder[0] == '\0') folder = "/tmp";
    if (strlen(folder) >= sizeof nvme->folder) {
        status = stw_fail(err, STW_STATUS_USAGE, folder, "the NVMe folder's name is too long");
        goto out;
    }
    snprintf(nvme->folder, sizeof nvme->folder, "%s", folder);
    STW_TRY(check_room(nvme, err));
    snprintf(path, sizeof path, "%s/stowage-nvme-XXXXXX", nvme->folder);
    nvme->buffered = mkostemp(path, O_CLOEXEC);
    if (nvme->buffered < 0) {
        status = fail(nvme, errno, "making", err);
        path[0] = '\0';
        goto out;
    }
    STW_TRY(reserve(nvme, err));
    nvme->direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    atomic_store(&nvme->use_direct, nvme->direct >= 0);
    *out = nvme;
    nvme = NULL;
out:
    /* Without its name the file goes with the process, however that ends. */
    if (path[0] != '\0') unlink(path);
    stw_nvme_close(nvme);
    return status;
}

void stw_nvme_close(stw_nvme *nvme) {
    if (nvme == NULL) return;
    if (nvme->direct >= 0) close(nvme->direct);
    if (nvme->buffered >= 0) close(nvme->buffered);
    free(nvme);
}

bool stw_nvme_is_direct(const stw_nvme *nvme) {
    return nvme != NULL && atomic_load(&((stw_nvme *)nvme)->use_direct);
}

/* Either way of moving bytes: into `to`, or from `from` where `to` is NULL. */
typedef struct transfer {
    char *to;
    const char *from;
    uint64_t offset, bytes;
} transfer;

static stw_status move(stw_nvme *nvme, bool direct, transfer t, stw_error *err) {
    for (uint64_t done = 0; done < t.bytes;) {
        size_t part = (size_t)stw_min_u64(t.bytes - done, CALL_BYTES);
        off_t at = (off_t)(t.offset + done);
        int file = direct ? nvme->direct : nvme->buffered;
        ssize_t moved = t.to != NULL ? pread(file, t.to + done, part, at)
                                     : pwrite(file, t.from + done, part, at);
        if (moved > 0) {
            done += (uint64_t)moved;
            /* A direct call cut short in the middle of a block goes on buffered. */
            if (done % ALIGN != 0) direct = false;
        } else if (moved < 0 && errno == EINTR) {
            continue;
        } else if (moved < 0 && errno == EINVAL && direct) {
            atomic_store(&nvme->use_direct, false); /* a device with stricter rules than 4096 */
            direct = false;
        } else if (moved < 0) {
            return fail(nvme, errno, t.to != NULL ? "reading" : "writing", err);
        } else {
            return stw_fail(err, STW_STATUS_IO, nvme->folder,
                            "%s the NVMe arena's file stopped after %llu of %llu bytes at %llu",
                            t.to != NULL ? "reading" : "writing", (unsigned long long)done,
                            (unsigned long long)t.bytes, (unsigned long long)t.offset);
        }
    }
    return STW_STATUS_OK;
}

static transfer part_of(transfer t, uint64_t first, uint64_t bytes) {
    transfer part = {t.to != NULL ? t.to + first : NULL, t.to != NULL ? NULL : t.from + first,
                     t.offset + first, bytes};
    return part;
}

/* The whole blocks in the middle go direct, the ends buffered. The kernel keeps the two coherent:
 * a direct call first writes out, then drops, the pages that it passes by. */
static stw_status move_all(stw_nvme *nvme, transfer t, stw_error *err) {
    if (t.offset > nvme->bytes || t.bytes > nvme->bytes - t.offset)
        return stw_fail(err, STW_STATUS_BUG, "nvme",
                        "range of %llu bytes at %llu is outside the arena of %llu bytes",
                        (unsigned long long)t.bytes, (unsigned long long)t.offset,
                        (unsigned long long)nvme->bytes);
    uintptr_t address = (uintptr_t)(t.to != NULL ? (const void *)t.to : (const void *)t.from);
    uint64_t head = stw_min_u64((ALIGN - t.offset % ALIGN) % ALIGN, t.bytes);
    uint64_t middle = (t.bytes - head) / ALIGN * ALIGN;
    if (!atomic_load(&nvme->use_direct) || address % ALIGN != t.offset % ALIGN || middle == 0)
        return move(nvme, false, t, err);
    stw_status status = STW_STATUS_OK;
    STW_TRY(move(nvme, false, part_of(t, 0, head), err));
    STW_TRY(move(nvme, true, part_of(t, head, middle), err));
    STW_TRY(move(nvme, false, part_of(t, head + middle, t.bytes - head - middle), err));
out:
    return status;
}

stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                         stw_error *err) {
    transfer t = {to, NULL, offset, bytes};
    return bytes == 0 ? STW_STATUS_OK : move_all(nvme, t, err);
}

stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from, uint64_t bytes,
                          stw_error *err) {
    transfer t = {NULL, from, offset, bytes};
    return bytes == 0 ? STW_STATUS_OK : move_all(nvme, t, err);
}
