/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/blocks.h"

#include <string.h>

static void put(stw_text *out, const char *text) { stw_text_append(out, text, strlen(text)); }

void stw_block_quote(stw_text *out, const char *text) {
    put(out, "\"");
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '<')
            stw_text_printf(out, "\\u%04x", (unsigned)c);
        else if (c == '"' || c == '\\')
            stw_text_printf(out, "\\%c", c);
        else
            stw_text_append(out, text, 1);
    }
    put(out, "\"");
}

void stw_block_put(stw_text *out, const char *kind, const char *text) {
    stw_text_printf(out, "[\"%s\", ", kind);
    stw_block_quote(out, text);
    put(out, "],\n");
}

void stw_block_array(stw_text *out, const stw_text *blocks) {
    size_t length = blocks->length;
    while (length > 0 && strchr(",\n", blocks->data[length - 1]) != NULL) length--;
    if (blocks->failed) out->failed = true;
    put(out, "[\n");
    if (length > 0) stw_text_append(out, blocks->data, length);
    put(out, "\n]");
}

/* "<" stands in strings alone, and strings hold no line breaks: what follows one is indentation. */
void stw_block_document(stw_text *out, const stw_text *json) {
    if (json->failed) out->failed = true;
    for (const char *at = json->data; at != NULL && *at != '\0';) {
        const size_t n = strcspn(at, "<\n");
        stw_text_append(out, at, n);
        at += n;
        if (*at == '\0') break;
        put(out, *at == '<' ? "\\u003c" : "\n");
        at += *at == '<' ? 1 : strspn(at, "\n ");
    }
}
