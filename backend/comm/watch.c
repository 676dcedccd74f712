/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memfd_create */
#include "backend/comm/watch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define PAGE_NAME "stowage-rank"
#define PAGE_MAGIC 0x73747702u /* raise it where the page changes */
#define WHAT_BYTES 96
#define WHY_BYTES 320
#define HOST_BYTES 65
#define MOST_NAMED 4 /* ranks in one error */

/* Written by one rank, read by the others of its node. */
typedef struct page {
    atomic_uint magic, rank;
    atomic_ullong begun, ended; /* collectives */
    atomic_bool gave_up;
    char what[2][WHAT_BYTES]; /* of collective n in [n % 2] */
    char why[WHY_BYTES];      /* it gave up; "" or not known */
} page;
_Static_assert(sizeof(page) <= PAGE_BYTES, "what a rank shows fits into a page");

typedef struct peer {
    const page *page; /* NULL: not found */
    pid_t process;
} peer;

struct stw_watch {
    stw_ranks ranks;
    page *own;
    int file;
    atomic_bool gives_up; /* only the first reason is told */
    uint32_t first;       /* rank of this node */
    char host[HOST_BYTES];
    pthread_mutex_t mutex;
    peer *peers; /* [ranks.local_world], under the mutex but for signals */
};

static _Atomic(stw_watch *) current; /* for signals */

/* ---- the page of this rank ---- */

stw_watch *stw_watch_open(const stw_ranks *ranks) {
    stw_watch *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    w->ranks = *ranks;
    if (gethostname(w->host, sizeof w->host - 1) != 0)
        snprintf(w->host, sizeof w->host, "its node");
    w->first = ranks->rank - ranks->local_rank;
    w->peers = calloc(ranks->local_world, sizeof *w->peers);
    w->file = memfd_create(PAGE_NAME, MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (w->peers != NULL && w->file >= 0 && ftruncate(w->file, PAGE_BYTES) == 0)
        memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, w->file, 0);
    if (memory == MAP_FAILED) {
        if (w->file >= 0) (void)close(w->file);
        free(w->peers);
        free(w);
        return NULL;
    }
    w->own = memory;
    pthread_mutex_init(&w->mutex, NULL);
    atomic_store(&current, w);
    atomic_store(&w->own->rank, ranks->rank);
    atomic_store(&w->own->magic, PAGE_MAGIC);
    return w;
}

void stw_watch_close(stw_watch *w) {
    stw_watch *mine = w;
    if (w == NULL) return;
    (void)atomic_compare_exchange_strong(&current, &mine, NULL);
    for (uint32_t i = 0; i < w->ranks.local_world; i++)
        if (w->peers[i].page != NULL) (void)munmap((void *)(uintptr_t)w->peers[i].page, PAGE_BYTES);
    (void)munmap(w->own, PAGE_BYTES);
    (void)close(w->file);
    pthread_mutex_destroy(&w->mutex);
    free(w->peers);
    free(w);
}

void stw_watch_begin(stw_watch *w, const char *what) {
    if (w == NULL) return;
    unsigned long long number = atomic_load_explicit(&w->own->begun, memory_order_relaxed) + 1;
    snprintf(w->own->what[number % 2], WHAT_BYTES, "%s", what);
    atomic_store_explicit(&w->own->begun, number, memory_order_release);
}

void stw_watch_end(stw_watch *w) {
    if (w != NULL)
        atomic_store_explicit(&w->own->ended,
                              atomic_load_explicit(&w->own->begun, memory_order_relaxed),
                              memory_order_release);
}

void stw_watch_give_up(stw_watch *w, const char *why) {
    if (w == NULL || atomic_exchange(&w->gives_up, true)) return;
    snprintf(w->own->why, WHY_BYTES, "%s", why != NULL ? why : "");
    atomic_store(&w->own->gave_up, true);
}

void stw_watch_why(const stw_watch *w, char *out, size_t out_size) {
    out[0] = '\0';
    if (w != NULL && w->own->why[0] != '\0')
        snprintf(out, out_size, "rank %u has failed: %s", w->ranks.rank, w->own->why);
}

bool stw_watch_others_gave_up(stw_watch *w) {
    bool any = false;
    if (w == NULL) return false;
    pthread_mutex_lock(&w->mutex);
    for (uint32_t i = 0; i < w->ranks.local_world && !any; i++)
        any = w->peers[i].page != NULL && atomic_load(&w->peers[i].page->gave_up);
    pthread_mutex_unlock(&w->mutex);
    return any;
}

/* ---- processes of the other ranks ---- */

/* The value of a variable in an environment of `size` bytes, NULL where it is not set. */
static const char *variable(const char *environment, size_t size, const char *name) {
    size_t length = strlen(name);
    for (const char *p = environment; p < environment + size; p += strlen(p) + 1)
        if (strncmp(p, name, length) == 0 && p[length] == '=') return p + length + 1;
    return NULL;
}

/* Processes that one launcher started together have these in common. */
static bool same_job(const char *environment, size_t size) {
    static const char *const names[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                        "SLURM_JOB_ID",   "SLURM_STEP_ID",
                                        "MASTER_ADDR",    "MASTER_PORT",
                                        "WORLD_SIZE",     "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *mine = getenv(names[i]), *other = variable(environment, size, names[i]);
        if ((mine == NULL) != (other == NULL)) return false;
        if (mine != NULL && strcmp(mine, other) != 0) return false;
    }
    return true;
}

/* The rank that a process was started as, of the same job; UINT32_MAX: none. */
static uint32_t rank_of(const stw_watch *w, pid_t process) {
    const char *name = strcmp(w->ranks.launcher, "torchrun") == 0 ? "RANK"
                       : strcmp(w->ranks.launcher, "slurm") == 0  ? "SLURM_PROCID"
                                                                  : "OMPI_COMM_WORLD_RANK";
    static const size_t most = 1u << 18;
    char path[64];
    uint32_t rank = UINT32_MAX;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return rank; /* another user's, or gone */
    char *environment = malloc(most + 1);
    ssize_t n = 0;
    size_t size = 0;
    while (environment != NULL && size < most &&
           (n = read(file, environment + size, most - size)) > 0)
        size += (size_t)n;
    (void)close(file);
    if (environment == NULL) return rank;
    environment[size] = '\0';
    const char *value = size > 0 ? variable(environment, size, name) : NULL;
    if (value != NULL && same_job(environment, size)) rank = (uint32_t)strtoul(value, NULL, 10);
    free(environment);
    return rank;
}

/* Map the page that a process shows; NULL where it has none (a shell that started the rank). */
static const page *page_of(pid_t process) {
    char folder[64], path[400], target[64];
    const page *found = NULL;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)process);
    DIR *files = opendir(folder);
    for (struct dirent *e; files != NULL && found == NULL && (e = readdir(files)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = '\0';
        if (strstr(target, PAGE_NAME) == NULL) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        struct stat about;
        if (file < 0) continue;
        void *memory = MAP_FAILED;
        if (fstat(file, &about) == 0 && about.st_size == PAGE_BYTES)
            memory = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, file, 0);
        (void)close(file);
        if (memory == MAP_FAILED) continue;
        if (atomic_load(&((const page *)memory)->magic) == PAGE_MAGIC)
            found = memory;
        else
            (void)munmap(memory, PAGE_BYTES);
    }
    if (files != NULL) (void)closedir(files);
    return found;
}

static void find_peers(stw_watch *w) {
    if (w->ranks.local_world < 2) return;
    DIR *processes = opendir("/proc");
    for (struct dirent *e; processes != NULL && (e = readdir(processes)) != NULL;) {
        pid_t process = (pid_t)strtol(e->d_name, NULL, 10);
        if (!isdigit((unsigned char)e->d_name[0]) || process == getpid()) continue;
        uint32_t rank = rank_of(w, process);
        if (rank < w->first || rank - w->first >= w->ranks.local_world || rank == w->ranks.rank)
            continue;
        peer *p = &w->peers[rank - w->first];
        if (p->page != NULL) continue;
        p->page = page_of(process);
        if (p->page != NULL || p->process == 0) p->process = process;
    }
    if (processes != NULL) (void)closedir(processes);
}

void stw_watch_find(stw_watch *w) {
    if (w == NULL) return;
    pthread_mutex_lock(&w->mutex);
    find_peers(w);
    pthread_mutex_unlock(&w->mutex);
}

/* The program that a process runs; "" where it is not known. */
static void program_of(pid_t process, char *out, size_t out_size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, out, out_size - 1) : 0;
    if (file >= 0) (void)close(file);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

/* 'R', 'S', 'T', ...; 0 where there is no such process. */
static char state_of(pid_t process) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int file = process > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t n = read(file, text, sizeof text - 1);
    (void)close(file);
    if (n <= 0) return 0;
    text[n] = '\0';
    const char *end = strrchr(text, ')'); /* after the program's name */
    char state = '\0';
    if (end != NULL && end[1] == ' ') state = end[2];
    return state == 'Z' || state == 'X' ? 0 : state;
}

void stw_watch_linger(const stw_watch *w) {
    const struct timespec nap = {0, 10000000};
    if (w == NULL || !atomic_load(&w->own->gave_up)) return;
    for (int tries = 0; tries < 100; tries++) {
        bool waits = false;
        for (uint32_t i = 0; i < w->ranks.local_world; i++) {
            const peer *p = &w->peers[i];
            if (p->page == NULL || atomic_load(&p->page->gave_up)) continue;
            char state = state_of(p->process);
            waits |= state != 0 && state != 'T' && state != 't';
        }
        if (!waits) return;
        (void)nanosleep(&nap, NULL);
    }
}

/* ---- naming ---- */

/* A process that shows no page: it still starts, or it is no rank of this program at all. */
static void describe_late(const stw_watch *w, const char *who, pid_t process, char *out,
                          size_t out_size) {
    char program[32] = "";
    program_of(process, program, sizeof program);
    if (strncmp(program, "stowage", 7) == 0 || program[0] == '\0')
        snprintf(out, out_size, "%s has not joined", who);
    else
        snprintf(out, out_size,
                 "%s has not joined: it runs %s; if that is no rank of this plan, take it out of "
                 "the launcher's command; see: ps -fp %d on %s",
                 who, program, (int)process, w->host);
}

/* What keeps the others from a collective, "" where the rank has come to it. */
static void describe_rank(const stw_watch *w, uint32_t rank, unsigned long long number, char *out,
                          size_t out_size) {
    const peer *p = &w->peers[rank - w->first];
    char state = state_of(p->process), who[64], last[WHAT_BYTES + 64] = "";
    unsigned long long begun = 0, ended = 0;
    snprintf(who, sizeof who, "rank %u (process %d)", rank, (int)p->process);
    out[0] = '\0';
    if (p->page != NULL) {
        begun = atomic_load_explicit(&p->page->begun, memory_order_acquire);
        ended = atomic_load_explicit(&p->page->ended, memory_order_acquire);
        if (begun > 0)
            snprintf(last, sizeof last, " %s operation %llu (%.*s)", begun > ended ? "in" : "after",
                     begun, WHAT_BYTES - 1, p->page->what[begun % 2]);
    }
    if (p->process == 0)
        snprintf(out, out_size, "rank %u has no process on this node", rank);
    else if (state == 0)
        snprintf(out, out_size, "%s has ended%s", who, last);
    else if (state == 't')
        snprintf(out, out_size, "%s is stopped%s by a debugger", who, last);
    else if (state == 'T')
        snprintf(out, out_size, "%s is stopped%s; to continue it: kill -CONT %d on %s", who, last,
                 (int)p->process, w->host);
    else if (p->page == NULL)
        describe_late(w, who, p->process, out, out_size);
    else if (atomic_load(&p->page->gave_up) && p->page->why[0] != '\0' && begun < number)
        snprintf(out, out_size, "%s has failed%s: %.*s", who, last, WHY_BYTES - 1, p->page->why);
    else if (atomic_load(&p->page->gave_up))
        return; /* it waited for another one */
    else if (begun < number)
        snprintf(out, out_size, "%s has not come to it: it runs, and is%s", who,
                 begun > 0 ? last : " before its first operation");
}

void stw_watch_operation(const stw_watch *w, const char *otherwise, char *out, size_t out_size) {
    unsigned long long number = w != NULL ? atomic_load(&w->own->begun) : 0;
    if (number > 0)
        snprintf(out, out_size, "operation %llu (%s)", number, w->own->what[number % 2]);
    else
        snprintf(out, out_size, "%s", otherwise);
}

void stw_watch_describe(stw_watch *w, char *out, size_t out_size) {
    if (out_size > 0) out[0] = '\0';
    if (w == NULL || out_size == 0) return;
    unsigned long long number = atomic_load(&w->own->begun);
    uint32_t named = 0, more = 0;
    size_t used = 0;
    pthread_mutex_lock(&w->mutex);
    find_peers(w);
    for (uint32_t rank = w->first; rank < w->first + w->ranks.local_world; rank++) {
        char text[WHY_BYTES + 300] = "";
        if (rank != w->ranks.rank) describe_rank(w, rank, number, text, sizeof text);
        if (text[0] == '\0') continue;
        if (named++ >= MOST_NAMED) {
            more++;
            continue;
        }
        used += (size_t)snprintf(out + used, out_size - used, "%s%s", used > 0 ? "; " : "", text);
        if (used >= out_size) break;
    }
    pthread_mutex_unlock(&w->mutex);
    if (more > 0 && used < out_size)
        (void)snprintf(out + used, out_size - used, "; and %u more ranks", more);
}

bool stw_watch_missing(stw_watch *w, char *out, size_t out_size) {
    uint32_t missing = 0, before = 0;
    char who[600];
    if (w == NULL) return false;
    stw_watch_find(w);
    pthread_mutex_lock(&w->mutex);
    for (uint32_t i = 0; i < w->ranks.local_world; i++) {
        if (i == w->ranks.local_rank) continue;
        missing += w->peers[i].page == NULL;
        before += w->peers[i].page != NULL && i < w->ranks.local_rank;
    }
    pthread_mutex_unlock(&w->mutex);
    if (before > 0 || (missing == 0 && w->ranks.local_world == w->ranks.world)) return false;
    stw_watch_describe(w, who, sizeof who);
    if (w->ranks.local_world == w->ranks.world)
        snprintf(out, out_size, "%u of %u ranks to start: %s", missing, w->ranks.world, who);
    else if (missing > 0)
        snprintf(out, out_size, "%u of the %u ranks of %s, and maybe for other nodes: %s", missing,
                 w->ranks.local_world, w->host, who);
    else
        snprintf(out, out_size, "ranks of other nodes than %s", w->host);
    return true;
}

void stw_watch_who_gave_up(const stw_watch *w, char *out, size_t out_size) {
    snprintf(out, out_size, "a rank has failed or issues other operations");
    for (uint32_t i = 0; w != NULL && i < w->ranks.local_world; i++)
        if (w->peers[i].page != NULL && atomic_load(&w->peers[i].page->gave_up))
            snprintf(out, out_size, "rank %u (process %d) waits no longer", w->first + i,
                     (int)w->peers[i].process);
}

/* ---- signals: only what a handler may call ---- */

static void say(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void say_number(unsigned long long number) {
    char digits[24], *p = digits + sizeof digits - 1;
    *p = '\0';
    do *--p = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    say(p);
}

void stw_watch_on_signal(void) {
    const stw_watch *w = atomic_load(&current);
    int error = errno;
    for (uint32_t i = 0; w != NULL && i < w->ranks.local_world; i++) {
        const peer *p = &w->peers[i];
        if (p->process == 0 || kill(p->process, 0) == 0 || errno != ESRCH) continue;
        unsigned long long number = atomic_load(&w->own->begun);
        say("stowage: rank ");
        say_number(w->ranks.rank);
        say(" is ended in operation ");
        say_number(number);
        say(" (");
        say(w->own->what[number % 2]);
        say("): rank ");
        say_number(w->first + i);
        say(" (process ");
        say_number((unsigned long long)p->process);
        say(") has ended before\n");
    }
    errno = error;
}
