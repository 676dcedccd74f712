/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a text stand in the file of a script: literal ones where they are written, the
 * value of an expansion where the expansion is; values that are several arguments keep the places
 * of the texts that they come from. Lists lie in the reader's pool; one thread at a time. */
#ifndef STW_PLANNER_SHELL_PLACES_H
#define STW_PLANNER_SHELL_PLACES_H

#include "planner/frameworks/shell/shell.h"

typedef struct stw_shell_place_list {
    size_t n, capacity;
    stw_shell_place *items;
    bool failed; /* no memory, or too many: nothing is known of them */
} stw_shell_place_list;

/** The place of one byte of a text; `end` 0: it is not known. */
stw_shell_place stw_shell_places_at(const stw_shell_places *places, size_t index);
/** Add a place of `place.n` bytes. */
void stw_shell_places_add(stw_pool *pool, stw_shell_place_list *list, stw_shell_place place);
/** Add those of `n` bytes from `from` on. */
void stw_shell_places_add_part(stw_pool *pool, stw_shell_place_list *list,
                               const stw_shell_places *places, size_t from, size_t n);
/** Places of a text with marks as those of the text without. */
stw_shell_places stw_shell_places_plain(stw_pool *pool, const char *text,
                                        const stw_shell_places *places);

/** A text that is read: the file, a copy of a part of what is read, or a text that was made.
 * In the caller's frame; `outer` of the file is NULL. */
struct stw_shell_origin {
    const char *text;
    size_t length;
    const char *copy_of;     /* where it was copied from, or NULL */
    stw_shell_places places; /* of a text that was made */
    const struct stw_shell_origin *outer;
};
/** The place of what stands from `at` to `end` in a text that is read. @param unit they are one
 * expansion; else one byte */
stw_shell_place stw_shell_place_of(const struct stw_shell_origin *origin, const char *at,
                                   const char *end, bool unit);

#endif
