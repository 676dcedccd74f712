/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tree_write.h"

#include <ctype.h>
#include <string.h>

static const char *skip_digits(const char *c) {
    while (*c >= '0' && *c <= '9') c++;
    return c;
}

/* As JSON has it, which YAML reads, too. @param exponent out, where it begins, or NULL */
static bool is_number(const char *text, const char **exponent) {
    const char *c = text + (*text == '-'), *whole = c;
    *exponent = NULL;
    c = skip_digits(c);
    if (c == whole || (whole[0] == '0' && c > whole + 1)) return false;
    if (*c == '.') {
        const char *fraction = ++c;
        c = skip_digits(c);
        if (c == fraction) return false;
    }
    if (*c == 'e' || *c == 'E') {
        *exponent = c++;
        c += *c == '-' || *c == '+';
        const char *digits = c;
        c = skip_digits(c);
        if (c == digits) return false;
    }
    return *c == '\0';
}

static bool is_word(const char *text) {
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0;
}

static bool is_list(const char *text) {
    const size_t n = strlen(text);
    return n >= 2 && text[0] == '[' && text[n - 1] == ']' && strpbrk(text, "\"'{}") == NULL &&
           strchr(text + 1, '[') == NULL;
}

bool stw_tree_is_bare(const char *text) {
    const char *exponent;
    return is_word(text) || is_number(text, &exponent);
}

/* Readers of YAML 1.1 take 1e-05 for a string: they want a point and a sign. */
static void write_number(stw_text *out, const char *value, const char *exponent, bool json) {
    if (json || exponent == NULL) {
        stw_text_printf(out, "%s", value);
        return;
    }
    const bool point = memchr(value, '.', (size_t)(exponent - value)) != NULL;
    const bool sign = exponent[1] == '-' || exponent[1] == '+';
    stw_text_printf(out, "%.*s%se%s%s", (int)(exponent - value), value, point ? "" : ".0",
                    sign ? "" : "+", exponent + 1);
}

/* A character that ends a line or cannot be printed, for some reader of YAML; 0: none.
 * @param length out, of its bytes */
static unsigned hidden_at(const char *at, size_t *length) {
    const unsigned char *c = (const unsigned char *)at;
    *length = 1;
    if (c[0] < 32 || c[0] == 127) return c[0];
    *length = 2;
    if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0) return c[1];
    *length = 3;
    if (c[0] == 0xE2 && c[1] == 0x80 && (c[2] == 0xA8 || c[2] == 0xA9)) return 0x1F80u + c[2];
    if (c[0] == 0xEF && c[1] == 0xBB && c[2] == 0xBF) return 0xFEFFu;
    if (c[0] == 0xEF && c[1] == 0xBF && (c[2] == 0xBE || c[2] == 0xBF)) return 0xFF40u + c[2];
    *length = 1;
    return 0;
}

/* In double quotes, as JSON and YAML both read it. */
static void write_string(stw_text *out, const char *text, size_t length) {
    stw_text_append(out, "\"", 1);
    for (size_t i = 0, n; i < length; i += n) {
        const unsigned hidden = hidden_at(text + i, &n);
        if (hidden == '\n')
            stw_text_append(out, "\\n", 2);
        else if (hidden == '\t')
            stw_text_append(out, "\\t", 2);
        else if (hidden != 0)
            stw_text_printf(out, "\\u%04x", hidden);
        else
            stw_text_printf(out, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
    }
    stw_text_append(out, "\"", 1);
}

static void write_list(stw_text *out, const char *value, bool json) {
    const char *between = "";
    stw_text_append(out, "[", 1);
    for (const char *at = value + 1; at[strspn(at, " ,")] != ']';) {
        at += strspn(at, " ,");
        const size_t length = strcspn(at, ",]");
        size_t n = length;
        while (n > 0 && at[n - 1] == ' ') n--;
        char item[256] = "";
        if (n < sizeof item) memcpy(item, at, n);
        stw_text_printf(out, "%s", between);
        if (n < sizeof item)
            stw_tree_write_value(out, item, false, json);
        else
            write_string(out, at, n);
        between = ", ";
        at += length;
    }
    stw_text_append(out, "]", 1);
}

void stw_tree_write_value(stw_text *out, const char *value, bool string, bool json) {
    const char *exponent;
    if (!string && is_number(value, &exponent))
        write_number(out, value, exponent, json);
    else if (!string && is_word(value))
        stw_text_printf(out, "%s", value);
    else if (!string && is_list(value))
        write_list(out, value, json);
    else
        write_string(out, value, strlen(value));
}

/* A name that no reader of YAML takes for something else. */
static bool is_plain_key(const char *key, size_t length) {
    static const char *const others[] = {"y",   "n",    "yes",   "no",   "on",
                                         "off", "true", "false", "null", "~"};
    if (length == 0 || !(isalpha((unsigned char)*key) || *key == '_')) return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)key[i]) && key[i] != '_' && key[i] != '-') return false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        size_t k = 0;
        while (k < length && others[i][k] == tolower((unsigned char)key[k])) k++;
        if (k == length && others[i][k] == '\0') return false;
    }
    return true;
}

void stw_tree_write_key(stw_text *out, const char *key, size_t length, bool json) {
    if (!json && is_plain_key(key, length))
        stw_text_append(out, key, length);
    else
        write_string(out, key, length);
}
