/* SPDX-License-Identifier: Apache-2.0 */
/* Derives block, stage and use from tensor names. Checkpoints number their blocks after a container
 * ("model.layers.17.", "transformer.h.3.", "visual.blocks.4."); numbers elsewhere are members of a
 * sequence inside one module ("merger.mlp.2."). */
#include <ctype.h>
#include <string.h>

#include "models/internal.h"

enum { MAX_DIGITS = 9 };

static bool ends_with(const char *text, size_t n, const char *ending) {
    size_t m = strlen(ending);
    return n >= m && memcmp(text + n - m, ending, m) == 0;
}

static bool is_word(const char *text, size_t n, const char *word) {
    return n == strlen(word) && memcmp(text, word, n) == 0;
}

static bool contains(const char *text, size_t n, const char *word) {
    size_t m = strlen(word);
    for (size_t i = 0; i + m <= n; i++)
        if (memcmp(text + i, word, m) == 0) return true;
    return false;
}

static bool is_container(const char *text, size_t n) {
    static const char *const endings[] = {"s", "layer", "block", "_list"};
    for (unsigned k = 0; k < 4; k++)
        if (ends_with(text, n, endings[k])) return true;
    return is_word(text, n, "h");
}

static bool is_number(const char *text, size_t n, uint64_t *value) {
    *value = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)text[i])) return false;
        *value = *value * 10 + (uint64_t)(text[i] - '0');
    }
    return n > 0 && n <= MAX_DIGITS;
}

typedef struct words {
    bool vision, embed, first_norm, norm, head;
} words;

static void read_word(const char *text, size_t n, words *seen) {
    static const char *const vision[] = {"vision", "visual", "multi_modal_projector",
                                         "mm_projector"};
    for (unsigned k = 0; k < 4; k++) seen->vision = seen->vision || contains(text, n, vision[k]);
    seen->embed = seen->embed || contains(text, n, "embed") || is_word(text, n, "wte") ||
                  is_word(text, n, "wpe");
    seen->first_norm = seen->first_norm || contains(text, n, "norm_pre") ||
                       contains(text, n, "pre_layernorm") || contains(text, n, "pre_layrnorm");
    seen->head = seen->head || contains(text, n, "lm_head") || is_word(text, n, "output") ||
                 is_word(text, n, "embed_out") || is_word(text, n, "score");
}

void stw_name_read(const char *name, stw_name_parts *out) {
    words seen = {.vision = false};
    const char *before = NULL;
    size_t n_before = 0;
    bool numbered = false;
    *out = (stw_name_parts){.prefix = 0};
    for (const char *at = name; *at != '\0';) {
        size_t n = strcspn(at, ".");
        uint64_t value = 0;
        bool number = is_number(at, n, &value);
        if (number && before != NULL && !numbered && is_container(before, n_before)) {
            numbered = true;
            out->prefix = (size_t)(at - name);
            out->number = value;
        }
        if (before != NULL && is_word(before, n_before, "experts")) {
            out->expert = true;
            out->expert_number = number;
        }
        if (!number) read_word(at, n, &seen);
        before = at;
        n_before = n;
        at += n;
        if (*at == '.') at++;
    }
    out->vision = seen.vision;
    if (seen.vision)
        out->stage = numbered ? 1 : seen.embed || seen.first_norm ? 0 : 2;
    else
        out->stage = numbered ? 4 : seen.head ? 6 : seen.embed ? 3 : 5;
}
