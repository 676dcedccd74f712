/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* posix_spawnp, SIGRTMAX, SI_KERNEL */
#include "backend/record/signals.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

enum { MOST_SIGNALS = 128 };

/* They do not end a process, cannot be caught, or are raised by what a process itself does. */
static const int left_alone[] = {SIGKILL, SIGSTOP, SIGCHLD,  SIGCONT, SIGTSTP, SIGTTIN,
                                 SIGTTOU, SIGURG,  SIGWINCH, SIGILL,  SIGTRAP, SIGABRT,
                                 SIGBUS,  SIGFPE,  SIGSEGV,  SIGSYS,  SIGXFSZ};

static volatile sig_atomic_t child_to_signal, late;
static struct sigaction before[MOST_SIGNALS];
static bool caught[MOST_SIGNALS];

static void on_signal(int number, siginfo_t *info, void *context) {
    const int code = errno;
    (void)context;
    if (number == SIGPIPE && info->si_code <= 0 && info->si_pid == getpid())
        return; /* nobody reads our messages any more: the write says so */
    if (child_to_signal > 0) {
        /* The terminal signals the whole group, of which the command is one. */
        const bool has_it = (number == SIGINT || number == SIGQUIT) && info->si_code == SI_KERNEL;
        if (!has_it) (void)kill((pid_t)child_to_signal, number);
    } else if (late++ > 0) {
        (void)sigaction(number, &before[number], NULL);
        (void)raise(number);
    }
    errno = code;
}

static bool is_left_alone(int number) {
    for (size_t i = 0; i < sizeof left_alone / sizeof left_alone[0]; i++)
        if (left_alone[i] == number) return true;
    return false;
}

static void catch_all(void) {
    struct sigaction pass = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    (void)sigfillset(&pass.sa_mask);
    late = 0;
    for (int number = 1; number <= SIGRTMAX && number < MOST_SIGNALS; number++) {
        caught[number] = false;
        if (is_left_alone(number) || sigaction(number, NULL, &before[number]) != 0) continue;
        caught[number] = sigaction(number, &pass, NULL) == 0;
    }
}

static int spawn(char *const *command, const sigset_t *mask, pid_t *child) {
    extern char **environ;
    posix_spawnattr_t attributes;
    sigset_t plain;
    int code = posix_spawnattr_init(&attributes);
    if (code != 0) return code;
    (void)sigemptyset(&plain);
    (void)sigaddset(&plain, SIGXFSZ); /* both programs ignore it */
    (void)posix_spawnattr_setsigmask(&attributes, mask);
    (void)posix_spawnattr_setsigdefault(&attributes, &plain);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    code = posix_spawnp(child, command[0], NULL, &attributes, command, environ);
    (void)posix_spawnattr_destroy(&attributes);
    return code;
}

int stw_record_signals_start(char *const *command, pid_t *child) {
    sigset_t all, mask;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &mask);
    /* before signals are caught: what is ignored is ignored by the command, as nohup wants, unless
     * it says otherwise */
    const int code = spawn(command, &mask, child);
    if (code == 0) {
        child_to_signal = (sig_atomic_t)*child;
        catch_all();
    }
    /* a signal that was blocked before is for the command alone, which has it blocked, too */
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    return code;
}

void stw_record_signals_ended(void) { child_to_signal = 0; }

void stw_record_signals_end(void) {
    for (int number = 1; number < MOST_SIGNALS; number++) {
        if (caught[number]) (void)sigaction(number, &before[number], NULL);
        caught[number] = false;
    }
}
