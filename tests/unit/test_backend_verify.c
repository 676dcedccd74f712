/* SPDX-License-Identifier: Apache-2.0 */
/* What a run's verification looks at, element by element, and what it says of one wrong bit. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdlib.h>

#include "backend/executor/run.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"

#define RUN 16u
#define MOST 20000u

static stw_plan *plan_of(fixture_size size, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 1, &(stw_place)FIXTURE_RESIDENT, &(uint32_t){UINT32_MAX});
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_executor_options options_of(void) {
    return (stw_executor_options){
        .backend = "host", .steps = 2, .seed = 13, .caller = lent_memory()};
}

/* ---- looks ---- */

typedef struct look {
    uint64_t element;
    uint64_t n;
    stw_component component;
} look;

static struct {
    const stw_plan *plan;
    look looks[MOST];
    uint32_t n;
    bool flips; /* the lowest bit of one element */
    uint64_t element;
    stw_component component;
    uint32_t bits; /* that it had */
} seen;

static stw_component component_at(stw_typed_range values) {
    const stw_layout *layout = seen.plan->layouts[0];
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->tier == values.tier && values.offset >= r->offset_bytes &&
            values.offset < r->offset_bytes + r->bytes)
            return r->component;
    }
    return STW_N_COMPONENTS;
}

static stw_status digest(stw_device *d, stw_typed_range values, uint64_t element, uint64_t *out,
                         stw_error *err) {
    const stw_component component = component_at(values);
    const stw_status status = stw_backend_host.digest(d, values, element, out, err);
    if (values.n > RUN) return status; /* of the whole state */
    if (seen.n < MOST) seen.looks[seen.n++] = (look){element, values.n, component};
    if (!seen.flips || component != seen.component || seen.element < element ||
        seen.element >= element + values.n)
        return status;
    const uint64_t size = stw_element_bytes(values.type);
    const void *at =
        stw_backend_host.device_address(d, values.offset + (seen.element - element) * size, size);
    seen.bits = 0;
    memcpy(&seen.bits, at, size); /* little-endian */
    *out += stw_digest_element(seen.element, seen.bits ^ 1) -
            stw_digest_element(seen.element, seen.bits);
    return status;
}

static stw_run_result *run(const stw_plan *plan) {
    const stw_executor_options options = options_of();
    stw_backend backend = stw_backend_host;
    stw_run_result *result = NULL;
    backend.digest = digest;
    seen.plan = plan;
    seen.n = 0;
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    return result;
}

static int by_element(const void *a, const void *b) {
    const look *x = a, *y = b;
    if (x->element != y->element) return x->element < y->element ? -1 : 1;
    return (x->component > y->component) - (x->component < y->component);
}

/* Both ends of every tensor, or of every so many, and evenly between; 4,096 elements, about. */
static uint32_t expect(const stw_plan *plan, look *out) {
    static const stw_component components[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_EXP_AVG,
                                               STW_COMPONENT_EXP_AVG_SQ, STW_COMPONENT_MASTER};
    const uint32_t tensors = plan->model->n_tensors, held = plan->run.precision.has_master ? 4 : 3;
    uint32_t n = 0, every = tensors / 256 + 1, places = 256 / tensors;
    uint64_t first = 0;
    if (places < 2) places = 2;
    for (uint32_t t = 0; t < tensors; first += plan->model->tensors[t++].numel) {
        const uint64_t numel = plan->model->tensors[t].numel;
        uint64_t free_from = 0;
        if (t % every != 0) continue;
        for (uint32_t k = 0; k < places; k++) {
            uint64_t at = k * (numel > RUN ? numel - RUN : 0) / (places - 1);
            if (at < free_from) at = free_from;
            if (at >= numel) break;
            free_from = at + RUN;
            for (uint32_t c = 0; c < held; c++)
                out[n++] = (look){first + at, numel - at < RUN ? numel - at : RUN, components[c]};
        }
    }
    qsort(out, n, sizeof *out, by_element);
    return n;
}

static void the_sample_is_spread_over_all_tensors(void) {
    static look expected[MOST];
    static const struct {
        fixture_size size;
        const char *settings[3];
    } cases[] = {{{2, 64, 128, 512}, {NULL}},
                 {{2, 64, 128, 512}, {"precision.params=bf16", "precision.master=fp32", NULL}},
                 {{1, 4, 8, 33}, {NULL}},    /* tensors shorter than what is looked at */
                 {{1, 20, 9, 3}, {NULL}},    /* and a little longer */
                 {{50, 8, 16, 64}, {NULL}}}; /* 302 tensors: every other one */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = plan_of(cases[i].size, cases[i].settings);
        stw_run_result *result = run(plan);
        const uint32_t n = expect(plan, expected);
        uint64_t checked = 0;
        for (uint32_t k = 0; k < n; k++) checked += expected[k].n;
        qsort(seen.looks, seen.n, sizeof *seen.looks, by_element);
        uint32_t wrong = 0, found = 0;
        for (uint32_t k = 0; k < seen.n;
             k++) { /* a whole tensor that is short was looked at, too */
            const look *l = &seen.looks[k];
            if (found < n && l->element == expected[found].element &&
                l->component == expected[found].component && l->n == expected[found].n)
                found++;
            else
                wrong++;
        }
        uint32_t tiny = 0; /* digests of the state */
        for (uint32_t t = 0; t < plan->model->n_tensors; t++)
            tiny +=
                plan->model->tensors[t].numel <= RUN ? (plan->run.precision.has_master ? 4 : 3) : 0;
        CU_ASSERT_EQUAL(found, n);
        CU_ASSERT_EQUAL(wrong, tiny);
        CU_ASSERT_EQUAL(result->checked, checked);
        CU_ASSERT_EQUAL(result->mismatched, 0);
        stw_run_result_free(result);
        stw_plan_free(plan);
    }
}

/* ---- one wrong bit ---- */

static char logged[1000];
static unsigned n_logged;
static void keep(stw_log_level level, const char *text, void *state) {
    (void)state;
    if (level != STW_LOG_ERROR) return;
    n_logged++;
    snprintf(logged, sizeof logged, "%s", text);
}

static void one_wrong_bit_is_named(void) {
    static const char *const bf16[] = {"precision.params=bf16", "precision.master=fp32",
                                       "precision.exp_avg=bf16", NULL};
    static const stw_component components[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_EXP_AVG,
                                               STW_COMPONENT_EXP_AVG_SQ, STW_COMPONENT_MASTER};
    stw_log_set(keep, NULL);
    for (int half = 0; half < 2; half++)
        for (int c = 0; c < (half ? 4 : 3); c++)
            for (uint32_t t = 0; t < 4; t += 3) {
                stw_plan *plan = plan_of((fixture_size){2, 64, 128, 512}, half ? bf16 : NULL);
                uint64_t first = 0;
                for (uint32_t i = 0; i < t; i++) first += plan->model->tensors[i].numel;
                const uint64_t in = t == 0 ? 5 : plan->model->tensors[t].numel - 1;
                const int digits = half && c < 2 ? 4 : 8;
                char text[400];
                seen.flips = true;
                seen.element = first + in;
                seen.component = components[c];
                logged[0] = '\0';
                n_logged = 0;
                stw_run_result *result = run(plan);
                snprintf(text, sizeof text,
                         "%s of element %llu of %s differs from its replay: found 0x%0*x, expected "
                         "0x%0*x (rank 0, tier gpu)",
                         stw_component_name(components[c]), (unsigned long long)in,
                         plan->model->tensors[t].name, digits, seen.bits ^ 1, digits, seen.bits);
                CU_ASSERT_STRING_EQUAL(logged, text);
                if (strcmp(logged, text) != 0) fprintf(stderr, "%s\n%s\n", logged, text);
                CU_ASSERT_EQUAL(result->mismatched, 1);
                CU_ASSERT_EQUAL(n_logged, 1);
                seen.flips = false;
                stw_run_result_free(result);
                stw_plan_free(plan);
            }
    stw_log_set(NULL, NULL);
}

STW_TEST_MAIN("backend verify",
              {"the sample is spread over all tensors", the_sample_is_spread_over_all_tensors},
              {"one wrong bit is named", one_wrong_bit_is_named})
