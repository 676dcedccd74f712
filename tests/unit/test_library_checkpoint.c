/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job of the caller's: three ranks save, two others of another cut and precision
 * load; what is damaged, torn or swapped is named; a rank that does not save keeps nobody waiting.
 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/library_case.h"

/* ---- a job ---- */

enum { TENSORS = 7, KINDS = 4, MOST_RANKS = 3 };
static const struct {
    const char *name;
    uint32_t dimensions;
    uint64_t shape[4];
} tensors[TENSORS] = {{"model.embed.weight", 2, {37, 129}},
                      {"model.norm.weight", 1, {5}},
                      {"model.empty", 2, {0, 7}},
                      {"model.layers.0.a.weight", 2, {400, 33}},
                      {"model.one", 0, {0}},
                      {"model.layers.0.b.weight", 3, {3, 7, 11}},
                      {"lm_head.weight", 2, {64, 50}}};
static const char *const kinds[KINDS] = {"params", "master", "exp_avg", "exp_avg_sq"};

typedef struct job {
    uint32_t world, n_pieces;
    const char *dtypes[KINDS];
    stw_held_t pieces[TENSORS * MOST_RANKS];
    void *memory[TENSORS * MOST_RANKS][KINDS]; /* of all ranks */
    stw_saved_t *saved[MOST_RANKS];
} job;

static uint64_t shape_of(uint32_t t, uint32_t d) {
    return d < tensors[t].dimensions ? tensors[t].shape[d] : 1;
}

static uint64_t volume(const stw_held_t *p) {
    return p->count[0] * p->count[1] * p->count[2] * p->count[3];
}

/* A value that bf16 has. */
static float value_of(uint32_t kind, uint32_t tensor, uint64_t element) {
    return (float)((int)((element * 7 + tensor * 31 + kind * 13) % 255) - 127) * 0.5f;
}

static void store(const char *dtype, void *memory, uint64_t i, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype[0] == 'B')
        ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    else
        ((uint32_t *)memory)[i] = bits;
}

static float load(const char *dtype, const void *memory, uint64_t i) {
    uint32_t bits = dtype[0] == 'B' ? (uint32_t)((const uint16_t *)memory)[i] << 16
                                    : ((const uint32_t *)memory)[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t element_of(const stw_held_t *p, uint64_t i) {
    uint64_t at[4], element = 0;
    for (int d = 3; d >= 0; d--) {
        at[d] = p->first[d] + i % p->count[d];
        i /= p->count[d];
    }
    for (uint32_t d = 0; d < 4; d++) element = element * shape_of(p->tensor, d) + at[d];
    return element;
}

/* Cut along a dimension, replicated, or of one rank alone. */
static void cut(job *j, uint32_t turn) {
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t r = 0; r < j->world; r++) {
            stw_held_t *p = &j->pieces[j->n_pieces++];
            *p = (stw_held_t){.rank = r, .tensor = t, .params = 1, .state = 1};
            for (uint32_t d = 0; d < 4; d++) p->count[d] = shape_of(t, d);
            const uint32_t way = (t + turn) % 4, dim = way == 1 && tensors[t].dimensions > 1;
            if (way == 2) continue;
            if (way == 3) {
                if (r != 0) p->count[0] = 0;
                continue;
            }
            const uint64_t all = p->count[dim], size = (all + j->world - 1) / j->world;
            p->first[dim] = size * r < all ? size * r : all;
            p->count[dim] = all - p->first[dim] < size ? all - p->first[dim] : size;
        }
}

static stw_status_t plan_rank(job *j, uint32_t rank) {
    stw_saved_tensor_t own[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++) {
        own[t] = (stw_saved_tensor_t){
            .name = tensors[t].name, .dtype = j->dtypes[0], .dimensions = tensors[t].dimensions};
        memcpy(own[t].shape, tensors[t].shape, sizeof tensors[t].shape);
    }
    const stw_saved_options_t options = {.tensors = own,
                                         .n_tensors = TENSORS,
                                         .pieces = j->pieces,
                                         .n_pieces = j->n_pieces,
                                         .rank = rank,
                                         .world = j->world,
                                         .master = j->dtypes[1],
                                         .exp_avg = j->dtypes[2],
                                         .exp_avg_sq = j->dtypes[3],
                                         .bucket_bytes = 16384};
    return stw_plan_checkpoint(&options, sizeof options, &j->saved[rank], error);
}

static void open_job(job *j, uint32_t world, uint32_t turn, const char *const *dtypes, bool full) {
    *j = (job){.world = world};
    memcpy(j->dtypes, dtypes, sizeof j->dtypes);
    cut(j, turn);
    for (uint32_t i = 0; i < j->n_pieces; i++)
        for (uint32_t k = 0; k < KINDS; k++) {
            if (j->dtypes[k] == NULL) continue;
            const uint64_t n = volume(&j->pieces[i]);
            j->memory[i][k] = calloc(n + 1, 4);
            for (uint64_t e = 0; full && e < n; e++)
                store(j->dtypes[k], j->memory[i][k], e,
                      value_of(k, j->pieces[i].tensor, element_of(&j->pieces[i], e)));
        }
    for (uint32_t r = 0; r < world; r++) library_ok(plan_rank(j, r), "plan");
}

static void close_job(job *j) {
    for (uint32_t r = 0; r < j->world; r++) stw_free_saved(j->saved[r]);
    for (uint32_t i = 0; i < j->n_pieces; i++)
        for (uint32_t k = 0; k < KINDS; k++) free(j->memory[i][k]);
}

static uint32_t sources_of(const job *j, uint32_t rank, stw_save_source_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_pieces; i++)
        for (uint32_t k = 0; k < KINDS; k++)
            if (j->pieces[i].rank == rank && j->dtypes[k] != NULL)
                out[n++] = (stw_save_source_t){
                    .piece = i, .component = kinds[k], .address = j->memory[i][k]};
    return n;
}

static stw_status_t begin(job *j, uint32_t rank, uint64_t step, uint32_t keep) {
    static const double rates[2] = {1e-3, 1e-4}, decays[2] = {0.1, 0};
    stw_save_source_t sources[TENSORS * KINDS];
    const stw_save_options_t options = {.folder = "saves",
                                        .step = step,
                                        .number = 77,
                                        .keep = keep,
                                        .terms = "optimizer.beta1 = 0.9\nmodel = test\n",
                                        .learning_rates = rates,
                                        .weight_decays = decays,
                                        .n_groups = 2};
    const uint32_t n = sources_of(j, rank, sources);
    return stw_begin_save(j->saved[rank], &options, sizeof options, sources, n, error);
}

static void save_all(job *j, uint64_t step, uint32_t keep) {
    stw_save_result_t result;
    int complete = 0;
    for (uint32_t r = 0; r < j->world; r++) library_ok(begin(j, r, step, keep), "begin");
    bool failed = false;
    for (uint32_t r = 0; r < j->world; r++) {
        const stw_status_t status = stw_finish_save(j->saved[r], &result, sizeof result, error);
        complete += result.complete;
        failed |= status != STOWAGE_OK;
        if (status != STOWAGE_OK) /* one that gives up makes the others fail */
            fprintf(stderr, "rank %u of %u: %s\n", r, j->world, stw_get_error_text(error));
    }
    CU_ASSERT_FALSE_FATAL(failed);
    CU_ASSERT_EQUAL(complete, 1);
}

/* Components [0, end) */
static stw_status_t load_some(job *j, uint32_t rank, const char *path, uint32_t end) {
    stw_save_source_t targets[TENSORS * KINDS];
    stw_checkpoint_t *checkpoint = NULL;
    stw_status_t status = stw_open_checkpoint(path, &checkpoint, error);
    uint32_t n = sources_of(j, rank, targets);
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t k = end; k < KINDS; k++)
            if (strcmp(targets[i].component, kinds[k]) == 0) {
                targets[i] = targets[--n];
                break;
            }
    if (status == STOWAGE_OK)
        status = stw_load_checkpoint(checkpoint, j->saved[rank], targets, n, error);
    stw_free_checkpoint(checkpoint);
    return status;
}

static stw_status_t load_rank(job *j, uint32_t rank, const char *path) {
    return load_some(j, rank, path, KINDS);
}

static void check(const job *j) {
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < j->n_pieces; i++)
        for (uint32_t k = 0; k < KINDS; k++)
            for (uint64_t e = 0; j->dtypes[k] != NULL && e < volume(&j->pieces[i]); e++) {
                const uint32_t t = j->pieces[i].tensor;
                const uint32_t of = k == 0 && j->dtypes[1] == NULL ? 1 : k; /* the master's */
                wrong += load(j->dtypes[k], j->memory[i][k], e) !=
                         value_of(of, t, element_of(&j->pieces[i], e));
            }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void remove_folder(const char *path) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", path);
    if (system(command) != 0) fprintf(stderr, "%s failed\n", command);
}

static const char *const usual[KINDS] = {"BF16", "F32", "F32", "BF16"};

/* ---- ranks, cuts and precisions ---- */

static void round_trip(void) {
    static const char *const others[][KINDS] = {{"BF16", "F32", "BF16", "F32"},
                                                {"F32", NULL, "F32", "F32"}};
    job three, two;
    stw_checkpoint_t *checkpoint = NULL;
    stw_checkpoint_info_t info;
    stw_saved_info_t saved[3];
    remove_folder("saves");
    open_job(&three, 3, 0, usual, true);
    for (uint32_t r = 0; r < 3; r++) stw_get_saved_info(three.saved[r], &saved[r], sizeof saved[r]);
    CU_ASSERT(saved[0].sum == saved[1].sum && saved[1].sum == saved[2].sum);
    CU_ASSERT(saved[0].rank_bytes + saved[1].rank_bytes + saved[2].rank_bytes < saved[0].bytes);
    save_all(&three, 10, 0);
    library_ok(stw_open_checkpoint("saves", &checkpoint, error), "open");
    stw_get_checkpoint_info(checkpoint, &info, sizeof info);
    CU_ASSERT(info.step == 10 && info.world == 3 && info.terms == 2 && info.groups == 2);
    const char *key = NULL, *value = NULL;
    double lr = 0, decay = 1;
    CU_ASSERT(stw_get_checkpoint_term(checkpoint, 0, &key, &value) == 1 &&
              strcmp(key, "optimizer.beta1") == 0 && strcmp(value, "0.9") == 0);
    CU_ASSERT(stw_get_checkpoint_group(checkpoint, 1, &lr, &decay) == 1 && lr == 1e-4 &&
              decay == 0);
    library_ok(stw_verify_checkpoint(checkpoint, error), "verify");
    stw_free_checkpoint(checkpoint);
    for (uint32_t turn = 0; turn < 4; turn++)
        for (int o = 0; o < 2; o++) {
            open_job(&two, 2, turn, others[o], false);
            for (uint32_t r = 0; r < 2; r++) library_ok(load_rank(&two, r, "saves"), "load");
            check(&two);
            close_job(&two);
        }
    close_job(&three);
}

/* A missing rank keeps nobody waiting, and what it leaves is not taken for a checkpoint. */
static void nobody_waits(void) {
    job j;
    stw_save_result_t result;
    stw_checkpoint_t *checkpoint = NULL;
    stw_checkpoint_info_t info;
    remove_folder("saves");
    open_job(&j, 2, 0, usual, true);
    save_all(&j, 1, 0);
    library_ok(begin(&j, 0, 2, 0), "begin");
    library_ok(stw_finish_save(j.saved[0], &result, sizeof result, error), "finish alone");
    CU_ASSERT(result.complete == 0 && result.seconds < 10 && result.bytes > 0);
    library_ok(stw_open_checkpoint("saves", &checkpoint, error), "the one before");
    stw_get_checkpoint_info(checkpoint, &info, sizeof info);
    CU_ASSERT_EQUAL(info.step, 1);
    stw_free_checkpoint(checkpoint);
    library_ok(begin(&j, 1, 2, 0), "begin late");
    library_ok(stw_finish_save(j.saved[1], &result, sizeof result, error), "finish late");
    CU_ASSERT_EQUAL(result.complete, 1);
    close_job(&j);
}

static int folders(void) {
    DIR *folder = opendir("saves");
    int n = 0;
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder))
        n += strncmp(e->d_name, "step-", 5) == 0 || strncmp(e->d_name, ".step-", 6) == 0;
    (void)closedir(folder);
    return n;
}

static void old_ones_go(void) {
    job j;
    remove_folder("saves");
    open_job(&j, 2, 1, usual, true);
    for (uint64_t step = 1; step <= 5; step++) save_all(&j, step, 2);
    CU_ASSERT_EQUAL(folders(), 2);
    save_all(&j, 5, 2); /* again: it takes the place of the other one */
    CU_ASSERT_EQUAL(folders(), 2);
    library_ok(load_rank(&j, 0, "saves/step-00000004"), "the older one");
    library_ok(load_rank(&j, 1, "saves/step-00000005"), "the newer one");
    close_job(&j);
}

/* A limit on the size of files stands for a full disk. */
static void full_disk(void) {
    job j;
    struct rlimit before, small;
    remove_folder("saves");
    open_job(&j, 2, 0, usual, true);
    save_all(&j, 1, 1);
    (void)signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 40000;
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t r = 0; r < 2; r++) {
        library_ok(begin(&j, r, 2, 1), "begin");
        library_refused(stw_finish_save(j.saved[r], NULL, sizeof(stw_save_result_t), error),
                        STOWAGE_NO_RESOURCES, "safetensors");
    }
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
    CU_ASSERT_EQUAL(folders(), 1);
    library_ok(load_rank(&j, 0, "saves"), "the one before is whole");
    save_all(&j, 3, 1); /* the next save works again */
    CU_ASSERT_EQUAL(folders(), 1);
    close_job(&j);
}

/* ---- damage ---- */

#define MOST_FILES 16
typedef struct listing {
    int n;
    char names[MOST_FILES][128];
} listing;

static void list_files(const char *folder, listing *out) {
    DIR *opened = opendir(folder);
    out->n = 0;
    for (struct dirent *e = readdir(opened); e != NULL; e = readdir(opened))
        if (e->d_name[0] != '.' && out->n < MOST_FILES)
            snprintf(out->names[out->n++], sizeof out->names[0], "%s/%.80s", folder, e->d_name);
    (void)closedir(opened);
}

static void flip(const char *path, uint64_t offset, int bit) {
    unsigned char byte = 0;
    const int fd = open(path, O_RDWR);
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= (unsigned char)(1 << bit);
    CU_ASSERT_EQUAL(pwrite(fd, &byte, 1, (off_t)offset), 1);
    (void)close(fd);
}

/* All ranks of a job read components [0, end); the first that refuses names the file. */
static bool is_refused(job *j, const char *folder, uint32_t end, const char *word) {
    for (uint32_t r = 0; r < j->world; r++) {
        const stw_status_t status = load_some(j, r, folder, end);
        if (status == STOWAGE_OK) continue;
        const bool named = strstr(stw_get_error_text(error), word) != NULL;
        if (!named) fprintf(stderr, "%s: %s\n", word, stw_get_error_text(error));
        return named && (status == STOWAGE_DISAGREE || status == STOWAGE_BAD_INPUT);
    }
    fprintf(stderr, "%s: nothing was noticed\n", word);
    return false;
}

static void flips_are_named(void) {
    static const char folder[] = "saves/step-00000001";
    job j, reader;
    listing files;
    uint64_t state = 3;
    remove_folder("saves");
    open_job(&j, 3, 0, usual, true);
    save_all(&j, 1, 0);
    list_files(folder, &files);
    open_job(&reader, 2, 1, usual, false);
    CU_ASSERT_EQUAL(files.n, 2 + 2 + 3);
    for (int i = 0; i < 200; i++) {
        struct stat info;
        const char *path = files.names[i % files.n];
        state = state * 6364136223846793005u + 1442695040888963407u;
        CU_ASSERT_EQUAL_FATAL(stat(path, &info), 0);
        const uint64_t offset = (state >> 33) % (uint64_t)info.st_size;
        flip(path, offset, (int)(state >> 20 & 7));
        const uint32_t end = (uint32_t)(i / files.n) % (KINDS + 1); /* what is left out, too */
        CU_ASSERT(is_refused(&reader, folder, end, path + strlen(folder) + 1));
        flip(path, offset, (int)(state >> 20 & 7));
    }
    for (uint32_t r = 0; r < 2; r++) library_ok(load_rank(&reader, r, folder), "whole again");
    check(&reader);
    close_job(&reader);
    close_job(&j);
}

static void torn_and_swapped(void) {
    job j;
    listing files, others;
    remove_folder("saves");
    open_job(&j, 3, 0, usual, true);
    save_all(&j, 1, 0);
    for (uint32_t i = 0; i < j.n_pieces; i++)
        for (uint64_t e = 0; e < volume(&j.pieces[i]); e++)
            store("F32", j.memory[i][1], e, 1.0f); /* other bytes */
    save_all(&j, 2, 0);
    list_files("saves/step-00000001", &files);
    for (int i = 0; i < files.n; i++) {
        char other[160];
        struct stat info;
        const char *name = strrchr(files.names[i], '/') + 1;
        snprintf(other, sizeof other, "saves/step-00000002/%s", name);
        CU_ASSERT_EQUAL(rename(other, "kept"), 0);
        CU_ASSERT(is_refused(&j, "saves/step-00000002", KINDS, name)); /* missing */
        CU_ASSERT_EQUAL(link(files.names[i], other), 0);
        const bool same = strncmp(name, "model", 5) == 0; /* parameters have not changed */
        if (!same) CU_ASSERT(is_refused(&j, "saves/step-00000002", KINDS, "step-00000002"));
        CU_ASSERT_EQUAL(unlink(other), 0);
        CU_ASSERT_EQUAL(rename("kept", other), 0);
        CU_ASSERT_EQUAL(stat(other, &info), 0);
        CU_ASSERT_EQUAL(truncate(other, info.st_size - 1), 0);
        CU_ASSERT(is_refused(&j, "saves/step-00000002", KINDS, name)); /* torn */
        save_all(&j, 2, 0);
    }
    list_files("saves/step-00000002", &others);
    CU_ASSERT_EQUAL(others.n, files.n);
    close_job(&j);
}

/* ---- mistakes ---- */

static int broken_copy(void *user, uint64_t first, uint64_t elements, void *memory) {
    (void)user, (void)first, (void)elements, (void)memory;
    return 1;
}

static void mistakes_are_named(void) {
    job j;
    stw_save_source_t sources[TENSORS * KINDS];
    const stw_save_options_t options = {.folder = "saves", .step = 9, .number = 1};
    remove_folder("saves");
    open_job(&j, 2, 0, usual, true);
    uint32_t n = sources_of(&j, 0, sources);
    library_refused(stw_begin_save(j.saved[0], &options, sizeof options, sources + 1, n - 1, error),
                    STOWAGE_USAGE, "found no source");
    sources[0].component = "exp";
    library_refused(stw_begin_save(j.saved[0], &options, sizeof options, sources, n, error),
                    STOWAGE_USAGE, "\"exp\"");
    n = sources_of(&j, 1, sources);
    library_refused(stw_begin_save(j.saved[0], &options, sizeof options, sources, n, error),
                    STOWAGE_USAGE, "no piece of rank 0");
    n = sources_of(&j, 0, sources);
    sources[0].address = NULL;
    sources[0].copy = broken_copy;
    library_ok(stw_begin_save(j.saved[0], &options, sizeof options, sources, n, error), "begin");
    library_refused(stw_finish_save(j.saved[0], NULL, sizeof(stw_save_result_t), error), STOWAGE_IO,
                    "copy of piece");
    library_refused(load_rank(&j, 0, "saves"), STOWAGE_BAD_INPUT, "no checkpoint");
    stw_free_saved(j.saved[1]);
    j.pieces[0].count[0]--;
    library_refused(plan_rank(&j, 1), STOWAGE_BAD_INPUT, "model.embed.weight");
    j.pieces[0].count[0]++;
    close_job(&j);
}

/* Headers alone are read, and nothing is changed. */
static void what_does_not_match(void) {
    static const char *const fewer[KINDS] = {"BF16", NULL, "F32", "BF16"}, *const half[KINDS] = {
                                                                               "F16", NULL, "F32",
                                                                               "F32"};
    job j, other;
    stw_checkpoint_t *checkpoint = NULL;
    remove_folder("saves");
    open_job(&j, 2, 0, fewer, true);
    save_all(&j, 1, 0);
    library_ok(stw_open_checkpoint("saves", &checkpoint, error), "open");
    open_job(&other, 1, 0, usual, true); /* its master is made of the parameters */
    library_ok(stw_check_checkpoint(checkpoint, other.saved[0], error), "check");
    close_job(&other);
    open_job(&other, 1, 0, half, true);
    library_refused(stw_check_checkpoint(checkpoint, other.saved[0], error), STOWAGE_NOT_BUILT_IN,
                    "found BF16 in the checkpoint, which is not converted to F16");
    library_refused(load_rank(&other, 0, "saves"), STOWAGE_NOT_BUILT_IN, "not converted");
    for (uint32_t i = 0; i < other.n_pieces; i++)
        for (uint64_t e = 0; e < volume(&other.pieces[i]); e++)
            CU_ASSERT_EQUAL(load("F32", other.memory[i][2], e),
                            value_of(2, other.pieces[i].tensor, element_of(&other.pieces[i], e)));
    close_job(&other);
    stw_free_checkpoint(checkpoint);
    close_job(&j);
}

static void an_error(void) {
    error = stw_new_error();
    CU_ASSERT_PTR_NOT_NULL_FATAL(error);
}

STW_TEST_MAIN("checkpoints of a job", {"an error", an_error},
              {"three ranks save, two load in another cut", round_trip},
              {"a rank that does not save keeps nobody waiting", nobody_waits},
              {"old ones go", old_ones_go}, {"a full disk", full_disk},
              {"200 flips are named", flips_are_named},
              {"torn, missing and swapped files are named", torn_and_swapped},
              {"what does not match", what_does_not_match},
              {"mistakes are named", mistakes_are_named})
