/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/tensors.h"

static void no_memory(stw_builder *b) {
    b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory for tensors");
}

void stw_tensors_instead(stw_builder *b, uint32_t first_op) {
    stw_program *p = b->program;
    if (!stw_tensors_wanted(b) || p->n_movements == 0) return;
    stw_tensor_range *ranges = stw_pool_regrow(p->pool, p->ranges, p->n_ranges, p->n_ranges + 1,
                                               &p->range_room, sizeof *ranges);
    if (ranges == NULL) {
        no_memory(b);
        return;
    }
    p->ranges = ranges;
    ranges[p->n_ranges++] = (stw_tensor_range){.movement = p->n_movements - 1,
                                               .first_op = first_op,
                                               .end_op = p->n_ops,
                                               .first_event = p->n_events};
}

void stw_tensors_instead_of_these(stw_builder *b, uint32_t first_op) {
    const uint32_t before = b->program->n_ranges;
    stw_tensors_instead(b, first_op);
    b->program->n_lone_ranges += b->program->n_ranges - before;
}

static void append(stw_builder *b, stw_tensor_event event) {
    stw_program *p = b->program;
    if (!stw_tensors_wanted(b) || p->n_ranges == 0) return;
    stw_tensor_event *events = stw_pool_regrow(p->pool, p->events, p->n_events, p->n_events + 1,
                                               &p->event_room, sizeof *events);
    if (events == NULL) {
        no_memory(b);
        return;
    }
    p->events = events;
    event.unless = b->tensors_unless;
    events[p->n_events++] = event;
    p->ranges[p->n_ranges - 1].n_events++;
}

uint32_t stw_tensor_numbers(stw_builder *b, uint32_t n) {
    uint32_t first = b->program->n_tensors;
    if (!stw_tensors_wanted(b) || n >= STW_NO_TENSOR - first) return STW_NO_TENSOR;
    b->program->n_tensors += n;
    return first;
}

void stw_tensor_take_as(stw_builder *b, uint32_t tensor, uint32_t stream, uint64_t bytes) {
    if (bytes == 0 || tensor == STW_NO_TENSOR) return;
    append(b, (stw_tensor_event){.change = STW_TENSOR_TAKE,
                                 .stream = (uint8_t)stream,
                                 .tensor = tensor,
                                 .bytes = bytes});
}

uint32_t stw_tensor_take(stw_builder *b, uint32_t stream, uint64_t bytes) {
    if (bytes == 0) return STW_NO_TENSOR;
    uint32_t tensor = stw_tensor_numbers(b, 1);
    stw_tensor_take_as(b, tensor, stream, bytes);
    return tensor;
}

void stw_tensor_rename(stw_builder *b, uint32_t tensor, uint32_t known) {
    stw_tensor_event *events = b->program->events;
    if (tensor == STW_NO_TENSOR) return;
    for (uint32_t i = b->program->n_events; i-- > 0;) {
        if (events[i].tensor != tensor || events[i].change != STW_TENSOR_TAKE) continue;
        events[i].tensor = known;
        return;
    }
}

void stw_tensor_drop(stw_builder *b, uint32_t tensor) {
    if (tensor == STW_NO_TENSOR) return;
    append(b, (stw_tensor_event){.change = STW_TENSOR_DROP, .tensor = tensor});
}

void stw_tensors_unless(stw_builder *b, uint8_t micro_batches) {
    b->tensors_unless = micro_batches;
}

void stw_tensors_empty_cache(stw_builder *b) {
    append(b, (stw_tensor_event){.change = STW_TENSOR_EMPTY_CACHE, .tensor = STW_NO_TENSOR});
}
