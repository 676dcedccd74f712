/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/comm/comm.h"

/* A variable's value, NULL where unset or empty. */
static const char *get(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static stw_status parse(const char *name, const char *text, uint32_t *out, stw_error *err) {
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > 0x7FFFFFFFul)
        return stw_fail(err, STW_STATUS_DEVICE, name, "found \"%.60s\", expected a whole number",
                        text);
    *out = (uint32_t)value;
    return STW_STATUS_OK;
}

/* The value of the first of several variables that is set; `otherwise` where none is. */
static stw_status number(const char *const *names, uint32_t otherwise, uint32_t *out,
                         stw_error *err) {
    for (; *names != NULL; names++)
        if (get(*names) != NULL) return parse(*names, get(*names), out, err);
    *out = otherwise;
    return STW_STATUS_OK;
}
#define NUMBER(otherwise, out, ...)                                                                \
    number((const char *const[]){__VA_ARGS__, NULL}, otherwise, out, err)

static stw_status required(const char *launcher, const char *name, uint32_t *out, stw_error *err) {
    if (get(name) == NULL)
        return stw_fail(err, STW_STATUS_DEVICE, name, "not set, although %s's other variables are",
                        launcher);
    return parse(name, get(name), out, err);
}

/* Where rank 0 can be reached, as far as the environment says. */
static stw_status read_master(stw_ranks *r, stw_error *err) {
    if (get("MASTER_ADDR") != NULL) snprintf(r->master, sizeof r->master, "%s", get("MASTER_ADDR"));
    stw_status status = NUMBER(29500, &r->master_port, "MASTER_PORT");
    if (status == STW_STATUS_OK && r->master_port > 65535)
        status = stw_fail(err, STW_STATUS_DEVICE, "MASTER_PORT", "found %u, expected a port",
                          r->master_port);
    return status;
}

static stw_status from_torchrun(stw_ranks *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    snprintf(r->launcher, sizeof r->launcher, "torchrun");
    STW_TRY(required("torchrun", "RANK", &r->rank, err));
    STW_TRY(required("torchrun", "WORLD_SIZE", &r->world, err));
    STW_TRY(required("torchrun", "LOCAL_RANK", &r->local_rank, err));
    STW_TRY(NUMBER(r->world, &r->local_world, "LOCAL_WORLD_SIZE"));
    uint32_t by_size = r->local_world > 0 ? r->rank / r->local_world : 0;
    STW_TRY(NUMBER(by_size, &r->node, "GROUP_RANK"));
    STW_TRY(read_master(r, err));
out:
    return status;
}

static stw_status from_open_mpi(stw_ranks *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    snprintf(r->launcher, sizeof r->launcher, "mpirun");
    STW_TRY(required("mpirun", "OMPI_COMM_WORLD_RANK", &r->rank, err));
    STW_TRY(required("mpirun", "OMPI_COMM_WORLD_SIZE", &r->world, err));
    STW_TRY(NUMBER(r->rank, &r->local_rank, "OMPI_COMM_WORLD_LOCAL_RANK"));
    STW_TRY(NUMBER(r->world, &r->local_world, "OMPI_COMM_WORLD_LOCAL_SIZE"));
    r->node = r->local_world > 0 ? r->rank / r->local_world : 0;
out:
    return status;
}

/* Entry `node` of a list like "2(x3),1": two tasks on each of three nodes, one on a fourth. */
static stw_status tasks_of_node(const char *list, uint32_t node, uint32_t *out, stw_error *err) {
    const char *p = list;
    while (*p != '\0') {
        char *end = NULL;
        unsigned long tasks = strtoul(p, &end, 10), times = 1;
        if (end == p) break;
        p = end;
        if (strncmp(p, "(x", 2) == 0) {
            times = strtoul(p + 2, &end, 10);
            if (*end != ')') break;
            p = end + 1;
        }
        if (node < times) {
            *out = (uint32_t)tasks;
            return STW_STATUS_OK;
        }
        node -= (uint32_t)times;
        if (*p == ',') p++;
    }
    return stw_fail(err, STW_STATUS_DEVICE, "SLURM_STEP_TASKS_PER_NODE",
                    "found \"%.60s\", expected tasks of every node", list);
}

/* First name of a list like "gpu[03-05,9],login". */
static void first_host(const char *list, char *out, size_t out_size) {
    size_t prefix = strcspn(list, "[,");
    size_t digits = list[prefix] == '[' ? strcspn(list + prefix + 1, "-,]") : 0;
    snprintf(out, out_size, "%.*s%.*s", (int)prefix, list, (int)digits,
             digits > 0 ? list + prefix + 1 : "");
}

static stw_status from_slurm(stw_ranks *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    snprintf(r->launcher, sizeof r->launcher, "slurm");
    STW_TRY(required("srun", "SLURM_PROCID", &r->rank, err));
    if (get("SLURM_STEP_NUM_TASKS") == NULL)
        STW_TRY(required("srun", "SLURM_NTASKS", &r->world, err));
    else
        STW_TRY(required("srun", "SLURM_STEP_NUM_TASKS", &r->world, err));
    STW_TRY(NUMBER(r->rank, &r->local_rank, "SLURM_LOCALID"));
    STW_TRY(NUMBER(0, &r->node, "SLURM_NODEID"));
    const char *tasks = get("SLURM_STEP_TASKS_PER_NODE");
    if (tasks == NULL) tasks = get("SLURM_TASKS_PER_NODE");
    r->local_world = r->world;
    if (tasks != NULL) STW_TRY(tasks_of_node(tasks, r->node, &r->local_world, err));
    const char *nodes = get("SLURM_STEP_NODELIST");
    if (nodes != NULL && r->local_world < r->world) first_host(nodes, r->master, sizeof r->master);
    STW_TRY(read_master(r, err));
out:
    return status;
}

/* In a batch script Slurm sets SLURM_PROCID=0 and SLURM_NTASKS for the one process that the script
 * is; only inside a step (srun) is there a step number. */
static bool in_slurm_step(void) {
    return get("SLURM_PROCID") != NULL &&
           (get("SLURM_STEP_ID") != NULL || get("SLURM_STEPID") != NULL ||
            get("SLURM_STEP_NUM_TASKS") != NULL || get("SLURM_JOB_ID") == NULL);
}

static stw_status check(const stw_ranks *r, stw_error *err) {
    if (r->world == 0 || r->rank >= r->world)
        return stw_fail(err, STW_STATUS_DEVICE, r->launcher,
                        "the environment says rank %u of %u, expected a rank below the world size",
                        r->rank, r->world);
    if (r->local_world == 0 || r->local_world > r->world || r->local_rank >= r->local_world)
        return stw_fail(err, STW_STATUS_DEVICE, r->launcher,
                        "the environment says local rank %u of %u on this node in a world of %u",
                        r->local_rank, r->local_world, r->world);
    return STW_STATUS_OK;
}

stw_status stw_ranks_from_environment(stw_ranks *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(out, 0, sizeof *out);
    /* mpirun inside a Slurm job hands Slurm's variables on, so Open MPI's own come first. */
    if (get("RANK") != NULL && get("WORLD_SIZE") != NULL) {
        status = from_torchrun(out, err);
    } else if (get("OMPI_COMM_WORLD_RANK") != NULL) {
        status = from_open_mpi(out, err);
    } else if (in_slurm_step()) {
        status = from_slurm(out, err);
    } else {
        snprintf(out->launcher, sizeof out->launcher, "alone");
        out->world = out->local_world = 1;
    }
    return status == STW_STATUS_OK ? check(out, err) : status;
}
