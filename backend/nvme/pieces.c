/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a transfer: their borders, their checksums (XXH3, 64 bits), and moving one by pread or
 * pwrite. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/io.h"
#include "backend/nvme/sum.h"

stw_nvme_piece stw_nvme_piece_at(const stw_nvme_range *range, uint64_t done) {
    uint64_t bytes = stw_min_u64(range->bytes - done, STW_NVME_PIECE_BYTES);
    if (range->cells != NULL) {
        uint64_t at = range->first + done;
        const bool last = range->bytes - done <= STW_NVME_LAST_BYTES;
        const uint64_t most = range->writes ? STW_NVME_PIECE_BYTES
                              : last        ? STW_NVME_LAST_READ_BYTES
                                            : STW_NVME_READ_BYTES;
        const uint64_t end = stw_nvme_cells_piece_end(range->cells, at, most);
        bytes = stw_min_u64(bytes, end - at);
    }
    return (stw_nvme_piece){done, bytes};
}

uint64_t stw_nvme_now_ns(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool stw_nvme_piece_check(const stw_nvme_range *range, stw_nvme_piece piece, stw_nvme_stop *stop) {
    if (range->cells == NULL) return true;
    const uint64_t from = range->first + piece.done, end = from + piece.bytes,
                   start = stw_nvme_now_ns();
    uint64_t index = stw_nvme_cells_at(range->cells, from);
    bool same = true;
    for (uint64_t at = from; at < end && same; index++) {
        const stw_nvme_cell cell = stw_nvme_cells_get(range->cells, index);
        const char *memory = range->memory + (at - range->first);
        uint64_t sum = stw_nvme_sum(memory, cell.end - cell.first);
        if (range->writes) {
            range->sums[index] = sum;
        } else if (sum != range->sums[index]) {
            *stop = (stw_nvme_stop){.damaged = true,
                                    .offset = range->offset + (at - range->first),
                                    .found = sum,
                                    .expected = range->sums[index]};
            same = false;
        }
        at = cell.end;
    }
    const uint64_t spent = stw_nvme_now_ns() - start;
    if (range->hashing != NULL) {
        atomic_fetch_add_explicit(&range->hashing->bytes, piece.bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&range->hashing->nanoseconds, spent, memory_order_relaxed);
    }
    return same;
}

bool stw_nvme_move_piece(const stw_nvme_range *range, stw_nvme_piece piece, stw_nvme_stop *stop) {
    const uint64_t end = piece.done + piece.bytes;
    while (piece.done < end) {
        piece.bytes = end - piece.done;
        const bool direct = stw_nvme_piece_is_direct(range, piece);
        const int file = direct ? range->direct : range->buffered;
        const off_t at = (off_t)(range->offset + piece.done);
        char *memory = range->memory + piece.done;
        ssize_t moved = range->writes ? pwrite(file, memory, (size_t)piece.bytes, at)
                                      : pread(file, memory, (size_t)piece.bytes, at);
        if (moved < 0 && errno == EINTR) continue;
        uint64_t counts = moved > 0 ? stw_nvme_progress(direct, (uint64_t)moved, piece.bytes) : 0;
        if (counts == 0) {
            *stop = (stw_nvme_stop){.code = moved < 0 ? errno : 0, .offset = (uint64_t)at};
            return false;
        }
        piece.done += counts;
    }
    return true;
}

bool stw_nvme_move_here(const stw_nvme_range *range, stw_nvme_stop *stop) {
    stw_nvme_piece piece;
    for (uint64_t done = 0; done < range->bytes; done += piece.bytes) {
        piece = stw_nvme_piece_at(range, done);
        if (range->writes && !stw_nvme_piece_check(range, piece, stop)) return false;
        if (!stw_nvme_move_piece(range, piece, stop)) return false;
        if (!range->writes && !stw_nvme_piece_check(range, piece, stop)) return false;
    }
    return true;
}
