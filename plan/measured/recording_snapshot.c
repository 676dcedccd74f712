/* SPDX-License-Identifier: Apache-2.0 */
/* torch.cuda.memory._dump_snapshot: the segments of the caching allocator when it was written, and
 * the last events before. What was there before the first event follows from the end, backwards. */
#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/checked.h"
#include "core/pickle.h"
#include "plan/measured/recording.h"

/* c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize. Events have the size that was asked for, the
 * counters of torch that of the block. */
enum { BLOCK_BYTES = 512, MOST_DEVICES = 1024 };

/* Bytes of a counter: at the first event, now, at most. */
typedef struct counter {
    int64_t now, most;
} counter;

/* Allocations of a device that failed. */
typedef struct failures {
    size_t n, first;   /* how many; the event */
    int64_t allocated; /* by the counter, at the first */
} failures;

typedef struct device {
    uint64_t allocated, reserved; /* by segments, at the end */
    size_t n_segments;
} device;

typedef struct reader {
    stw_recording *samples;
    const char *file;
    stw_error *err;
} reader;

static stw_status refuse(const reader *r, const char *list, size_t i, const char *what) {
    return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->file, "%s[%zu]: %s", list, i, what);
}

static const stw_pickle_value *list_of(const stw_pickle_value *parent, const char *key) {
    const stw_pickle_value *list = stw_pickle_get(parent, key);
    return list != NULL && list->kind == STW_PICKLE_LIST ? list : NULL;
}

/* A member that is a whole number from 0 to `most`. */
static bool whole(const stw_pickle_value *dict, const char *key, int64_t most, int64_t *out) {
    const stw_pickle_value *value = stw_pickle_get(dict, key);
    if (value == NULL || value->kind != STW_PICKLE_INT || value->integer < 0 ||
        value->integer > most)
        return false;
    *out = value->integer;
    return true;
}

static stw_status read_segments(const reader *r, const stw_pickle_value *segments,
                                device *devices) {
    for (size_t i = 0; i < segments->n_items; i++) {
        int64_t number, total, allocated;
        if (!whole(segments->items[i], "device", MOST_DEVICES - 1, &number))
            return refuse(r, "segments", i, "expected a member \"device\" from 0 to 1023");
        if (!whole(segments->items[i], "total_size", INT64_MAX, &total) ||
            !whole(segments->items[i], "allocated_size", INT64_MAX, &allocated))
            return refuse(r, "segments", i,
                          "expected whole numbers as \"total_size\" and \"allocated_size\"");
        device *d = &devices[number];
        d->reserved = stw_plus(d->reserved, (uint64_t)total);
        d->allocated = stw_plus(d->allocated, (uint64_t)allocated);
        d->n_segments++;
    }
    return STW_STATUS_OK;
}

/* The change of allocated or reserved bytes by an event; 0: of neither. */
static stw_status change_of(const reader *r, const stw_pickle_value *trace, size_t i,
                            int64_t *allocated, int64_t *reserved) {
    static const struct {
        const char *action;
        int allocated, reserved;
    } actions[] = {{"alloc", 1, 0},         {"free_requested", -1, 0}, {"segment_alloc", 0, 1},
                   {"segment_free", 0, -1}, {"segment_map", 0, 1},     {"segment_unmap", 0, -1}};
    const stw_pickle_value *event = trace->items[i], *action = stw_pickle_get(event, "action");
    int64_t size = 0;
    *allocated = *reserved = 0;
    if (action == NULL || action->kind != STW_PICKLE_STRING)
        return refuse(r, "device_traces", i, "expected an event with an \"action\"");
    for (size_t a = 0; a < sizeof actions / sizeof actions[0]; a++) {
        if (strcmp(action->text, actions[a].action) != 0) continue;
        if (!whole(event, "size", INT64_MAX / 2, &size))
            return refuse(r, "device_traces", i, "expected a whole number as \"size\"");
        *reserved = actions[a].reserved * size;
        *allocated =
            actions[a].allocated * (int64_t)stw_round_up_u64((uint64_t)size, (uint64_t)BLOCK_BYTES);
    }
    return STW_STATUS_OK;
}

/* Add up to what is at the end; the sum at the beginning makes the most. */
static stw_status follow(const reader *r, const stw_pickle_value *trace, counter *allocated,
                         counter *reserved, failures *failed) {
    for (size_t i = 0; i < trace->n_items; i++) {
        int64_t a, s;
        stw_status status = change_of(r, trace, i, &a, &s);
        if (status != STW_STATUS_OK) return status;
        if (strcmp(stw_pickle_get(trace->items[i], "action")->text, "oom") == 0 &&
            failed->n++ == 0) {
            failed->first = i;
            failed->allocated = allocated->now;
        }
        if (__builtin_add_overflow(allocated->now, a, &allocated->now) ||
            __builtin_add_overflow(reserved->now, s, &reserved->now))
            return refuse(r, "device_traces", i, "the sum of sizes exceeds 63 bits");
        if (allocated->now > allocated->most) allocated->most = allocated->now;
        if (reserved->now > reserved->most) reserved->most = reserved->now;
    }
    return STW_STATUS_OK;
}

static stw_status add(const reader *r, int32_t rank, stw_metric metric, uint64_t bytes,
                      bool whole_trace, bool cut_short, size_t n_events) {
    stw_recorded sample = {.rank = rank, .phase = STW_EVERY_PHASE, .metric = metric};
    sample.bytes = stw_min_u64(bytes, INT64_MAX);
    sample.at_moment = !whole_trace || cut_short;
    sample.cut_short = cut_short;
    if (n_events == 0)
        sample.from = stw_pool_printf(r->samples->pool, "device %" PRId32 ", segments", rank);
    else
        sample.from = stw_pool_printf(r->samples->pool, "device %" PRId32 ", %s%zu events", rank,
                                      whole_trace ? "" : "the last ", n_events);
    if (sample.from == NULL)
        return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory for samples");
    return stw_recording_add(r->samples, &sample, r->err);
}

/* What `most` above the beginning makes, where the end is known. */
static uint64_t highest(const counter *c, uint64_t end, uint64_t *begin) {
    uint64_t gone = c->now < 0 ? 0 - (uint64_t)c->now : 0;
    uint64_t made = c->now > 0 ? (uint64_t)c->now : 0;
    *begin = stw_plus(end, gone) - stw_min_u64(made, stw_plus(end, gone));
    return stw_plus(*begin, (uint64_t)c->most);
}

/* Microseconds since 1970 as ISO, UTC; "" where they are none. */
static void name_time(int64_t time_us, char *out, size_t out_size) {
    struct tm parts;
    const time_t when = (time_t)(time_us / 1000000);
    out[0] = '\0';
    if (when > 0 && when < (time_t)10000000000 && gmtime_r(&when, &parts) != NULL)
        (void)strftime(out, out_size, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

/* @param before allocated bytes at the first event */
static stw_status add_failure(const reader *r, int32_t rank, const stw_pickle_value *trace,
                              const failures *failed, uint64_t before) {
    const stw_pickle_value *event = trace->items[failed->first];
    int64_t size, device_free = -1, time_us = 0;
    char when[32];
    if (!whole(event, "size", INT64_MAX, &size))
        return refuse(r, "device_traces", failed->first,
                      "expected a whole number as \"size\" of an event \"oom\"");
    if (!whole(event, "device_free", INT64_MAX, &device_free)) device_free = -1;
    if (!whole(event, "time_us", INT64_MAX, &time_us)) time_us = 0;
    name_time(time_us, when, sizeof when);
    stw_run_oom oom = {.rank = (uint32_t)rank, .asked = (uint64_t)size, .count = failed->n};
    oom.free = device_free >= 0 ? (uint64_t)device_free : UINT64_MAX;
    oom.allocated = failed->allocated >= 0
                        ? stw_plus(before, (uint64_t)failed->allocated)
                        : before - stw_min_u64(before, 0 - (uint64_t)failed->allocated);
    oom.when = stw_pool_string(r->samples->pool, when);
    oom.from = stw_pool_printf(r->samples->pool, "device %" PRId32 ", event %zu of %zu", rank,
                               failed->first + 1, trace->n_items);
    if (oom.when == NULL || oom.from == NULL)
        return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory for samples");
    return stw_recording_add_oom(r->samples, &oom, r->err);
}

static stw_status add_device(const reader *r, int32_t rank, const device *d,
                             const stw_pickle_value *trace) {
    counter allocated = {0}, reserved = {0};
    failures failed = {0};
    uint64_t before = 0, allocated_before = 0;
    size_t n = trace != NULL ? trace->n_items : 0;
    if (n == 0 && d->n_segments == 0) return STW_STATUS_OK;
    stw_status status = n > 0 ? follow(r, trace, &allocated, &reserved, &failed) : STW_STATUS_OK;
    if (status != STW_STATUS_OK) return status;
    uint64_t most_reserved = highest(&reserved, d->reserved, &before);
    uint64_t most_allocated = highest(&allocated, d->allocated, &allocated_before);
    const bool all = n > 0 && before == 0, cut = failed.n > 0;
    status = add(r, rank, STW_METRIC_ALLOCATED, most_allocated, all, cut, n);
    if (status == STW_STATUS_OK)
        status = add(r, rank, STW_METRIC_RESERVED, most_reserved, all, cut, n);
    if (status == STW_STATUS_OK && cut)
        status = add_failure(r, rank, trace, &failed, allocated_before);
    return status;
}

static stw_status read_snapshot(const reader *r, stw_pool *pool, const stw_pickle_value *root) {
    const stw_pickle_value *segments = list_of(root, "segments");
    const stw_pickle_value *traces = list_of(root, "device_traces");
    if (segments == NULL)
        return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->file,
                        "found no list \"segments\", expected a snapshot of "
                        "torch.cuda.memory._dump_snapshot");
    device *devices = stw_pool_array(pool, MOST_DEVICES, sizeof *devices);
    if (devices == NULL)
        return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory for samples");
    stw_status status = read_segments(r, segments, devices);
    for (int32_t d = 0; d < MOST_DEVICES && status == STW_STATUS_OK; d++) {
        const stw_pickle_value *trace =
            traces != NULL && (size_t)d < traces->n_items ? traces->items[d] : NULL;
        if (trace != NULL && trace->kind != STW_PICKLE_LIST)
            return refuse(r, "device_traces", (size_t)d, "expected a list of events");
        status = add_device(r, d, &devices[d], trace);
    }
    return status;
}

stw_status stw_recording_parse_snapshot(stw_recording *samples, const char *file, const char *data,
                                        size_t length, stw_error *err) {
    const reader r = {samples, file, err};
    const stw_pickle_value *root = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    stw_status status = stw_pickle_parse(pool, file, data, length, &root, err);
    if (status == STW_STATUS_OK) status = read_snapshot(&r, pool, root);
    if (status == STW_STATUS_OK && samples->n == 0)
        status = stw_fail(err, STW_STATUS_BAD_INPUT, file,
                          "found no segments and no events of a device");
    stw_pool_free(pool);
    return status;
}
