/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/arena.h"

#include "core/units.h"

/* ---- configurations ---- */

bool stw_arena_is_external(const stw_device_config *config, stw_tier tier) {
    return config->external[tier].address != NULL && config->arena_bytes[tier] > 0;
}

static stw_status check_capacity(const stw_device_config *config, stw_tier tier, stw_error *err) {
    char need[32], have[32];
    if (config->arena_bytes[tier] <= config->capacity_bytes[tier]) return STW_STATUS_OK;
    stw_bytes_format(config->arena_bytes[tier], need, sizeof need);
    stw_bytes_format(config->capacity_bytes[tier], have, sizeof have);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, stw_tier_name(tier),
                    "the plan's arena is %s, its capacity for this rank %s", need, have);
}

static stw_status check_external(const stw_device_config *config, stw_tier tier, stw_error *err) {
    const stw_external_arena *given = &config->external[tier];
    const char *where = stw_tier_name(tier);
    if (given->address == NULL) return STW_STATUS_OK;
    if (tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_USAGE, where,
                        "found memory of the caller, expected none: this tier is a file");
    if (given->bytes < config->arena_bytes[tier])
        return stw_fail(err, STW_STATUS_USAGE, where,
                        "found %llu bytes of the caller's memory, expected %llu or more",
                        (unsigned long long)given->bytes,
                        (unsigned long long)config->arena_bytes[tier]);
    if ((uintptr_t)given->address % STW_ARENA_ALIGN_BYTES != 0)
        return stw_fail(err, STW_STATUS_USAGE, where,
                        "found the caller's memory at %p, expected a multiple of %u bytes",
                        given->address, STW_ARENA_ALIGN_BYTES);
    return STW_STATUS_OK;
}

/* Updates of one arena would write into the other. Bytes behind an arena are not used, but whoever
 * gives them twice has counted wrongly. */
static stw_status check_overlap(const stw_device_config *config, stw_error *err) {
    const stw_external_arena *gpu = &config->external[STW_TIER_GPU];
    const stw_external_arena *host = &config->external[STW_TIER_HOST];
    const uintptr_t a = (uintptr_t)gpu->address, b = (uintptr_t)host->address;
    if (a == 0 || b == 0 || gpu->bytes == 0 || host->bytes == 0) return STW_STATUS_OK;
    const uint64_t apart = a < b ? b - a : a - b;
    if (apart >= (a < b ? gpu->bytes : host->bytes)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, stw_tier_name(STW_TIER_HOST),
                    "found %llu bytes of the caller's memory at %p, which overlap the %llu bytes "
                    "at %p of the gpu arena, expected memory apart",
                    (unsigned long long)host->bytes, host->address, (unsigned long long)gpu->bytes,
                    gpu->address);
}

stw_status stw_arenas_init(stw_arenas *arenas, const stw_device_config *config, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t copies = config->nvme_copies > 1 ? 2 : 1;
    memset(arenas, 0, sizeof *arenas);
    STW_TRY(check_overlap(config, err));
    for (int t = 0; t < STW_N_TIERS; t++) {
        STW_TRY(check_capacity(config, (stw_tier)t, err));
        STW_TRY(check_external(config, (stw_tier)t, err));
        arenas->reach[t] = config->arena_bytes[t];
        if (stw_arena_is_external(config, (stw_tier)t))
            arenas->base[t] = config->external[t].address;
    }
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (config->streams[s] != NULL && !stw_stream_is_gpu((stw_stream)s))
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, stw_stream_name((stw_stream)s),
                             "found a native stream, expected none: it is a stream of the host"));
    if (arenas->reach[STW_TIER_NVME] % copies != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "nvme", "an arena of %llu bytes for %u copies",
                         (unsigned long long)arenas->reach[STW_TIER_NVME], copies));
    arenas->reach[STW_TIER_NVME] /= copies;
out:
    return status;
}

/* ---- ranges ---- */

stw_status stw_arenas_check(const stw_arenas *arenas, stw_location at, uint64_t bytes,
                            stw_error *err) {
    uint64_t size = arenas->reach[at.tier];
    if (at.offset <= size && bytes <= size - at.offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(at.tier),
                    "range of %llu bytes at %llu is outside the arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)at.offset,
                    (unsigned long long)size);
}

stw_status stw_arenas_address(const stw_arenas *arenas, stw_location at, uint64_t bytes,
                              unsigned char **out, stw_error *err) {
    *out = NULL;
    if (at.tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "an NVMe range has no address");
    stw_status status = stw_arenas_check(arenas, at, bytes, err);
    if (status == STW_STATUS_OK && arenas->base[at.tier] != NULL)
        *out = arenas->base[at.tier] + at.offset;
    return status;
}

stw_status stw_arenas_check_values(const stw_arenas *arenas, stw_typed_range values,
                                   uint64_t *bytes, stw_error *err) {
    const char *where = stw_tier_name(values.tier);
    const uint64_t each = stw_element_bytes(values.type);
    *bytes = 0;
    if (each == 0)
        return stw_fail(err, STW_STATUS_BUG, where,
                        "values of element type %d; fp32 and bf16 are known", (int)values.type);
    if (values.offset % each != 0)
        return stw_fail(err, STW_STATUS_BUG, where, "offset %llu is not that of a %llu-byte float",
                        (unsigned long long)values.offset, (unsigned long long)each);
    /* No arena is as large as what does not fit in 64 bits. */
    *bytes = values.n > UINT64_MAX / each ? UINT64_MAX : values.n * each;
    return stw_arenas_check(arenas, stw_at(values.tier, values.offset), *bytes, err);
}

stw_status stw_arenas_values(const stw_arenas *arenas, stw_typed_range values, unsigned char **out,
                             stw_error *err) {
    uint64_t bytes = 0;
    *out = NULL;
    stw_status status = stw_arenas_check_values(arenas, values, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return stw_arenas_address(arenas, stw_at(values.tier, values.offset), bytes, out, err);
}

stw_status stw_arenas_check_apart(stw_location to, uint64_t to_bytes, stw_location from,
                                  uint64_t from_bytes, stw_error *err) {
    bool meet = to.tier == from.tier && to_bytes > 0 && from_bytes > 0 &&
                to.offset < from.offset + from_bytes && from.offset < to.offset + to_bytes;
    if (!meet) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(to.tier),
                    "%llu bytes at %llu and %llu at %llu overlap", (unsigned long long)to_bytes,
                    (unsigned long long)to.offset, (unsigned long long)from_bytes,
                    (unsigned long long)from.offset);
}
