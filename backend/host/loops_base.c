/* SPDX-License-Identifier: Apache-2.0 */
#define LOOPS stw_host_loops_base
#define LOOPS_TEXT "base"
#include "backend/host/loops_body.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
extern const stw_host_loops stw_host_loops_avx2, stw_host_loops_avx512;

const stw_host_loops *stw_host_loops_get(unsigned i) {
    const stw_host_loops *tables[3];
    unsigned n = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        tables[n++] = &stw_host_loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        tables[n++] = &stw_host_loops_avx2;
    tables[n++] = &stw_host_loops_base;
    return i < n ? tables[i] : NULL;
}
#else
const stw_host_loops *stw_host_loops_get(unsigned i) {
    return i == 0 ? &stw_host_loops_base : NULL;
}
#endif
