/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/blocks.h"

#include "core/checked.h"

typedef struct shares {
    uint32_t of[STW_N_ACTS], all;
} shares;

static shares shares_of(const stw_decisions *decisions, uint32_t group) {
    shares s = {{0}, 0};
    for (uint32_t i = 0; i < decisions->n_blocks; i++) {
        const stw_block_decision *d = &decisions->blocks[i];
        if (d->group != group) continue;
        s.of[d->act] += d->count;
        s.all += d->count;
    }
    return s;
}

static stw_act in_turn(const shares *s, uint32_t instance) {
    if (instance < s->of[STW_ACT_OFFLOAD]) return STW_ACT_OFFLOAD;
    return instance - s->of[STW_ACT_OFFLOAD] < s->of[STW_ACT_RECOMPUTE] ? STW_ACT_RECOMPUTE
                                                                        : STW_ACT_KEEP;
}

/* Of `all` things in a row `part` are marked, evenly and as late as possible: is number i? */
static bool is_marked(uint64_t i, uint64_t part, uint64_t all) {
    return (i + 1) * part / all > i * part / all;
}

/* Every beginning of a group holds at most its share of the blocks that save much: rows of other
 * groups count on it. */
static stw_act spread(shares s, uint32_t instance) {
    stw_act last = s.of[STW_ACT_KEEP] > 0        ? STW_ACT_KEEP
                   : s.of[STW_ACT_RECOMPUTE] > 0 ? STW_ACT_RECOMPUTE
                                                 : STW_ACT_OFFLOAD;
    uint32_t at_end = (uint32_t)stw_min_u64(s.of[last], STW_LAST_BLOCKS);
    if (instance >= s.all - at_end) return last;
    s.all -= at_end;
    s.of[last] -= at_end;
    uint64_t stay = s.all - s.of[STW_ACT_OFFLOAD];
    if (stay == 0 || !is_marked(instance, stay, s.all)) return STW_ACT_OFFLOAD;
    return is_marked(instance * stay / s.all, s.of[STW_ACT_KEEP], stay) ? STW_ACT_KEEP
                                                                        : STW_ACT_RECOMPUTE;
}

void stw_block_acts(const stw_job *job, const stw_decisions *decisions, stw_act *acts) {
    const stw_model *model = job->model;
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const shares s = shares_of(decisions, g);
        for (uint32_t b = 0; b < model->n_blocks; b++) {
            const stw_block *block = &model->blocks[b];
            if (block->group != g) continue;
            acts[b] = block->instance >= s.all    ? STW_ACT_KEEP
                      : decisions->blocks_in_turn ? in_turn(&s, block->instance)
                                                  : spread(s, block->instance);
        }
    }
}

uint64_t stw_blocks_recomputed_in_chunk(uint64_t recomputed, uint64_t in_chunk, uint64_t of_group) {
    return stw_ratio_up(recomputed, in_chunk, of_group);
}

/* Kept blocks of the group at `at` that come after it, or `enough` if there are more. */
static uint32_t kept_after(const stw_job *job, const stw_act *acts, const uint32_t *chain,
                           uint32_t n, uint32_t at, uint32_t enough) {
    uint32_t kept = 0, group = job->model->blocks[chain[at]].group;
    for (uint32_t i = n; i-- > at + 1 && kept < enough;) /* the last ones are kept first */
        kept += job->model->blocks[chain[i]].group == group && acts[chain[i]] == STW_ACT_KEEP;
    return kept;
}

/* One more block as long as kept blocks have freed the room, beside what the block itself brings
 * back, and no other offloaded block or group is in between. */
uint32_t stw_block_held_to(const stw_job *job, const stw_decisions *decisions, const stw_act *acts,
                           const uint32_t *chain, uint32_t n, uint32_t at) {
    const stw_block *blocks = job->model->blocks;
    uint32_t to = at + 1;
    if (to >= n || blocks[chain[to]].group != blocks[chain[at]].group) return to;
    for (uint32_t next = to + 1; next < n && next - at <= decisions->fetch_ahead; next++) {
        if (blocks[chain[next]].group != blocks[chain[at]].group) break;
        if (acts[chain[next - 1]] == STW_ACT_OFFLOAD) break;
        uint32_t brought = acts[chain[next]] == STW_ACT_KEEP ? 1 : 2;
        if (kept_after(job, acts, chain, n, next, brought) < brought) break;
        to = next;
    }
    return to;
}
