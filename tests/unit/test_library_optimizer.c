/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer on tensors of the caller's: bits are those of the reference wherever state lies,
 * gradients move every step, state is read and written, and what a caller may get wrong. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/norm.h"
#include "backend/reference.h"
#include "tests/unit/library_case.h"

/* ---- tensors of the caller's ---- */

#define N_TENSORS 8
static const char list[] = "name,shape,dtype\n"
                           "embed,\"[37, 129]\",F32\n"
                           "norm,\"[5]\",F32\n"
                           "empty,\"[0, 7]\",F32\n"
                           "first,\"[1000, 33]\",F32\n"
                           "one,\"[1]\",F32\n"
                           "second,\"[64, 1000]\",F32\n"
                           "third,\"[3, 7, 11]\",F32\n"
                           "head,\"[2049]\",F32\n";
static const char *const names[N_TENSORS] = {"embed", "norm",   "empty", "first",
                                             "one",   "second", "third", "head"};
static const uint64_t sizes[N_TENSORS] = {4773, 5, 0, 33000, 1, 64000, 231, 2049};
/* The order in which a caller binds them is its own. */
static const uint32_t order[N_TENSORS] = {3, 0, 2, 1, 7, 5, 6, 4};

typedef struct kind {
    bool bf16, grads_bf16;
    const char *share; /* of resident updates */
    double clip_norm;
    bool nvme; /* where state is not resident, instead of the host */
    const char *folder;
} kind;

static stw_plan_t *plan_of(const stw_model_t *model, const kind *k, const char *extra) {
    char resident[48], stream[48];
    snprintf(resident, sizeof resident, "update.resident=%s", k->share);
    snprintf(stream, sizeof stream, "update.stream=%g", 1 - strtod(k->share, NULL));
    if (k->nvme) extra = "placement.moments=nvme";
    const char *settings[] = {
        k->bf16 ? "precision.params=bf16" : "precision.params=fp32",
        k->grads_bf16 ? "precision.grads=bf16" : "precision.grads=fp32",
        k->bf16 ? "precision.master=fp32" : "precision.master=none",
        "placement.params=gpu",
        "placement.grads=gpu",
        resident,
        stream,
        "prefetch.bucket=64 KiB",
        "prefetch.depth=3",
        extra,
    };
    const bool streams = strtod(k->share, NULL) < 1;
    size_t n = sizeof settings / sizeof settings[0];
    if (!streams) {
        settings[7] = extra;
        n = extra != NULL ? 8 : 7;
    } else if (extra == NULL) {
        n--;
    }
    const stw_plan_options_t options = {
        .cluster = "tiny.yaml", .settings = settings, .n_settings = n};
    stw_plan_t *plan = NULL;
    library_ok(stw_make_plan(model, &options, sizeof options, &plan, error), "make a plan");
    return plan;
}

static stw_model_t *open_list(void) {
    stw_model_t *model = NULL;
    library_files();
    library_write("list.csv", list);
    library_ok(stw_open_model("list.csv", &model, error), "open the list");
    return model;
}

/* ---- what the caller has, and what it should become ---- */

typedef struct own {
    unsigned char *params[N_TENSORS]; /* as stored */
    unsigned char *grads[N_TENSORS];
    stw_reference_state *expected[N_TENSORS];
} own;

static float float_at(const void *values, bool bf16, uint64_t i) {
    if (bf16) return stw_reference_from_bf16(((const uint16_t *)values)[i]);
    return ((const float *)values)[i];
}

static void store(void *values, bool bf16, uint64_t i, float value) {
    if (bf16)
        ((uint16_t *)values)[i] = stw_reference_bf16(value);
    else
        ((float *)values)[i] = value;
}

static void make(own *o, const kind *k) {
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        o->params[t] = malloc(sizes[t] * 4 + 64);
        o->grads[t] = NULL;
        o->expected[t] = calloc(sizes[t] + 1, sizeof *o->expected[t]);
        CU_ASSERT_FATAL(o->params[t] != NULL && o->expected[t] != NULL);
        for (uint64_t i = 0; i < sizes[t]; i++) {
            store(o->params[t], k->bf16, i, stw_reference_seeded_weight(t + 1, i));
            o->expected[t][i].weight = float_at(o->params[t], k->bf16, i);
        }
    }
}

static void drop(own *o) {
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        free(o->params[t]);
        free(o->grads[t]);
        free(o->expected[t]);
    }
}

static stw_optimizer_t *open_on(const stw_plan_t *plan, const own *o, const kind *k) {
    stw_bound_t tensors[N_TENSORS];
    const stw_optimizer_options_t options = {
        .backend = "host", .nvme_folder = k->folder, .nvme_in_memory = k->folder != NULL};
    stw_optimizer_t *optimizer = NULL;
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const uint32_t t = order[i];
        tensors[i] = (stw_bound_t){.name = names[t],
                                   .dtype = k->bf16 ? "BF16" : "F32",
                                   .address = sizes[t] > 0 ? o->params[t] : NULL,
                                   .elements = sizes[t],
                                   .group = t % 2};
    }
    library_ok(
        stw_open_optimizer(plan, tensors, N_TENSORS, &options, sizeof options, &optimizer, error),
        "open an optimizer");
    return optimizer;
}

/* Gradients in memory of this step's own, at odd elements. */
static void new_grads(own *o, const kind *k, uint64_t step, const void **addresses) {
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const uint32_t t = order[i];
        const uint64_t each = k->grads_bf16 ? 2 : 4, shift = (step + t) % 5 * each;
        unsigned char *memory = malloc(sizes[t] * each + 64);
        CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
        for (uint64_t e = 0; e < sizes[t]; e++)
            store(memory + shift, k->grads_bf16, e,
                  stw_reference_seeded_grad(11 * (uint64_t)t + 5, step, e));
        free(o->grads[t]);
        o->grads[t] = memory;
        addresses[i] = sizes[t] > 0 ? memory + shift : NULL;
    }
}

static double lr_of(uint32_t group, uint64_t step) {
    return group == 0 ? 1e-3 / (double)step : 3e-4;
}
static double decay_of(uint32_t group) { return group == 0 ? 0.1 : 0; }

/* What the step makes of the expected state; with clipping the norm is that of `ranks` ranks with
 * the same gradients. */
static double expect(own *o, const kind *k, uint64_t step, const void *const *grads,
                     uint64_t ranks) {
    stw_norm_bins bins = {.not_finite = 0};
    float factor = 1;
    double norm = (double)NAN;
    for (uint32_t i = 0; k->clip_norm > 0 && i < N_TENSORS; i++)
        for (uint64_t e = 0; e < sizes[order[i]]; e++) {
            unsigned bin = 0;
            uint64_t value = 0;
            if (stw_norm_split(float_at(grads[i], k->grads_bf16, e), &bin, &value) != 1) continue;
            bins.low[bin] += value & 0xffffffffu;
            bins.high[bin] += value >> 32;
        }
    if (k->clip_norm > 0) {
        stw_norm_bins all = {.not_finite = 0};
        for (uint64_t r = 0; r < ranks; r++) stw_norm_merge(&all, &bins);
        norm = stw_norm_value(&all);
        factor = stw_norm_clip_factor(norm, k->clip_norm);
    }
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const uint32_t t = order[i], group = t % 2;
        const stw_reference_settings settings = {.lr = lr_of(group, step),
                                                 .weight_decay = decay_of(group),
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.999,
                                                 .eps = 1e-8,
                                                 .clip = k->clip_norm > 0};
        const stw_reference_step now = stw_reference_begin(&settings, step, factor);
        for (uint64_t e = 0; e < sizes[t]; e++) {
            stw_reference_adamw(&now, float_at(grads[i], k->grads_bf16, e), &o->expected[t][e]);
        }
    }
    return norm;
}

static void take_step(stw_optimizer_t *optimizer, own *o, const kind *k, uint64_t step,
                      uint64_t ranks) {
    const void *grads[N_TENSORS];
    uint64_t *counters = NULL;
    stw_sample_t sample;
    const stw_step_options_t options = {
        .step = step, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip_norm = k->clip_norm};
    new_grads(o, k, step, grads);
    const double norm = expect(o, k, step, grads, ranks);
    for (uint32_t g = 0; g < 2; g++)
        library_ok(stw_set_group(optimizer, g, lr_of(g, step), decay_of(g), error), "rates");
    library_ok(stw_bind_gradients(optimizer, grads, N_TENSORS, error), "gradients");
    if (k->clip_norm > 0) {
        library_ok(stw_begin_norm(optimizer, 1, NULL, &counters, error), "norm");
        for (int i = 0; i < STOWAGE_NORM_COUNTERS; i++) counters[i] *= ranks;
    }
    library_ok(stw_begin_step(optimizer, &options, sizeof options, error), "step");
    for (uint32_t i = 0; i < N_TENSORS; i++)
        library_ok(stw_wait_tensor(optimizer, i, NULL, error), "wait");
    library_ok(stw_wait_tensor(optimizer, STOWAGE_NONE, NULL, error), "wait for all");
    library_ok(stw_finish_step(optimizer, &sample, sizeof sample, error), "finish");
    CU_ASSERT_TRUE(k->clip_norm > 0 ? sample.grad_norm == norm : isnan(sample.grad_norm));
    CU_ASSERT_TRUE(sample.seconds > 0 && sample.seconds < 1000);
}

static uint64_t differing(const void *found, bool bf16, const float *expected, uint64_t n) {
    uint64_t different = 0;
    for (uint64_t e = 0; e < n; e++) {
        if (bf16) {
            different += ((const uint16_t *)found)[e] != stw_reference_bf16(expected[e]);
            continue;
        }
        different += memcmp((const float *)found + e, &expected[e], sizeof(float)) != 0;
    }
    return different;
}

/* Parameters and all state are those expected. */
static void compare(stw_optimizer_t *optimizer, const own *o, const kind *k) {
    static float expected[64000], found[64000];
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const uint32_t t = order[i];
        const stw_reference_state *s = o->expected[t];
        for (uint64_t e = 0; e < sizes[t]; e++) expected[e] = s[e].weight;
        CU_ASSERT_EQUAL(differing(o->params[t], k->bf16, expected, sizes[t]), 0);
        if (k->bf16) {
            library_ok(stw_read_state(optimizer, "master", i, 0, sizes[t], found, error), "read");
            CU_ASSERT_EQUAL(differing(found, false, expected, sizes[t]), 0);
        }
        for (uint64_t e = 0; e < sizes[t]; e++) expected[e] = s[e].exp_avg;
        library_ok(stw_read_state(optimizer, "exp_avg", i, 0, sizes[t], found, error), "read");
        CU_ASSERT_EQUAL(differing(found, false, expected, sizes[t]), 0);
        for (uint64_t e = 0; e < sizes[t]; e++) expected[e] = s[e].exp_avg_sq;
        library_ok(stw_read_state(optimizer, "exp_avg_sq", i, 0, sizes[t], found, error), "read");
        CU_ASSERT_EQUAL(differing(found, false, expected, sizes[t]), 0);
    }
}

/* ---- steps ---- */

static void bits_are_those_of_the_reference(void) {
    static const char *const shares[] = {"1", "0", "0.4"};
    stw_model_t *model = open_list();
    for (int way = 0; way < 18; way++) {
        const kind k = {.bf16 = way / 3 % 3 > 0,
                        .grads_bf16 = way / 3 % 3 > 1,
                        .share = shares[way % 3],
                        .clip_norm = way < 9 ? 0.5 : 0};
        own o;
        stw_plan_t *plan = plan_of(model, &k, NULL);
        make(&o, &k);
        stw_optimizer_t *optimizer = open_on(plan, &o, &k);
        compare(optimizer, &o, &k);
        for (uint64_t step = 1; step <= 4; step++) take_step(optimizer, &o, &k, step, 1 + step % 3);
        compare(optimizer, &o, &k);
        stw_free_optimizer(optimizer);
        drop(&o);
        stw_free_plan(plan);
    }
    stw_free_model(model);
}

/* In a file of a folder, and of one in memory. */
static void state_on_nvme_has_the_same_bits(void) {
    static const char *const folders[] = {".", "/dev/shm"};
    static const uint64_t n = 7001;
    static float values[7001];
    stw_model_t *model = open_list();
    for (int way = 0; way < 6; way++) {
        const kind k = {.bf16 = way % 3 > 0,
                        .grads_bf16 = way % 3 > 1,
                        .share = "0",
                        .clip_norm = way < 3 ? 0.5 : 0,
                        .nvme = true,
                        .folder = folders[way % 2]};
        own o;
        stw_optimizer_info_t info;
        stw_plan_t *plan = plan_of(model, &k, NULL);
        make(&o, &k);
        stw_optimizer_t *optimizer = open_on(plan, &o, &k);
        stw_get_optimizer_info(optimizer, &info, sizeof info);
        CU_ASSERT_TRUE(info.nvme_bytes >= info.streamed_bytes - 104059u * 4);
        CU_ASSERT_TRUE(info.host_bytes > 0 && info.host_bytes <= 3u * (64 << 10)); /* slots */
        compare(optimizer, &o, &k);
        for (uint64_t step = 1; step <= 4; step++) {
            take_step(optimizer, &o, &k, step, 1 + step % 3);
            if (step != 2) continue;
            library_ok(stw_read_state(optimizer, "exp_avg", 5, 40000, n, values, error), "read");
            for (uint64_t e = 0; e < n; e++)
                o.expected[order[5]][40000 + e].exp_avg = values[e] *= 2;
            library_ok(stw_write_state(optimizer, "exp_avg", 5, 40000, n, values, error), "write");
        }
        compare(optimizer, &o, &k);
        stw_free_optimizer(optimizer);
        drop(&o);
        stw_free_plan(plan);
    }
    stw_free_model(model);
}

/* As much on the host as there is room for, the rest on NVMe, whatever is resident. */
static void what_has_no_room_goes_to_nvme(void) {
    stw_model_t *model = open_list();
    for (int way = 0; way < 8; way++) {
        const kind k = {.bf16 = way % 2 == 1,
                        .grads_bf16 = way % 2 == 1,
                        .share = way < 4 ? "0" : "0.4",
                        .clip_norm = 0.5,
                        .folder = "."};
        const uint64_t given = way / 2 % 2 == 0 ? 400000 : 3 * (64 << 10); /* a part, slots */
        own o;
        stw_optimizer_info_t whole, spilled;
        stw_plan_t *plan = plan_of(model, &k, NULL);
        library_ok(stw_measure_optimizer(plan, &whole, sizeof whole, error), "measure");
        library_ok(stw_spill_state(plan, whole.host_bytes, error), "nothing to do");
        library_ok(stw_measure_optimizer(plan, &spilled, sizeof spilled, error), "measure");
        CU_ASSERT_EQUAL(memcmp(&whole, &spilled, sizeof whole), 0);
        library_refused(stw_spill_state(plan, 1000, error), STOWAGE_NO_RESOURCES,
                        "host memory: found 1000 bytes, expected at least");
        library_ok(stw_measure_optimizer(plan, &spilled, sizeof spilled, error), "measure");
        CU_ASSERT_EQUAL(memcmp(&whole, &spilled, sizeof whole), 0);
        library_ok(stw_spill_state(plan, given, error), "spill");
        library_ok(stw_measure_optimizer(plan, &spilled, sizeof spilled, error), "measure");
        CU_ASSERT_TRUE(spilled.host_bytes <= given && spilled.host_bytes + (64 << 10) > given);
        CU_ASSERT_TRUE(spilled.nvme_bytes > 0);
        CU_ASSERT_TRUE(spilled.nvme_bytes + spilled.host_bytes >= whole.host_bytes);
        CU_ASSERT_EQUAL(spilled.streamed_bytes, whole.streamed_bytes);
        CU_ASSERT_EQUAL(spilled.gpu_bytes, whole.gpu_bytes);
        library_refused(stw_spill_state(plan, given / 2, error), STOWAGE_BAD_INPUT, "NVMe");
        make(&o, &k);
        stw_optimizer_t *optimizer = open_on(plan, &o, &k);
        for (uint64_t step = 1; step <= 4; step++) take_step(optimizer, &o, &k, step, 1);
        compare(optimizer, &o, &k);
        stw_free_optimizer(optimizer);
        drop(&o);
        stw_free_plan(plan);
    }
    const kind k = {.share = "0"}, resident = {.share = "1"};
    stw_plan_t *plan = plan_of(model, &k, "node.nvme.capacity=300 kB");
    library_refused(stw_spill_state(plan, 200000, error), STOWAGE_NO_RESOURCES,
                    "node.nvme.capacity: found 300000 bytes");
    stw_free_plan(plan);
    plan = plan_of(model, &resident, NULL);
    library_ok(stw_spill_state(plan, 0, error), "nothing is on the host");
    stw_free_plan(plan);
    stw_free_model(model);
}

static void names_the_folder_that_fails(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "0", .nvme = true};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    const stw_optimizer_options_t cases[] = {{.backend = "host", .nvme_folder = "no/such"},
                                             {.backend = "host", .nvme_folder = "/dev/shm"}};
    static const char *const words[] = {"no/such", "/dev/shm"};
    static float memory[64000];
    stw_bound_t tensors[N_TENSORS];
    stw_optimizer_t *optimizer = NULL;
    for (uint32_t t = 0; t < N_TENSORS; t++)
        tensors[t] = (stw_bound_t){names[t], "F32", sizes[t] > 0 ? memory : NULL, sizes[t], 0};
    for (int i = 0; i < 2; i++)
        library_refused(stw_open_optimizer(plan, tensors, N_TENSORS, &cases[i], sizeof cases[i],
                                           &optimizer, error),
                        i == 0 ? STOWAGE_IO : STOWAGE_USAGE, words[i]);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void sizes_are_those_of_the_plan(void) {
    stw_model_t *model = open_list();
    const kind mixed = {.share = "0.4"}, resident = {.share = "1"};
    stw_plan_t *plan = plan_of(model, &mixed, NULL), *other = plan_of(model, &resident, NULL);
    stw_optimizer_info_t info, open;
    own o;
    uint64_t all = 0;
    for (uint32_t t = 0; t < N_TENSORS; t++) all += sizes[t];
    library_ok(stw_measure_optimizer(other, &info, sizeof info, error), "measure");
    CU_ASSERT_EQUAL(info.host_bytes, 0);
    CU_ASSERT_EQUAL(info.streamed_bytes, 0);
    CU_ASSERT_TRUE(info.gpu_bytes >= all * 8 && info.gpu_bytes < all * 8 + 3 * STOWAGE_ALIGNMENT);
    library_ok(stw_measure_optimizer(plan, &info, sizeof info, error), "measure");
    CU_ASSERT_STRING_EQUAL(info.backend, "");
    CU_ASSERT_TRUE(info.streamed_bytes > all * 8 / 2 && info.streamed_bytes < all * 8 * 7 / 10);
    CU_ASSERT_TRUE(info.host_bytes >= info.streamed_bytes);
    CU_ASSERT_TRUE(info.buckets > 4);
    make(&o, &mixed);
    stw_optimizer_t *optimizer = open_on(plan, &o, &mixed);
    stw_get_optimizer_info(optimizer, &open, sizeof open);
    CU_ASSERT_STRING_EQUAL(open.backend, "host");
    CU_ASSERT_EQUAL(open.gpu_bytes, info.gpu_bytes);
    CU_ASSERT_EQUAL(open.host_bytes, info.host_bytes);
    CU_ASSERT_EQUAL(open.streamed_bytes, info.streamed_bytes);
    CU_ASSERT_TRUE(open.open_seconds > 0);
    stw_free_optimizer(optimizer);
    stw_get_optimizer_info(NULL, &open, sizeof open);
    CU_ASSERT_PTR_NULL(open.backend);
    drop(&o);
    stw_free_plan(other);
    stw_free_plan(plan);
    stw_free_model(model);
}

/* A second optimizer goes on with the state of the first one, whatever its placement. */
static void state_moves_to_another_optimizer(void) {
    static const char *const components[] = {"exp_avg", "exp_avg_sq", "master"};
    static float values[64000];
    stw_model_t *model = open_list();
    const kind from = {.bf16 = true, .grads_bf16 = true, .share = "0.4", .clip_norm = 0.5};
    const kind to = {.bf16 = true, .grads_bf16 = true, .share = "0", .clip_norm = 0.5};
    stw_plan_t *plan = plan_of(model, &from, NULL), *other = plan_of(model, &to, NULL);
    own o;
    make(&o, &from);
    stw_optimizer_t *first = open_on(plan, &o, &from);
    for (uint64_t step = 1; step <= 3; step++) take_step(first, &o, &from, step, 1);
    stw_optimizer_t *second = open_on(other, &o, &to);
    for (uint32_t i = 0; i < N_TENSORS; i++)
        for (int c = 0; c < 3; c++)
            for (uint64_t done = 0, n; done < sizes[order[i]]; done += n) {
                n = sizes[order[i]] - done < 7001 ? sizes[order[i]] - done : 7001;
                library_ok(stw_read_state(first, components[c], i, done, n, values, error), "read");
                library_ok(stw_write_state(second, components[c], i, done, n, values, error),
                           "write");
            }
    stw_free_optimizer(first);
    compare(second, &o, &to);
    for (uint64_t step = 4; step <= 6; step++) take_step(second, &o, &to, step, 2);
    compare(second, &o, &to);
    stw_free_optimizer(second);
    drop(&o);
    stw_free_plan(other);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void parameters_may_move(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "0.4", .clip_norm = 0.5};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    void *addresses[N_TENSORS] = {NULL};
    own o;
    make(&o, &k);
    stw_optimizer_t *optimizer = open_on(plan, &o, &k);
    take_step(optimizer, &o, &k, 1, 1);
    for (uint32_t i = 0; i < N_TENSORS; i += 2) {
        unsigned char *memory = malloc(sizes[order[i]] * 4 + 64);
        CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
        memcpy(memory, o.params[order[i]], sizes[order[i]] * 4);
        free(o.params[order[i]]);
        o.params[order[i]] = memory;
        addresses[i] = memory;
    }
    library_ok(stw_bind_params(optimizer, addresses, N_TENSORS, error), "parameters moved");
    take_step(optimizer, &o, &k, 2, 1);
    compare(optimizer, &o, &k);
    stw_free_optimizer(optimizer);
    drop(&o);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void a_replica_counts_nothing(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "1"};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    const void *grads[N_TENSORS];
    uint64_t *counters = NULL;
    own o;
    make(&o, &k);
    stw_optimizer_t *optimizer = open_on(plan, &o, &k);
    new_grads(&o, &k, 1, grads);
    library_ok(stw_bind_gradients(optimizer, grads, N_TENSORS, error), "gradients");
    library_ok(stw_begin_norm(optimizer, 0, NULL, &counters, error), "norm");
    for (int i = 0; i < STOWAGE_NORM_COUNTERS; i++) CU_ASSERT_EQUAL(counters[i], 0);
    stw_free_optimizer(optimizer);
    drop(&o);
    stw_free_plan(plan);
    stw_free_model(model);
}

/* ---- what is refused ---- */

static void refuses_plans_that_cannot_be_bound(void) {
    static const struct {
        const char *settings[6];
        const char *word;
    } cases[] = {
        {{"engine=fsdp2", "precision.params=fp32"}, "engine"},
        {{"placement.params=host", "placement.grads=host", "placement.moments=host"},
         "placement.params"},
        {{"placement.params=gpu", "placement.grads=host", "update.stream=1"}, "placement.grads"},
        {{"placement.params=gpu", "placement.grads=gpu", "placement.moments=nvme",
          "placement.nvme_copies=2"},
         "nvme_copies"},
        {{"placement.params=gpu", "placement.grads=gpu", "update.cpu=1"}, "cpu"},
        {{"placement.params=gpu", "placement.grads=gpu", "update.direct=1"}, "direct"},
    };
    stw_model_t *model = open_list();
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        stw_plan_options_t options = {.cluster = "tiny.yaml", .settings = cases[c].settings};
        stw_plan_t *plan = NULL;
        stw_optimizer_info_t info;
        while (cases[c].settings[options.n_settings] != NULL) options.n_settings++;
        library_ok(stw_make_plan(model, &options, sizeof options, &plan, error), cases[c].word);
        library_refused(stw_measure_optimizer(plan, &info, sizeof info, error),
                        STOWAGE_NOT_BUILT_IN, cases[c].word);
        stw_free_plan(plan);
    }
    stw_free_model(model);
}

static void names_the_tensor_that_differs(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "1"};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    const stw_optimizer_options_t options = {.backend = "host"};
    stw_optimizer_t *optimizer = NULL;
    stw_bound_t tensors[N_TENSORS + 1];
    own o;
    make(&o, &k);
    for (uint32_t way = 0; way < 8; way++) {
        static const char *const words[] = {"first: found 33001 elements, the plan has 33000",
                                            "second: found BF16, the plan has F32",
                                            "third: found no address",
                                            "one: is a tensor of the plan",
                                            "more: is bound, and is no tensor",
                                            "head: is bound twice",
                                            "norm: found parameter group 8",
                                            "embed: found address"};
        uint32_t n = N_TENSORS;
        for (uint32_t t = 0; t < N_TENSORS; t++)
            tensors[t] = (stw_bound_t){names[t], "F32", o.params[t], sizes[t], 0};
        if (way == 0) tensors[3].elements++;
        if (way == 1) tensors[5].dtype = "BF16";
        if (way == 2) tensors[6].address = NULL;
        if (way == 3) tensors[4].name = "other";
        if (way == 4) tensors[n++] = (stw_bound_t){"more", "F32", o.params[0], 1, 0};
        if (way == 5) tensors[n++] = tensors[7];
        if (way == 6) tensors[1].group = STOWAGE_PARAM_GROUPS;
        if (way == 7) tensors[0].address = o.params[0] + 2;
        library_refused(
            stw_open_optimizer(plan, tensors, n, &options, sizeof options, &optimizer, error),
            STOWAGE_BAD_INPUT, words[way]);
        CU_ASSERT_PTR_NULL(optimizer);
    }
    drop(&o);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void refuses_what_is_out_of_order(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "0.4", .clip_norm = 0.5};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    stw_step_options_t step = {.step = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const void *grads[N_TENSORS];
    uint64_t *counters = NULL;
    float value;
    own o;
    make(&o, &k);
    stw_optimizer_t *optimizer = open_on(plan, &o, &k);
    library_refused(stw_begin_norm(optimizer, 1, NULL, &counters, error), STOWAGE_USAGE,
                    "gradients");
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE,
                    "gradients");
    new_grads(&o, &k, 1, grads);
    library_refused(stw_bind_gradients(optimizer, grads, N_TENSORS - 1, error), STOWAGE_USAGE,
                    "one for each of the 8 tensors");
    const void *kept = grads[0];
    grads[0] = NULL;
    library_refused(stw_bind_gradients(optimizer, grads, N_TENSORS, error), STOWAGE_BAD_INPUT,
                    "first: found no address among gradients");
    grads[0] = (const char *)kept + 1;
    library_refused(stw_bind_gradients(optimizer, grads, N_TENSORS, error), STOWAGE_BAD_INPUT,
                    "first: found address");
    grads[0] = kept;
    library_ok(stw_bind_gradients(optimizer, grads, N_TENSORS, error), "gradients");
    step.clip_norm = 0.5;
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE,
                    "stw_begin_norm");
    step.clip_norm = -1;
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE,
                    "clip_norm");
    step.clip_norm = 0;
    step.step = 0;
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE, "step");
    step.step = 1;
    step.beta1 = 1;
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE, "beta1");
    step.beta1 = 0.9;
    library_refused(stw_begin_step(optimizer, &step, offsetof(stw_step_options_t, stream), error),
                    STOWAGE_USAGE, "size");
    library_refused(stw_wait_tensor(optimizer, N_TENSORS, NULL, error), STOWAGE_USAGE, "below 8");
    library_refused(stw_set_group(optimizer, 8, 1e-3, 0, error), STOWAGE_USAGE, "group");
    library_refused(stw_set_group(optimizer, 0, -1, 0, error), STOWAGE_USAGE, "learning_rate");
    library_refused(stw_set_group(optimizer, 0, 1, (double)NAN, error), STOWAGE_USAGE,
                    "weight_decay");
    library_refused(stw_read_state(optimizer, "master", 0, 0, 1, &value, error), STOWAGE_USAGE,
                    "master");
    library_refused(stw_read_state(optimizer, "params", 0, 0, 1, &value, error), STOWAGE_USAGE,
                    "params");
    library_refused(stw_read_state(optimizer, "nonsense", 0, 0, 1, &value, error), STOWAGE_USAGE,
                    "nonsense");
    library_refused(stw_read_state(optimizer, "exp_avg", 0, 33000, 1, &value, error), STOWAGE_USAGE,
                    "first: found elements 33000 to 33001");
    library_refused(stw_write_state(optimizer, "exp_avg", 9, 0, 1, &value, error), STOWAGE_USAGE,
                    "below 8");
    library_ok(stw_begin_step(optimizer, &step, sizeof step, error), "what was asked for goes on");
    library_refused(stw_begin_step(optimizer, &step, sizeof step, error), STOWAGE_USAGE,
                    "gradients");
    stw_free_optimizer(optimizer);
    drop(&o);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void a_child_frees_its_handle_alone(void) {
    stw_model_t *model = open_list();
    const kind k = {.share = "0.4"};
    stw_plan_t *plan = plan_of(model, &k, NULL);
    own o;
    make(&o, &k);
    stw_optimizer_t *optimizer = open_on(plan, &o, &k);
    take_step(optimizer, &o, &k, 1, 1);
    pid_t child = fork();
    if (child == 0) {
        bool refused = stw_finish_step(optimizer, NULL, 0, error) == STOWAGE_USAGE;
        stw_free_optimizer(optimizer);
        _exit(refused ? 0 : 1); /* what the parent has is not the child's leak */
    }
    int ended = 1;
    CU_ASSERT_EQUAL(waitpid(child, &ended, 0), child);
    CU_ASSERT_EQUAL(ended, 0);
    take_step(optimizer, &o, &k, 2, 1);
    compare(optimizer, &o, &k);
    stw_free_optimizer(optimizer);
    drop(&o);
    stw_free_plan(plan);
    stw_free_model(model);
}

STW_TEST_MAIN("library optimizer",
              {"bits are those of the reference", bits_are_those_of_the_reference},
              {"state on NVMe has the same bits", state_on_nvme_has_the_same_bits},
              {"what has no room goes to NVMe", what_has_no_room_goes_to_nvme},
              {"names the folder that fails", names_the_folder_that_fails},
              {"sizes are those of the plan", sizes_are_those_of_the_plan},
              {"state moves to another optimizer", state_moves_to_another_optimizer},
              {"parameters may move", parameters_may_move},
              {"a replica counts nothing", a_replica_counts_nothing},
              {"refuses plans that cannot be bound", refuses_plans_that_cannot_be_bound},
              {"names the tensor that differs", names_the_tensor_that_differs},
              {"refuses what is out of order", refuses_what_is_out_of_order},
              {"a child frees its handle alone", a_child_frees_its_handle_alone})
