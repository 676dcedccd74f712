/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/units.h"
#include "tests/unit/testing.h"

static const double gib = 1024.0 * 1024 * 1024;

static uint64_t u64_of(const char *text, stw_unit unit) {
    uint64_t value = 12345;
    stw_error e = STW_ERROR_INIT;
    if (stw_u64_parse(text, unit, &value, "key", &e) != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", text, e.text);
        CU_FAIL("a quantity that must parse");
    }
    return value;
}

static double double_of(const char *text, stw_unit unit) {
    double value = -1;
    stw_error e = STW_ERROR_INIT;
    if (stw_quantity_parse(text, unit, &value, "key", &e) != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", text, e.text);
        CU_FAIL("a quantity that must parse");
    }
    return value;
}

static void parses_whole_bytes(void) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"1", 1},
        {"512 B", 512},
        {"80 GiB", 85899345920u},
        {"80GiB", 85899345920u},
        {"  80   GiB  ", 85899345920u},
        {"80 GB", 80000000000u},
        {"1 kB", 1000},
        {"1 KiB", 1024},
        {"1.5 KiB", 1536},
        {".5 KiB", 512},
        {"2. KiB", 2048},
        {"1e9", 1000000000u},
        {"1E+3 MiB", 1048576000u},
        {"25e-1 kB", 2500},
        {"139.8 GiB", 150109106995u}, /* 150109106995.2 */
        {"0.4 B", 0},
        {"0.5 B", 1},
        {"1023.9999999999 KiB", 1048576}, /* 1048575.9999999 */
        {"2 TB", 2000000000000u},
        {"3 PiB", 3377699720527872u},
        {"0.0000000000000000000000000000000000000000000001 TiB", 0},
        {"0e300 GiB", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CU_ASSERT_EQUAL(u64_of(cases[i].text, STW_UNIT_BYTES), cases[i].bytes);
}

/* Doubles lose the last bits of these. */
static void is_exact_to_the_last_byte(void) {
    CU_ASSERT_EQUAL(u64_of("9223372036854775807", STW_UNIT_BYTES), (uint64_t)INT64_MAX);
    CU_ASSERT_EQUAL(u64_of("9223372036854775806 B", STW_UNIT_BYTES), (uint64_t)INT64_MAX - 1);
    CU_ASSERT_EQUAL(u64_of("9007199254740993", STW_UNIT_COUNT), 9007199254740993u);
    CU_ASSERT_EQUAL(u64_of("9007199254740991 KiB", STW_UNIT_BYTES), 9223372036854774784u);
    CU_ASSERT_EQUAL(u64_of("8388607.99999904632568359375 TiB", STW_UNIT_BYTES),
                    UINT64_C(9223372036853727232)); /* 2^63 - 2^20 */
    CU_ASSERT_EQUAL(u64_of("9.223372036854775807e18", STW_UNIT_COUNT), (uint64_t)INT64_MAX);
}

static void parses_counts(void) {
    CU_ASSERT_EQUAL(u64_of("4096", STW_UNIT_COUNT), 4096);
    CU_ASSERT_EQUAL(u64_of("5e7", STW_UNIT_COUNT), 50000000);
    CU_ASSERT_EQUAL(u64_of("1e9", STW_UNIT_COUNT), 1000000000);
    CU_ASSERT_EQUAL(u64_of("1.5 K", STW_UNIT_COUNT), 1500);
    CU_ASSERT_EQUAL(u64_of("50M", STW_UNIT_COUNT), 50000000);
    CU_ASSERT_EQUAL(u64_of("7.0", STW_UNIT_COUNT), 7);
    CU_ASSERT_EQUAL(u64_of("70e-1", STW_UNIT_COUNT), 7);
    CU_ASSERT_EQUAL(u64_of("unlimited", STW_UNIT_BYTES), STW_UNLIMITED);
}

/* Each result is the double nearest to what is written, as the compiler reads it. */
static void parses_quantities(void) {
    CU_ASSERT_EQUAL(double_of("50.1 GB/s", STW_UNIT_BPS), 50.1e9);
    CU_ASSERT_EQUAL(double_of("400 Gbit/s", STW_UNIT_BPS), 50e9);
    CU_ASSERT_EQUAL(double_of("3.2Tbps", STW_UNIT_BPS), 400e9);
    CU_ASSERT_EQUAL(double_of("100 Mbit/s", STW_UNIT_BPS), 12.5e6);
    CU_ASSERT_EQUAL(double_of("55.3 GB/s", STW_UNIT_BPS), 55.3e9);
    CU_ASSERT_EQUAL(double_of("4.3 TB/s", STW_UNIT_BPS), 4.3e12);
    CU_ASSERT_EQUAL(double_of("1 GiB/s", STW_UNIT_BPS), gib);
    CU_ASSERT_EQUAL(double_of("790 TFLOP/s", STW_UNIT_FLOPS), 790e12);
    CU_ASSERT_EQUAL(double_of("1.2 PFLOP/s", STW_UNIT_FLOPS), 1.2e15);
    CU_ASSERT_EQUAL(double_of("4.8 Gparam/s", STW_UNIT_PPS), 4.8e9);
    CU_ASSERT_EQUAL(double_of("10 us", STW_UNIT_SECONDS), 10e-6);
    CU_ASSERT_EQUAL(double_of("3.3 ns", STW_UNIT_SECONDS), 3.3e-9);
    CU_ASSERT_EQUAL(double_of("2 min", STW_UNIT_SECONDS), 120);
    CU_ASSERT_EQUAL(double_of("1.5 h", STW_UNIT_SECONDS), 5400);
    CU_ASSERT_EQUAL(double_of("80%", STW_UNIT_RATIO), 0.8);
    CU_ASSERT_EQUAL(double_of("0.8", STW_UNIT_RATIO), 0.8);
    CU_ASSERT_EQUAL(double_of("139.8 GiB", STW_UNIT_BYTES), 139.8 * gib);
    CU_ASSERT_EQUAL(double_of("1e9", STW_UNIT_COUNT), 1e9);
}

static void refuses_what_is_no_quantity(void) {
    static const char *const bad[] = {"",
                                      " ",
                                      "GiB",
                                      "-1",
                                      "- 1 GiB",
                                      "+1",
                                      "1_000",
                                      "1,5 GiB",
                                      "1.2.3 GiB",
                                      ".",
                                      ". GiB",
                                      "1e",
                                      "1e+ GiB",
                                      "0x10",
                                      "inf",
                                      "nan",
                                      "1 GiBs",
                                      "1 GiB GiB",
                                      "1 GB/s",
                                      "1 Gb",
                                      "1 gib",
                                      "1 K",
                                      "1e9999999999999999999",
                                      "Unlimited",
                                      "1 GiB/s x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t whole = 7;
        double real = 7;
        CHECK_FAILS(stw_u64_parse(bad[i], STW_UNIT_BYTES, &whole, "node.memory", err),
                    STW_STATUS_BAD_INPUT, "node.memory: found \"");
        CHECK_FAILS(stw_quantity_parse(bad[i], STW_UNIT_BYTES, &real, "node.memory", err),
                    STW_STATUS_BAD_INPUT, "80 GiB");
        CU_ASSERT_EQUAL(whole, 7);
        CU_ASSERT_EQUAL(real, 7);
    }
    double real = 7;
    CHECK_FAILS(stw_quantity_parse("unlimited", STW_UNIT_BYTES, &real, NULL, err),
                STW_STATUS_BAD_INPUT, "unlimited");
}

static void errors_help(void) {
    uint64_t whole;
    double real;
    CHECK_FAILS(stw_u64_parse("80 gib", STW_UNIT_BYTES, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "did you mean \"GiB\"?");
    CHECK_FAILS(stw_quantity_parse("50 GBs", STW_UNIT_BPS, &real, "k", err), STW_STATUS_BAD_INPUT,
                "did you mean \"GB/s\"?");
    const char *bits[] = {"400 Gb/s", "400 Gb", "400 gb/s", "400 Gb/sec"};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
        CHECK_FAILS(stw_quantity_parse(bits[i], STW_UNIT_BPS, &real, "k", err),
                    STW_STATUS_BAD_INPUT, "did you mean \"Gbit/s\" or \"GB/s\"?");
    CHECK_FAILS(stw_quantity_parse("400 gbit/s", STW_UNIT_BPS, &real, "k", err),
                STW_STATUS_BAD_INPUT, "did you mean \"Gbit/s\"?");
    CHECK_FAILS(stw_quantity_parse("50 gib/s", STW_UNIT_BPS, &real, "k", err), STW_STATUS_BAD_INPUT,
                "did you mean \"GiB/s\"?");
    CHECK_FAILS(stw_quantity_parse("790 tflops", STW_UNIT_FLOPS, &real, "k", err),
                STW_STATUS_BAD_INPUT, "did you mean \"TFLOP/s\"?");
    CHECK_FAILS(stw_u64_parse("80 furlongs", STW_UNIT_BYTES, &whole, "k", err),
                STW_STATUS_BAD_INPUT, "units B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB");
    CHECK_FAILS(stw_u64_parse("-3 GiB", STW_UNIT_BYTES, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "negative");
    CHECK_FAILS(stw_u64_parse("1.5", STW_UNIT_COUNT, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "not whole");
    CHECK_FAILS(stw_u64_parse("0.0001 K", STW_UNIT_COUNT, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "not whole");
    CHECK_FAILS(stw_u64_parse("1e-300", STW_UNIT_COUNT, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "not whole");
    CHECK_FAILS(stw_u64_parse("1\n2", STW_UNIT_COUNT, &whole, "k", err), STW_STATUS_BAD_INPUT,
                "1\\n2");
}

static void refuses_overflow(void) {
    static const char *const big[] = {"9223372036854775808",
                                      "8388608 TiB",
                                      "18446744073709551616",
                                      "1e19",
                                      "8388607.99999999999999 TiB",
                                      "1e400",
                                      "99999999999999999999999999999999 PiB"};
    for (size_t i = 0; i < sizeof big / sizeof big[0]; i++) {
        uint64_t whole = 7;
        CHECK_FAILS(stw_u64_parse(big[i], STW_UNIT_BYTES, &whole, "k", err), STW_STATUS_BAD_INPUT,
                    "2^63");
        CU_ASSERT_EQUAL(whole, 7);
    }
    double real = 7;
    CHECK_FAILS(stw_quantity_parse("1e309", STW_UNIT_COUNT, &real, "k", err), STW_STATUS_BAD_INPUT,
                "too large");
    CHECK_FAILS(stw_quantity_parse("1e306 GB/s", STW_UNIT_BPS, &real, "k", err),
                STW_STATUS_BAD_INPUT, "too large");
    CHECK_FAILS(stw_quantity_parse("1", (stw_unit)99, &real, "k", err), STW_STATUS_BUG, "99");
}

static void formats_bytes(void) {
    static const struct {
        uint64_t bytes;
        const char *text, *exact;
    } cases[] = {
        {0, "0 B", "0 B"},
        {512, "512 B", "512 B"},
        {1023, "1023 B", "1023 B"},
        {1024, "1.00 KiB", "1 KiB"},
        {16777216, "16.00 MiB", "16 MiB"},
        {16777217, "16.00 MiB", "16777217 B"},
        {1048575, "1.00 MiB", "1048575 B"}, /* never "1024.00 KiB" */
        {65530463928u, "61.03 GiB", "65530463928 B"},
        {85899345920u, "80.00 GiB", "80 GiB"},
        {2000000000000u, "1.82 TiB", "2 TB"}, /* not "1953125000 KiB" */
        {1500000u, "1.43 MiB", "1500 kB"},
        {(uint64_t)INT64_MAX, "8192.00 PiB", "9223372036854775807 B"},
        {STW_UNLIMITED, "unlimited", "unlimited"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        stw_bytes_format(cases[i].bytes, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, cases[i].text);
        stw_bytes_format_exact(cases[i].bytes, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, cases[i].exact);
        CU_ASSERT_EQUAL(u64_of(text, STW_UNIT_BYTES), cases[i].bytes);
    }
}

static void formats_quantities(void) {
    static const struct {
        double value;
        stw_unit unit;
        const char *text, *exact;
    } cases[] = {
        {50.1e9, STW_UNIT_BPS, "50.1 GB/s", "50.1 GB/s"},
        {790e12, STW_UNIT_FLOPS, "790 TFLOP/s", "790 TFLOP/s"},
        {0.0123, STW_UNIT_SECONDS, "12.3 ms", "12.3 ms"},
        {6.27e9, STW_UNIT_PPS, "6.27 Gparam/s", "6.27 Gparam/s"},
        {1e-5, STW_UNIT_SECONDS, "10 us", "10 us"},
        {0, STW_UNIT_SECONDS, "0 s", "0 s"},
        {75, STW_UNIT_SECONDS, "75 s", "75 s"},
        {300, STW_UNIT_SECONDS, "5 min", "300 s"},
        {86400, STW_UNIT_SECONDS, "24 h", "86400 s"},
        {999.96e6, STW_UNIT_BPS, "1 GB/s", "999.96 MB/s"},
        {4096, STW_UNIT_COUNT, "4096", "4.096 K"},
        {5e7, STW_UNIT_COUNT, "50 M", "50 M"},
        {0.8, STW_UNIT_RATIO, "80%", "0.8"},
        {85899345920.0, STW_UNIT_BYTES, "80.00 GiB", "80 GiB"},
        {8e10, STW_UNIT_BYTES, "74.51 GiB", "80 GB"},
        {-50.1e9, STW_UNIT_BPS, "-50.1 GB/s", "-5.01e+10"},
        {-3.0 * 1024, STW_UNIT_BYTES, "-3.00 KiB", "-3072"},
        {INFINITY, STW_UNIT_BPS, "inf", "inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        stw_quantity_format(cases[i].value, cases[i].unit, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, cases[i].text);
        stw_quantity_format_exact(cases[i].value, cases[i].unit, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, cases[i].exact);
    }
    char tiny[5] = "xxxx";
    stw_quantity_format(50.1e9, STW_UNIT_BPS, tiny, sizeof tiny);
    CU_ASSERT_STRING_EQUAL(tiny, "50.1");
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 (Steele et al., OOPSLA 2014) */
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void exact_texts_round_trip(void) {
    uint64_t state = 20240229;
    unsigned wrong = 0;
    for (int i = 0; i < 20000; i++) {
        char text[64];
        uint64_t bytes = next_random(&state) >> (1 + next_random(&state) % 63);
        if (i % 2 == 0) bytes = bytes >> 20 << 20;
        uint64_t back = 0;
        stw_bytes_format_exact(bytes, text, sizeof text);
        if (stw_u64_parse(text, STW_UNIT_BYTES, &back, "k", NULL) != STW_STATUS_OK || back != bytes)
            wrong++;
        /* any positive finite double, then one of an ordinary size */
        uint64_t bits = next_random(&state) % UINT64_C(0x7FF0000000000000);
        double value = 0, again = -1;
        memcpy(&value, &bits, sizeof value);
        if (i % 2 == 0) value = (double)(next_random(&state) >> 11) * pow(2, (double)(i % 80) - 70);
        stw_unit unit = (stw_unit)(i % 7);
        stw_quantity_format_exact(value, unit, text, sizeof text);
        if (stw_quantity_parse(text, unit, &again, "k", NULL) != STW_STATUS_OK || again != value) {
            if (wrong++ < 5) fprintf(stderr, "%a -> %s -> %a\n", value, text, again);
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

STW_TEST_MAIN("core units", {"parses whole bytes", parses_whole_bytes},
              {"is exact to the last byte", is_exact_to_the_last_byte},
              {"parses counts", parses_counts}, {"parses quantities", parses_quantities},
              {"refuses what is no quantity", refuses_what_is_no_quantity},
              {"errors help", errors_help}, {"refuses overflow", refuses_overflow},
              {"formats bytes", formats_bytes}, {"formats quantities", formats_quantities},
              {"exact texts round-trip", exact_texts_round_trip})
