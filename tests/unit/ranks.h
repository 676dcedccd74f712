/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that start themselves on several MPI ranks: `SELF rank NAME FILE`. */
#ifndef STW_TESTS_UNIT_RANKS_H
#define STW_TESTS_UNIT_RANKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/comm/ops.h"

static char ranks_self[4096];

/* Say where the plugin is; false where this machine cannot start ranks. */
static bool ranks_prepare(void) {
    static char plugin[4200];
    const char *build = getenv("STW_BUILD_DIR");
    ssize_t length = readlink("/proc/self/exe", ranks_self, sizeof ranks_self - 1);
    if (length < 0) return false;
    ranks_self[length] = '\0';
    if (build != NULL && getenv("STOWAGE_MPI_PLUGIN") == NULL) {
        snprintf(plugin, sizeof plugin, "%s/lib/stowage/stowage-mpi.so", build);
        setenv("STOWAGE_MPI_PLUGIN", plugin, 1);
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    return stw_comm_mpi_found() && system("command -v mpirun > /dev/null 2>&1") == 0;
}

/* Exit code of n ranks that run case `name`; rank 0 writes `file`, all print to file.txt. */
static int ranks_start(uint32_t n, const char *name, const char *file) {
    char command[9000];
    const char *mpiexec = getenv("STW_MPIEXEC");
    unlink(file);
    snprintf(command, sizeof command, "%s -n %u %s rank %s %s > %s.txt 2>&1",
             mpiexec != NULL && mpiexec[0] != '\0' ? mpiexec : "mpirun", n, ranks_self, name, file,
             file);
    int code = system(command);
    code = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
    if (code != 0) {
        snprintf(command, sizeof command, "cat %s.txt >&2", file);
        if (system(command) != 0) fprintf(stderr, "no output\n");
    }
    return code;
}

static void ranks_read(const char *file, char *out, size_t out_size) {
    FILE *f = fopen(file, "r");
    size_t n = f != NULL ? fread(out, 1, out_size - 1, f) : 0;
    out[n] = '\0';
    if (f != NULL) fclose(f);
}

#endif
