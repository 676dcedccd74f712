/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/places.h"

#include <stdint.h>
#include <string.h>

#include "planner/frameworks/shell/value.h"

enum { MAX_PLACES = 1024 }; /* of a text; others are not known */

static const stw_shell_place nowhere = {.n = 1};

stw_shell_place stw_shell_places_at(const stw_shell_places *places, size_t index) {
    for (size_t i = 0; i < places->n; i++) {
        const stw_shell_place *p = &places->items[i];
        if (index >= p->n) {
            index -= p->n;
            continue;
        }
        if (p->end == 0) return nowhere;
        if (p->unit) return (stw_shell_place){1, p->begin, p->end, true};
        const uint32_t begin = p->begin + (uint32_t)index;
        return (stw_shell_place){1, begin, begin + 1, false};
    }
    return nowhere;
}

static bool continues(const stw_shell_place *a, const stw_shell_place *b) {
    if (a->end == 0 || b->end == 0) return a->end == b->end;
    if (a->unit != b->unit) return false;
    return a->unit ? a->begin == b->begin && a->end == b->end : a->end == b->begin;
}

void stw_shell_places_add(stw_pool *pool, stw_shell_place_list *list, stw_shell_place place) {
    if (place.n == 0 || list->failed) return;
    if (list->n >= MAX_PLACES) *list = (stw_shell_place_list){.failed = true};
    if (list->failed) return;
    stw_shell_place *last = list->n > 0 ? &list->items[list->n - 1] : NULL;
    if (last != NULL && continues(last, &place)) {
        last->n += place.n;
        if (!last->unit) last->end = place.end;
        return;
    }
    stw_shell_place *grown =
        stw_pool_grow(pool, list->items, list->n, list->n + 1, &list->capacity, sizeof *grown);
    if (grown == NULL) {
        *list = (stw_shell_place_list){.failed = true};
        return;
    }
    list->items = grown;
    grown[list->n++] = place;
}

void stw_shell_places_add_part(stw_pool *pool, stw_shell_place_list *list,
                               const stw_shell_places *places, size_t from, size_t n) {
    for (size_t i = 0; i < places->n && n > 0; i++) {
        stw_shell_place p = places->items[i];
        if (from >= p.n) {
            from -= p.n;
            continue;
        }
        const uint32_t cut = (uint32_t)from, left = p.n - cut;
        const uint32_t used = left < n ? left : (uint32_t)n;
        if (p.end > 0 && !p.unit) p.begin += cut, p.end = p.begin + used;
        p.n = used;
        stw_shell_places_add(pool, list, p);
        n -= used;
        from = 0;
    }
    if (n > 0) stw_shell_places_add(pool, list, (stw_shell_place){.n = (uint32_t)n});
}

stw_shell_places stw_shell_places_plain(stw_pool *pool, const char *text,
                                        const stw_shell_places *places) {
    stw_shell_place_list list = {0};
    const char *start = text, *end = text + strlen(text);
    if (places->n == 0) return (stw_shell_places){0};
    while (text < end) {
        const size_t at = (size_t)(text - start);
        const bool expansion = *text == STW_MARK_BARE || *text == STW_MARK_QUOTED;
        const size_t n = expansion ? stw_value_expansion(text, end) : 1;
        const char *value = expansion ? memchr(text, STW_MARK_VALUE, n) : NULL;
        if (value != NULL)
            stw_shell_places_add_part(pool, &list, places, (size_t)(value + 1 - start),
                                      (size_t)(text + n - 1 - (value + 1)));
        else if (expansion && n > 1)
            stw_shell_places_add_part(pool, &list, places, at + 1, n - 2);
        else if (!expansion && (*text < STW_MARK_OPEN || *text > STW_MARK_END))
            stw_shell_places_add_part(pool, &list, places, at, 1);
        text += n;
    }
    return (stw_shell_places){list.n, list.items};
}

/* ---- texts that are read ---- */

static stw_shell_place byte_of(const struct stw_shell_origin *o, const char *at) {
    for (; o != NULL; o = o->outer) {
        const uintptr_t first = (uintptr_t)o->text, is = (uintptr_t)at;
        if (is < first || is >= first + o->length) continue;
        const size_t index = is - first;
        if (o->copy_of != NULL)
            at = o->copy_of + index;
        else if (o->outer != NULL)
            return stw_shell_places_at(&o->places, index);
        else
            return (stw_shell_place){1, (uint32_t)index, (uint32_t)index + 1, false};
    }
    return nowhere;
}

stw_shell_place stw_shell_place_of(const struct stw_shell_origin *origin, const char *at,
                                   const char *end, bool unit) {
    const stw_shell_place first = byte_of(origin, at);
    if (!unit || end <= at) return first;
    const stw_shell_place last = byte_of(origin, end - 1);
    if (first.end == 0 || last.end < first.end) return nowhere;
    return (stw_shell_place){1, first.begin, last.end, true};
}
