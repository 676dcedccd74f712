/* SPDX-License-Identifier: Apache-2.0 */
/* The roles of a job and their nodes. A role shares the nodes of another role (`with`) or has nodes
 * of its own. The trainer has the remaining nodes. Ranks are numbered from the trainer's on. Role 0
 * is the trainer. Read-only after stw_job_new; any thread. */
#ifndef STW_PLAN_JOB_ROLES_H
#define STW_PLAN_JOB_ROLES_H

#include "plan/spec/run_spec.h"

struct stw_job;
struct stw_program;

/** A figure of a role, for files: "weights_bytes". */
typedef struct stw_role_fact {
    const char *name;
    uint64_t value;
} stw_role_fact;
#define STW_MAX_ROLE_FACTS 8

/** The engine of a role: builds the movements of an inference engine, or of a model beside the
 * trainer's. Each is one constant table in engines/. */
typedef struct stw_role_engine {
    const char *name;
    unsigned kinds; /* a bit for each stw_role_kind that it serves */
    /** Compute the bytes that a role holds on each of its ranks, and store them in *figures (in the
     * job's pool). BAD_INPUT if sizes do not divide or the KV cache of one sequence does not
     * fit. */
    stw_status (*make)(const struct stw_job *job, uint32_t role, const void **figures,
                       stw_error *err);
    /** Append the role's movements to an empty program of a kind of rank on the role's nodes. */
    stw_status (*build)(const struct stw_job *job, uint32_t role, struct stw_program *program,
                        stw_error *err);
    /** Describe the role's memory in words, for reports. */
    void (*describe)(const struct stw_job *job, uint32_t role, char *out, size_t out_size);
    /** The same as figures of one rank.
     * @param out [STW_MAX_ROLE_FACTS]
     * @return number of figures */
    size_t (*facts)(const struct stw_job *job, uint32_t role, stw_role_fact *out);
} stw_role_engine;

/** The engines of roles, NULL at the end; the first one of a kind is its default. engines/
 * defines the list. */
extern const stw_role_engine *const stw_role_engines_built_in[];

typedef struct stw_job_role {
    const stw_role *spec; /* NULL: the trainer */
    const char *name;
    const stw_role_engine *engine; /* NULL: the trainer */
    uint32_t home;                 /* the role on whose nodes it runs: itself or another */
    uint32_t first_node, n_nodes;
    const void *figures; /* made by the engine */
    struct stw_job *own; /* the job of a model that uses a trainer engine; may be NULL */
} stw_job_role;

/** True if the role has nodes of its own. */
bool stw_role_is_alone(const stw_job_role *roles, uint32_t role);
const char *stw_role_kind_name(stw_role_kind kind);

/** Assign the cluster's nodes to the trainer and the roles.
 * @param out [1 + run->n_roles], in `pool` */
STW_MUST_USE stw_status stw_roles_place(const stw_run_spec *run, uint32_t nodes, stw_pool *pool,
                                        stw_job_role **out, stw_error *err);

#endif
