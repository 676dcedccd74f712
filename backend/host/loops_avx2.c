/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#define LOOPS stw_host_loops_avx2
#define LOOPS_TEXT "avx2"
#include "backend/host/loops_body.h"
#else
typedef int stw_host_loops_avx2_is_empty;
#endif
