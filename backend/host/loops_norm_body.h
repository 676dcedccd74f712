/* SPDX-License-Identifier: Apache-2.0 */
/* The exact sum of squares for one instruction set: part of loops_body.h.
 *
 * A square of a float is exact in double. A block of squares below 2^top is summed level by level:
 * level k keeps the multiple of its unit, 2^(top - 44 (k + 1)), and passes the remainder on. (x +
 * 1.5 * 2^52 unit) - 1.5 * 2^52 unit is x rounded to a multiple of the unit, with nothing lost but
 * the remainder, which a double holds exactly (Demmel, Nguyen: Fast Reproducible Floating-Point
 * Summation, 2013, section on extraction). The sum of a level is a multiple of its unit below 2^53
 * units, hence exact in double too. How many levels it takes until no remainder is left follows
 * from the least exponent of the block. Blocks that take more, or hold infinities or NaNs, are
 * summed number by number. */

#define NORM_LANES 8u
#define NORM_BLOCK 4096u   /* gradients */
#define NORM_LEVEL_BITS 44 /* 53 less log2(NORM_BLOCK / NORM_LANES) */
#define NORM_MAX_LEVELS 4

typedef double norm_double __attribute__((vector_size(8 * NORM_LANES)));
typedef float norm_float __attribute__((vector_size(4 * NORM_LANES)));
typedef uint32_t norm_u32 __attribute__((vector_size(4 * NORM_LANES)));
typedef uint16_t norm_u16 __attribute__((vector_size(2 * NORM_LANES)));

/* Load NORM_LANES values into *out. A vector cannot be passed by value if its instruction set is
 * not the whole file's. */
ALWAYS_INLINE void norm_load(const void *from, stw_element type, uint64_t i, norm_double *out) {
    norm_float values;
    if (type == STW_ELEMENT_F32) {
        memcpy(&values, (const float *)from + i, sizeof values);
    } else {
        norm_u16 halves;
        memcpy(&halves, (const uint16_t *)from + i, sizeof halves);
        norm_u32 bits = __builtin_convertvector(halves, norm_u32) << 16;
        memcpy(&values, &bits, sizeof values);
    }
    *out = __builtin_convertvector(values, norm_double);
}

/* Returns 2^exponent as a double; normal numbers only. */
static inline double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* The bits of the greatest and of the least magnitude but zero (less one; UINT32_MAX: all zero). */
ALWAYS_INLINE void norm_extent(const void *from, stw_element type, uint64_t n, uint32_t *greatest,
                               uint32_t *least) {
    uint32_t most = 0, fewest = UINT32_MAX;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = type == STW_ELEMENT_F32
                            ? stw_bits_from_float(((const float *)from)[i]) & 0x7FFFFFFFu
                            : (((const uint16_t *)from)[i] & 0x7FFFu) * 65536u;
        most = bits > most ? bits : most;
        fewest = bits - 1u < fewest ? bits - 1u : fewest;
    }
    *greatest = most;
    *least = fewest;
}

static void norm_one_by_one(const void *from, stw_element type, uint64_t n, stw_norm_wide *sum) {
    for (uint64_t i = 0; i < n; i++) {
        unsigned bin = 0;
        uint64_t value = 0;
        int kind = stw_norm_split(load_element(from, type, i), &bin, &value);
        if (kind == 1) sum->bin[bin] += (stw_i128)value;
        sum->not_finite += kind >= 2;
        sum->nans += kind == 3;
    }
}

/* Sum n squares; n is a multiple of NORM_LANES, at most NORM_BLOCK; `levels` is a constant. */
ALWAYS_INLINE void norm_levels(const void *from, stw_element type, uint64_t n, int top, int levels,
                               stw_norm_wide *sum) {
    norm_double sums[NORM_MAX_LEVELS] = {{0.0}};
    double shift[NORM_MAX_LEVELS];
    for (int k = 0; k < levels; k++)
        shift[k] = 1.5 * power_of_two(top - NORM_LEVEL_BITS * (k + 1) + 52);
    for (uint64_t i = 0; i < n; i += NORM_LANES) {
        norm_double x;
        norm_load(from, type, i, &x);
        x *= x;
        for (int k = 0; k < levels; k++) {
            norm_double kept = (x + shift[k]) - shift[k];
            sums[k] += kept;
            x -= kept;
        }
    }
    for (int k = 0; k < levels; k++) {
        int unit = top - NORM_LEVEL_BITS * (k + 1);
        double scale = power_of_two(-unit);
        int64_t count = 0; /* of units */
        for (unsigned lane = 0; lane < NORM_LANES; lane++)
            count += (int64_t)(sums[k][lane] * scale);
        /* In units of 2^-298; lower bits are zero, since every square is a multiple. */
        int at = unit + 298;
        if (at < 0) {
            count = at > -63 ? count / ((int64_t)1 << -at) : 0;
            at = 0;
        }
        sum->bin[at / 16] += (stw_i128)count * ((stw_i128)1 << at % 16);
    }
}

ALWAYS_INLINE void norm_typed(const void *grads, stw_element type, uint64_t n, stw_norm_wide *sum) {
    const unsigned char *bytes = grads;
    const int mantissa = type == STW_ELEMENT_F32 ? 24 : 8; /* bits */
    for (uint64_t first = 0; first < n; first += NORM_BLOCK) {
        const void *from = bytes + first * stw_element_bytes(type);
        uint64_t count = n - first < NORM_BLOCK ? n - first : NORM_BLOCK;
        uint64_t whole = count - count % NORM_LANES;
        uint32_t greatest, least;
        norm_extent(from, type, whole, &greatest, &least);
        int high = (int)(greatest >> 23), low = (int)((least + 1u) >> 23);
        if (high == 0) high = 1; /* subnormals have the exponent of the least normal ones */
        if (low == 0) low = 1;
        /* Squares lie below 2^top and are multiples of 2^(2 (low - 126 - mantissa)). */
        int top = 2 * (high - 126);
        int levels = (2 * (high - low + mantissa) + NORM_LEVEL_BITS - 1) / NORM_LEVEL_BITS;
        if (greatest == 0)
            ;
        else if (high == 255 || levels > NORM_MAX_LEVELS)
            norm_one_by_one(from, type, whole, sum);
        else if (levels == 1)
            norm_levels(from, type, whole, top, 1, sum);
        else if (levels == 2)
            norm_levels(from, type, whole, top, 2, sum);
        else if (levels == 3)
            norm_levels(from, type, whole, top, 3, sum);
        else
            norm_levels(from, type, whole, top, 4, sum);
        norm_one_by_one(bytes + (first + whole) * stw_element_bytes(type), type, count - whole,
                        sum);
    }
}

static void norm_add(const void *grads, stw_element type, uint64_t n, stw_norm_wide *sum) {
    if (type == STW_ELEMENT_F32)
        norm_typed(grads, STW_ELEMENT_F32, n, sum);
    else
        norm_typed(grads, STW_ELEMENT_BF16, n, sum);
}
