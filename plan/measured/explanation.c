/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/explanation.h"

const char *stw_cause_name(stw_cause cause) {
#define X(name, text) text,
    static const char *const names[] = {STW_CAUSE_TABLE(X)};
#undef X
    return (unsigned)cause < STW_N_CAUSES ? names[cause] : "unknown";
}

void stw_explanation_free(stw_explanation *explanation) {
    if (explanation != NULL) stw_pool_free(explanation->pool);
}
