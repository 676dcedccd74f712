/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the transport and dispatches to it. Alone is a transport too: every sum and gather is of
 * one rank. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/comm/ops.h"
#include "backend/comm/remind.h"
#include "core/checked.h"

#define GROUP_PART_ALIGN 256u /* bytes of parts of a broadcast in a group: vectors are aligned */

struct stw_comm {
    const stw_comm_ops *ops;
    void *state;
    stw_ranks ranks;
    stw_comm_config config;
    bool watched;   /* a collective has succeeded: the others' pages were looked for */
    char about[96]; /* what the next collective is for; "": its kind alone */
    stw_comm_counts counts;
    void *mpi; /* carries NCCL's unique id, and keeps mpirun content till the end; or NULL */
};

/* ---- alone ---- */

static stw_status alone_open(const stw_comm_config *config, void **state, stw_error *err) {
    (void)config;
    (void)err;
    *state = NULL;
    return STW_STATUS_OK;
}
static void alone_close(void *state) { (void)state; }
static void alone_abort(void *state) { (void)state; }
static stw_status alone_sum(void *state, uint64_t *values, uint32_t n, stw_error *err) {
    (void)state;
    (void)values;
    (void)n;
    (void)err;
    return STW_STATUS_OK;
}
static stw_status alone_gather(void *state, const void *mine, void *out, uint32_t bytes,
                               stw_error *err) {
    (void)state;
    (void)err;
    memcpy(out, mine, bytes);
    return STW_STATUS_OK;
}
static stw_status alone_broadcast(void *state, stw_tier tier, uint64_t offset, uint64_t bytes,
                                  uint32_t root, stw_error *err) {
    (void)state;
    (void)tier;
    (void)offset;
    (void)bytes;
    (void)root;
    (void)err;
    return STW_STATUS_OK;
}
static stw_status alone_messages(void *state, stw_tier tier, const stw_comm_message *messages,
                                 uint32_t n, stw_error *err) {
    (void)state;
    (void)tier;
    if (n == 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "messages", "rank %u is not there", messages[0].peer);
}
static stw_status alone_barrier(void *state, stw_error *err) {
    (void)state;
    (void)err;
    return STW_STATUS_OK;
}
static stw_status alone_wait(void *state, const char *what, stw_error *err) {
    (void)state;
    (void)what;
    (void)err;
    return STW_STATUS_OK;
}

static const stw_comm_ops alone_ops = {
    .name = "alone",
    .open = alone_open,
    .close = alone_close,
    .abort = alone_abort,
    .sum_u64 = alone_sum,
    .sum_counters = alone_sum,
    .gather = alone_gather,
    .broadcast = alone_broadcast,
    .messages = alone_messages,
    .barrier = alone_barrier,
    .wait = alone_wait,
};

/* ---- choosing ---- */

static stw_status choose(const stw_ranks *ranks, const stw_backend *backend,
                         const stw_comm_ops **out, stw_error *err) {
    *out = &alone_ops;
    if (ranks->world == 1) return STW_STATUS_OK;
    if (backend->gpu) {
        *out = stw_comm_nccl_ops();
        if (*out == NULL)
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "NCCL",
                            "%u ranks with the %s backend need NCCL, which this program was built "
                            "without",
                            ranks->world, backend->name);
        return STW_STATUS_OK;
    }
    if (strcmp(ranks->launcher, "torchrun") == 0)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "torchrun",
                        "%u ranks of the %s backend speak MPI, which torchrun does not offer: "
                        "start them with mpirun or srun",
                        ranks->world, backend->name);
    *out = stw_comm_mpi_ops();
    return STW_STATUS_OK;
}

stw_status stw_comm_open(const stw_ranks *ranks, const stw_backend *backend, double timeout_s,
                         stw_comm **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_comm_ops *mpi = stw_comm_mpi_ops(), *ops = NULL;
    stw_remind *remind = NULL;
    *out = NULL;
    stw_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "comm", "out of memory");
    comm->ranks = *ranks;
    comm->config =
        (stw_comm_config){.ranks = &comm->ranks, .backend = backend, .timeout_s = timeout_s};
    STW_TRY(choose(ranks, backend, &ops, err));
    if (ranks->world > 1) comm->config.watch = stw_watch_open(ranks);
    stw_watch_begin(comm->config.watch, "joining");
    remind = stw_remind_begin(comm->config.watch, timeout_s);
    /* Only mpirun: under srun MPI may not be able to join, and then ends the process. */
    if (backend->gpu && ranks->world > 1 && strcmp(ranks->launcher, "mpirun") == 0 &&
        stw_comm_mpi_found()) {
        STW_TRY(mpi->open(&comm->config, &comm->mpi, err));
        comm->config.share = stw_comm_mpi_share;
        comm->config.share_state = comm->mpi;
    }
    if (ranks->world == 1 || !backend->gpu) STW_TRY(ops->open(&comm->config, &comm->state, err));
    comm->ops = ops;
    stw_watch_end(comm->config.watch);
out:
    stw_remind_end(remind);
    if (status == STW_STATUS_OK) {
        *out = comm;
    } else {
        if (err != NULL && err->rank < 0 && ranks->world > 1) err->rank = (int)ranks->rank;
        if (comm->mpi != NULL) mpi->abort(comm->mpi);
        stw_watch_give_up(comm->config.watch, NULL);
        stw_comm_close(comm);
    }
    return status;
}

bool stw_comm_meets(const stw_comm *comm) {
    return comm->mpi != NULL || comm->ranks.world == 1 || !comm->config.backend->gpu;
}

void stw_comm_close(stw_comm *comm) {
    if (comm == NULL) return;
    stw_watch_linger(comm->config.watch);
    if (comm->ops != NULL && comm->state != NULL) comm->ops->close(comm->state);
    if (comm->mpi != NULL) stw_comm_mpi_ops()->close(comm->mpi);
    stw_watch_close(comm->config.watch);
    free(comm);
}

void stw_comm_fail(stw_comm *comm, const stw_error *err) {
    char why[400];
    if (comm == NULL || comm->config.watch == NULL || err == NULL) return;
    snprintf(why, sizeof why, "%.120s: %.270s", err->where, err->text);
    stw_watch_give_up(comm->config.watch, why);
}

void stw_comm_abort(stw_comm *comm) {
    if (comm == NULL) return;
    stw_watch_give_up(comm->config.watch, NULL);
    if (comm->state != NULL) comm->ops->abort(comm->state);
    if (comm->mpi != NULL) stw_comm_mpi_ops()->abort(comm->mpi);
}

/* ---- dispatch ---- */

const char *stw_comm_name(const stw_comm *comm) { return comm->ops->name; }

/* Show the others of this node what this rank waits in. */
static void begin(stw_comm *comm, const char *kind) {
    if (comm->config.watch == NULL) return;
    stw_watch_begin(comm->config.watch, comm->about[0] != '\0' ? comm->about : kind);
    comm->about[0] = '\0';
}

/* Errors say which rank met them. */
static stw_status end(stw_comm *comm, stw_status status, stw_error *err) {
    stw_watch_end(comm->config.watch);
    if (status == STW_STATUS_OK && !comm->watched) {
        comm->watched = true;
        stw_watch_find(comm->config.watch);
    }
    if (status != STW_STATUS_OK && err != NULL && err->rank < 0) err->rank = (int)comm->ranks.rank;
    return status;
}

stw_status stw_comm_attach(stw_comm *comm, stw_device *device, uint64_t scratch_offset,
                           stw_error *err) {
    comm->config.device = device;
    comm->config.scratch_offset = scratch_offset;
    if (comm->ranks.world == 1 || !comm->config.backend->gpu) return STW_STATUS_OK;
    begin(comm, "joining with the device");
    stw_remind *remind = stw_remind_begin(comm->config.watch, comm->config.timeout_s);
    stw_status status = comm->ops->open(&comm->config, &comm->state, err);
    stw_remind_end(remind);
    return end(comm, status, err);
}

void stw_comm_about(stw_comm *comm, const char *about) {
    snprintf(comm->about, sizeof comm->about, "%s", about);
}

stw_comm_counts stw_comm_counted(const stw_comm *comm) { return comm->counts; }

/* A collective of the world. */
static void begin_all(stw_comm *comm, const char *kind) {
    comm->counts.collectives++;
    begin(comm, kind);
}

stw_status stw_comm_sum_u64(stw_comm *comm, uint64_t *values, uint32_t n, stw_error *err) {
    begin_all(comm, "sum");
    return end(comm, comm->ops->sum_u64(comm->state, values, n, err), err);
}

stw_status stw_comm_sum_counters(stw_comm *comm, uint64_t *counters, uint32_t n, stw_error *err) {
    begin_all(comm, "sum of squared gradients");
    return end(comm, comm->ops->sum_counters(comm->state, counters, n, err), err);
}

stw_status stw_comm_gather(stw_comm *comm, const void *mine, void *out, uint32_t bytes,
                           stw_error *err) {
    begin_all(comm, "gather");
    return end(comm, comm->ops->gather(comm->state, mine, out, bytes, err), err);
}

stw_status stw_comm_exchange(stw_comm *comm, const void *mine, void *out, uint32_t bytes,
                             stw_error *err) {
    if (comm->mpi == NULL) return stw_comm_gather(comm, mine, out, bytes, err);
    begin_all(comm, "gather");
    return end(comm, stw_comm_mpi_ops()->gather(comm->mpi, mine, out, bytes, err), err);
}

stw_status stw_comm_broadcast(stw_comm *comm, stw_tier tier, uint64_t offset, uint64_t bytes,
                              uint32_t root, stw_error *err) {
    begin_all(comm, "broadcast");
    return end(comm, comm->ops->broadcast(comm->state, tier, offset, bytes, root, err), err);
}

stw_status stw_comm_barrier(stw_comm *comm, stw_error *err) {
    begin_all(comm, "barrier");
    return end(comm, comm->ops->barrier(comm->state, err), err);
}

/* ---- messages and groups ---- */

stw_status stw_comm_messages(stw_comm *comm, stw_tier tier, const stw_comm_message *messages,
                             uint32_t n, stw_error *err) {
    stw_comm_counts *counts = &comm->counts;
    for (uint32_t i = 0; i < n; i++) {
        const stw_comm_message *m = &messages[i];
        if (m->peer >= comm->ranks.world || m->peer == comm->ranks.rank)
            return stw_fail(err, STW_STATUS_BUG, "messages", "from rank %u of %u to rank %u",
                            comm->ranks.rank, comm->ranks.world, m->peer);
        *(m->sends ? &counts->sent : &counts->received) += 1;
        *(m->sends ? &counts->sent_bytes : &counts->received_bytes) += m->bytes;
    }
    counts->rounds++;
    begin(comm, "messages");
    return end(comm, comm->ops->messages(comm->state, tier, messages, n, err), err);
}

/* One round in a group, of bytes that are cut in a part for each member. */
typedef struct round_of_group {
    const stw_comm_group *group;
    uint64_t offset, bytes, part;
    uint32_t root; /* member that has all bytes from the beginning; UINT32_MAX: none */
    bool deals;    /* the root gives each member its part; else members give theirs to all that lack
                    * it */
} round_of_group;

static void part_of(const round_of_group *r, uint32_t member, uint64_t *offset, uint64_t *bytes) {
    const uint64_t first = stw_min_u64(r->bytes, stw_times(member, r->part));
    *offset = r->offset + first;
    *bytes = stw_min_u64(r->part, r->bytes - first);
}

static uint32_t member_of(const stw_comm_group *group, uint32_t rank) {
    for (uint32_t i = 0; i < group->n; i++)
        if (group->ranks[i] == rank) return i;
    return UINT32_MAX;
}

static stw_status run_round(stw_comm *comm, const round_of_group *r, stw_tier tier,
                            stw_error *err) {
    const uint32_t n = r->group->n, me = member_of(r->group, comm->ranks.rank);
    stw_comm_message *messages = calloc(2 * (size_t)n + 1, sizeof *messages);
    uint32_t used = 0;
    if (messages == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "comm", "out of memory");
    for (uint32_t i = 0; i < 2 * n; i++) {
        const uint32_t peer = i / 2, from = i % 2 == 0 ? me : peer, to = i % 2 == 0 ? peer : me;
        stw_comm_message m = {.peer = r->group->ranks[peer], .sends = from == me};
        if (peer == me || (r->deals ? from != r->root : to == r->root)) continue;
        part_of(r, r->deals ? to : from, &m.offset, &m.bytes);
        if (m.bytes > 0) messages[used++] = m;
    }
    const stw_status status = stw_comm_messages(comm, tier, messages, used, err);
    free(messages);
    return status;
}

static stw_status check_group(const stw_comm *comm, const stw_comm_group *group, uint32_t root,
                              stw_error *err) {
    if (member_of(group, comm->ranks.rank) != UINT32_MAX && member_of(group, root) != UINT32_MAX)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "comm", "rank %u or root %u is not in the group",
                    comm->ranks.rank, root);
}

stw_status stw_comm_group_broadcast(stw_comm *comm, const stw_comm_group *group, stw_tier tier,
                                    uint64_t offset, uint64_t bytes, uint32_t root,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char about[sizeof comm->about];
    STW_TRY(check_group(comm, group, root, err));
    const uint64_t part = stw_round_up_u64(stw_div_up_u64(bytes, group->n), GROUP_PART_ALIGN);
    round_of_group r = {group, offset, bytes, part, member_of(group, root), true};
    memcpy(about, comm->about, sizeof about);
    STW_TRY(run_round(comm, &r, tier, err));
    stw_comm_about(comm, about);
    r.deals = false;
    STW_TRY(run_round(comm, &r, tier, err));
out:
    return status;
}

stw_status stw_comm_group_gather(stw_comm *comm, const stw_comm_group *group, stw_tier tier,
                                 uint64_t offset, uint64_t bytes, stw_error *err) {
    const round_of_group r = {group, offset, stw_times(bytes, group->n), bytes, UINT32_MAX, false};
    const stw_status status = check_group(comm, group, comm->ranks.rank, err);
    return status == STW_STATUS_OK ? run_round(comm, &r, tier, err) : status;
}

stw_status stw_comm_wait(stw_comm *comm, const char *what, stw_error *err) {
    stw_status status = comm->ops->wait(comm->state, what, err);
    if (status != STW_STATUS_OK && err != NULL && err->rank < 0) err->rank = (int)comm->ranks.rank;
    return status;
}
