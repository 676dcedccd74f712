/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader of a plan's figures must know about them: keys that were assumed, rates that were
 * not measured, work that the times leave out, a host that is all but full. Each is a sentence or
 * two. The caller owns the struct. Any thread may call. */
#ifndef STW_REPORTS_REMARKS_H
#define STW_REPORTS_REMARKS_H

#include "reports/facts.h"

enum { STW_MAX_REMARKS = 9 };

typedef struct stw_remark {
    bool of_time; /* about seconds; false: about memory, or about all */
    bool advice;  /* of these: what to change */
    char text[960];
} stw_remark;

typedef struct stw_remarks {
    bool failed; /* one is left out: memory is out */
    uint32_t n;
    stw_remark items[STW_MAX_REMARKS];
} stw_remarks;

void stw_plan_remarks_get(const stw_plan *plan, const stw_plan_facts *facts, stw_remarks *out);

#endif
