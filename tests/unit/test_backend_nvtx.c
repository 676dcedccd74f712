/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX ranges as marks, called as NVTX calls them, on a clock that stands still: every mark, and
 * every number that a range gives back. What the library keeps is of a process, so each case is
 * one. */
#define _GNU_SOURCE /* mkdtemp */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvtx/abi.h"
#include "tests/unit/testing.h"

int InitializeInjectionNvtx2(nvtx_get_export get_export);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    out->tv_sec = clock == CLOCK_REALTIME ? 1234 : 0;
    out->tv_nsec = 5678999;
    return 0;
}

/* ---- NVTX ---- */

enum { SLOTS = 16 };
static nvtx_function core[SLOTS], core2[SLOTS];
static nvtx_function *core_table[SLOTS], *core2_table[SLOTS];
static unsigned n_core = SLOTS, n_core2 = SLOTS;
static size_t struct_size = sizeof(nvtx_callbacks);
static bool has_core = true, has_core2 = true, has_callbacks = true;

static void nothing(void) {}

static int get_table(int module, nvtx_function ***table, unsigned int *size) {
    if (module == 1 && has_core) *table = core_table, *size = n_core;
    if (module == 5) *table = core2_table, *size = n_core2;
    return module == 1 ? has_core : module == 5 && has_core2;
}

static const void *get_export(uint32_t id) {
    static nvtx_callbacks callbacks;
    callbacks = (nvtx_callbacks){struct_size, get_table};
    return id == 1 && has_callbacks ? &callbacks : NULL;
}

static int start(void) {
    for (int i = 0; i < SLOTS; i++) {
        core[i] = core2[i] = nothing;
        core_table[i] = &core[i];
        core2_table[i] = &core2[i];
    }
    return InitializeInjectionNvtx2(get_export);
}

static int push(const char *name) { return ((int (*)(const char *))core[9])(name); }
static int pop(void) { return ((int (*)(void))core[11])(); }

/* ---- cases, each in a process of its own ---- */

static int failed; /* line of the first check that failed */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition) && failed == 0) failed = __LINE__;                                        \
    } while (0)

/* The marks that were written, with times. */
static char marks[20000];

static void run(void (*body)(void)) {
    int result = 0, pipes[2];
    FILE *file = fopen("marks.csv", "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fclose(file);
    fflush(NULL);
    CU_ASSERT_EQUAL_FATAL(pipe(pipes), 0);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    if (child == 0) {
        setenv("STOWAGE_MARKS", "marks.csv", 1);
        setenv("RANK", "12", 1);
        body();
        if (write(pipes[1], &failed, sizeof failed) != sizeof failed) _exit(1);
        exit(0);
    }
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    int line = -1;
    CU_ASSERT_EQUAL(read(pipes[0], &line, sizeof line), (ssize_t)sizeof line);
    if (line != 0) fprintf(stderr, "%s:%d: failed\n", __FILE__, line);
    CU_ASSERT_EQUAL(line, 0);
    close(pipes[0]);
    close(pipes[1]);
    file = fopen("marks.csv", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    marks[fread(marks, 1, sizeof marks - 1, file)] = '\0';
    fclose(file);
    CU_ASSERT_EQUAL(unlink("marks.csv"), 0);
}

static void ranges(void) {
    nvtx_attributes a = {.message_type = 1, .message = "checkpoint"};
    char name[] = "optimizer_step";
    CHECK(start() == 1);
    for (int i = 0; i < SLOTS; i++) {
        CHECK((core[i] != nothing) == (i >= 8 && i <= 11));
        CHECK((core2[i] != nothing) == (i == 4 || i == 5 || i == 10));
    }
    int (*push_ex)(const nvtx_attributes *) = (int (*)(const nvtx_attributes *))core[8];
    int (*push_wide)(const wchar_t *) = (int (*)(const wchar_t *))core[10];
    int (*push_in)(void *, const nvtx_attributes *) =
        (int (*)(void *, const nvtx_attributes *))core2[4];
    int (*pop_in)(void *) = (int (*)(void *))core2[5];
    const char *(*string)(void *, const char *) = (const char *(*)(void *, const char *))core2[10];
    CHECK(pop() == -1);
    CHECK(push("load") == 0);
    CHECK(push("epoch 1") == 1); /* no phase */
    CHECK(push("Forward-Backward") == 2);
    CHECK(push_wide(L"load") == 3);
    CHECK(push_ex(&a) == 4);
    CHECK(push_ex(NULL) == 5);
    CHECK(pop() == 5);
    CHECK(pop() == 4); /* the phase around goes on */
    CHECK(pop() == 3);
    CHECK(pop() == 2);
    CHECK(pop() == 1);
    CHECK(pop() == 0);
    CHECK(pop() == -1);
    CHECK(string(NULL, NULL) == NULL);
    a.message_type = 3;
    a.message = string(NULL, name);
    name[0] = 'x'; /* the handle is a copy */
    CHECK(push_in(NULL, &a) == 0);
    a.message_type = 2; /* not one that is read */
    CHECK(push_in(NULL, &a) == 1);
    CHECK(pop_in(NULL) == 1);
    CHECK(pop_in(NULL) == 0);
    free((void *)(uintptr_t)a.message);
}

static void ranges_are_marks(void) {
    run(ranges);
    CU_ASSERT_STRING_EQUAL(marks, "1234.005678,12,load\n"
                                  "1234.005678,12,forward_backward\n"
                                  "1234.005678,12,checkpoint\n"
                                  "1234.005678,12,forward_backward\n"
                                  "1234.005678,12,load\n"
                                  "1234.005678,12,end\n"
                                  "1234.005678,12,optimizer_step\n"
                                  "1234.005678,12,end\n");
}

static void names(void) {
    static const char *const all[] = {"load",
                                      "ROLLOUT",
                                      "Log Prob",
                                      "forward-backward",
                                      "optimizer step",
                                      "weight_sync",
                                      "CheckPoint",
                                      "loa",
                                      "loads",
                                      "",
                                      "end",
                                      "log  prob",
                                      "xoad",
                                      "oad"};
    CHECK(start() == 1);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) CHECK(push(all[i]) == (int)i);
}

static void names_are_phases(void) {
    run(names);
    CU_ASSERT_STRING_EQUAL(marks, "1234.005678,12,load\n1234.005678,12,rollout\n"
                                  "1234.005678,12,log_prob\n1234.005678,12,forward_backward\n"
                                  "1234.005678,12,optimizer_step\n1234.005678,12,weight_sync\n"
                                  "1234.005678,12,checkpoint\n");
}

/* Deeper than is kept: counted, but no phase. */
static void deep(void) {
    CHECK(start() == 1);
    for (int i = 0; i < 255; i++) CHECK(push("no phase") == i);
    for (int i = 255; i < 300; i++) CHECK(push("load") == i);
    for (int i = 299; i >= 0; i--) CHECK(pop() == i);
    CHECK(pop() == -1);
}

static void deep_ranges_are_counted(void) {
    run(deep);
    CU_ASSERT_STRING_EQUAL(marks, "1234.005678,12,load\n1234.005678,12,end\n");
}

/* ---- ranks ---- */

static const char *const *variables; /* name and value in turn, to NULL */

static void by_environment(void) {
    unsetenv("RANK");
    for (int i = 0; variables[i] != NULL; i += 2) setenv(variables[i], variables[i + 1], 1);
    CHECK(start() == 1);
    CHECK(push("load") == 0);
}

static void ranks_by_the_environment(void) {
    static const char *const cases[][7] = {
        {NULL},
        {"RANK", "123456789", "SLURM_PROCID", "4"},
        {"RANK", "1234567890", "SLURM_PROCID", "4"}, /* too long for one */
        {"RANK", "3x", "OMPI_COMM_WORLD_RANK", "5", "SLURM_PROCID", "4"},
        {"RANK", "", "PMI_RANK", "6"},
        {"RANK", "-1", "PMI_RANK", "0"}};
    static const char *const expected[] = {"", "123456789", "4", "5", "6", "0"};
    char line[80];
    for (int i = 0; i < 6; i++) {
        variables = cases[i];
        run(by_environment);
        snprintf(line, sizeof line, "1234.005678,%s,load\n", expected[i]);
        CU_ASSERT_STRING_EQUAL(marks, line);
    }
}

/* ---- what goes wrong ---- */

static int next_descriptor(void) {
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(file);
    return file;
}

static void without(void) {
    const int before = next_descriptor();
    unsetenv("STOWAGE_MARKS");
    CHECK(start() == 0);
    setenv("STOWAGE_MARKS", "no such file", 1);
    CHECK(start() == 0);
    CHECK(access("no such file", F_OK) != 0);
    setenv("STOWAGE_MARKS", "marks.csv", 1);
    has_callbacks = false;
    CHECK(start() == 0);
    has_callbacks = true;
    struct_size--;
    CHECK(start() == 0);
    struct_size++;
    has_core = false;
    CHECK(start() == 0);
    has_core = true;
    for (int i = 0; i < SLOTS; i++) CHECK(core[i] == nothing && core2[i] == nothing);
    CHECK(next_descriptor() == before);
    has_core2 = false; /* an older NVTX */
    CHECK(start() == 1);
    CHECK(core[9] != nothing && core2[4] == nothing && core2[5] == nothing);
    CHECK(next_descriptor() == before + 1);
    has_core2 = true; /* another library: the same file */
    CHECK(start() == 1);
    CHECK(core2[4] != nothing && core2[10] != nothing);
    CHECK(next_descriptor() == before + 1);
    n_core = 9, n_core2 = 5; /* tables that end early, and have gaps */
    CHECK(start() == 1);
    CHECK(core[8] != nothing && core[9] == nothing && core2[4] != nothing && core2[5] == nothing);
    n_core = SLOTS;
    core_table[9] = NULL;
    core[9] = nothing;
    CHECK(InitializeInjectionNvtx2(get_export) == 1);
    CHECK(core[9] == nothing && core[11] != nothing);
}

static void what_is_missing_is_left_out(void) {
    run(without);
    CU_ASSERT_STRING_EQUAL(marks, "");
}

/* The program closes what it does not know, and opens a file of its own there. */
static void closed(void) {
    struct stat about;
    const int file = next_descriptor();
    CHECK(start() == 1);
    CHECK(push("load") == 0);
    close(file);
    CHECK(open("own.txt", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) == file);
    CHECK(push("rollout") == 1);
    CHECK(next_descriptor() == file + 2); /* opened anew */
    CHECK(push("weight_sync") == 2);
    CHECK(next_descriptor() == file + 2); /* once */
    CHECK(stat("own.txt", &about) == 0 && about.st_size == 0);
    /* The file of marks is another one now: nobody's. */
    close(file + 1);
    CHECK(rename("marks.csv", "moved.csv") == 0);
    CHECK(open("marks.csv", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) == file + 1);
    CHECK(push("checkpoint") == 3);
    CHECK(next_descriptor() == file + 2);
    CHECK(stat("marks.csv", &about) == 0 && about.st_size == 0);
    CHECK(unlink("marks.csv") == 0);
    CHECK(push("checkpoint") == 4);
    CHECK(rename("moved.csv", "marks.csv") == 0);
    CHECK(unlink("own.txt") == 0);
}

static void descriptors_are_not_trusted(void) {
    run(closed);
    CU_ASSERT_STRING_EQUAL(marks, "1234.005678,12,load\n1234.005678,12,rollout\n"
                                  "1234.005678,12,weight_sync\n");
}

STW_TEST_MAIN("backend nvtx", {"ranges are marks", ranges_are_marks},
              {"names are phases", names_are_phases},
              {"deep ranges are counted", deep_ranges_are_counted},
              {"ranks by the environment", ranks_by_the_environment},
              {"what is missing is left out", what_is_missing_is_left_out},
              {"descriptors are not trusted", descriptors_are_not_trusted})
