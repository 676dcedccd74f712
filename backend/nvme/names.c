/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* statfs */
#include "backend/nvme/names.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backend/nvme/format.h"
#include "core/log.h"

#define MOST_FILES 64
#define TMPFS 0x01021994 /* linux/magic.h */
#define RAMFS 0x858458f6

const char *stw_nvme_folder(const char *named) {
    const char *folder = named != NULL ? named : getenv("TMPDIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

bool stw_nvme_folder_is_memory(const char *folder) {
    struct statfs about;
    if (statfs(folder, &about) != 0) return false;
    uint32_t type = (uint32_t)about.f_type;
    return type == TMPFS || type == RAMFS;
}

void stw_nvme_folder_sync(const char *folder) {
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0 && fsync(file) == 0) {
        close(file);
        return;
    }
    stw_log(STW_LOG_WARN,
            "%s: the name of the file with the state on NVMe may be lost if power "
            "fails: syncing the folder: %s",
            folder, strerror(errno));
    if (file >= 0) close(file);
}

/* ---- the table; a handler may look at it at any time ---- */

enum { FREE, TAKEN, REMOVE, KEEP };

typedef struct entry {
    atomic_int state;   /* TAKEN: being filled */
    atomic_ullong step; /* lock-free: a handler reads it */
    char path[PATH_MAX + 64], folder[PATH_MAX];
} entry;

static entry table[MOST_FILES];

int stw_nvme_names_set(int index, const char *folder, const char *path, uint64_t step,
                       stw_nvme_fate fate) {
    const int state = fate == STW_NVME_FATE_KEEP ? KEEP : REMOVE;
    for (int i = 0; index < 0 && i < MOST_FILES; i++) {
        int expected = FREE;
        if (atomic_compare_exchange_strong(&table[i].state, &expected, TAKEN)) index = i;
    }
    if (index < 0) return -1;
    entry *e = &table[index];
    if (strcmp(e->path, path) != 0) {
        atomic_store(&e->state, TAKEN);
        snprintf(e->path, sizeof e->path, "%s", path);
        snprintf(e->folder, sizeof e->folder, "%s", folder);
    }
    atomic_store(&e->step, step);
    atomic_store(&e->state, state);
    return index;
}

void stw_nvme_names_drop(int index) {
    if (index >= 0) atomic_store(&table[index].state, FREE);
}

/* ---- on a signal ---- */

static void tell(const char *text) {
    for (size_t left = strlen(text); left > 0;) {
        ssize_t n = write(STDERR_FILENO, text, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text += n;
        left -= (size_t)n;
    }
}

/* One message is one write: other threads write, too. Only calls that a signal handler may make. */
typedef struct message {
    char text[2 * PATH_MAX + 256];
    size_t used;
} message;

static void add(message *m, const char *text) {
    for (; *text != '\0' && m->used + 1 < sizeof m->text; text++) m->text[m->used++] = *text;
    m->text[m->used] = '\0';
}

static void add_number(message *m, uint64_t number) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    add(m, digits + at);
}

void stw_nvme_on_signal(void) {
    for (int i = 0; i < MOST_FILES; i++) {
        const entry *e = &table[i];
        int state = atomic_load(&e->state);
        if (state == REMOVE) unlink(e->path);
        if (state != KEEP || access(e->path, F_OK) != 0) continue;
        const uint64_t step = atomic_load(&e->step);
        const bool holds = stw_nvme_file_holds(e->path, step);
        message m = {.used = 0};
        add(&m, "stowage: warning: the state on NVMe of step ");
        add_number(&m, step);
        add(&m, holds ? " is kept in " : " is damaged: the header or the record was changed in ");
        add(&m, e->path);
        add(&m, holds ? "; see: stowage state list " : "; see: stowage state verify ");
        add(&m, e->folder);
        add(&m, "\n");
        tell(m.text);
    }
}
