/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded state on the host: page-locked buffers with their rounding, pageable ones, and what
 * making them takes. */
#ifndef STW_ENGINES_DEEPSPEED_HOST_H
#define STW_ENGINES_DEEPSPEED_HOST_H

#include "engines/deepspeed/zero.h"

/** Everything that lies on the host from initialization on, parameters apart, with the bytes that
 * initialization needs besides. */
void stw_host_begin(stw_zero *z);
/** Page-locked or pageable room of a region of the layout; `locked`: torch's allocator rounds it.
 */
void stw_host_region(stw_zero *z, const stw_region *region, bool locked);
/** Moments of an optimizer on the host, those of sub-groups on the GPU there. */
void stw_host_moments(stw_zero *z);
/** 16-bit weights of `params` elements on the host while fp32 ones are copied to the GPU (torch
 * casts before it copies); none where a page-locked buffer serves for that. */
stw_extent stw_host_cast(stw_zero *z, uint64_t params);
void stw_host_cast_done(stw_zero *z, stw_extent cast, uint32_t after);

#endif
