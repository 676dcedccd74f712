/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fcntl, SIGXFSZ with _XOPEN_SOURCE */
#define _XOPEN_SOURCE 700
/* The begin and end of both programs: standard descriptors, signals, and whether stdout took
 * everything. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "cli/common.h"
#include "core/file.h"

/* Temporary files are removed; then the signal does what it would have done. */
static void on_signal(int number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    stw_file_on_signal();
    (void)sigaction(number, &plain, NULL);
    (void)raise(number);
}

static void catch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGXCPU};
    struct sigaction action = {.sa_handler = on_signal}, before;
    (void)sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        /* What a launcher ignores (nohup) stays ignored. */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
}

void stw_process_begin(void) {
    /* A file of state that got descriptor 2 would receive the warnings. Reads and writes fail, as
     * they would on a closed descriptor. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        int way = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
        if (open("/dev/null", way) != fd) _exit(stw_status_exit_code(STW_STATUS_NO_RESOURCES));
    }
    /* A write over the limit on file sizes then fails with EFBIG, which is reported. */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGXFSZ, &ignore, NULL);
    catch_signals();
}

int stw_process_end(int code) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_stdout_finish(&err);
    if (status == STW_STATUS_OK) return code;
    int failed = stw_exit(status, &err);
    return code != 0 ? code : failed;
}
