/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/ledger.h"

#include <string.h>

#include "core/checked.h"

/* Of allocs that do not say it themselves. */
static const char *usual(stw_component component) {
    static const char *const words[STW_N_COMPONENTS] = {
        [STW_COMPONENT_PARAMS] = "placement of parameters",
        [STW_COMPONENT_GRADS] = "placement of gradients",
        [STW_COMPONENT_MASTER] = "placement of master weights",
        [STW_COMPONENT_EXP_AVG] = "placement of moments",
        [STW_COMPONENT_EXP_AVG_SQ] = "placement of moments",
        [STW_COMPONENT_ACTIVATIONS] = "offloaded activations",
        [STW_COMPONENT_STAGE] = "buffers and temporaries of the step",
        [STW_COMPONENT_LOAD_STAGING] = "load.method, load.dtype",
        [STW_COMPONENT_PAGE_LOCK_ROUNDING] = "the allocator's powers of two",
        [STW_COMPONENT_PAGE_LOCK_CACHE] = "freed blocks that torch's allocator keeps",
        [STW_COMPONENT_ROLLOUT_WEIGHTS] = "roles.sleep_level: weights of inference engines",
        [STW_COMPONENT_ROLE_PROCESS] = "node.host.process, node.host.process_comm",
        [STW_COMPONENT_PROCESS] = "node.host.process, node.host.process_comm",
        [STW_COMPONENT_OBJECT_STORE] = "node.host.object_store",
        [STW_COMPONENT_DATA_LOADERS] = "node.host.data_loaders"};
    const char *word = (unsigned)component < STW_N_COMPONENTS ? words[component] : NULL;
    return word != NULL ? word : stw_component_name(component);
}

static stw_ledger_line *find(stw_ledger *ledger, const stw_ledger_line *like) {
    for (uint32_t i = 0; i < ledger->n; i++) {
        stw_ledger_line *line = &ledger->lines[i];
        if (line->component == like->component && line->page_locked == like->page_locked &&
            strcmp(line->from, like->from) == 0)
            return line;
    }
    return NULL;
}

static stw_status add(stw_ledger *ledger, const stw_ledger_line *line, stw_pool *pool,
                      stw_error *err) {
    stw_ledger_line *found = find(ledger, line);
    if (found != NULL) {
        found->bytes = stw_plus(found->bytes, line->bytes);
        return STW_STATUS_OK;
    }
    stw_ledger_line *lines = stw_pool_grow(pool, ledger->lines, ledger->n, (size_t)ledger->n + 1,
                                           &ledger->room, sizeof *lines);
    if (lines == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "ledger", "out of memory");
    ledger->lines = lines;
    lines[ledger->n++] = *line;
    return STW_STATUS_OK;
}

/* Lines of roles beside the trainer begin with the role's name. */
static stw_ledger_line line_of(const stw_op *op, const stw_movement *movement, stw_pool *pool) {
    const char *from = op->from_what != NULL ? op->from_what : usual(op->component);
    if (movement->role_number > 0) from = stw_pool_printf(pool, "%s: %s", movement->role, from);
    return (stw_ledger_line){.component = op->component,
                             .from = from != NULL ? from : movement->role,
                             .page_locked = !op->pageable,
                             .bytes = op->bytes};
}

/* A free that does not say what it frees takes from the last line of its component. */
static void take(stw_ledger *ledger, const stw_ledger_line *like) {
    stw_ledger_line *line = find(ledger, like);
    if (line != NULL && line->bytes < like->bytes) line = NULL;
    for (uint32_t i = ledger->n; line == NULL && i-- > 0;) {
        stw_ledger_line *other = &ledger->lines[i];
        if (other->component == like->component && other->page_locked == like->page_locked &&
            other->bytes >= like->bytes)
            line = other;
    }
    if (line != NULL) line->bytes -= like->bytes;
}

stw_status stw_ledger_add(const stw_program *program, stw_phase phase, uint64_t ranks,
                          stw_pool *pool, stw_ledger *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ledger live = {0}, most = {0};
    uint64_t total = 0, peak = 0;
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const bool counts = movement->phase == phase;
        for (uint32_t i = 0; i <= movement->n_ops; i++) {
            const stw_op *op = i > 0 ? &program->ops[movement->first_op + i - 1] : NULL;
            const bool host = op != NULL && op->to == STW_TIER_HOST;
            stw_ledger_line line = {0};
            if (host) line = line_of(op, movement, pool);
            if (host && op->kind == STW_OP_ALLOC) {
                total += op->bytes;
                STW_TRY(add(&live, &line, pool, err));
            } else if (host && op->kind == STW_OP_FREE) {
                total -= op->bytes;
                take(&live, &line);
                continue;
            } else if (i > 0) {
                continue;
            }
            if (!counts || total < peak) continue;
            peak = total;
            most.n = 0;
            for (uint32_t l = 0; l < live.n; l++) STW_TRY(add(&most, &live.lines[l], pool, err));
        }
    }
    for (uint32_t l = 0; l < most.n; l++) {
        most.lines[l].bytes = stw_times(most.lines[l].bytes, ranks);
        if (most.lines[l].bytes > 0) STW_TRY(add(out, &most.lines[l], pool, err));
    }
out:
    return status;
}

stw_status stw_ledger_add_rest(const stw_peak *total, stw_pool *pool, stw_ledger *out,
                               stw_error *err) {
    for (int c = 0; c < STW_N_COMPONENTS; c++) {
        uint64_t listed = 0;
        for (uint32_t i = 0; i < out->n; i++)
            if (out->lines[i].component == (stw_component)c) listed += out->lines[i].bytes;
        if (total->components[c] <= listed) continue;
        const stw_ledger_line rest = {.component = (stw_component)c,
                                      .from = "other roles of the node",
                                      .bytes = total->components[c] - listed};
        stw_status status = add(out, &rest, pool, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

stw_status stw_ledger_of_node(const stw_job *job, const stw_program *const *programs,
                              uint32_t node_kind, stw_phase phase, stw_pool *pool, stw_ledger *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = (stw_ledger){0};
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const uint64_t ranks = job->node_kinds[node_kind].kind_ranks[k];
        if (ranks > 0) STW_TRY(stw_ledger_add(programs[k], phase, ranks, pool, out, err));
    }
out:
    return status;
}
