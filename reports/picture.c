/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/picture.h"

enum { MOST_LETTERS = 110 };

void stw_picture_begin(stw_text *out, int width, int height, const char *title) {
    stw_text_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                    "height=\"%d\" role=\"img\" font-family=\"sans-serif\" font-size=\"11\" "
                    "fill=\"none\">\n<title>%s</title>\n"
                    "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                    width, height, width, height, title, width, height);
}

void stw_picture_end(stw_text *out) { stw_text_printf(out, "</svg>\n"); }

void stw_picture_text(stw_text *out, double x, double y, const char *anchor, stw_text *text) {
    stw_text plain = STW_TEXT_INIT;
    if (text->failed) out->failed = true;
    stw_text_append_printable(&plain, text->data != NULL ? text->data : "");
    stw_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#222\">", x, y,
                    anchor);
    size_t letters = 0;
    for (const char *at = plain.data; at != NULL && *at != '\0'; at++) {
        letters += ((unsigned char)*at & 0xC0) != 0x80;
        if (letters > MOST_LETTERS) {
            stw_text_printf(out, "...");
            break;
        }
        if (*at == '<' || *at == '&')
            stw_text_printf(out, *at == '<' ? "&lt;" : "&amp;");
        else
            stw_text_append(out, at, 1);
    }
    stw_text_printf(out, "</text>\n");
    if (plain.failed) out->failed = true;
    stw_text_free(&plain);
    stw_text_free(text);
}
