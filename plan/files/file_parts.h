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

/** BAD_INPUT at the node, with a text of the caller's. */
stw_status stw_part_fail(const stw_tree *tree, const stw_node *node, stw_error *err,
                         const char *format, ...) STW_PRINTF(4, 5);

/** A required whole number of at most `limit`. */
STW_MUST_USE stw_status stw_part_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                                     uint64_t limit, uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_part_u32(const stw_tree *tree, const stw_node *parent, const char *key,
                                     uint32_t *out, stw_error *err);
/** The same where the member may be absent or null: *out keeps its value then. */
STW_MUST_USE stw_status stw_part_optional_u64(const stw_tree *tree, const stw_node *parent,
                                              const char *key, uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_part_optional_u32(const stw_tree *tree, const stw_node *parent,
                                              const char *key, uint32_t *out, stw_error *err);
/** A required number; null gives NaN. */
STW_MUST_USE stw_status stw_part_real(const stw_tree *tree, const stw_node *parent, const char *key,
                                      double *out, stw_error *err);
/** The same, not negative. */
STW_MUST_USE stw_status stw_part_seconds(const stw_tree *tree, const stw_node *parent,
                                         const char *key, double *out, stw_error *err);
/** A required string (null too where `may_be_null`), copied into the pool. */
STW_MUST_USE stw_status stw_part_string(const stw_tree *tree, const stw_node *parent,
                                        const char *key, bool may_be_null, stw_pool *pool,
                                        const char **out, stw_error *err);
/** The place of `text` in a list of words; `n_words` where it is none of them. */
unsigned stw_part_find(const char *text, const char *(*word)(unsigned), unsigned n_words);

/** The phase that a member of a map is named after. */
STW_MUST_USE stw_status stw_part_phase(const stw_tree *tree, const stw_node *member, stw_phase *out,
                                       stw_error *err);
/** A map of bytes by component; components that it does not name are 0. */
STW_MUST_USE stw_status stw_part_components(const stw_tree *tree, const stw_node *parent,
                                            const char *key, uint64_t out[STW_N_COMPONENTS],
                                            stw_error *err);
/** The same written, zeros left out. */
void stw_part_write_components(stw_json *json, const char *key,
                               const uint64_t components[STW_N_COMPONENTS]);
/** Append "0", "1-31", "0,8,16-23" of ascending numbers. */
void stw_part_format_numbers(const uint32_t *numbers, uint32_t n, stw_text *out);

#endif
