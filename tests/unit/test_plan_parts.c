/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* What programs are made of, against tests/golden/parts.csv: placements, load staging, shortened
 * jobs and demands of small jobs of every engine; seconds on links; traces of torch's allocator. */
#include "plan/program/allocator.h"
#include "plan/program/demand.h"
#include "plan/program/layout.h"
#include "plan/program/link_time.h"
#include "plan/program/shortened.h"
#include "plan/program/staging.h"
#include "tests/unit/golden_case.h"

typedef unsigned long long llu;

/* ---- placements ---- */

static void print_places(const char *name, const stw_job *job, stw_text *out) {
    static const uint64_t buckets[] = {STW_BUCKET_MIN_BYTES, 3000000, 32ull << 20};
    stw_place places[STW_MAX_PLACES];
    const uint32_t n = job->engine->places(job, places, NULL);
    for (uint32_t i = 0; i < n; i++) {
        const stw_place *p = &places[i];
        char text[96];
        stw_place_format(p, text, sizeof text);
        stw_text_printf(out, "%s,place,%s,%u,%d", name, text, stw_place_order(p),
                        (int)stw_place_update_tier(p));
        stw_text_printf(out, ",%llu,%llu", (llu)stw_place_slot_element_bytes(job, p),
                        (llu)stw_place_disk_element_bytes(job, p));
        for (int c = 0; c < STW_N_STATE; c++)
            stw_text_printf(out, ",%d%d%d %llu %llu", (int)stw_place_tier(p, (stw_component)c),
                            stw_place_moves_up(job, p, (stw_component)c),
                            stw_place_moves_down(job, p, (stw_component)c),
                            (llu)stw_slot_offset(job, p, (stw_component)c, 12345),
                            (llu)stw_disk_slot_offset(job, p, (stw_component)c, 12345));
        for (size_t b = 0; b < sizeof buckets / sizeof buckets[0]; b++)
            stw_text_printf(out, ",%llu", (llu)stw_place_bucket_params(job, p, buckets[b]));
        stw_text_printf(out, ",%llu", (llu)stw_cpu_ring_bytes(job, p, 3, 3000000));
        for (int r = 0; r < STW_N_RINGS; r++)
            stw_text_printf(out, ",%d %llu", stw_place_uses_ring(job, p, (stw_ring_kind)r),
                            (llu)(stw_place_uses_ring(job, p, (stw_ring_kind)r)
                                      ? stw_ring_slot_bytes(job, p, (stw_ring_kind)r, buckets[2])
                                      : 0));
        stw_text_printf(out, "\n");
    }
}

/* ---- loads ---- */

static void print_pieces(const char *name, const stw_plan *plan, stw_text *out) {
    const stw_job *job = plan->job;
    stw_view *pieces = NULL;
    uint32_t n = 0;
    uint64_t read = 0, held = 0, room = 0, params = 0, first = 0;
    CHECK_OK(stw_load_pieces(job, plan->pool, &pieces, &n, err));
    for (uint32_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(pieces[i].first, first);
        first += pieces[i].n;
        read += stw_load_piece_bytes(job, pieces[i]);
        held += stw_load_held_bytes(job, pieces[i]);
        room += stw_load_room_bytes(job, pieces[i]);
    }
    CU_ASSERT_EQUAL(first, job->files.n);
    stw_text_printf(out, "%s,pieces,%u,%llu,%llu,%llu,%llu,%d", name, n, (llu)pieces[n / 2].n,
                    (llu)read, (llu)held, (llu)room, stw_load_is_pageable(job));
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const uint32_t flat = stw_flat_pieces(job, k);
        for (uint32_t i = 0; i < flat; i++) {
            uint64_t at, count;
            stw_flat_piece(job, k, i, &at, &count);
            CU_ASSERT_EQUAL(at, i * (STW_LOAD_PIECE_BYTES / 4));
            params += count;
        }
        CU_ASSERT_EQUAL(params, job->kinds[k].params);
        params = 0;
        stw_text_printf(out, ",%u", flat);
    }
    stw_text_printf(out, "\n");
}

static void print_loads(const char *name, const stw_job *job, stw_text *out) {
    for (int m = 0; m < STW_N_LOADS; m++) {
        const stw_load method = (stw_load)m;
        stw_text_printf(out, "%s,load,%s,%d,%d", name, stw_load_name(method),
                        stw_load_is_whole(job, method), stw_load_is_whole_on_gpu(method));
        for (uint32_t k = 0; k < job->n_kinds; k++)
            for (int t = 0; t < STW_N_TIERS; t++) {
                uint64_t whole = 0;
                stw_text_printf(
                    out, ",%llu",
                    (llu)stw_load_method_staging_bytes(job, method, k, (stw_tier)t, &whole));
            }
        stw_text_printf(out, "\n");
    }
}

/* ---- shortened jobs ---- */

static void print_shortened(const char *name, const stw_plan *plan, stw_text *out) {
    const stw_job *job = plan->job;
    stw_average_piece piece = {0};
    stw_job *less = NULL;
    CHECK_OK(stw_average_piece_of(job, &piece, err));
    CHECK_OK(stw_job_shortened(job, 99991, 3, &piece, plan->pool, &less, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(less);
    CU_ASSERT_EQUAL(less->model->n_tensors, 3);
    CU_ASSERT_EQUAL(less->model->params, 3 * piece.numel);
    CU_ASSERT_EQUAL(less->files.n, 3 * piece.numel);
    CU_ASSERT_EQUAL(less->files.n_segments, 3);
    CU_ASSERT_EQUAL(less->unit_params, 99991);
    CU_ASSERT_EQUAL(less->n_units, 1);
    CU_ASSERT_FALSE(less->model->facts_known);
    CU_ASSERT_PTR_NULL(less->frozen);
    for (uint32_t t = 0; t < 3; t++) {
        const stw_tensor *tensor = &less->model->tensors[t];
        CU_ASSERT(tensor->numel == piece.numel && tensor->shape[0] == piece.numel);
        CU_ASSERT(tensor->rank == 1 && tensor->experts == 1 && tensor->dtype == piece.dtype);
    }
    CU_ASSERT(less->model->n_blocks == 1 && less->model->blocks[0].n_tensors == 3);
    CU_ASSERT(less->model->n_groups == 1 && less->model->groups[0].tensors == 3);
    CU_ASSERT(less->model->blocks[0].params == 3 * piece.numel);
    CU_ASSERT(less->model->groups[0].params == 3 * piece.numel);
    CU_ASSERT(less->model->groups[0].active_params == 3 * piece.numel);
    CU_ASSERT(less->model->active_params == 3 * piece.numel);
    CU_ASSERT_EQUAL(less->model->groups[0].count, 1);
    stw_text_printf(out, "%s,shortened,%llu,%d,%llu", name, (llu)piece.pieces, (int)piece.dtype,
                    (llu)piece.numel);
    for (uint32_t id = 0; id < job->n_spaces; id++)
        stw_text_printf(out, ",%llu", (llu)less->kinds[0].spaces[id].n);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        CU_ASSERT_EQUAL(less->kinds[k].params, less->kinds[k].spaces[STW_SPACE_PARAMS].n);
        CU_ASSERT_EQUAL(less->kinds[k].block_params[0], less->kinds[k].params);
        CU_ASSERT_EQUAL(less->kinds[k].block_grads[0], less->kinds[k].spaces[STW_SPACE_GRADS].n);
    }
    stw_text_printf(out, "\n");
}

/* ---- demands ---- */

static void print_demand(const char *name, const char *what, const stw_demand *d, stw_text *out) {
    stw_text_printf(out, "%s,demand,%s,%.9g,%.9g,%.9g", name, what, d->startup_s, d->priority,
                    stw_demand_alone_s(d));
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        if (d->seconds[r] > 0)
            stw_text_printf(out, ",%s,%.9g", stw_resource_name((stw_resource)r), d->seconds[r]);
    stw_text_printf(out, "\n");
}

static void print_demands(const char *name, const stw_job *job, stw_text *out) {
    static const uint64_t rings[] = {0, 8 << 20, 24 << 20, 40 << 20, 64 << 20};
    const uint64_t bytes = 123456789;
    stw_demand d;
    for (int from = 0; from < STW_N_TIERS; from++)
        for (int to = 0; to < STW_N_TIERS; to++) {
            char what[64];
            if (from == to) continue;
            snprintf(what, sizeof what, "%s to %s", stw_tier_name((stw_tier)from),
                     stw_tier_name((stw_tier)to));
            stw_demand_copy(job, (stw_tier)from, (stw_tier)to, bytes, &d);
            print_demand(name, what, &d, out);
        }
    for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
        char what[64];
        snprintf(what, sizeof what, "ring %llu", (llu)rings[r]);
        stw_demand_cached_copy(job, STW_TIER_GPU, STW_TIER_HOST, bytes, rings[r], &d);
        print_demand(name, what, &d, out);
        snprintf(what, sizeof what, "cpu %llu", (llu)rings[r]);
        stw_demand_update(job, STW_UPDATE_CPU, bytes, rings[r], &d);
        print_demand(name, what, &d, out);
    }
    for (int u = 0; u < STW_N_UPDATES; u++) {
        stw_demand_update(job, (stw_update)u, bytes, 0, &d);
        print_demand(name, stw_update_name((stw_update)u), &d, out);
    }
    stw_text_printf(out, "%s,reader,%.9g\n", name, stw_demand_reader_bps(job));
}

/* Jobs whose demands follow other rules. */
static bool has_demands(const char *name) {
    static const char *const names[] = {"stowage",       "stowage-nvme",     "stowage-alone",
                                        "fsdp2-offload", "megatron-offload", "deepspeed-cpu"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* ---- links ---- */

/* Seconds of all protocols and both algorithms: from 256 B to 1 GiB in calls of their own. */
static void print_links(stw_text *out) {
    static const stw_op_kind kinds[] = {STW_OP_ALL_GATHER, STW_OP_REDUCE_SCATTER, STW_OP_ALL_REDUCE,
                                        STW_OP_SEND, STW_OP_ALL_TO_ALL};
    static const uint32_t groups[][2] = {{1, 1},  {2, 2},   {2, 1},   {4, 4},    {8, 8},   {8, 1},
                                         {16, 8}, {12, 8},  {64, 8},  {512, 8},  {512, 1}, {64, 2},
                                         {4, 0},  {64, 64}, {72, 72}, {4096, 8}, {3, 2}};
    stw_cluster cluster = fixture_cluster(8);
    static const double nvlink_bps[] = {300e9, 64e9, 25e9}; /* below 64: PCIe */
    for (size_t i = 0; i < 3 * sizeof groups / sizeof groups[0]; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            const uint32_t *group = groups[i / 3];
            double start = 0, nvlink = 0, nic = 0;
            cluster.nvlink_bps = nvlink_bps[i % 3];
            for (double bytes = 256; bytes <= 1 << 30; bytes *= 4) {
                const double calls = bytes < 1e6 ? 1 : 3;
                const stw_link_time t =
                    kinds[k] == STW_OP_ALL_TO_ALL
                        ? stw_link_all_to_all(&cluster, group[0], group[1], bytes, calls)
                        : stw_link_collective(&cluster, kinds[k], group[0], group[1], bytes, calls);
                start += t.startup_s;
                nvlink += t.nvlink_s;
                nic += t.nic_s;
            }
            stw_text_printf(out, "links,%s,%u,%u,%.9g,%.9g,%.9g,%.9g\n", stw_op_kind_name(kinds[k]),
                            group[0], group[1], cluster.nvlink_bps, start, nvlink, nic);
        }
}

/* ---- torch's allocator ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 1099511628211ull;
    return hash ^ hash >> 29;
}

/* Sizes of all classes: small ones, those of segments of 20 MiB, large ones. */
static uint64_t drawn_bytes(uint64_t *seed) {
    const uint32_t class_ = case_random(seed, 4);
    return 1 + (class_ == 0   ? case_random(seed, 4096)
                : class_ == 1 ? case_random(seed, 1 << 20)
                : class_ == 2 ? case_random(seed, 10 << 20)
                              : case_random(seed, 96 << 20));
}

/* A trace drawn at random: the counts after every step, as a hash. */
static void print_trace(const stw_allocator_settings *settings, uint64_t seed, stw_text *out) {
    enum { N = 60, STEPS = 3000 };
    uint32_t blocks[N];
    uint64_t hash = 0, full_times = 0;
    stw_allocator *a = NULL;
    CHECK_OK(stw_allocator_new(settings, &a, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(a);
    const stw_allocator_stats *s = stw_allocator_stats_of(a);
    for (int i = 0; i < N; i++) blocks[i] = STW_NO_BLOCK;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t *slot = &blocks[case_random(&seed, N)];
        bool full = false;
        if (*slot != STW_NO_BLOCK) {
            if (case_random(&seed, 4) == 0)
                stw_allocator_record_stream(a, *slot, case_random(&seed, 3));
            CHECK_OK(stw_allocator_drop(a, *slot, err));
            *slot = STW_NO_BLOCK;
        } else {
            const uint32_t stream = case_random(&seed, 3);
            CHECK_OK(stw_allocator_take(a, stream, drawn_bytes(&seed), slot, &full, err));
        }
        full_times += full;
        if (step % 20 == 0) stw_allocator_caught_up(a, step / 20 % 3);
        if (step % 500 == 499) CHECK_OK(stw_allocator_empty_cache(a, err));
        hash = mix(mix(hash, s->allocated_bytes), s->reserved_bytes);
        hash = mix(mix(hash, s->peak_allocated_bytes), s->peak_reserved_bytes);
        hash = mix(mix(hash, stw_allocator_free_bytes(a)), full);
        if (step % 700 == 699) stw_allocator_reset_peaks(a);
    }
    stw_text_printf(out, "trace,%llu,%llu,%llu,%016llx\n", (llu)s->reserved_bytes, (llu)s->retries,
                    (llu)full_times, (llu)hash);
    stw_allocator_free(a);
}

static void print_traces(stw_text *out) {
    const uint64_t mib = 1 << 20;
    const stw_allocator_settings settings[] = {
        {0},
        {.device_bytes = 600 * mib},
        {.expandable_segments = true},
        {.expandable_segments = true, .device_bytes = 600 * mib},
        {.max_split_bytes = 30 * mib},
        {.max_split_bytes = 30 * mib, .device_bytes = 700 * mib},
        {.max_split_bytes = 25 * mib, .max_non_split_rounding_bytes = 5 * mib},
        {.roundup_power2_divisions = 4, .device_bytes = 700 * mib},
        {.fraction_bytes = 800 * mib, .garbage_collection_threshold = 0.6},
        {.fraction_bytes = 650 * mib, .device_bytes = 900 * mib}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) print_trace(&settings[i], seed, out);
}

static void parts_are_golden(void) {
    stw_text found = STW_TEXT_INIT;
    for (size_t i = 0; i < sizeof golden_jobs / sizeof golden_jobs[0]; i++) {
        const char *name = golden_jobs[i].name;
        stw_plan *plan = golden_plan(&golden_jobs[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        print_places(name, plan->job, &found);
        print_pieces(name, plan, &found);
        print_loads(name, plan->job, &found);
        print_shortened(name, plan, &found);
        if (has_demands(name)) print_demands(name, plan->job, &found);
        stw_plan_free(plan);
    }
    print_links(&found);
    print_traces(&found);
    golden_check(STW_SOURCE_DIR "/tests/golden/parts.csv", &found);
    stw_text_free(&found);
}

STW_TEST_MAIN("plan_parts", {"parts of programs are those of the table", parts_are_golden})
