/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sync and checkpoint of a trainer: bytes, buckets, files, copies on the host, and what
 * ranks have to tell each other. Read off the programs of a plan that fits. */
#include <inttypes.h>

#include "core/checked.h"
#include "plan/engines/sync_plan.h"
#include "plan/engines/weight_sync.h"
#include "plan/files/plan_file.h"
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

static void put_checkpoint(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    uint64_t bytes = 0, files = 0, writers = 0, staged = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const uint64_t own = sum(plan->programs[k], STW_PHASE_CHECKPOINT, STW_OP_FILE_WRITE);
        const stw_movement *m = stw_program_movement(plan->programs[k], STW_PHASE_CHECKPOINT);
        const uint64_t ranks = job->kinds[k].n_ranks;
        if (own == 0) continue;
        bytes = stw_plus(bytes, stw_times(own, ranks));
        files = stw_plus(files, stw_times(m->files, ranks));
        writers += ranks;
    }
    for (uint32_t n = 0; n < job->n_node_kinds; n++)
        staged = stw_max_u64(staged, plan->node_peaks[n]
                                         .phase[STW_PHASE_CHECKPOINT][STW_TIER_HOST]
                                         .components[STW_COMPONENT_CHECKPOINT_STAGING]);
    if (bytes == 0) return;
    stw_doc_line(s->out, s->format,
                 "Checkpoint: %s after one iteration of %" PRIu64 ", in %" PRIu64
                 " files of tensors written by %" PRIu64 " of %" PRIu32
                 " ranks; every element once. Copies on the host: at most %s per node.",
                 stw_word_gib(bytes).text, plan->run.checkpoint.every, files, writers, job->world,
                 stw_word_gib(staged).text);
    char metadata[320] = "";
    if (job->engine->save_metadata != NULL)
        job->engine->save_metadata(job, metadata, sizeof metadata);
    if (metadata[0] != '\0') stw_doc_line(s->out, s->format, "Metadata: %s.", metadata);
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

/* Stowage's own: rooms and rounds, and what comes to the rank that receives most. */
static void put_own_sync(const stw_section *s, const stw_movement *m) {
    const stw_job *job = s->plan->job;
    const stw_sync_plan *sync = NULL;
    if (stw_sync_plan_of(job, &sync, NULL) != STW_STATUS_OK) {
        s->out->failed = true;
        return;
    }
    const stw_sync_kind *most = &sync->kinds[0];
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_sync_kind *kind = &sync->kinds[k];
        const uint64_t comes = kind->total.near_received + kind->total.far_received;
        if (comes > most->total.near_received + most->total.far_received ||
            (comes == 0 && kind->total.placed > most->total.placed))
            most = kind;
    }
    const stw_sync_load *t = &most->total;
    stw_doc_line(s->out, s->format,
                 "Weight sync (%s%s): %" PRIu32
                 " rounds with %s of at most %s on a GPU; a rank of the "
                 "rollout takes %s, of which at most %s come from other ranks of its node and %s "
                 "from other nodes.",
                 m->executable ? "by " : "", stw_plan_movement_by(s->plan, m), sync->n_rounds,
                 sync->sets > 1 ? "two sets of buffers" : "buffers",
                 stw_word_size(stw_sync_room(&sync->trainer)).text, stw_word_gib(t->placed).text,
                 stw_word_gib(t->near_received).text, stw_word_gib(t->far_received).text);
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
