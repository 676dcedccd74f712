/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over the calls that the two programs make on a tiny job, lets each fail in turn and looks
 * at what comes of it. Right are: an error with an exit code that is documented, and a message
 * ("clean"); success with the output of an undisturbed run ("same"); success with another output
 * ("other") where a call only asks about the machine. Wrong are a signal, a hang, exit 70, an exit
 * code of bad input where memory was out, a leak, a file that is half written or left behind.
 *
 * Usage: walk [-m MOST] [-d DENSE] [-t SECONDS] [-c CASE]... [-f CALL] [-p PART/OF] [-v]
 *             BIN_FOLDER MODELS_FOLDER
 *
 * Without -m, -d and -t every number of every call. With -m and -t the numbers are spread over all
 * there are: MOST of each call, or as many as the time allows, one of each at least. With -d every
 * number up to DENSE, and up to DENSE more of those behind it, at even distances. -p takes every
 * OF-th of all this, from PART = 0 on: several processes share the work. */
#define _GNU_SOURCE /* nftw, asprintf */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <gnu/libc-version.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/walk_cases.h"

enum { MOST_CALLS = 128, MOST_NAMES = 64, LEAK_CODE = 99, LIMIT_S = 200, MOST_TEXT = 1 << 20 };

typedef struct outcome {
    int code; /* -1: a signal, -2: it ran too long */
    int signal;
    bool reached;   /* the call was made to fail */
    char where[32]; /* from where it was called */
    char *out, *err;
} outcome;

static const char *bin, *models;
static char home[] = "faults-XXXXXX", *top;
static bool verbose;
static unsigned n_wrong;

/* What was wrong, said last, too: the end of a long output is what people see. */
static char complaints[1 << 16];

static void complain(const char *format, ...) {
    size_t used = strlen(complaints);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(complaints + used, sizeof complaints - used, format, args);
    va_end(args);
}

typedef struct walk_choice {
    unsigned long most, dense, part, parts;
    double seconds;
    const char *names[MOST_NAMES]; /* of cases; none: all */
    size_t n_names;
    const char *call; /* NULL: all */
} walk_choice;

static void stop(const char *what) {
    perror(what);
    exit(2);
}

/* ---- files ---- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, MOST_TEXT + 1);
    if (text == NULL) stop("walk");
    if (file == NULL) return text[0] = '\0', text;
    size_t n = fread(text, 1, MOST_TEXT, file);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\0') text[i] = '0';
    fclose(file);
    return text;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    return at->level > 0 ? remove(path) : 0;
}

/* An empty folder to work in, with the inputs of all cases as links. */
static void fresh_folder(void) {
    if (chdir(top) != 0) stop(top);
    (void)nftw("work", remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir("work", 0700) != 0 && errno != EEXIST) stop("work");
    if (chdir("work") != 0) stop("work");
}

/* ---- state on NVMe ---- */

static bool is_state(const char *name) {
    size_t n = strlen(name);
    return strncmp(name, "stowage-nvme-", 13) == 0 && n > 6 && strcmp(name + n - 6, ".state") == 0;
}

/* @return files of state in a folder; they are entered into the present one, too, if `enter` */
static size_t count_state(const char *path, bool enter) {
    DIR *folder = opendir(path);
    size_t n = 0;
    if (folder == NULL) stop(path);
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
        if (!is_state(e->d_name)) continue;
        n++;
        if (enter && linkat(dirfd(folder), e->d_name, AT_FDCWD, e->d_name, 0) != 0) stop(path);
    }
    closedir(folder);
    return n;
}

static size_t n_matches(const char *text, const char *what) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what)) n++;
    return n;
}

static outcome launch(const walk_case *c, const char *fail);
static void drop(outcome *o);

/* What a run left: is there damage in a file that is called whole, or does looking at it fail? */
static const char *check_left(void) {
    static const walk_case verify = {.arguments = {"stowage", "state", "verify", ".", "--json"}};
    if (count_state(".", false) == 0) return NULL;
    outcome o = launch(&verify, NULL);
    bool right = (o.code == 0 || o.code == 8) &&
                 n_matches(o.out, "\"file\": ") == count_state(".", false) &&
                 n_matches(o.out, "\"whole\": true") <= n_matches(o.out, "\"damaged\": false");
    drop(&o);
    return right ? NULL : "state that is called whole does not verify";
}

/* What a run saved: a checkpoint that is complete has the bytes that it says. */
static const char *check_saved(void) {
    static const walk_case verify = {.arguments = {"stowage", "state", "verify", "saves"}};
    if (access("saves", F_OK) != 0) return NULL;
    outcome o = launch(&verify, NULL);
    const bool none = strstr(o.out, "holds no state") != NULL;
    const bool right = o.code == 0 || none;
    drop(&o);
    return right ? NULL : "a checkpoint does not verify";
}

static const char *check_state(const walk_case *c, bool success) {
    if (c->state == WALK_STATE_SAVED) return check_saved();
    if (c->state == WALK_STATE_LEFT) return check_left();
    size_t n = count_state(".", false);
    if (c->state == WALK_STATE_STAYS && n != count_state("../in", false)) return "state is lost";
    if (c->state == WALK_STATE_GOES && success && n > 0) return "state is not removed";
    return NULL;
}

/* ---- files that are left ---- */

static char left[256]; /* the first file that nobody asked for, and that no message names */
static const walk_case *present;
static const char *messages;

static int look_at(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    if (at->level == 0) return 0;
    const char *name = path + 2;
    for (size_t i = 0; i < WALK_MOST_OUTPUTS && present->outputs[i] != NULL; i++)
        if (strcmp(present->outputs[i], name) == 0 ||
            (strncmp(present->outputs[i], name, strlen(name)) == 0 &&
             present->outputs[i][strlen(name)] == '/'))
            return 0;
    if (present->state == WALK_STATE_SAVED && strncmp(name, "saves", 5) == 0) return 0;
    bool works_on_it = present->state == WALK_STATE_STAYS || present->state == WALK_STATE_GOES;
    if (works_on_it && is_state(name)) return 0;
    if (strcmp(name, "out") == 0 || strcmp(name, "err") == 0 || strcmp(name, "log") == 0) return 0;
    if (strstr(messages, name) != NULL) return 0; /* kept on purpose */
    snprintf(left, sizeof left, "%s", name);
    return 1;
}

/* ---- one run ---- */

static void spread(const char *from, char *out, size_t size) {
    size_t used = 0;
    for (const char *p = from; *p != '\0' && used + 1 < size;) {
        const char *with = strncmp(p, "{models}", 8) == 0 ? models
                           : strncmp(p, "{bin}", 5) == 0  ? bin
                           : strncmp(p, "{in}", 4) == 0   ? top
                                                          : NULL;
        if (with == NULL) {
            out[used++] = *p++;
            continue;
        }
        used += (size_t)snprintf(out + used, size - used, "%s%s", with, with == top ? "/in" : "");
        p = strchr(p, '}') + 1;
    }
    out[used < size ? used : size - 1] = '\0';
}

static pid_t start(const walk_case *c, const char *fail) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    char text[WALK_MOST_ARGUMENTS][512], program[512];
    char *args[WALK_MOST_ARGUMENTS + 1] = {NULL};
    for (size_t i = 0; c->arguments[i] != NULL; i++) {
        spread(c->arguments[i], text[i], sizeof text[i]);
        args[i] = text[i];
    }
    bool found = strncmp(args[0], "stowage", 7) != 0;
    snprintf(program, sizeof program, "%s%s%s", found ? "" : bin, found ? "" : "/", args[0]);
    if (fail != NULL) setenv("STOWAGE_FAIL", fail, 1);
    setenv("STOWAGE_FAIL_LOG", "log", 1);
    for (size_t i = 0; i < 2 && c->environment[i] != NULL; i++)
        (void)putenv((char *)(uintptr_t)c->environment[i]);
    int out = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0600), none = open("/dev/null", O_RDONLY);
    if (out < 0 || err < 0 || none < 0 || dup2(none, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    (void)setpgid(0, 0);
    execvp(program, args);
    _exit(127);
}

/* In the present folder. */
static outcome launch(const walk_case *c, const char *fail) {
    outcome o = {.code = -2};
    pid_t pid = start(c, fail);
    if (pid < 0) stop("fork");
    struct timespec nap = {0, 1000000};
    int status = 0;
    for (int i = 0; i < LIMIT_S * 1000; i++) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid) {
            o.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            o.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            break;
        }
        nanosleep(&nap, NULL);
    }
    (void)kill(-pid, SIGKILL);
    if (o.code == -2) (void)waitpid(pid, &status, 0);
    o.out = read_text("out");
    o.err = read_text("err");
    char *log = read_text("log");
    const char *failed = strstr(log, "failed ");
    o.reached = failed != NULL;
    if (failed != NULL) sscanf(failed, "%*s %*s %*s at %31s", o.where);
    free(log);
    return o;
}

static outcome run(const walk_case *c, const char *fail) {
    fresh_folder();
    if (c->state == WALK_STATE_STAYS || c->state == WALK_STATE_GOES)
        (void)count_state("../in", true);
    return launch(c, fail);
}

static void drop(outcome *o) {
    free(o->out);
    free(o->err);
}

/* ---- what an undisturbed run makes ---- */

typedef struct walked_call {
    char name[48];
    unsigned long long n; /* how often an undisturbed run makes it */
    unsigned walked, clean, same, other, wrong;
} walked_call;

typedef struct good {
    int code;
    char *text[WALK_MOST_OUTPUTS + 1]; /* stdout, then the files */
    walked_call calls[MOST_CALLS];
    size_t n_calls;
} good;

/* Bytes of a unit of time or of a rate at `p`, with the blank before it. */
static size_t unit_length(const char *p) {
    static const char *const units[] = {"ns",   "us",       "ms",       "s",        "min",
                                        "h",    "kparam/s", "Mparam/s", "Gparam/s", "B/s",
                                        "kB/s", "MB/s",     "GB/s",     "TB/s"};
    size_t blank = *p == ' ';
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t n = strlen(units[i]);
        if (strncmp(p + blank, units[i], n) == 0 && !isalpha((unsigned char)p[blank + n]))
            return blank + n;
    }
    return 0;
}

/* Of a checksum over what was measured, such as the solver's section of a plan, which has seconds,
 * or the bytes of a run: what comes before it; 0 of anything else. */
static size_t timed_checksum(const char *p) {
    static const char *const keys[] = {"\"solver\": \"",    "\"whole\": \"",  "\"peaks\": \"",
                                       "\"movements\": \"", "\"time_s\": \"", "\"rates\": \"",
                                       "\"steady\": \"",    "\"ranks\": \"",  "\"nodes\": \""};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strncmp(p, keys[i], strlen(keys[i])) == 0) return strlen(keys[i]);
    return 0;
}

/* Seconds below 0.0001 have an exponent; a comma goes with a number. */
static size_t exponent_length(const char *p) {
    if (*p != 'e' || (p[1] != '-' && p[1] != '+')) return 0;
    const size_t n = strspn(p + 2, "0123456789");
    return n > 0 ? 2 + n + strspn(p + 2 + n, ",") : 0;
}

/* Numbers and their units are not compared, nor is the width of columns and rules: seconds, dates
 * and rates are measured. */
static void mask(char *text) {
    char *to = text;
    for (const char *p = text; *p != '\0';) {
        size_t key = timed_checksum(p);
        if (key > 0) p += key + strcspn(p + key, "\"");
        size_t n = strspn(p, "0123456789.,");
        if (isdigit((unsigned char)*p) && n > 0) {
            p += n + exponent_length(p + n);
            p += unit_length(p);
            *to++ = '#';
        } else if (*p == ' ' && to > text && (to[-1] == ' ' || to[-1] == '\n')) {
            p++;
        } else if (*p == '-' && to > text && to[-1] == '-') {
            p++;
        } else {
            *to++ = *p++;
        }
    }
    *to = '\0';
}

static char *output(const walk_case *c, const outcome *o, size_t i) {
    char *text = i == 0 ? strdup(o->out) : read_text(c->outputs[i - 1]);
    if (text == NULL) stop("walk");
    if (!c->exact) mask(text);
    return text;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const walked_call *)a)->name, ((const walked_call *)b)->name);
}

static void read_counts(good *g, const char *only) {
    char *log = read_text("log");
    for (char *line = strtok(log, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        walked_call one = {.n = 0};
        if (sscanf(line, "count %47s %llu", one.name, &one.n) != 2) continue;
        size_t i = 0;
        while (i < g->n_calls && strcmp(g->calls[i].name, one.name) != 0) i++;
        if (i == MOST_CALLS) continue;
        if (only != NULL && strncmp(one.name, only, strlen(only)) != 0) continue;
        if (i == g->n_calls) g->calls[g->n_calls++] = one;
        if (one.n > g->calls[i].n) g->calls[i].n = one.n; /* of several processes the most */
    }
    free(log);
    qsort(g->calls, g->n_calls, sizeof g->calls[0], by_name);
}

static size_t n_outputs(const walk_case *c) {
    size_t n = 0;
    while (n < WALK_MOST_OUTPUTS && c->outputs[n] != NULL) n++;
    return n;
}

static bool learn(const walk_case *c, good *g) {
    outcome o = run(c, NULL);
    g->code = o.code;
    for (size_t i = 0; i <= n_outputs(c); i++) g->text[i] = output(c, &o, i);
    bool right = o.code == c->code;
    if (right) read_counts(g, c->calls);
    if (!right) complain("%s: exit %d, expected %d\n%s", c->name, o.code, c->code, o.err);
    drop(&o);
    return right;
}

/* ---- what a failure may lead to ---- */

static bool is_memory(const char *call) {
    static const char *const names[] = {"malloc", "calloc", "realloc", "strdup", "posix_memalign"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(call, names[i]) == 0) return true;
    return false;
}

/* Calls without which a program can do: it then knows less of the machine, or says less. */
static bool may_change(const char *call) {
    static const char *const names[] = {"access",
                                        "statfs",
                                        "statvfs",
                                        "readlink",
                                        "realpath",
                                        "opendir",
                                        "readdir",
                                        "fopen",
                                        "fgets",
                                        "fread",
                                        "uname",
                                        "sched_getaffinity",
                                        "dlopen",
                                        "gethostname",
                                        "stat",
                                        "fork",
                                        "pipe",
                                        "waitpid",
                                        "execl",
                                        "read/short",
                                        "read",
                                        "fprintf",
                                        "glp_simplex",
                                        "glp_intopt",
                                        "io_uring_queue_init",
                                        "dup2",
                                        "io_uring_get_probe_ring",
                                        "pthread_create",
                                        "mmap"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(call, names[i]) == 0) return true;
    return false;
}

/* Outputs that exist are those of an undisturbed run. @return NULL, or what is wrong */
static const char *check_files(const walk_case *c, const good *g, const char *err, bool success,
                               bool *same) {
    *same = true;
    for (size_t i = 0; i < n_outputs(c); i++) {
        if (access(c->outputs[i], F_OK) != 0) {
            if (success) return "an output is missing";
            continue;
        }
        char *text = output(c, NULL, i + 1);
        bool equal = strcmp(text, g->text[i + 1]) == 0;
        bool whole = text[0] != '\0' && strlen(text) + 64 > strlen(g->text[i + 1]) * 3 / 4;
        *same = *same && equal;
        free(text);
        if (!whole || (!success && !equal && !c->asks)) return "an output is not whole";
    }
    left[0] = '\0';
    present = c;
    messages = err;
    (void)nftw(".", look_at, 16, FTW_PHYS);
    return left[0] != '\0' ? left : check_state(c, success);
}

/* State that cannot be read is listed, and why. */
static bool is_told(const walk_case *c, const outcome *o) {
    return c->state == WALK_STATE_STAYS &&
           (strstr(o->out, "cannot be read") != NULL || strstr(o->out, "is damaged") != NULL ||
            strstr(o->out, "\"damaged_records\": 1") != NULL);
}

static const char *judge(const walk_case *c, const good *g, const char *call, const outcome *o,
                         const char **kind) {
    bool success = o->code == g->code, same = false;
    *kind = "wrong";
    if (o->code == -2) return "it hangs";
    if (o->code == -1) return strsignal(o->signal);
    if (o->code == LEAK_CODE) return "it leaks, or memory was misused";
    if (o->code == 70) return "a bug";
    if (o->code > 9) return "an exit code that is not documented";
    if (!success && is_memory(call) && o->code != 1) return "out of memory is not exit 1";
    if (!success && o->err[0] == '\0') return "no message";
    if (strstr(o->err, "runtime error") != NULL) return "undefined behaviour";
    const char *why = check_files(c, g, o->err, success, &same);
    if (why != NULL && (why != left || strcmp(call, "unlink") != 0)) return why;
    char *out = output(c, o, 0);
    same = same && strcmp(out, g->text[0]) == 0;
    free(out);
    *kind = !success ? "clean" : same ? "same" : "other";
    if (!success || same || c->asks || may_change(call) || is_told(c, o)) return NULL;
    *kind = "wrong";
    return "success with another output";
}

/* The first place where an output is not that of an undisturbed run. */
static void complain_difference(const walk_case *c, const good *g, const outcome *o) {
    for (size_t i = 0; o->code == g->code && i <= n_outputs(c); i++) {
        char *text = output(c, o, i);
        size_t at = 0;
        while (text[at] != '\0' && text[at] == g->text[i][at]) at++;
        size_t from = at > 80 ? at - 80 : 0;
        if (text[at] != g->text[i][at])
            complain("  %s: found \"%.160s\", undisturbed \"%.160s\"\n",
                     i == 0 ? "stdout" : c->outputs[i - 1], text + from, g->text[i] + from);
        free(text);
    }
}

/* ---- the walk ---- */

static void walk_one(const walk_case *c, const good *g, walked_call *call, unsigned long long n) {
    char fail[80];
    const char *kind = NULL;
    snprintf(fail, sizeof fail, "%s:%llu%s", call->name, n, c->rank != NULL ? c->rank : "");
    outcome o = run(c, fail);
    const char *why = judge(c, g, call->name, &o, &kind);
    call->walked++;
    call->clean += strcmp(kind, "clean") == 0;
    call->same += strcmp(kind, "same") == 0;
    call->other += strcmp(kind, "other") == 0;
    call->wrong += why != NULL;
    if (why != NULL)
        complain("%s: STOWAGE_FAIL=%s at %s: exit %d: %s: %.300s\n", c->name, fail,
                 o.reached ? o.where : "-", o.code, why, o.err);
    if (why != NULL) complain_difference(c, g, &o);
    if (verbose)
        printf("%s: STOWAGE_FAIL=%s at %s: exit %d: %.300s\n", c->name, fail,
               o.reached ? o.where : "-", o.code, o.err);
    fflush(stdout);
    drop(&o);
}

/* How many numbers from 1 to n are taken, one after the other. */
static unsigned long long n_numbers(const walk_choice *choice, unsigned long most,
                                    unsigned long long n) {
    if (choice->dense > 0 && n > 2 * choice->dense) n = 2 * choice->dense;
    return most > 0 && n > most ? most : n;
}

/* The r-th number from 1 to n: all in turn, or the first, the last and then those between that lie
 * farthest from each other. */
static unsigned long long number(unsigned long long r, unsigned long long n, bool all) {
    double at = 0, step = 0.5;
    if (all || r == 0) return r + 1;
    if (r == 1) return n;
    for (unsigned long long bits = r - 1; bits > 0; bits /= 2, step /= 2)
        if (bits % 2 == 1) at += step;
    return 1 + (unsigned long long)(at * (double)(n - 1));
}

/* The same, all up to `dense` and then every k-th. */
static unsigned long long dense_number(unsigned long long r, unsigned long long n,
                                       unsigned long long dense) {
    if (r < dense || n <= 2 * dense) return r + 1;
    return dense + (r - dense + 1) * (n - dense) / dense;
}

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Of one call the r-th number, if there is one and it is this process's.
 * @param turn counts what all processes do; @return whether there is one */
static bool walk_next(good *g, size_t i, walked_call *call, unsigned long long r,
                      const walk_choice *choice, unsigned long long *turn) {
    const walk_case *c = &walk_cases[i];
    bool all = choice->most == 0 && choice->seconds <= 0 && (c->most == 0 || call->n <= c->most);
    if (choice->call != NULL && strcmp(choice->call, call->name) != 0) return false;
    if (r >= n_numbers(choice, c->most, call->n)) return false;
    bool dense = choice->dense > 0 && c->most == 0;
    if ((*turn)++ % choice->parts == choice->part)
        walk_one(c, g, call,
                 dense ? dense_number(r, call->n, choice->dense) : number(r, call->n, all));
    return true;
}

static void walk(good *goods, const walk_choice *choice) {
    bool any = true;
    double end = now_s() + choice->seconds;
    unsigned long long turn = 0;
    for (unsigned long long r = 0; any && (choice->most == 0 || r < choice->most); r++) {
        any = false;
        for (size_t i = 0; i < walk_n_cases; i++)
            for (size_t k = 0; k < goods[i].n_calls; k++) {
                if (r > 0 && choice->seconds > 0 && now_s() > end) return;
                any = walk_next(&goods[i], i, &goods[i].calls[k], r, choice, &turn) || any;
            }
    }
}

static void print_table(const good *goods, bool rows) {
    unsigned long long calls = 0, walked = 0;
    printf("%-18s %-24s %7s %7s %7s %7s %7s %7s\n", "case", "call", "calls", "walked", "clean",
           "same", "other", "wrong");
    for (size_t i = 0; i < walk_n_cases; i++)
        for (size_t k = 0; k < goods[i].n_calls; k++) {
            const walked_call *c = &goods[i].calls[k];
            if (c->walked == 0) continue;
            if (rows || c->wrong > 0)
                printf("%-18s %-24s %7llu %7u %7u %7u %7u %7u\n", walk_cases[i].name, c->name, c->n,
                       c->walked, c->clean, c->same, c->other, c->wrong);
            calls += c->n;
            walked += c->walked;
            n_wrong += c->wrong;
        }
    printf("%llu of %llu calls failed in turn, %u wrong\n%s", walked, calls, n_wrong, complaints);
    if (walked == 0) n_wrong++;
}

static bool is_possible(const walk_case *c) {
    char path[4096];
    if (c->needs == NULL) return true;
    snprintf(path, sizeof path, "%s/../%s", bin, c->needs);
    bool is_there = access(path, F_OK) == 0;
    /* the leak checker's free and the loader's thread-local storage call each other without end */
    bool checker = strncmp(gnu_get_libc_version(), "2.39", 4) == 0;
    if (is_there && !checker) return true;
    printf("%s: left out, %s\n", c->name,
           is_there ? "the leak checker crashes under MPI with glibc 2.39" : "MPI is missing");
    return false;
}

/* Inputs of the cases, made by the programs themselves. */
static void make_inputs(void) {
    if (mkdtemp(home) == NULL) stop(home);
    top = realpath(home, NULL);
    if (top == NULL || chdir(top) != 0 || mkdir("in", 0700) != 0) stop(home);
    for (size_t i = 0; i < walk_n_files; i++) {
        char path[300];
        snprintf(path, sizeof path, "in/%s", walk_files[i].name);
        FILE *file = fopen(path, "w");
        if (file == NULL || fputs(walk_files[i].text, file) == EOF || fclose(file) != 0) stop(path);
    }
    for (size_t i = 0; i < walk_n_setup; i++) {
        outcome o = run(&walk_setup[i], NULL);
        char *from = NULL, *to = NULL;
        size_t n = n_outputs(&walk_setup[i]);
        if (n == 0 && o.code != walk_setup[i].code) {
            fprintf(stderr, "%s: exit %d\n%s", walk_setup[i].name, o.code, o.err);
            exit(2);
        }
        for (size_t k = 0; k < n; k++) {
            if (asprintf(&to, "%s/in/%s", top, walk_setup[i].outputs[k]) < 0) stop("walk");
            from = (char *)(uintptr_t)walk_setup[i].outputs[k];
            if (o.code != walk_setup[i].code || rename(from, to) != 0) {
                fprintf(stderr, "%s: exit %d\n%s", walk_setup[i].name, o.code, o.err);
                exit(2);
            }
            free(to);
        }
        drop(&o);
    }
}

static void usage(void) {
    fprintf(stderr, "usage: walk [-m MOST] [-d DENSE] [-t SECONDS] [-c CASE]... [-f CALL] "
                    "[-p PART/OF] [-v] BIN_FOLDER MODELS_FOLDER\n");
    exit(2);
}

static walk_choice read_arguments(int argc, char **argv) {
    walk_choice choice = {.parts = 1};
    for (int c; (c = getopt(argc, argv, "m:d:t:c:f:p:v")) != -1;) {
        if (c == 'm') choice.most = strtoul(optarg, NULL, 10);
        if (c == 'd') choice.dense = strtoul(optarg, NULL, 10);
        if (c == 't') choice.seconds = strtod(optarg, NULL);
        if (c == 'c' && choice.n_names < MOST_NAMES) choice.names[choice.n_names++] = optarg;
        if (c == 'f') choice.call = optarg;
        if (c == 'p' && sscanf(optarg, "%lu/%lu", &choice.part, &choice.parts) != 2) usage();
        if (c == 'v') verbose = true;
        if (c == '?') usage();
    }
    if (argc - optind != 2 || choice.part >= choice.parts) usage();
    return choice;
}

static bool is_chosen(const walk_choice *choice, const walk_case *c) {
    for (size_t i = 0; i < choice->n_names; i++)
        if (strcmp(choice->names[i], c->name) == 0) return true;
    return choice->n_names == 0 && !c->named;
}

int main(int argc, char **argv) {
    const walk_choice choice = read_arguments(argc, argv);
    bin = realpath(argv[optind], NULL);
    models = realpath(argv[optind + 1], NULL);
    good *goods = calloc(walk_n_cases, sizeof *goods);
    if (bin == NULL || models == NULL || goods == NULL) stop("walk");
    setenv("COLUMNS", "0", 1); /* sentences in one line, as they are looked for */
    setenv("LSAN_OPTIONS", "exitcode=99", 0);
    setenv("ASAN_OPTIONS", "exitcode=99:allocator_may_return_null=1", 0);
    make_inputs();
    for (size_t i = 0; i < walk_n_cases; i++)
        if (is_chosen(&choice, &walk_cases[i]) && is_possible(&walk_cases[i]) &&
            !learn(&walk_cases[i], &goods[i]))
            n_wrong++;
    walk(goods, &choice);
    fresh_folder();
    if (chdir(top) == 0) (void)nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)rmdir(top);
    print_table(goods, choice.seconds <= 0 || verbose);
    for (size_t i = 0; i < walk_n_cases; i++)
        for (size_t k = 0; k <= WALK_MOST_OUTPUTS; k++) free(goods[i].text[k]);
    free(goods);
    return n_wrong > 0;
}
