/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/element.h"

/* What loops_adamw_body.h asks of an instruction set. */
#define VECTOR_LANES 8u
typedef __m256 vector;
#define vector_set _mm256_set1_ps
#define vector_fmadd _mm256_fmadd_ps
#define vector_add _mm256_add_ps
#define vector_sub _mm256_sub_ps
#define vector_mul _mm256_mul_ps
#define vector_div _mm256_div_ps
#define vector_sqrt _mm256_sqrt_ps
#define vector_fence _mm_sfence

static inline vector vector_load(const float *from) { return _mm256_loadu_ps(from); }
static inline vector vector_load_bf16(const uint16_t *from) {
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline void vector_store(float *to, vector x, bool stream) {
    if (stream)
        _mm256_stream_ps(to, x);
    else
        _mm256_storeu_ps(to, x);
}
/* stw_one_nan */
static inline vector vector_one_nan(vector x) {
    const __m256 one = _mm256_castsi256_ps(_mm256_set1_epi32(STW_NAN_BITS));
    return _mm256_blendv_ps(x, one, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
/* stw_bf16_from_float */
static inline void vector_store_bf16(uint16_t *to, vector x, bool stream) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i high = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7FC0), nan);
    /* Packing works within halves of 128 bits: bring the first quarters of both together. */
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xD8);
    __m128i out = _mm256_castsi256_si128(packed);
    if (stream)
        _mm_stream_si128((__m128i *)(void *)to, out);
    else
        _mm_storeu_si128((__m128i *)(void *)to, out);
}

#define LOOPS stw_host_loops_avx2
#define LOOPS_TEXT "avx2"
#include "backend/host/loops_body.h"
#else
typedef int stw_host_loops_avx2_is_empty;
#endif
