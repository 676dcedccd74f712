/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a model hold. The model must outlive the call only. Any thread may call. */
#ifndef STW_REPORTS_STORED_H
#define STW_REPORTS_STORED_H

#include "models/model.h"

typedef struct stw_stored {
    uint64_t bytes;   /* of the published files */
    uint64_t unused;  /* of these: block scales and tensors that training does not hold */
    const char *type; /* the one with the most bytes; "nothing" without tensors */
    bool mixed;       /* there are others */
} stw_stored;

stw_stored stw_stored_get(const stw_model *model);

#endif
