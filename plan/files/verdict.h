/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict: whether a plan fits. It follows from the peaks of the walk, the replay of torch's
 * allocator and the limits of the cluster:
 *
 *     does_not_fit   a peak is over a limit
 *     unknown        no peak is over a limit, but the program has no forward and backward, because
 *                    the architecture of the model is unknown: the peaks include only the state
 *     at_risk        no peak is over a limit, but a run may still exceed one: stw_plan_risks lists
 *                    the reasons
 *     fits           otherwise
 *
 * Pure; any thread may call. */
#ifndef STW_PLAN_VERDICT_H
#define STW_PLAN_VERDICT_H

#include "plan/files/plan.h"

typedef enum stw_risk_kind {
    /* all bytes fit, but torch's allocator has fragmented the GPU's memory and has no room for a
     * tensor of `bytes` */
    STW_RISK_TORN,
    /* its reserved bytes reach the limit, so that it releases cached memory and retries */
    STW_RISK_RETRIES,
    /* without expandable segments: the excess of reserved bytes in measured runs of the engine is
     * larger than the bytes left */
    STW_RISK_RESERVED,
    /* the excess over predicted bytes in measured runs of the engine is larger than the bytes
     * left */
    STW_RISK_MARGIN,
    STW_RISK_FULL, /* more than STW_RISK_SHARE of the limit is used */
    STW_RISK_ALARM /* more than STW_HOST_ALARM of the host's memory is used */
} stw_risk_kind;

typedef struct stw_risk {
    stw_risk_kind kind;
    const char *resource; /* "gpu memory", "host memory", "page-locked memory" or "nvme" */
    stw_phase phase;
    uint64_t bytes;      /* predicted; RESERVED: reserved bytes included */
    double margin;       /* MARGIN, RESERVED: measured excess as a share of predicted bytes: of
                            torch's allocator on a GPU, of all bytes on a host */
    uint64_t most_bytes; /* bytes that a run may need with this margin */
    uint64_t limit_bytes;
} stw_risk;

#define STW_MAX_RISKS 8
#define STW_RISK_SHARE 0.98
/** Ray's memory monitor stops jobs at this share of a node's memory by default
 * (RAY_memory_usage_threshold); other schedulers are similar. If node.host.kill_share is set, the
 * limit includes it. */
#define STW_HOST_ALARM 0.95

/** Returns the bytes by which a phase's peak exceeds a limit; 0 if it does not.
 * @param resource "gpu memory", "host memory", "page-locked memory" or "nvme" */
uint64_t stw_plan_over_bytes(const stw_plan *plan, const char *resource, stw_phase phase);

/** List the reasons why a run may exceed a limit although the plan does not: the worst phase of
 * each kind and resource, the most important first.
 * @param home a role with nodes of its own, 0: the trainer
 * @param out [STW_MAX_RISKS]
 * @return number of risks; also 0 if a peak is over a limit */
uint32_t stw_plan_risks(const stw_plan *plan, uint32_t home, stw_risk *out);
/** True if an allocator has no room for a tensor although all bytes fit; see plan->replayed. */
bool stw_plan_is_torn(const stw_plan *plan);
/** True if the peaks include only the state. */
bool stw_plan_is_partial(const stw_plan *plan);

/** True if a replay with expandable segments shows no risk on the plan's GPUs. */
bool stw_plan_segments_help(const stw_plan *plan);

/** True if the run accepts plans at risk: by placement.accept, or by a placement.gpu_fill above the
 * share that a plan that fits can use. */
bool stw_verdict_accepts_risk(const stw_run_spec *run);

/** Set plan->verdict. */
void stw_plan_judge(stw_plan *plan);
/** Returns the verdict on the nodes of one role.
 * @param home a role with nodes of its own, 0: the trainer */
stw_verdict stw_plan_verdict_of(const stw_plan *plan, uint32_t home);
/** Returns the verdict on the known bytes: never UNKNOWN. */
stw_verdict stw_plan_bytes_verdict(const stw_plan *plan);
/** The same without the risks that expandable segments avoid at no cost (RETRIES, RESERVED): for
 * searches of changes with a cost. */
stw_verdict stw_plan_trial_verdict(const stw_plan *plan);
/** Returns the most bytes of a resource that a plan may use and still fit without risk; for the
 * GPU, by allocated bytes only. STW_UNLIMITED: no limit.
 * @param page_locked page-locked host memory, not all of it */
uint64_t stw_plan_safe_bytes(const stw_plan *plan, stw_tier tier, bool page_locked);
/** Compute by how many bytes the trainer's GPUs exceed what a plan without risk may hold: the
 * largest excess of reserved bytes with their margin, allocated bytes with theirs, and the whole
 * GPU. The allocator is replayed without a limit, to measure the excess; plan->replayed and
 * plan->shown are overwritten with that replay.
 * @param plan derived, with or without a replay
 * @param bytes out, 0: no risk from the GPUs */
STW_MUST_USE stw_status stw_plan_gpu_excess(stw_plan *plan, uint64_t *bytes, stw_error *err);
/** Returns the margins of the plan's engine; zeros: none. */
stw_margins stw_plan_margins(const stw_plan *plan);

/** Returns the exit status of a command that made or simulated the plan: OK, AT_RISK (also for
 * UNKNOWN) or NOTHING_FITS. */
stw_status stw_verdict_status(stw_verdict verdict);

#endif
