/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing, opening and leaving a transport, and every call of it: on an MPI plugin and an NCCL of
 * the test's own, which keep a log of what they are asked for. No other process is there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/comm/ops.h"
#include "backend/mpi/stowage_mpi.h"
#include "core/file.h"
#include "tests/unit/testing.h"

/* ---- the log ---- */

static char logged[4000];
static void note(const char *format, ...) STW_PRINTF(1, 2);
static void note(const char *format, ...) {
    const size_t used = strlen(logged);
    va_list list;
    va_start(list, format);
    vsnprintf(logged + used, sizeof logged - used, format, list);
    va_end(list);
}

static void same_words(const char *found, const char *expected, int line) {
    CU_ASSERT_STRING_EQUAL(found, expected);
    if (strcmp(found, expected) != 0)
        fprintf(stderr, "line %d: found    \"%s\"\n    expected \"%s\"\n", line, found, expected);
}
#define WORDS(found, expected) same_words(found, expected, __LINE__)
/* What was called since the last time. */
#define LOGGED(expected)                                                                           \
    do {                                                                                           \
        same_words(logged, expected, __LINE__);                                                    \
        logged[0] = '\0';                                                                          \
    } while (0)

/* ---- a plugin ---- */

static struct {
    stw_mpi_result result; /* of every call but join */
    stw_mpi_result joins;
    uint32_t rank, world;
    const char *reports[6]; /* of other ranks; NULL: not heard */
} script;

static void say(char *error, size_t error_size) { snprintf(error, error_size, "the cable is cut"); }

static stw_mpi_result join(uint32_t *rank, uint32_t *world, double timeout_s,
                           int (*gave_up)(void *state), void *state, char *error,
                           size_t error_size) {
    note("join %g %d; ", timeout_s, gave_up(state));
    say(error, error_size);
    *rank = script.rank;
    *world = script.world;
    return script.joins;
}
static void leave(int broken) { note("leave %d; ", broken); }
static void interrupt(void) { note("interrupt; "); }
static stw_mpi_result sum(uint64_t *values, uint32_t n, double timeout_s, char *error,
                          size_t error_size) {
    note("sum %u %g; ", n, timeout_s);
    say(error, error_size);
    for (uint32_t i = 0; i < n; i++) values[i] *= 3;
    return script.result;
}
static stw_mpi_result gather(const void *mine, void *out, uint32_t bytes, double timeout_s,
                             char *error, size_t error_size) {
    note("gather %u %g; ", bytes, timeout_s);
    say(error, error_size);
    memcpy(out, mine, bytes);
    memset((char *)out + bytes, '!', bytes);
    return script.result;
}
static const char *memory_base;
static stw_mpi_result broadcast(void *data, uint64_t bytes, uint32_t root, double timeout_s,
                                char *error, size_t error_size) {
    note("broadcast +%d %llu from %u %g; ", (int)((char *)data - memory_base),
         (unsigned long long)bytes, root, timeout_s);
    say(error, error_size);
    return script.result;
}
static stw_mpi_result messages(const stw_mpi_message *list, uint32_t n, double timeout_s,
                               uint32_t *waits_for, char *error, size_t error_size) {
    note("messages");
    for (uint32_t i = 0; i < n; i++)
        note(" +%d %llu %s %u", (int)((char *)list[i].data - memory_base),
             (unsigned long long)list[i].bytes, list[i].sends ? "to" : "from", list[i].peer);
    note(" %g; ", timeout_s);
    say(error, error_size);
    *waits_for = n > 0 ? n - 1 : 0;
    return script.result;
}
static stw_mpi_result barrier(double timeout_s, char *error, size_t error_size) {
    note("barrier %g; ", timeout_s);
    say(error, error_size);
    return script.result;
}
static void report(const char *mine, char *all, unsigned char *heard, double wait_s) {
    note("report \"%s\" %g; ", mine, wait_s);
    for (int r = 0; r < 6; r++)
        if (script.reports[r] != NULL) {
            heard[r] = 1;
            memset(all + (size_t)r * STW_MPI_REPORT_BYTES, 'x', STW_MPI_REPORT_BYTES);
            snprintf(all + (size_t)r * STW_MPI_REPORT_BYTES, STW_MPI_REPORT_BYTES, "%s",
                     script.reports[r]);
        }
}

static stw_mpi_calls plugin = {.version = STW_MPI_PLUGIN_VERSION,
                               .library = "test",
                               .join = join,
                               .leave = leave,
                               .sum_u64 = sum,
                               .gather = gather,
                               .broadcast = broadcast,
                               .messages = messages,
                               .interrupt = interrupt,
                               .barrier = barrier,
                               .report = report};
static const stw_mpi_calls *plugin_calls(void) { return &plugin; }

/* ---- calls that find it ---- */

void *__real_dlopen(const char *path, int mode);
void *__wrap_dlopen(const char *path, int mode);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);

static char opened[5000]; /* the path that was opened last */
static const char *there; /* the one path that can be read; NULL: as it is */
static bool opens = true, has_symbol = true;
static unsigned looks; /* at /proc */
static int library;

void *__wrap_dlopen(const char *path, int mode) {
    if (path == NULL || strstr(path, "stowage-mpi") == NULL) return __real_dlopen(path, mode);
    CU_ASSERT_EQUAL(mode, RTLD_NOW | RTLD_GLOBAL);
    snprintf(opened, sizeof opened, "%s", path);
    return opens ? &library : __real_dlopen("/nowhere/stowage-mpi.so", mode);
}
void *__wrap_dlsym(void *from, const char *name) {
    const stw_mpi_calls_fn found = plugin_calls;
    void *symbol = NULL;
    if (from != &library) return __real_dlsym(from, name);
    WORDS(name, "stowage_mpi_calls");
    if (has_symbol) memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}
int __wrap_access(const char *path, int mode) {
    if (there == NULL) return __real_access(path, mode);
    return strcmp(path, there) == 0 ? 0 : -1;
}
DIR *__wrap_opendir(const char *path) {
    looks += strcmp(path, "/proc") == 0;
    return __real_opendir(path);
}

/* ---- NCCL ---- */

static stw_status nccl_status;
static int nccl_state;

static stw_status nccl_fails(stw_error *err) {
    if (nccl_status == STW_STATUS_OK) return nccl_status;
    return stw_fail(err, nccl_status, "nccl", "is broken");
}
static stw_status nccl_open(const stw_comm_config *config, void **state, stw_error *err) {
    char id[4] = "id";
    note("nccl open %llu%s; ", (unsigned long long)config->scratch_offset,
         config->watch != NULL ? "" : " unwatched");
    if (config->share != NULL) {
        memory_base = id;
        const stw_status status = config->share(config->share_state, id, sizeof id, err);
        if (status != STW_STATUS_OK) return status;
    }
    *state = nccl_status == STW_STATUS_OK ? &nccl_state : NULL;
    return nccl_fails(err);
}
static void nccl_close(void *state) { note("nccl close %d; ", state == &nccl_state); }
static void nccl_abort(void *state) { note("nccl abort %d; ", state == &nccl_state); }
static stw_status nccl_sum(void *state, uint64_t *values, uint32_t n, stw_error *err) {
    note("nccl sum %d %llu %u; ", state == &nccl_state, (unsigned long long)values[0], n);
    return nccl_fails(err);
}
static stw_status nccl_counters(void *state, uint64_t *values, uint32_t n, stw_error *err) {
    note("nccl counters %d %llu %u; ", state == &nccl_state, (unsigned long long)values[0], n);
    return nccl_fails(err);
}
static stw_status nccl_gather(void *state, const void *mine, void *out, uint32_t bytes,
                              stw_error *err) {
    note("nccl gather %d %d %u; ", state == &nccl_state, mine != out, bytes);
    return nccl_fails(err);
}
static stw_status nccl_broadcast(void *state, stw_tier tier, uint64_t offset, uint64_t bytes,
                                 uint32_t root, stw_error *err) {
    note("nccl broadcast %d %s %llu %llu from %u; ", state == &nccl_state, stw_tier_name(tier),
         (unsigned long long)offset, (unsigned long long)bytes, root);
    return nccl_fails(err);
}
static stw_status nccl_messages(void *state, stw_tier tier, const stw_comm_message *list,
                                uint32_t n, stw_error *err) {
    note("nccl messages %d %s", state == &nccl_state, stw_tier_name(tier));
    for (uint32_t i = 0; i < n; i++)
        note(" %llu %llu %s %u", (unsigned long long)list[i].offset,
             (unsigned long long)list[i].bytes, list[i].sends ? "to" : "from", list[i].peer);
    note("; ");
    return nccl_fails(err);
}
static stw_status nccl_barrier(void *state, stw_error *err) {
    note("nccl barrier %d; ", state == &nccl_state);
    return nccl_fails(err);
}
static stw_status nccl_wait(void *state, const char *what, stw_error *err) {
    note("nccl wait %d %s; ", state == &nccl_state, what);
    return nccl_fails(err);
}
static const stw_comm_ops nccl = {.name = "nccl",
                                  .open = nccl_open,
                                  .close = nccl_close,
                                  .abort = nccl_abort,
                                  .sum_u64 = nccl_sum,
                                  .sum_counters = nccl_counters,
                                  .gather = nccl_gather,
                                  .broadcast = nccl_broadcast,
                                  .messages = nccl_messages,
                                  .barrier = nccl_barrier,
                                  .wait = nccl_wait};
static bool has_nccl;
const stw_comm_ops *stw_comm_nccl_ops(void) { return has_nccl ? &nccl : NULL; }

/* ---- ranks and a backend ---- */

static char gpu_memory[100], host_memory[100];
static void *address(stw_device *d, char *memory, uint64_t offset, uint64_t bytes) {
    CU_ASSERT_PTR_EQUAL(d, (stw_device *)(void *)gpu_memory);
    memory_base = memory;
    return offset + bytes <= 100 ? memory + offset : NULL;
}
static void *host_address(stw_device *d, uint64_t offset, uint64_t bytes) {
    return address(d, host_memory, offset, bytes);
}
static void *device_address(stw_device *d, uint64_t offset, uint64_t bytes) {
    return address(d, gpu_memory, offset, bytes);
}
static stw_device *const device = (stw_device *)(void *)gpu_memory;
static const stw_backend host = {
    .name = "host", .host_address = host_address, .device_address = device_address};
static const stw_backend gpu = {
    .name = "cuda", .gpu = true, .host_address = host_address, .device_address = device_address};

static stw_ranks ranks_of(const char *launcher, uint32_t rank, uint32_t world,
                          uint32_t local_world) {
    stw_ranks r = {.rank = rank, .world = world, .local_rank = rank % local_world};
    r.local_world = local_world;
    snprintf(r.launcher, sizeof r.launcher, "%s", launcher);
    script.result = script.joins = STW_MPI_OK;
    script.rank = rank;
    script.world = world;
    memset(script.reports, 0, sizeof script.reports);
    nccl_status = STW_STATUS_OK;
    return r;
}

static stw_comm *open_comm(const stw_ranks *ranks, const stw_backend *backend) {
    stw_comm *comm = NULL;
    CHECK_OK(stw_comm_open(ranks, backend, 2.5, &comm, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(comm);
    return comm;
}

/* ---- MPI ---- */

static void calls_of_mpi(void) {
    const stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    stw_comm *comm = open_comm(&ranks, &host);
    uint64_t values[4] = {1, 2, 3, 4};
    char out[4];
    LOGGED("join 2.5 0; ");
    WORDS(stw_comm_name(comm), "mpi");
    CU_ASSERT_TRUE(stw_comm_meets(comm));
    CHECK_OK(stw_comm_attach(comm, device, 77, err));
    looks = 0;
    CHECK_OK(stw_comm_sum_u64(comm, values, 3, err));
    CU_ASSERT_EQUAL(looks, 1); /* the others' pages are there now */
    CHECK_OK(stw_comm_sum_counters(comm, values + 3, 1, err));
    CU_ASSERT_EQUAL(looks, 1);
    CU_ASSERT_TRUE(values[0] == 3 && values[1] == 6 && values[2] == 9 && values[3] == 12);
    CHECK_OK(stw_comm_gather(comm, "ab", out, 2, err));
    CU_ASSERT_EQUAL(memcmp(out, "ab!!", 4), 0);
    CHECK_OK(stw_comm_exchange(comm, "cd", out, 2, err));
    CU_ASSERT_EQUAL(memcmp(out, "cd!!", 4), 0);
    CHECK_OK(stw_comm_broadcast(comm, STW_TIER_HOST, 10, 90, 2, err));
    CU_ASSERT_PTR_EQUAL(memory_base, host_memory);
    CHECK_OK(stw_comm_broadcast(comm, STW_TIER_GPU, 20, 30, 0, err));
    CU_ASSERT_PTR_EQUAL(memory_base, gpu_memory);
    CHECK_OK(stw_comm_barrier(comm, err));
    CHECK_OK(stw_comm_wait(comm, "all of it", err));
    LOGGED("sum 3 2.5; sum 1 2.5; gather 2 2.5; gather 2 2.5; broadcast +10 90 from 2 2.5; "
           "broadcast +20 30 from 0 2.5; barrier 2.5; ");
    CHECK_FAILS(stw_comm_broadcast(comm, STW_TIER_HOST, 50, 51, 0, err), STW_STATUS_BUG,
                "broadcast: MPI cannot reach 51 bytes of tier host");
    CHECK_FAILS(stw_comm_broadcast(comm, STW_TIER_NVME, 0, 1, 0, err), STW_STATUS_BUG,
                "MPI cannot reach 1 bytes of tier nvme");
    stw_comm_close(comm);
    LOGGED("leave 0; ");
}

/* Rank 1 of 3: what it sends and gets in messages, and in groups. */
static void messages_of_mpi(void) {
    static const uint32_t pair[] = {1, 2}, all[] = {0, 1, 2};
    static const stw_comm_group two = {pair, 2}, three = {all, 3};
    const stw_comm_message list[] = {{2, true, 10, 20}, {0, false, 30, 70}};
    const stw_comm_message self = {1, true, 0, 1}, far = {3, true, 0, 1}, out = {0, true, 99, 2};
    const stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    stw_comm *comm = open_comm(&ranks, &host);
    CHECK_OK(stw_comm_attach(comm, device, 0, err));
    logged[0] = '\0';
    CHECK_OK(stw_comm_messages(comm, STW_TIER_HOST, list, 2, err));
    CU_ASSERT_PTR_EQUAL(memory_base, host_memory);
    CHECK_OK(stw_comm_messages(comm, STW_TIER_GPU, NULL, 0, err));
    LOGGED("messages +10 20 to 2 +30 70 from 0 2.5; messages 2.5; ");
    CHECK_OK(stw_comm_group_gather(comm, &two, STW_TIER_GPU, 10, 7, err));
    CHECK_OK(stw_comm_group_gather(comm, &three, STW_TIER_GPU, 10, 7, err));
    LOGGED("messages +10 7 to 2 +17 7 from 2 2.5; "
           "messages +17 7 to 0 +10 7 from 0 +17 7 to 2 +24 7 from 2 2.5; ");
    /* the root deals parts, of which small broadcasts have one; then members pass theirs on */
    CHECK_OK(stw_comm_group_broadcast(comm, &two, STW_TIER_GPU, 10, 80, 1, err));
    LOGGED("messages 2.5; messages +10 80 to 2 2.5; ");
    CHECK_OK(stw_comm_group_broadcast(comm, &three, STW_TIER_GPU, 10, 80, 2, err));
    LOGGED("messages 2.5; messages +10 80 from 0 2.5; ");
    const stw_comm_counts counts = stw_comm_counted(comm);
    CU_ASSERT_TRUE(counts.collectives == 0 && counts.rounds == 8);
    CU_ASSERT_TRUE(counts.sent == 5 && counts.sent_bytes == 20 + 3 * 7 + 80);
    CU_ASSERT_TRUE(counts.received == 5 && counts.received_bytes == 70 + 3 * 7 + 80);
    CHECK_OK(stw_comm_barrier(comm, err));
    CU_ASSERT_EQUAL(stw_comm_counted(comm).collectives, 1);
    CHECK_FAILS(stw_comm_messages(comm, STW_TIER_HOST, &self, 1, err), STW_STATUS_BUG,
                "messages: from rank 1 of 3 to rank 1");
    CHECK_FAILS(stw_comm_messages(comm, STW_TIER_HOST, &far, 1, err), STW_STATUS_BUG,
                "messages: from rank 1 of 3 to rank 3");
    CHECK_FAILS(stw_comm_messages(comm, STW_TIER_HOST, &out, 1, err), STW_STATUS_BUG,
                "messages: MPI cannot reach 2 bytes of tier host");
    CHECK_FAILS(stw_comm_group_broadcast(comm, &two, STW_TIER_GPU, 0, 1, 0, err), STW_STATUS_BUG,
                "rank 1 or root 0 is not in the group");
    stw_error error = STW_ERROR_INIT;
    script.result = STW_MPI_TIMED_OUT;
    stw_comm_about(comm, "round 3");
    CU_ASSERT_EQUAL(stw_comm_messages(comm, STW_TIER_HOST, list, 2, &error), STW_STATUS_DEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(error.where, "(round 3)"));
    CU_ASSERT_PTR_NOT_NULL(strstr(error.text, "; 70 bytes from rank 0 have not passed"));
    script.result = STW_MPI_OK;
    stw_comm_close(comm);
    logged[0] = '\0';
}

/* Call number i on a communicator that is not well. */
#define N_CALLS 7
static stw_status call(stw_comm *comm, int i, stw_error *err) {
    uint64_t values[4] = {0};
    switch (i) {
    case 0:
        return stw_comm_sum_u64(comm, values, 1, err);
    case 1:
        return stw_comm_sum_counters(comm, values, 1, err);
    case 2:
        return stw_comm_gather(comm, "ab", values, 2, err);
    case 3:
        return stw_comm_exchange(comm, "ab", values, 2, err);
    case 4:
        return stw_comm_broadcast(comm, STW_TIER_HOST, 0, 1, 0, err);
    case 5:
        return stw_comm_messages(comm, STW_TIER_HOST, NULL, 0, err);
    default:
        return stw_comm_barrier(comm, err);
    }
}
static const char *const plain[N_CALLS] = {
    "sum over ranks", "sum over ranks", "gather over ranks", "gather over ranks", "broadcast",
    "messages",       "barrier"};
static const char *const shown[N_CALLS] = {
    "sum", "sum of squared gradients", "gather", "gather", "broadcast", "messages", "barrier"};

#define NOBODY "rank 0 has no process on this node; rank 2 has no process on this node"

static void calls_that_fail(void) {
    static const struct {
        stw_mpi_result result;
        const char *text;
    } cases[] = {{STW_MPI_FAILED, "MPI says: the cable is cut"},
                 {STW_MPI_TIMED_OUT, "not all ranks took part within 2.5 s (MPI): " NOBODY},
                 {STW_MPI_GIVEN_UP, "another rank has given up (MPI): " NOBODY}};
    const stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < N_CALLS; i++) {
            stw_comm *comm = open_comm(&ranks, &host);
            stw_error error = STW_ERROR_INIT, again = STW_ERROR_INIT, wait = STW_ERROR_INIT;
            char where[100];
            CHECK_OK(stw_comm_attach(comm, device, 0, err));
            script.result = cases[c].result;
            looks = 0;
            CU_ASSERT_EQUAL(call(comm, i, &error), STW_STATUS_DEVICE);
            snprintf(where, sizeof where, "operation 2 (%s)", shown[i]);
            WORDS(error.where, c == 0 ? plain[i] : where);
            WORDS(error.text, cases[c].text);
            CU_ASSERT_EQUAL(error.rank, 1);
            CU_ASSERT_EQUAL(looks, c == 0 ? 0 : 1); /* to name who is missing */
            script.result = STW_MPI_OK;
            logged[0] = '\0';
            for (int j = 0; j < N_CALLS; j++) {
                again = (stw_error)STW_ERROR_INIT;
                again.rank = 5; /* said already */
                CU_ASSERT_EQUAL(call(comm, j, &again), STW_STATUS_DEVICE);
                WORDS(again.text, "the communicator has failed before");
                WORDS(again.where, plain[j]);
                CU_ASSERT_EQUAL(again.rank, 5);
            }
            CU_ASSERT_EQUAL(stw_comm_wait(comm, "the end", &wait), STW_STATUS_DEVICE);
            WORDS(wait.where, "the end");
            CU_ASSERT_EQUAL(wait.rank, 1);
            CU_ASSERT_EQUAL(stw_comm_wait(comm, "the end", NULL), STW_STATUS_DEVICE);
            CU_ASSERT_EQUAL(stw_comm_barrier(comm, NULL), STW_STATUS_DEVICE);
            LOGGED("");
            stw_comm_close(comm);
            LOGGED("leave 1; ");
        }
}

/* What the next collective is for, in errors of that one alone. */
static void a_collective_is_named(void) {
    const stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    for (int c = 0; c < 2; c++) {
        stw_comm *comm = open_comm(&ranks, &host);
        stw_error error = STW_ERROR_INIT;
        stw_comm_about(comm, "digests");
        if (c == 1) CHECK_OK(stw_comm_barrier(comm, err));
        script.result = STW_MPI_TIMED_OUT;
        CU_ASSERT_EQUAL(stw_comm_barrier(comm, &error), STW_STATUS_DEVICE);
        WORDS(error.where, c == 0 ? "operation 2 (digests)" : "operation 3 (barrier)");
        script.result = STW_MPI_OK;
        stw_comm_close(comm);
    }
    logged[0] = '\0';
}

/* Ranks of other nodes say what they see. */
static void other_nodes_are_heard(void) {
    static const struct {
        const char *reports[6], *text;
    } cases[] = {
        {{NULL, NULL, NULL, NULL, NULL, NULL},
         "; rank 0 on another node does not answer; rank 4 on another node does not answer"},
        {{"rank 1 is stopped", NULL, NULL, NULL, NULL, "rank 4 has ended"},
         "; rank 1 is stopped; rank 4 has ended"},
        {{NULL, "", NULL, NULL, "", ""}, "; rank 0 on another node does not answer"},
        {{"", "rank 0 waits", NULL, NULL, "no", "nothing"}, "; rank 0 waits; no"},
        {{"", "", NULL, NULL, "", ""}, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stw_ranks ranks = ranks_of("mpirun", 3, 6, 2);
        stw_comm *comm = open_comm(&ranks, &host);
        stw_error error = STW_ERROR_INIT, own = STW_ERROR_INIT;
        char text[600];
        memcpy(script.reports, cases[i].reports, sizeof script.reports);
        logged[0] = '\0';
        script.result = STW_MPI_TIMED_OUT;
        CU_ASSERT_EQUAL(stw_comm_barrier(comm, &error), STW_STATUS_DEVICE);
        snprintf(text, sizeof text,
                 "not all ranks took part within 2.5 s (MPI): rank 2 has no process on this node%s",
                 cases[i].text);
        WORDS(error.text, text);
        LOGGED("barrier 2.5; report \"rank 2 has no process on this node\" 2; ");
        (void)stw_fail(&own, STW_STATUS_IO, "disk", "is full");
        stw_comm_fail(comm, &own); /* too late: it has given up, and said so */
        stw_comm_close(comm);
        LOGGED("leave 1; ");
    }
    const stw_ranks alone = ranks_of("mpirun", 2, 3, 1);
    stw_comm *comm = open_comm(&alone, &host);
    stw_error error = STW_ERROR_INIT;
    script.reports[0] = script.reports[1] = "";
    script.result = STW_MPI_GIVEN_UP;
    CU_ASSERT_EQUAL(stw_comm_barrier(comm, &error), STW_STATUS_DEVICE);
    WORDS(error.text,
          "another rank has given up (MPI): a rank has failed or issues other operations");
    script.result = STW_MPI_OK;
    stw_comm_close(comm);
    logged[0] = '\0';
}

/* A rank that fails tells why when it leaves. */
static void a_failure_is_told_to_other_nodes(void) {
    stw_error own = STW_ERROR_INIT;
    (void)stw_fail(&own, STW_STATUS_IO, "disk", "is full");
    for (uint32_t local = 1; local <= 3; local += 2) {
        const stw_ranks ranks = ranks_of("mpirun", 2, 3, local);
        stw_comm *comm = open_comm(&ranks, &host);
        logged[0] = '\0';
        stw_comm_fail(comm, NULL);
        stw_comm_fail(comm, &own);
        stw_comm_abort(comm);
        LOGGED("interrupt; ");
        stw_comm_close(comm);
        LOGGED(local == 1 ? "report \"rank 2 has failed: disk: is full\" 0; leave 1; "
                          : "leave 1; ");
        comm = open_comm(&ranks, &host); /* why it gives up is not told by one who leaves well */
        stw_comm_fail(comm, &own);
        logged[0] = '\0';
        stw_comm_close(comm);
        LOGGED("leave 0; ");
    }
}

/* ---- opening ---- */

static void fails_to_open(const stw_ranks *ranks, const stw_backend *backend, stw_status status,
                          const char *where, const char *text, int line) {
    stw_error error = STW_ERROR_INIT;
    stw_comm *comm = NULL;
    CU_ASSERT_EQUAL(stw_comm_open(ranks, backend, 2.5, &comm, &error), status);
    CU_ASSERT_PTR_NULL(comm);
    CU_ASSERT_EQUAL(stw_comm_open(ranks, backend, 2.5, &comm, NULL), status);
    same_words(error.where, where, line);
    if (strncmp(error.text, text, strlen(text)) != 0) same_words(error.text, text, line);
    CU_ASSERT_EQUAL(error.rank, (int)ranks->rank);
}
#define FAILS_TO_OPEN(...) fails_to_open(__VA_ARGS__, __LINE__)

#define NO_PLUGIN                                                                                  \
    "the plugin stowage-mpi.so is not beside the program nor in ../lib/stowage, and "              \
    "STOWAGE_MPI_PLUGIN names none that opens"

static void what_joins_must_be_this_rank(void) {
    stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    script.rank = 2;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_DEVICE, "MPI",
                  "mpirun says rank 1 of 3, MPI says rank 2 of 3");
    LOGGED("join 2.5 0; leave 1; join 2.5 0; leave 1; ");
    script.rank = 1;
    script.world = 4;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_DEVICE, "MPI",
                  "mpirun says rank 1 of 3, MPI says rank 1 of 4");
    script.world = 3;
    logged[0] = '\0';
    script.joins = STW_MPI_FAILED;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_DEVICE, "joining", "MPI says: the cable is cut");
    LOGGED("join 2.5 0; leave 1; join 2.5 0; leave 1; ");
    script.joins = STW_MPI_TIMED_OUT;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_DEVICE, "operation 1 (joining)",
                  "not all ranks took part within 2.5 s (MPI): " NOBODY);
    logged[0] = '\0';
    opens = false;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_NOT_BUILT_IN, "MPI",
                  NO_PLUGIN ": /nowhere/stowage-mpi.so: cannot open shared object file");
    CU_ASSERT_FALSE(stw_comm_mpi_found());
    opens = true;
    CU_ASSERT_TRUE(stw_comm_mpi_found());
    has_symbol = false;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_NOT_BUILT_IN, "stowage-mpi.so",
                  "found an MPI plugin of version 0, expected 3");
    has_symbol = true;
    plugin.version = 1;
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_NOT_BUILT_IN, "stowage-mpi.so",
                  "found an MPI plugin of version 1, expected 3");
    plugin.version = STW_MPI_PLUGIN_VERSION;
    LOGGED("");
    ranks = ranks_of("torchrun", 1, 3, 3);
    FAILS_TO_OPEN(&ranks, &host, STW_STATUS_NOT_BUILT_IN, "torchrun",
                  "3 ranks of the host backend speak MPI, which torchrun does not offer: start "
                  "them with mpirun or srun");
    FAILS_TO_OPEN(&ranks, &gpu, STW_STATUS_NOT_BUILT_IN, "NCCL",
                  "3 ranks with the cuda backend need NCCL, which this program was built without");
    LOGGED("");
}

static void the_plugin_lies_beside_the_program(void) {
    static const char *const beside[] = {"/../lib/stowage/stowage-mpi.so",
                                         "/stowage/stowage-mpi.so", "/../stowage/stowage-mpi.so",
                                         "/stowage-mpi.so"};
    const stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    char folder[4096] = "", path[4200];
    (void)stw_code_folder(folder, sizeof folder);
    for (int e = 0; e < 2; e++) {
        if (e == 0)
            unsetenv("STOWAGE_MPI_PLUGIN");
        else
            setenv("STOWAGE_MPI_PLUGIN", "", 1);
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s%s", folder, beside[i]);
            there = path;
            opened[0] = '\0';
            CU_ASSERT_TRUE(stw_comm_mpi_found());
            WORDS(opened, path);
        }
        there = "";
        CU_ASSERT_FALSE(stw_comm_mpi_found());
        FAILS_TO_OPEN(&ranks, &host, STW_STATUS_NOT_BUILT_IN, "MPI", NO_PLUGIN);
    }
    there = NULL;
    setenv("STOWAGE_MPI_PLUGIN", "stowage-mpi.so", 1);
    LOGGED("");
}

/* ---- NCCL ---- */

static void nccl_joins_with_the_device(void) {
    has_nccl = true;
    for (int with_mpi = 0; with_mpi < 2; with_mpi++) {
        const stw_ranks ranks = ranks_of(with_mpi == 1 ? "mpirun" : "torchrun", 1, 3, 3);
        stw_comm *comm = open_comm(&ranks, &gpu);
        const stw_comm_message message = {0, false, 7, 9};
        uint64_t values[3] = {41, 42, 43};
        char out[4];
        LOGGED(with_mpi == 1 ? "join 2.5 0; " : "");
        WORDS(stw_comm_name(comm), "nccl");
        CU_ASSERT_EQUAL(stw_comm_meets(comm), (with_mpi == 1));
        if (with_mpi == 1) CHECK_OK(stw_comm_exchange(comm, "ab", out, 2, err));
        LOGGED(with_mpi == 1 ? "gather 2 2.5; " : "");
        CHECK_OK(stw_comm_attach(comm, device, 77, err));
        LOGGED(with_mpi == 1 ? "nccl open 77; broadcast +0 4 from 0 2.5; " : "nccl open 77; ");
        CHECK_OK(stw_comm_sum_u64(comm, values, 3, err));
        CHECK_OK(stw_comm_sum_counters(comm, values + 1, 2, err));
        CHECK_OK(stw_comm_gather(comm, "ab", out, 2, err));
        CHECK_OK(stw_comm_broadcast(comm, STW_TIER_GPU, 10, 20, 2, err));
        CHECK_OK(stw_comm_messages(comm, STW_TIER_GPU, &message, 1, err));
        CHECK_OK(stw_comm_barrier(comm, err));
        CHECK_OK(stw_comm_wait(comm, "it", err));
        LOGGED("nccl sum 1 41 3; nccl counters 1 42 2; nccl gather 1 1 2; nccl broadcast 1 gpu 10 "
               "20 from 2; nccl messages 1 gpu 7 9 from 0; nccl barrier 1; nccl wait 1 it; ");
        CHECK_OK(stw_comm_exchange(comm, "ab", out, 2, err));
        LOGGED(with_mpi == 1 ? "gather 2 2.5; " : "nccl gather 1 1 2; ");
        nccl_status = STW_STATUS_IO;
        for (int i = 0; i < N_CALLS; i++) {
            stw_error error = STW_ERROR_INIT;
            if (i == 3) continue;
            CU_ASSERT_EQUAL(call(comm, i, &error), STW_STATUS_IO);
            WORDS(error.text, "is broken");
            CU_ASSERT_EQUAL(error.rank, 1);
        }
        logged[0] = '\0';
        stw_comm_abort(comm);
        LOGGED(with_mpi == 1 ? "nccl abort 1; interrupt; " : "nccl abort 1; ");
        stw_comm_close(comm);
        LOGGED(with_mpi == 1 ? "nccl close 1; leave 1; " : "nccl close 1; ");
    }
    has_nccl = false;
}

static void nccl_may_not_join(void) {
    stw_ranks ranks = ranks_of("mpirun", 1, 3, 3);
    stw_error error = STW_ERROR_INIT;
    has_nccl = true;
    stw_comm *comm = open_comm(&ranks, &gpu);
    logged[0] = '\0';
    nccl_status = STW_STATUS_IO;
    CU_ASSERT_EQUAL(stw_comm_attach(comm, device, 5, &error), STW_STATUS_IO);
    CU_ASSERT_EQUAL(error.rank, 1);
    LOGGED("nccl open 5; broadcast +0 4 from 0 2.5; ");
    stw_comm_abort(comm);
    stw_comm_close(comm);
    LOGGED("interrupt; leave 1; ");
    script.joins = STW_MPI_FAILED;
    FAILS_TO_OPEN(&ranks, &gpu, STW_STATUS_DEVICE, "joining", "MPI says: the cable is cut");
    logged[0] = '\0';
    ranks = ranks_of("mpirun", 1, 3, 3);
    opens = false; /* without the plugin NCCL finds its peers alone */
    comm = open_comm(&ranks, &gpu);
    CU_ASSERT_FALSE(stw_comm_meets(comm));
    stw_comm_close(comm);
    opens = true;
    ranks = ranks_of("mpirun", 0, 1, 1); /* one rank needs neither */
    comm = open_comm(&ranks, &gpu);
    WORDS(stw_comm_name(comm), "alone");
    CU_ASSERT_TRUE(stw_comm_meets(comm));
    CHECK_OK(stw_comm_attach(comm, device, 5, err));
    CHECK_OK(stw_comm_barrier(comm, err));
    stw_comm_close(comm);
    LOGGED("");
    has_nccl = false;
}

int main(void) {
    static const stw_test tests[] = {
        {"calls of MPI", calls_of_mpi},
        {"messages of MPI", messages_of_mpi},
        {"calls that fail", calls_that_fail},
        {"a collective is named", a_collective_is_named},
        {"other nodes are heard", other_nodes_are_heard},
        {"a failure is told to other nodes", a_failure_is_told_to_other_nodes},
        {"what joins must be this rank", what_joins_must_be_this_rank},
        {"the plugin lies beside the program", the_plugin_lies_beside_the_program},
        {"NCCL joins with the device", nccl_joins_with_the_device},
        {"NCCL may not join", nccl_may_not_join}};
    setenv("STOWAGE_MPI_PLUGIN", "stowage-mpi.so", 1);
    return stw_test_run_all("backend transport", tests, sizeof tests / sizeof tests[0]);
}
