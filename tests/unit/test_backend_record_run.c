/* SPDX-License-Identifier: Apache-2.0 */
/* A recording as a whole: processes, GPUs and times that this test makes up, pass by pass, and the
 * samples that must come of them. The command is a real one. The linker hands the calls below to
 * this test (--wrap). */
#define _GNU_SOURCE /* waitid */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvml.h"
#include "backend/record/record.h"
#include "backend/record/tree.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)
#define KIB 1024ull

/* ---- what there is ---- */

typedef struct pass {
    uint64_t all;     /* resident, of all processes */
    uint64_t used[3]; /* of GPUs */
    int n;            /* processes */
    const stw_record_process *processes;
} pass;

static struct {
    const pass *passes;
    unsigned n, at;         /* passes; those that were read */
    unsigned reads, opened; /* of the tree; of NVML, less those closed */
    double read_s[20];      /* when the tree was read */
    unsigned kill_after;    /* 0: the command ends when the passes do */
    double clock_s;         /* that only goes forward */
    unsigned fail_add;      /* this call of stw_recording_add; 0: none */
    unsigned adds;
    unsigned signals_ended; /* calls */
    bool has_nvml, unknown; /* unknown: bytes of GPUs */
} m;
static int release[2] = {-1, -1}; /* a pipe that the command waits at */
static pid_t command_pid;

stw_nvml *__wrap_stw_nvml_open(void);
stw_nvml *__wrap_stw_nvml_open(void) {
    m.opened += m.has_nvml;
    return m.has_nvml ? (stw_nvml *)(void *)&m : NULL;
}
void __wrap_stw_nvml_close(stw_nvml *nvml);
void __wrap_stw_nvml_close(stw_nvml *nvml) { m.opened -= nvml != NULL; }
uint32_t __wrap_stw_nvml_count(const stw_nvml *nvml);
uint32_t __wrap_stw_nvml_count(const stw_nvml *nvml) {
    (void)nvml;
    return 4; /* of which the last is not to be had */
}
static char gpus[3];
stw_nvml_gpu *__wrap_stw_nvml_by_index(const stw_nvml *nvml, uint32_t index);
stw_nvml_gpu *__wrap_stw_nvml_by_index(const stw_nvml *nvml, uint32_t index) {
    (void)nvml;
    return index < 3 ? (stw_nvml_gpu *)(void *)&gpus[index] : NULL;
}
stw_nvml_gpu *__wrap_stw_nvml_by_uuid(const stw_nvml *nvml, const char *uuid);
stw_nvml_gpu *__wrap_stw_nvml_by_uuid(const stw_nvml *nvml, const char *uuid) {
    (void)nvml;
    return strcmp(uuid, "GPU-one") == 0 ? (stw_nvml_gpu *)(void *)&gpus[1] : NULL;
}
static const uint64_t before[3] = {100 * MIB, 200 * MIB, 0};
bool __wrap_stw_nvml_used(const stw_nvml *nvml, stw_nvml_gpu *gpu, uint64_t *bytes);
bool __wrap_stw_nvml_used(const stw_nvml *nvml, stw_nvml_gpu *gpu, uint64_t *bytes) {
    const size_t i = (size_t)((char *)(void *)gpu - gpus);
    CU_ASSERT_PTR_EQUAL(nvml, &m);
    *bytes = m.at == 0 ? before[i] : m.passes[m.at - 1].used[i];
    return m.at == 0 || !m.unknown;
}
void __wrap_stw_nvml_name(const stw_nvml *nvml, stw_nvml_gpu *gpu, char *out, size_t out_size);
void __wrap_stw_nvml_name(const stw_nvml *nvml, stw_nvml_gpu *gpu, char *out, size_t out_size) {
    (void)nvml;
    CU_ASSERT_PTR_EQUAL(gpu, &gpus[0]);
    snprintf(out, out_size, "GPU of mine");
}

stw_status __wrap_stw_record_tree_read(stw_record_tree *tree, pid_t root, stw_error *err);
stw_status __wrap_stw_record_tree_read(stw_record_tree *tree, pid_t root, stw_error *err) {
    (void)err;
    CU_ASSERT_STRING_EQUAL(tree->proc, "/proc");
    CU_ASSERT_EQUAL(root, getpid());
    if (m.reads < 20) m.read_s[m.reads] = m.clock_s;
    m.reads++;
    return STW_STATUS_OK;
}

/* The command has ended once this returns. */
static void end_command(void) {
    siginfo_t info;
    if (m.kill_after > 0)
        (void)kill(command_pid, SIGKILL);
    else
        CU_ASSERT_EQUAL(write(release[1], "\n", 1), 1);
    CU_ASSERT_EQUAL(waitid(P_PID, (id_t)command_pid, &info, WEXITED | WNOWAIT), 0);
}

uint64_t __wrap_stw_record_tree_measure(stw_record_tree *tree);
uint64_t __wrap_stw_record_tree_measure(stw_record_tree *tree) {
    static stw_record_process items[16];
    const pass *p = &m.passes[m.at < m.n ? m.at : m.n - 1];
    CU_ASSERT_TRUE(m.at < m.n);
    for (int i = 0; i < p->n; i++) items[i] = p->processes[i];
    tree->items = items;
    tree->n = (size_t)p->n;
    if (++m.at == m.n) end_command();
    return p->all;
}
void __wrap_stw_record_tree_free(stw_record_tree *tree);
void __wrap_stw_record_tree_free(stw_record_tree *tree) { tree->items = NULL; }

double __wrap_stw_process_now_s(void);
double __wrap_stw_process_now_s(void) { return m.clock_s; }
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME) return __real_clock_gettime(clock, out);
    out->tv_sec = 7000 + (time_t)m.at;
    out->tv_nsec = 500000000;
    return 0;
}
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    (void)left;
    m.clock_s += (double)time->tv_sec + 1e-9 * (double)time->tv_nsec;
    return 0;
}
int __real_stw_record_signals_start(char *const *command, pid_t *child);
int __wrap_stw_record_signals_start(char *const *command, pid_t *child);
int __wrap_stw_record_signals_start(char *const *command, pid_t *child) {
    const int code = __real_stw_record_signals_start(command, child);
    command_pid = *child;
    return code;
}
/* From here on signals are not passed on: the command has ended, and its number is still its own.
 */
void __real_stw_record_signals_ended(void);
void __wrap_stw_record_signals_ended(void);
void __wrap_stw_record_signals_ended(void) {
    siginfo_t info = {0};
    m.signals_ended++;
    CU_ASSERT_EQUAL(waitid(P_PID, (id_t)command_pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    CU_ASSERT_EQUAL(info.si_pid, command_pid);
    __real_stw_record_signals_ended();
}
stw_status __real_stw_recording_add(stw_recording *samples, const stw_recorded *sample,
                                    stw_error *err);
stw_status __wrap_stw_recording_add(stw_recording *samples, const stw_recorded *sample,
                                    stw_error *err);
stw_status __wrap_stw_recording_add(stw_recording *samples, const stw_recorded *sample,
                                    stw_error *err) {
    if (++m.adds == m.fail_add) return stw_fail(err, STW_STATUS_NO_MEMORY, "samples", "full");
    return __real_stw_recording_add(samples, sample, err);
}

/* ---- a recording ---- */

static stw_recording *samples;
static stw_record_summary summary;

/* Samples as text: "time rank metric bytes@node; ". */
static const char *run(const pass *passes, unsigned n, const char *script, stw_status expected) {
    static char text[4000];
    char command[300], waits[400];
    char *const words[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", waits, NULL};
    const stw_record_options options = {words, 0.1, "marks.csv", "/a/library.so"};
    stw_error why = STW_ERROR_INIT;
    CU_ASSERT_EQUAL_FATAL(pipe(release), 0);
    snprintf(command, sizeof command, "read x <&%d; %s", release[0], script);
    snprintf(waits, sizeof waits, "%s", command);
    m.passes = passes;
    m.n = n;
    m.clock_s = 100;
    CHECK_OK(stw_recording_new("record", &samples, err));
    CU_ASSERT_EQUAL(stw_record(&options, samples, &summary, &why), expected);
    stw_record_end();
    CU_ASSERT_EQUAL(m.at, n);
    CU_ASSERT_EQUAL(m.opened, 0);
    CU_ASSERT_EQUAL(m.signals_ended, 1);
    close(release[0]);
    close(release[1]);
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < samples->n; i++) {
        const stw_recorded *s = &samples->items[i];
        CU_ASSERT_EQUAL(s->phase, STW_NO_PHASE);
        used += (size_t)snprintf(text + used, sizeof text - used, "%.1f %d %s %llu@%u\n", s->time_s,
                                 s->rank, stw_metric_name(s->metric),
                                 (unsigned long long)(s->bytes / KIB), s->node);
    }
    return text;
}

static void reset(void) {
    stw_recording_free(samples);
    samples = NULL;
    memset(&m, 0, sizeof m);
    m.has_nvml = true;
}

static stw_record_process rank_of(int32_t rank, int32_t local, const char *visible,
                                  uint64_t resident) {
    stw_record_process p = {.pid = 1000 + rank,
                            .is_rank = true,
                            .rank = rank,
                            .local_rank = local,
                            .node = -1,
                            .resident = resident};
    snprintf(p.visible, sizeof p.visible, "%s", visible);
    return p;
}

static void what_ranks_hold(void) {
    stw_record_process other = rank_of(0, 0, "*", 5 * MIB), away = rank_of(1, 1, "*", 0);
    other.is_rank = false; /* what a rank has started */
    stw_record_process on_node = rank_of(1, 1, "*", 20 * MIB);
    on_node.node = 3;
    const stw_record_process two[] = {rank_of(0, 0, "*", 10 * MIB), other, on_node},
                             less[] = {rank_of(0, 0, "*", 11 * MIB - 1), other, on_node},
                             more[] = {rank_of(0, 0, "*", 11 * MIB), other, on_node},
                             gone[] = {rank_of(0, 0, "*", 11 * MIB), away};
    const uint64_t g = 150 * MIB, h = 260 * MIB;
    const pass passes[] = {
        {0, {100 * MIB, 200 * MIB, 0}, 0, NULL}, /* before anything is there */
        {35 * MIB, {g, h, 7 * MIB}, 3, two},
        {36 * MIB - 1, {g, h + MIB - 1, 7 * MIB}, 3, less}, /* less than a MiB more */
        {36 * MIB - 1, {g, h, 7 * MIB}, 3, more},
        {12 * MIB, {g, h, 7 * MIB}, 2, gone},         /* rank 1 has ended */
        {12 * MIB, {g, h, 9 * MIB}, 2, gone},         /* once; the third GPU is nobody's */
        {0, {g, h, 9 * MIB}, 0, NULL},                /* /proc says nothing for a moment */
        {12 * MIB, {100 * MIB, h, 9 * MIB}, 1, gone}, /* nothing is left on its GPU */
        {12 * MIB, {90 * MIB, h, 9 * MIB}, 1, gone}};
    reset();
    CU_ASSERT_STRING_EQUAL(run(passes, 9, "exit 7", STW_STATUS_OK), "7001.5 0 device 51200@3\n"
                                                                    "7001.5 1 device 61440@3\n"
                                                                    "7001.5 0 host 10240@3\n"
                                                                    "7001.5 1 host 20480@3\n"
                                                                    "7001.5 -1 host 35840@3\n"
                                                                    "7003.5 0 device 51200@3\n"
                                                                    "7003.5 1 device 61440@3\n"
                                                                    "7003.5 0 host 11264@3\n"
                                                                    "7003.5 1 host 20480@3\n"
                                                                    "7003.5 -1 host 36863@3\n"
                                                                    "7004.5 0 device 51200@3\n"
                                                                    "7004.5 0 host 11264@3\n"
                                                                    "7004.5 1 host 0@3\n"
                                                                    "7004.5 -1 host 12288@3\n"
                                                                    "7007.5 0 device 0@3\n"
                                                                    "7007.5 0 host 11264@3\n"
                                                                    "7007.5 -1 host 12288@3\n");
    CU_ASSERT_STRING_EQUAL(samples->device, "GPU of mine");
    CU_ASSERT_TRUE(summary.started);
    CU_ASSERT_EQUAL(summary.exit_code, 7);
    CU_ASSERT_EQUAL(summary.ranks, 2);
    CU_ASSERT_EQUAL(summary.gpus, 3);
    /* Eight pauses of 0.1 s; the tree every quarter of a second, and after a rank was lost. */
    CU_ASSERT_DOUBLE_EQUAL(summary.seconds, 0.8, 1e-9);
    CU_ASSERT_EQUAL(m.reads, 4);
    const double at[] = {100, 100.3, 100.5, 100.8};
    for (unsigned i = 0; i < 4; i++) CU_ASSERT_DOUBLE_EQUAL(m.read_s[i], at[i], 1e-9);
}

/* Which GPU a rank has: by index, UUID, local rank or rank. */
static void which_gpu_ranks_have(void) {
    const stw_record_process ranks[] = {rank_of(0, 0, "2", MIB),
                                        rank_of(1, 1, "2", MIB),
                                        rank_of(2, 1, "0,2", MIB),
                                        rank_of(3, 0, "2,0", MIB),
                                        rank_of(4, 9, "0,2", MIB),
                                        rank_of(5, 0, "GPU-one", MIB),
                                        rank_of(6, 1, "0,GPU-one,2", MIB),
                                        rank_of(7, 0, "GPU-two", MIB),
                                        rank_of(8, 0, "", MIB),
                                        rank_of(9, 0, "3", MIB),
                                        rank_of(10, 0, "1x", MIB),
                                        rank_of(11, 0, "x", MIB),
                                        rank_of(12, 2, "*", MIB),
                                        rank_of(13, 3, "*", MIB),
                                        rank_of(1, -1, "*", MIB),
                                        rank_of(15, 2, "0,1,2", MIB)};
    const pass passes[] = {{MIB, {101 * MIB, 202 * MIB, 3 * MIB}, 16, ranks}};
    static const int expected[] = {2, 2, 2, 2, -1, 1, 1, -1, -1, -1, -1, -1, 2, -1, -1, 2};
    reset();
    (void)run(passes, 1, "true", STW_STATUS_OK);
    for (int r = 0; r < 16; r++) {
        uint64_t device = 0;
        for (size_t i = 0; i < samples->n; i++)
            if (samples->items[i].rank == r && samples->items[i].metric == STW_METRIC_DEVICE)
                device = samples->items[i].bytes;
        /* rank 1 stands there twice: without a local rank it has the GPU of its rank */
        const int gpu = r == 1 ? 1 : expected[r];
        CU_ASSERT_EQUAL(device, gpu < 0 ? 0 : ((unsigned)gpu + 1u) * MIB);
    }
    CU_ASSERT_EQUAL(summary.ranks, 15);
    CU_ASSERT_EQUAL(summary.exit_code, 0);
    CU_ASSERT_DOUBLE_EQUAL(summary.seconds, 0, 1e-9); /* it ended in the first pass */
}

/* Nobody has a rank: GPUs stand for ranks once something is on them. */
static void gpus_without_ranks(void) {
    stw_record_process nobody = rank_of(0, 0, "*", 5 * MIB);
    nobody.is_rank = false;
    const uint64_t a = 100 * MIB, b = 200 * MIB;
    const pass passes[] = {{5 * MIB, {a, b + 4 * MIB, 0}, 1, &nobody},
                           {5 * MIB, {a, b + 4 * MIB, 2 * MIB}, 1, &nobody},
                           {5 * MIB, {a, b, 2 * MIB}, 1, &nobody},
                           {5 * MIB, {a, b, 2 * MIB}, 1, &nobody},
                           {7 * MIB, {a, b, 2 * MIB}, 1, &nobody}};
    reset();
    m.kill_after = 5;
    CU_ASSERT_STRING_EQUAL(run(passes, 5, "true", STW_STATUS_OK), "7000.5 1 device 4096@0\n"
                                                                  "7000.5 -1 host 5120@0\n"
                                                                  "7001.5 1 device 4096@0\n"
                                                                  "7001.5 2 device 2048@0\n"
                                                                  "7001.5 -1 host 5120@0\n"
                                                                  "7002.5 1 device 0@0\n"
                                                                  "7002.5 2 device 2048@0\n"
                                                                  "7002.5 -1 host 5120@0\n"
                                                                  "7004.5 1 device 0@0\n"
                                                                  "7004.5 2 device 2048@0\n"
                                                                  "7004.5 -1 host 7168@0\n");
    CU_ASSERT_EQUAL(summary.exit_code, 128 + SIGKILL);
    CU_ASSERT_EQUAL(summary.ranks, 2);
    /* Bytes that are not known, and no GPUs at all. */
    reset();
    m.unknown = true;
    CU_ASSERT_STRING_EQUAL(run(passes, 1, "true", STW_STATUS_OK), "7000.5 -1 host 5120@0\n");
    CU_ASSERT_EQUAL(summary.gpus, 3);
    CU_ASSERT_EQUAL(summary.ranks, 0);
    reset();
    m.has_nvml = false;
    CU_ASSERT_STRING_EQUAL(run(passes, 1, "true", STW_STATUS_OK), "7000.5 -1 host 5120@0\n");
    CU_ASSERT_EQUAL(summary.gpus, 0);
    CU_ASSERT_STRING_EQUAL(samples->device, "");
}

/* Samples that cannot be kept: the command goes on to its end. */
static void a_full_recording(void) {
    const stw_record_process one[] = {rank_of(0, 0, "*", 10 * MIB)};
    const pass passes[] = {{10 * MIB, {0, 0, 0}, 1, one}};
    reset();
    m.fail_add = 2;
    CU_ASSERT_STRING_EQUAL(run(passes, 1, "exit 3", STW_STATUS_NO_MEMORY),
                           "7000.5 0 host 10240@0\n");
    CU_ASSERT_EQUAL(summary.exit_code, 3);
    CU_ASSERT_TRUE(summary.started);
    CU_ASSERT_EQUAL(m.adds, 2);
}

/* The environment of the command; a profiler that is there keeps its place. */
static void the_environment_of_the_command(void) {
    static const char *const expected[] = {"marks.csv /a/library.so\n", "marks.csv /a/profiler\n"};
    const pass passes[] = {{MIB, {0, 0, 0}, 0, NULL}};
    for (int i = 0; i < 2; i++) {
        char text[100] = "";
        setenv("STOWAGE_MARKS", "of somebody else", 1);
        unsetenv("NVTX_INJECTION64_PATH");
        if (i == 1) setenv("NVTX_INJECTION64_PATH", "/a/profiler", 1);
        reset();
        (void)run(passes, 1, "echo \"$STOWAGE_MARKS $NVTX_INJECTION64_PATH\" >said.txt",
                  STW_STATUS_OK);
        FILE *file = fopen("said.txt", "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT_PTR_NOT_NULL(fgets(text, sizeof text, file));
        fclose(file);
        CU_ASSERT_STRING_EQUAL(text, expected[i]);
    }
    CU_ASSERT_EQUAL(unlink("said.txt"), 0);
    unsetenv("NVTX_INJECTION64_PATH");
    reset();
    char *const none[] = {(char *)(uintptr_t) "./there_is_none", NULL};
    const stw_record_options options = {none, 0.1, "marks.csv", NULL};
    CHECK_OK(stw_recording_new("record", &samples, err));
    CHECK_FAILS(stw_record(&options, samples, &summary, err), STW_STATUS_IO,
                "./there_is_none: cannot be started");
    CU_ASSERT_FALSE(summary.started);
    CU_ASSERT_EQUAL(summary.ranks, 0);
    CU_ASSERT_EQUAL(m.at, 0);
    CU_ASSERT_EQUAL(m.opened, 0);
    CU_ASSERT_EQUAL(getenv("NVTX_INJECTION64_PATH"), NULL);
    struct sigaction now;
    CU_ASSERT_EQUAL(sigaction(SIGTERM, NULL, &now), 0);
    CU_ASSERT_EQUAL(now.sa_handler, SIG_DFL);
    reset();
}

STW_TEST_MAIN("backend record run", {"what ranks hold", what_ranks_hold},
              {"which GPU ranks have", which_gpu_ranks_have},
              {"GPUs without ranks", gpus_without_ranks}, {"a full recording", a_full_recording},
              {"the environment of the command", the_environment_of_the_command})
