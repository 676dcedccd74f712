/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"
#include "reports/blocks.h"
#include "reports/table.h"

/* Longer words of sentences are shortened: paths are not, names of 10,000 characters are. */
enum { LONGEST_WORD = 160 };

/* vprintf onto a text, as one line. @param kind of a block */
static void put_args(stw_text *out, stw_format as, const char *kind, const char *format,
                     va_list args) {
    char small[1024];
    int length = vsnprintf(small, sizeof small, format, args);
    if (length < 0) {
        out->failed = true;
        return;
    }
    /* cut the line; only very long names get here */
    if ((size_t)length >= sizeof small) memcpy(small + sizeof small - 4, "...", 4);
    stw_text line = STW_TEXT_INIT;
    stw_text_append_printable(&line, small);
    const char *text = line.data != NULL ? line.data : "";
    if (as == STW_FORMAT_BLOCKS)
        stw_block_put(out, kind, text);
    else
        stw_text_append_shown(out, as, text, LONGEST_WORD);
    if (line.failed) out->failed = true;
    stw_text_free(&line);
}

/* Wrap what was appended since `start` to the terminal; later lines are indented. */
static void wrap_since(stw_text *out, size_t start, stw_format format, size_t indent) {
    size_t width = stw_report_width();
    if (width <= indent || format != STW_FORMAT_TERMINAL || out->failed || out->data == NULL ||
        stw_text_width(out->data + start) <= width)
        return;
    stw_text wrapped = STW_TEXT_INIT;
    const char *at = out->data + start;
    size_t room = width; /* of the first line; its indentation is part of the text */
    while (*at != '\0') {
        size_t blank = room == width ? strspn(at, " ") : 0;
        size_t n = blank + stw_line_length(at + blank, room - blank);
        if (wrapped.length > 0) stw_text_printf(&wrapped, "\n%*s", (int)indent, "");
        stw_text_append(&wrapped, at, n);
        at += n;
        at += strspn(at, " ");
        room = width - indent;
    }
    out->length = start;
    out->data[start] = '\0';
    if (wrapped.failed) out->failed = true;
    stw_text_append(out, wrapped.data, wrapped.length);
    stw_text_free(&wrapped);
}

/* Does the text end with an item of a list? */
static bool in_list(const stw_text *out) {
    size_t at = out->length;
    if (at < 2 || out->data == NULL) return false;
    for (at--; at > 0 && out->data[at - 1] != '\n';) at--;
    return strncmp(out->data + at, "- ", 2) == 0;
}

static const char *end_of(stw_format format) {
    return format == STW_FORMAT_BLOCKS ? "" : format == STW_FORMAT_MARKDOWN ? "\n\n" : "\n";
}

void stw_doc_title(stw_text *out, stw_format format, const char *format_text, ...) {
    va_list args;
    const size_t start = out->length;
    if (format == STW_FORMAT_MARKDOWN) stw_text_printf(out, "# ");
    va_start(args, format_text);
    put_args(out, format, "title", format_text, args);
    va_end(args);
    wrap_since(out, start, format, 2);
    stw_text_printf(out, "%s", end_of(format));
}

void stw_doc_heading(stw_text *out, stw_format format, const char *heading) {
    stw_doc_gap(out, format);
    if (format == STW_FORMAT_BLOCKS)
        stw_block_put(out, "heading", heading);
    else if (format == STW_FORMAT_MARKDOWN)
        stw_text_printf(out, "## %s\n\n", heading);
    else
        stw_text_printf(out, "\n%s\n", heading);
}

void stw_doc_part(stw_text *out, stw_format format, const char *part) {
    if (format == STW_FORMAT_BLOCKS) stw_block_put(out, "part", part);
}

void stw_doc_line(stw_text *out, stw_format format, const char *format_text, ...) {
    va_list args;
    stw_doc_gap(out, format);
    size_t start = out->length;
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "  ");
    va_start(args, format_text);
    put_args(out, format, "line", format_text, args);
    va_end(args);
    wrap_since(out, start, format, 4);
    stw_text_printf(out, "%s", end_of(format));
}

void stw_doc_item(stw_text *out, stw_format format, const char *format_text, ...) {
    va_list args;
    if (!in_list(out)) stw_doc_gap(out, format);
    size_t start = out->length;
    if (format != STW_FORMAT_BLOCKS)
        stw_text_printf(out, format == STW_FORMAT_MARKDOWN ? "- " : "  - ");
    va_start(args, format_text);
    put_args(out, format, "item", format_text, args);
    va_end(args);
    wrap_since(out, start, format, 4);
    if (format != STW_FORMAT_BLOCKS) stw_text_printf(out, "\n");
}

stw_word stw_word_gib(uint64_t bytes) {
    stw_word w;
    if (bytes == STW_UNLIMITED)
        snprintf(w.text, sizeof w.text, "unlimited");
    else if (bytes > 0 && bytes < (1ull << 30) / 200) /* would round to nothing */
        snprintf(w.text, sizeof w.text, "< 0.01 GiB");
    else
        snprintf(w.text, sizeof w.text, "%.2f GiB", (double)bytes / (double)(1ull << 30));
    return w;
}

stw_word stw_word_size(uint64_t bytes) {
    stw_word w;
    stw_bytes_format(bytes, w.text, sizeof w.text);
    return w;
}

stw_word stw_word_seconds(double seconds) {
    stw_word w;
    if (isfinite(seconds))
        stw_quantity_format(seconds, STW_UNIT_SECONDS, w.text, sizeof w.text);
    else
        snprintf(w.text, sizeof w.text, "unknown");
    return w;
}

stw_word stw_word_count(uint64_t count) {
    char digits[24];
    stw_word w;
    int n = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) w.text[used++] = ',';
        w.text[used++] = digits[i];
    }
    w.text[used] = '\0';
    return w;
}

/* Never with an exponent. */
stw_word stw_word_number(double value) {
    stw_word w = {"unknown"};
    if (!isfinite(value) || value < 0 || value >= 1e18) return w;
    double step = 1;
    while (value / step >= 1000) step *= 10;
    if (value >= 100) return stw_word_count((uint64_t)(floor(value / step + 0.5) * step));
    if (value > 0 && value < 0.001)
        snprintf(w.text, sizeof w.text, "< 0.001");
    else
        snprintf(w.text, sizeof w.text, "%.3g", value);
    return w;
}

stw_word stw_word_dtype(stw_dtype dtype) {
    stw_word w;
    const char *name = stw_dtype_name(dtype);
    snprintf(w.text, sizeof w.text, "%s%s", name[0] == 'F' && name[1] != '8' ? "fp" : "",
             name[0] == 'F' && name[1] != '8' ? name + 1 : name);
    for (char *p = w.text; *p != '\0'; p++) *p = (char)tolower((unsigned char)*p);
    return w;
}

stw_word stw_word_share(double part, double whole) {
    stw_word w = {""};
    if (isfinite(part) && isfinite(whole) && whole > 0)
        snprintf(w.text, sizeof w.text, "%.1f%%", 100 * part / whole);
    return w;
}

stw_word stw_word_bar(uint64_t part, uint64_t whole) {
    enum { CELLS = 20 };
    stw_word w = {""};
    if (whole == 0 || whole == STW_UNLIMITED) return w;
    double share = (double)part / (double)whole;
    unsigned filled = share >= 1 ? CELLS : (unsigned)(share * CELLS + 0.5);
    if (filled == 0 && part > 0) filled = 1;
    w.text[0] = '[';
    memset(w.text + 1, '#', filled);
    memset(w.text + 1 + filled, '.', CELLS - filled);
    memcpy(w.text + 1 + CELLS, part > whole ? "> OVER" : "]", part > whole ? 7 : 2);
    return w;
}

stw_word stw_word_plain_double(double value) {
    stw_word w = {""};
    if (isfinite(value)) stw_text_double(value, w.text, sizeof w.text);
    return w;
}
