/* SPDX-License-Identifier: Apache-2.0 */
/* Power fails. The disk under NVMe state is a model: it records every write, fdatasync and name,
 * those of io_uring too. At a random moment the power goes: writes that no fdatasync followed are
 * on the disk or not, in any order and torn at any sector, and so are names of files. What
 * `stowage state` and a restore then find must be a state that was committed, whole, or no state;
 * once a commit has returned it must be that one or the next, and nothing else may be named
 * damaged. The linker hands the calls below to this test (--wrap). */
#define _GNU_SOURCE /* O_TMPFILE */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/nvme.h"
#include "core/log.h"
#include "stw_config.h"
#include "tests/unit/testing.h"
#if STW_WITH_URING
#include <liburing.h>
#endif

#define KIB 1024u
#define MIB (1024u * KIB)
#define BLOCK STW_NVME_ALIGN_BYTES

static uint32_t random_state = 1;
static uint32_t random32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static unsigned char *aligned_bytes(size_t bytes) {
    void *memory = NULL;
    CU_ASSERT_EQUAL_FATAL(posix_memalign(&memory, BLOCK, bytes), 0);
    memset(memory, 0, bytes);
    return memory;
}

/* ---- the disk ---- */

enum kind { WRITE, SYNC, NAME, FOLDER_SYNC, COMMITTED, AGREED };
#define NEVER UINT64_MAX

typedef struct event {
    enum kind kind;
    uint32_t file;
    uint64_t offset, bytes; /* of a write */
    unsigned char *data;
    uint64_t done;  /* events when a write had returned; NEVER: it has not */
    uint64_t begun; /* events when a sync began */
    uint64_t step;  /* of COMMITTED, AGREED */
} event;

#define MOST_FILES 3u
static struct {
    pthread_mutex_t mutex;
    bool records, names_at_once; /* the file system has no files without names */
    event *events;
    uint64_t n, room;
    uint32_t n_files;
    struct stat files[MOST_FILES];
    char names[MOST_FILES][600];
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The mutex is held. */
static uint64_t note(event e) {
    if (disk.n == disk.room) {
        disk.room = disk.room * 2 + 1024;
        disk.events = realloc(disk.events, disk.room * sizeof e);
        if (disk.events == NULL) abort();
    }
    disk.events[disk.n] = e;
    return disk.n++;
}

/* Which of the files it is; -1: none. */
static int file_of(int fd) {
    struct stat about;
    if (!disk.records || fstat(fd, &about) != 0) return -1;
    for (uint32_t i = 0; i < disk.n_files; i++)
        if (about.st_ino == disk.files[i].st_ino && about.st_dev == disk.files[i].st_dev)
            return (int)i;
    return -1;
}

static uint64_t note_write(int file, const void *from, uint64_t bytes, uint64_t offset) {
    event e = {WRITE, (uint32_t)file, offset, bytes, malloc(bytes + 1), NEVER, 0, 0};
    if (e.data == NULL) abort();
    memcpy(e.data, from, bytes);
    pthread_mutex_lock(&disk.mutex);
    const uint64_t at = note(e);
    pthread_mutex_unlock(&disk.mutex);
    return at;
}

static void note_done(uint64_t at) {
    pthread_mutex_lock(&disk.mutex);
    disk.events[at].done = disk.n;
    pthread_mutex_unlock(&disk.mutex);
}

static void note_plain(enum kind kind, uint32_t file, uint64_t begun, uint64_t step) {
    pthread_mutex_lock(&disk.mutex);
    (void)note((event){.kind = kind, .file = file, .begun = begun, .step = step});
    pthread_mutex_unlock(&disk.mutex);
}

ssize_t __real_pwrite(int fd, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    const int file = file_of(fd);
    if (file < 0) return __real_pwrite(fd, from, bytes, offset);
    const uint64_t at = note_write(file, from, bytes, (uint64_t)offset);
    const ssize_t moved = __real_pwrite(fd, from, bytes, offset);
    if (moved == (ssize_t)bytes) note_done(at);
    return moved;
}

static uint64_t events_now(void) {
    pthread_mutex_lock(&disk.mutex);
    const uint64_t n = disk.n;
    pthread_mutex_unlock(&disk.mutex);
    return n;
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) {
    const int file = file_of(fd);
    if (file < 0) return __real_fdatasync(fd);
    note_plain(SYNC, (uint32_t)file, events_now(), 0);
    return 0;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat about;
    if (!disk.records || fstat(fd, &about) != 0 || !S_ISDIR(about.st_mode)) return __real_fsync(fd);
    note_plain(FOLDER_SYNC, 0, 0, 0);
    return 0;
}

static void note_name(int file, const char *path) {
    snprintf(disk.names[file], sizeof disk.names[file], "%s", strrchr(path, '/') + 1);
    note_plain(NAME, (uint32_t)file, 0, 0);
}

int __real_linkat(int from, const char *old, int to, const char *path, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *path, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *path, int flags) {
    const int fd = __real_linkat(from, old, to, path, flags) == 0 ? open(path, O_RDONLY) : -1;
    if (fd < 0) return -1;
    if (file_of(fd) >= 0) note_name(file_of(fd), path);
    close(fd);
    return 0;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    const bool makes = unnamed || (flags & O_CREAT) != 0;
    const mode_t mode = makes ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (disk.records && unnamed && disk.names_at_once) {
        errno = EOPNOTSUPP;
        return -1;
    }
    const int fd = __real_open(path, flags, mode);
    if (!disk.records || !makes || fd < 0) return fd;
    CU_ASSERT_TRUE_FATAL(disk.n_files < MOST_FILES);
    CU_ASSERT_EQUAL(fstat(fd, &disk.files[disk.n_files]), 0);
    disk.n_files++;
    if (!unnamed) note_name((int)disk.n_files - 1, path);
    return fd;
}

#if STW_WITH_URING
/* What was prepared and not handed over yet. When its entries come back cannot be seen here: before
 * the caller goes on, as far as a later sync knows. */
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait) {
    const struct io_uring_sq *sq = &ring->sq;
    for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
        const struct io_uring_sqe *entry = &sq->sqes[i & *sq->kring_mask];
        const int file = entry->opcode == IORING_OP_WRITE ? file_of(entry->fd) : -1;
        if (file >= 0)
            note_done(
                note_write(file, (const void *)(uintptr_t)entry->addr, entry->len, entry->off));
    }
    return __real_io_uring_submit_and_wait(ring, wait);
}
#endif

static void forget_events(void) {
    for (uint64_t i = 0; i < disk.n; i++) free(disk.events[i].data);
    free(disk.events);
    disk.events = NULL;
    disk.n = disk.room = disk.n_files = 0;
}

/* ---- a run ---- */

#define MOST_STEPS 40u
typedef struct story {
    uint64_t arena;
    uint32_t ranks, steps, n_cuts;
    const char *method;
    bool names_at_once;
} story;

static unsigned char *contents[MOST_FILES][MOST_STEPS + 1]; /* [arena] after each step */

static uint64_t below(uint64_t n) { return n > 0 ? (uint64_t)random32() % n : 0; }

static void write_something(const story *s, stw_nvme *nvme, unsigned char *now) {
    const uint64_t offset = below(4) == 0 ? 0 : below(s->arena);
    uint64_t bytes = 1 + below(s->arena - offset);
    if (below(3) == 0 && bytes > 700) bytes = 1 + below(700);
    if (offset == 0 && below(2) == 0) bytes = s->arena;
    for (uint64_t i = 0; i < bytes; i++) now[offset + i] = (unsigned char)random32();
    unsigned char *memory = aligned_bytes(bytes + BLOCK);
    const uint64_t skew = below(2) == 0 ? 0 : below(64);
    memcpy(memory + skew, now + offset, bytes);
    CHECK_OK(stw_nvme_write(nvme, offset, memory + skew, bytes, err));
    free(memory);
}

static void keep_contents(const story *s, uint32_t rank, uint32_t step, const unsigned char *now) {
    contents[rank][step] = malloc(s->arena);
    CU_ASSERT_PTR_NOT_NULL_FATAL(contents[rank][step]);
    memcpy(contents[rank][step], now, s->arena);
}

static stw_nvme *open_rank(const story *s, const char *folder, uint32_t rank) {
    uint64_t cuts[8];
    for (int i = 0; i < 8; i++)
        cuts[i] = below(3) == 0 ? below(s->arena) : below(s->arena) & ~4095u;
    const stw_nvme_options options = {
        .folder = folder,
        .bytes = s->arena,
        .copies = 2,
        .rank = rank,
        .shape = {.in_memory = true, .n_cuts = s->arena < MIB ? 8 : 2, .cuts = cuts}};
    const stw_nvme_owner owner = {0x1234, rank, s->ranks, rank, s->ranks, "plan"};
    stw_nvme *nvme = NULL;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_own(nvme, &owner, err));
    return nvme;
}

static void live(const story *s, const char *folder) {
    stw_nvme *ranks[MOST_FILES] = {NULL};
    unsigned char *now[MOST_FILES];
    disk.records = true;
    disk.names_at_once = s->names_at_once;
    for (uint32_t r = 0; r < s->ranks; r++) {
        ranks[r] = open_rank(s, folder, r);
        now[r] = aligned_bytes(s->arena);
    }
    for (uint32_t step = 0; step <= s->steps; step++) {
        for (uint32_t r = 0; r < s->ranks; r++)
            for (uint64_t k = below(5); k > 0; k--) write_something(s, ranks[r], now[r]);
        for (uint32_t r = 0; r < s->ranks; r++) {
            keep_contents(s, r, step, now[r]);
            CHECK_OK(stw_nvme_commit(ranks[r], step, err));
            note_plain(COMMITTED, r, 0, step);
        }
        for (uint32_t r = 0; r < s->ranks; r++) {
            CHECK_OK(stw_nvme_agree(ranks[r], step, err));
            if (step > 0) note_plain(AGREED, r, 0, step);
        }
    }
    disk.records = false;
    for (uint32_t r = 0; r < s->ranks; r++) {
        CU_ASSERT_EQUAL(stat(stw_nvme_path(ranks[r]), &disk.files[r]), 0);
        stw_nvme_release(ranks[r]);
        stw_nvme_close(ranks[r]);
        free(now[r]);
    }
}

/* ---- the power goes ---- */

/* What the run knew of a file, and what must hold, when `cut` events had happened. */
typedef struct known {
    int64_t committed, agreed; /* steps; -1: none */
    bool named, name_lasts, synced;
} known;

static known known_at(uint32_t file, uint64_t cut) {
    known k = {-1, -1, false, false, false};
    for (uint64_t i = 0; i < cut; i++) {
        const event *e = &disk.events[i];
        if (e->kind == FOLDER_SYNC && k.named) k.name_lasts = true;
        if (e->file != file) continue;
        k.named = k.named || e->kind == NAME;
        k.synced = k.synced || e->kind == SYNC;
        if (e->kind == COMMITTED) k.committed = (int64_t)e->step;
        if (e->kind == AGREED) k.agreed = (int64_t)e->step;
    }
    return k;
}

/* A write lasts where a sync that began after it had returned has returned before the cut. */
static bool lasts(uint64_t write, uint64_t cut) {
    const event *w = &disk.events[write];
    for (uint64_t i = write + 1; i < cut; i++)
        if (disk.events[i].kind == SYNC && disk.events[i].file == w->file &&
            disk.events[i].begun >= w->done)
            return true;
    return false;
}

enum survival { NOTHING, ALL, SOME_WRITES, SOME_SECTORS, ANY_ORDER, BUT_ONE, N_SURVIVALS };

static void put_sectors(const event *w, uint64_t sector, bool some, unsigned char *image) {
    for (uint64_t at = w->offset, end; at < w->offset + w->bytes; at = end) {
        end = at / sector * sector + sector;
        if (end > w->offset + w->bytes) end = w->offset + w->bytes;
        if (!some || below(2) == 0) memcpy(image + at, w->data + (at - w->offset), end - at);
    }
}

static void make_image(uint32_t file, uint64_t cut, unsigned char *image) {
    static uint64_t pending[4096];
    uint64_t n = 0;
    const enum survival how = (enum survival)below(N_SURVIVALS);
    const uint64_t sector = below(2) == 0 ? 512 : 4096;
    for (uint64_t i = 0; i < cut; i++) {
        const event *w = &disk.events[i];
        if (w->kind != WRITE || w->file != file) continue;
        if (lasts(i, cut))
            memcpy(image + w->offset, w->data, w->bytes);
        else if (n < sizeof pending / sizeof pending[0])
            pending[n++] = i;
    }
    for (uint64_t i = 0; how == ANY_ORDER && i + 1 < n; i++) {
        const uint64_t j = i + below(n - i), kept = pending[i];
        pending[i] = pending[j];
        pending[j] = kept;
    }
    const uint64_t lost = below(n);
    for (uint64_t i = 0; i < n && how != NOTHING; i++) {
        if ((how == SOME_WRITES && below(2) == 0) || (how == BUT_ONE && i == lost)) continue;
        put_sectors(&disk.events[pending[i]], sector, how == SOME_SECTORS || how == ANY_ORDER,
                    image);
    }
}

static unsigned broken_rules;
static void rule(bool holds, const char *what, uint64_t cut, uint32_t file) {
    if (holds) return;
    if (broken_rules++ < 5)
        fprintf(stderr, "\n    cut %llu of %llu, file %u: %s", (unsigned long long)cut,
                (unsigned long long)disk.n, file, what);
}

static bool has_contents(const story *s, uint32_t rank, const stw_kept *kept,
                         const stw_kept_step *step, const unsigned char *image) {
    stw_nvme_places places;
    const stw_nvme_header *h = &kept->header;
    if (step->step > s->steps || !stw_nvme_places_of(h->bytes, h->n_cuts, h->n_cells, &places))
        return false;
    return memcmp(image + places.copies[step->copy], contents[rank][step->step], s->arena) == 0;
}

static void check_restore(const story *s, uint32_t rank, const char *path, uint64_t wanted,
                          uint64_t cut) {
    stw_nvme *nvme = NULL;
    stw_error why = STW_ERROR_INIT;
    uint64_t bytes = 0, step = 0;
    const stw_status status = stw_nvme_open_kept(path, &bytes, &step, &nvme, &why);
    rule(status == STW_STATUS_OK && step == wanted, why.text, cut, rank);
    if (status != STW_STATUS_OK) return;
    unsigned char *memory = aligned_bytes(s->arena);
    CHECK_OK(stw_nvme_read(nvme, 0, memory, s->arena, err));
    rule(memcmp(memory, contents[rank][step], s->arena) == 0, "restored a mixture", cut, rank);
    free(memory);
    stw_nvme_close(nvme);
}

/* What is left of one rank. */
static void check_left(const story *s, uint32_t rank, const stw_kept *kept,
                       const unsigned char *image, uint64_t cut) {
    const known k = known_at(rank, cut);
    const bool strict = k.committed >= 0;
    if (strict) {
        rule(kept->problem == NULL, "the header is damaged", cut, rank);
        rule(kept->damaged == 0, "a record is named damaged", cut, rank);
        rule(kept->n_steps > 0, "no step is left", cut, rank);
    }
    if (kept->n_steps > 0 && strict) {
        const int64_t newest = (int64_t)kept->steps[0].step;
        rule(newest == k.committed || newest == k.committed + 1, "not the newest step", cut, rank);
    }
    for (uint32_t i = 0; i < kept->n_steps; i++) {
        stw_kept_check check;
        CHECK_OK(stw_kept_verify(kept, &kept->steps[i], &check, err));
        const bool right = has_contents(s, rank, kept, &kept->steps[i], image);
        rule(right || check.damaged > 0, "a mixture passes", cut, rank);
        rule(!strict || (right && check.damaged == 0), "a listed step is damaged", cut, rank);
    }
    if (strict && kept->n_steps > 0 && cut % 16 == 0)
        check_restore(s, rank, kept->path, kept->steps[0].step, cut);
}

/* The files as they are after the cut; those that are there. */
static uint32_t leave(const story *s, const char *folder, uint64_t cut,
                      unsigned char *images[MOST_FILES], bool there[MOST_FILES]) {
    char path[700];
    uint32_t n = 0;
    for (uint32_t r = 0; r < s->ranks; r++) {
        const known k = known_at(r, cut);
        rule(k.agreed < 1 || k.name_lasts, "the name may be lost", cut, r);
        there[r] = k.name_lasts || (k.named && below(2) == 0);
        const size_t size = (size_t)disk.files[r].st_size;
        images[r] = calloc(1, size);
        CU_ASSERT_PTR_NOT_NULL_FATAL(images[r]);
        make_image(r, cut, images[r]);
        if (!there[r]) continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", folder, disk.names[r]);
        FILE *file = fopen(path, "wb");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        if (k.synced || below(4) > 0) CU_ASSERT_EQUAL(fwrite(images[r], 1, size, file), size);
        CU_ASSERT_EQUAL(fclose(file), 0);
    }
    return n;
}

static void cut_power(const story *s, const char *folder, uint64_t cut) {
    unsigned char *images[MOST_FILES] = {NULL};
    bool there[MOST_FILES] = {false};
    stw_kept_list list;
    int64_t agreed = -1;
    const uint32_t n = leave(s, folder, cut, images, there);
    CHECK_OK(stw_kept_scan(folder, &list, err));
    CU_ASSERT_EQUAL(list.n, n);
    for (uint32_t i = 0; i < list.n; i++)
        for (uint32_t r = 0; r < s->ranks; r++) {
            if (!there[r] || strstr(list.files[i]->path, disk.names[r]) == NULL) continue;
            check_left(s, r, list.files[i], images[r], cut);
            if (known_at(r, cut).agreed > agreed) agreed = known_at(r, cut).agreed;
        }
    for (uint32_t i = 0; i < list.n && agreed > 0 && n == s->ranks; i++) {
        const int whole = stw_kept_whole(&list, i, NULL, 0);
        rule(whole >= 0 && (int64_t)list.files[i]->steps[whole].step >= agreed,
             "the ranks have no step in common", cut, i);
    }
    for (uint32_t i = 0; i < list.n; i++) CU_ASSERT_EQUAL(unlink(list.files[i]->path), 0);
    stw_kept_list_free(&list);
    for (uint32_t r = 0; r < s->ranks; r++) free(images[r]);
}

static void tell(const story *s) {
    char folder[64] = "/dev/shm/stowage-power-XXXXXX";
    uint64_t writes = 0, syncs = 0;
    if (mkdtemp(folder) == NULL) {
        snprintf(folder, sizeof folder, "power-XXXXXX");
        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    }
    broken_rules = 0;
    CU_ASSERT_EQUAL(setenv("STOWAGE_NVME_IO", s->method, 1), 0);
    live(s, folder);
    for (uint64_t i = 0; i < disk.n; i++) {
        writes += disk.events[i].kind == WRITE;
        syncs += disk.events[i].kind == SYNC;
    }
    for (uint32_t i = 0; i < s->n_cuts; i++) cut_power(s, folder, below(disk.n + 1));
    printf(
        "\n    %u rank%s of %llu KiB, %s, %s: %llu writes, %llu syncs, %u cuts, %u rules broken ",
        s->ranks, s->ranks > 1 ? "s" : "", (unsigned long long)s->arena / KIB, s->method,
        s->names_at_once ? "named at once" : "unnamed at first", (unsigned long long)writes,
        (unsigned long long)syncs, s->n_cuts, broken_rules);
    CU_ASSERT_EQUAL(broken_rules, 0);
    CU_ASSERT_TRUE(writes > 100 && syncs > s->steps);
    for (uint32_t r = 0; r < s->ranks; r++)
        for (uint32_t step = 0; step <= s->steps; step++) free(contents[r][step]);
    forget_events();
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static bool has_uring(void) {
    stw_nvme *nvme = NULL;
    const stw_nvme_options options = {
        .bytes = BLOCK, .copies = 1, .folder = ".", .shape = {.in_memory = true}};
    CU_ASSERT_EQUAL(setenv("STOWAGE_NVME_IO", "io_uring", 1), 0);
    const bool has = stw_nvme_open(&options, &nvme, NULL) == STW_STATUS_OK;
    stw_nvme_close(nvme);
    return has;
}

static void be_quiet(stw_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

static void tell_all(const char *method) {
    stw_log_set(be_quiet, NULL);
    tell(&(story){41000, 1, 30, 1500, method, false});
    tell(&(story){41000, 1, 30, 500, method, true});
    tell(&(story){17000, 3, 20, 1000, method, false});
    tell(&(story){17000, 3, 20, 300, method, true});
    tell(&(story){3 * MIB + 1234, 1, 12, 60, method, false});
    stw_log_set(NULL, NULL);
}

static void by_threads(void) { tell_all("threads"); }

static void by_io_uring(void) {
    if (has_uring())
        tell_all("io_uring");
    else
        printf(" (no io_uring here) ");
}

STW_TEST_MAIN("backend power", {"threads", by_threads}, {"io_uring", by_io_uring})
