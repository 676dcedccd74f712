/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the HTML page's data (stowage.page/1): figures of a plan that its file does not state.
 * Each function appends members to the open object. One writer belongs to one thread at a time. */
#ifndef STW_REPORTS_PAGE_H
#define STW_REPORTS_PAGE_H

#include "core/json.h"
#include "core/pool.h"
#include "reports/facts.h"
#include "reports/reports.h"

/** Kinds of ranks and nodes of which a page shows memory over time, at most: those with the highest
 * peaks, and of kinds with nearly equal peaks one. */
enum { STW_PAGE_MOST_KINDS = 4 };

/** Bytes by component of a kind of rank (GPU) or node (host). Movements stand in the order of the
 * phases, as in tables: a program has the first optimizer step before forward and backward, which
 * it states with the bytes of later iterations. */
typedef struct stw_memory_grid {
    const stw_page_item *item;
    stw_tier tier;
    const stw_program *base; /* whose movements are the stretches */
    uint32_t *order;         /* [base->n_movements] the movement of each stretch, in a pool */
    const stw_page_track *track;
    char who[128];
    uint32_t buckets; /* of a stretch */
    uint64_t *bytes;  /* [base->n_movements][buckets][STW_N_COMPONENTS], in a pool */
} stw_memory_grid;
/** @param kind of rank or of node, by `tier` */
STW_MUST_USE stw_status stw_memory_grid_make(const stw_page_item *item, stw_tier tier,
                                             uint32_t kind, uint32_t buckets, stw_pool *pool,
                                             stw_memory_grid *out, stw_error *err);
/** Kinds of ranks or nodes with the highest peaks that differ. @return how many */
uint32_t stw_memory_pick(const stw_plan *plan, stw_tier tier, uint32_t picked[STW_PAGE_MOST_KINDS]);
/** "figures": verdict, peaks and limits, seconds, placement, phases. */
void stw_page_figures(const stw_plan *plan, const stw_plan_facts *facts, stw_json *json);
/** "memory": bytes by component of the picked kinds of ranks (GPU) and nodes (host), in the order
 * of the phases, as pairs of a number of buckets and the bytes that these have. Peaks are exact;
 * what goes up and down within a bucket is not shown. @param buckets of a movement */
STW_MUST_USE stw_status stw_page_memory(const stw_page_item *item, uint32_t buckets, stw_json *json,
                                        stw_error *err);
/** "streams": operations of the largest kind of rank by movement and stream, five values each.
 * Those that are shorter than one of so many slices of a movement and follow each other are one. */
void stw_page_streams(const stw_page_item *item, uint32_t slices, stw_json *json);

#endif
