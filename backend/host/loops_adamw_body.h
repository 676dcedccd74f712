/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW for one instruction set: part of loops_body.h. There is one copy of the loop for each
 * combination of types, so that a loop does not test them. With VECTOR_LANES the loops use vectors,
 * with the operations of stw_adamw_element one for one and in its order. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE float load_element(const void *from, stw_element type, uint64_t i) {
    return type == STW_ELEMENT_F32 ? ((const float *)from)[i]
                                   : stw_float_from_bf16(((const uint16_t *)from)[i]);
}

ALWAYS_INLINE void store_element(void *to, stw_element type, uint64_t i, float value) {
    if (type == STW_ELEMENT_F32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = stw_bf16_from_float(value);
}

/* With vectors only the elements at both ends come here, so one function for all types is
 * enough. */
#ifdef VECTOR_LANES
#define ADAMW_SCALAR static __attribute__((noinline, noclone))
#else
#define ADAMW_SCALAR ALWAYS_INLINE
#endif

/* Elements [first, end) one by one. */
ADAMW_SCALAR void adamw_scalar(const stw_adamw_arrays *x, stw_element_types types, uint64_t first,
                               uint64_t end) {
    stw_adamw a = x->adamw;
    stw_adamw_group group = x->group;
    float factor = x->factor;
    void *restrict params = x->params, *restrict m = x->exp_avg, *restrict v = x->exp_avg_sq;
    const void *restrict grads = x->grads;
    float *restrict master = x->master;
    bool has_master = types.master != STW_ELEMENT_NONE;
    a.clip = 1; /* a constant, or the compiler would not vectorise */
    for (uint64_t i = first; i < end; i++) {
        float w = has_master ? master[i] : load_element(params, types.params, i);
        float exp_avg = load_element(m, types.exp_avg, i);
        float exp_avg_sq = load_element(v, types.exp_avg_sq, i);
        stw_adamw_element(&a, group, factor, &w, load_element(grads, types.grads, i), &exp_avg,
                          &exp_avg_sq);
        if (has_master) master[i] = w;
        store_element(params, types.params, i, w);
        store_element(m, types.exp_avg, i, exp_avg);
        store_element(v, types.exp_avg_sq, i, exp_avg_sq);
    }
}

#ifdef VECTOR_LANES

ALWAYS_INLINE vector load_vector(const void *from, stw_element type, uint64_t i) {
    return type == STW_ELEMENT_F32 ? vector_load((const float *)from + i)
                                   : vector_load_bf16((const uint16_t *)from + i);
}

ALWAYS_INLINE void store_vector(void *to, stw_element type, uint64_t i, vector value, bool stream) {
    if (type == STW_ELEMENT_F32)
        vector_store((float *)to + i, vector_one_nan(value), stream);
    else
        vector_store_bf16((uint16_t *)to + i, value, stream);
}

/* True if vectors from element i on can be stored past the caches. */
ALWAYS_INLINE bool streams(const void *to, stw_element type, uint64_t i) {
    return ((uintptr_t)to + i * stw_element_bytes(type)) %
               (VECTOR_LANES * stw_element_bytes(type)) ==
           0;
}

/* Prefetch distance, 4 KiB of fp32: farther than the hardware's prefetchers reach
 * (bench/results/constants.md). */
#define AHEAD_ELEMENTS 1024u

ALWAYS_INLINE void prefetch(const void *from, stw_element type, uint64_t i) {
    __builtin_prefetch((const char *)from + i * stw_element_bytes(type));
}

/* Update whole vectors of [first, n); returns their end. Arrays that are read and written are
 * stored through the caches, which hold their lines anyway; storing past them is slower. Only
 * parameters with a master, which are not read, are stored past the caches. */
ALWAYS_INLINE uint64_t adamw_vectors(const stw_adamw_arrays *x, stw_element_types types,
                                     uint64_t first, bool stream) {
    const vector decay = vector_set(-x->group.lr_wd), step_size = vector_set(x->group.step_size);
    const vector beta1 = vector_set(x->adamw.beta1), minus_beta1 = vector_set(-x->adamw.beta1);
    const vector beta2 = vector_set(x->adamw.beta2), minus_beta2 = vector_set(-x->adamw.beta2);
    const vector bc2_sqrt = vector_set(x->adamw.bc2_sqrt), eps = vector_set(x->adamw.eps);
    const vector factor = vector_set(x->factor);
    const bool has_master = types.master != STW_ELEMENT_NONE;
    void *w_at = has_master ? x->master : x->params;
    const stw_element w_type = has_master ? STW_ELEMENT_F32 : types.params;
    const bool stream_params = stream && has_master && streams(x->params, types.params, first);
    uint64_t i = first;
    for (; i + VECTOR_LANES <= x->n; i += VECTOR_LANES) {
        prefetch(w_at, w_type, i + AHEAD_ELEMENTS);
        prefetch(x->grads, types.grads, i + AHEAD_ELEMENTS);
        prefetch(x->exp_avg, types.exp_avg, i + AHEAD_ELEMENTS);
        prefetch(x->exp_avg_sq, types.exp_avg_sq, i + AHEAD_ELEMENTS);
        vector w = load_vector(w_at, w_type, i);
        vector g = vector_mul(load_vector(x->grads, types.grads, i), factor);
        vector m = load_vector(x->exp_avg, types.exp_avg, i);
        vector v = load_vector(x->exp_avg_sq, types.exp_avg_sq, i);
        vector param = vector_fmadd(decay, w, w);
        m = vector_fmadd(beta1, m, vector_fmadd(minus_beta1, g, g));
        vector g2 = vector_mul(g, g);
        v = vector_fmadd(beta2, v, vector_fmadd(minus_beta2, g2, g2));
        vector denom = vector_add(vector_div(vector_sqrt(v), bc2_sqrt), eps);
        w = vector_sub(param, vector_div(vector_mul(step_size, m), denom));
        store_vector(w_at, w_type, i, w, false);
        if (has_master) store_vector(x->params, types.params, i, w, stream_params);
        store_vector(x->exp_avg, types.exp_avg, i, m, false);
        store_vector(x->exp_avg_sq, types.exp_avg_sq, i, v, false);
    }
    return i;
}

/* From this size on, caches do not keep an array until its next use. */
#define STREAM_MIN_ELEMENTS 65536u
#define LINE_BYTES 64u

ALWAYS_INLINE void adamw_typed(const stw_adamw_arrays *x, stw_element_types types) {
    uint64_t first = 0;
    const bool stream = x->n >= STREAM_MIN_ELEMENTS;
    if (stream) {
        uintptr_t at = (uintptr_t)x->params;
        first = (LINE_BYTES - at % LINE_BYTES) % LINE_BYTES / stw_element_bytes(types.params);
        adamw_scalar(x, types, 0, first);
    }
    uint64_t end = adamw_vectors(x, types, first, stream);
    if (stream) vector_fence();
    adamw_scalar(x, types, end, x->n);
}

#else

ALWAYS_INLINE void adamw_typed(const stw_adamw_arrays *x, stw_element_types types) {
    adamw_scalar(x, types, 0, x->n);
}

#endif

/* One function for each combination; the bits of its number are the types. */
#define TYPE_OF(bit) ((bit) != 0 ? STW_ELEMENT_BF16 : STW_ELEMENT_F32)
#define MASTER_OF(bit) ((bit) != 0 ? STW_ELEMENT_F32 : STW_ELEMENT_NONE)
/* clang-format off */
#define COMBINATIONS(X)                                                                            \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)    \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
/* clang-format on */

#define X(number)                                                                                  \
    static void adamw_##number(const stw_adamw_arrays *x) {                                        \
        const stw_element_types types = {TYPE_OF((number)&1), TYPE_OF((number)&2),                 \
                                         MASTER_OF((number)&4), TYPE_OF((number)&8),               \
                                         TYPE_OF((number)&16)};                                    \
        adamw_typed(x, types);                                                                     \
    }
COMBINATIONS(X)
#undef X

static void adamw(const stw_adamw_arrays *arrays, const stw_element_types *types) {
#define X(number) adamw_##number,
    static void (*const combinations[32])(const stw_adamw_arrays *) = {COMBINATIONS(X)};
#undef X
    stw_adamw_arrays x = *arrays;
    if (!x.adamw.clip) x.factor = 1.0f; /* multiplying by that changes no value */
    combinations[(types->params == STW_ELEMENT_BF16) << 0 |
                 (types->grads == STW_ELEMENT_BF16) << 1 |
                 (types->master != STW_ELEMENT_NONE) << 2 |
                 (types->exp_avg == STW_ELEMENT_BF16) << 3 |
                 (types->exp_avg_sq == STW_ELEMENT_BF16) << 4](&x);
}
