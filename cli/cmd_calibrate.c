/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/commands.h"

int stw_cmd_calibrate(int argc, char **argv) {
    bool quick;
    const char *nvme;
    const stw_option options[] = {
        {"--quick", NULL, NULL,
         "less than 20 s instead of less than 3 minutes (5 where torch is measured)",
         STW_OPTION_FLAG, &quick},
        {"--nvme", NULL, "FOLDER", "disk to measure; default $TMPDIR or /tmp", STW_OPTION_VALUE,
         &nvme},
    };
    const stw_usage usage = {
        "stowage",
        "calibrate",
        "",
        "Measure this node and write cluster.yaml with the rates and their raw samples. Measured "
        "are: PCIe links of one GPU and of all GPUs by copy size, GPU and host memory bandwidth, "
        "optimizer updates on GPU and CPU, collectives, disk, page-locking, memory of the CUDA "
        "context and of NCCL. Without --quick, and where python3 (or $STOWAGE_PYTHON) has torch, "
        "also torch's optimizers on the CPU.",
        options,
        sizeof options / sizeof options[0],
        0,
        0,
        NULL};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ||
            (strncmp(argv[i], "--help=", 7) == 0 && stw_help_form_take(argv[i] + 7)))
            return stw_usage_print(&usage), 0;
    return stw_become_run("stowage calibrate", "--calibrate", argc, argv);
}
