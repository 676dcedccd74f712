/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds of forward and backward, and the seconds of every load method. What does not
 * depend on a choice is summed over the operations of a reference program of the engine itself;
 * what does (recompute, offload, shards on the host) is added per block and per unit. */
#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/engines/fsdp2_keys.h"
#include "plan/program/demand.h"
#include "planner/cost.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
}

/* ---- forward and backward ---- */

/* What any plan of the job does in forward and backward, from a reference program. */
typedef struct fixed_work {
    double compute_s[2], comm_s[2]; /* forward, backward: sums of operations alone */
    double first_gather_s;          /* gathers that the first block waits for */
    double last_reduce_s;           /* reductions after the last block's backward */
    double *forward_s;              /* [n_groups] of one block alone */
} fixed_work;

/* Copies are those of the first place's shards; they come per unit. */
static void sum_work(const stw_cost *cost, const stw_program *program, fixed_work *work) {
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    if (movement == NULL) return;
    uint32_t losses = 0, first_wait = STW_OP_NONE;
    double comm_so_far_s = 0, comm_at_compute_s = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        stw_demand demand;
        if (op->work == STW_WORK_LOSS) losses++;
        int pass = losses >= 2 || op->work == STW_WORK_BACKWARD ? 1 : 0;
        stw_demand_op(cost->job, op, &demand);
        double alone = stw_demand_alone_s(&demand);
        if (op->kind == STW_OP_COLLECTIVE) {
            work->comm_s[pass] += alone;
            comm_so_far_s += alone;
        } else if (op->kind == STW_OP_COMPUTE) {
            if (first_wait == STW_OP_NONE && op->after[0] != STW_OP_NONE) first_wait = op->after[0];
            work->compute_s[pass] += alone;
            comm_at_compute_s = comm_so_far_s;
            if (op->work == STW_WORK_FORWARD)
                work->forward_s[cost->job->model->blocks[op->unit].group] = alone;
        }
    }
    work->last_reduce_s = comm_so_far_s - comm_at_compute_s;
    for (uint32_t i = movement->first_op; first_wait != STW_OP_NONE && i <= first_wait; i++) {
        stw_demand demand;
        stw_demand_op(cost->job, &program->ops[i], &demand);
        if (program->ops[i].kind == STW_OP_COLLECTIVE)
            work->first_gather_s += stw_demand_alone_s(&demand);
    }
}

/* Seconds of a resource (or of a copy stream, start-ups included: STW_N_RESOURCES) in a demand. */
static double seconds_of(const stw_demand *demand, unsigned resource) {
    return resource == STW_N_RESOURCES ? stw_demand_alone_s(demand) : demand->seconds[resource];
}

/* Offloaded activations leave in forward and come back in backward. */
static void charge_offload(const stw_cost *cost, stw_time_row *row, bool up, unsigned resource) {
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (act->act != STW_ACT_OFFLOAD) continue;
        stw_demand demand;
        stw_demand_copy(cost->job, up ? STW_TIER_HOST : STW_TIER_GPU,
                        up ? STW_TIER_GPU : STW_TIER_HOST,
                        stw_activation_bytes(cost->job, act->group, STW_ACT_KEEP), &demand);
        row->act_s[a] += seconds_of(&demand, resource);
    }
}

/* Shards on the host, a block at a time, `share` of all blocks. */
static void charge_shards(const stw_cost *cost, stw_time_row *row, stw_component component,
                          double share, unsigned resource) {
    const stw_job *job = cost->job;
    uint64_t params = job->kinds[job->largest].params, blocks = job->model->n_blocks;
    uint64_t block_bytes = stw_div_up_u64(params, blocks) * stw_job_element_bytes(job, component);
    bool up = component == STW_COMPONENT_PARAMS;
    stw_demand demand;
    stw_demand_copy(job, up ? STW_TIER_HOST : STW_TIER_GPU, up ? STW_TIER_GPU : STW_TIER_HOST,
                    block_bytes, &demand);
    double unit_s = share * seconds_of(&demand, resource) * (double)blocks / job->n_units;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            if (stw_place_tier(&cost->places[p], component) == STW_TIER_HOST)
                row->unit_s[p * cost->n_rings + r] += unit_s;
}

/* Share of the parameters that are gathered again for backward. */
static double share_gathered_twice(const stw_job *job) {
    if (!stw_fsdp_settings_of(job->run).reshard_after_forward) return 0;
    const stw_rank_kind *kind = &job->kinds[job->largest];
    uint64_t again = 0;
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        if (!stw_job_in_root(job, b)) again += kind->block_params[b];
    return kind->params > 0 ? (double)again / (double)kind->params : 0;
}

/* A row of one resource (or stream) over what passes between GPU and host. */
static stw_status add_copies(stw_cost *cost, bool backward, const char *name, unsigned resource,
                             bool up, bool down, stw_error *err) {
    stw_time_row *row = stw_cost_time_row(cost, backward ? STW_PART_BACKWARD : STW_PART_FORWARD,
                                          "%s_%s", backward ? "backward" : "forward", name);
    if (row == NULL) return no_memory(err);
    if (up && backward) charge_offload(cost, row, true, resource);
    if (down && !backward) charge_offload(cost, row, false, resource);
    if (up)
        charge_shards(cost, row, STW_COMPONENT_PARAMS,
                      backward ? share_gathered_twice(cost->job) : 1, resource);
    if (down && backward) charge_shards(cost, row, STW_COMPONENT_GRADS, 1, resource);
    return STW_STATUS_OK;
}

static stw_status add_fixed(stw_cost *cost, const fixed_work *work, bool backward, stw_error *err) {
    stw_part part = backward ? STW_PART_BACKWARD : STW_PART_FORWARD;
    const char *name = backward ? "backward" : "forward";
    stw_time_row *compute = stw_cost_time_row(cost, part, "%s_compute", name);
    if (compute == NULL) return no_memory(err);
    compute->constant_s =
        work->compute_s[backward] + (backward ? work->last_reduce_s : work->first_gather_s);
    for (uint32_t a = 0; backward && a < cost->n_acts; a++)
        if (cost->acts[a].act == STW_ACT_RECOMPUTE)
            compute->act_s[a] = work->forward_s[cost->acts[a].group];
    stw_time_row *comm = stw_cost_time_row(cost, part, "%s_comm", name);
    if (comm == NULL) return no_memory(err);
    comm->constant_s = work->comm_s[backward];
    return STW_STATUS_OK;
}

static stw_status add_forward_backward(stw_cost *cost, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    fixed_work work = {.forward_s =
                           stw_pool_array(cost->pool, cost->job->model->n_groups, sizeof(double))};
    if (work.forward_s == NULL) return no_memory(err);
    sum_work(cost, cost->reference, &work);
    for (int backward = 0; backward < 2; backward++) {
        STW_TRY(add_fixed(cost, &work, backward, err));
        STW_TRY(add_copies(cost, backward, "h2d", STW_N_RESOURCES, true, false, err));
        STW_TRY(add_copies(cost, backward, "d2h", STW_N_RESOURCES, false, true, err));
        STW_TRY(add_copies(cost, backward, "pcie", STW_RESOURCE_PCIE, true, true, err));
        STW_TRY(add_copies(cost, backward, "dma", STW_RESOURCE_DMA, true, true, err));
        STW_TRY(
            add_copies(cost, backward, "host_memory", STW_RESOURCE_HOST_MEMORY, true, true, err));
    }
out:
    return status;
}

/* ---- load ---- */

/* Pieces of a load: how many, and how large one is on average. */
typedef struct load_work {
    uint64_t pieces, bytes;
} load_work;

static stw_status whole_load(const stw_job *job, load_work *work, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return no_memory(err);
    stw_load_piece *pieces = NULL;
    uint32_t n = 0;
    stw_status status = stw_load_pieces(job, pool, &pieces, &n, err);
    *work = (load_work){n, 0};
    for (uint32_t i = 0; status == STW_STATUS_OK && i < n; i++)
        work->bytes += pieces[i].count * stw_load_element_bytes(job, pieces[i].tensor);
    stw_pool_free(pool);
    return status;
}

static double op_alone_s(const stw_job *job, stw_op op) {
    stw_demand demand;
    stw_demand_op(job, &op, &demand);
    return stw_demand_alone_s(&demand);
}

/* Pieces pass through STW_LOAD_SLOTS slots: the slowest station, or all of them over the slots. */
static double load_seconds(const stw_job *job, const load_work *work, bool reads, bool broadcasts) {
    if (work->pieces == 0) return 0;
    uint64_t bytes = work->bytes / work->pieces;
    double stations[] = {
        reads ? op_alone_s(job, (stw_op){.kind = STW_OP_READ,
                                         .component = STW_COMPONENT_LOAD_STAGING,
                                         .from = STW_TIER_NVME,
                                         .to = STW_TIER_HOST,
                                         .bytes = bytes})
              : 0,
        reads ? op_alone_s(job, (stw_op){.kind = STW_OP_COPY,
                                         .from = STW_TIER_HOST,
                                         .to = STW_TIER_GPU,
                                         .bytes = bytes})
              : 0,
        broadcasts ? op_alone_s(job, (stw_op){.kind = STW_OP_COLLECTIVE,
                                              .work = STW_WORK_BROADCAST,
                                              .bytes = bytes})
                   : 0,
        op_alone_s(job, (stw_op){.kind = STW_OP_COMPUTE, .work = STW_WORK_PLACE, .bytes = bytes})};
    double slowest = 0, way = 0;
    for (unsigned i = 0; i < sizeof stations / sizeof stations[0]; i++) {
        way += stations[i];
        if (stations[i] > slowest) slowest = stations[i];
    }
    if (way / STW_LOAD_SLOTS > slowest) slowest = way / STW_LOAD_SLOTS;
    return slowest * (double)work->pieces;
}

/* Masters are made from the parameters, region by region, after the last piece. */
static void add_masters(stw_cost *cost) {
    const stw_job *job = cost->job;
    if (cost->engine->lazy_state || !job->run->precision.has_master) return;
    for (uint32_t p = 0; p < cost->n_places; p++) {
        stw_demand demand;
        stw_op op = {.kind = STW_OP_COMPUTE,
                     .work = STW_WORK_MASTER,
                     .from = cost->places[p].params,
                     .to = cost->places[p].moments,
                     .params = job->unit_params};
        stw_demand_op(job, &op, &demand);
        cost->load_unit_s[p] = stw_demand_alone_s(&demand) - demand.startup_s;
    }
}

static stw_status add_loads(stw_cost *cost, stw_error *err) {
    const stw_job *job = cost->job;
    uint64_t flat_bytes =
        job->kinds[job->largest].params * 4; /* sharded_read takes fp32 of the flat space */
    load_work flat = {stw_flat_pieces(job, job->largest), flat_bytes}, whole;
    stw_status status = whole_load(job, &whole, err);
    add_masters(cost);
    for (uint32_t l = 0; l < cost->n_loads; l++) {
        switch (cost->loads[l]) {
        case STW_LOAD_RANK0_BROADCAST:
            cost->load_s[l] = load_seconds(job, &whole, true, job->world > 1);
            break;
        case STW_LOAD_NODE_LEADER:
            cost->load_s[l] = load_seconds(job, &whole, true, job->ranks_per_node > 1);
            break;
        case STW_LOAD_SHARDED_READ:
            cost->load_s[l] = load_seconds(job, &flat, true, false);
            break;
        default:
            cost->load_s[l] = load_seconds(job, &whole, true, false);
            break;
        }
    }
    return status;
}

stw_status stw_cost_add_seconds(stw_cost *cost, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cost_add_step(cost, err));
    if (cost->forward_backward_known) STW_TRY(add_forward_backward(cost, err));
    STW_TRY(add_loads(cost, err));
out:
    return status;
}
