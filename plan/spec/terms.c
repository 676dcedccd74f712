/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/terms.h"

#include <string.h>

#define X(name, text) text,
static const char *const phase_words[] = {STW_PHASE_TABLE(X)};
static const char *const component_words[] = {STW_COMPONENT_TABLE(X)};
static const char *const tier_words[] = {STW_TIER_TABLE(X)};
static const char *const update_words[] = {STW_UPDATE_TABLE(X)};
static const char *const stream_words[] = {STW_STREAM_TABLE(X)};
static const char *const act_words[] = {STW_ACT_TABLE(X)};
static const char *const load_words[] = {STW_LOAD_TABLE(X)};
#undef X

/* Values outside the enum can only come from memory that is not a plan's; they print as "?". */
static const char *word_of(const char *const *words, unsigned n_words, unsigned value) {
    return value < n_words ? words[value] : "?";
}

static bool find(const char *const *words, unsigned n_words, const char *text, unsigned *out) {
    for (unsigned i = 0; i < n_words; i++) {
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

#define DEFINE_NAME(noun, type)                                                                    \
    const char *stw_##noun##_name(type noun) {                                                     \
        return word_of(noun##_words, N_WORDS(noun##_words), (unsigned)noun);                       \
    }
#define DEFINE_PARSE(noun, type)                                                                   \
    bool stw_##noun##_parse(const char *text, type *out) {                                         \
        unsigned value = 0;                                                                        \
        if (!find(noun##_words, N_WORDS(noun##_words), text, &value)) return false;                \
        *out = (type)value;                                                                        \
        return true;                                                                               \
    }
#define N_WORDS(words) ((unsigned)(sizeof(words) / sizeof(words)[0]))

DEFINE_NAME(phase, stw_phase)
DEFINE_NAME(component, stw_component)
DEFINE_NAME(tier, stw_tier)
DEFINE_NAME(update, stw_update)
DEFINE_NAME(stream, stw_stream)
DEFINE_NAME(act, stw_act)
DEFINE_NAME(load, stw_load)

DEFINE_PARSE(phase, stw_phase)
DEFINE_PARSE(component, stw_component)
DEFINE_PARSE(tier, stw_tier)
DEFINE_PARSE(update, stw_update)
DEFINE_PARSE(act, stw_act)
DEFINE_PARSE(load, stw_load)
