/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes counted twice: by the walk of the program, and by a counter written here from the run's
 * definition alone (element sizes, chunks of dim 0, ring, staging), without layout or planner code.
 */
#include <math.h>

#include "plan/program/check.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

/* ---- the independent counter ---- */

static uint64_t tensor_share(uint64_t rows, uint64_t row, uint32_t ranks, uint32_t rank) {
    uint64_t chunk = (rows + ranks - 1) / ranks, begin = rank * chunk, end = begin + chunk;
    if (begin > rows) begin = rows;
    if (end > rows) end = rows;
    return (end - begin) * row;
}

static uint64_t params_of_rank(fixture_size s, uint32_t ranks, uint32_t rank) {
    uint64_t layer = 2 * tensor_share(s.hidden, 1, ranks, rank) +
                     tensor_share(2 * s.hidden, s.hidden, ranks, rank) +
                     tensor_share(s.hidden, s.hidden, ranks, rank) +
                     tensor_share(2 * s.ffn, s.hidden, ranks, rank) +
                     tensor_share(s.hidden, s.ffn, ranks, rank);
    return tensor_share(s.vocab, s.hidden, ranks, rank) + s.layers * layer +
           tensor_share(s.hidden, 1, ranks, rank);
}

typedef struct counted {
    uint64_t gpu, host, nvme;
} counted;

/* What a run is, as far as bytes of a step go: bytes of params, grads, master and each moment per
 * element, ring, copies on NVMe. */
typedef struct definition {
    uint64_t element[5];
    uint32_t slots;
    uint64_t slot_bytes, nvme_copies;
    bool alone;
} definition;

static uint64_t pages(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/* A host slot for what lies on NVMe, of a bucket that fits a ring slot on the GPU. */
static uint64_t disk_slot_bytes(const definition *d) {
    uint64_t element = d->element[2] + d->element[3] + d->element[4], bytes = 0;
    uint64_t bucket = d->slot_bytes / element / 2048 * 2048;
    for (int c = 2; c < 5; c++) bytes += pages(bucket * d->element[c]);
    return bytes;
}

/* Step bytes of rank 0: `units` quanta of `quantum` elements to each of the places. GPU bytes
 * include the page tables of the host arena: an eighth of a page's 4 KiB each, in steps of 2 MiB.
 */
static counted count_step(uint64_t params, uint64_t quantum, uint32_t n, const stw_place *places,
                          const uint32_t *units, const definition *d) {
    counted total = {0, 0, 0};
    uint64_t at = 0, arena = 0, staging = 3 * (32ull << 20);
    bool gpu_ring = false, cpu_ring = false, disk_ring = false;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t take = i + 1 == n ? params - at : units[i] * quantum;
        if (take > params - at) take = params - at;
        at += take;
        const stw_tier tiers[5] = {places[i].params, places[i].grads, places[i].moments,
                                   places[i].moments, places[i].moments};
        for (int c = 0; c < 5; c++) {
            uint64_t bytes = take * d->element[c];
            if (tiers[c] == STW_TIER_GPU) total.gpu += bytes;
            if (tiers[c] == STW_TIER_HOST) total.host += bytes;
            if (tiers[c] == STW_TIER_HOST) arena += pages(bytes);
            if (tiers[c] == STW_TIER_NVME) total.nvme += bytes * d->nvme_copies;
        }
        if (take == 0) continue;
        if (places[i].update == STW_UPDATE_STREAM) gpu_ring = true;
        if (places[i].update == STW_UPDATE_CPU && places[i].params == STW_TIER_GPU) cpu_ring = true;
        if (places[i].moments == STW_TIER_NVME) disk_ring = true;
    }
    uint64_t rings =
        (cpu_ring ? d->slots * d->slot_bytes : 0) + (disk_ring ? d->slots * disk_slot_bytes(d) : 0);
    if (gpu_ring) total.gpu += d->slots * d->slot_bytes;
    total.host += rings;
    arena += rings > staging ? rings : staging;
    total.gpu += ((arena + 511) / 512 + (2ull << 20) - 1) / (2ull << 20) * (2ull << 20);
    if (!d->alone) total.gpu += 1ull << 20; /* scratch of small collectives */
    return total;
}

/* ---- tests ---- */

static const stw_place all_places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_STREAM_ALL,
                                       FIXTURE_DIRECT,   FIXTURE_CPU,    FIXTURE_CPU_ALL,
                                       FIXTURE_NVME};
#define N_ALL (sizeof all_places / sizeof all_places[0])

/* What a run may be, and the same for the counter. */
static const struct {
    const char *settings[5];
    definition is;
} runs[] = {
    {{NULL}, {.element = {4, 4, 0, 4, 4}, .nvme_copies = 1}},
    {{"placement.nvme_copies=2", NULL}, {.element = {4, 4, 0, 4, 4}, .nvme_copies = 2}},
    {{"precision.params=bf16", "precision.grads=bf16", "precision.master=fp32",
      "placement.nvme_copies=2", NULL},
     {.element = {2, 2, 4, 4, 4}, .nvme_copies = 2}},
    {{"precision.params=bf16", "precision.master=fp32", "precision.exp_avg=bf16", NULL},
     {.element = {2, 4, 4, 2, 4}, .nvme_copies = 1}},
};
#define N_RUNS (sizeof runs / sizeof runs[0])

/* The plan's check wants direct updates asked for: their share is the planner's to choose. */
static stw_plan *new_plan(size_t run, const stw_cluster *cluster) {
    stw_plan *plan = fixture_plan(small, cluster, runs[run].settings);
    CHECK_OK(stw_run_spec_set(&plan->run, "update.direct", "auto", "test", err));
    return plan;
}

static void compare_with_counter(size_t run, uint32_t gpus, uint32_t n, const stw_place *places,
                                 const uint32_t *units) {
    stw_cluster cluster = fixture_cluster(gpus);
    cluster.host.process_comm_bytes = 300ull << 20; /* of jobs with several ranks alone */
    stw_plan *plan = new_plan(run, &cluster);
    fixture_state(plan, n, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    uint64_t params = params_of_rank(small, gpus, 0);
    CU_ASSERT_EQUAL(plan->job->kinds[0].params, params);
    definition is = runs[run].is;
    is.slots = 3;
    is.slot_bytes = 1ull << 20;
    is.alone = gpus == 1;
    counted want = count_step(params, plan->job->unit_params, n, places, units, &is);
    want.gpu += cluster.gpu.context_bytes + (gpus > 1 ? cluster.gpu.comm_bytes : 0);
    want.host += cluster.host.process_bytes + (gpus > 1 ? cluster.host.process_comm_bytes : 0);
    const stw_peak *peak = plan->peaks[0].phase[STW_PHASE_OPTIMIZER_STEP];
    CU_ASSERT_EQUAL(peak[STW_TIER_GPU].total, want.gpu);
    CU_ASSERT_EQUAL(peak[STW_TIER_HOST].total, want.host);
    CU_ASSERT_EQUAL(peak[STW_TIER_NVME].total, want.nvme);
    CU_ASSERT_EQUAL(plan->layouts[0]->arena_bytes[STW_TIER_NVME],
                    is.nvme_copies * plan->layouts[0]->persistent_bytes[STW_TIER_NVME]);
    stw_plan_free(plan);
}

static void single_places(void) {
    for (size_t r = 0; r < N_RUNS; r++)
        for (size_t i = 0; i < N_ALL; i++) {
            const uint32_t units[] = {0};
            compare_with_counter(r, 1, 1, &all_places[i], units);
            compare_with_counter(r, 4, 1, &all_places[i], units);
        }
}

static void mixed_places(void) {
    const uint32_t units[][7] = {{5, 7, 11, 3, 13, 17, 0},
                                 {100, 1, 1, 0, 1, 1, 0},
                                 {0, 0, 3, 200, 0, 9, 0},
                                 {1, 0, 0, 0, 0, 400, 0}};
    for (size_t r = 0; r < N_RUNS; r++)
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            compare_with_counter(r, 1, N_ALL, all_places, units[i]);
            compare_with_counter(r, 3, N_ALL, all_places, units[i]);
        }
}

/* A GPU-less cluster has no page tables. */
static void page_tables_are_of_gpus(void) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *with = new_plan(0, &cluster);
    cluster.gpus = 0;
    stw_plan *without = new_plan(0, &cluster);
    fixture_state(with, 1, all_places, NULL);
    fixture_state(without, 1, all_places, NULL);
    CHECK_OK(stw_plan_derive(with, err));
    CHECK_OK(stw_plan_derive(without, err));
    const stw_peak *a = &with->peaks[0].phase[STW_PHASE_LOAD][STW_TIER_GPU];
    const stw_peak *b = &without->peaks[0].phase[STW_PHASE_LOAD][STW_TIER_GPU];
    /* 96 MiB of staging on the host */
    CU_ASSERT_EQUAL(a->components[STW_COMPONENT_CONTEXT],
                    b->components[STW_COMPONENT_CONTEXT] + (2ull << 20));
    stw_plan_free(with);
    stw_plan_free(without);
}

/* ---- operations of a step ---- */

static uint64_t copied_bytes(const stw_program *program, stw_tier from, stw_tier to) {
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    uint64_t bytes = 0;
    for (uint32_t i = step->first_op; i < step->first_op + step->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if ((stw_op_is(op, STW_OP_CLASS_MOVE) || op->kind == STW_OP_FILE_READ) &&
            op->from == from && op->to == to)
            bytes += op->bytes;
    }
    return bytes;
}

/* Parameters that have a master are written, never read: 12 bytes up and down with bf16 params on
 * the GPU; where those are on the host too they go down with them, and gradients come up. */
static void streamed_bytes_with_a_master(void) {
    stw_cluster cluster = fixture_cluster(1);
    const struct {
        stw_place place;
        uint64_t up, down;
    } cases[] = {{FIXTURE_STREAM, 12, 12}, {FIXTURE_STREAM_ALL, 14, 14}, {FIXTURE_NVME, 12, 12},
                 {FIXTURE_CPU, 2, 2},      {FIXTURE_DIRECT, 0, 0},       {FIXTURE_CPU_ALL, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = new_plan(2, &cluster);
        fixture_state(plan, 1, &cases[i].place, NULL);
        CHECK_OK(stw_plan_derive(plan, err));
        const stw_program *program = plan->programs[0];
        uint64_t params = plan->job->kinds[0].params;
        bool cpu = cases[i].place.update == STW_UPDATE_CPU, disk = i == 2;
        uint64_t h2d = copied_bytes(program, STW_TIER_HOST, STW_TIER_GPU);
        uint64_t d2h = copied_bytes(program, STW_TIER_GPU, STW_TIER_HOST);
        CU_ASSERT_EQUAL(cpu ? d2h : h2d, params * cases[i].up);
        CU_ASSERT_EQUAL(cpu ? h2d : d2h, params * cases[i].down);
        CU_ASSERT_EQUAL(copied_bytes(program, STW_TIER_NVME, STW_TIER_HOST),
                        disk ? params * 12 : 0);
        CU_ASSERT_EQUAL(copied_bytes(program, STW_TIER_HOST, STW_TIER_NVME),
                        disk ? params * 12 : 0);
        stw_plan_free(plan);
    }
}

/* With a ring is counted what the CPU updates elsewhere while a bucket is in it: in proportion,
 * with all of its state. */
static void updates_elsewhere_want_caches(void) {
    static const stw_place places[] = {FIXTURE_CPU, FIXTURE_CPU_ALL};
    const uint32_t units[] = {40, 0}; /* 0: what is left */
    for (uint32_t n = 1; n <= 2; n++) {
        stw_cluster cluster = fixture_cluster(1);
        stw_plan *plan = new_plan(0, &cluster);
        fixture_state(plan, n, places, n == 1 ? NULL : units);
        CHECK_OK(stw_plan_derive(plan, err));
        const stw_program *program = plan->programs[0];
        const stw_ring *ring = &plan->layouts[0]->rings[STW_RING_HOST_CPU];
        uint64_t bucket = ring->slot_bytes / 8; /* params and grads */
        uint64_t left = n == 1 ? 0 : plan->decisions.state[1].units;
        uint64_t want = ring->slots * (ring->slot_bytes + bucket * 8 + bucket * left / 40 * 16);
        uint32_t in_ring = 0, elsewhere = 0, wrong = 0;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind == STW_OP_COPY_PIECE) continue; /* of a load's slots */
            bool moves = op->stream == STW_STREAM_TO_CPU || op->stream == STW_STREAM_FROM_CPU;
            in_ring += op->ring_bytes > 0;
            elsewhere += op->kind == STW_OP_UPDATE && op->ring_bytes == 0;
            if (op->ring_bytes > 0 ? fabs((double)op->ring_bytes / (double)want - 1) > 1e-4 : moves)
                wrong++;
        }
        CU_ASSERT_TRUE(in_ring > 0);
        CU_ASSERT_EQUAL(elsewhere > 0, n == 2);
        CU_ASSERT_EQUAL(wrong, 0);
        stw_plan_free(plan);
    }
}

/* One operation per master region, after the last piece is placed and while its staging is there.
 */
static void masters_are_made_at_load(void) {
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = new_plan(2, &cluster);
    const uint32_t units[] = {5, 7, 11, 3, 13, 17, 0};
    fixture_state(plan, N_ALL, all_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_program *program = plan->programs[k];
        const stw_movement *load = stw_program_movement(program, STW_PHASE_LOAD);
        uint64_t params = 0, n = 0;
        bool staged = true;
        for (uint32_t i = load->first_op; i < load->first_op + load->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind == STW_OP_FREE && op->component == STW_COMPONENT_LOAD_STAGING)
                staged = false;
            if (op->kind == STW_OP_PLACE) CU_ASSERT_EQUAL(n, 0);
            if (op->kind != STW_OP_MASTER) continue;
            n++;
            CU_ASSERT_TRUE(staged);
            CU_ASSERT_FATAL(op->unit < plan->layouts[k]->n_regions);
            const stw_region *r = &plan->layouts[k]->regions[op->unit];
            CU_ASSERT_EQUAL(r->component, STW_COMPONENT_MASTER);
            CU_ASSERT_EQUAL(op->stream, STW_STREAM_COMPUTE);
            CU_ASSERT_EQUAL(op->to, r->tier);
            CU_ASSERT_EQUAL(op->offset_bytes, r->offset_bytes);
            CU_ASSERT_EQUAL(op->from, plan->decisions.state[r->decision].place.params);
            CU_ASSERT_EQUAL(op->from_offset_bytes,
                            stw_layout_address(plan->job, plan->layouts[k], STW_COMPONENT_PARAMS,
                                               r->first_param));
            CU_ASSERT_EQUAL(op->bytes, r->params * 4);
            params += op->params;
        }
        CU_ASSERT_EQUAL(n, N_ALL);
        CU_ASSERT_EQUAL(params, plan->job->kinds[k].params);
    }
    stw_plan_free(plan);
}

/* Direct updates run on the GPU, reach the host by themselves and stage nothing. */
static void direct_updates_stage_nothing(void) {
    stw_cluster cluster = fixture_cluster(1);
    const fixture_size larger = {2, 1024, 4096, 20000};
    stw_plan *plan = fixture_plan(larger, &cluster, NULL);
    CHECK_OK(stw_run_spec_set(&plan->run, "update.direct", "auto", "test", err));
    plan->decisions.prefetch.depth = 0; /* no ring needed */
    fixture_state(plan, 1, &all_places[3], NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    const stw_program *program = plan->programs[0];
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    uint64_t params = 0, updates = 0;
    for (uint32_t i = step->first_op; i < step->first_op + step->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        CU_ASSERT_TRUE(op->kind == STW_OP_UPDATE || op->kind == STW_OP_NORM ||
                       op->kind == STW_OP_NORM_SUM);
        if (op->kind != STW_OP_UPDATE) continue;
        CU_ASSERT_EQUAL(op->stream, STW_STREAM_COMPUTE);
        CU_ASSERT_EQUAL(op->to, STW_TIER_GPU);
        CU_ASSERT_EQUAL(op->from, STW_TIER_HOST);
        CU_ASSERT_TRUE(op->params <= 16u << 20);
        params += op->params;
        updates++;
    }
    CU_ASSERT_EQUAL(params, plan->job->kinds[0].params);
    CU_ASSERT_EQUAL(updates, (params + (16u << 20) - 1) / (16u << 20));
    CU_ASSERT_TRUE(updates > 1);
    plan->decisions.state[0].place.grads = STW_TIER_HOST;
    CHECK_FAILS(stw_decisions_check(plan->job, &plan->decisions, err), STW_STATUS_BAD_INPUT,
                "no update can execute");
    stw_plan_free(plan);
}

/* ---- the disk ring ---- */

/* Does `op` end before `other` starts, by streams and `after` alone? Looks back from `other`. */
static bool ends_before(const stw_program *program, uint32_t first, uint32_t op, uint32_t other) {
    bool *reached = calloc(other + 1, sizeof *reached);
    if (reached == NULL) exit(2);
    reached[other] = true;
    for (uint32_t i = other; i > op && i > first; i--) {
        if (!reached[i]) continue;
        const stw_op *o = &program->ops[i];
        for (int a = 0; a < 2; a++)
            if (o->after[a] != STW_OP_NONE) reached[o->after[a]] = true;
        for (uint32_t j = i; j-- > first;)
            if (program->ops[j].stream == o->stream && program->ops[j].kind != STW_OP_ALLOC &&
                program->ops[j].kind != STW_OP_FREE) {
                reached[j] = true;
                break;
            }
    }
    bool found = reached[op];
    free(reached);
    return found;
}

static bool share_bytes(const stw_op *a, const stw_op *b) {
    return a->from_offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->from_offset_bytes + a->bytes;
}

/* A host slot is read into only when what was written from it is on the disk; apart from that,
 * writes and reads do not wait for each other. */
static void disk_slots_are_reused_in_time(void) {
    stw_cluster cluster = fixture_cluster(1);
    for (uint32_t depth = 1; depth <= 3; depth++) {
        stw_plan *plan = new_plan(0, &cluster);
        plan->decisions.prefetch.depth = depth;
        plan->decisions.prefetch.bucket_bytes = 256u << 10;
        fixture_state(plan, 1, &all_places[N_ALL - 1], NULL);
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        const stw_program *program = plan->programs[0];
        const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
        uint32_t first = step->first_op, end = first + step->n_ops, pairs = 0, at_once = 0;
        uint64_t read = 0, written = 0;
        for (uint32_t w = first; w < end; w++) {
            const stw_op *write = &program->ops[w];
            if (write->kind == STW_OP_NVME_READ) read += write->bytes;
            if (write->kind != STW_OP_NVME_WRITE) continue;
            written += write->bytes;
            CU_ASSERT_EQUAL(write->stream, STW_STREAM_DISK_OUT);
            for (uint32_t r = w + 1; r < end; r++) {
                const stw_op *next = &program->ops[r];
                if (next->kind != STW_OP_NVME_READ) continue;
                CU_ASSERT_EQUAL(next->stream, STW_STREAM_DISK);
                bool ordered = ends_before(program, first, w, r);
                if (share_bytes(write, next)) {
                    CU_ASSERT_TRUE(ordered);
                    pairs++;
                } else if (!ordered) {
                    at_once++;
                }
            }
        }
        CU_ASSERT_TRUE(pairs > 0);
        CU_ASSERT_EQUAL(read, plan->job->kinds[0].params * 8);
        CU_ASSERT_EQUAL(written, read);
        if (depth > 1) CU_ASSERT_TRUE(at_once > 0);
        stw_plan_free(plan);
    }
}

/* ---- the rest ---- */

static void load_bytes(void) {
    /* rank 0 stages in 3 x 32 MiB on host and GPU; the others on the GPU alone */
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    fixture_state(plan, 1, all_places, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    CU_ASSERT_EQUAL(plan->job->n_kinds, 2);
    for (uint32_t k = 0; k < 2; k++) {
        const stw_peak *peak = plan->peaks[k].phase[STW_PHASE_LOAD];
        uint64_t state = params_of_rank(small, 2, k) * 16 + (1ull << 20);
        CU_ASSERT_EQUAL(stw_peak_allocated(&peak[STW_TIER_GPU]), state + 3 * (32ull << 20));
        CU_ASSERT_EQUAL(peak[STW_TIER_HOST].total,
                        cluster.host.process_bytes + (k == 0 ? 3 * (32ull << 20) : 0));
    }
    stw_plan_free(plan);
}

/* The fixture's tensors are stored in bf16: 2 bytes an element are read and copied up by every
 * method, in pieces that span tensors. */
static void loads_move_stored_bytes(void) {
    static const char *const methods[] = {"load.method=rank0_broadcast",
                                          "load.method=sharded_read"};
    for (size_t m = 0; m < 2; m++) {
        const char *const settings[] = {methods[m], "load.weights=/weights", NULL};
        stw_cluster cluster = fixture_cluster(2);
        stw_plan *plan = fixture_plan(small, &cluster, settings);
        fixture_state(plan, 1, all_places, NULL);
        plan->decisions.load = m == 0 ? STW_LOAD_RANK0_BROADCAST : STW_LOAD_SHARDED_READ;
        CHECK_OK(stw_plan_derive(plan, err));
        const stw_program *program = plan->programs[0];
        const stw_movement *load = stw_program_movement(program, STW_PHASE_LOAD);
        uint64_t params = m == 0 ? plan->model->params : plan->job->kinds[0].params;
        uint64_t read = 0, copied = 0, reads = 0;
        for (uint32_t i = load->first_op; i < load->first_op + load->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind == STW_OP_FILE_READ) read += op->bytes;
            if (op->kind == STW_OP_COPY_PIECE) {
                copied += op->bytes;
                CU_ASSERT_EQUAL(op->ring_bytes, 3 * 2 * op->bytes); /* read, and in a slot */
            }
            reads += op->kind == STW_OP_FILE_READ;
            if (op->kind == STW_OP_FILE_READ || op->kind == STW_OP_COPY_PIECE)
                CU_ASSERT_EQUAL(op->ranks, m == 0 ? STW_OP_RANKS_ONE : STW_OP_RANKS_EACH);
        }
        CU_ASSERT_EQUAL(read, 2 * params);
        CU_ASSERT_EQUAL(copied, 2 * params);
        CU_ASSERT_EQUAL(reads, (params + (8u << 20) - 1) / (8u << 20));
        stw_plan_free(plan);
    }
}

static void falsified_plans_are_found(void) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = new_plan(0, &cluster);
    const uint32_t units[] = {5, 7, 11, 3, 13, 17, 0};
    fixture_state(plan, N_ALL, all_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    plan->layouts[0]->regions[1].offset_bytes -= 4096;
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BUG, "overlaps");
    plan->layouts[0]->regions[1].offset_bytes += 4096;
    plan->peaks[0].phase[STW_PHASE_LOAD][STW_TIER_GPU].total++;
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BUG, "peak");
    CHECK_OK(stw_plan_check(plan, false, err));
    plan->decisions.state[0].units++;
    CHECK_FAILS(stw_plan_check(plan, false, err), STW_STATUS_BAD_INPUT, "quanta");
    stw_plan_free(plan);
}

/* One operation that is not what it was is refused with `word`, and the program is whole again. */
static void falsified(stw_plan *plan, stw_op *op, stw_op wrong, const char *word) {
    const stw_op was = *op;
    *op = wrong;
    CHECK_FAILS(stw_program_check(plan->job, plan->layouts[0], plan->programs[0], err),
                STW_STATUS_BUG, word);
    *op = was;
}

/* All that an operation of an executor's movement can say wrong. @return kinds of wrong things */
static uint32_t falsify(stw_plan *plan, const stw_movement *movement, uint32_t i) {
    stw_op *op = &plan->programs[0]->ops[i], wrong = *op;
    const bool moves = stw_op_is(op, STW_OP_CLASS_MOVE);
    const bool has_unit =
        op->unit != STW_OP_NONE && !moves && stw_op_row_of(op->kind)->unit != STW_OP_UNIT_NOTHING;
    uint32_t found = 0;
    wrong.kind = STW_N_OP_KINDS;
    falsified(plan, op, wrong, "no known kind");
    wrong = *op;
    wrong.after[1] = i;
    falsified(plan, op, wrong, "waits for");
    if (i > movement->first_op && plan->programs[0]->ops[i - 1].stream == op->stream) {
        wrong.after[1] = i - 1;
        falsified(plan, op, wrong, "another stream");
        found |= 1;
    }
    wrong = *op;
    if (op->kind == STW_OP_FREE) {
        wrong.bytes += 512;
        falsified(plan, op, wrong, "frees bytes");
        wrong = *op;
        wrong.component = (stw_component)((op->component + 1) % STW_N_COMPONENTS);
        falsified(plan, op, wrong, "frees bytes");
        found |= 2;
    } else if (moves) {
        wrong.offset_bytes += 1ull << 50;
        falsified(plan, op, wrong, "not allocated");
        wrong = *op;
        wrong.from_offset_bytes += 1ull << 50;
        falsified(plan, op, wrong, "not allocated");
        wrong = *op;
        wrong.bytes += 1ull << 50;
        falsified(plan, op, wrong, "not allocated");
        found |= 4;
    } else if (has_unit) {
        wrong.unit = 1u << 30;
        falsified(plan, op, wrong, "is for unit");
        found |= 8;
    }
    if (stw_op_is(op, STW_OP_CLASS_COLLECTIVE)) {
        wrong = *op;
        wrong.group = STW_RANK_GROUP_NONE;
        falsified(plan, op, wrong, "names no group");
        found |= 16;
    }
    if (op->kind == STW_OP_COMMIT && stw_movement_has(plan->programs[0], movement, STW_OP_UPDATE)) {
        uint32_t next = i + 1, end = movement->first_op + movement->n_ops; /* is it the last one? */
        while (next < end && plan->programs[0]->ops[next].kind != STW_OP_COMMIT) next++;
        wrong = stw_op_make(STW_OP_NORM, op->stream, STW_OP_NONE);
        if (next == end) falsified(plan, op, wrong, "does not commit");
        found |= 32;
    }
    return found;
}

static void falsified_operations_are_found(void) {
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = new_plan(0, &cluster);
    const uint32_t units[] = {5, 7, 11, 3, 13, 17, 0};
    uint32_t found = 0;
    fixture_state(plan, N_ALL, all_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    for (uint32_t m = 0; m < plan->programs[0]->n_movements; m++) {
        const stw_movement *movement = &plan->programs[0]->movements[m];
        for (uint32_t i = 0; movement->executable && i < movement->n_ops; i++)
            found |= falsify(plan, movement, movement->first_op + i);
    }
    CU_ASSERT_EQUAL(found, 63);
    CHECK_OK(stw_program_check(plan->job, plan->layouts[0], plan->programs[0], err));
    stw_plan_free(plan);
}

static void uneven_shards_may_be_empty(void) {
    const fixture_size tiny = {1, 4, 8, 5};
    stw_cluster cluster = fixture_cluster(4);
    stw_plan *plan = fixture_plan(tiny, &cluster, NULL);
    uint64_t sum = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        sum += plan->job->kinds[k].params * plan->job->kinds[k].n_ranks;
    CU_ASSERT_EQUAL(sum, plan->model->params);
    for (uint32_t rank = 0; rank < 4; rank++) {
        stw_space space;
        uint64_t flat = 0;
        CHECK_OK(stw_job_space(plan->job, STW_SPACE_PARAMS, rank, plan->pool, &space, err));
        for (uint32_t i = 0; i < space.n_segments; i++) {
            CU_ASSERT_EQUAL(space.segments[i].first, flat);
            flat += space.segments[i].n;
        }
        CU_ASSERT_EQUAL(flat, params_of_rank(tiny, 4, rank));
        CU_ASSERT_EQUAL(flat, plan->job->kinds[stw_job_kind_of(plan->job, rank)].params);
    }
    stw_plan_free(plan);
}

static void both_engines_and_all_policies_check(void) {
    const char *const fsdp2[] = {"engine=fsdp2", NULL};
    const char *const streamed[] = {"engine=fsdp2", "optimizer.implementation=streamed", NULL};
    const char *const parked[] = {"engine=fsdp2", "park.moments=host", NULL};
    const char *const *const settings[] = {NULL, fsdp2, streamed, parked};
    for (size_t i = 0; i < 4; i++) {
        stw_cluster cluster = fixture_cluster(4);
        stw_plan *plan = fixture_plan(small, &cluster, settings[i]);
        plan->decisions.blocks = stw_pool_array(plan->pool, 3, sizeof(stw_block_decision));
        for (uint32_t a = 0; a < 3; a++)
            plan->decisions.blocks[a] = (stw_block_decision){1, (stw_act)a, 1};
        plan->decisions.n_blocks = 3;
        plan->decisions.prefetch.by_group = i > 0;
        plan->decisions.prefetch.depth = 1;
        fixture_state(plan, 1, &all_places[i == 2 || i == 0 ? 1 : 0], NULL);
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        CU_ASSERT_TRUE(plan->peaks[0].has[STW_PHASE_FORWARD_BACKWARD]);
        stw_plan_free(plan);
    }
}

/* An engine that updates groups of tensors has no use for buckets of the optimizer space. */
static void groups_need_no_buckets(void) {
    const char *const streamed[] = {"engine=fsdp2", "optimizer.implementation=streamed", NULL};
    stw_cluster cluster = fixture_cluster(4);
    stw_plan *plan = fixture_plan(small, &cluster, streamed);
    plan->decisions.prefetch.by_group = true;
    plan->decisions.prefetch.depth = 1;
    plan->decisions.prefetch.bucket_bytes = 0;
    fixture_state(plan, 1, &all_places[1], NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    CU_ASSERT_EQUAL(plan->layouts[0]->n_buckets, 0);
    const stw_program *program = plan->programs[0];
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    uint64_t params = 0;
    for (uint32_t i = 0; i < step->n_ops; i++)
        if (program->ops[step->first_op + i].kind == STW_OP_UPDATE)
            params += program->ops[step->first_op + i].params;
    CU_ASSERT_EQUAL(params, plan->job->kinds[0].params);
    stw_plan_free(plan);
}

STW_TEST_MAIN("plan program", {"one place at a time equals the counter", single_places},
              {"mixed places equal the counter", mixed_places},
              {"page tables are of GPUs", page_tables_are_of_gpus},
              {"streamed bytes with a master", streamed_bytes_with_a_master},
              {"updates elsewhere want caches", updates_elsewhere_want_caches},
              {"masters are made at load", masters_are_made_at_load},
              {"direct updates stage nothing", direct_updates_stage_nothing},
              {"disk slots are reused in time", disk_slots_are_reused_in_time},
              {"load staging", load_bytes}, {"loads move stored bytes", loads_move_stored_bytes},
              {"falsified plans are found", falsified_plans_are_found},
              {"falsified operations are found", falsified_operations_are_found},
              {"uneven and empty shards", uneven_shards_may_be_empty},
              {"engines and activation policies", both_engines_and_all_policies_check},
              {"groups need no buckets", groups_need_no_buckets})
