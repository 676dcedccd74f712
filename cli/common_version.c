/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/common_version.h"

#include <stdio.h>

#include "cli/common.h"
#include "core/build.h"
#include "core/json.h"
#include "stw_config.h"

static void print_text(const char *program, const char *licence, const char *solver) {
    printf("%s %s\nbuild %s\n%s\n", program, STW_VERSION, stw_build_identity(), licence);
    if (solver != NULL) printf("solver: %s\nexecution (stowage-run): ", solver);
    printf("CUDA %s, NCCL %s, MPI %s\n", STW_WITH_CUDA ? STW_CUDA_VERSION : "not built in",
           STW_WITH_NCCL ? "yes" : "not built in", STW_WITH_MPI ? "yes" : "not built in");
}

stw_status stw_version_print(const char *program, const char *licence, const char *solver,
                             bool as_json, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    if (!as_json) return print_text(program, licence, solver), STW_STATUS_OK;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.version/1");
    stw_json_string(json, "program", program);
    stw_json_string(json, "version", STW_VERSION);
    stw_json_string(json, "build", stw_build_identity());
    if (solver != NULL) stw_json_string(json, "solver", solver);
    stw_json_string(json, "cuda", STW_WITH_CUDA ? STW_CUDA_VERSION : NULL);
    stw_json_bool(json, "nccl", STW_WITH_NCCL);
    stw_json_bool(json, "mpi", STW_WITH_MPI);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    STW_TRY(stw_emit(&(stw_general){.json = true}, &text, err));
out:
    stw_text_free(&text);
    return status;
}
