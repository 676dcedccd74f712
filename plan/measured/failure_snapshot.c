/* SPDX-License-Identifier: Apache-2.0 */
/* torch.cuda.memory._snapshot: which allocation failed, what was alive at that moment and who had
 * made it, and how the rest of the segments was cut up. The file has the state when it was written,
 * and the events before: the moment of the failure is rebuilt from both.
 * Source: torch/csrc/cuda/memory_snapshot.cpp, torch/csrc/cuda/Module.cpp of torch 2.11. */
#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "core/pickle.h"
#include "plan/measured/failure_parts.h"

enum { BLOCK_BYTES = 512, MOST_HELD = 1024, HELD_SLOTS = 4096, MOST_DEVICES = 1024 };

/* Bytes at an address, with the stack that made them. */
typedef struct piece {
    uint64_t address, bytes;
    const stw_pickle_value *frames; /* or NULL */
} piece;

typedef struct pieces {
    size_t n, room;
    piece *items;
} pieces;

/* Open addressing: address to index + 1. */
typedef struct table {
    size_t slots;
    uint64_t *keys;
    size_t *values; /* 0: empty; GONE: was there */
} table;
#define GONE SIZE_MAX

typedef struct reader {
    stw_failures *to;
    stw_pool *pool; /* of what is needed here alone */
    stw_error *err;
    const stw_pickle_value *segments, *trace;
    uint64_t device;
    size_t failed; /* event */
    bool has_stacks;
    table live;
    pieces alive, ranges;
    uint64_t groups[HELD_SLOTS]; /* hash of frames; index + 1 of held */
    size_t group_of[HELD_SLOTS];
} reader;

static stw_status no_memory(const reader *r) {
    return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->to->file, "out of memory for the snapshot");
}

/* ---- values ---- */

static const stw_pickle_value *list_of(const stw_pickle_value *parent, const char *key) {
    const stw_pickle_value *list = stw_pickle_get(parent, key);
    return list != NULL && list->kind == STW_PICKLE_LIST ? list : NULL;
}

static bool whole(const stw_pickle_value *dict, const char *key, uint64_t *out) {
    const stw_pickle_value *value = stw_pickle_get(dict, key);
    if (value == NULL || value->kind != STW_PICKLE_INT || value->integer < 0) return false;
    *out = (uint64_t)value->integer;
    return true;
}

static bool is(const stw_pickle_value *dict, const char *key, const char *text) {
    const stw_pickle_value *value = stw_pickle_get(dict, key);
    return value != NULL && value->kind == STW_PICKLE_STRING && strcmp(value->text, text) == 0;
}

static uint64_t rounded(uint64_t bytes) {
    return bytes < INT64_MAX / 2 ? stw_round_up_u64(bytes, BLOCK_BYTES) : INT64_MAX / 2;
}

/* ---- tables ---- */

static bool table_make(table *t, stw_pool *pool, size_t n) {
    t->slots = 64;
    while (t->slots / 2 < n && t->slots < (size_t)1 << 40) t->slots <<= 1;
    t->keys = stw_pool_array(pool, t->slots, sizeof *t->keys);
    t->values = stw_pool_array(pool, t->slots, sizeof *t->values);
    return t->keys != NULL && t->values != NULL;
}

/* The slot of a key, or the first empty one after it. */
static size_t slot_of(const table *t, uint64_t key) {
    size_t at = (size_t)XXH3_64bits(&key, sizeof key) & (t->slots - 1);
    while (t->values[at] != 0 && t->keys[at] != key) at = (at + 1) & (t->slots - 1);
    return at;
}

static bool append(pieces *to, stw_pool *pool, piece p) {
    piece *items = stw_pool_regrow(pool, to->items, to->n, to->n + 1, &to->room, sizeof *items);
    if (items == NULL) return false;
    to->items = items;
    items[to->n++] = p;
    return true;
}

/* ---- what was alive ---- */

static bool event_piece(const stw_pickle_value *event, piece *out) {
    uint64_t size;
    *out = (piece){.frames = list_of(event, "frames")};
    if (!whole(event, "addr", &out->address) || !whole(event, "size", &size)) return false;
    out->bytes = rounded(size);
    return true;
}

/* One event on the way through the history: the table has what is alive. @param i its number */
static bool follow(reader *r, size_t i) {
    const stw_pickle_value *event = r->trace->items[i];
    const bool made = is(event, "action", "alloc"), freed = is(event, "action", "free_requested");
    piece p;
    if ((!made && !freed) || !event_piece(event, &p)) return true;
    const size_t slot = slot_of(&r->live, p.address);
    const bool known = r->live.values[slot] != 0;
    r->live.keys[slot] = p.address;
    if (freed && !known && i > r->failed) { /* made before the history, freed after the failure */
        p.frames = NULL;
        if (!append(&r->alive, r->pool, p)) return false;
    }
    r->live.values[slot] = made ? i + 1 : GONE;
    return true;
}

/* What the table has becomes the list of what is alive. */
static bool keep_alive(reader *r) {
    piece p;
    for (size_t s = 0; s < r->live.slots; s++) {
        const size_t value = r->live.values[s];
        if (value == 0 || value == GONE || !event_piece(r->trace->items[value - 1], &p)) continue;
        if (!append(&r->alive, r->pool, p)) return false;
    }
    return true;
}

/* Blocks that no event is of were there all the time. */
static bool add_old_blocks(reader *r, const stw_pickle_value *segment) {
    const stw_pickle_value *blocks = list_of(segment, "blocks");
    for (size_t b = 0; blocks != NULL && b < blocks->n_items; b++) {
        const stw_pickle_value *block = blocks->items[b];
        piece p = {.frames = list_of(block, "frames")};
        if (!is(block, "state", "active_allocated") || !whole(block, "size", &p.bytes) ||
            !whole(block, "address", &p.address))
            continue;
        if (r->live.values[slot_of(&r->live, p.address)] == 0 && !append(&r->alive, r->pool, p))
            return false;
    }
    return true;
}

static bool find_alive(reader *r) {
    for (size_t i = 0; i < r->trace->n_items; i++) {
        if (i == r->failed && !keep_alive(r)) return false;
        if (!follow(r, i)) return false;
    }
    for (size_t s = 0; s < r->segments->n_items; s++) {
        uint64_t device = 0;
        if (whole(r->segments->items[s], "device", &device) && device == r->device &&
            !add_old_blocks(r, r->segments->items[s]))
            return false;
    }
    return true;
}

/* ---- segments at that moment ---- */

static void take_range(pieces *ranges, const piece *p) {
    for (size_t i = 0; i < ranges->n; i++) {
        piece *here = &ranges->items[i];
        if (p->address < here->address || p->address >= here->address + here->bytes) continue;
        const uint64_t bytes = stw_min_u64(p->bytes, here->bytes);
        if (here->address == p->address) here->address += bytes;
        here->bytes -= bytes;
        return;
    }
}

/* The end, and back over the events after the failure. */
static bool find_ranges(reader *r) {
    for (size_t s = 0; s < r->segments->n_items; s++) {
        const stw_pickle_value *segment = r->segments->items[s];
        piece p = {.frames = NULL};
        uint64_t device = 0;
        if (!whole(segment, "device", &device) || device != r->device ||
            !whole(segment, "address", &p.address) || !whole(segment, "total_size", &p.bytes) ||
            p.bytes > INT64_MAX / 2 || p.address > INT64_MAX)
            continue;
        if (!append(&r->ranges, r->pool, p)) return false;
    }
    for (size_t i = r->trace->n_items; i-- > r->failed + 1;) {
        const stw_pickle_value *event = r->trace->items[i];
        piece p;
        const bool made =
            is(event, "action", "segment_alloc") || is(event, "action", "segment_map");
        const bool gone =
            is(event, "action", "segment_free") || is(event, "action", "segment_unmap");
        if ((!made && !gone) || !event_piece(event, &p)) continue;
        if (made)
            take_range(&r->ranges, &p);
        else if (!append(&r->ranges, r->pool, p))
            return false;
    }
    return true;
}

static int by_address(const void *a, const void *b) {
    const piece *one = a, *other = b;
    return (one->address > other->address) - (one->address < other->address);
}

/* Sums, and the largest gap between pieces in the ranges. */
static void measure(reader *r, stw_failure *f) {
    uint64_t reserved = 0, allocated = 0, largest = 0;
    if (r->alive.n > 1) qsort(r->alive.items, r->alive.n, sizeof *r->alive.items, by_address);
    if (r->ranges.n > 1) qsort(r->ranges.items, r->ranges.n, sizeof *r->ranges.items, by_address);
    size_t at = 0;
    for (size_t i = 0; i < r->ranges.n; i++) {
        const piece *range = &r->ranges.items[i];
        const uint64_t end = stw_plus(range->address, range->bytes);
        uint64_t from = range->address;
        reserved = stw_plus(reserved, range->bytes);
        while (at < r->alive.n && r->alive.items[at].address < range->address) at++;
        for (; at < r->alive.n && r->alive.items[at].address < end; at++) {
            const piece *p = &r->alive.items[at];
            if (p->address > from) largest = stw_max_u64(largest, p->address - from);
            from = stw_max_u64(from, stw_plus(p->address, p->bytes));
        }
        if (end > from) largest = stw_max_u64(largest, end - from);
    }
    for (size_t i = 0; i < r->alive.n; i++)
        allocated = stw_plus(allocated, r->alive.items[i].bytes);
    f->allocated = allocated;
    f->unused = reserved > allocated ? reserved - allocated : 0;
    f->largest_unused = stw_min_u64(largest, f->unused);
}

/* ---- stacks ---- */

/* Was it made by the engine that runs backward, on a thread without Python? Of a history with C++
 * its frames say so; else there are none, though other events have some. */
static bool is_autograd(const reader *r, const stw_pickle_value *frames) {
    if (frames == NULL) return false;
    for (size_t i = 0; i < frames->n_items; i++) {
        const stw_pickle_value *name = stw_pickle_get(frames->items[i], "name");
        if (name != NULL && name->kind == STW_PICKLE_STRING &&
            strstr(name->text, "autograd::Engine") != NULL)
            return true;
    }
    return frames->n_items == 0 && r->has_stacks;
}

/* Frames of Python, without those of C++; outermost first. @return how many */
static size_t frames_of(const reader *r, const stw_pickle_value *frames, stw_failure *out) {
    static const stw_frame autograd = {"autograd's thread", "backward", "", 0};
    *out = stw_failure_nothing();
    if (is_autograd(r, frames) && !stw_failure_add_frame(out, r->to->pool, &autograd)) return 0;
    for (size_t i = frames != NULL ? frames->n_items : 0; i-- > 0;) {
        const stw_pickle_value *name = stw_pickle_get(frames->items[i], "name");
        const stw_pickle_value *file = stw_pickle_get(frames->items[i], "filename");
        char text[1400];
        uint64_t line = 0;
        stw_frame frame;
        if (name == NULL || file == NULL || name->kind != STW_PICKLE_STRING ||
            file->kind != STW_PICKLE_STRING)
            continue;
        if (strstr(file->text, ".py") == NULL && file->text[0] != '<') continue;
        (void)whole(frames->items[i], "line", &line);
        snprintf(text, sizeof text, "File \"%.900s\", line %llu, in %.300s", file->text,
                 (unsigned long long)line, name->text);
        if (stw_frame_read(text, r->to->pool, &frame) &&
            !stw_failure_add_frame(out, r->to->pool, &frame))
            return out->n_frames;
    }
    return out->n_frames;
}

static uint64_t hash_of(const stw_pickle_value *frames) {
    uint64_t hash = 1;
    for (size_t i = 0; frames != NULL && i < frames->n_items; i++) {
        const stw_pickle_value *name = stw_pickle_get(frames->items[i], "name");
        const stw_pickle_value *file = stw_pickle_get(frames->items[i], "filename");
        uint64_t line = 0;
        (void)whole(frames->items[i], "line", &line);
        if (name != NULL && name->kind == STW_PICKLE_STRING)
            hash = XXH3_64bits_withSeed(name->text, strlen(name->text), hash);
        if (file != NULL && file->kind == STW_PICKLE_STRING)
            hash = XXH3_64bits_withSeed(file->text, strlen(file->text), hash + line);
    }
    return hash;
}

/* Pieces with the same stack are one. */
static stw_status hold(reader *r, const piece *p) {
    const uint64_t hash = hash_of(p->frames);
    size_t at = (size_t)hash % HELD_SLOTS;
    while (r->group_of[at] != 0 && r->groups[at] != hash) at = (at + 1) % HELD_SLOTS;
    if (r->group_of[at] == 0) {
        stw_live_stack *held =
            r->to->n_held < MOST_HELD
                ? stw_pool_grow(r->to->pool, r->to->held, r->to->n_held, r->to->n_held + 1,
                                &r->to->held_room, sizeof *held)
                : NULL;
        stw_failure stack;
        if (held == NULL && r->to->n_held < MOST_HELD) return no_memory(r);
        if (held == NULL) { /* so many stacks: what is left counts with the first */
            r->to->held[0].bytes = stw_plus(r->to->held[0].bytes, p->bytes);
            return STW_STATUS_OK;
        }
        r->to->held = held;
        r->groups[at] = hash;
        r->group_of[at] = ++r->to->n_held;
        held[r->to->n_held - 1] = (stw_live_stack){.n_frames = frames_of(r, p->frames, &stack)};
        held[r->to->n_held - 1].frames = stack.frames;
    }
    stw_live_stack *held = &r->to->held[r->group_of[at] - 1];
    held->bytes = stw_plus(held->bytes, p->bytes);
    held->blocks++;
    return STW_STATUS_OK;
}

/* ---- all ---- */

static size_t failures_of(const stw_pickle_value *trace, size_t *first) {
    size_t n = 0;
    for (size_t i = 0; i < trace->n_items; i++)
        if (is(trace->items[i], "action", "oom") && n++ == 0) *first = i;
    return n;
}

/* Does any event have a stack? Without "frames" the history was recorded without. */
static bool has_stacks(const stw_pickle_value *trace) {
    for (size_t i = 0; i < trace->n_items; i++) {
        const stw_pickle_value *frames = list_of(trace->items[i], "frames");
        if (frames != NULL && frames->n_items > 0) return true;
    }
    return false;
}

static stw_status add_failure(reader *r, size_t count) {
    const stw_pickle_value *event = r->trace->items[r->failed];
    stw_failure f;
    r->has_stacks = has_stacks(r->trace);
    (void)frames_of(r, list_of(event, "frames"), &f);
    f.kind = STW_FAILURE_ALLOCATOR;
    f.who = "torch";
    f.device = r->device;
    f.alike = count - 1;
    (void)whole(event, "size", &f.asked);
    (void)whole(event, "device_free", &f.free);
    f.text = stw_pool_printf(r->to->pool, "event %zu of %zu of device %llu", r->failed + 1,
                             r->trace->n_items, (unsigned long long)r->device);
    if (f.text == NULL || !table_make(&r->live, r->pool, r->trace->n_items) || !find_alive(r) ||
        !find_ranges(r))
        return no_memory(r);
    measure(r, &f);
    for (size_t i = 0; i < r->alive.n; i++) {
        stw_status status = hold(r, &r->alive.items[i]);
        if (status != STW_STATUS_OK) return status;
    }
    return stw_failures_add(r->to, &f, r->err);
}

/* Of a snapshot without a failure: what each device has reserved. */
static stw_status add_devices(reader *r) {
    for (size_t s = 0; s < r->segments->n_items; s++) {
        uint64_t device = 0, bytes = 0;
        stw_gpu_use *g = NULL;
        if (!whole(r->segments->items[s], "device", &device) || device >= MOST_DEVICES ||
            !whole(r->segments->items[s], "total_size", &bytes))
            continue;
        for (size_t i = 0; i < r->to->n_gpus; i++)
            if (r->to->gpus[i].device == device) g = &r->to->gpus[i];
        if (g == NULL) {
            stw_gpu_use *gpus = stw_pool_grow(r->to->pool, r->to->gpus, r->to->n_gpus,
                                              r->to->n_gpus + 1, &r->to->gpus_room, sizeof *gpus);
            if (gpus == NULL) return no_memory(r);
            r->to->gpus = gpus;
            g = &gpus[r->to->n_gpus++];
            *g = (stw_gpu_use){device, 0, STW_NOT_SAID, 1, "torch's segments"};
        }
        g->used = stw_plus(g->used, bytes);
    }
    if (r->to->n_gpus > 0) return STW_STATUS_OK;
    return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->to->file,
                    "found no segments and no events of a device");
}

static stw_status read_root(reader *r, const stw_pickle_value *root) {
    const stw_pickle_value *traces = list_of(root, "device_traces");
    r->segments = list_of(root, "segments");
    if (r->segments == NULL)
        return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->to->file,
                        "found no list \"segments\", expected a snapshot of "
                        "torch.cuda.memory._dump_snapshot");
    for (size_t d = 0; traces != NULL && d < traces->n_items; d++) {
        if (traces->items[d]->kind != STW_PICKLE_LIST) continue;
        const size_t n = failures_of(traces->items[d], &r->failed);
        if (n == 0) continue;
        r->trace = traces->items[d];
        r->device = d;
        return add_failure(r, n);
    }
    return add_devices(r);
}

stw_status stw_failures_parse_snapshot(stw_failures *to, const char *data, size_t length,
                                       stw_error *err) {
    const stw_pickle_value *root = NULL;
    stw_pool *pool = stw_pool_new();
    reader *r = pool != NULL ? stw_pool_alloc(pool, sizeof *r) : NULL;
    stw_status status = STW_STATUS_OK;
    to->snapshot = true;
    if (r == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, to->file, "out of memory");
    }
    r->to = to;
    r->pool = pool;
    r->err = err;
    STW_TRY(stw_pickle_parse(pool, to->file, data, length, &root, err));
    status = read_root(r, root);
out:
    stw_pool_free(pool);
    return status;
}
