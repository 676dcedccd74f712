/* SPDX-License-Identifier: Apache-2.0 */
/* Names of torch's functions are given where one is followed step by step. Free blocks are kept per
 * stream and pool, by size and then address: torch keeps all streams in one set by (stream, size,
 * address) and never leaves the stream that it searches. Addresses of segments ascend in the order
 * of their allocation. Blocks are referred to by index, so that their array may grow. */
#include "plan/program/allocator.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

#define NONE STW_NO_BLOCK

typedef struct block {
    uint64_t address, size;
    uint32_t prev, next; /* neighbours in the segment, or the next unused index */
    uint32_t users;      /* bit per stream that was recorded */
    uint32_t events;     /* streams that a freed block waits for */
    uint64_t age_base;   /* the pool's count of searches when it became free */
    uint8_t stream;
    bool small, allocated, expandable, mapped, live;
} block;

/* Block indices by (size, address); of unmapped blocks by address alone. */
typedef struct block_set {
    uint32_t *items;
    size_t n, room;
} block_set;

typedef struct stream_pool {
    block_set free, unmapped;
} stream_pool;

typedef struct event {
    uint32_t block, stream;
    bool done;
} event;

struct stw_allocator {
    stw_allocator_settings set;
    stw_allocator_stats stats;
    block *blocks;
    size_t n_blocks, blocks_room;
    uint32_t unused;                             /* head of the list of unused indices */
    stream_pool pools[STW_ALLOCATOR_STREAMS][2]; /* [stream][small] */
    uint64_t searches[2];                        /* [small] get_free_blocks_call_count */
    event *events;
    size_t n_events, events_room;
    uint64_t next_address;
    bool out_of_memory; /* of this process */
};

/* ---- blocks and sets ---- */

static bool grow(void **array, size_t *room, size_t need, size_t size) {
    if (need <= *room) return true;
    size_t more = *room < 64 ? 64 : *room + *room / 2;
    if (more < need) more = need;
    void *grown = more > SIZE_MAX / size ? NULL : realloc(*array, more * size);
    if (grown == NULL) return false;
    *array = grown;
    *room = more;
    return true;
}

static uint32_t block_new(stw_allocator *a, const block *like) {
    uint32_t at = a->unused;
    if (at != NONE) {
        a->unused = a->blocks[at].next;
    } else if (a->n_blocks < NONE &&
               grow((void **)&a->blocks, &a->blocks_room, a->n_blocks + 1, sizeof *a->blocks)) {
        at = (uint32_t)a->n_blocks++;
    } else {
        a->out_of_memory = true;
        return NONE;
    }
    a->blocks[at] = *like;
    a->blocks[at].live = true;
    return at;
}

static void block_delete(stw_allocator *a, uint32_t at) {
    a->blocks[at] = (block){.next = a->unused};
    a->unused = at;
}

static bool is_split(const block *b) { return b->prev != NONE || b->next != NONE; }

static bool before(const stw_allocator *a, bool by_size, uint32_t x, uint32_t y) {
    const block *p = &a->blocks[x], *q = &a->blocks[y];
    if (by_size && p->size != q->size) return p->size < q->size;
    return p->address < q->address;
}

/* Where an item is, or would be. */
static size_t set_find(const stw_allocator *a, const block_set *set, bool by_size, uint32_t item) {
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(a, by_size, set->items[middle], item))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void set_insert(stw_allocator *a, block_set *set, bool by_size, uint32_t item) {
    if (!grow((void **)&set->items, &set->room, set->n + 1, sizeof *set->items)) {
        a->out_of_memory = true;
        return;
    }
    size_t at = set_find(a, set, by_size, item);
    memmove(&set->items[at + 1], &set->items[at], (set->n - at) * sizeof *set->items);
    set->items[at] = item;
    set->n++;
}

static void set_erase(stw_allocator *a, block_set *set, bool by_size, uint32_t item) {
    size_t at = set_find(a, set, by_size, item);
    if (at == set->n || set->items[at] != item) return;
    memmove(&set->items[at], &set->items[at + 1], (set->n - at - 1) * sizeof *set->items);
    set->n--;
}

static stream_pool *pool_of(stw_allocator *a, const block *b) {
    return &a->pools[b->stream][b->small];
}

/* insert_into_blocks */
static void free_insert(stw_allocator *a, uint32_t at) {
    block *b = &a->blocks[at];
    b->age_base = a->searches[b->small];
    set_insert(a, &pool_of(a, b)->free, true, at);
}

static void free_erase(stw_allocator *a, uint32_t at) {
    set_erase(a, &pool_of(a, &a->blocks[at])->free, true, at);
}

static void unmapped_insert(stw_allocator *a, uint32_t at) {
    set_insert(a, &pool_of(a, &a->blocks[at])->unmapped, false, at);
}

static void unmapped_erase(stw_allocator *a, uint32_t at) {
    set_erase(a, &pool_of(a, &a->blocks[at])->unmapped, false, at);
}

/* Put `at` between two neighbours. */
static void splice(stw_allocator *a, uint32_t at, uint32_t prev, uint32_t next) {
    a->blocks[at].prev = prev;
    a->blocks[at].next = next;
    if (prev != NONE) a->blocks[prev].next = at;
    if (next != NONE) a->blocks[next].prev = at;
}

static bool is_idle(const stw_allocator *a, uint32_t at) {
    return at != NONE && !a->blocks[at].allocated && a->blocks[at].events == 0 &&
           a->blocks[at].users == 0;
}

/* try_merge_blocks: `from` becomes part of `into`, which is in no set. */
static void merge(stw_allocator *a, uint32_t into, uint32_t from) {
    if (!is_idle(a, from) || a->blocks[into].mapped != a->blocks[from].mapped) return;
    if (a->blocks[from].mapped)
        free_erase(a, from);
    else
        unmapped_erase(a, from);
    block *b = &a->blocks[into];
    const block gone = a->blocks[from];
    if (b->prev == from) {
        b->address = gone.address;
        splice(a, into, gone.prev, b->next);
    } else {
        splice(a, into, b->prev, gone.next);
    }
    b->size += gone.size;
    block_delete(a, from);
}

static void reserve(stw_allocator *a, uint64_t bytes) {
    a->stats.reserved_bytes += bytes;
    a->stats.peak_reserved_bytes =
        stw_max_u64(a->stats.peak_reserved_bytes, a->stats.reserved_bytes);
}

static bool device_has(const stw_allocator *a, uint64_t bytes) {
    return a->set.device_bytes == 0 ||
           stw_plus(a->stats.reserved_bytes, bytes) <= a->set.device_bytes;
}

/* ---- sizes ---- */

static uint64_t max_split(const stw_allocator *a) {
    return a->set.max_split_bytes > 0 ? a->set.max_split_bytes : UINT64_MAX;
}

/* roundup_power2_next_division */
static uint64_t power2_division(uint64_t size, uint64_t divisions) {
    uint64_t floor = 1ull << (63 - __builtin_clzll(size));
    if (floor == size) return size;
    uint64_t step = floor >> (63 - __builtin_clzll(divisions));
    return step == 0 ? floor << 1 : stw_round_up_u64(size, step);
}

/* round_size */
uint64_t stw_allocator_rounded(const stw_allocator_settings *settings, uint64_t bytes) {
    const uint64_t divisions = settings->roundup_power2_divisions;
    if (bytes < STW_ALLOCATOR_BLOCK_BYTES) return STW_ALLOCATOR_BLOCK_BYTES;
    if (divisions > 1 && bytes > STW_ALLOCATOR_BLOCK_BYTES * divisions)
        return power2_division(bytes, divisions);
    return stw_round_up_u64(bytes, STW_ALLOCATOR_BLOCK_BYTES);
}

/* get_allocation_size */
static uint64_t segment_bytes(uint64_t size) {
    if (size <= STW_ALLOCATOR_SMALL_BYTES) return STW_ALLOCATOR_SMALL_SEGMENT_BYTES;
    if (size < STW_ALLOCATOR_LARGE_BYTES) return STW_ALLOCATOR_LARGE_SEGMENT_BYTES;
    return stw_round_up_u64(size, STW_ALLOCATOR_ROUND_BYTES);
}

/* should_split */
static bool splits(const stw_allocator *a, const block *b, uint64_t size) {
    uint64_t rest = b->size - size;
    if (b->small || a->set.expandable_segments) return rest >= STW_ALLOCATOR_BLOCK_BYTES;
    return size < max_split(a) && rest > STW_ALLOCATOR_SMALL_BYTES;
}

/* ---- free blocks ---- */

/* What a block of an expandable segment can grow to. */
static uint64_t expandable_size(const stw_allocator *a, uint32_t at) {
    const block *b = &a->blocks[at];
    bool grows = b->next != NONE && !a->blocks[b->next].mapped;
    return b->size + (grows ? a->blocks[b->next].size : 0);
}

/* get_free_block: the smallest block that is large enough, taken out of the pool. */
static uint32_t find_free(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    block_set *set = &a->pools[stream][small].free;
    if (a->set.fraction_bytes > 0 && a->set.garbage_collection_threshold > 0.0)
        a->searches[small]++;
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (a->blocks[set->items[middle]].size < size)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == set->n) return NONE;
    while (a->blocks[set->items[low]].expandable && low + 1 < set->n &&
           expandable_size(a, set->items[low + 1]) < expandable_size(a, set->items[low]))
        low++;
    uint32_t found = set->items[low];
    uint64_t most = a->set.max_non_split_rounding_bytes > 0 ? a->set.max_non_split_rounding_bytes
                                                            : STW_ALLOCATOR_LARGE_SEGMENT_BYTES;
    if (size < max_split(a) && a->blocks[found].size >= max_split(a)) return NONE;
    if (size >= max_split(a) && a->blocks[found].size >= stw_plus(size, most)) return NONE;
    free_erase(a, found);
    return found;
}

/* free_block */
static void give_to_pool(stw_allocator *a, uint32_t at) {
    merge(a, at, a->blocks[at].prev);
    merge(a, at, a->blocks[at].next);
    free_insert(a, at);
}

/* ---- segments ---- */

/* release_block */
static void release(stw_allocator *a, uint32_t at) {
    free_erase(a, at);
    a->stats.reserved_bytes -= a->blocks[at].size;
    block_delete(a, at);
}

static bool collectable(const block *b) { return !is_split(b) && !b->expandable; }

/* garbage_collect_cached_blocks: unsplit free blocks of the large pool that are older than the
 * mean, until what is reserved is below the threshold. Their order is by stream and size. */
static void collect_garbage(stw_allocator *a) {
    uint64_t threshold = stw_scaled(a->set.fraction_bytes, a->set.garbage_collection_threshold);
    uint64_t age = 0, count = 0, reclaimed = 0;
    if (a->stats.reserved_bytes <= threshold) return;
    const uint64_t target = a->stats.reserved_bytes - threshold;
    for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++) {
        const block_set *set = &a->pools[s][false].free;
        for (size_t i = 0; i < set->n; i++) {
            if (!collectable(&a->blocks[set->items[i]])) continue;
            age += a->searches[false] - a->blocks[set->items[i]].age_base;
            count++;
        }
    }
    for (bool freed = true; freed && reclaimed < target && count > 0;) {
        const double mean = (double)age / (double)count;
        freed = false;
        for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++) {
            const block_set *set = &a->pools[s][false].free;
            for (size_t i = 0; i < set->n;) {
                const block *b = &a->blocks[set->items[i]];
                uint64_t own = a->searches[false] - b->age_base;
                if (!collectable(b) || (double)own < mean) {
                    i++;
                    continue;
                }
                freed = true;
                reclaimed += b->size;
                age -= own;
                count--;
                release(a, set->items[i]);
            }
        }
    }
}

/* ExpandableSegment::map: whole pages from the block's start on, which is a page's start. */
static bool map_block(stw_allocator *a, uint32_t at, uint64_t bytes) {
    const uint64_t page =
        a->blocks[at].small ? STW_ALLOCATOR_SMALL_SEGMENT_BYTES : STW_ALLOCATOR_LARGE_SEGMENT_BYTES;
    const uint64_t mapped = stw_round_up_u64(bytes, page);
    if (!device_has(a, mapped)) return false;
    unmapped_erase(a, at);
    a->blocks[at].mapped = true;
    if (mapped < a->blocks[at].size) {
        block rest = a->blocks[at];
        rest.address += mapped;
        rest.size -= mapped;
        rest.mapped = false;
        uint32_t made = block_new(a, &rest);
        if (made == NONE) return false;
        a->blocks[at].size = mapped;
        splice(a, made, at, a->blocks[at].next);
        unmapped_insert(a, made);
    }
    merge(a, at, a->blocks[at].prev);
    merge(a, at, a->blocks[at].next);
    free_insert(a, at);
    reserve(a, mapped);
    return true;
}

static bool has_room(const stw_allocator *a, uint32_t at, uint64_t size) {
    uint64_t bytes = 0;
    for (; bytes < size && is_idle(a, at); at = a->blocks[at].next) bytes += a->blocks[at].size;
    return bytes >= size;
}

/* find_expandable_block: the lowest unmapped range with room, with the free block before it. */
static uint32_t find_expandable(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    const block_set *set = &a->pools[stream][small].unmapped;
    for (size_t i = 0; i < set->n; i++) {
        uint32_t at = set->items[i];
        if (is_idle(a, a->blocks[at].prev)) at = a->blocks[at].prev;
        if (has_room(a, at, size)) return at;
    }
    /* torch takes 1 1/8 of the device's memory as address space */
    uint64_t space = a->set.device_bytes > 0 ? a->set.device_bytes : 1ull << 50;
    space = stw_round_up_u64(space + space / 8, STW_ALLOCATOR_LARGE_SEGMENT_BYTES);
    const block whole = {.address = a->next_address,
                         .size = space,
                         .prev = NONE,
                         .next = NONE,
                         .stream = (uint8_t)stream,
                         .small = small,
                         .expandable = true};
    uint32_t made = size > space ? NONE : block_new(a, &whole);
    if (made == NONE) return NONE;
    a->next_address += space;
    unmapped_insert(a, made);
    return made;
}

/* try_allocate_expandable_block */
static uint32_t expand(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    uint32_t at = find_expandable(a, stream, small, size);
    if (at == NONE) return NONE;
    if (!a->blocks[at].mapped && !map_block(a, at, stw_min_u64(a->blocks[at].size, size)))
        return NONE;
    while (a->blocks[at].size < size) {
        uint64_t rest = size - a->blocks[at].size;
        uint32_t next = a->blocks[at].next;
        if (!map_block(a, next, stw_min_u64(rest, a->blocks[next].size))) return NONE;
        at = next; /* it took in what was before it */
    }
    free_erase(a, at);
    return at;
}

/* alloc_block */
static uint32_t new_segment(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    const uint64_t bytes = segment_bytes(size);
    if (a->set.fraction_bytes > 0 &&
        stw_plus(a->stats.reserved_bytes, bytes) > a->set.fraction_bytes)
        return NONE;
    if (a->set.expandable_segments) return expand(a, stream, small, size);
    if (!device_has(a, bytes)) return NONE;
    const block whole = {.address = a->next_address,
                         .size = bytes,
                         .prev = NONE,
                         .next = NONE,
                         .stream = (uint8_t)stream,
                         .small = small,
                         .mapped = true};
    uint32_t made = block_new(a, &whole);
    if (made == NONE) return NONE;
    a->next_address += bytes;
    reserve(a, bytes);
    return made;
}

/* unmap_block: the whole pages inside a free block of an expandable segment go. */
static void unmap(stw_allocator *a, uint32_t at) {
    const uint64_t page =
        a->blocks[at].small ? STW_ALLOCATOR_SMALL_SEGMENT_BYTES : STW_ALLOCATOR_LARGE_SEGMENT_BYTES;
    const block was = a->blocks[at];
    const uint64_t first = stw_round_up_u64(was.address, page);
    const uint64_t end = (was.address + was.size) / page * page;
    if (first >= end) return;
    free_erase(a, at);
    a->blocks[at].address = first;
    a->blocks[at].size = end - first;
    a->blocks[at].mapped = false;
    block part = was;
    if (first > was.address) {
        part.size = first - was.address;
        uint32_t made = block_new(a, &part);
        if (made == NONE) return;
        splice(a, made, was.prev, at);
        free_insert(a, made);
    }
    if (end < was.address + was.size) {
        part = was;
        part.address = end;
        part.size = was.address + was.size - end;
        uint32_t made = block_new(a, &part);
        if (made == NONE) return;
        splice(a, made, at, was.next);
        free_insert(a, made);
    }
    merge(a, at, a->blocks[at].prev);
    merge(a, at, a->blocks[at].next);
    unmapped_insert(a, at);
    a->stats.reserved_bytes -= end - first;
}

/* release_blocks of one stream's pool: unsplit blocks, and pages of expandable ones. */
static void release_pool(stw_allocator *a, stream_pool *pool) {
    size_t kept = 0; /* blocks at the front that stay */
    while (kept < pool->free.n) {
        uint32_t at = pool->free.items[kept];
        if (a->blocks[at].expandable || is_split(&a->blocks[at]))
            kept++;
        else
            release(a, at);
    }
    uint32_t *list = malloc((pool->free.n + 1) * sizeof *list);
    if (list == NULL) {
        a->out_of_memory = true;
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < pool->free.n; i++)
        if (a->blocks[pool->free.items[i]].expandable) list[n++] = pool->free.items[i];
    for (size_t i = 0; i < n; i++) unmap(a, list[i]);
    free(list);
}

/* ---- events ---- */

/* process_events; all: synchronize_and_free_events. */
static void process_events(stw_allocator *a, bool all) {
    size_t kept = 0;
    for (size_t i = 0; i < a->n_events; i++) {
        const event e = a->events[i];
        if (!e.done && !all) {
            a->events[kept++] = e;
            continue;
        }
        if (--a->blocks[e.block].events == 0) give_to_pool(a, e.block);
    }
    a->n_events = kept;
}

static void release_cached(stw_allocator *a) {
    process_events(a, true);
    for (int small = 0; small < 2; small++)
        for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++) release_pool(a, &a->pools[s][small]);
}

/* release_available_cached_blocks: oversized blocks, until they make up the request. */
static bool release_available(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    if (a->set.max_split_bytes == 0) return false;
    const uint64_t key = stw_max_u64(size, max_split(a));
    block_set *set = &a->pools[stream][small].free;
    uint64_t released = 0;
    for (size_t i = 0; i < set->n; i++) {
        if (a->blocks[set->items[i]].size < key) continue;
        release(a, set->items[i]);
        return true;
    }
    while (released < key && set->n > 0 && a->blocks[set->items[set->n - 1]].size >= max_split(a)) {
        released += a->blocks[set->items[set->n - 1]].size;
        release(a, set->items[set->n - 1]);
    }
    return released >= key;
}

/* ---- the interface ---- */

stw_status stw_allocator_new(const stw_allocator_settings *settings, stw_allocator **out,
                             stw_error *err) {
    stw_allocator *a = calloc(1, sizeof *a);
    if (a == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "allocator", "out of memory");
    a->set = *settings;
    a->unused = NONE;
    a->next_address = STW_ALLOCATOR_LARGE_SEGMENT_BYTES;
    *out = a;
    return STW_STATUS_OK;
}

void stw_allocator_free(stw_allocator *a) {
    if (a == NULL) return;
    for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++)
        for (int small = 0; small < 2; small++) {
            free(a->pools[s][small].free.items);
            free(a->pools[s][small].unmapped.items);
        }
    free(a->events);
    free(a->blocks);
    free(a);
}

static stw_status outcome(const stw_allocator *a, stw_error *err) {
    if (!a->out_of_memory) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NO_MEMORY, "allocator", "out of memory");
}

/* The part of malloc that finds a block; NONE: the device is full. */
static uint32_t obtain(stw_allocator *a, uint32_t stream, bool small, uint64_t size) {
    uint32_t at = find_free(a, stream, small, size);
    if (at != NONE) return at;
    if (a->set.fraction_bytes > 0 && a->set.garbage_collection_threshold > 0.0) collect_garbage(a);
    at = new_segment(a, stream, small, size);
    if (at == NONE && release_available(a, stream, small, size))
        at = new_segment(a, stream, small, size);
    if (at != NONE || a->out_of_memory) return at;
    release_cached(a);
    a->stats.retries++;
    return new_segment(a, stream, small, size);
}

stw_status stw_allocator_take(stw_allocator *a, uint32_t stream, uint64_t bytes, uint32_t *out,
                              bool *full, stw_error *err) {
    *out = NONE;
    if (full != NULL) *full = false;
    if (bytes == 0) return STW_STATUS_OK;
    if (stream >= STW_ALLOCATOR_STREAMS || bytes > 1ull << 60)
        return stw_fail(err, STW_STATUS_BUG, "allocator", "%llu bytes on stream %u",
                        (unsigned long long)bytes, stream);
    process_events(a, false);
    const uint64_t size = stw_allocator_rounded(&a->set, bytes);
    uint32_t at = obtain(a, stream, size <= STW_ALLOCATOR_SMALL_BYTES, size);
    if (at == NONE) {
        if (full != NULL) *full = !a->out_of_memory;
        return outcome(a, err);
    }
    if (splits(a, &a->blocks[at], size)) { /* alloc_found_block: the front is handed out */
        block rest = a->blocks[at];
        rest.address += size;
        rest.size -= size;
        uint32_t made = block_new(a, &rest);
        if (made == NONE) return outcome(a, err);
        a->blocks[at].size = size;
        splice(a, made, at, a->blocks[at].next);
        free_insert(a, made);
    }
    a->blocks[at].allocated = true;
    a->stats.allocated_bytes += a->blocks[at].size;
    a->stats.peak_allocated_bytes =
        stw_max_u64(a->stats.peak_allocated_bytes, a->stats.allocated_bytes);
    *out = at;
    return outcome(a, err);
}

void stw_allocator_record_stream(stw_allocator *a, uint32_t at, uint32_t stream) {
    if (at == NONE || stream == a->blocks[at].stream) return;
    a->blocks[at].users |= 1u << stream;
}

stw_status stw_allocator_drop(stw_allocator *a, uint32_t at, stw_error *err) {
    if (at == NONE) return STW_STATUS_OK;
    if (at >= a->n_blocks || !a->blocks[at].live || !a->blocks[at].allocated)
        return stw_fail(err, STW_STATUS_BUG, "allocator", "block %u freed that is not there", at);
    block *b = &a->blocks[at];
    b->allocated = false;
    a->stats.allocated_bytes -= b->size;
    for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++) {
        if ((b->users & 1u << s) == 0) continue;
        if (!grow((void **)&a->events, &a->events_room, a->n_events + 1, sizeof *a->events)) {
            a->out_of_memory = true;
            return outcome(a, err);
        }
        a->events[a->n_events++] = (event){at, s, false};
        b->events++;
    }
    b->users = 0;
    if (b->events == 0) give_to_pool(a, at);
    return outcome(a, err);
}

void stw_allocator_caught_up(stw_allocator *a, uint32_t stream) {
    for (size_t i = 0; i < a->n_events; i++)
        a->events[i].done = a->events[i].done || a->events[i].stream == stream;
}

stw_status stw_allocator_empty_cache(stw_allocator *a, stw_error *err) {
    release_cached(a);
    return outcome(a, err);
}

void stw_allocator_reset_peaks(stw_allocator *a) {
    a->stats.peak_allocated_bytes = a->stats.allocated_bytes;
    a->stats.peak_reserved_bytes = a->stats.reserved_bytes;
}

const stw_allocator_stats *stw_allocator_stats_of(const stw_allocator *a) { return &a->stats; }

uint64_t stw_allocator_free_bytes(const stw_allocator *a) {
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < STW_ALLOCATOR_STREAMS; s++)
        for (int small = 0; small < 2; small++) {
            const block_set *set = &a->pools[s][small].free;
            for (size_t i = 0; i < set->n; i++)
                if (!is_split(&a->blocks[set->items[i]])) bytes += a->blocks[set->items[i]].size;
        }
    return bytes;
}
