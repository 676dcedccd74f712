/* SPDX-License-Identifier: Apache-2.0 */
#include "core/units.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/tree.h"

/* For products that must be exact before conversion to 64 bits. */
__extension__ typedef unsigned __int128 u128;

/* A unit word means multiplier * 2^shift * 10^exponent. Decimal prefixes are not multiplied as
 * doubles: "50.1 GB/s" is read as 50.1e9, which strtod rounds correctly. */
typedef struct word {
    const char *text;
    int shift, exponent;
    unsigned multiplier;
} word;

#define SIZES(per)                                                                                 \
    {"B" per, 0, 0, 1}, {"kB" per, 0, 3, 1}, {"MB" per, 0, 6, 1}, {"GB" per, 0, 9, 1},             \
        {"TB" per, 0, 12, 1}, {"PB" per, 0, 15, 1}, {"KiB" per, 10, 0, 1}, {"MiB" per, 20, 0, 1},  \
        {"GiB" per, 30, 0, 1}, {"TiB" per, 40, 0, 1}, {                                            \
        "PiB" per, 50, 0, 1                                                                        \
    }

static const word byte_words[] = {SIZES("")};
/* Bits per second in two spellings: 1 Gbit/s is 125 x 10^6 B/s. */
static const word bps_words[] = {
    SIZES("/s"),         {"Mbit/s", 0, 3, 125}, {"Gbit/s", 0, 6, 125}, {"Tbit/s", 0, 9, 125},
    {"Mbps", 0, 3, 125}, {"Gbps", 0, 6, 125},   {"Tbps", 0, 9, 125}};
static const word flops_words[] = {{"FLOP/s", 0, 0, 1},
                                   {"MFLOP/s", 0, 6, 1},
                                   {"GFLOP/s", 0, 9, 1},
                                   {"TFLOP/s", 0, 12, 1},
                                   {"PFLOP/s", 0, 15, 1}};
static const word pps_words[] = {
    {"param/s", 0, 0, 1}, {"kparam/s", 0, 3, 1}, {"Mparam/s", 0, 6, 1}, {"Gparam/s", 0, 9, 1}};
static const word second_words[] = {{"s", 0, 0, 1},   {"ms", 0, -3, 1},  {"us", 0, -6, 1},
                                    {"ns", 0, -9, 1}, {"min", 0, 0, 60}, {"h", 0, 0, 3600}};
static const word count_words[] = {{"K", 0, 3, 1}, {"M", 0, 6, 1}, {"G", 0, 9, 1}};
static const word token_words[] = {{"k", 10, 0, 1}, {"K", 10, 0, 1}, {"M", 20, 0, 1}};
static const word ratio_words[] = {{"%", 0, -2, 1}};
static const word bare = {"", 0, 0, 1};

enum { MOST_WORDS = 20, LONGEST_NUMBER = 100, LARGEST_EXPONENT = 400 };

static const struct {
    const char *expected;
    const word *words;
    size_t n_words;
} kinds[] = {
#define KIND(words) words, sizeof words / sizeof words[0]
    [STW_UNIT_BYTES] = {"a size such as \"80 GiB\"", KIND(byte_words)},
    [STW_UNIT_BPS] = {"a rate such as \"50 GB/s\" or \"400 Gbit/s\"", KIND(bps_words)},
    [STW_UNIT_FLOPS] = {"a rate such as \"790 TFLOP/s\"", KIND(flops_words)},
    [STW_UNIT_PPS] = {"a rate such as \"4.8 Gparam/s\"", KIND(pps_words)},
    [STW_UNIT_SECONDS] = {"a time such as \"10 us\"", KIND(second_words)},
    [STW_UNIT_COUNT] = {"a count such as 4096, 5e7 or \"50 M\"", KIND(count_words)},
    [STW_UNIT_TOKENS] = {"tokens such as 4096 or \"8k\"", KIND(token_words)},
    [STW_UNIT_RATIO] = {"a ratio such as 0.8 or \"80%\"", KIND(ratio_words)},
#undef KIND
};

bool stw_unit_is_needed(stw_unit unit) {
    return unit != STW_UNIT_COUNT && unit != STW_UNIT_TOKENS && unit != STW_UNIT_RATIO;
}

const char *stw_unit_expected(stw_unit unit) {
    return (size_t)unit < sizeof kinds / sizeof kinds[0] ? kinds[unit].expected : "a number";
}

/* Parts of a quantity: digits (with at most one point), decimal exponent, unit word. */
typedef struct parts {
    char digits[LONGEST_NUMBER + 1];
    long exponent;
    const word *unit;
} parts;

/* "Gb/s" is bits by the letter and bytes to many who write it: the two differ by a factor of 8. */
static bool bits_or_bytes(const char *unit_text, stw_unit unit) {
    return unit == STW_UNIT_BPS && strchr(unit_text, 'b') != NULL &&
           strchr(unit_text, 'B') == NULL && strstr(unit_text, "ib") == NULL;
}

/* " (did you mean "GB/s"?)", or nothing. */
static void hint_unit(const char *unit_text, stw_unit unit, const char *const *names, char *out,
                      size_t out_size) {
    const char *near = stw_nearest(unit_text, names, kinds[unit].n_words);
    char prefix = (char)toupper((unsigned char)unit_text[0]);
    out[0] = '\0';
    if (near != NULL && strchr(near, 'b') != NULL)
        snprintf(out, out_size, " (did you mean \"%s\"?)", near);
    else if (bits_or_bytes(unit_text, unit) && strchr("MGT", prefix) != NULL)
        snprintf(out, out_size, " (did you mean \"%cbit/s\" or \"%cB/s\"?)", prefix, prefix);
    else if (near != NULL)
        snprintf(out, out_size, " (did you mean \"%s\"?)", near);
}

static stw_status fail_unit(const char *text, const char *unit_text, stw_unit unit,
                            const char *where, stw_error *err) {
    const char *names[MOST_WORDS];
    char list[240] = "", found[160], unit_found[160], hint[64];
    size_t used = 0;
    for (size_t i = 0; i < kinds[unit].n_words && used < sizeof list; i++) {
        names[i] = kinds[unit].words[i].text;
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    stw_text_quote(text, found, sizeof found);
    stw_text_quote(unit_text, unit_found, sizeof unit_found);
    hint_unit(unit_text, unit, names, hint, sizeof hint);
    return stw_fail(err, STW_STATUS_BAD_INPUT, where,
                    "found %s with the unknown unit %s%s, expected %s, units %s", found, unit_found,
                    hint, kinds[unit].expected, list);
}

static stw_status fail_quantity(const char *text, stw_unit unit, const char *problem,
                                const char *where, stw_error *err) {
    char found[160];
    stw_text_quote(text, found, sizeof found);
    return stw_fail(err, STW_STATUS_BAD_INPUT, where, "found %s%s, expected %s", found, problem,
                    kinds[unit].expected);
}

static const char *skip_spaces(const char *p) {
    while (*p == ' ' || *p == '\t') p++;
    return p;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits with at most one point, then an exponent; NULL if there is no such number. */
static const char *split_number(const char *p, parts *out) {
    size_t used = 0, n_digits = 0;
    bool point = false;
    for (; is_digit(*p) || (*p == '.' && !point); p++) {
        if (used == LONGEST_NUMBER) return NULL;
        if (*p == '.')
            point = true;
        else
            n_digits++;
        out->digits[used++] = *p;
    }
    out->digits[used] = '\0';
    out->exponent = 0;
    if (n_digits == 0) return NULL;
    if (*p != 'e' && *p != 'E') return p;
    const char *e = p + 1;
    bool negative = *e == '-';
    if (*e == '-' || *e == '+') e++;
    if (!is_digit(*e))
        return p; /* the letter of a unit: "8 EiB" has none of those that are known */
    for (; is_digit(*e); e++)
        if (out->exponent <= LARGEST_EXPONENT) out->exponent = out->exponent * 10 + (*e - '0');
    if (out->exponent > LARGEST_EXPONENT) return NULL;
    if (negative) out->exponent = -out->exponent;
    return e;
}

static stw_status split(const char *text, stw_unit unit, parts *out, const char *where,
                        stw_error *err) {
    if ((size_t)unit >= sizeof kinds / sizeof kinds[0])
        return stw_fail(err, STW_STATUS_BUG, where, "unit kind %d is unknown", (int)unit);
    const char *p = skip_spaces(text);
    if (*p == '-') return fail_quantity(text, unit, ", which is negative", where, err);
    p = split_number(p, out);
    if (p == NULL) return fail_quantity(text, unit, "", where, err);
    p = skip_spaces(p);
    size_t length = strlen(p);
    while (length > 0 && isspace((unsigned char)p[length - 1])) length--;
    out->unit = NULL;
    if (length == 0) out->unit = &bare;
    for (size_t i = 0; i < kinds[unit].n_words && out->unit == NULL; i++) {
        const word *w = &kinds[unit].words[i];
        if (strlen(w->text) == length && memcmp(w->text, p, length) == 0) out->unit = w;
    }
    return out->unit != NULL ? STW_STATUS_OK : fail_unit(text, p, unit, where, err);
}

stw_status stw_quantity_parse(const char *text, stw_unit unit, double *out, const char *where,
                              stw_error *err) {
    parts q;
    stw_status status = split(text, unit, &q, where, err);
    if (status != STW_STATUS_OK) return status;
    char number[LONGEST_NUMBER + 16];
    snprintf(number, sizeof number, "%se%ld", q.digits, q.exponent + q.unit->exponent);
    double value = ldexp(strtod(number, NULL) * q.unit->multiplier, q.unit->shift);
    if (!isfinite(value)) return fail_quantity(text, unit, ", which is too large", where, err);
    *out = value;
    return STW_STATUS_OK;
}

/* The digits as a whole number and a power of ten. After the 20th significant digit, decimals are
 * dropped (far below half a byte) and other digits only count. */
static void whole_digits(const parts *q, u128 *mantissa, long *exponent, bool *inexact) {
    const u128 enough = (u128)10000000000u * 10000000000u;
    bool behind_point = false;
    *mantissa = 0;
    *inexact = false;
    *exponent = q->exponent + q->unit->exponent;
    for (const char *p = q->digits; *p != '\0'; p++) {
        if (*p == '.') {
            behind_point = true;
        } else if (*mantissa < enough) {
            *mantissa = *mantissa * 10 + (unsigned)(*p - '0');
            if (behind_point) (*exponent)--;
        } else {
            if (*p != '0') *inexact = true;
            if (!behind_point) (*exponent)++;
        }
    }
    while (*mantissa != 0 && *mantissa % 10 == 0) {
        *mantissa /= 10;
        (*exponent)++;
    }
}

stw_status stw_u64_parse(const char *text, stw_unit unit, uint64_t *out, const char *where,
                         stw_error *err) {
    if (unit == STW_UNIT_BYTES && strcmp(text, "unlimited") == 0) {
        *out = STW_UNLIMITED;
        return STW_STATUS_OK;
    }
    parts q;
    stw_status status = split(text, unit, &q, where, err);
    if (status != STW_STATUS_OK) return status;
    const u128 most = (u128)INT64_MAX; /* what JSON files hold */
    u128 value = 0;
    long exponent = 0;
    bool inexact = false;
    whole_digits(&q, &value, &exponent, &inexact);
    bool rounds = unit == STW_UNIT_BYTES || unit == STW_UNIT_BPS;
    /* below 10^21 * 3600 * 2^50, which fits in 128 bits */
    value = (value * q.unit->multiplier) << q.unit->shift;
    if (value == 0) exponent = 0;
    for (; exponent > 0 && value <= most; exponent--) value *= 10;
    if (exponent < -38) { /* 10^39 does not fit; what is left is below half of one unit */
        inexact = true;
        value = 0;
        exponent = 0;
    }
    u128 divisor = 1;
    for (; exponent < 0; exponent++) divisor *= 10;
    if (value % divisor != 0) inexact = true;
    u128 rest = value % divisor;
    value = value / divisor + (rest >= divisor - rest && rest > 0);
    if (value > most) return fail_quantity(text, unit, ", which is above 2^63 - 1", where, err);
    if (inexact && !rounds) return fail_quantity(text, unit, ", which is not whole", where, err);
    *out = (uint64_t)value;
    return STW_STATUS_OK;
}

static const char *const binary_names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
static const char *const decimal_names[] = {"B", "kB", "MB", "GB", "TB", "PB"};
enum { N_BYTE_NAMES = sizeof binary_names / sizeof binary_names[0] };

static void format_binary(double bytes, const char *per, char *out, size_t out_size) {
    size_t i = 0;
    while (i + 1 < sizeof binary_names / sizeof binary_names[0] &&
           bytes >= (i > 0 ? 1023.995 : 1023.5)) {
        bytes /= 1024;
        i++;
    }
    snprintf(out, out_size, "%.*f %s%s", i > 0 ? 2 : 0, bytes, binary_names[i], per);
}

void stw_bytes_format(uint64_t bytes, char *out, size_t out_size) {
    if (bytes == STW_UNLIMITED)
        snprintf(out, out_size, "unlimited");
    else
        format_binary((double)bytes, "", out, out_size);
}

void stw_bytes_format_exact(uint64_t bytes, char *out, size_t out_size) {
    if (bytes == STW_UNLIMITED) {
        snprintf(out, out_size, "unlimited");
        return;
    }
    size_t i = 0, d = 0;
    uint64_t binary = bytes, decimal = bytes;
    for (; binary != 0 && binary % 1024 == 0 && i + 1 < N_BYTE_NAMES; i++) binary /= 1024;
    for (; decimal != 0 && decimal % 1000 == 0 && d + 1 < N_BYTE_NAMES; d++) decimal /= 1000;
    if (decimal < binary)
        snprintf(out, out_size, "%" PRIu64 " %s", decimal, decimal_names[d]);
    else
        snprintf(out, out_size, "%" PRIu64 " %s", binary, binary_names[i]);
}

/* The largest prefix in which `value` is at least `least`, else the smallest prefix. */
static const word *suiting_word(double value, stw_unit unit, double least) {
    const bool counts = unit == STW_UNIT_COUNT || unit == STW_UNIT_TOKENS;
    const word *best = counts ? &bare : NULL, *smallest = best;
    for (size_t i = 0; i < kinds[unit].n_words; i++) {
        const word *w = &kinds[unit].words[i];
        if (w->shift != 0 || w->multiplier != 1) continue;
        if (smallest == NULL || w->exponent < smallest->exponent) smallest = w;
        bool reached = value >= least * pow(10, w->exponent);
        if (reached && (best == NULL || w->exponent > best->exponent)) best = w;
    }
    return value == 0 && !counts ? &kinds[unit].words[0] : best != NULL ? best : smallest;
}

/* Three significant digits, never with an exponent. */
static void format_three(double value, const char *sign, const char *space, const char *name,
                         char *out, size_t out_size) {
    const char *gap = name[0] != '\0' ? space : "";
    if (value >= 999.5)
        snprintf(out, out_size, "%s%.0f%s%s", sign, value, gap, name);
    else
        snprintf(out, out_size, "%s%.3g%s%s", sign, value, gap, name);
}

void stw_quantity_format(double value, stw_unit unit, char *out, size_t out_size) {
    const char *sign = signbit(value) && value != 0 ? "-" : "";
    value = fabs(value);
    if (!isfinite(value)) {
        snprintf(out, out_size, "%s%s", sign, isnan(value) ? "nan" : "inf");
    } else if (unit == STW_UNIT_BYTES) {
        char size[64];
        format_binary(value, "", size, sizeof size);
        snprintf(out, out_size, "%s%s", sign, size);
    } else if (unit == STW_UNIT_RATIO) {
        format_three(value * 100, sign, "", "%", out, out_size);
    } else if (unit == STW_UNIT_SECONDS && value >= 119.5) {
        bool hours = value >= 7200;
        format_three(value / (hours ? 3600 : 60), sign, " ", hours ? "h" : "min", out, out_size);
    } else if (unit == STW_UNIT_COUNT && value < 1e5 && value == floor(value)) {
        snprintf(out, out_size, "%s%.0f", sign, value);
    } else {
        const word *w = suiting_word(value, unit, 0.9995);
        format_three(value / pow(10, w->exponent), sign, " ", w->text, out, out_size);
    }
}

/* The shortest digits d.ddd * 10^exponent that read back as `value`; returns the exponent. */
static int shortest_digits(double value, char digits[24]) {
    char text[40] = "";
    for (int n = 0; n <= 16; n++) {
        snprintf(text, sizeof text, "%.*e", n, value);
        if (strtod(text, NULL) == value) break;
    }
    size_t used = 0;
    const char *p = text;
    for (; *p != 'e'; p++)
        if (is_digit(*p)) digits[used++] = *p;
    digits[used] = '\0';
    return (int)strtol(p + 1, NULL, 10);
}

/* Moves the decimal point: exact, unlike division by a power of ten. */
static void format_decimal(double value, stw_unit unit, char *out, size_t out_size) {
    char digits[24];
    int exponent = shortest_digits(value, digits);
    const word *w = suiting_word(value, unit, 1.0);
    int n_digits = (int)strlen(digits), before = exponent - w->exponent + 1;
    const char *gap = w->text[0] != '\0' ? " " : "";
    if (value == 0)
        snprintf(out, out_size, "0%s%s", gap, w->text);
    else if (before > 21 || before < -6)
        snprintf(out, out_size, "%c%s%se%d%s%s", digits[0], n_digits > 1 ? "." : "", digits + 1,
                 before - 1, gap, w->text);
    else if (before <= 0)
        snprintf(out, out_size, "0.%.*s%s%s%s", -before, "000000", digits, gap, w->text);
    else if (before >= n_digits)
        snprintf(out, out_size, "%s%.*s%s%s", digits, before - n_digits, "00000000000000000000000",
                 gap, w->text);
    else
        snprintf(out, out_size, "%.*s.%s%s%s", before, digits, digits + before, gap, w->text);
}

void stw_quantity_format_exact(double value, stw_unit unit, char *out, size_t out_size) {
    if (!isfinite(value) || value < 0) { /* no quantity; shown as it is */
        snprintf(out, out_size, "%g", value);
        return;
    }
    if (unit == STW_UNIT_RATIO) {
        stw_text_double(value, out, out_size);
        return;
    }
    char decimal[64], binary[64], digits[32];
    format_decimal(value, unit, decimal, sizeof decimal);
    if (unit == STW_UNIT_BYTES && value >= 1024) {
        size_t i = 0;
        double scaled = value; /* exact: only the exponent of the double changes */
        for (; scaled >= 1024 && i + 1 < sizeof binary_names / sizeof binary_names[0]; i++)
            scaled /= 1024;
        stw_text_double(scaled, digits, sizeof digits);
        snprintf(binary, sizeof binary, "%s %s", digits, binary_names[i]);
        if (strlen(binary) <= strlen(decimal)) memcpy(decimal, binary, sizeof binary);
    }
    snprintf(out, out_size, "%s", decimal);
}
