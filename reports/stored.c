/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/stored.h"

stw_stored stw_stored_get(const stw_model *model) {
    const stw_tensor *lists[] = {model->tensors, model->buffer_tensors, model->extra_tensors};
    const uint32_t lengths[] = {model->n_tensors, model->n_buffers, model->n_extras};
    uint64_t bytes[STW_N_DTYPES] = {0}, most = 0;
    stw_stored stored = {model->stored_bytes, 0, "nothing", false};
    unsigned types = 0;
    for (unsigned l = 0; l < 3; l++) {
        for (uint32_t i = 0; i < lengths[l]; i++) {
            const stw_tensor *t = &lists[l][i];
            uint64_t all = stw_tensor_stored_bytes(t);
            bytes[t->dtype] += all;
            stored.unused += l == 2 ? all : t->scale_bytes;
        }
    }
    for (unsigned d = 0; d < STW_N_DTYPES; d++) {
        types += bytes[d] > 0;
        if (bytes[d] <= most) continue;
        most = bytes[d];
        stored.type = stw_dtype_name((stw_dtype)d);
    }
    stored.mixed = types > 1;
    return stored;
}
