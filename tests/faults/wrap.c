/* SPDX-License-Identifier: Apache-2.0 */
/* The wrappers of table.h for the two programs. */
#define _GNU_SOURCE /* memfd_create, sched_setaffinity */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"
#include "tests/faults/table.h"

#ifdef STW_FAULTS_WITH_GLPK
#include <glpk.h>
STW_FAULTS_GLPK(STW_FAULT_WRAP)

/* glp_realloc (dma in env/alloc.c) forgets the old block where it gets no larger one. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:dma\n"; }
#endif

STW_FAULTS_LIBC(STW_FAULT_WRAP)
STW_FAULTS_DONE(STW_FAULT_WRAP_DONE)

/* Declares the call that the linker left under its real name, and its wrapper. */
#define BY_HAND(type, name, ...)                                                                   \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

static ssize_t failed(int code) {
    errno = code;
    return -1;
}

BY_HAND(ssize_t, read, int fd, void *to, size_t n) {
    if (STW_FAULT_NOW("read")) return failed(EIO);
    if (STW_FAULT_NOW("read/again")) return failed(EINTR);
    return __real_read(fd, to, STW_FAULT_NOW("read/short") && n > 1 ? n / 2 : n);
}

BY_HAND(ssize_t, write, int fd, const void *from, size_t n) {
    if (STW_FAULT_NOW("write")) return failed(ENOSPC);
    if (STW_FAULT_NOW("write/again")) return failed(EINTR);
    return __real_write(fd, from, STW_FAULT_NOW("write/short") && n > 1 ? n / 2 : n);
}

BY_HAND(ssize_t, pread, int fd, void *to, size_t n, off_t at) {
    if (STW_FAULT_NOW("pread")) return failed(EIO);
    if (STW_FAULT_NOW("pread/end")) return 0;
    return __real_pread(fd, to, STW_FAULT_NOW("pread/short") && n > 1 ? n / 2 : n, at);
}

BY_HAND(ssize_t, pwrite, int fd, const void *from, size_t n, off_t at) {
    if (STW_FAULT_NOW("pwrite")) return failed(ENOSPC);
    return __real_pwrite(fd, from, STW_FAULT_NOW("pwrite/short") && n > 1 ? n / 2 : n, at);
}

BY_HAND(int, open, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (STW_FAULT_NOW("open")) return (int)failed(EMFILE);
    return __real_open(path, flags, mode);
}

/* ---- printing: an error shows on the stream, too ---- */

static bool stdout_failed;

static int print_failed(FILE *file) {
    if (file == stdout) stdout_failed = true;
    return (int)failed(ENOSPC);
}

BY_HAND(int, ferror, FILE *file) {
    return (file == stdout && stdout_failed) || __real_ferror(file) != 0;
}

BY_HAND(int, fprintf, FILE *file, const char *format, ...) {
    if (STW_FAULT_NOW("fprintf")) return print_failed(file);
    va_list rest;
    va_start(rest, format);
    int n = vfprintf(file, format, rest);
    va_end(rest);
    return n;
}

BY_HAND(int, printf, const char *format, ...) {
    if (STW_FAULT_NOW("printf")) return print_failed(stdout);
    va_list rest;
    va_start(rest, format);
    int n = vprintf(format, rest);
    va_end(rest);
    return n;
}

BY_HAND(int, puts, const char *text) {
    return STW_FAULT_NOW("puts") ? print_failed(stdout) : __real_puts(text);
}

BY_HAND(int, putchar, int c) {
    return STW_FAULT_NOW("putchar") ? print_failed(stdout) : __real_putchar(c);
}

/* ---- io_uring ---- */

#ifdef STW_FAULTS_WITH_URING
#include <liburing.h>
STW_FAULTS_URING(STW_FAULT_WRAP)

/* A request goes wrong in the kernel: the last one that is handed in has no file, or half of its
 * bytes. */
BY_HAND(int, io_uring_submit_and_wait, struct io_uring *ring, unsigned wait) {
    if (STW_FAULT_NOW("io_uring_submit_and_wait")) return -EIO;
    bool result = STW_FAULT_NOW("io_uring/result"), cut = STW_FAULT_NOW("io_uring/short");
    struct io_uring_sqe *last = &ring->sq.sqes[(ring->sq.sqe_tail - 1) & *ring->sq.kring_mask];
    bool any = ring->sq.sqe_tail != ring->sq.sqe_head;
    if (any && result) last->fd = -1;
    if (any && cut && last->len > 1) last->len /= 2;
    return __real_io_uring_submit_and_wait(ring, wait);
}
#endif

/* ---- what is counted begins with main ---- */

__attribute__((constructor(101))) static void hold(void) { stw_fault_hold(); }

BY_HAND(int, main, int argc, char **argv) {
    stw_fault_begin();
    return __real_main(argc, argv);
}

/* ---- the count goes before what replaces the process ---- */

BY_HAND(int, execl, const char *path, const char *arg0, ...) {
    char *args[8] = {(char *)(uintptr_t)arg0};
    va_list rest;
    va_start(rest, arg0);
    for (size_t i = 1; i < 7 && args[i - 1] != NULL; i++) args[i] = va_arg(rest, char *);
    va_end(rest);
    if (STW_FAULT_NOW("execl")) return (int)failed(ENOENT);
    stw_fault_tell();
    return execve(path, args, environ);
}

BY_HAND(int, execv, const char *path, char *const args[]) {
    if (STW_FAULT_NOW("execv")) return (int)failed(ENOENT);
    stw_fault_tell();
    return __real_execv(path, args);
}
