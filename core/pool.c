/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pool.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chunks double up to a limit: small pools stay small, large pools need few allocations. */
enum { FIRST_CHUNK = 1024, LARGEST_CHUNK = 256 * 1024 };

typedef struct chunk {
    struct chunk *next;
    size_t used, capacity;
    max_align_t bytes[];
} chunk;

struct stw_pool {
    chunk *chunks; /* the newest first; only it takes further objects */
    size_t next_capacity;
    bool failed;
};

stw_pool *stw_pool_new(void) {
    stw_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL) pool->next_capacity = FIRST_CHUNK;
    return pool;
}

void stw_pool_free(stw_pool *pool) {
    if (pool == NULL) return;
    for (chunk *c = pool->chunks; c != NULL;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(pool);
}

static chunk *chunk_new(size_t capacity) {
    if (capacity > SIZE_MAX - sizeof(chunk)) return NULL;
    chunk *c = calloc(1, sizeof *c + capacity);
    if (c != NULL) c->capacity = capacity;
    return c;
}

static size_t aligned(size_t size) {
    const size_t align = _Alignof(max_align_t);
    return size == 0 ? align : (size + align - 1) / align * align;
}

void *stw_pool_alloc(stw_pool *pool, size_t size) {
    if (pool == NULL || size > SIZE_MAX / 2) return NULL;
    size = aligned(size);
    chunk *c = pool->chunks;
    if (c == NULL || c->capacity - c->used < size) {
        bool large = size > pool->next_capacity / 4;
        c = chunk_new(large ? size : pool->next_capacity);
        pool->failed |= c == NULL;
        if (c == NULL) return NULL;
        if (large && pool->chunks != NULL) { /* a separate chunk, after the current one */
            c->next = pool->chunks->next;
            pool->chunks->next = c;
        } else {
            c->next = pool->chunks;
            pool->chunks = c;
        }
        if (!large && pool->next_capacity < LARGEST_CHUNK) pool->next_capacity *= 2;
    }
    void *object = (char *)c->bytes + c->used;
    c->used += size;
    return object;
}

bool stw_pool_has_failed(const stw_pool *pool) { return pool->failed; }

void *stw_pool_array(stw_pool *pool, size_t n, size_t size) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return stw_pool_alloc(pool, bytes);
}

char *stw_pool_string(stw_pool *pool, const char *text) {
    if (text == NULL) return NULL;
    size_t size = strlen(text) + 1;
    char *copy = stw_pool_alloc(pool, size);
    if (copy != NULL) memcpy(copy, text, size);
    return copy;
}

char *stw_pool_printf(stw_pool *pool, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : stw_pool_alloc(pool, (size_t)length + 1);
    if (text != NULL) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

void *stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                    size_t size) {
    if (array != NULL && need <= *capacity) return array;
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < need) {
        if (wanted > SIZE_MAX / 2) return NULL;
        wanted *= 2;
    }
    void *grown = stw_pool_array(pool, wanted, size);
    if (grown == NULL) return NULL;
    if (used > 0) memcpy(grown, array, used * size);
    *capacity = wanted;
    return grown;
}

/* The link to the chunk that holds one object and nothing else; NULL where it shares one. */
static chunk **chunk_of(stw_pool *pool, const void *object, size_t size) {
    for (chunk **link = &pool->chunks; *link != NULL; link = &(*link)->next)
        if ((const void *)(*link)->bytes == object && (*link)->used == (*link)->capacity)
            return (*link)->capacity == aligned(size) ? link : NULL;
    return NULL;
}

void *stw_pool_regrow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                      size_t size) {
    if (array != NULL && need <= *capacity) return array;
    const bool fits = array != NULL && *capacity <= SIZE_MAX / 8 / size;
    chunk **link = fits ? chunk_of(pool, array, *capacity * size) : NULL;
    if (link == NULL || need > 2 * *capacity || (*link)->capacity < 16 * FIRST_CHUNK)
        return stw_pool_grow(pool, array, used, need, capacity, size);
    size_t after = aligned(2 * *capacity * size);
    chunk *grown = realloc(*link, sizeof *grown + after);
    if (grown == NULL) return NULL;
    *link = grown;
    grown->used = grown->capacity = after;
    *capacity *= 2;
    return grown->bytes;
}
