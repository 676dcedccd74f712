/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of one node see of each other. The other ranks are this program, started again; each
 * obeys one-letter commands, so that nothing depends on time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/comm/ops.h"
#include "backend/comm/remind.h"
#include "core/log.h"
#include "tests/unit/testing.h"

enum { TEXT = 1400 };

static char self[4096];
static const char *rank_variable = "OMPI_COMM_WORLD_RANK";

static stw_ranks ranks_of(const char *launcher, uint32_t rank, uint32_t world, uint32_t local_rank,
                          uint32_t local_world) {
    stw_ranks r = {.rank = rank, .world = world};
    r.local_rank = local_rank;
    r.local_world = local_world;
    snprintf(r.launcher, sizeof r.launcher, "%s", launcher);
    return r;
}

/* ---- the other ranks ---- */

typedef struct other {
    pid_t process;
    int commands, answers;
} other;

/* A transport that joins when a device is there: opening waits for nobody. */
static const stw_comm_ops nccl = {.name = "nccl"};
const stw_comm_ops *stw_comm_nccl_ops(void) { return &nccl; }
static const stw_backend gpu = {.name = "cuda", .gpu = true};

static int be_rank(char **argv) {
    stw_ranks ranks = ranks_of(argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]),
                               (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
    stw_watch *watch = NULL;
    stw_comm *comm = NULL;
    char command, answer, text[TEXT];
    while (read(STDIN_FILENO, &command, 1) == 1) {
        answer = '.';
        if (command == 'o') watch = stw_watch_open(&ranks);
        if (command == 'c' && stw_comm_open(&ranks, &gpu, 60, &comm, NULL) != STW_STATUS_OK)
            return 1;
        if (command == 'b') stw_watch_begin(watch, "sum");
        if (command == 'e') stw_watch_end(watch);
        if (command == 'g') stw_watch_give_up(watch, "disk: full");
        if (command == 'n') stw_watch_give_up(watch, NULL);
        if (command == 'm') answer = stw_watch_missing(watch, text, sizeof text) ? 'y' : 'n';
        if (command == 'q') break;
        if (write(STDOUT_FILENO, &answer, 1) != 1) return 1;
    }
    stw_comm_close(comm);
    stw_watch_close(watch);
    return 0;
}

static char tell(const other *rank, char command) {
    char answer = 0;
    CU_ASSERT_EQUAL_FATAL(write(rank->commands, &command, 1), 1);
    CU_ASSERT_EQUAL_FATAL(read(rank->answers, &answer, 1), 1);
    return answer;
}

/* Start a rank of the job that `variable` names; it shows nothing until it is told to. */
static other start(const char *launcher, const char *rank, const char *world, const char *job) {
    int in[2], out[2];
    CU_ASSERT_EQUAL_FATAL(pipe2(in, O_CLOEXEC), 0);
    CU_ASSERT_EQUAL_FATAL(pipe2(out, O_CLOEXEC), 0);
    pid_t process = fork();
    CU_ASSERT_FATAL(process >= 0);
    if (process == 0) {
        char *const argv[] = {self,         (char *)"rank", (char *)launcher,
                              (char *)rank, (char *)world,  NULL};
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        (void)setenv(rank_variable, rank, 1);
        (void)setenv("TORCHELASTIC_RUN_ID", job, 1);
        (void)execv(self, argv);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    other started = {process, in[1], out[0]};
    CU_ASSERT_EQUAL_FATAL(tell(&started, '?'), '.'); /* its environment is its own now */
    return started;
}

static void reap(other *rank) {
    if (rank->process == 0) return;
    (void)close(rank->commands);
    (void)close(rank->answers);
    (void)waitpid(rank->process, NULL, 0);
    rank->process = 0;
}

/* "%d" stands for the rank's process. */
static void describes(stw_watch *watch, const char *expected, pid_t process) {
    char text[TEXT], wanted[TEXT];
    const char *number = strstr(expected, "%d");
    if (number == NULL)
        snprintf(wanted, sizeof wanted, "%s", expected);
    else
        snprintf(wanted, sizeof wanted, "%.*s%d%s", (int)(number - expected), expected,
                 (int)process, number + 2);
    stw_watch_describe(watch, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, wanted);
    if (strcmp(text, wanted) != 0) fprintf(stderr, "found: %s\nexpected: %s\n", text, wanted);
}

/* ---- tests ---- */

#define NOBODY "rank 2 has no process on this node"

static void a_rank_without_a_page_is_named_with_its_program(void) {
    static const char *const launchers[][2] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK"}, {"torchrun", "RANK"}, {"slurm", "SLURM_PROCID"}};
    for (int i = 0; i < 3; i++) {
        rank_variable = launchers[i][1];
        const stw_ranks ranks = ranks_of(launchers[i][0], 0, 3, 0, 3);
        stw_watch *watch = stw_watch_open(&ranks);
        other one = start(launchers[i][0], "1", "3", "job"),
              stranger = start(launchers[i][0], "2", "3", "other");
        char text[TEXT], wanted[TEXT];
        (void)tell(&stranger, 'o');
        stw_watch_describe(watch, text, sizeof text);
        snprintf(wanted, sizeof wanted,
                 "rank 1 (process %d) has not joined: it runs test_backend_wa; if that is no rank "
                 "of this plan, take it out of the launcher's command; see: ps -fp %d on ",
                 (int)one.process, (int)one.process);
        CU_ASSERT_EQUAL(strncmp(text, wanted, strlen(wanted)), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "; " NOBODY)); /* the stranger is of another job */
        reap(&one);
        reap(&stranger);
        stw_watch_close(watch);
    }
    rank_variable = launchers[0][1];
}

static void operations_are_named(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 3, 0, 3);
    stw_watch *watch = stw_watch_open(&ranks);
    char text[TEXT];
    other one = start("mpirun", "1", "3", "job");
    (void)tell(&one, 'o');
    stw_watch_operation(watch, "nothing yet", text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "nothing yet");
    describes(watch, NOBODY, 0); /* nobody is late before the first operation */
    stw_watch_begin(watch, "digests");
    stw_watch_operation(watch, "nothing yet", text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "operation 1 (digests)");
    describes(watch,
              "rank 1 (process %d) has not come to it: it runs, and is before its first "
              "operation; " NOBODY,
              one.process);
    (void)tell(&one, 'b');
    describes(watch, NOBODY, 0);
    stw_watch_end(watch);
    stw_watch_begin(watch, "barrier");
    describes(watch,
              "rank 1 (process %d) has not come to it: it runs, and is in operation 1 "
              "(sum); " NOBODY,
              one.process);
    (void)tell(&one, 'e');
    describes(watch,
              "rank 1 (process %d) has not come to it: it runs, and is after operation 1 "
              "(sum); " NOBODY,
              one.process);
    stw_watch_describe(watch, text, 20); /* cut, and a text all the same */
    CU_ASSERT_EQUAL(strlen(text), 19);
    reap(&one);
    stw_watch_close(watch);
}

/* Who has opened its transport does not wait in it any more. */
static void joining_has_an_end(void) {
    const stw_ranks ranks = ranks_of("torchrun", 0, 2, 0, 2);
    rank_variable = "RANK";
    stw_watch *watch = stw_watch_open(&ranks);
    other one = start("torchrun", "1", "2", "job");
    (void)tell(&one, 'c');
    stw_watch_begin(watch, "joining");
    stw_watch_end(watch);
    stw_watch_begin(watch, "sum");
    describes(watch,
              "rank 1 (process %d) has not come to it: it runs, and is after operation 1 (joining)",
              one.process);
    reap(&one);
    stw_watch_close(watch);
    rank_variable = "OMPI_COMM_WORLD_RANK";
}

static void stopped_and_ended_ranks_are_named(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 2, 0, 2);
    stw_watch *watch = stw_watch_open(&ranks);
    char text[TEXT], wanted[TEXT];
    other one = start("mpirun", "1", "2", "job");
    (void)tell(&one, 'o');
    (void)tell(&one, 'b');
    stw_watch_begin(watch, "sum");
    CU_ASSERT_EQUAL_FATAL(kill(one.process, SIGSTOP), 0);
    CU_ASSERT_EQUAL_FATAL(waitpid(one.process, NULL, WUNTRACED), one.process);
    snprintf(wanted, sizeof wanted,
             "rank 1 (process %d) is stopped in operation 1 (sum); to continue it: kill -CONT %d "
             "on ",
             (int)one.process, (int)one.process);
    stw_watch_describe(watch, text, sizeof text);
    CU_ASSERT_EQUAL(strncmp(text, wanted, strlen(wanted)), 0);
    CU_ASSERT_EQUAL_FATAL(kill(one.process, SIGKILL), 0);
    siginfo_t about; /* it stays a zombie */
    CU_ASSERT_EQUAL_FATAL(waitid(P_PID, (id_t)one.process, &about, WEXITED | WNOWAIT), 0);
    describes(watch, "rank 1 (process %d) has ended in operation 1 (sum)", one.process);
    stw_watch_close(watch);
    reap(&one);
}

static void who_gives_up_is_told_to_the_others(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 2, 0, 2);
    stw_watch *watch = stw_watch_open(&ranks);
    char text[TEXT], wanted[TEXT];
    other one = start("mpirun", "1", "2", "job");
    (void)tell(&one, 'o');
    stw_watch_find(watch);
    stw_watch_begin(watch, "sum");
    CU_ASSERT_FALSE(stw_watch_others_gave_up(watch));
    stw_watch_who_gave_up(watch, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "a rank has failed or issues other operations");
    (void)tell(&one, 'g');
    CU_ASSERT_TRUE(stw_watch_others_gave_up(watch));
    describes(watch, "rank 1 (process %d) has failed: disk: full", one.process);
    stw_watch_who_gave_up(watch, text, sizeof text);
    snprintf(wanted, sizeof wanted, "rank 1 (process %d) waits no longer", (int)one.process);
    CU_ASSERT_STRING_EQUAL(text, wanted);
    (void)tell(&one, 'b'); /* it has come to it and failed there: the others see that themselves */
    describes(watch, "", 0);

    stw_watch_why(watch, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    stw_watch_give_up(watch, "memory: none");
    stw_watch_give_up(watch, "the second reason is not told");
    stw_watch_why(watch, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "rank 0 has failed: memory: none");
    stw_watch_close(watch);
    reap(&one);
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For a second where the other runs on; not at all before this rank has given up. */
static void a_rank_lingers_until_the_others_know(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 2, 0, 2);
    stw_watch *watch = stw_watch_open(&ranks);
    other one = start("mpirun", "1", "2", "job");
    (void)tell(&one, 'o');
    stw_watch_find(watch);
    stw_watch_give_up(watch, NULL);
    const double begin = now();
    stw_watch_linger(watch);
    CU_ASSERT(now() - begin >= 0.99);
    stw_watch_close(watch);
    reap(&one);
}

static void missing_ranks_are_told_by_the_first(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 3, 0, 3);
    stw_watch *watch = stw_watch_open(&ranks);
    char text[TEXT];
    other one = start("mpirun", "1", "3", "job");
    (void)tell(&one, 'o');
    CU_ASSERT_TRUE(stw_watch_missing(watch, text, sizeof text));
    CU_ASSERT_STRING_EQUAL(text, "1 of 3 ranks to start: " NOBODY);
    CU_ASSERT_EQUAL(tell(&one, 'm'), 'y'); /* no page of rank 0 is found: its environment differs */
    other zero = start("mpirun", "0", "3", "job");
    (void)tell(&zero, 'o');
    CU_ASSERT_EQUAL(tell(&one, 'm'), 'n'); /* rank 0 says it */
    other two = start("mpirun", "2", "3", "job");
    (void)tell(&two, 'o');
    CU_ASSERT_FALSE(stw_watch_missing(watch, text, sizeof text));
    stw_watch_close(watch);
    reap(&zero);
    reap(&one);
    reap(&two);
}

static void ranks_of_other_nodes(void) {
    char text[TEXT], host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    stw_ranks ranks = ranks_of("mpirun", 4, 6, 0, 2); /* ranks 4 and 5 are here */
    stw_watch *watch = stw_watch_open(&ranks);
    stw_watch_begin(watch, "sum");
    describes(watch, "rank 5 has no process on this node", 0);
    CU_ASSERT_TRUE(stw_watch_missing(watch, text, sizeof text));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "1 of the 2 ranks of "));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, ", and maybe for other nodes: rank 5 has no process on this node"));
    stw_watch_close(watch);

    ranks = ranks_of("mpirun", 4, 6, 0, 1); /* alone on its node */
    watch = stw_watch_open(&ranks);
    CU_ASSERT_TRUE(stw_watch_missing(watch, text, sizeof text));
    CU_ASSERT_PTR_EQUAL(strstr(text, "ranks of other nodes than "), text);
    stw_watch_close(watch);

    ranks = ranks_of("mpirun", 1, 8, 1, 8); /* four are named */
    watch = stw_watch_open(&ranks);
    describes(watch,
              "rank 0 has no process on this node; " NOBODY "; rank 3 has no process on this node; "
              "rank 4 has no process on this node; and 3 more ranks",
              0);
    stw_watch_close(watch);
}

/* What the handler of a signal writes to stderr. */
static void said(char *out, size_t out_size) {
    FILE *file = tmpfile();
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    (void)dup2(fileno(file), STDERR_FILENO);
    stw_watch_on_signal();
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    rewind(file);
    out[fread(out, 1, out_size - 1, file)] = '\0';
    (void)fclose(file);
}

static void a_signal_names_ranks_that_have_ended(void) {
    const stw_ranks ranks = ranks_of("mpirun", 0, 2, 0, 2);
    stw_watch *watch = stw_watch_open(&ranks);
    char text[TEXT], wanted[TEXT];
    other one = start("mpirun", "1", "2", "job");
    const int process = (int)one.process;
    (void)tell(&one, 'o');
    stw_watch_find(watch);
    stw_watch_begin(watch, "joining");
    stw_watch_begin(watch, "sum");
    said(text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    reap(&one);
    errno = 7;
    said(text, sizeof text);
    snprintf(wanted, sizeof wanted,
             "stowage: rank 0 is ended in operation 2 (sum): rank 1 (process %d) has ended "
             "before\n",
             process);
    CU_ASSERT_STRING_EQUAL(text, wanted);
    stw_watch_close(watch);
    said(text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
}

static char logged[TEXT];
static atomic_bool has_logged;

static void keep_log(stw_log_level level, const char *text, void *state) {
    (void)state;
    if (level == STW_LOG_WARN) snprintf(logged, sizeof logged, "%s", text);
    atomic_store(&has_logged, true);
}

static void people_are_told_who_is_waited_for(void) {
    const stw_ranks ranks = ranks_of("mpirun", 1, 2, 0, 1);
    const struct timespec nap = {0, 1000000};
    stw_watch *watch = stw_watch_open(&ranks);
    stw_log_set(keep_log, NULL);
    stw_remind_end(stw_remind_begin(watch, 3600)); /* ended before it had something to say */
    CU_ASSERT_FALSE(atomic_load(&has_logged));
    stw_remind *remind = stw_remind_begin(watch, 0.25); /* half of a short limit */
    const double begin = now();
    CU_ASSERT_PTR_NOT_NULL_FATAL(remind);
    while (!atomic_load(&has_logged) && now() - begin < 60) (void)nanosleep(&nap, NULL);
    CU_ASSERT(now() - begin >= 0.12);
    stw_remind_end(remind);
    CU_ASSERT_PTR_EQUAL(strstr(logged, "waiting for ranks of other nodes than "), logged);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "the deadline is 0.25 s after the start (--timeout)"));
    stw_log_set(NULL, NULL);
    stw_watch_close(watch);
    CU_ASSERT_PTR_NULL(stw_remind_begin(NULL, 1));
    stw_remind_end(NULL);
}

static void nobody_watches_a_single_rank(void) {
    char text[TEXT];
    stw_watch_begin(NULL, "sum");
    stw_watch_end(NULL);
    stw_watch_find(NULL);
    stw_watch_give_up(NULL, "why");
    stw_watch_linger(NULL);
    stw_watch_describe(NULL, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    stw_watch_why(NULL, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    stw_watch_operation(NULL, "alone", text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "alone");
    CU_ASSERT_FALSE(stw_watch_others_gave_up(NULL));
    CU_ASSERT_FALSE(stw_watch_missing(NULL, text, sizeof text));
    stw_watch_close(NULL);
}

static void alone_every_collective_is_of_one(void) {
    stw_error error = STW_ERROR_INIT;
    const stw_backend *host = &stw_backend_host;
    const stw_ranks alone = {.world = 1, .local_world = 1};
    uint64_t mine[2] = {3, 5}, all[2] = {0, 0};
    stw_comm *comm = NULL;
    CHECK_OK(stw_comm_open(&alone, host, 1, &comm, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(comm);
    CU_ASSERT_STRING_EQUAL(stw_comm_name(comm), "alone");
    CU_ASSERT_TRUE(stw_comm_meets(comm));
    CHECK_OK(stw_comm_sum_u64(comm, mine, 2, err));
    CHECK_OK(stw_comm_sum_counters(comm, mine, 2, err));
    CU_ASSERT(mine[0] == 3 && mine[1] == 5);
    CHECK_OK(stw_comm_gather(comm, mine, all, sizeof all, err));
    CU_ASSERT(all[0] == 3 && all[1] == 5);
    mine[1] = 9;
    CHECK_OK(stw_comm_exchange(comm, mine, all, sizeof all, err));
    CU_ASSERT_EQUAL(all[1], 9);
    CHECK_OK(stw_comm_broadcast(comm, STW_TIER_HOST, 0, 8, 0, err));
    CHECK_OK(stw_comm_barrier(comm, err));
    CHECK_OK(stw_comm_wait(comm, "barrier", err));
    stw_comm_abort(comm);
    stw_comm_close(comm);
    stw_comm_close(NULL);
    stw_comm_abort(NULL);
    stw_comm_fail(NULL, &error);
    const stw_ranks two = ranks_of("torchrun", 1, 2, 1, 2);
    CU_ASSERT_EQUAL(stw_comm_open(&two, host, 1, &comm, &error), STW_STATUS_NOT_BUILT_IN);
    CU_ASSERT_EQUAL(error.rank, 1);
    CU_ASSERT_PTR_NULL(comm);
    CU_ASSERT_PTR_NOT_NULL(strstr(error.text, "start them with mpirun or srun"));
}

int main(int argc, char **argv) {
    static const stw_test tests[] = {
        {"a rank without a page is named with its program",
         a_rank_without_a_page_is_named_with_its_program},
        {"operations are named", operations_are_named},
        {"joining has an end", joining_has_an_end},
        {"stopped and ended ranks are named", stopped_and_ended_ranks_are_named},
        {"who gives up is told to the others", who_gives_up_is_told_to_the_others},
        {"a rank lingers until the others know", a_rank_lingers_until_the_others_know},
        {"missing ranks are told by the first", missing_ranks_are_told_by_the_first},
        {"ranks of other nodes", ranks_of_other_nodes},
        {"a signal names ranks that have ended", a_signal_names_ranks_that_have_ended},
        {"people are told who is waited for", people_are_told_who_is_waited_for},
        {"nobody watches a single rank", nobody_watches_a_single_rank},
        {"alone every collective is of one", alone_every_collective_is_of_one},
    };
    if (argc == 5 && strcmp(argv[1], "rank") == 0) return be_rank(argv);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("RANK");
    unsetenv("SLURM_PROCID");
    setenv("TORCHELASTIC_RUN_ID", "job", 1);
    return stw_test_run_all("backend watch", tests, sizeof tests / sizeof tests[0]);
}
