/* SPDX-License-Identifier: Apache-2.0 */
/* The file of an NVMe arena: how it is made, reserved, named and described, what is said of it, and
 * what is refused once the disk has failed. The linker hands the calls below to this test (--wrap).
 */
#define _GNU_SOURCE /* O_TMPFILE, O_DIRECT, mkdtemp */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/names.h"
#include "backend/nvme/nvme.h"
#include "backend/nvme/sum.h"
#include "core/log.h"
#include "tests/unit/testing.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)

/* ---- calls that fail when they are told to ---- */

static int unnamed_code, named_code, link_code, reserve_code, reserve_times, cut_code, sync_code,
    sync_times, direct_code, write_code, lock_times;
static unsigned links, syncs, locks, unnamed_calls;
static uint64_t free_bytes; /* 0: what the file system says */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    const mode_t mode = (flags & O_CREAT) != 0 || unnamed ? va_arg(list, mode_t) : 0;
    va_end(list);
    unnamed_calls += unnamed;
    const int code = unnamed ? unnamed_code : (flags & O_EXCL) != 0 ? named_code : 0;
    if (code == 0) return __real_open(path, flags, mode);
    errno = code;
    return -1;
}
int __real_linkat(int from, const char *old, int to, const char *path, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *path, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *path, int flags) {
    links++;
    if (link_code == 0) return __real_linkat(from, old, to, path, flags);
    errno = link_code;
    return -1;
}
int __real_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes) {
    if (reserve_times == 0) return __real_fallocate(file, mode, offset, bytes);
    reserve_times--;
    errno = reserve_code;
    return -1;
}
int __real_ftruncate(int file, off_t bytes);
int __wrap_ftruncate(int file, off_t bytes);
int __wrap_ftruncate(int file, off_t bytes) {
    if (cut_code == 0) return __real_ftruncate(file, bytes);
    errno = cut_code;
    return -1;
}
int __real_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out) {
    const int code = __real_statvfs(path, out);
    if (free_bytes > 0) {
        out->f_frsize = 512;
        out->f_bavail = free_bytes / 512;
        out->f_bfree = 1u << 30; /* for the superuser */
    }
    return code;
}
int __wrap_fdatasync(int file);
int __wrap_fdatasync(int file) {
    (void)file;
    syncs++;
    if (sync_times == 0) return 0;
    sync_times--;
    errno = sync_code;
    return -1;
}
int __real_flock(int file, int how);
int __wrap_flock(int file, int how);
int __wrap_flock(int file, int how) {
    locks++;
    if (lock_times == 0) return __real_flock(file, how);
    lock_times--;
    errno = EINTR;
    return -1;
}
static bool is_direct(int file) { return (fcntl(file, F_GETFL) & O_DIRECT) != 0; }
ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset) {
    errno = direct_code;
    if (direct_code != 0 && is_direct(file)) return -1;
    return __real_pread(file, to, bytes, offset);
}
ssize_t __real_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset) {
    errno = write_code != 0 ? write_code : direct_code;
    if (write_code != 0 || (direct_code != 0 && is_direct(file))) return -1;
    return __real_pwrite(file, from, bytes, offset);
}

int __wrap_gethostname(char *out, size_t out_size);
int __wrap_gethostname(char *out, size_t out_size) {
    snprintf(out, out_size, "a host");
    return 0;
}
time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out) {
    (void)out;
    return 123456;
}

/* ---- arenas ---- */

static char folder[64];
static void make_folder(void) {
    snprintf(folder, sizeof folder, "nvme-file-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}
static void remove_folder(void) { CU_ASSERT_EQUAL(rmdir(folder), 0); }

static const char *path_of(unsigned again) {
    static char path[200];
    char more[20] = "";
    if (again > 1) snprintf(more, sizeof more, "-%u", again);
    snprintf(path, sizeof path, "%s/stowage-nvme-%ld-rank3%s.state", folder, (long)getpid(), more);
    return path;
}

static stw_nvme_options options_of(uint64_t bytes, uint32_t copies) {
    return (stw_nvme_options){.folder = folder,
                              .bytes = bytes,
                              .copies = copies,
                              .rank = 3,
                              .shape = {.in_memory = true}};
}

static stw_nvme *open_arena(uint64_t bytes, uint32_t copies) {
    const stw_nvme_options options = options_of(bytes, copies);
    const stw_nvme_owner owner = {77, 3, 4, 3, 4, "plan"};
    stw_nvme *nvme = NULL;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_own(nvme, &owner, err));
    return nvme;
}

static void close_arena(stw_nvme *nvme) {
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
}

static int next_descriptor(void) {
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(file);
    return file;
}

static char logged[2000];
static void keep_log(stw_log_level level, const char *text, void *user) {
    const size_t used = strlen(logged);
    (void)user;
    if (level <= STW_LOG_WARN) snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

static void put(const char *path) {
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fclose(file);
}

/* Files of an earlier process of our id are somebody's: the next free name is taken, by files that
 * have a name at once and by those that get it later. */
static void takes_the_next_name(void) {
    char path[200];
    make_folder();
    const int before = next_descriptor();
    for (int at_once = 0; at_once < 2; at_once++) {
        unnamed_code = at_once ? EOPNOTSUPP : 0;
        put(path_of(1));
        put(path_of(2));
        links = 0;
        stw_nvme *nvme = open_arena(4096, 2);
        CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), at_once ? path_of(3) : "");
        if (at_once) CU_ASSERT_EQUAL(access(path_of(3), F_OK), 0);
        CHECK_OK(stw_nvme_commit(nvme, 1, err));
        CHECK_OK(stw_nvme_agree(nvme, 1, err));
        snprintf(path, sizeof path, "%s", path_of(3));
        CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), path);
        CU_ASSERT_EQUAL(links, at_once ? 0 : 1);
        CHECK_OK(stw_nvme_commit(nvme, 2, err));
        CHECK_OK(stw_nvme_agree(nvme, 2, err)); /* it has its name */
        CU_ASSERT_EQUAL(links, at_once ? 0 : 1);
        close_arena(nvme);
        CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
        CU_ASSERT_EQUAL(unlink(path_of(1)), 0);
        CU_ASSERT_EQUAL(unlink(path_of(2)), 0);
        nvme = open_arena(4096, 1); /* one copy loses it at once */
        CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
        CU_ASSERT_NOT_EQUAL(access(path_of(1), F_OK), 0);
        CHECK_OK(stw_nvme_agree(nvme, 1, err));
        CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
        stw_nvme_close(nvme);
    }
    CU_ASSERT_EQUAL(next_descriptor(), before);
    put(path_of(1));
    unnamed_code = EOPNOTSUPP; /* a signal takes what is of no use: ours, not the other one */
    stw_nvme *ours = open_arena(4096, 2);
    CU_ASSERT_EQUAL(access(path_of(2), F_OK), 0);
    stw_nvme_on_signal();
    CU_ASSERT_NOT_EQUAL(access(path_of(2), F_OK), 0);
    CU_ASSERT_EQUAL(access(path_of(1), F_OK), 0);
    stw_nvme_close(ours);
    put(path_of(2));
    stw_nvme_on_signal(); /* it is not ours any more */
    CU_ASSERT_EQUAL(unlink(path_of(1)), 0);
    CU_ASSERT_EQUAL(unlink(path_of(2)), 0);
    stw_nvme *none = NULL;
    const stw_nvme_options options = options_of(4096, 2);
    named_code = EROFS;
    CHECK_FAILS(stw_nvme_open(&options, &none, err), STW_STATUS_IO,
                "rank3.state: making the NVMe arena's file: Read-only file system");
    named_code = EEXIST; /* all names are taken */
    CHECK_FAILS(stw_nvme_open(&options, &none, err), STW_STATUS_IO, "rank3-1000.state: making");
    named_code = unnamed_code = 0;
    stw_nvme *nvme = open_arena(4096, 2);
    CHECK_OK(stw_nvme_commit(nvme, 1, err));
    link_code = EIO;
    CHECK_FAILS(stw_nvme_agree(nvme, 1, err), STW_STATUS_IO, "naming the NVMe arena's file: Input");
    link_code = 0;
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
    close_arena(nvme);
    CU_ASSERT_EQUAL(next_descriptor(), before);
    remove_folder();
}

/* A step gets a name once it is the last one committed, of a run that is known. */
static void names_wait_for_a_step(void) {
    make_folder();
    const stw_nvme_options options = options_of(4096, 2);
    stw_nvme *nvme = NULL;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CHECK_OK(stw_nvme_commit(nvme, 1, err));
    CHECK_OK(stw_nvme_agree(nvme, 1, err)); /* nobody's */
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
    stw_nvme_close(nvme);
    nvme = open_arena(4096, 2);
    CHECK_OK(stw_nvme_commit(nvme, 0, err));
    CHECK_OK(stw_nvme_agree(nvme, 0, err));
    CHECK_OK(stw_nvme_agree(nvme, 5, err));
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
    CHECK_OK(stw_nvme_commit(nvme, 5, err));
    CHECK_OK(stw_nvme_agree(nvme, 4, err));
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
    CHECK_OK(stw_nvme_agree(nvme, 5, err));
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), path_of(1));
    close_arena(nvme);
    remove_folder();
}

static void space_is_reserved(void) {
    struct stat about;
    char said[300];
    stw_nvme *nvme = NULL;
    make_folder();
    const int before = next_descriptor();
    reserve_code = EINTR;
    reserve_times = 3;
    locks = 0;
    lock_times = 2;
    unnamed_code = EOPNOTSUPP; /* so that it can be looked at */
    nvme = open_arena(100000, 2);
    CU_ASSERT_EQUAL(reserve_times, 0);
    CU_ASSERT_EQUAL(locks, 3);
    CU_ASSERT_EQUAL_FATAL(stat(stw_nvme_path(nvme), &about), 0);
    CU_ASSERT_EQUAL(about.st_size, 6 * 4096 + 2 * 102400);
    CU_ASSERT_TRUE(about.st_blocks * 512 >= about.st_size);
    int other = open(stw_nvme_path(nvme), O_RDONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL(__real_flock(other, LOCK_SH | LOCK_NB), -1); /* it is locked */
    close(other);
    close_arena(nvme);
    static const int no[] = {EOPNOTSUPP, ENOSYS};
    for (int i = 0; i < 2; i++) {
        reserve_code = no[i];
        reserve_times = 1;
        logged[0] = '\0';
        stw_log_set(keep_log, NULL);
        nvme = open_arena(100000, 2);
        stw_log_set(NULL, NULL);
        snprintf(said, sizeof said,
                 "%s: the file system cannot reserve blocks; a disk that fills would stop a step\n",
                 path_of(1));
        CU_ASSERT_STRING_EQUAL(logged, said);
        CU_ASSERT_EQUAL_FATAL(stat(stw_nvme_path(nvme), &about), 0);
        CU_ASSERT_EQUAL(about.st_size, 6 * 4096 + 2 * 102400);
        close_arena(nvme);
    }
    const stw_nvme_options options = options_of(100000, 2);
    reserve_times = 1;
    cut_code = EIO;
    stw_log_set(keep_log, NULL);
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_IO, "reserving the NVMe arena's");
    stw_log_set(NULL, NULL);
    cut_code = 0;
    reserve_code = ENOSPC;
    reserve_times = 1;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES, "No space left");
    unnamed_code = 0;
    write_code = EIO;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_IO,
                "writing the header of the NVMe arena's file: Input/output error");
    write_code = 0;
    CU_ASSERT_EQUAL(next_descriptor(), before);
    remove_folder();
}

static void free_space_is_counted(void) {
    static const uint64_t cut = 8192;
    stw_nvme *nvme = NULL;
    make_folder();
    stw_nvme_options options = options_of(100000, 2);
    /* Header, records, cuts, two lists of checksums, and two copies of 25 blocks. */
    free_bytes = (6 + 50) * 4096 - 512;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES,
                "the NVMe arena needs two copies of 97.66 KiB (100000 bytes each), the file system "
                "has 223.50 KiB (228864 bytes) free");
    free_bytes += 512;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    stw_nvme_close(nvme);
    options.copies = 1;
    free_bytes = 100000 / 512 * 512;
    CHECK_FAILS(
        stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES,
        "the NVMe arena needs 97.66 KiB (100000 bytes each), the file system has 97.50 KiB");
    options.bytes = free_bytes;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    stw_nvme_close(nvme);
    free_bytes = 1ull << 40;
    options.shape.n_cuts = 1;
    options.shape.cuts = &cut;
    options.bytes = 8191;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_BUG, "a cut at 8192");
    free_bytes = 0;
    options.folder = "/proc/self/exe"; /* no folder */
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_BAD_INPUT, "it is not a folder");
    if (access("/dev/shm", W_OK) == 0) {
        options = options_of(4096, 1);
        options.folder = "/dev/shm";
        options.shape.in_memory = false;
        CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_USAGE,
                    "it is memory (tmpfs) and no disk");
    }
    CU_ASSERT_PTR_NULL(nvme);
    remove_folder();
}

/* Everything that the header says, and the record. */
static void headers_describe_the_file(void) {
    static stw_nvme_part parts[70];
    const uint64_t cuts[] = {70000, 20000, 70000};
    struct stat about;
    stw_nvme *nvme = NULL;
    stw_kept *kept = NULL;
    make_folder();
    for (unsigned i = 0; i < 70; i++) {
        snprintf(parts[i].name, sizeof parts[i].name, "part %u", i);
        parts[i].first = 1000 * i;
        parts[i].bytes = 1000;
    }
    stw_nvme_options options = options_of(200000, 2);
    options.shape = (stw_nvme_shape){true, 3, cuts, 70, parts};
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CHECK_OK(stw_nvme_own(nvme, &(stw_nvme_owner){9, 13, 16, 5, 8, "a plan"}, err));
    CHECK_OK(stw_nvme_write(nvme, 100, "x", 1, err));
    CHECK_OK(stw_nvme_commit(nvme, 41, err));
    CHECK_OK(stw_nvme_agree(nvme, 41, err));
    char path[200];
    snprintf(path, sizeof path, "%s", stw_nvme_path(nvme));
    CU_ASSERT_PTR_NOT_NULL(strstr(path, "-rank5.state")); /* by the local rank */
    CHECK_OK(stw_kept_open(path, &kept, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    CU_ASSERT_EQUAL(stat(path, &about), 0);
    const stw_nvme_header *h = &kept->header;
    const uint64_t sorted[] = {0, 20000, 70000, 200000};
    CU_ASSERT_TRUE(kept->live);
    CU_ASSERT_EQUAL(h->bytes, 200000);
    CU_ASSERT_EQUAL(h->n_cuts, 3);
    CU_ASSERT_EQUAL(h->n_cells, 1 + 1 + 2);
    CU_ASSERT_EQUAL(h->cuts_hash, stw_nvme_sum(sorted, sizeof sorted));
    CU_ASSERT_EQUAL(h->run, 9);
    CU_ASSERT_EQUAL(h->rank, 13);
    CU_ASSERT_EQUAL(h->world, 16);
    CU_ASSERT_EQUAL(h->local_rank, 5);
    CU_ASSERT_EQUAL(h->local_world, 8);
    CU_ASSERT_STRING_EQUAL(h->plan, "a plan");
    CU_ASSERT_STRING_EQUAL(h->host, "a host");
    CU_ASSERT_EQUAL(h->pid, getpid());
    CU_ASSERT_EQUAL(h->created_s, 123456);
    CU_ASSERT_EQUAL(h->inode, about.st_ino);
    CU_ASSERT_EQUAL(h->n_parts, 64);
    CU_ASSERT_EQUAL(memcmp(h->parts, parts, sizeof h->parts), 0);
    CU_ASSERT_EQUAL_FATAL(kept->n_steps, 1);
    CU_ASSERT_EQUAL(kept->steps[0].step, 41);
    CU_ASSERT_EQUAL(kept->steps[0].sequence, 1);
    CU_ASSERT_EQUAL(kept->steps[0].copy, 1);
    CU_ASSERT_EQUAL(kept->steps[0].time_s, 123456);
    stw_kept_close(kept);
    close_arena(nvme);
    /* Without an owner the rank of the options. */
    unnamed_code = EOPNOTSUPP;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    unnamed_code = 0;
    CHECK_OK(stw_kept_open(stw_nvme_path(nvme), &kept, err));
    CU_ASSERT_EQUAL(kept->header.rank, 3);
    CU_ASSERT_EQUAL(kept->header.world, 4);
    CU_ASSERT_EQUAL(kept->header.local_rank, 3);
    CU_ASSERT_EQUAL(kept->header.local_world, 4);
    stw_kept_close(kept);
    stw_nvme_close(nvme);
    remove_folder();
}

/* Ranges that end where a cell does, of those that a reader may choose. */
static void ranges_fit_cells(void) {
    const uint64_t cut = 70000, bytes = 300000;
    stw_nvme *nvme = NULL;
    make_folder();
    stw_nvme_options options = options_of(bytes, 1);
    options.shape.n_cuts = 1;
    options.shape.cuts = &cut;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    static const uint64_t trials[][3] = {
        /* offset, most, expected */
        {0, 65536, 65536},         {0, 65535, 65535}, /* no end within */
        {0, 70000, 70000},         {0, 69999, 65536},       {0, 135535, 70000},
        {0, 135536, 135536},       {10, 70000, 69990},      {65536, 4463, 4463},
        {65536, 4464, 4464},       {70000, 229999, 196608}, {70000, 230000, 230000},
        {70000, 1000000, 1000000}, {300000, 5, 5},          {400000, 5, 5}};
    for (size_t i = 0; i < sizeof trials / sizeof trials[0]; i++)
        CU_ASSERT_EQUAL(stw_nvme_fit(nvme, trials[i][0], trials[i][1]), trials[i][2]);
    stw_nvme_close(nvme);
    remove_folder();
}

static void checksums_have_a_cost(void) {
    unsigned char *memory = NULL;
    make_folder();
    CU_ASSERT_EQUAL_FATAL(posix_memalign((void **)&memory, 4096, MIB), 0);
    memset(memory, 3, MIB);
    stw_nvme *nvme = open_arena(MIB, 1);
    CU_ASSERT_EQUAL(stw_nvme_checksum_cost(nvme).bytes, 0);
    CHECK_OK(stw_nvme_write(nvme, 0, memory, MIB, err));
    CHECK_OK(stw_nvme_read(nvme, 0, memory, MIB, err));
    CHECK_OK(stw_nvme_read(nvme, 100, memory, 1, err)); /* its cell */
    const stw_nvme_cost cost = stw_nvme_checksum_cost(nvme);
    CU_ASSERT_EQUAL(cost.bytes, 2 * MIB + 64 * KIB);
    /* between 1 TB/s and 1 MB/s */
    CU_ASSERT_TRUE(cost.seconds > 2e-6 && cost.seconds < 2);
    CU_ASSERT_TRUE(cost.alone_s >= 0 && cost.alone_s < 2);
    CU_ASSERT_EQUAL(cost.alone_s > 1e-9, strcmp(stw_nvme_method(nvme), "io_uring") == 0);
    CU_ASSERT_FALSE(stw_nvme_is_direct(NULL));
    stw_nvme_close(nvme);
    free(memory);
    remove_folder();
}

/* A device with stricter rules than ours: the page cache, from then on. */
static void direct_that_is_refused(void) {
    unsigned char *memory = NULL;
    CU_ASSERT_EQUAL(setenv("STOWAGE_NVME_IO", "threads", 1), 0);
    CU_ASSERT_EQUAL_FATAL(posix_memalign((void **)&memory, 4096, 3 * MIB), 0);
    make_folder();
    for (int reads = 0; reads < 2; reads++) {
        stw_nvme *nvme = open_arena(3 * MIB, 1);
        const bool was = stw_nvme_is_direct(nvme);
        memset(memory, 7 + reads, 3 * MIB);
        if (reads) CHECK_OK(stw_nvme_write(nvme, 0, memory, 3 * MIB, err));
        CU_ASSERT_EQUAL(stw_nvme_is_direct(nvme), was);
        direct_code = EINVAL;
        if (reads) memset(memory, 0, 3 * MIB);
        if (reads)
            CHECK_OK(stw_nvme_read(nvme, 0, memory, 3 * MIB, err));
        else
            CHECK_OK(stw_nvme_write(nvme, 0, memory, 3 * MIB, err));
        CU_ASSERT_FALSE(stw_nvme_is_direct(nvme));
        direct_code = 0;
        memset(memory, 0, 3 * MIB);
        CHECK_OK(stw_nvme_read(nvme, 0, memory, 3 * MIB, err));
        CU_ASSERT_TRUE(memory[0] == 7 + reads && memory[3 * MIB - 1] == 7 + reads);
        CU_ASSERT_FALSE(stw_nvme_is_direct(nvme));
        stw_nvme_close(nvme);
        nvme = open_arena(3 * MIB, 1);
        direct_code = EIO; /* that is another error */
        if (was)
            CHECK_FAILS(stw_nvme_write(nvme, 0, memory, 3 * MIB, err), STW_STATUS_IO,
                        "writing 3145728 bytes at 0 of the NVMe arena stopped at byte ");
        direct_code = 0;
        CU_ASSERT_EQUAL(stw_nvme_is_direct(nvme), was);
        stw_nvme_close(nvme);
    }
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_NVME_IO"), 0);
    free(memory);
    remove_folder();
}

/* After a commit that failed nobody knows what the disk holds. */
static void disks_that_fail(void) {
    char byte = 0;
    make_folder();
    for (uint32_t copies = 1; copies <= 2; copies++) {
        stw_nvme *nvme = open_arena(100000, copies);
        CHECK_OK(stw_nvme_write(nvme, 0, "a", 1, err));
        syncs = 0;
        sync_code = EINTR;
        sync_times = 5;
        CHECK_OK(stw_nvme_commit(nvme, 8, err));
        CU_ASSERT_EQUAL(sync_times, 0);
        CU_ASSERT_EQUAL(syncs, 5 + copies); /* data and checksums, and the record */
        CHECK_OK(stw_nvme_write(nvme, 0, "b", 1, err));
        sync_code = EIO;
        sync_times = 1;
        CHECK_FAILS(stw_nvme_commit(nvme, 9, err), STW_STATUS_IO,
                    "waiting for the disk to hold the NVMe arena's file: Input/output error");
        CHECK_FAILS(stw_nvme_commit(nvme, 9, err), STW_STATUS_IO,
                    "a commit after step 8 failed: the file stays as it is");
        CHECK_FAILS(stw_nvme_write(nvme, 0, "c", 1, err), STW_STATUS_IO, "after step 8 failed");
        CHECK_OK(stw_nvme_read(nvme, 0, &byte, 1, err));
        CU_ASSERT_EQUAL(byte, copies == 1 ? 'b' : 'a');
        stw_nvme_close(nvme);
    }
    /* The record of the copy that is written to goes first. */
    stw_nvme *nvme = open_arena(100000, 2);
    for (uint64_t step = 1; step <= 2; step++) {
        CHECK_OK(stw_nvme_write(nvme, 0, "a", 1, err));
        CHECK_OK(stw_nvme_commit(nvme, step, err));
    }
    syncs = 0;
    sync_times = 1;
    CHECK_FAILS(stw_nvme_write(nvme, 0, "b", 1, err), STW_STATUS_IO, "waiting for the disk");
    CHECK_FAILS(stw_nvme_write(nvme, 0, "b", 1, err), STW_STATUS_IO, "after step 2 failed");
    CU_ASSERT_EQUAL(syncs, 1);
    CHECK_OK(stw_nvme_read(nvme, 0, &byte, 1, err));
    CU_ASSERT_EQUAL(byte, 'a');
    stw_nvme_close(nvme);
    nvme = open_arena(100000, 2); /* once for all writes between two commits */
    CHECK_OK(stw_nvme_write(nvme, 0, "a", 1, err));
    CHECK_OK(stw_nvme_commit(nvme, 1, err));
    CHECK_OK(stw_nvme_write(nvme, 0, "a", 1, err));
    CHECK_OK(stw_nvme_commit(nvme, 2, err));
    syncs = 0;
    CHECK_OK(stw_nvme_write(nvme, 0, "", 0, err));
    CU_ASSERT_EQUAL(syncs, 0);
    CHECK_OK(stw_nvme_write(nvme, 0, "b", 1, err));
    CHECK_OK(stw_nvme_write(nvme, 5, "b", 1, err));
    CU_ASSERT_EQUAL(syncs, 1);
    CHECK_OK(stw_nvme_commit(nvme, 3, err));
    CU_ASSERT_EQUAL(syncs, 3);
    CHECK_OK(stw_nvme_commit(nvme, 4, err)); /* nothing was written: the record alone */
    CU_ASSERT_EQUAL(syncs, 4);
    write_code = ENOSPC;
    CHECK_FAILS(stw_nvme_commit(nvme, 5, err), STW_STATUS_NO_RESOURCES,
                "writing a record into the NVMe arena's file: No space left");
    write_code = 0;
    stw_nvme_close(nvme);
    remove_folder();
}

/* What is said of a file that stays, and what damage is called with one copy. */
static void files_that_stay_are_told_of(void) {
    char path[200], said[700];
    int file = -1;
    make_folder();
    for (int damaged = 0; damaged < 2; damaged++) {
        stw_nvme *nvme = open_arena(100000, 2);
        CHECK_OK(stw_nvme_write(nvme, 0, "a", 1, err));
        CHECK_OK(stw_nvme_commit(nvme, 6, err));
        CHECK_OK(stw_nvme_agree(nvme, 6, err));
        snprintf(path, sizeof path, "%s", stw_nvme_path(nvme));
        if (damaged) CU_ASSERT_EQUAL(truncate(path, 8192), 0);
        logged[0] = '\0';
        stw_log_set(keep_log, NULL);
        stw_nvme_close(nvme);
        stw_log_set(NULL, NULL);
        snprintf(said, sizeof said,
                 "the state on NVMe of step 6 is %s %s; see: stowage state %s %s\n",
                 damaged ? "damaged: the header or the record was changed in" : "kept in", path,
                 damaged ? "verify" : "list", folder);
        CU_ASSERT_STRING_EQUAL(logged, said);
        CU_ASSERT_EQUAL(unlink(path), 0);
    }
    unnamed_code = EOPNOTSUPP;
    stw_nvme *nvme = open_arena(100000, 2); /* never agreed: it goes */
    unnamed_code = 0;
    snprintf(path, sizeof path, "%s", stw_nvme_path(nvme));
    CHECK_OK(stw_nvme_commit(nvme, 6, err));
    logged[0] = '\0';
    stw_log_set(keep_log, NULL);
    stw_nvme_close(nvme);
    stw_log_set(NULL, NULL);
    CU_ASSERT_STRING_EQUAL(logged, "");
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);

    static const stw_nvme_part part = {"exp_avg", 65536, 1000};
    stw_nvme_options options = options_of(100000, 1);
    char bytes[10];
    options.shape.n_parts = 1;
    options.shape.parts = &part;
    unnamed_code = EOPNOTSUPP;
    snprintf(path, sizeof path, "%s", path_of(1));
    snprintf(said, sizeof said, "%s.again", path);
    named_code = 0;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    unnamed_code = 0;
    stw_nvme_note_step(nvme, 12);
    for (int fd = 3; fd < 64; fd++) { /* the file has no name: what is open and so long */
        struct stat about;
        if (fstat(fd, &about) == 0 && about.st_size == 100000 && about.st_nlink == 0) file = fd;
        if (file >= 0 && !is_direct(file)) break;
    }
    CU_ASSERT_TRUE_FATAL(file >= 0);
    CU_ASSERT_EQUAL(__real_pwrite(file, "?", 1, 65540), 1);
    CHECK_FAILS(stw_nvme_read(nvme, 65536, bytes, 10, err), STW_STATUS_DISAGREE,
                "the state on NVMe of step 12 is damaged: bytes 65536 to 100000 (exp_avg from its "
                "byte 0) do not have their checksum (");
    stw_nvme_close(nvme);
    remove_folder();
}

STW_TEST_MAIN("backend nvme file", {"takes the next name", takes_the_next_name},
              {"names wait for a step", names_wait_for_a_step},
              {"space is reserved", space_is_reserved},
              {"free space is counted", free_space_is_counted},
              {"headers describe the file", headers_describe_the_file},
              {"ranges fit cells", ranges_fit_cells},
              {"checksums have a cost", checksums_have_a_cost},
              {"direct I/O that is refused", direct_that_is_refused},
              {"disks that fail", disks_that_fail},
              {"files that stay are told of", files_that_stay_are_told_of})
