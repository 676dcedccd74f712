/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_DIRECT */
#include "backend/nvme/plain.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/nvme/io.h"
#include "core/file.h"

/* Below this a range goes through the page cache whole: a disk's latency, once per range, costs
 * more than a copy. */
#define LEAST_DIRECT (64ull << 10)

struct stw_plain_io {
    const stw_nvme_method_ops *ops;
    void *method;
};

struct stw_plain {
    stw_plain_io *io;
    int buffered;
    atomic_int direct; /* -1: not used */
    int opened_direct;
    char path[];
};

stw_status stw_plain_io_open(stw_plain_io **out, stw_error *err) {
    const char *wanted = getenv("STOWAGE_NVME_IO");
    stw_plain_io *io = calloc(1, sizeof *io);
    *out = NULL;
    if (io == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "files", "out of memory");
    io->ops = &stw_nvme_uring;
    const bool threads = wanted != NULL && strcmp(wanted, stw_nvme_threads.name) == 0;
    if (threads || io->ops->open(&io->method, NULL) != STW_STATUS_OK) {
        io->ops = &stw_nvme_threads;
        stw_status status = io->ops->open(&io->method, err);
        if (status != STW_STATUS_OK) {
            free(io);
            return status;
        }
    }
    *out = io;
    return STW_STATUS_OK;
}

void stw_plain_io_close(stw_plain_io *io) {
    if (io == NULL) return;
    io->ops->close(io->method);
    free(io);
}

stw_status stw_plain_open(stw_plain_io *io, const char *path, bool writes, stw_plain **out,
                          stw_error *err) {
    const int mode = (writes ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC;
    stw_plain *file = calloc(1, sizeof *file + strlen(path) + 1);
    *out = NULL;
    if (file == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    memcpy(file->path, path, strlen(path) + 1);
    file->io = io;
    file->buffered = open(path, mode, 0666);
    if (file->buffered < 0) {
        const int code = errno;
        free(file);
        return stw_fail_native(err, stw_errno_status(code), code, path, "cannot be opened: %s",
                               strerror(code));
    }
    file->opened_direct = open(path, (writes ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC);
    atomic_init(&file->direct, file->opened_direct);
    *out = file;
    return STW_STATUS_OK;
}

/* A range whose ends are whole blocks, or any range past no cache (direct < 0). */
static bool move(stw_plain *file, stw_nvme_range range, stw_nvme_stop *stop) {
    if (range.bytes == 0) return true;
    if (range.direct < 0) return stw_nvme_move_here(&range, stop);
    if (file->io->ops->move(file->io->method, &range, stop)) return true;
    if (stop->code != EINVAL) return false;
    atomic_store(&file->direct, -1); /* a device with stricter rules than 4096 */
    range.direct = -1;
    return file->io->ops->move(file->io->method, &range, stop);
}

static stw_status move_all(stw_plain *file, bool writes, uint64_t offset, void *memory,
                           uint64_t bytes, stw_error *err) {
    const uint64_t block = STW_PLAIN_BLOCK_BYTES;
    const bool aligned = ((uintptr_t)memory - offset) % block == 0;
    const int direct = aligned && bytes >= LEAST_DIRECT ? atomic_load(&file->direct) : -1;
    uint64_t head = (block - offset % block) % block, body = 0;
    stw_nvme_range range = {.direct = -1,
                            .buffered = file->buffered,
                            .writes = writes,
                            .memory = memory,
                            .offset = offset,
                            .bytes = bytes};
    stw_nvme_stop stop = {.code = 0};
    bool done;
    if (direct < 0) {
        done = move(file, range, &stop);
    } else {
        body = (bytes - head) / block * block;
        range.bytes = head;
        done = move(file, range, &stop);
        range.memory += head;
        range.offset += head;
        range.bytes = body;
        range.direct = direct;
        done = done && move(file, range, &stop);
        range.memory += body;
        range.offset += body;
        range.bytes = bytes - head - body;
        range.direct = -1;
        done = done && move(file, range, &stop);
    }
    if (done) return STW_STATUS_OK;
    return stw_fail_native(err, stop.code != 0 ? stw_errno_status(stop.code) : STW_STATUS_IO,
                           stop.code, file->path,
                           "%s %" PRIu64 " bytes at %" PRIu64 " stopped at byte %" PRIu64 ": %s",
                           writes ? "writing" : "reading", bytes, offset, stop.offset,
                           stop.code != 0 ? strerror(stop.code)
                           : writes       ? "nothing more was taken"
                                          : "the file ends there");
}

stw_status stw_plain_write(stw_plain *file, uint64_t offset, const void *from, uint64_t bytes,
                           stw_error *err) {
    return move_all(file, true, offset, (void *)(uintptr_t)from, bytes, err);
}

stw_status stw_plain_read(stw_plain *file, uint64_t offset, void *to, uint64_t bytes,
                          stw_error *err) {
    return move_all(file, false, offset, to, bytes, err);
}

stw_status stw_plain_extend(stw_plain *file, uint64_t bytes, stw_error *err) {
    uint64_t now = 0;
    stw_status status = stw_plain_size(file, &now, err);
    if (status != STW_STATUS_OK || now >= bytes) return status;
    if (ftruncate(file->buffered, (off_t)bytes) == 0) return STW_STATUS_OK;
    return stw_fail_errno(err, file->path, "cannot be made longer");
}

stw_status stw_plain_sync(stw_plain *file, stw_error *err) {
    int code;
    do {
        code = fsync(file->buffered) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code == 0) return STW_STATUS_OK;
    return stw_fail_native(err, stw_errno_status(code), code, file->path,
                           "waiting for the disk to hold it: %s", strerror(code));
}

stw_status stw_plain_size(stw_plain *file, uint64_t *bytes, stw_error *err) {
    struct stat info;
    *bytes = 0;
    if (fstat(file->buffered, &info) != 0) return stw_fail_errno(err, file->path, "has no size");
    *bytes = (uint64_t)info.st_size;
    return STW_STATUS_OK;
}

void stw_plain_close(stw_plain *file) {
    if (file == NULL) return;
    close(file->buffered);
    if (file->opened_direct >= 0) close(file->opened_direct);
    free(file);
}
