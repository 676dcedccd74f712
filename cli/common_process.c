/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fcntl, SIGXFSZ with _XOPEN_SOURCE */
#define _XOPEN_SOURCE 700
/* The begin and end of both programs: standard descriptors, signals of limits, and whether stdout
 * took everything. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "cli/common.h"
#include "core/file.h"

void stw_process_begin(void) {
    /* A file of state that got descriptor 2 would receive the warnings. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", O_RDWR) != fd) _exit(stw_status_exit_code(STW_STATUS_NO_RESOURCES));
    }
    /* A write over the limit on file sizes then fails with EFBIG, which is reported. */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGXFSZ, &ignore, NULL);
}

int stw_process_end(int code) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_stdout_finish(&err);
    if (status == STW_STATUS_OK) return code;
    int failed = stw_exit(status, &err);
    return code != 0 ? code : failed;
}
