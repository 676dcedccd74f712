/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* execv */
/* `run` and `calibrate` are executed by stowage-run, which links CUDA and not the solver. This
 * process replaces itself with stowage-run: launchers then see one process per rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"

static int become(const char *first, int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    char program[4096];
    stw_status status = stw_sibling("stowage-run", program, sizeof program, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    char **args = calloc((size_t)argc + 2, sizeof *args);
    if (args == NULL)
        return stw_exit(stw_fail(&err, STW_STATUS_NO_MEMORY, "run", "out of memory"), &err);
    int n = 0;
    args[n++] = program;
    if (first != NULL) args[n++] = (char *)(uintptr_t)first;
    for (int i = 1; i < argc; i++) args[n++] = argv[i];
    execv(program, args);
    free(args);
    return stw_exit(stw_fail_native(&err, STW_STATUS_NOT_BUILT_IN, errno, program,
                                    "cannot be started: %s", strerror(errno)),
                    &err);
}

int stw_cmd_run(int argc, char **argv) { return become(NULL, argc, argv); }

int stw_cmd_calibrate(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("Usage: stowage calibrate [options]\n\n"
                   "Measure this node and write cluster.yaml with the rates and their raw samples. "
                   "Measured are:\n"
                   "PCIe links of one GPU and of all GPUs by copy size, GPU and host memory "
                   "bandwidth, "
                   "optimizer\n"
                   "updates on GPU and CPU, collectives, disk, page-locking, memory of the CUDA "
                   "context and of NCCL.\n\n"
                   "Options:\n"
                   "  -o, --output FILE          output file; - is stdout\n"
                   "  --quick                    less than 20 s instead of less than 3 minutes\n"
                   "  --nvme FOLDER              disk to measure; default $TMPDIR or /tmp\n"
                   "  --json                     write complete JSON to stdout\n"
                   "  -h, --help                 print this help\n");
            return 0;
        }
    return become("--calibrate", argc, argv);
}
