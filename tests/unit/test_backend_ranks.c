/* SPDX-License-Identifier: Apache-2.0 */
/* Who am I, as the launchers' environments say it, and which transport follows from that. */
#define _DEFAULT_SOURCE /* setenv */
#include <stdlib.h>

#include "backend/comm/ops.h"
#include "tests/unit/testing.h"

static const char *const known[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "GROUP_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_STEPID",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_NODEID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_TASKS_PER_NODE",
                                    "SLURM_STEP_NODELIST",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE"};

/* Exactly these variables: names and values in turn, NULL at the end. */
static void environment(const char *const *pairs) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) unsetenv(known[i]);
    for (; *pairs != NULL; pairs += 2) setenv(pairs[0], pairs[1], 1);
}
#define ENVIRONMENT(...) environment((const char *const[]){__VA_ARGS__, NULL})

static void expect(const char *launcher, uint32_t rank, uint32_t world, uint32_t local_rank,
                   uint32_t local_world, uint32_t node) {
    stw_ranks r;
    CHECK_OK(stw_ranks_from_environment(&r, err));
    CU_ASSERT_STRING_EQUAL(r.launcher, launcher);
    CU_ASSERT_EQUAL(r.rank, rank);
    CU_ASSERT_EQUAL(r.world, world);
    CU_ASSERT_EQUAL(r.local_rank, local_rank);
    CU_ASSERT_EQUAL(r.local_world, local_world);
    CU_ASSERT_EQUAL(r.node, node);
}

static void alone(void) {
    ENVIRONMENT(NULL);
    expect("alone", 0, 1, 0, 1, 0);
    ENVIRONMENT("RANK", "3"); /* without a world: some other program's variable */
    expect("alone", 0, 1, 0, 1, 0);
}

static void torchrun(void) {
    stw_ranks r;
    ENVIRONMENT("RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "4",
                "GROUP_RANK", "1", "MASTER_ADDR", "node7", "MASTER_PORT", "29511");
    expect("torchrun", 5, 8, 1, 4, 1);
    CHECK_OK(stw_ranks_from_environment(&r, err));
    CU_ASSERT_STRING_EQUAL(r.master, "node7");
    CU_ASSERT_EQUAL(r.master_port, 29511);
    ENVIRONMENT("RANK", "8", "WORLD_SIZE", "8", "LOCAL_RANK", "0");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "rank 8 of 8");
    ENVIRONMENT("RANK", "0", "WORLD_SIZE", "8");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "LOCAL_RANK");
    ENVIRONMENT("RANK", "-1", "WORLD_SIZE", "8", "LOCAL_RANK", "0");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "\"-1\"");
    ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2x", "LOCAL_RANK", "0");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "2x");
    ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "0", "MASTER_PORT", "99999");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "99999");
    ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "4");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "world of 2");
}

static void open_mpi(void) {
    stw_ranks r;
    ENVIRONMENT("OMPI_COMM_WORLD_RANK", "6", "OMPI_COMM_WORLD_SIZE", "8",
                "OMPI_COMM_WORLD_LOCAL_RANK", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    expect("mpirun", 6, 8, 2, 4, 1);
    /* Inside a Slurm batch script: Slurm's variables are those of the script's one task. */
    ENVIRONMENT("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "SLURM_JOB_ID", "1",
                "SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0");
    expect("mpirun", 1, 2, 1, 2, 0);
    ENVIRONMENT("OMPI_COMM_WORLD_RANK", "1");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "OMPI_COMM_WORLD_SIZE");
}

static void slurm(void) {
    stw_ranks r;
    ENVIRONMENT("SLURM_JOB_ID", "9", "SLURM_STEP_ID", "0", "SLURM_PROCID", "5",
                "SLURM_STEP_NUM_TASKS", "7", "SLURM_LOCALID", "1", "SLURM_NODEID", "2",
                "SLURM_STEP_TASKS_PER_NODE", "2(x3),1", "SLURM_STEP_NODELIST", "gpu[03-05,9]");
    expect("slurm", 5, 7, 1, 2, 2);
    CHECK_OK(stw_ranks_from_environment(&r, err));
    CU_ASSERT_STRING_EQUAL(r.master, "gpu03");
    ENVIRONMENT("SLURM_PROCID", "1", "SLURM_NTASKS", "4", "SLURM_LOCALID", "1");
    expect("slurm", 1, 4, 1, 4, 0);
    ENVIRONMENT("SLURM_JOB_ID", "9", "SLURM_PROCID", "0", "SLURM_NTASKS", "16");
    expect("alone", 0, 1, 0, 1, 0); /* the batch script itself */
    ENVIRONMENT("SLURM_STEP_ID", "0", "SLURM_PROCID", "6", "SLURM_STEP_NUM_TASKS", "7",
                "SLURM_NODEID", "9", "SLURM_STEP_TASKS_PER_NODE", "2(x3),1");
    CHECK_FAILS(stw_ranks_from_environment(&r, err), STW_STATUS_DEVICE, "2(x3),1");
}

static void transports(void) {
    stw_ranks r = {.world = 1, .local_world = 1, .launcher = "alone"};
    stw_comm *comm = NULL;
    uint64_t value = 3, all = 0;
    CHECK_OK(stw_comm_open(&r, &stw_backend_host, 1.0, &comm, err));
    CU_ASSERT_STRING_EQUAL(stw_comm_name(comm), "alone");
    CHECK_OK(stw_comm_sum_u64(comm, &value, 1, err));
    CHECK_OK(stw_comm_gather(comm, &value, &all, sizeof value, err));
    CU_ASSERT_EQUAL(all, 3);
    CHECK_OK(stw_comm_barrier(comm, err));
    CHECK_OK(stw_comm_wait(comm, "nothing", err));
    stw_comm_close(comm);
    r = (stw_ranks){.world = 2, .local_world = 2, .launcher = "torchrun"};
    CHECK_FAILS(stw_comm_open(&r, &stw_backend_host, 1.0, &comm, err), STW_STATUS_NOT_BUILT_IN,
                "torchrun");
    r = (stw_ranks){.world = 2, .local_world = 2, .launcher = "mpirun"};
    setenv("STOWAGE_MPI_PLUGIN", "no-such-plugin.so", 1);
    CHECK_FAILS(stw_comm_open(&r, &stw_backend_host, 1.0, &comm, err), STW_STATUS_NOT_BUILT_IN,
                "no-such-plugin.so");
    CU_ASSERT_FALSE(stw_comm_mpi_found());
    CU_ASSERT_PTR_NULL(comm);
    stw_comm_close(NULL);
    stw_comm_abort(NULL);
}

STW_TEST_MAIN("backend ranks", {"alone", alone}, {"torchrun", torchrun}, {"Open MPI", open_mpi},
              {"Slurm", slurm}, {"transports", transports})
