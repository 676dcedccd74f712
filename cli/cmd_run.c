/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

int stw_cmd_run(int argc, char **argv) { return stw_become_run("stowage run", NULL, argc, argv); }
