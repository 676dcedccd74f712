/* SPDX-License-Identifier: Apache-2.0 */
/* Describes this machine as a cluster of one node: its sizes and, if asked, its measured rates.
 * Without a GPU (or without CUDA in the program) `gpus` is 0, and gpu.memory is a quarter of the
 * usable host memory, in which the host backend emulates one rank's GPU; host.limit is the rest.
 *
 * Rates are sustained rates: medians of several runs over memory far larger than the caches, at
 * most an eighth of the usable host memory in all. Raw values go into samples. If a value that
 * plans do not require cannot be measured, it keeps its default and a warning is logged.
 *
 * With several GPUs a calibration starts one process per GPU (fork), as a run does, to measure
 * NCCL's memory and rates. Call it before this process uses CUDA or starts threads.
 *
 * Known gaps: rates of matrix products and of links between nodes come from a table. All GPUs of a
 * node are assumed equal, and rates of a single GPU are measured on the first one (also kernels
 * that work in host memory, never on all GPUs at once). One process drives the copies of all GPUs,
 * while a run has one process per GPU. Slowdowns of a disk after minutes of writing are not
 * seen. */
#ifndef STW_BACKEND_PROBE_H
#define STW_BACKEND_PROBE_H

#include "backend/host/cpus.h"
#include "backend/host/pool.h"
#include "backend/process.h"
#include "plan/spec/cluster.h"
#include "plan/spec/samples.h"

typedef enum stw_probe_depth {
    STW_PROBE_SIZES, /* measure nothing: rates of machines with this GPU if it is known, else the
                        defaults; about a second */
    STW_PROBE_QUICK, /* under 20 s */
    STW_PROBE_FULL   /* under 3 minutes, 90 s more if python has torch */
} stw_probe_depth;

typedef struct stw_probe_options {
    stw_probe_depth depth;
    const char *nvme_folder; /* folder on the disk to measure; NULL: $TMPDIR, else /tmp */
    const char *data_folder; /* share/stowage, which has the script for torch; NULL: none */
} stw_probe_options;

/** Probe this machine. Warns of low limits (stw_limits_warn). STOWAGE_PROBE_BYTES=<size> in the
 * environment limits every buffer and file, and makes measurements short: it is for tests, the
 * figures mean little.
 * @param samples raw values are appended; NULL: not kept
 * @return DEVICE if a GPU does not work */
STW_MUST_USE stw_status stw_machine_probe(const stw_probe_options *options, stw_cluster *out,
                                          stw_samples *samples, stw_error *err);

/* ---- shared by all parts of a calibration (sampling.c), backend/cuda included ---- */

/** The parts of a calibration, for the progress line. */
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

/** A running calibration. */
typedef struct stw_probe {
    stw_probe_depth depth;
    const char *nvme_folder;
    uint64_t room_bytes; /* limit of host memory for all buffers that exist at one time */
    uint64_t most_bytes; /* limit of one buffer or file */
    double time_scale;   /* factor of every measurement's seconds */
    double start_s;
    uint32_t gpus; /* 0: not counted yet */
    stw_samples *samples;
} stw_probe;

/** Draw the progress line. @param share finished share of the part, 0 to 1 */
void stw_probe_progress(const stw_probe *probe, stw_probe_part part, double share,
                        const char *what);
/** Returns one of two values, by depth. */
static inline double stw_probe_pick(const stw_probe *probe, double quick, double full) {
    return probe->depth == STW_PROBE_FULL ? full : quick;
}
/** Returns the seconds of a measurement, by depth, shorter in tests. */
double stw_probe_seconds(const stw_probe *probe, double quick, double full);
/** Returns the seconds of a measurement that improves with time: the time left at this depth,
 * within bounds; shorter in tests. */
double stw_probe_seconds_left(const stw_probe *probe, double least, double most);
/** True if there is time for optional measurements. Slow machines get fewer samples, not more
 * time. */
bool stw_probe_has_time(const stw_probe *probe);
/** Returns the value rounded to three decimal digits. */
double stw_probe_three_digits(double value);
/** Keep the sample.
 * @return its median, rounded to three digits, because further digits vary between runs */
double stw_probe_keep(const stw_probe *probe, const stw_sample *sample);
/** The same for a rate that plans use: warns if its values scatter. */
double stw_probe_keep_rate(const stw_probe *probe, const stw_sample *sample);

/* ---- the parts ---- */

/** Fill the keys of GPUs and their links and, if it measures, host.dma* and host.bandwidth (CPU and
 * GPUs together). Without a GPU *found is false and `out` unchanged. backend/cuda defines it;
 * builds without CUDA have a weak function that finds nothing. */
STW_MUST_USE stw_status stw_probe_gpus(stw_probe *probe, stw_cluster *out, bool *found,
                                       stw_error *err);
/** Measure the CPU's rates: cpu_adamw, cpu_norm, and host.bandwidth if it was not measured yet. */
void stw_probe_host(const stw_probe *probe, stw_cluster *out);
/** Measure host.file_read*: page-cached files, read as in a load. */
void stw_probe_files(const stw_probe *probe, stw_cluster *out);
/** Measure size and rates of the disk behind the folder; capacity 0 if the folder is in memory. */
void stw_probe_disk(const stw_probe *probe, stw_cluster *out);
/** At full depth and if python has torch: measure torch.*, host.call and pcie.pageable; else log a
 * message.
 * @param path of the script */
void stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out);
/** Returns only the capacity. */
uint64_t stw_probe_disk_capacity(const char *folder);

/* ---- the CPU's work: one team of threads per NUMA node or rank, each with its own memory there
 * ---- */

#define STW_PROBE_MOST_TEAMS 16

typedef struct stw_probe_team {
    stw_cpus cpus;
    stw_threads *threads;
    float *memory; /* arrays of `params`: parameters, gradients, two moments; see
                      stw_probe_array */
} stw_probe_team;

/** Slots of a ring of CPU buckets; a slot has a bucket's parameters, then its gradients. */
#define STW_PROBE_RING_SLOTS 3

/** A ring outside a team's memory. Its buckets are filled and emptied while the team works on
 * others. The functions are called on the team's thread. */
typedef struct stw_probe_ring {
    void *user;
    float *(*begin)(void *user, uint32_t team, uint32_t slot); /* returns when the slot is filled */
    void (*end)(void *user, uint32_t team, uint32_t slot);     /* the slot may be emptied */
} stw_probe_ring;

typedef struct stw_probe_teams {
    uint32_t n;
    uint32_t ranks;             /* number of ranks if teams are ranks; 0: teams are NUMA nodes of
                                   one process */
    uint64_t params;            /* parameters per team */
    uint64_t bucket;            /* parameters of a ring's slot; 0: no ring is measured */
    const stw_probe_ring *ring; /* NULL: the slots are params and grads in the team's memory */
    stw_probe_team team[STW_PROBE_MOST_TEAMS];
} stw_probe_teams;

/** Returns one of a team's four arrays. Their offsets are not equal modulo a power of two, because
 * such arrays would compete for the same cache sets and memory banks, which a plan's arrays do
 * not. */
float *stw_probe_array(const stw_probe_team *team, uint64_t params, unsigned array);

/** Returns bytes for the teams' memory: more than the caches of `cores` cores, at most 1/share of
 * the room. */
uint64_t stw_probe_cpu_bytes(const stw_probe *probe, uint32_t cores, uint64_t share);

/** Open the teams.
 * @param cores threads of all teams together
 * @param ranks of a node: one team each, if the cores can be divided so; below 2: one team per NUMA
 * node
 * @param bytes limit of all teams' memory together
 * @param teams to be closed also on failure */
STW_MUST_USE stw_status stw_probe_teams_open(uint32_t cores, uint32_t ranks, uint64_t bytes,
                                             stw_probe_teams *teams, stw_error *err);
void stw_probe_teams_close(stw_probe_teams *teams); /* all zero is fine */

/** Returns the parameters of a ring's slot of each team, as plans choose it. */
uint64_t stw_probe_ring_bucket(const stw_cluster *cluster, const stw_probe_teams *teams);

/** AdamW moves 28 bytes per parameter: it reads all four arrays and writes all except gradients. */
#define STW_PROBE_ADAMW_BYTES 28.0

typedef enum stw_probe_work {
    STW_PROBE_ADAMW, /* parameters */
    STW_PROBE_RING,  /* the same by buckets, with parameters and gradients in a ring */
    STW_PROBE_NORM,  /* gradients */
    STW_PROBE_COPY   /* bytes read and written, past the caches */
} stw_probe_work;

/** Run this work on all teams at once for `seconds`, in whole passes, after one uncounted pass.
 * @return units per second of all teams; if teams are ranks, as if all were as slow as the slowest
 * (except copies); 0 if a thread could not be started */
double stw_probe_teams_run(stw_probe_teams *teams, stw_probe_work work, double seconds);

#endif
