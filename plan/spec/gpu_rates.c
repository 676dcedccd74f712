/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/gpu_rates.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { N_LENGTHS = 10, FIRST_LENGTH = 256 };

typedef struct row {
    const char *rates, *work, *kernel, *head, *pass;
    double share[N_LENGTHS]; /* at FIRST_LENGTH and its multiples by powers of two */
} row;

static const row rows[] = {
#define X(rates, work, kernel, head, pass, a, b, c, d, e, f, g, h, i, j)                           \
    {rates, work, kernel, head, pass, {a, b, c, d, e, f, g, h, i, j}},
#include "plan/spec/gpu_rates.inc"
#undef X
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Every product of every program asks: most words differ in their first letter. */
static bool same(const char *a, const char *b) { return a[0] == b[0] && strcmp(a, b) == 0; }

/* The first row of these rates. */
static size_t first_of(const char *rates) {
    for (size_t i = 0; i < N_ROWS; i++)
        if (same(rows[i].rates, rates)) return i;
    return N_ROWS;
}

bool stw_gpu_rates_known(const char *rates, const char **known) {
    if (known != NULL) *known = "hopper, blackwell, ampere, ada, volta, cdna2, cdna3, cdna4";
    return first_of(rates) < N_ROWS;
}

static const row *find(const char *rates, const char *work, const char *kernel, const char *head,
                       const char *pass) {
    size_t first = first_of(rates);
    for (size_t i = first < N_ROWS ? first : 0; i < N_ROWS; i++)
        if (same(rows[i].work, work) && same(rows[i].kernel, kernel) && same(rows[i].head, head) &&
            same(rows[i].pass, pass))
            return &rows[i];
    return &rows[0]; /* a test holds that every rates has all rows */
}

/* Straight lines between logarithms: where a share at most doubles with the length, twice the
 * length never takes less time. */
static double share_at(const row *r, double length) {
    if (!(length > FIRST_LENGTH)) {
        double share = r->share[0] * (length > 1 ? length : 1) / FIRST_LENGTH;
        return share < r->share[0] ? share : r->share[0];
    }
    double at = log2(length / FIRST_LENGTH), whole = floor(at);
    if (whole >= N_LENGTHS - 1) return r->share[N_LENGTHS - 1];
    const double *share = &r->share[(size_t)whole];
    return share[0] * pow(share[1] / share[0], at - whole);
}

double stw_gpu_product_share(const char *rates, bool fp8, double length) {
    return share_at(find(rates, "product", fp8 ? "fp8" : "bf16", "", ""), length);
}

/* Widths between 64 and 128 are interpolated; others are as the nearest of them. */
double stw_gpu_attention_share(const char *rates, stw_kernel kernel, bool backward, double head,
                               double length) {
    static const char *const names[] = {
        [STW_KERNEL_FLASH] = "flash", [STW_KERNEL_TRITON] = "triton", [STW_KERNEL_FUSED] = "fused"};
    const char *const name = names[kernel];
    const char *const pass = backward ? "backward" : "forward";
    double narrow = share_at(find(rates, "attention", name, "64", pass), length);
    double wide = share_at(find(rates, "attention", name, "128", pass), length);
    double at = (head - 64) / 64;
    return narrow + (at < 0 ? 0 : at > 1 ? 1 : at) * (wide - narrow);
}
