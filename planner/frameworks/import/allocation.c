/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/allocation.h"

#include <ctype.h>
#include <string.h>

#include "core/checked.h"

enum { MOST_SIZE = 1 << 20 };

uint64_t stw_allocation_gpus(const stw_allocation *a) {
    return stw_times(stw_times(a->d, a->t), stw_times(a->p, a->c));
}

static bool skip(const char **at, const char *text) {
    const size_t n = strlen(text);
    if (strncmp(*at, text, n) != 0) return false;
    *at += n;
    return true;
}

/* One letter and a number, as often as they come. @param ffn of the experts: t is etp, e is ep,
 * other letters repeat the attention's */
static bool read_dims(const char **at, stw_allocation *out, bool ffn) {
    size_t n = 0;
    for (; **at != '\0' && strchr("dtpce", **at) != NULL; n++) {
        const char letter = *(*at)++;
        uint64_t size = 0;
        if (**at < '1' || **at > '9') return false;
        while (isdigit((unsigned char)**at) && size <= MOST_SIZE)
            size = size * 10 + (uint64_t)(*(*at)++ - '0');
        if (size > MOST_SIZE) return false;
        if (letter == 'e') out->e = size;
        if (letter == 't' && ffn) out->etp = size;
        if (ffn) continue;
        if (letter == 'd') out->d = size;
        if (letter == 't') out->t = size;
        if (letter == 'p') out->p = size;
        if (letter == 'c') out->c = size;
    }
    return n > 0;
}

static bool read_one(const char **at, stw_pool *pool, stw_allocation *out) {
    static const char *const backends[] = {"sglang", "vllm", "fsdp", "megatron", "archon"};
    *out = (stw_allocation){.backend = "", .name = "", .d = 1, .t = 1, .p = 1, .c = 1, .e = 1};
    out->etp = 1;
    for (size_t i = 0; i < 5 && *out->backend == '\0'; i++)
        if (skip(at, backends[i])) out->backend = backends[i];
    if (skip(at, "[")) {
        const size_t n = strcspn(*at, "]");
        out->name = stw_pool_printf(pool, "%.*s", (int)n, *at);
        *at += n;
        if (out->name == NULL || !skip(at, "]")) return false;
    }
    if (*out->backend != '\0' && !skip(at, ":") && !skip(at, ".")) return false;
    const bool bracket = skip(at, "(");
    if (!skip(at, "attn:")) return !bracket && read_dims(at, out, false);
    return read_dims(at, out, false) && skip(at, "|ffn:") && read_dims(at, out, true) &&
           (!bracket || skip(at, ")"));
}

size_t stw_allocation_read(const char *text, stw_pool *pool, stw_allocation *out, size_t most) {
    char *packed = stw_pool_string(pool, text), *to = packed;
    size_t n = 0;
    if (packed == NULL) return 0;
    for (const char *c = packed; *c != '\0'; c++)
        if (!isspace((unsigned char)*c)) *to++ = *c;
    *to = '\0';
    const char *at = packed;
    for (bool shared = false; n < most; n++) {
        if (!read_one(&at, pool, &out[n])) return 0;
        out[n].shared = shared;
        if (*at == '\0') return n + 1;
        shared = *at == '|';
        if (*at != '+' && *at != '|') return 0;
        at++;
    }
    return 0;
}
