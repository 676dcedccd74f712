/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#define LOOPS stw_host_loops_avx512
#define LOOPS_TEXT "avx512"
#include "backend/host/loops_body.h"
#else
typedef int stw_host_loops_avx512_is_empty;
#endif
