/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of the verification has the bits of the operations that it is held against, and
 * shares no line with them. */
#include "backend/reference.h"

#include <stdlib.h>

#include "backend/host/kernels.h"
#include "tests/unit/testing.h"

static uint64_t state = 88172645463325252u;
static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Any finite fp32, or one whose exponent is within some of 1's. */
static float any_float(int near) {
    for (;;) {
        uint32_t bits = (uint32_t)(any() >> 16);
        if (near > 0)
            bits = (bits & 0x807FFFFFu) |
                   (uint32_t)(127 - near + (int)(any() % (2u * (unsigned)near))) << 23;
        float value = stw_float_from_bits(bits);
        if (isfinite(value)) return value;
    }
}

static bool same(float a, float b) {
    return (isnan(a) && isnan(b)) || stw_bits_from_float(a) == stw_bits_from_float(b);
}

typedef struct settings {
    stw_reference_settings reference;
    stw_adamw adamw;
    uint64_t step;
    float factor;
} settings;

static settings any_settings(void) {
    static const double betas[] = {0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999};
    static const double rates[] = {1e-6, 3e-5, 1e-3, 0.1, 1.0};
    settings s = {.reference = {.lr = rates[any() % 5],
                                .weight_decay = (double)(any() % 4) * 0.05,
                                .beta1 = betas[any() % 10],
                                .beta2 = betas[any() % 10],
                                .eps = any() % 3 == 0 ? 0.0 : 1e-8,
                                .clip = any() % 2 == 0},
                  .step = 1 + any() % (any() % 2 == 0 ? 10u : 100000u),
                  .factor = fabsf(any_float(4))};
    const stw_reference_settings *r = &s.reference;
    s.adamw = stw_adamw_make(r->lr, r->beta1, r->beta2, r->eps, r->weight_decay, s.step, r->clip);
    return s;
}

static void steps_have_the_same_bits(void) {
    unsigned differ = 0;
    for (unsigned i = 0; i < 60000; i++) {
        const settings s = any_settings();
        const stw_reference_step step = stw_reference_begin(&s.reference, s.step, s.factor);
        for (unsigned k = 0; k < 8; k++) {
            const int near = k == 0 ? 0 : k < 4 ? 20 : 60; /* k 0: anything, products may end */
            float w = any_float(near), g = any_float(near), m = any_float(near);
            float v = fabsf(any_float(near));
            stw_reference_state r = {w, m, v};
            stw_adamw_element(&s.adamw, s.adamw.groups[0], s.factor, &w, g, &m, &v);
            stw_reference_adamw(&step, g, &r);
            if (same(r.weight, w) && same(r.exp_avg, m) && same(r.exp_avg_sq, v)) continue;
            if (differ++ == 0)
                fprintf(stderr, "step %llu: %a %a %a, expected %a %a %a\n",
                        (unsigned long long)s.step, (double)r.weight, (double)r.exp_avg,
                        (double)r.exp_avg_sq, (double)w, (double)m, (double)v);
        }
    }
    CU_ASSERT_EQUAL(differ, 0);
}

static void powers_are_the_same_and_right(void) {
    unsigned differ = 0, far = 0;
    CU_ASSERT_EQUAL(stw_reference_power(0.0f, 3), 0.0f);
    CU_ASSERT_EQUAL(stw_reference_power(0.5f, 30), 0x1p-30f);
    for (unsigned i = 0; i < 300000; i++) {
        const float base = (float)(any() >> 40) * 0x1p-24f;
        const uint64_t step = 1 + any() % (i % 3 == 0 ? 16777215u : i % 3 == 1 ? 1000u : 20u);
        if (base < 0x1p-126f || base >= 1.0f) continue;
        const float power = stw_reference_power(base, step);
        const double exact = pow((double)base, (double)step);
        if (!same(power, stw_powf(base, (float)step))) differ++;
        if (fabs((double)power - exact) > 1.3e-7 * exact + 1.5e-45) far++;
    }
    CU_ASSERT_EQUAL(differ, 0);
    CU_ASSERT_EQUAL(far, 0);
}

static void types_are_the_same(void) {
    static const struct {
        stw_dtype dtype;
        uint32_t n;
        unsigned bytes;
    } types[] = {{STW_DTYPE_BF16, 65536, 2},
                 {STW_DTYPE_F16, 65536, 2},
                 {STW_DTYPE_F8_E4M3, 256, 1},
                 {STW_DTYPE_F8_E5M2, 256, 1}};
    float *to = malloc(65536 * sizeof *to);
    uint16_t *halves = malloc(65536 * sizeof *halves);
    unsigned differ = 0;
    CU_ASSERT_TRUE_FATAL(to != NULL && halves != NULL);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (uint32_t i = 0; i < types[t].n; i++)
            if (types[t].bytes == 2)
                halves[i] = (uint16_t)i;
            else
                ((unsigned char *)halves)[i] = (unsigned char)i;
        stw_host_convert(NULL, to, STW_ELEMENT_F32, halves, types[t].dtype, types[t].n);
        for (uint32_t i = 0; i < types[t].n; i++)
            differ += !same(to[i], stw_reference_weight(halves, types[t].dtype, i));
    }
    for (unsigned i = 0; i < 2000000; i++) {
        const float value = stw_float_from_bits((uint32_t)(any() >> 16));
        const uint16_t half = stw_reference_bf16(value);
        differ += half != stw_bf16_from_float(value);
        differ += !same(stw_reference_from_bf16(half), stw_float_from_bf16(half));
    }
    const double wide[] = {1.0 / 3, -1e300, 1e-320};
    const float single[] = {0.1f, -3.0f};
    for (uint64_t i = 0; i < 3; i++)
        differ += !same((float)wide[i], stw_reference_weight(wide, STW_DTYPE_F64, i));
    for (uint64_t i = 0; i < 2; i++)
        differ += !same(single[i], stw_reference_weight(single, STW_DTYPE_F32, i));
    CU_ASSERT_EQUAL(differ, 0);
    free(halves);
    free(to);
}

static void seeded_values_and_digests_are_the_same(void) {
    unsigned differ = 0;
    for (unsigned i = 0; i < 300000; i++) {
        const uint64_t seed = any() >> any() % 64, element = any() >> any() % 64;
        const uint64_t step = 1 + any() % 70000;
        const uint32_t bits = (uint32_t)any();
        differ +=
            !same(stw_reference_seeded_weight(seed, element), stw_seeded_weight(seed, element));
        differ += !same(stw_reference_seeded_grad(seed, step, element),
                        stw_seeded_grad(seed, step, element));
        differ += stw_reference_digest(element, bits) != stw_digest_element(element, bits);
        differ += stw_reference_bits_of(element, stw_digest_element(element, bits)) != bits;
    }
    CU_ASSERT_EQUAL(differ, 0);
}

/* A shared line would change with what it is held against. */
static void nothing_is_shared(void) {
    static const char *const files[] = {"/backend/reference.c", "/backend/reference.h"};
    for (size_t i = 0; i < 2; i++) {
        char path[4096], line[512];
        snprintf(path, sizeof path, "%s%s", STW_SOURCE_DIR, files[i]);
        FILE *f = fopen(path, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(f);
        while (fgets(line, sizeof line, f) != NULL) {
            const bool own = strstr(line, "\"backend/reference.h\"") != NULL ||
                             strstr(line, "\"models/model.h\"") != NULL;
            CU_ASSERT_TRUE(strncmp(line, "#include \"", 10) != 0 || own);
        }
        fclose(f);
    }
}

STW_TEST_MAIN("backend reference", {"steps have the same bits", steps_have_the_same_bits},
              {"powers are the same, and right", powers_are_the_same_and_right},
              {"types are the same", types_are_the_same},
              {"seeded values and digests are the same", seeded_values_and_digests_are_the_same},
              {"nothing is shared", nothing_is_shared})
