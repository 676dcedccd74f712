/* SPDX-License-Identifier: Apache-2.0 */
/* Does a plan fit? The verdict follows from the peaks of the walk, the replay of torch's allocator
 * and the limits of the cluster:
 *
 *     does_not_fit   a peak is over a limit
 *     unknown        no peak is, but the program has no forward and backward: the architecture of
 *                    the model is unknown, so the peaks are those of the state alone
 *     at_risk        no peak is, but a run may be over a limit all the same: stw_plan_risks says
 *                    by what
 *     fits           all else
 *
 * Pure; any thread may call. */
#ifndef STW_PLAN_VERDICT_H
#define STW_PLAN_VERDICT_H

#include "plan/files/plan.h"

typedef enum stw_risk_kind {
    /* all bytes fit, but torch's allocator has split the GPU's memory up and finds no room for a
     * tensor of `bytes` */
    STW_RISK_TORN,
    /* what it reserves reaches the limit: it gives cached memory back and tries again */
    STW_RISK_RETRIES,
    /* without expandable segments, measured runs of the engine reserved more than was predicted by
     * more than is left */
    STW_RISK_RESERVED,
    /* measured runs of the engine exceeded what was predicted by more than is left */
    STW_RISK_MARGIN,
    STW_RISK_FULL, /* more than STW_RISK_SHARE of the limit is used */
    STW_RISK_ALARM /* more than STW_HOST_ALARM of the host's memory is used */
} stw_risk_kind;

typedef struct stw_risk {
    stw_risk_kind kind;
    const char *resource; /* "gpu memory", "host memory", "page-locked memory" or "nvme" */
    stw_phase phase;
    uint64_t bytes;      /* predicted; RESERVED: with what torch reserves */
    double margin;       /* MARGIN, RESERVED: by so large a share measured bytes exceeded predicted
                          * ones; of torch's allocator on a GPU, of all on a host */
    uint64_t most_bytes; /* that a run may need by it */
    uint64_t limit_bytes;
} stw_risk;

#define STW_MAX_RISKS 8
#define STW_RISK_SHARE 0.98
/** Ray's memory monitor stops jobs at this share of a node's memory unless told otherwise
 * (RAY_memory_usage_threshold); other schedulers are as strict. Where node.host.kill_share says at
 * which one, that is part of the limit. */
#define STW_HOST_ALARM 0.95

/** Why a run may be over a limit though the plan is not: the worst phase of each kind and resource,
 * the most telling one first. @param home a role with nodes of its own, 0: the trainer
 * @param out [STW_MAX_RISKS] @return how many; 0 too where a peak is over a limit */
uint32_t stw_plan_risks(const stw_plan *plan, uint32_t home, stw_risk *out);
/** Does an allocator find no room for a tensor although all bytes fit? plan->replayed says where.
 */
bool stw_plan_is_torn(const stw_plan *plan);
/** Are peaks those of the state alone? */
bool stw_plan_is_partial(const stw_plan *plan);

/** Would the plan's GPUs be without risk with expandable segments? It is replayed with them. */
bool stw_plan_segments_help(const stw_plan *plan);

/** Does a run ask for plans that may be at risk: by placement.accept, or a placement.gpu_fill above
 * what a plan that fits fills? */
bool stw_verdict_accepts_risk(const stw_run_spec *run);

/** Set plan->verdict. */
void stw_plan_judge(stw_plan *plan);
/** The verdict on the nodes of a role alone. @param home a role with nodes of its own, 0: the
 * trainer */
stw_verdict stw_plan_verdict_of(const stw_plan *plan, uint32_t home);
/** The verdict on the bytes that are known: never UNKNOWN. */
stw_verdict stw_plan_bytes_verdict(const stw_plan *plan);
/** The same without what expandable segments avoid, which cost nothing (RETRIES, RESERVED): for
 * searches of changes that cost something. */
stw_verdict stw_plan_trial_verdict(const stw_plan *plan);
/** The most bytes of a resource on a node with which a plan fits by that resource; of the GPU by
 * what is allocated alone. STW_UNLIMITED: any. @param page_locked of the host's */
uint64_t stw_plan_safe_bytes(const stw_plan *plan, stw_tier tier, bool page_locked);
/** By how many bytes the trainer's GPUs are over what a plan that fits may hold: of reserved bytes
 * with their margin, of allocated bytes with theirs, of the whole GPU. The allocator is replayed as
 * on a GPU without a limit, so that it is known by how much a limit is missed: plan->replayed and
 * plan->shown are then no more those of the plan. @param plan derived, with or without a replay
 * @param bytes out, 0: nothing of a GPU puts it at risk */
STW_MUST_USE stw_status stw_plan_gpu_excess(stw_plan *plan, uint64_t *bytes, stw_error *err);
/** Those of the plan's engine; zeros: none. */
stw_margins stw_plan_margins(const stw_plan *plan);

/** The status with which a command that made or simulated the plan ends: OK, AT_RISK (also where a
 * part is unknown) or NOTHING_FITS. */
stw_status stw_verdict_status(stw_verdict verdict);

#endif
