/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and formats quantities: "80 GiB", "50.1 GB/s", "790 TFLOP/s", "4.8 Gparam/s", "10 us",
 * "5e7", "8k" tokens. Binary prefixes are powers of 1024, decimal prefixes are powers of 1000; of
 * tokens, k and M are powers of 1024. A number without unit is in the base unit; whether a reader
 * accepts one is its own rule. Pure functions; any thread may call. */
#ifndef STW_CORE_UNITS_H
#define STW_CORE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/** Dimension of a quantity. It decides which unit words are accepted. */
typedef enum stw_unit {
    STW_UNIT_BYTES,   /* B, kB, MB, GB, TB, KiB, MiB, GiB, TiB */
    STW_UNIT_BPS,     /* the same with /s; Mbit/s, Gbit/s, Tbit/s, also spelt Gbps: 8 bits a byte */
    STW_UNIT_FLOPS,   /* FLOP/s, GFLOP/s, TFLOP/s, PFLOP/s */
    STW_UNIT_PPS,     /* param/s, Mparam/s, Gparam/s */
    STW_UNIT_SECONDS, /* s, ms, us, ns, min, h */
    STW_UNIT_COUNT,   /* a bare number, or with K, M, G (decimal); 5e7 is a count */
    STW_UNIT_TOKENS,  /* a bare number, or with k, M (binary): 8k is 8192 */
    STW_UNIT_RATIO    /* a bare number, or with % */
} stw_unit;

#define STW_UNLIMITED UINT64_MAX /* bytes: written "unlimited" */

/** Parse a quantity. BAD_INPUT for negative values, unknown units, overflow and trailing text.
 * @param where the key, for errors */
STW_MUST_USE stw_status stw_quantity_parse(const char *text, stw_unit unit, double *out,
                                           const char *where, stw_error *err);
/** Parse whole bytes or counts, exact up to 2^63 - 1, the limit of JSON files; more is BAD_INPUT.
 * Bytes are rounded to the nearest byte ("139.8 GiB"), halves up. A count with a fraction is
 * BAD_INPUT. "unlimited" gives STW_UNLIMITED for bytes. */
STW_MUST_USE stw_status stw_u64_parse(const char *text, stw_unit unit, uint64_t *out,
                                      const char *where, stw_error *err);

/** Is a number of this kind meaningless without its unit? Counts, tokens and ratios are not. */
bool stw_unit_is_needed(stw_unit unit);
/** What is expected of a quantity, with an example: "a size such as \"80 GiB\"". */
const char *stw_unit_expected(stw_unit unit);

/** "61.03 GiB", "512 B", "unlimited". */
void stw_bytes_format(uint64_t bytes, char *out, size_t out_size);
/** A size in the unit in which it is exact with the fewest digits ("16 MiB", "2 TB",
 * "16777217 B"); it round-trips. */
void stw_bytes_format_exact(uint64_t bytes, char *out, size_t out_size);
/** A quantity with a suitable prefix: "50.1 GB/s", "790 TFLOP/s", "12.3 ms", "6.27
 * Gparam/s". */
void stw_quantity_format(double value, stw_unit unit, char *out, size_t out_size);
/** Shortest text that parses back to the same double, with a suitable prefix. */
void stw_quantity_format_exact(double value, stw_unit unit, char *out, size_t out_size);

#endif
