/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"

static const char help[] =
    "Usage: stowage calibrate [options]\n"
    "\n"
    "Measure this node and write cluster.yaml with the rates and their raw samples. Measured are:\n"
    "PCIe links of one GPU and of all GPUs by copy size, GPU and host memory bandwidth, optimizer\n"
    "updates on GPU and CPU, collectives, disk, page-locking, memory of the CUDA context and of "
    "NCCL."
    "\n\n"
    "Options:\n"
    "  -o, --output FILE          output file; - is stdout\n"
    "  --quick                    less than 20 s instead of less than 3 minutes\n"
    "  --nvme FOLDER              disk to measure; default $TMPDIR or /tmp\n"
    "  --json                     write complete JSON to stdout\n"
    "  -h, --help                 print this help\n";

int stw_cmd_calibrate(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
    return stw_become_run("--calibrate", argc, argv);
}
