/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sync and checkpoint of a trainer: bytes, buckets, files, copies on the host, and what
 * ranks have to tell each other. Read off the programs of a plan that fits. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/checked.h"
#include "engines/save_plan.h"
#include "engines/sync_plan.h"
#include "engines/weight_sync.h"
#include "plan/files/plan_file.h"
#include "plan/program/collectives.h"
#include "plan/program/demand.h"
#include "plan/spec/registry.h"
#include "reports/plan_sections.h"

/* Sum over the operations of a kind in a phase of one rank's program. */
static uint64_t sum(const stw_program *program, stw_phase phase, stw_op_kind kind) {
    const stw_movement *m = stw_program_movement(program, phase);
    uint64_t bytes = 0;
    for (uint32_t i = 0; m != NULL && i < m->n_ops; i++)
        if (program->ops[m->first_op + i].kind == kind)
            bytes = stw_plus(bytes, program->ops[m->first_op + i].bytes);
    return bytes;
}

/* ---- checkpoint ---- */

/* What all ranks write together, and hold on a node for it. */
typedef struct saving {
    uint64_t bytes, files, writers, staged;
    uint64_t most; /* that one rank writes */
} saving;

static saving saving_of(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    const stw_save_plan *saves = NULL;
    saving all = {0};
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const uint64_t own = sum(plan->programs[k], STW_PHASE_CHECKPOINT, STW_OP_FILE_WRITE);
        const stw_movement *m = stw_program_movement(plan->programs[k], STW_PHASE_CHECKPOINT);
        const uint64_t ranks = job->kinds[k].n_ranks;
        if (m != NULL) all.files = stw_plus(all.files, stw_times(m->files, ranks));
        if (own == 0) continue;
        all.bytes = stw_plus(all.bytes, stw_times(own, ranks));
        all.most = stw_max_u64(all.most, own);
        all.writers += ranks;
    }
    if (all.bytes > 0 && stw_run_spec_saves_own(&plan->run)) { /* of kinds: their busiest rank's */
        if (stw_save_plan_of(job, &saves, NULL) != STW_STATUS_OK) {
            s->out->failed = true;
            return all;
        }
        all.bytes = saves->bytes;
        all.writers = 0;
        for (uint32_t r = 0; r < job->world; r++) all.writers += saves->rank_bytes[r] > 0;
    }
    for (uint32_t n = 0; n < job->n_node_kinds; n++)
        all.staged = stw_max_u64(all.staged, plan->node_peaks[n]
                                                 .phase[STW_PHASE_CHECKPOINT][STW_TIER_HOST]
                                                 .components[STW_COMPONENT_CHECKPOINT_STAGING]);
    return all;
}

/* Of the largest kind of rank, in its movement. */
static void put_collectives(const stw_section *s) {
    const stw_job *job = s->plan->job;
    stw_collectives all;
    uint64_t count = 0;
    char note[320] = "";
    if (stw_program_collectives(job, s->plan->programs[job->largest], s->plan->pool, &all, NULL) !=
        STW_STATUS_OK) {
        s->out->failed = true;
        return;
    }
    for (uint32_t i = 0; i < all.n; i++)
        if (all.rows[i].phase == STW_PHASE_CHECKPOINT) count = stw_plus(count, all.rows[i].count);
    if (job->engine->save_metadata != NULL && count > 0)
        job->engine->save_metadata(job, note, sizeof note);
    if (stw_run_spec_saves_own(&s->plan->run))
        snprintf(note, sizeof note, "who writes what follows from the plan");
    stw_doc_line(s->out, s->format, "Collectives of a rank in a save: %" PRIu64 "%s%s%s.", count,
                 note[0] != '\0' ? " (" : "", note, note[0] != '\0' ? ")" : "");
}

/* Bytes of a node's host that nothing takes, whatever the phase. */
static uint64_t free_on_hosts(const stw_plan *plan) {
    const uint64_t capacity = stw_plan_host_capacity(plan);
    const uint64_t locked = plan->cluster.host.page_lock_limit_bytes;
    uint64_t left = UINT64_MAX;
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *host = &plan->node_peaks[n].phase[p][STW_TIER_HOST];
            left = stw_min_u64(left, capacity - stw_min_u64(host->total, capacity));
            left = stw_min_u64(left, locked - stw_min_u64(host->page_locked, locked));
        }
    return left;
}

/* Seconds in which the GPU's link moves what a save takes from there. */
static double link_s(const stw_plan *plan) {
    const stw_program *program = plan->programs[plan->job->largest];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_CHECKPOINT);
    double seconds = 0;
    for (uint32_t i = 0; i < m->n_ops; i++) {
        stw_demand demand;
        if (program->ops[m->first_op + i].stream != STW_STREAM_D2H) continue;
        stw_demand_op(plan->job, &program->ops[m->first_op + i], &demand);
        seconds += stw_demand_alone_s(&demand);
    }
    return seconds;
}

/* What more buckets on the host would do: as many bytes as the disk takes while training waits. */
static void put_copies(const stw_section *s, const saving *all, double stall_s) {
    const stw_plan *plan = s->plan;
    const double disk_s = stall_s - link_s(plan);
    if (plan->save_s <= 0 || disk_s < stall_s / 100) return;
    const double share = disk_s / plan->save_s;
    const uint64_t mib = 1ull << 20;
    const uint64_t more = stw_times(stw_div_up_u64(stw_scaled(all->most, share), mib), mib);
    const uint64_t copies = stw_plus(plan->run.checkpoint.copies_bytes, more);
    const uint64_t node = stw_times(more, plan->job->ranks_per_node), left = free_on_hosts(plan);
    if (node <= left)
        stw_doc_line(
            s->out, s->format,
            "--set checkpoint.copies=%" PRIu64 "MiB, or auto, spares %s of this wait: "
            "what is not written yet waits on the host. That is %s more of a node's host, of "
            "which %s are free.",
            copies / mib, stw_word_seconds(disk_s).text, stw_word_gib(node).text,
            stw_word_gib(left).text);
    else
        stw_doc_line(s->out, s->format,
                     "More buckets on the host would spare %s of this wait, but are %s more of it "
                     "per node, of which %s are free; checkpoint.copies: auto takes as much as "
                     "fits.",
                     stw_word_seconds(disk_s).text, stw_word_gib(node).text,
                     stw_word_gib(left).text);
}

/* How long a save takes, and what it stops. */
static void put_stall(const stw_section *s, const saving *all) {
    const stw_plan *plan = s->plan;
    const stw_movement *m =
        stw_program_movement(plan->programs[plan->job->largest], STW_PHASE_CHECKPOINT);
    const double stall_s = plan->time_s[STW_PHASE_CHECKPOINT], save_s = plan->save_s;
    if (m == NULL || !m->behind || !isfinite(stall_s) || !isfinite(save_s)) return;
    if (!m->by_stowage) {
        stw_doc_line(s->out, s->format,
                     "A save takes %s and stops training for %s: until everything is copied, and "
                     "where the save before is not complete.",
                     stw_word_seconds(save_s).text, stw_word_seconds(stall_s).text);
        return;
    }
    if (stall_s <= 0) {
        stw_doc_line(s->out, s->format,
                     "A save takes %s beside training and stops nothing: before the next step "
                     "changes state, it is written or in a bucket on the host.",
                     stw_word_seconds(save_s).text);
        return;
    }
    stw_doc_line(s->out, s->format,
                 "A save takes %s. Training waits until state on the GPU, and what the next step "
                 "changes, is in the buckets on the host: %s.",
                 stw_word_seconds(save_s).text, stw_word_seconds(stall_s).text);
    put_copies(s, all, stall_s);
}

/* What stays on the disks. */
static void put_kept(const stw_section *s, const saving *all) {
    const stw_plan *plan = s->plan;
    const uint64_t keep = plan->run.checkpoint.keep;
    const uint64_t node = stw_div_up_u64(all->bytes, plan->cluster.nodes);
    if (keep == 0)
        stw_doc_line(s->out, s->format,
                     "All are kept (checkpoint.keep: 0): each takes %s of a node's disk.",
                     stw_word_gib(node).text);
    else
        stw_doc_line(s->out, s->format,
                     "%" PRIu64 " are kept, and one more while it is written: %s of a node's "
                     "disk%s.",
                     keep, stw_word_gib(stw_times(keep + 1, node)).text,
                     plan->cluster.nvme.capacity_bytes > 0 ? ""
                                                           : ", whose size is not known "
                                                             "(node.nvme.capacity)");
}

static void put_checkpoint(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const saving all = saving_of(s);
    if (all.bytes == 0) return;
    stw_doc_line(s->out, s->format,
                 "Checkpoint: %s after one iteration of %" PRIu64 ", in %" PRIu64
                 " files of tensors written by %" PRIu64 " of %" PRIu32
                 " ranks; every element once. Copies on the host: at most %s per node.",
                 stw_word_gib(all.bytes).text, plan->run.checkpoint.every, all.files, all.writers,
                 plan->job->world, stw_word_gib(all.staged).text);
    put_collectives(s);
    put_stall(s, &all);
    put_kept(s, &all);
}

/* A framework that hands over whole tensors in buckets has no room for a larger one. */
static void put_largest(const stw_section *s) {
    const stw_job *job = s->plan->job;
    const stw_role *role = stw_synced_role(job);
    const stw_tensor *largest = NULL;
    if (role == NULL || job->engine->spec.own_process) return;
    for (uint32_t t = 0; t < job->model->n_tensors; t++)
        if (largest == NULL || job->model->tensors[t].numel > largest->numel)
            largest = &job->model->tensors[t];
    const uint64_t element = stw_max_u64(stw_dtype_bits(role->dtype) / 8, 1);
    if (largest == NULL || stw_times(largest->numel, element) <= role->update_bucket_bytes) return;
    stw_doc_line(s->out, s->format,
                 "The tensor %.80s has %s, more than update_bucket of role %.60s: it is planned to "
                 "be handed over by itself. Some frameworks refuse such a tensor; raise the bucket "
                 "to at least its size.",
                 largest->name, stw_word_size(stw_times(largest->numel, element)).text, role->name);
}

/* Stowage's own: rooms and rounds, and the most that comes to a rank. */
static void put_own_sync(const stw_section *s, const stw_movement *m) {
    const stw_job *job = s->plan->job;
    const stw_sync_plan *sync = NULL;
    if (stw_sync_plan_of(job, &sync, NULL) != STW_STATUS_OK) {
        s->out->failed = true;
        return;
    }
    stw_doc_line(
        s->out, s->format,
        "Weight sync (%s%s): %" PRIu32 " rounds with %s of at most %s on a GPU; a rank of the "
        "rollout takes at most %s; at most %s come from other ranks of its node, and at most "
        "%s from other nodes.",
        m->executable ? "by " : "", stw_plan_movement_by(s->plan, m), sync->n_rounds,
        sync->sets > 1 ? "two sets of buffers" : "buffers",
        stw_word_size(stw_sync_room(&sync->trainer)).text, stw_word_gib(sync->placed).text,
        stw_word_gib(sync->near_received).text, stw_word_gib(sync->far_received).text);
}

static void put_sync(const stw_section *s) {
    const stw_program *program = s->plan->programs[s->plan->job->largest];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_WEIGHT_SYNC);
    if (m != NULL && m->by_stowage) put_own_sync(s, m);
    if (m == NULL || m->transfer.n_pieces == 0) return;
    const uint64_t gathered = sum(program, STW_PHASE_WEIGHT_SYNC, STW_OP_ALL_GATHER);
    const uint64_t sent = sum(program, STW_PHASE_WEIGHT_SYNC, STW_OP_SEND);
    stw_doc_line(s->out, s->format,
                 "Weight sync (by %s): the model in %" PRIu32
                 " pieces of at most %s; each rank gathers %s%s%s.",
                 stw_plan_movement_by(s->plan, m), m->transfer.n_pieces,
                 stw_word_size(m->transfer.pieces[0].room_bytes).text, stw_word_gib(gathered).text,
                 sent > 0 ? " and passes on " : "", sent > 0 ? stw_word_gib(sent).text : "");
    put_largest(s);
}

void stw_section_transfers(const stw_section *s) {
    const stw_plan *plan = s->plan;
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT || plan->programs == NULL) return;
    const stw_program *program = plan->programs[plan->job->largest];
    if (stw_program_movement(program, STW_PHASE_CHECKPOINT) == NULL &&
        stw_program_movement(program, STW_PHASE_WEIGHT_SYNC) == NULL)
        return;
    stw_doc_heading(s->out, s->format, "Weights and files");
    put_sync(s);
    put_checkpoint(s);
}
