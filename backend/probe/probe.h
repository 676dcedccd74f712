/* SPDX-License-Identifier: Apache-2.0 */
/* Describe this machine as a cluster of one node: what it has, and, where asked, what it does.
 * Without a GPU (or without CUDA in the program) `gpus` is 0 and gpu.memory is a quarter of the
 * usable host memory, in which the host backend plays one rank's GPU; host.limit is what remains.
 *
 * Rates are what lasts: medians of several runs over memory far larger than the caches, at most an
 * eighth of the usable host memory in all. Raw values go into samples. What a plan can do without
 * and could not be measured is a warning and keeps its default.
 *
 * With several GPUs a calibration starts one process per GPU (fork), as a run does, to see what
 * NCCL takes and does: call it before this process uses CUDA or starts threads.
 *
 * Known gaps: matrix products and the links between nodes are taken from a table; all GPUs of a
 * node are taken to be alike, and what one GPU does alone is measured on the first (kernels that
 * work in host memory too: never on all GPUs at once); one process drives all GPUs' copies, where a
 * run has one each; a disk that slows down after minutes of writing is not written for minutes. */
#ifndef STW_BACKEND_PROBE_H
#define STW_BACKEND_PROBE_H

#include "backend/host/cpus.h"
#include "backend/host/pool.h"
#include "backend/process.h"
#include "plan/spec/cluster.h"
#include "plan/spec/samples.h"

typedef enum stw_probe_depth {
    STW_PROBE_SIZES, /* measure nothing: rates are those of machines of this kind where the GPU is
                        known, else the defaults; about a second */
    STW_PROBE_QUICK, /* under 20 s */
    STW_PROBE_FULL   /* under 3 minutes, 90 s more where python has torch */
} stw_probe_depth;

typedef struct stw_probe_options {
    stw_probe_depth depth;
    const char *nvme_folder; /* of the disk to look at; NULL: $TMPDIR, else /tmp */
    const char *data_folder; /* share/stowage, which has the script for torch; NULL: none */
} stw_probe_options;

/** Warns of limits that are in the way (stw_limits_warn). With STOWAGE_PROBE_BYTES=<size> in the
 * environment no buffer and no file is larger and every measurement is short: for tests, the
 * figures mean little.
 * @param samples raw values are appended; NULL: not kept
 * @return DEVICE where a GPU does not work */
STW_MUST_USE stw_status stw_machine_probe(const stw_probe_options *options, stw_cluster *out,
                                          stw_samples *samples, stw_error *err);

/* ---- what every part of a calibration uses (sampling.c), backend/cuda too ---- */

/** For the progress line: what takes its share of the time. */
typedef enum stw_probe_part {
    STW_PROBE_PART_NCCL,
    STW_PROBE_PART_CONTEXT,
    STW_PROBE_PART_PAGE_LOCK,
    STW_PROBE_PART_LINKS,
    STW_PROBE_PART_GPU_WORK,
    STW_PROBE_PART_TOGETHER,
    STW_PROBE_PART_SIZES,
    STW_PROBE_PART_CPU,
    STW_PROBE_PART_FILES,
    STW_PROBE_PART_DISK,
    STW_PROBE_PART_TORCH,
    STW_N_PROBE_PARTS
} stw_probe_part;

/** A calibration under way. */
typedef struct stw_probe {
    stw_probe_depth depth;
    const char *nvme_folder;
    uint64_t room_bytes; /* of host memory, all buffers that exist at one time together */
    uint64_t most_bytes; /* of one buffer or file */
    double time_scale;   /* of every measurement's seconds */
    double start_s;
    uint32_t gpus; /* 0 until they are counted */
    stw_samples *samples;
} stw_probe;

/** Draw the progress line. @param share of the part that is done, 0 to 1 */
void stw_probe_progress(const stw_probe *probe, stw_probe_part part, double share,
                        const char *what);
/** One of two values, by depth. */
static inline double stw_probe_pick(const stw_probe *probe, double quick, double full) {
    return probe->depth == STW_PROBE_FULL ? full : quick;
}
/** Seconds of a measurement, by depth, shorter in tests. */
double stw_probe_seconds(const stw_probe *probe, double quick, double full);
/** Seconds of a measurement that gains by lasting: what is left of the time of this depth, within
 * bounds; shorter in tests. */
double stw_probe_seconds_left(const stw_probe *probe, double least, double most);
/** Is there still time for what no plan needs? Slow machines give fewer samples, not more time. */
bool stw_probe_has_time(const stw_probe *probe);
/** The value as three decimal digits say it. */
double stw_probe_three_digits(double value);
/** Keep the sample. @return its median, in three digits: what follows differs from run to run */
double stw_probe_keep(const stw_probe *probe, const stw_sample *sample);
/** The same for a rate that plans count on: warns where its values do not agree. */
double stw_probe_keep_rate(const stw_probe *probe, const stw_sample *sample);

/* ---- the parts ---- */

/** Fill everything that concerns GPUs and their links and, measuring, host.dma* and host.bandwidth
 * (CPU and GPUs together). *found is false and `out` untouched where there is no GPU. backend/cuda
 * defines it; a weak one that finds nothing stands in for it. */
STW_MUST_USE stw_status stw_probe_gpus(stw_probe *probe, stw_cluster *out, bool *found,
                                       stw_error *err);
/** The CPU's rates: cpu_adamw, cpu_norm, and host.bandwidth where nothing measured it yet. */
void stw_probe_host(const stw_probe *probe, stw_cluster *out);
/** host.file_read*: page-cached files, read as a load reads them. */
void stw_probe_files(const stw_probe *probe, stw_cluster *out);
/** Size and rates of the disk behind the folder; capacity 0 where that is memory. */
void stw_probe_disk(const stw_probe *probe, stw_cluster *out);
/** torch.*, host.call and pcie.pageable where python has torch, at full depth; else a message.
 * @param path of the script */
void stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out);
/** The capacity alone. */
uint64_t stw_probe_disk_capacity(const char *folder);

/* ---- the CPU's work: one team of threads per NUMA node or rank, on memory of its own there ----
 */

#define STW_PROBE_MOST_TEAMS 16

typedef struct stw_probe_team {
    stw_cpus cpus;
    stw_threads *threads;
    float *memory; /* arrays of `params`: parameters, gradients, two moments; see
                      stw_probe_array */
} stw_probe_team;

/** Slots of a ring of CPU buckets: each has parameters, then gradients of a bucket. */
#define STW_PROBE_RING_SLOTS 3

/** A ring outside a team's memory, whose buckets come and go while the team works on others. Called
 * on the team's thread. */
typedef struct stw_probe_ring {
    void *user;
    float *(*begin)(void *user, uint32_t team, uint32_t slot); /* once its bucket is there */
    void (*end)(void *user, uint32_t team, uint32_t slot);     /* it may go */
} stw_probe_ring;

typedef struct stw_probe_teams {
    uint32_t n;
    uint32_t ranks;             /* that the teams are; 0: they are NUMA nodes of one process */
    uint64_t params;            /* of each team */
    uint64_t bucket;            /* of these, of a ring's slot; 0: no ring is measured */
    const stw_probe_ring *ring; /* NULL: params and grads of a team's memory are the slots */
    stw_probe_team team[STW_PROBE_MOST_TEAMS];
} stw_probe_teams;

/** One of a team's four arrays. They do not begin at equal distances from a power of two: such
 * arrays would meet in the same sets of caches and banks of memory, which a plan's do not. */
float *stw_probe_array(const stw_probe_team *team, uint64_t params, unsigned array);

/** Memory for the teams that is beyond the caches of so many cores, and not more than one of
 * `share` parts of the room. */
uint64_t stw_probe_cpu_bytes(const stw_probe *probe, uint32_t cores, uint64_t share);

/** @param cores threads of all teams together
 * @param ranks of a node: as many teams, if its cores can be cut so; below 2: one for each NUMA
 * node
 * @param bytes of all teams' memory together, at most
 * @param teams to be closed in every case */
STW_MUST_USE stw_status stw_probe_teams_open(uint32_t cores, uint32_t ranks, uint64_t bytes,
                                             stw_probe_teams *teams, stw_error *err);
void stw_probe_teams_close(stw_probe_teams *teams); /* all zero is fine */

/** Parameters of a ring's slot of each team, as plans choose it. */
uint64_t stw_probe_ring_bucket(const stw_cluster *cluster, const stw_probe_teams *teams);

/** AdamW moves 28 bytes per parameter: it reads all four arrays and writes all but gradients. */
#define STW_PROBE_ADAMW_BYTES 28.0

typedef enum stw_probe_work {
    STW_PROBE_ADAMW, /* parameters */
    STW_PROBE_RING,  /* the same bucket by bucket, parameters and gradients in a ring of them */
    STW_PROBE_NORM,  /* gradients */
    STW_PROBE_COPY   /* bytes read and written, past the caches */
} stw_probe_work;

/** All teams do this at once for `seconds`, whole passes, after one that does not count.
 * @return units per second of all together, copies apart those of so many as slow as the slowest
 * where teams are ranks; 0 where a thread could not be started */
double stw_probe_teams_run(stw_probe_teams *teams, stw_probe_work work, double seconds);

#endif
