/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/element.h"

/* What loops_adamw_body.h asks of an instruction set. */
#define VECTOR_LANES 16u
typedef __m512 vector;
#define vector_set _mm512_set1_ps
#define vector_fmadd _mm512_fmadd_ps
#define vector_add _mm512_add_ps
#define vector_sub _mm512_sub_ps
#define vector_mul _mm512_mul_ps
#define vector_div _mm512_div_ps
#define vector_sqrt _mm512_sqrt_ps
#define vector_fence _mm_sfence

static inline vector vector_load(const float *from) { return _mm512_loadu_ps(from); }
static inline vector vector_load_bf16(const uint16_t *from) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline void vector_store(float *to, vector x, bool stream) {
    if (stream)
        _mm512_stream_ps(to, x);
    else
        _mm512_storeu_ps(to, x);
}
/* stw_one_nan */
static inline vector vector_one_nan(vector x) {
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_castps_si512(x),
                                                     _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                                     _mm512_set1_epi32(STW_NAN_BITS)));
}
/* stw_bf16_from_float */
static inline void vector_store_bf16(uint16_t *to, vector x, bool stream) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __m512i high =
        _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                              _mm512_set1_epi32(0x7FC0));
    __m256i out = _mm512_cvtepi32_epi16(high);
    if (stream)
        _mm256_stream_si256((__m256i *)(void *)to, out);
    else
        _mm256_storeu_si256((__m256i *)(void *)to, out);
}

#define LOOPS stw_host_loops_avx512
#define LOOPS_TEXT "avx512"
#include "backend/host/loops_body.h"
#else
typedef int stw_host_loops_avx512_is_empty;
#endif
