/* SPDX-License-Identifier: Apache-2.0 */
/* State that a trainer moves to the host while it does not need it, and back: parameters, gradients
 * and moments between its updates. An engine lists what it parks as parcels; the functions append
 * the allocs, copies and frees to the movement that was begun last. How a copy on the host is made
 * is the framework's code:
 * - pageable: a copy of that size, gone when the state is back.
 * - kept: page-locked by torch's host allocator, which rounds every block to a power of two and
 *   keeps blocks for the next copy.
 * - fresh: a pageable copy, then a page-locked one of it, both made before the old page-locked one
 *   goes: two blocks stay.
 * - dropped: nothing is copied; the bytes are made anew. */
#ifndef STW_ENGINES_PARK_H
#define STW_ENGINES_PARK_H

#include "plan/program/builder.h"

typedef enum stw_parking {
    STW_PARKING_PAGEABLE,
    STW_PARKING_KEPT,
    STW_PARKING_FRESH,
    STW_PARKING_DROPPED
} stw_parking;

/** One piece of state on the GPU. */
typedef struct stw_parcel {
    stw_component component;
    stw_parking parking;
    uint64_t offset_bytes, bytes; /* on the GPU */
    uint64_t rounding_bytes;      /* of a page-locked copy, beyond `bytes` */
    uint32_t copies;              /* page-locked ones that the host holds */
    bool on_host;                 /* parked now */
} stw_parcel;

typedef struct stw_park {
    uint32_t n;
    size_t room;
    stw_parcel *parcels; /* in the program's pool */
} stw_park;

/* What a call moves: bits of (1u << stw_component). */
#define STW_PARKED_PARAMS (1u << STW_COMPONENT_PARAMS)
#define STW_PARKED_GRADS (1u << STW_COMPONENT_GRADS)
#define STW_PARKED_MOMENTS                                                                         \
    (1u << STW_COMPONENT_MASTER | 1u << STW_COMPONENT_EXP_AVG | 1u << STW_COMPONENT_EXP_AVG_SQ)

/** Add a parcel; none without bytes. */
void stw_park_add(stw_builder *b, stw_park *park, stw_parcel parcel);
/** Add every region of the layout for which `which` is true and that lies on the GPU. Rounding is
 * that of one block per tensor. */
void stw_park_add_regions(stw_builder *b, stw_park *park, stw_parking parking,
                          bool (*which)(const stw_region *region));
/** Does state of a component lie parked now? @param park may be NULL */
bool stw_is_parked(const stw_park *park, stw_component component);
/** To the host. Bytes leave the GPU when their copies have ended.
 * @param what bits of components; those that are parked already are left alone
 * @param after an operation that the copies wait for; STW_OP_NONE: the last one */
void stw_park_leave(stw_builder *b, stw_park *park, uint32_t what, uint32_t after);
/** Back to the GPU. What follows on the compute stream waits for the copies.
 * @param copies false: bytes alone, where an earlier movement of the same iteration has done the
 * copies (a first step, which stands before forward and backward in a program) */
void stw_park_return(stw_builder *b, stw_park *park, uint32_t what, bool copies);
/** The same at the beginning of forward and backward: everything that comes back before it. */
void stw_park_before_forward(stw_builder *b);
/** The same around an optimizer step. Without parking these three do nothing. Parameters and
 * gradients come and go once in an iteration, as moments do that come back with them; others do so
 * in every step.
 * @param first its movement stands before forward and backward, which have brought the rest */
void stw_park_before_step(stw_builder *b, bool first);
void stw_park_after_step(stw_builder *b, uint32_t after);

#endif
