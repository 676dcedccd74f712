/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas, ranges, spans and the operands of updates: tables of what is taken and of what is refused
 * in which words, and random buckets against a second way to say where their elements lie. */
#include "backend/tiers.h"
#include "tests/unit/testing.h"

#define KIB 1024ull

/* "where: text" of a call, "" where it went well. */
static char said[1200];
static void say(stw_status status, stw_status expected, const stw_error *error) {
    said[0] = '\0';
    if (status != STW_STATUS_OK) snprintf(said, sizeof said, "%s: %s", error->where, error->text);
    CU_ASSERT_EQUAL(status, expected);
    CU_ASSERT_EQUAL(error->status, status);
}
static void same_words(const char *expected, int line) {
    CU_ASSERT_STRING_EQUAL(said, expected);
    if (strcmp(said, expected) != 0)
        fprintf(stderr, "line %d: found    \"%s\"\n    expected \"%s\"\n", line, said, expected);
}
#define SAYS(status, call, expected)                                                               \
    do {                                                                                           \
        stw_error says_error = STW_ERROR_INIT;                                                     \
        stw_error *err = &says_error;                                                              \
        const stw_status says_status = (call);                                                     \
        say(says_status, status, &says_error);                                                     \
        same_words(expected, __LINE__);                                                            \
    } while (0)
#define WELL(call) SAYS(STW_STATUS_OK, call, "")

/* ---- configurations ---- */

static _Alignas(4096) unsigned char memory[16 * 4096];

static stw_device_config config_of(void) {
    return (stw_device_config){
        .arena_bytes =
            {[STW_TIER_GPU] = 2 * KIB, [STW_TIER_HOST] = 3 * KIB, [STW_TIER_NVME] = 8 * KIB},
        .capacity_bytes =
            {[STW_TIER_GPU] = 2 * KIB, [STW_TIER_HOST] = 4 * KIB, [STW_TIER_NVME] = 8 * KIB},
        .nvme_copies = 1};
}

static void arenas_reach_what_the_plan_has(void) {
    stw_device_config c = config_of();
    stw_arenas a;
    memset(&a, 0xff, sizeof a);
    WELL(stw_arenas_init(&a, &c, err));
    CU_ASSERT_TRUE(a.reach[STW_TIER_GPU] == 2 * KIB && a.reach[STW_TIER_HOST] == 3 * KIB);
    CU_ASSERT_EQUAL(a.reach[STW_TIER_NVME], 8 * KIB);
    for (int t = 0; t < STW_N_TIERS; t++) CU_ASSERT_PTR_NULL(a.base[t]);
    c.nvme_copies = 0;
    WELL(stw_arenas_init(&a, &c, err));
    CU_ASSERT_EQUAL(a.reach[STW_TIER_NVME], 8 * KIB);
    c.nvme_copies = 2;
    c.external[STW_TIER_HOST] = (stw_external_arena){memory + 4096, 3 * KIB};
    WELL(stw_arenas_init(&a, &c, err));
    CU_ASSERT_EQUAL(a.reach[STW_TIER_NVME], 4 * KIB);
    CU_ASSERT_PTR_EQUAL(a.base[STW_TIER_HOST], memory + 4096);
    CU_ASSERT_PTR_NULL(a.base[STW_TIER_GPU]);
    CU_ASSERT_TRUE(stw_arena_is_external(&c, STW_TIER_HOST));
    CU_ASSERT_FALSE(stw_arena_is_external(&c, STW_TIER_GPU));
    c.arena_bytes[STW_TIER_HOST] = 0;
    CU_ASSERT_FALSE(stw_arena_is_external(&c, STW_TIER_HOST));
    WELL(stw_arenas_init(&a, &c, err));
    CU_ASSERT_PTR_NULL(a.base[STW_TIER_HOST]);
    c.arena_bytes[STW_TIER_NVME]--;
    SAYS(STW_STATUS_BUG, stw_arenas_init(&a, &c, err), "nvme: an arena of 8191 bytes for 2 copies");
    c.nvme_copies = 1;
    WELL(stw_arenas_init(&a, &c, err));
}

static void what_does_not_fit_is_refused(void) {
    static const struct {
        stw_tier tier;
        const char *text;
    } full[] = {
        {STW_TIER_GPU, "gpu: the plan's arena is 5.00 KiB, its capacity for this rank 2.00 KiB"},
        {STW_TIER_HOST, "host: the plan's arena is 5.00 KiB, its capacity for this rank 4.00 KiB"},
        {STW_TIER_NVME, "nvme: the plan's arena is 9.00 KiB, its capacity for this rank 8.00 KiB"}};
    stw_arenas a;
    char text[300];
    for (int i = 0; i < 3; i++) {
        stw_device_config c = config_of();
        c.arena_bytes[full[i].tier] = full[i].tier == STW_TIER_NVME ? 9 * KIB : 5 * KIB;
        SAYS(STW_STATUS_NO_RESOURCES, stw_arenas_init(&a, &c, err), full[i].text);
    }
    stw_device_config c = config_of();
    c.external[STW_TIER_NVME] = (stw_external_arena){memory, 8 * KIB};
    SAYS(STW_STATUS_USAGE, stw_arenas_init(&a, &c, err),
         "nvme: found memory of the caller, expected none: this tier is a file");
    c = config_of();
    c.external[STW_TIER_HOST] = (stw_external_arena){memory, 3 * KIB - 1};
    SAYS(STW_STATUS_USAGE, stw_arenas_init(&a, &c, err),
         "host: found 3071 bytes of the caller's memory, expected 3072 or more");
    c.external[STW_TIER_HOST] = (stw_external_arena){memory + 2048, 3 * KIB};
    snprintf(text, sizeof text,
             "host: found the caller's memory at %p, expected a multiple of 4096 bytes",
             (void *)(memory + 2048));
    SAYS(STW_STATUS_USAGE, stw_arenas_init(&a, &c, err), text);
    for (int s = 0; s < STW_N_STREAMS; s++) {
        c = config_of();
        c.streams[s] = memory;
        snprintf(text, sizeof text,
                 "%s: found a native stream, expected none: it is a stream of the host",
                 stw_stream_name((stw_stream)s));
        const bool gpu = s != STW_STREAM_CPU && s != STW_STREAM_DISK && s != STW_STREAM_DISK_OUT;
        SAYS(gpu ? STW_STATUS_OK : STW_STATUS_USAGE, stw_arenas_init(&a, &c, err), gpu ? "" : text);
    }
}

static void memory_is_given_once(void) {
    static const struct {
        unsigned gpu, gpu_bytes, host, host_bytes; /* pages; bytes in units of pages */
        bool ok;
    } cases[] = {{0, 1, 1, 1, true},  {1, 1, 0, 1, true},  {0, 2, 1, 1, false}, {1, 1, 0, 2, false},
                 {0, 1, 0, 1, false}, {2, 3, 5, 1, true},  {2, 4, 5, 1, false}, {5, 1, 2, 3, true},
                 {5, 1, 2, 4, false}, {0, 9, 4, 1, false}, {4, 1, 0, 9, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_device_config c = config_of();
        stw_arenas a;
        char text[300];
        unsigned char *gpu = memory + 4096 * cases[i].gpu, *host = memory + 4096 * cases[i].host;
        c.external[STW_TIER_GPU] = (stw_external_arena){gpu, 4096 * cases[i].gpu_bytes};
        c.external[STW_TIER_HOST] = (stw_external_arena){host, 4096 * cases[i].host_bytes};
        snprintf(text, sizeof text,
                 "host: found %u bytes of the caller's memory at %p, which overlap the %u bytes at "
                 "%p of the gpu arena, expected memory apart",
                 4096 * cases[i].host_bytes, (void *)host, 4096 * cases[i].gpu_bytes, (void *)gpu);
        SAYS(cases[i].ok ? STW_STATUS_OK : STW_STATUS_USAGE, stw_arenas_init(&a, &c, err),
             cases[i].ok ? "" : text);
    }
    stw_device_config c = config_of(); /* nothing of one of them is used */
    stw_arenas a;
    c.arena_bytes[STW_TIER_GPU] = 0;
    c.external[STW_TIER_GPU] = (stw_external_arena){memory, 0};
    c.external[STW_TIER_HOST] = (stw_external_arena){memory, 4096};
    WELL(stw_arenas_init(&a, &c, err));
    c = config_of();
    c.arena_bytes[STW_TIER_HOST] = 0;
    c.external[STW_TIER_GPU] = (stw_external_arena){memory, 4096};
    c.external[STW_TIER_HOST] = (stw_external_arena){memory, 0};
    WELL(stw_arenas_init(&a, &c, err));
}

/* ---- ranges ---- */

static const stw_arenas arenas = {
    .base = {[STW_TIER_GPU] = memory, [STW_TIER_HOST] = memory + 4096},
    .reach = {[STW_TIER_GPU] = 100, [STW_TIER_HOST] = 200, [STW_TIER_NVME] = 300}};

static void ranges_lie_inside(void) {
    static const struct {
        stw_tier tier;
        uint64_t offset, bytes;
        const char *text; /* "": inside */
    } cases[] = {
        {STW_TIER_GPU, 0, 100, ""},
        {STW_TIER_GPU, 100, 0, ""},
        {STW_TIER_GPU, 60, 40, ""},
        {STW_TIER_GPU, 60, 41, "gpu: range of 41 bytes at 60 is outside the arena of 100 bytes"},
        {STW_TIER_HOST, 201, 0, "host: range of 0 bytes at 201 is outside the arena of 200 bytes"},
        {STW_TIER_HOST, 200, 1, "host: range of 1 bytes at 200 is outside the arena of 200 bytes"},
        {STW_TIER_NVME, UINT64_MAX, 2,
         "nvme: range of 2 bytes at 18446744073709551615 is outside the arena of 300 bytes"},
        {STW_TIER_NVME, 299, 1, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stw_location at = stw_at(cases[i].tier, cases[i].offset);
        const stw_status status = cases[i].text[0] == '\0' ? STW_STATUS_OK : STW_STATUS_BUG;
        unsigned char *address = memory;
        SAYS(status, stw_arenas_check(&arenas, at, cases[i].bytes, err), cases[i].text);
        if (at.tier == STW_TIER_NVME) {
            SAYS(STW_STATUS_BUG, stw_arenas_address(&arenas, at, cases[i].bytes, &address, err),
                 "nvme: an NVMe range has no address");
            CU_ASSERT_PTR_NULL(address);
            continue;
        }
        SAYS(status, stw_arenas_address(&arenas, at, cases[i].bytes, &address, err), cases[i].text);
        CU_ASSERT_PTR_EQUAL(address,
                            status != STW_STATUS_OK
                                ? NULL
                                : memory + (at.tier == STW_TIER_HOST ? 4096 : 0) + cases[i].offset);
    }
    const stw_arenas none = {.reach = {0}};
    unsigned char *address = memory;
    WELL(stw_arenas_address(&none, stw_at(STW_TIER_GPU, 0), 0, &address, err));
    CU_ASSERT_PTR_NULL(address);
}

static void values_lie_inside(void) {
    static const struct {
        stw_element type;
        uint64_t offset, n, bytes;
        const char *text;
    } cases[] = {
        {STW_ELEMENT_F32, 0, 25, 100, ""},
        {STW_ELEMENT_F32, 4, 24, 96, ""},
        {STW_ELEMENT_BF16, 2, 49, 98, ""},
        {STW_ELEMENT_F32, 4, 25, 100,
         "gpu: range of 100 bytes at 4 is outside the arena of 100 bytes"},
        {STW_ELEMENT_F32, 2, 1, 0, "gpu: offset 2 is not that of a 4-byte float"},
        {STW_ELEMENT_BF16, 3, 1, 0, "gpu: offset 3 is not that of a 2-byte float"},
        {STW_ELEMENT_NONE, 0, 1, 0, "gpu: values of element type 0; fp32 and bf16 are known"},
        {STW_ELEMENT_F32, 0, UINT64_MAX / 4, UINT64_MAX - 3,
         "gpu: range of 18446744073709551612 bytes at 0 is outside the arena of 100 bytes"},
        {STW_ELEMENT_F32, 0, UINT64_MAX / 4 + 1, UINT64_MAX,
         "gpu: range of 18446744073709551615 bytes at 0 is outside the arena of 100 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stw_typed_range values =
            stw_typed(STW_TIER_GPU, cases[i].offset, cases[i].type, cases[i].n);
        const stw_status status = cases[i].text[0] == '\0' ? STW_STATUS_OK : STW_STATUS_BUG;
        unsigned char *address = memory + 1;
        uint64_t bytes = 1;
        SAYS(status, stw_arenas_check_values(&arenas, values, &bytes, err), cases[i].text);
        CU_ASSERT_EQUAL(bytes, cases[i].bytes);
        SAYS(status, stw_arenas_values(&arenas, values, &address, err), cases[i].text);
        CU_ASSERT_PTR_EQUAL(address, status == STW_STATUS_OK ? memory + cases[i].offset : NULL);
    }
}

static void targets_and_sources_are_apart(void) {
    for (uint64_t to = 0; to < 8; to++)
        for (uint64_t from = 0; from < 8; from++)
            for (uint64_t n = 0; n < 5; n++)
                for (uint64_t m = 0; m < 5; m++) {
                    bool meet = false;
                    char text[100];
                    for (uint64_t i = to; i < to + n; i++) meet |= i >= from && i < from + m;
                    snprintf(text, sizeof text, "host: %u bytes at %u and %u at %u overlap",
                             (unsigned)n, (unsigned)to, (unsigned)m, (unsigned)from);
                    SAYS(meet ? STW_STATUS_BUG : STW_STATUS_OK,
                         stw_arenas_check_apart(stw_at(STW_TIER_HOST, to), n,
                                                stw_at(STW_TIER_HOST, from), m, err),
                         meet ? text : "");
                    WELL(stw_arenas_check_apart(stw_at(STW_TIER_HOST, to), n,
                                                stw_at(STW_TIER_GPU, from), m, err));
                }
}

/* ---- spans ---- */

static void spans_follow_each_other(void) {
    static const struct {
        uint32_t n;
        stw_span spans[3];
        const char *text;
    } cases[] = {{0, {{0}}, ""},
                 {3, {{5, 10, 0, 0, 0, 0}, {15, 1, 0, 0, 1, 0}, {16, 7, 0, 0, 2, 0}}, ""},
                 {2,
                  {{5, 10, 0, 0, 0, 0}, {14, 1, 0, 0, 1, 0}},
                  "spans: span 1 begins at element 14, the one before ends at 15"},
                 {2,
                  {{5, 10, 0, 0, 0, 0}, {16, 1, 0, 0, 1, 0}},
                  "spans: span 1 begins at element 16, the one before ends at 15"},
                 {1, {{5, 0, 0, 0, 0, 0}}, "spans: span 0 has 0 elements of parameter group 0;"},
                 {2,
                  {{5, 1, 0, 0, 0, 0}, {6, 1, 0, 0, STW_MAX_PARAM_GROUPS, 0}},
                  "spans: span 1 has 1 elements of parameter group "},
                 {1, {{2, UINT64_MAX - 2, 0, 0, STW_MAX_PARAM_GROUPS - 1, 0}}, ""},
                 {1,
                  {{2, UINT64_MAX - 1, 0, 0, 0, 0}},
                  "spans: span 0 has 18446744073709551614 elements of parameter group 0;"}};
    stw_tiers tiers = {.span_room = 3};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_error error = STW_ERROR_INIT;
        const bool ok = cases[i].text[0] == '\0';
        say(stw_tiers_check_spans(&tiers, cases[i].spans, cases[i].n, &error),
            ok ? STW_STATUS_OK : STW_STATUS_BUG, &error);
        said[strlen(cases[i].text)] = '\0';
        same_words(cases[i].text, __LINE__);
    }
    tiers.span_room = 2;
    SAYS(STW_STATUS_BUG, stw_tiers_check_spans(&tiers, cases[1].spans, 3, err),
         "spans: 3 spans, room for 2");
}

/* ---- operands ---- */

/* Spans of 10, 20 and 10 elements from 100 on, whose params (bf16, on the GPU) lie at 0, 60 and 20
 * and whose grads (fp32, on the host) at 80, 0 and 120. */
static stw_span spans[3] = {
    {100, 10, 0, 80, 0, 0}, {110, 20, 60, 0, 1, 0}, {130, 10, 20, 120, 0, 0}};

static stw_tiers tiers_of(void) {
    stw_tiers t = {.arenas = arenas, .spans = spans, .n_spans = 3, .span_room = 3};
    t.types.params = STW_ELEMENT_BF16;
    t.types.grads = t.types.exp_avg = t.types.exp_avg_sq = STW_ELEMENT_F32;
    return t;
}

static stw_bucket_operands bucket_of(uint64_t first, uint64_t n) {
    stw_bucket_operands b = {.first = first, .n = n};
    uint32_t last = 0;
    while (b.first_span < 2 && spans[b.first_span].first + spans[b.first_span].n <= first)
        b.first_span++;
    for (last = b.first_span; last < 2 && spans[last].first + spans[last].n < first + n;) last++;
    b.n_spans = last - b.first_span + 1;
    b.params = (stw_operand){STW_TIER_GPU, true, 0};
    b.grads = (stw_operand){STW_TIER_HOST, true, 0};
    b.master = (stw_operand){STW_TIER_NVME, true, 1}; /* there is none */
    b.exp_avg = (stw_operand){STW_TIER_GPU, false, 4};
    b.exp_avg_sq = (stw_operand){STW_TIER_GPU, false, 8};
    return b;
}

static void spans_cover_a_bucket(void) {
    stw_tiers t = tiers_of();
    for (uint64_t first = 98; first < 142; first++)
        for (uint64_t n = 1; n < 24; n++)
            for (uint32_t from = 0; from < 4; from++)
                for (uint32_t count = 0; count < 5; count++) {
                    stw_bucket_operands b = bucket_of(100, 1);
                    stw_bucket_addresses out;
                    char text[200];
                    b.first = first;
                    b.n = n;
                    b.first_span = from;
                    b.n_spans = count;
                    b.params = b.exp_avg = b.exp_avg_sq = (stw_operand){STW_TIER_HOST, false, 0};
                    /* The first span has the first element, the last one the last. */
                    bool covers = count > 0 && from + count <= 3;
                    if (covers) {
                        const stw_span *head = &spans[from], *tail = &spans[from + count - 1];
                        covers = first >= head->first && first < head->first + head->n &&
                                 first + n - 1 >= tail->first &&
                                 first + n - 1 < tail->first + tail->n;
                    }
                    snprintf(text, sizeof text,
                             "update: %u spans from %u (of 3) do not cover %u elements at %u",
                             count, from, (unsigned)n, (unsigned)first);
                    SAYS(covers ? STW_STATUS_OK : STW_STATUS_BUG,
                         stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
                         covers ? "" : text);
                }
    stw_bucket_operands b = bucket_of(100, 1);
    stw_bucket_addresses out;
    b.n = UINT64_MAX - 99;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
         "update: 1 spans from 0 (of 3) do not cover 18446744073709551516 elements at 100");
}

static void operands_become_addresses(void) {
    stw_tiers t = tiers_of();
    stw_bucket_operands b = bucket_of(105, 20);
    stw_bucket_addresses out;
    WELL(stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err));
    CU_ASSERT_PTR_EQUAL(out.params, memory);
    CU_ASSERT_PTR_EQUAL(out.grads, memory + 4096);
    CU_ASSERT_PTR_NULL(out.master);
    CU_ASSERT_PTR_EQUAL(out.exp_avg, memory + 4);
    CU_ASSERT_PTR_EQUAL(out.exp_avg_sq, memory + 8);
    CU_ASSERT_TRUE(out.on_host);
    b.grads = (stw_operand){STW_TIER_GPU, false, 12};
    WELL(stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err));
    CU_ASSERT_PTR_EQUAL(out.grads, memory + 12);
    CU_ASSERT_FALSE(out.on_host);
    t.types.master = STW_ELEMENT_F32;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
         "master: stream compute cannot reach tier nvme");
    b.master.tier = STW_TIER_HOST;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
         "master: spans place params and grads alone");
    b.master = (stw_operand){STW_TIER_HOST, false, 120};
    WELL(stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err));
    CU_ASSERT_PTR_EQUAL(out.master, memory + 4096 + 120);
    b.master.offset = 124;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
         "host: range of 80 bytes at 124 is outside the arena of 200 bytes");
    b.master.offset = 120;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_CPU, &b, &out, err),
         "params: stream cpu cannot reach tier gpu");
    for (int s = 0; s < STW_N_STREAMS; s++) {
        char text[100];
        snprintf(text, sizeof text, "update: stream %s does no updates",
                 stw_stream_name((stw_stream)s));
        if (s == STW_STREAM_DISK || s == STW_STREAM_DISK_OUT)
            SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, (stw_stream)s, &b, &out, err), text);
        else if (s != STW_STREAM_CPU)
            WELL(stw_tiers_resolve(&t, (stw_stream)s, &b, &out, err));
    }
}

/* Any bucket, with one span's offset moved: refused where an element of the bucket is not in its
 * arena. */
static void parts_of_spans_lie_inside(void) {
    const stw_span kept[3] = {spans[0], spans[1], spans[2]};
    unsigned refused = 0, taken = 0;
    for (uint64_t first = 100; first < 140; first += 3)
        for (uint64_t n = 1; first + n <= 140; n += 4)
            for (int s = 0; s < 3; s++)
                for (int64_t move = -60; move <= 120; move += 10)
                    for (int grads = 0; grads < 2; grads++) {
                        stw_tiers t = tiers_of();
                        stw_bucket_operands b = bucket_of(first, n);
                        stw_bucket_addresses out;
                        stw_error error = STW_ERROR_INIT;
                        const int64_t size = grads ? 4 : 2, reach = grads ? 200 : 100;
                        bool inside = true, far = true;
                        b.exp_avg = b.exp_avg_sq = (stw_operand){STW_TIER_HOST, false, 40};
                        uint64_t *offset = grads ? &spans[s].grads : &spans[s].params;
                        *offset += (uint64_t)(move * size / 2);
                        const int64_t base = (int64_t)*offset;
                        for (uint64_t e = first; e < first + n; e++) {
                            if (e < spans[s].first || e >= spans[s].first + spans[s].n) continue;
                            const int64_t at = base + (int64_t)(e - spans[s].first) * size;
                            inside &= at >= 0 && at + size <= reach;
                        }
                        const uint64_t from = first > spans[s].first ? first : spans[s].first;
                        far = (uint64_t)base + (from - spans[s].first) * (uint64_t)size >=
                              (uint64_t)reach;
                        const bool room = n <= 40;
                        stw_status status =
                            stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, &error);
                        CU_ASSERT_EQUAL(status, inside && room ? STW_STATUS_OK : STW_STATUS_BUG);
                        taken += status == STW_STATUS_OK;
                        refused += status != STW_STATUS_OK;
                        t.spans_outside = true; /* what begins outside is the caller's */
                        status = stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, NULL);
                        CU_ASSERT_EQUAL(status, inside || far ? STW_STATUS_OK : STW_STATUS_BUG);
                        memcpy(spans, kept, sizeof kept);
                    }
    CU_ASSERT_TRUE(refused > 1000 && taken > 1000);
    stw_tiers t = tiers_of();
    stw_bucket_operands b = bucket_of(100, 5);
    stw_bucket_addresses out;
    t.spans_outside = true;
    spans[0].params = 1001;
    SAYS(STW_STATUS_BUG, stw_tiers_resolve(&t, STW_STREAM_COMPUTE, &b, &out, err),
         "gpu: offset 1001 is not that of a 2-byte float");
    memcpy(spans, kept, sizeof kept);
}

STW_TEST_MAIN("backend arena", {"arenas reach what the plan has", arenas_reach_what_the_plan_has},
              {"what does not fit is refused", what_does_not_fit_is_refused},
              {"memory is given once", memory_is_given_once},
              {"ranges lie inside", ranges_lie_inside}, {"values lie inside", values_lie_inside},
              {"targets and sources are apart", targets_and_sources_are_apart},
              {"spans follow each other", spans_follow_each_other},
              {"spans cover a bucket", spans_cover_a_bucket},
              {"operands become addresses", operands_become_addresses},
              {"parts of spans lie inside", parts_of_spans_lie_inside})
