/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by plan and run files: typed reads in addition to core/tree.h, and maps with phases or
 * components as keys. Private to plan/files. Any thread may call; one thread at a time uses a
 * document. */
#ifndef STW_PLAN_FILE_PARTS_H
#define STW_PLAN_FILE_PARTS_H

#include "core/json.h"
#include "core/pool.h"
#include "core/tree.h"
#include "plan/spec/terms.h"

/** Fail with BAD_INPUT at the node, with the caller's text. */
stw_status stw_part_fail(const stw_tree *tree, const stw_node *node, stw_error *err,
                         const char *format, ...) STW_PRINTF(4, 5);

/** Read a required whole number of at most `limit`. */
STW_MUST_USE stw_status stw_part_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                                     uint64_t limit, uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_part_u32(const stw_tree *tree, const stw_node *parent, const char *key,
                                     uint32_t *out, stw_error *err);
/** The same for an optional member: if it is absent or null, *out keeps its value. */
STW_MUST_USE stw_status stw_part_optional_u64(const stw_tree *tree, const stw_node *parent,
                                              const char *key, uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_part_optional_u32(const stw_tree *tree, const stw_node *parent,
                                              const char *key, uint32_t *out, stw_error *err);
/** Read a required number; null gives NaN. */
STW_MUST_USE stw_status stw_part_real(const stw_tree *tree, const stw_node *parent, const char *key,
                                      double *out, stw_error *err);
/** The same, not negative. */
STW_MUST_USE stw_status stw_part_seconds(const stw_tree *tree, const stw_node *parent,
                                         const char *key, double *out, stw_error *err);
/** Read a required string into the pool. Null is accepted if `may_be_null`. */
STW_MUST_USE stw_status stw_part_string(const stw_tree *tree, const stw_node *parent,
                                        const char *key, bool may_be_null, stw_pool *pool,
                                        const char **out, stw_error *err);
/** Returns the index of `text` in a list of words; `n_words` if it is not in the list. */
unsigned stw_part_find(const char *text, const char *(*word)(unsigned), unsigned n_words);

/** Read the phase from the name of a map's member. */
STW_MUST_USE stw_status stw_part_phase(const stw_tree *tree, const stw_node *member, stw_phase *out,
                                       stw_error *err);
/** Read a map of bytes by component; missing components are 0. */
STW_MUST_USE stw_status stw_part_components(const stw_tree *tree, const stw_node *parent,
                                            const char *key, uint64_t out[STW_N_COMPONENTS],
                                            stw_error *err);
/** Write such a map without its zeros. */
void stw_part_write_components(stw_json *json, const char *key,
                               const uint64_t components[STW_N_COMPONENTS]);
/** Append ascending numbers as "0", "1-31" or "0,8,16-23". */
void stw_part_format_numbers(const uint32_t *numbers, uint32_t n, stw_text *out);

#endif
