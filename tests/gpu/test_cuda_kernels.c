/* SPDX-License-Identifier: Apache-2.0 */
/* Every CUDA kernel against the scalar functions, bit for bit, over types, sizes and alignments;
 * then a table of their rates. Arguments: beginnings of the names of the tests to run, and then no
 * rates. Exit 77 without a GPU. Needs no file and no other program at run time. */
#include "backend/norm.h"
#include "tests/gpu/kernel_rates.h"
#include "tests/gpu/typed_arrays.h"

/* Around everything that is a unit somewhere: a four, a warp, a block, a tile, a chunk. */
static const uint64_t sizes[] = {0,    1,    2,    3,    4,    5,    7,    8,     9,
                                 31,   32,   33,   127,  255,  257,  1021, 1023,  1025,
                                 1536, 2047, 2048, 2049, 4099, 8191, 8193, 65537, 202753};
#define N_SIZES COUNT(sizes)
#define MOST 202753u
#define GUARD 16u /* elements before and after, which nobody may touch */

/* ---- AdamW ---- */

#define MOST_SPANS 64u
#define FLAT 1000003u /* every bucket's first element in the flat space */

/* params and grads need room for gaps between tensors. */
#define SPAN_ROOM (MOST + 2 * GUARD + MOST_SPANS * 24)

typedef struct adamw_arrays {
    array params, grads, master, exp_avg, exp_avg_sq;
    stw_span *device_spans;
    float *device_factor;
} adamw_arrays;

typedef struct adamw_case {
    stw_adamw adamw;
    stw_element_types types;
    uint64_t first, n;
    stw_span spans[MOST_SPANS];
    uint32_t n_spans;
    bool params_in_spans, grads_in_spans, direct;
    unsigned skew[5]; /* elements from the guard: params, grads, master, exp_avg, exp_avg_sq */
    float factor;
} adamw_case;

static adamw_arrays adamw_arrays_new(const stw_element_types *types, bool pinned) {
    adamw_arrays s;
    void *memory = NULL;
    s.params = array_new(types->params, SPAN_ROOM, pinned);
    s.grads = array_new(types->grads, SPAN_ROOM, false);
    s.master = array_new(STW_ELEMENT_F32, MOST + 2 * GUARD, pinned);
    s.exp_avg = array_new(types->exp_avg, MOST + 2 * GUARD, pinned);
    s.exp_avg_sq = array_new(types->exp_avg_sq, MOST + 2 * GUARD, pinned);
    CUDA(cudaMalloc(&memory, MOST_SPANS * sizeof(stw_span)));
    s.device_spans = memory;
    CUDA(cudaMalloc(&memory, sizeof(float)));
    s.device_factor = memory;
    fill(&s.params, -20, 4, 0);
    fill(&s.grads, -60, 10, 0);
    fill(&s.master, -20, 4, 0);
    fill(&s.exp_avg, -60, 10, 0);
    fill(&s.exp_avg_sq, -120, 20, 1);
    return s;
}
static void adamw_arrays_free(adamw_arrays *s) {
    array_free(&s->params), array_free(&s->grads), array_free(&s->master);
    array_free(&s->exp_avg), array_free(&s->exp_avg_sq);
    CUDA(cudaFree(s->device_spans));
    CUDA(cudaFree(s->device_factor));
}

/* Offsets of a span count from the middle of its arena: some are negative, that is, wrap around. */
static uint64_t middle(const array *a) { return bytes_of(a, a->elements / 2); }

/* Tensors of any lengths, the first of which begins before the bucket and the last of which ends
 * after it; in their arenas they lie in order or the other way round, with gaps of any width. The
 * parts outside the bucket are given no room: nobody may look there. */
static void make_spans(adamw_case *c, const adamw_arrays *s, bool one) {
    uint64_t before = random_below(100), after = random_below(100);
    uint64_t at = 0, in_params = GUARD, in_grads = GUARD;
    bool down = random_below(2) != 0;
    c->first = FLAT;
    c->n_spans = 0;
    while (at < c->n || c->n_spans == 0) {
        stw_span *span = &c->spans[c->n_spans];
        uint64_t left = c->n - at, n = left;
        if (!one && c->n_spans + 1 < MOST_SPANS && left > 1)
            n = random_below(3) == 0 ? 1 + random_below(left < 40 ? left : 40)
                                     : 1 + random_below(left / 2 + 1);
        in_params += random_below(24), in_grads += random_below(4) * 4;
        uint64_t p = down ? SPAN_ROOM - in_params - n : in_params;
        memset(span, 0, sizeof *span);
        span->first = c->first + at;
        span->n = n;
        span->params = bytes_of(&s->params, p) - middle(&s->params);
        span->grads = bytes_of(&s->grads, in_grads) - middle(&s->grads);
        span->group = (uint32_t)random_below(STW_MAX_PARAM_GROUPS);
        in_params += n, in_grads += n, at += n;
        c->n_spans++;
    }
    c->spans[0].first -= before;
    c->spans[0].n += before;
    c->spans[0].params -= bytes_of(&s->params, before);
    c->spans[0].grads -= bytes_of(&s->grads, before);
    c->spans[c->n_spans - 1].n += after;
}

static adamw_case adamw_case_new(const stw_element_types *types, const adamw_arrays *s, uint64_t n,
                                 unsigned kind) {
    adamw_case c;
    uint64_t step = 1 + random_below(1000);
    memset(&c, 0, sizeof c);
    c.types = *types;
    c.n = n;
    c.adamw = stw_adamw_make(1e-3, 0.9, kind % 3 == 0 ? 0.95 : 0.999, 1e-8, 0.01, step,
                             random_below(2) != 0);
    for (uint32_t g = 1; g < STW_MAX_PARAM_GROUPS; g++)
        stw_adamw_set_group(&c.adamw, g, 1e-4 * g, g % 2 == 0 ? 0.0 : 0.03 * g, step);
    c.factor = (float)random_below(1000) / 1000.0f;
    c.params_in_spans = (kind & 1u) != 0;
    c.grads_in_spans = (kind & 2u) != 0;
    c.direct = (kind & 4u) != 0;
    make_spans(&c, s, random_below(4) == 0);
    /* All aligned; all off by the same; each off by its own. */
    unsigned together = (unsigned)random_below(4), apart = (unsigned)random_below(3);
    for (unsigned i = 0; i < 5; i++)
        c.skew[i] = apart == 0 ? 0 : apart == 1 ? together : (unsigned)random_below(4);
    return c;
}

static unsigned char *at_skew(const array *a, unsigned char *base, unsigned skew) {
    return base + bytes_of(a, GUARD + skew);
}

/* The update as the headers define it, one element after the other. */
static void adamw_reference(const adamw_case *c, adamw_arrays *s) {
    bool master = c->types.master != STW_ELEMENT_NONE;
    uint32_t at = 0;
    for (uint64_t i = 0; i < c->n; i++) {
        while (c->first + i - c->spans[at].first >= c->spans[at].n) at++;
        const stw_span *span = &c->spans[at];
        uint64_t in_span = c->first + i - span->first;
        unsigned char *p =
            at_skew(&s->params, s->params.host, c->skew[0]) + bytes_of(&s->params, i);
        unsigned char *g = at_skew(&s->grads, s->grads.host, c->skew[1]) + bytes_of(&s->grads, i);
        if (c->params_in_spans)
            p = s->params.host + middle(&s->params) +
                (int64_t)(span->params + bytes_of(&s->params, in_span));
        if (c->grads_in_spans)
            g = s->grads.host + middle(&s->grads) +
                (int64_t)(span->grads + bytes_of(&s->grads, in_span));
        unsigned char *w = at_skew(&s->master, s->master.host, c->skew[2]) + 4 * i;
        unsigned char *avg =
            at_skew(&s->exp_avg, s->exp_avg.host, c->skew[3]) + bytes_of(&s->exp_avg, i);
        unsigned char *sq =
            at_skew(&s->exp_avg_sq, s->exp_avg_sq.host, c->skew[4]) + bytes_of(&s->exp_avg_sq, i);
        float x = master ? get(STW_ELEMENT_F32, w) : get(s->params.type, p);
        float m = get(s->exp_avg.type, avg), v = get(s->exp_avg_sq.type, sq);
        stw_adamw_element(&c->adamw, c->adamw.groups[span->group], c->factor, &x,
                          get(s->grads.type, g), &m, &v);
        if (master) set(STW_ELEMENT_F32, w, x);
        set(s->params.type, p, x);
        set(s->exp_avg.type, avg, m);
        set(s->exp_avg_sq.type, sq, v);
    }
}

static cudaError_t adamw_launch(const adamw_case *c, const adamw_arrays *s) {
    stw_cuda_bucket b = {.first = c->first, .n = c->n, .spans = s->device_spans};
    b.n_spans = c->n_spans;
    b.params_in_spans = c->params_in_spans;
    b.grads_in_spans = c->grads_in_spans;
    if (c->n_spans == 1 && !c->params_in_spans && !c->grads_in_spans) { /* as a backend has it */
        b.param_group = c->spans[0].group;
        b.n_spans = 0;
    }
    b.direct = c->direct;
    b.params = c->params_in_spans ? s->params.device + middle(&s->params)
                                  : at_skew(&s->params, s->params.device, c->skew[0]);
    b.grads = c->grads_in_spans ? s->grads.device + middle(&s->grads)
                                : at_skew(&s->grads, s->grads.device, c->skew[1]);
    if (c->types.master != STW_ELEMENT_NONE)
        b.master = (float *)(void *)at_skew(&s->master, s->master.device, c->skew[2]);
    b.exp_avg = at_skew(&s->exp_avg, s->exp_avg.device, c->skew[3]);
    b.exp_avg_sq = at_skew(&s->exp_avg_sq, s->exp_avg_sq.device, c->skew[4]);
    return stw_cuda_adamw(launch, &c->adamw, c->adamw.clip ? s->device_factor : NULL, &c->types,
                          &b);
}

static void adamw_run(const adamw_case *c, adamw_arrays *s) {
    char what[160], name[200];
    const stw_element_types *t = &c->types;
    snprintf(what, sizeof what, "adamw %s/%s/%s/%s/%s, n %llu, %u spans%s%s, skew %u%u%u%u%u",
             type_name(t->params), type_name(t->grads), type_name(t->master), type_name(t->exp_avg),
             type_name(t->exp_avg_sq), (unsigned long long)c->n, c->n_spans,
             c->params_in_spans ? ", params apart" : "", c->grads_in_spans ? ", grads apart" : "",
             c->skew[0], c->skew[1], c->skew[2], c->skew[3], c->skew[4]);
    put(&s->params), put(&s->grads), put(&s->master), put(&s->exp_avg), put(&s->exp_avg_sq);
    CUDA(cudaMemcpyAsync(s->device_spans, c->spans, c->n_spans * sizeof(stw_span),
                         cudaMemcpyHostToDevice, launch.stream));
    CUDA(cudaMemcpyAsync(s->device_factor, &c->factor, sizeof(float), cudaMemcpyHostToDevice,
                         launch.stream));
    CUDA(adamw_launch(c, s));
    adamw_reference(c, s);
    const array *arrays[] = {&s->params, &s->grads, &s->master, &s->exp_avg, &s->exp_avg_sq};
    static const char *const names[] = {"params", "grads", "master", "exp_avg", "exp_avg_sq"};
    for (unsigned i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%s: %s", what, names[i]);
        same(arrays[i], name, false);
    }
}

static stw_element_types types_of(unsigned bits) {
    stw_element_types t = {both[bits & 1u], both[bits >> 1 & 1u], STW_ELEMENT_NONE,
                           both[bits >> 2 & 1u], both[bits >> 3 & 1u]};
    if ((bits & 16u) != 0) t.master = STW_ELEMENT_F32;
    return t;
}

static void test_adamw(void) {
    const uint32_t sms = launch.sms;
    for (unsigned bits = 0; bits < 32; bits++) {
        stw_element_types types = types_of(bits);
        adamw_arrays s = adamw_arrays_new(&types, bits % 5 == 0);
        for (unsigned kind = 0; kind < 2 * N_SIZES; kind++) {
            /* As if there were one multiprocessor: long chunks, and several turns per block. */
            launch.sms = random_below(2) != 0 ? 1 : sms;
            adamw_case c = adamw_case_new(&types, &s, sizes[kind / 2], (unsigned)random_below(24));
            adamw_run(&c, &s);
        }
        launch.sms = sms;
        adamw_arrays_free(&s);
    }
}

/* Values that are no numbers, or hardly, must come out as on the host. */
static void test_adamw_strange(void) {
    static const uint32_t strange[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFFFFFFFu,
                                       0x00000001u, 0x807FFFFFu, 0x7F7FFFFFu, 0x80000000u};
    for (unsigned bits = 0; bits < 32; bits++) {
        stw_element_types types = types_of(bits);
        adamw_arrays s = adamw_arrays_new(&types, false);
        for (uint64_t i = 0; i < s.grads.elements; i += 3)
            set(types.grads, s.grads.host + bytes_of(&s.grads, i),
                stw_float_from_bits(strange[random_below(COUNT(strange))]));
        for (uint64_t i = 0; i < s.params.elements; i += 7)
            set(types.params, s.params.host + bytes_of(&s.params, i),
                stw_float_from_bits(strange[random_below(COUNT(strange))]));
        for (unsigned kind = 0; kind < 5; kind++) {
            adamw_case c = adamw_case_new(&types, &s, 8193, kind);
            if (kind == 3) c.adamw.clip = 1, c.factor = 0.0f;       /* an infinite norm's */
            if (kind == 4) c.adamw.clip = 1, c.factor = (float)NAN; /* of one that is NaN */
            adamw_run(&c, &s);
        }
        adamw_arrays_free(&s);
    }
}

static void test_adamw_refusals(void) {
    stw_element_types types = types_of(0), bad[4] = {types, types, types, types};
    adamw_arrays s = adamw_arrays_new(&types, false);
    bad[0].master = STW_ELEMENT_BF16;
    bad[1].params = STW_ELEMENT_NONE;
    bad[2].grads = STW_N_ELEMENTS;
    bad[3].exp_avg_sq = STW_ELEMENT_NONE;
    for (unsigned i = 0; i < 4; i++) {
        adamw_case c = adamw_case_new(&types, &s, 8, 0);
        c.types = bad[i];
        CHECK(adamw_launch(&c, &s) == cudaErrorInvalidValue, "adamw takes bad types %u", i);
    }
    adamw_case c = adamw_case_new(&types, &s, 8, 0);
    c.n_spans = 0;
    c.params_in_spans = true;
    CHECK(adamw_launch(&c, &s) == cudaErrorInvalidValue, "adamw looks for params in no spans");
    const stw_cuda_bucket nothing = {.n = 0};
    stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 1);
    CHECK(stw_cuda_adamw(launch, &adamw, NULL, &types, &nothing) == cudaErrorInvalidValue,
          "adamw clips without a factor");
    CHECK(stw_cuda_convert(launch, STW_ELEMENT_NONE, s.params.device, s.params.device,
                           STW_CUDA_SOURCE_F32, 1) == cudaErrorInvalidValue,
          "convert takes no type");
    CHECK(stw_cuda_norm_add(launch, STW_ELEMENT_NONE, s.grads.device, 1, NULL) ==
              cudaErrorInvalidValue,
          "norm_add takes no type");
    adamw_arrays_free(&s);
}

/* ---- the norm ---- */

static stw_norm_bins *device_bins;

static void add_squares(const array *g, uint64_t first, uint64_t n, stw_norm_bins *bins) {
    for (uint64_t i = first; i < first + n; i++) {
        unsigned bin = 0;
        uint64_t value = 0;
        int kind = stw_norm_split(get(g->type, g->host + bytes_of(g, i)), &bin, &value);
        bins->not_finite += kind >= 2;
        bins->nans += kind == 3;
        if (kind != 1) continue;
        bins->low[bin] += value & 0xFFFFFFFFu;
        bins->high[bin] += value >> 32;
    }
}

static void norm_case(array *g, uint64_t n, unsigned offset, unsigned turns, const char *what) {
    stw_norm_bins gpu, host = {.not_finite = 0};
    CUDA(cudaMemsetAsync(device_bins, 0, sizeof *device_bins, launch.stream));
    put(g);
    for (unsigned t = 0; t < turns; t++) {
        CUDA(stw_cuda_norm_add(launch, g->type, g->device + bytes_of(g, offset), n, device_bins));
        add_squares(g, offset, n, &host);
    }
    CUDA(cudaMemcpyAsync(&gpu, device_bins, sizeof gpu, cudaMemcpyDeviceToHost, launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
    stw_norm_normalise(&gpu);
    stw_norm_normalise(&host);
    CHECK(memcmp(&gpu, &host, sizeof gpu) == 0,
          "norm of %s, %s, n %llu, offset %u: %.17g, not %.17g", type_name(g->type), what,
          (unsigned long long)n, offset, stw_norm_value(&gpu), stw_norm_value(&host));
}

static void set_all(array *a, uint32_t bits) {
    for (uint64_t i = 0; i < a->elements; i++)
        set(a->type, a->host + bytes_of(a, i), stw_float_from_bits(bits));
}

static void test_norm(void) {
    enum { MANY = 1000003 };
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, sizeof *device_bins));
    device_bins = memory;
    for (unsigned t = 0; t < 2; t++) {
        array g = array_new(both[t], MANY + 8, false);
        fill(&g, -126, 127, 0);
        for (size_t s = 0; s < N_SIZES; s++)
            for (unsigned offset = 0; offset < 4; offset++)
                norm_case(&g, sizes[s], offset, 1u + (unsigned)(s + offset) % 3u, "all exponents");
        norm_case(&g, MANY, 0, 1, "all exponents");
        set_all(&g, 0x7F7F0000u);
        norm_case(&g, MANY, 0, 3, "the largest bf16");
        set_all(&g, t == 0 ? 0x7F7FFFFFu : 0x007F0000u);
        norm_case(&g, MANY, 0, 3, "the largest float, or bf16's largest subnormal");
        set_all(&g, t == 0 ? 0x00000001u : 0x80010000u);
        norm_case(&g, MANY, 1, 3, "the smallest subnormal");
        /* One multiprocessor's threads have more values than a cell has room for, all of them in
         * the same cell and as large as they come there. */
        const uint32_t sms = launch.sms;
        launch.sms = 1;
        set_all(&g, t == 0 ? 0x3FFFFFFFu : 0x3FFF0000u);
        norm_case(&g, MANY, 0, 2, "the largest of a cell");
        launch.sms = sms;
        set_all(&g, 0x80000000u);
        norm_case(&g, MANY, 2, 1, "minus zero");
        fill(&g, -10, 10, 0);
        for (uint64_t i = 0; i < MANY; i += 1001)
            set(g.type, g.host + bytes_of(&g, i), i % 2 == 0 ? (float)INFINITY : (float)NAN);
        norm_case(&g, MANY, 0, 1, "infinities and NaNs");
        norm_case(&g, 202753, 3, 2, "infinities and NaNs");
        for (uint64_t i = 0; i < MANY; i += 1001)
            set(g.type, g.host + bytes_of(&g, i), i % 2 == 0 ? (float)INFINITY : -(float)INFINITY);
        norm_case(&g, MANY, 0, 1, "infinities");
        array_free(&g);
    }
    CUDA(cudaFree(memory));
}

/* ---- counters and factor ---- */

/* Counters as they may come: from nothing to full, ties of the rounding, and sums over ranks. */
static void random_counters(uint64_t *counters, unsigned kind) {
    memset(counters, 0, STW_NORM_COUNTERS * sizeof *counters);
    if (kind % 8 == 0) { /* one bit, and perhaps what makes or breaks a tie 53 bits below */
        unsigned bit = 60 + (unsigned)random_below(500), least = bit - 60;
        unsigned tie = bit - 53 + (unsigned)random_below(2);
        counters[bit / 16] |= 1ull << bit % 16;
        counters[tie / 16] |= 1ull << tie % 16;
        if (random_below(2) != 0) counters[least / 16] |= 1ull << least % 16;
    } else if (kind % 8 < 5) {
        unsigned top = (unsigned)random_below(STW_NORM_BINS);
        for (unsigned b = 0; b <= top; b++)
            counters[b] = random64() >> (kind % 8 == 1 ? 48 : random_below(64));
        if (kind % 8 == 4)
            for (unsigned b = 0; b <= top; b++)
                counters[STW_NORM_BINS + b] = random64() >> random_below(64);
    } else if (kind % 8 == 5) {
        for (unsigned b = 0; b < 2 * STW_NORM_BINS; b++) counters[b] = UINT64_MAX;
    } else if (kind % 8 == 6) {
        counters[random_below(2 * STW_NORM_BINS)] = random64() >> random_below(64);
    } /* else zero */
    if (random_below(16) == 0) counters[2 * STW_NORM_BINS] = 1 + random_below(9);
    if (random_below(16) == 0) counters[2 * STW_NORM_BINS + 1] = 1 + random_below(9);
}

static void test_norm_factor(void) {
    enum { N = 4096 };
    static uint64_t counters[N][STW_NORM_COUNTERS];
    static double norms[N], limits[N];
    static float factors[N];
    void *memory[3] = {NULL, NULL, NULL};
    CUDA(cudaMalloc(&memory[0], sizeof counters));
    CUDA(cudaMalloc(&memory[1], sizeof norms));
    CUDA(cudaMalloc(&memory[2], sizeof factors));
    for (unsigned i = 0; i < N; i++) {
        random_counters(counters[i], i);
        stw_norm_bins bins;
        stw_norm_from_counters(counters[i], &bins);
        double norm = stw_norm_value(&bins);
        /* Limits about the norm, so that the factor is not always 1 or next to nothing. */
        limits[i] = i % 3 == 0 || norm > 1e300
                        ? 1.0
                        : norm * (double)random_float(i % 3 == 1 ? -120 : -3, 1, 1);
    }
    CUDA(cudaMemcpy(memory[0], counters, sizeof counters, cudaMemcpyHostToDevice));
    for (unsigned i = 0; i < N; i++)
        CUDA(stw_cuda_norm_factor(launch, (uint64_t *)memory[0] + (size_t)i * STW_NORM_COUNTERS,
                                  limits[i], (double *)memory[1] + i, (float *)memory[2] + i));
    CUDA(cudaStreamSynchronize(launch.stream));
    CUDA(cudaMemcpy(norms, memory[1], sizeof norms, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(factors, memory[2], sizeof factors, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < N; i++) {
        stw_norm_bins bins;
        stw_norm_from_counters(counters[i], &bins);
        double norm = stw_norm_value(&bins);
        float factor = stw_norm_clip_factor(norm, limits[i]);
        CHECK(memcmp(&norm, &norms[i], sizeof norm) == 0, "norm %u is %a, not %a", i, norms[i],
              norm);
        CHECK(memcmp(&factor, &factors[i], sizeof factor) == 0,
              "factor %u of norm %a under %a is %a, not %a", i, norm, limits[i], (double)factors[i],
              (double)factor);
    }
    for (unsigned i = 0; i < 3; i++) CUDA(cudaFree(memory[i]));
}

static void test_norm_counters(void) {
    stw_norm_bins gpu, host;
    uint64_t wanted[STW_NORM_COUNTERS], seen[STW_NORM_COUNTERS];
    void *memory = NULL, *pinned = NULL;
    CUDA(cudaMalloc(&memory, 2 * sizeof gpu));
    CUDA(cudaHostAlloc(&pinned, sizeof host, cudaHostAllocDefault));
    stw_norm_bins *device = memory;
    for (unsigned i = 0; i < 1024; i++) {
        bool counts = i % 5 != 4, has_host = i % 3 != 2;
        random_counters(wanted, i);
        stw_norm_from_counters(wanted, &gpu);
        random_counters(wanted, i / 8);
        stw_norm_from_counters(wanted, &host);
        memcpy(pinned, &host, sizeof host);
        CUDA(cudaMemcpyAsync(device, &gpu, sizeof gpu, cudaMemcpyHostToDevice, launch.stream));
        CUDA(cudaMemsetAsync(device + 1, 0xAA, sizeof gpu, launch.stream));
        CUDA(stw_cuda_norm_counters(launch, device, has_host ? pinned : NULL, counts,
                                    (uint64_t *)(void *)(device + 1)));
        CUDA(cudaMemcpyAsync(seen, device + 1, sizeof seen, cudaMemcpyDeviceToHost, launch.stream));
        CUDA(cudaStreamSynchronize(launch.stream));
        if (!has_host) memset(&host, 0, sizeof host);
        stw_norm_merge(&gpu, &host);
        stw_norm_to_counters(&gpu, wanted);
        if (!counts) memset(wanted, 0, sizeof wanted);
        CHECK(memcmp(seen, wanted, sizeof seen) == 0, "counters of pair %u differ", i);
    }
    CUDA(cudaFree(memory));
    CUDA(cudaFreeHost(pinned));
}

/* ---- conversion ---- */

/* A small float by its definition; the top exponent is special but in e4m3. */
static float small_float(uint32_t bits, unsigned exponent_bits, unsigned mantissa_bits) {
    uint32_t top = (1u << exponent_bits) - 1u, bias = top >> 1;
    uint32_t exponent = bits >> mantissa_bits & top, mantissa = bits & ((1u << mantissa_bits) - 1u);
    uint32_t sign = bits >> (exponent_bits + mantissa_bits) << 31;
    bool e4m3 = exponent_bits == 4;
    if (e4m3 && exponent == top && mantissa == 7) return stw_float_from_bits(sign | 0x7FC00000u);
    if (!e4m3 && exponent == top)
        return stw_float_from_bits(sign | 0x7F800000u | mantissa << (23 - mantissa_bits));
    if (exponent == 0)
        exponent = 1;
    else
        mantissa |= 1u << mantissa_bits;
    float size = ldexpf((float)mantissa, (int)exponent - (int)bias - (int)mantissa_bits);
    return stw_float_from_bits(sign | stw_bits_from_float(size));
}

static float source_value(stw_cuda_source source, const unsigned char *at) {
    uint16_t half;
    double wide;
    memcpy(&half, at, sizeof half);
    memcpy(&wide, at, sizeof wide);
    switch (source) {
    case STW_CUDA_SOURCE_F64:
        return (float)wide;
    case STW_CUDA_SOURCE_F16:
        return small_float(half, 5, 10);
    case STW_CUDA_SOURCE_BF16:
        return stw_float_from_bf16(half);
    case STW_CUDA_SOURCE_F8_E4M3:
        return small_float(at[0], 4, 3);
    case STW_CUDA_SOURCE_F8_E5M2:
        return small_float(at[0], 5, 2);
    default:
        return get(STW_ELEMENT_F32, at);
    }
}
static const unsigned source_bytes[STW_CUDA_N_SOURCES] = {8, 4, 2, 2, 1, 1};

/* All patterns of the small types, in order; random values, some half-way cases, of the large. */
static void fill_source(unsigned char *from, uint64_t n, stw_cuda_source source) {
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)i;
        float single = random_float(-126, 127, 0);
        if (i % 4 == 0)
            single = stw_float_from_bits((stw_bits_from_float(single) & ~0xFFFFu) | 0x8000u);
        double wide = (double)single * (1.0 + 0x1p-24 + (double)(random64() >> 12) * 0x1p-60);
        unsigned char *at = from + i * source_bytes[source];
        if (source_bytes[source] == 8) memcpy(at, &wide, 8);
        if (source_bytes[source] == 4) memcpy(at, &single, 4);
        if (source_bytes[source] == 2) memcpy(at, &half, 2);
        if (source_bytes[source] == 1) *at = (unsigned char)i;
    }
}

static void test_convert(void) {
    const size_t bytes = (MOST + 16u) * 8u;
    unsigned char *from = calloc(1, bytes);
    void *device_from = NULL;
    if (from == NULL) exit(1);
    CUDA(cudaMalloc(&device_from, bytes));
    for (unsigned k = 0; k < 2 * STW_CUDA_N_SOURCES; k++) {
        stw_cuda_source source = (stw_cuda_source)(k / 2);
        array to = array_new(both[k % 2], MOST + 2 * GUARD, false);
        fill_source(from, MOST + 8u, source);
        fill(&to, -3, 3, 0);
        CUDA(cudaMemcpyAsync(device_from, from, bytes, cudaMemcpyHostToDevice, launch.stream));
        for (size_t s = 0; s < N_SIZES; s++) {
            for (unsigned a = 0; a < 4; a++) {
                uint64_t skip = (uint64_t)a * source_bytes[source], at = GUARD + (a == 3 ? 0 : a);
                char what[80];
                put(&to);
                CUDA(stw_cuda_convert(launch, to.type, to.device + bytes_of(&to, at),
                                      (unsigned char *)device_from + skip, source, sizes[s]));
                for (uint64_t i = 0; i < sizes[s]; i++)
                    set(to.type, to.host + bytes_of(&to, at + i),
                        source_value(source, from + skip + i * source_bytes[source]));
                snprintf(what, sizeof what, "source %d to %s, n %llu, alignment %u", (int)source,
                         type_name(to.type), (unsigned long long)sizes[s], a);
                same(&to, what, true);
            }
        }
        array_free(&to);
    }
    CUDA(cudaFree(device_from));
    free(from);
}

/* ---- seeded gradients and digests ---- */

static void values_case(array *a, uint64_t n, unsigned offset, uint64_t step,
                        uint64_t *device_sum) {
    uint64_t element = offset * 0x123456789ull, seen = 0, start = random64(), wanted = start;
    char what[80];
    put(a);
    CUDA(stw_cuda_seed_grads(launch, a->type, a->device + bytes_of(a, GUARD + offset), n, element,
                             42, step));
    for (uint64_t i = 0; i < n; i++) {
        unsigned char *at = a->host + bytes_of(a, GUARD + offset + i);
        set(a->type, at, stw_seeded_grad(42, step, element + i));
        wanted += stw_digest_element(element + i, stored_bits(a->type, at));
    }
    snprintf(what, sizeof what, "seeded gradients, n %llu, offset %u", (unsigned long long)n,
             offset);
    same(a, what, true);
    CUDA(cudaMemcpyAsync(device_sum, &start, sizeof start, cudaMemcpyHostToDevice, launch.stream));
    CUDA(stw_cuda_digest(launch, a->type, a->device + bytes_of(a, GUARD + offset), n, element,
                         device_sum));
    CUDA(cudaMemcpyAsync(&seen, device_sum, sizeof seen, cudaMemcpyDeviceToHost, launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
    CHECK(seen == wanted, "digest of %s, n %llu: %016llx, not %016llx", type_name(a->type),
          (unsigned long long)n, (unsigned long long)seen, (unsigned long long)wanted);
}

static void test_values(void) {
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, sizeof(uint64_t)));
    for (unsigned t = 0; t < 2; t++) {
        array a = array_new(both[t], MOST + 2 * GUARD, false);
        fill(&a, -100, 100, 0);
        for (size_t s = 0; s < N_SIZES; s++)
            for (unsigned offset = 0; offset < 4; offset++)
                values_case(&a, sizes[s], offset, s + 1, memory);
        array_free(&a);
    }
    CUDA(cudaFree(memory));
}

/* ---- powers ----
 * The bias corrections are computed on the host in the bits of the device's powf, which frameworks
 * call. The rounded double power would differ from it now and then. */

/* test_cuda_kernels.cu */
cudaError_t stw_cuda_powers(cudaStream_t stream, float beta, const unsigned *steps, uint64_t n,
                            float *out);

static void test_powers(void) {
    enum { N = 20000 };
    static const double betas[] = {0.5, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999};
    static unsigned steps[N];
    static float seen[N];
    void *device_steps = NULL, *device_out = NULL;
    CUDA(cudaMalloc(&device_steps, sizeof steps));
    CUDA(cudaMalloc(&device_out, sizeof seen));
    for (unsigned i = 0; i < N; i++) steps[i] = i + 1;
    CUDA(cudaMemcpy(device_steps, steps, sizeof steps, cudaMemcpyHostToDevice));
    for (size_t b = 0; b < COUNT(betas); b++) {
        float beta = (float)betas[b];
        unsigned differ = 0, of_double = 0;
        CUDA(stw_cuda_powers(launch.stream, beta, device_steps, N, device_out));
        CUDA(cudaStreamSynchronize(launch.stream));
        CUDA(cudaMemcpy(seen, device_out, sizeof seen, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < N; i++) {
            if (seen[i] != (float)pow((double)beta, (double)steps[i])) of_double++;
            if (seen[i] == stw_powf(beta, (float)steps[i])) continue;
            CHECK(differ++ > 0, "%.4f^%u is %a, stw_powf %a", betas[b], steps[i], (double)seen[i],
                  (double)stw_powf(beta, (float)steps[i]));
        }
        printf("%.4f^1 .. %d: %u differ from stw_powf, %u from the rounded double\n", betas[b], N,
               differ, of_double);
    }
    CUDA(cudaFree(device_steps));
    CUDA(cudaFree(device_out));
}

/* Bytes from page-locked memory: whole, and none beside them. */
static void test_fetch(void) {
    enum { BYTES = 3 << 20, BEFORE = 64 };
    static const uint64_t lengths[] = {0, 1, 15, 16, 17, 4099, 262144, 1048581, BYTES - 2 * BEFORE};
    void *memory = NULL, *pinned = NULL;
    unsigned char *seen = malloc(BYTES);
    CUDA(cudaMalloc(&memory, BYTES));
    CUDA(cudaHostAlloc(&pinned, BYTES, cudaHostAllocDefault));
    unsigned char *from = pinned, *to = memory;
    if (seen == NULL) exit(1);
    for (size_t i = 0; i < BYTES; i++) from[i] = (unsigned char)(1 + random_below(255));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint64_t n = lengths[i];
        CUDA(cudaMemsetAsync(memory, 0, BYTES, launch.stream));
        CUDA(stw_cuda_fetch(launch.stream, to + BEFORE, from + 16 * i, n));
        CUDA(cudaMemcpyAsync(seen, memory, BYTES, cudaMemcpyDeviceToHost, launch.stream));
        CUDA(cudaStreamSynchronize(launch.stream));
        CHECK(memcmp(seen + BEFORE, from + 16 * i, n) == 0, "%llu bytes differ",
              (unsigned long long)n);
        bool beside = false;
        for (uint64_t k = 0; k < BYTES; k++)
            beside = beside || ((k < BEFORE || k >= BEFORE + n) && seen[k] != 0);
        CHECK(!beside, "%llu bytes wrote beside them", (unsigned long long)n);
    }
    CHECK(stw_cuda_fetch(launch.stream, to + 4, from, 16) == cudaErrorInvalidValue, "not aligned");
    CHECK(stw_cuda_fetch(launch.stream, to, from + 8, 16) == cudaErrorInvalidValue, "not aligned");
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(memory));
    free(seen);
}

/* The launches that load the kernels leave their scratch memory as it is. */
static void test_load(void) {
    static unsigned char zeros[1024], seen[1024];
    void *scratch = NULL;
    CUDA(cudaMalloc(&scratch, sizeof seen));
    CUDA(cudaMemset(scratch, 0, sizeof seen));
    CUDA(stw_cuda_kernels_load(launch, scratch));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(seen, scratch, sizeof seen, cudaMemcpyDeviceToHost));
    CHECK(memcmp(seen, zeros, sizeof seen) == 0, "loading the kernels left something in scratch");
    CUDA(cudaFree(scratch));
}

static bool is_wanted(const char *name, int argc, char **argv) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; i++) wanted |= strncmp(name, argv[i], strlen(argv[i])) == 0;
    return wanted;
}

int main(int argc, char **argv) {
    int count = 0, sms = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) {
        printf("skipped: no GPU\n");
        return 77;
    }
    struct cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    launch.sms = (uint32_t)sms;
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"loading", test_load},
                 {"adamw", test_adamw},
                 {"adamw of strange values", test_adamw_strange},
                 {"adamw refusals", test_adamw_refusals},
                 {"norm", test_norm},
                 {"norm counters", test_norm_counters},
                 {"norm and factor", test_norm_factor},
                 {"convert", test_convert},
                 {"seeded gradients and digests", test_values},
                 {"copies from the host", test_fetch},
                 {"powers", test_powers}};
    printf("%s, %d multiprocessors\n", properties.name, sms);
    unsigned ran = 0;
    for (size_t t = 0; t < COUNT(tests); t++) {
        if (!is_wanted(tests[t].name, argc, argv)) continue;
        ran++;
        unsigned before = failures;
        tests[t].run();
        printf("%s: %s\n", tests[t].name, failures == before ? "same bits" : "FAILED");
        fflush(stdout);
    }
    CHECK(ran > 0, "no test has such a name");
    if (argc < 2) print_rates();
    CUDA(cudaStreamDestroy(launch.stream));
    printf("%u failures\n", failures);
    return failures == 0 ? 0 : 1;
}
