/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks that engines admit, and the values that each key of one may have. Functions are
 * pure; any thread may call them. */
#ifndef STW_ENGINES_LAYOUTS_H
#define STW_ENGINES_LAYOUTS_H

#include "plan/job/engine.h"

#define STW_LAYOUT_MOST_VALUES 32

/** Values that a key may have in a layout, ascending, the plainest first; where it is not searched,
 * the run's. @param out [STW_LAYOUT_MOST_VALUES] @return how many */
uint32_t stw_layout_values(const stw_layout_case *c, const stw_layout_rules *rules, stw_search key,
                           uint64_t *out);
/** The run's own layout. */
void stw_layout_of_run(const stw_layout_case *c, const stw_layout_rules *rules, uint64_t *value);
/** A key that is true or false. */
bool stw_layout_is_truth(const stw_layout_rules *rules, stw_search key);
/** The key of a search; NULL: the engine has none. */
const char *stw_layout_key(const stw_layout_rules *rules, stw_search search);
/** Transformer blocks. */
uint64_t stw_layout_layers(const stw_model *model);
/** Do the ways divide the ranks, and cp the sequence? Experts only where the model has some. */
bool stw_layout_divides(const stw_layout_case *c, const uint64_t *value);

/** Does sequence parallelism have an effect where it is on? */
bool stw_layout_has_sequence(const stw_layout_case *c, const uint64_t *value);

/** Settings of a layout whose loss is fused where the run's is not: its kernels compute in fp32,
 * whatever dtype the run's logits have. @param out [STW_LAYOUT_MOST_OWN] @return how many */
uint32_t stw_layout_loss_settings(const stw_layout_case *c, const uint64_t *value,
                                  char out[][STW_LAYOUT_SETTING]);

/** What the rules below search and admit. */
#define STW_LAYOUT_KEYS_OF_CHUNKS                                                                  \
    (1u << STW_SEARCH_CP | 1u << STW_SEARCH_EP | 1u << STW_SEARCH_REPLICAS |                       \
     1u << STW_SEARCH_MICRO_BATCH | 1u << STW_SEARCH_ACCUMULATION | 1u << STW_SEARCH_FUSED_LOSS |  \
     1u << STW_SEARCH_OWN_1 | 1u << STW_SEARCH_OWN_2)
bool stw_layout_admits_chunks(const stw_layout_case *c, const uint64_t *value);
/** Engines whose state is cut over dp_shard x cp neighbouring ranks, experts by ep x etp first. */
extern const stw_layout_rules stw_layouts_of_chunks;

#endif
