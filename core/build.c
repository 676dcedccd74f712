/* SPDX-License-Identifier: Apache-2.0 */
#include "core/build.h"

const char *stw_build_identity(void) {
    return
#include "core/build_identity.inc"
        ;
}
