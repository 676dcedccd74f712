/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/argument.h"

#include <string.h>

#include "planner/frameworks/shell/places.h"

static bool is_option(const char *word) { return strncmp(word, "--", 2) == 0 && word[2] != '\0'; }

/* @return behind the name, or NULL */
static const char *behind_name(const char *word, const char *name) {
    for (; *name != '\0'; word++, name++)
        if (*word != *name && !(*word == '_' && *name == '-') && !(*word == '-' && *name == '_'))
            return NULL;
    return word;
}

bool stw_argument_is(const char *word, const stw_argument_name *name, bool dashed) {
    const char *const names[] = {name->name, name->alias};
    if (dashed ? !is_option(word) : *word == '~') return false;
    word += dashed ? 2 : strspn(word, "+-");
    for (size_t i = 0; i < 2; i++) {
        const char *end = names[i] != NULL ? behind_name(word, names[i]) : NULL;
        if (end != NULL && (*end == '=' || (dashed && *end == '\0'))) return true;
    }
    return false;
}

const char *stw_argument_value(const char *word, bool dashed) {
    if (dashed && !is_option(word)) return NULL;
    const char *equals = strchr(word, '=');
    return equals != NULL ? equals + 1 : NULL;
}

size_t stw_argument_find(const stw_shell *shell, const stw_argument_name *name, bool dashed,
                         size_t from, size_t to) {
    for (size_t i = to < shell->n_words ? to : shell->n_words; i > from; i--)
        if (stw_argument_is(shell->words[i - 1].text, name, dashed)) return i;
    return 0;
}

/* ---- places ---- */

typedef struct span {
    size_t first, from; /* word, and byte of it */
    size_t last, to;
} span;

static size_t length_of(const stw_shell *shell, size_t word) {
    return strlen(shell->words[word].text);
}

/* Does another part of the word come from the same expansion? */
static bool is_shared(const stw_shell_place *outside, size_t begin, size_t end) {
    return outside->unit && outside->end > begin && outside->begin < end;
}

/* The words one after another, with nothing but blanks and quotes between them. */
static bool place_of(const stw_script *s, const stw_shell *shell, span of, size_t *begin,
                     size_t *end) {
    bool any = false;
    for (size_t w = of.first; w <= of.last; w++) {
        const stw_shell_places *places = &shell->words[w].at;
        const size_t to = w == of.last ? of.to : length_of(shell, w);
        for (size_t i = w == of.first ? of.from : 0; i < to; i++) {
            const stw_shell_place p = stw_shell_places_at(places, i);
            if (p.end == 0 || p.end > s->length) return false;
            if (any && p.unit && p.end == *end && p.begin < *end) continue; /* the same one */
            if (any && p.begin < *end) return false;
            for (size_t k = any ? *end : p.begin; k < p.begin; k++)
                if (strchr(" \t\n\\\"'", s->text[k]) == NULL) return false;
            if (!any) *begin = p.begin;
            *end = p.end;
            any = true;
        }
    }
    if (!any) return false;
    const stw_shell_places *first = &shell->words[of.first].at, *last = &shell->words[of.last].at;
    const stw_shell_place before =
        of.from > 0 ? stw_shell_places_at(first, of.from - 1) : (stw_shell_place){0};
    const stw_shell_place after = stw_shell_places_at(last, of.to);
    return !is_shared(&before, *begin, *end) && !is_shared(&after, *begin, *end);
}

/* The last word of its value; `word`: it has none of its own. */
static size_t last_word(const stw_shell *shell, size_t word, bool dashed, bool one) {
    size_t last = word;
    if (!dashed || stw_argument_value(shell->words[word].text, true) != NULL) return word;
    while (last + 1 < shell->n_words && !is_option(shell->words[last + 1].text) &&
           !(one && last > word))
        last++;
    return last;
}

bool stw_argument_value_place(const stw_script *script, const stw_shell *shell, size_t word,
                              bool dashed, bool one, size_t *begin, size_t *end) {
    const char *text = shell->words[word].text, *value = stw_argument_value(text, dashed);
    const size_t last = last_word(shell, word, dashed, one);
    if (value == NULL && last == word) return false;
    const span of = {value != NULL ? word : word + 1, value != NULL ? (size_t)(value - text) : 0,
                     last, length_of(shell, last)};
    return place_of(script, shell, of, begin, end);
}

static bool is_text(char kind) { return kind == STW_SCRIPT_SINGLE || kind == STW_SCRIPT_DOUBLE; }
static bool is_quote(char c) { return c == '"' || c == '\''; }

bool stw_argument_place(const stw_script *s, const stw_shell *shell, size_t word, bool dashed,
                        size_t *begin, size_t *end) {
    const size_t last = last_word(shell, word, dashed, false);
    for (size_t w = word; w <= last; w++)
        if (length_of(shell, w) == 0) return false; /* "": nobody knows where */
    const span of = {word, 0, last, length_of(shell, last)};
    if (!place_of(s, shell, of, begin, end)) return false;
    const size_t at = *begin;
    const bool opens = at > 0 && is_text(s->kinds[at - 1]) && is_quote(s->text[at - 1]) &&
                       (at == 1 || strchr(" \t\n(", s->text[at - 2]) != NULL);
    if (opens) (*begin)--;
    const bool inside = !opens && is_text(s->kinds[at]);
    if (!inside && is_text(s->kinds[*end]) && is_quote(s->text[*end])) (*end)++;
    const char before = *begin > 0 ? s->text[*begin - 1] : '\n';
    return strchr(" \t\n(\"'", before) != NULL &&
           (*end == s->length || strchr(" \t\r\n;|&)<>\"'\\", s->text[*end]) != NULL);
}
