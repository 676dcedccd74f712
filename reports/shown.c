/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reports/table.h"

/* What Markdown would take for markup. Backticks stay: sentences have commands in them. */
static void put_character(stw_text *out, stw_format format, const char *at) {
    if (format == STW_FORMAT_MARKDOWN && *at == '<')
        stw_text_printf(out, "&lt;");
    else if (format == STW_FORMAT_MARKDOWN && *at == '&')
        stw_text_printf(out, "&amp;");
    else if (format == STW_FORMAT_MARKDOWN && strchr("\\*[]|", *at) != NULL)
        stw_text_printf(out, "\\%c", *at);
    else
        stw_text_append(out, at, 1);
}

void stw_text_append_shown(stw_text *out, stw_format format, const char *text, size_t most) {
    while (*text != '\0') {
        const size_t n = *text == ' ' ? strspn(text, " ") : strcspn(text, " ");
        const bool cut = *text != ' ' && n > most;
        size_t kept = cut ? most - 3 : n;
        while (cut && kept > 0 && ((unsigned char)text[kept] & 0xC0) == 0x80) kept--;
        for (size_t i = 0; i < kept; i++) put_character(out, format, text + i);
        if (cut) stw_text_printf(out, "...");
        text += n;
    }
}
