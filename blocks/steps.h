/* SPDX-License-Identifier: Apache-2.0 */
/* Short names for the steps of function.h, for the files that hold its tables. */
#ifndef STW_BLOCKS_STEPS_H
#define STW_BLOCKS_STEPS_H

#include "blocks/function.h"

/* clang-format off */
#define TAKE(slot, size) {STW_STEP_TAKE, slot, size, 0, 0}
#define TAKE_IF(with, without, slot, size) {STW_STEP_TAKE, slot, size, with, without}
#define NEED(slot, size) {STW_STEP_NEED, slot, size, 0, 0}
#define DROP(slot) {STW_STEP_DROP, slot, 0, 0, 0}
#define DROP_IF(with, slot) {STW_STEP_DROP, slot, 0, with, 0}
/* The last reference of forward goes: the tensor stays for backward alone. */
#define LEAVE(slot) {STW_STEP_DROP, slot, 0, 0, STW_IF_KEPT}
/* The same of a tensor that only the gradient of a weight needs. */
#define LEAVE_FACTOR(slot) LEAVE(slot), {STW_STEP_DROP, slot, 0, 0, STW_IF_TRAINED}
#define RELEASE(input) {STW_STEP_RELEASE, input, 0, 0, 0}
#define RELEASE_IF(with, without, input) {STW_STEP_RELEASE, input, 0, with, without}
#define RELEASE_OUT_IF(with, without) {STW_STEP_RELEASE_OUT, 0, 0, with, without}
#define AGAIN STW_IF_REPEATED
/* The gradient of a call goes before what it saved, after it under a checkpoint. */
#define GO(grad, saved) DROP_IF(AGAIN, saved), DROP(grad), DROP(saved)
#define GO_INPUT(grad, input) RELEASE_IF(AGAIN, 0, input), DROP(grad), RELEASE_IF(0, AGAIN, input)
#define GRAD_OF(weight) {STW_STEP_GRAD, weight, 0, 0, 0}
#define GRAD_IF(with, weight) {STW_STEP_GRAD, weight, 0, with, 0}
#define SUM_IF(with, weight, size) {STW_STEP_SUM, weight, size, with, 0}
#define ADD(slot, input) {STW_STEP_ADD, slot, input, 0, 0}
#define ADD_VIEW(slot, input) {STW_STEP_ADD_VIEW, slot, input, 0, 0}
#define DO(act) {act, 0, 0, 0, 0}
#define STOP DO(STW_STEP_STOP)
#define END DO(STW_STEP_END)
#define BIT(slot) (1u << (slot))
/* clang-format on */

enum { OUT = STW_SLOT_OUT, GRAD = STW_SLOT_GRAD, KNOWN = STW_SLOT_KNOWN, FIRST = STW_SLOT_FREE };

#endif
