/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/stored.h"

stw_stored stw_stored_get(const stw_model *model) {
    uint64_t bytes[STW_N_DTYPES] = {0};
    stw_stored stored = {0, "nothing", false};
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const stw_tensor *t = &model->tensors[i];
        uint64_t bits = stw_dtype_bits(t->dtype); /* formats of less than a byte are packed */
        bytes[t->dtype] += t->numel / 8 * bits + (t->numel % 8 * bits + 7) / 8;
        if (i == 0) stored.type = stw_dtype_name(t->dtype);
        stored.mixed |= t->dtype != model->tensors[0].dtype;
    }
    uint64_t most = 0;
    for (unsigned d = 0; d < STW_N_DTYPES; d++) {
        stored.bytes += bytes[d];
        if (bytes[d] <= most) continue;
        most = bytes[d];
        stored.type = stw_dtype_name((stw_dtype)d);
    }
    return stored;
}
