/* SPDX-License-Identifier: Apache-2.0 */
/* Parse one scalar into a spec; the errors of all readers. */
#include "plan/spec/spec_scalar.h"

#include <stdio.h>
#include <string.h>

#include "core/printable.h"
#include "plan/spec/run_spec.h"

stw_spec_source stw_spec_at(const stw_spec_source *from, int line, int column) {
    stw_spec_source place = *from;
    place.line = from->has_lines ? line : 0;
    place.column = from->has_lines ? column : 0;
    return place;
}

stw_status stw_spec_no_memory(const stw_spec_source *from, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, from->file, "out of memory");
}

stw_status stw_spec_refuse(const stw_spec_source *from, const char *key, const char *found,
                           const char *expected, stw_error *err) {
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, from->file, from->line, from->column,
                       "%s%s: found %s, expected %s", from->prefix, key, found, expected);
}

/* "auto | none or <other>"; without `other` only the words. Words that are not implemented are not
 * offered. */
void stw_spec_expected(const stw_spec_row *row, const char *other, char *out, size_t out_size) {
    size_t used = 0;
    out[0] = '\0';
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL && used < out_size; w++)
        if (w->instead == NULL)
            used += (size_t)snprintf(out + used, out_size - used, "%s%s", used > 0 ? " | " : "",
                                     w->word);
    if (other != NULL && used < out_size)
        snprintf(out + used, out_size - used, "%s%s", used > 0 ? " or " : "", other);
}

static stw_status refuse_value(const stw_spec_source *from, const stw_spec_row *row,
                               const char *text, const char *other, stw_error *err) {
    char found[160], expected[320];
    stw_text_quote(text, found, sizeof found);
    stw_spec_expected(row, other, expected, sizeof expected);
    return stw_spec_refuse(from, row->key, found, expected, err);
}

static void put_u64(const stw_spec_source *from, const stw_spec_row *row, uint64_t value) {
    char *to = (char *)from->spec->base + row->offset;
    bool truth = value != 0;
    uint32_t narrow = (uint32_t)value;
    if (row->size == sizeof truth) memcpy(to, &truth, sizeof truth);
    if (row->size == sizeof narrow) memcpy(to, &narrow, sizeof narrow);
    if (row->size == sizeof value) memcpy(to, &value, sizeof value);
}

static void put_word(const stw_spec_source *from, const stw_spec_row *row, uint64_t value) {
    char *to = (char *)from->spec->base + row->offset;
    if (row->kind == STW_SPEC_NUMBER) {
        double number = (double)value;
        memcpy(to, &number, sizeof number);
    } else if (row->kind == STW_SPEC_STRING) {
        const char *none = NULL;
        memcpy(to, &none, sizeof none);
    } else {
        put_u64(from, row, value);
    }
}

/* The parser of quantities does not know file and line: keep its text and add them. */
static stw_status refuse_quantity(const stw_spec_source *from, const stw_spec_row *row,
                                  const stw_error *why, stw_error *err) {
    char words[160] = "";
    if (row->words != NULL) stw_spec_expected(row, NULL, words, sizeof words);
    return stw_fail_at(err, why->status, from->file, from->line, from->column, "%s%s: %s%s%s",
                       from->prefix, row->key, why->text, words[0] != '\0' ? " or " : "", words);
}

/* "1 to 65536", "0 or 1 MB/s to 100 TB/s": the row's bounds in its unit. */
static void describe_bounds(const stw_spec_row *row, char *out, size_t out_size) {
    char least[48], most[48];
    if (row->kind == STW_SPEC_COUNT || row->unit == STW_UNIT_RATIO) {
        stw_text_double(row->least, least, sizeof least);
        stw_text_double(row->most, most, sizeof most);
    } else if (row->kind == STW_SPEC_BYTES) {
        stw_bytes_format_exact((uint64_t)row->least, least, sizeof least);
        stw_bytes_format_exact((uint64_t)row->most, most, sizeof most);
    } else {
        stw_quantity_format_exact(row->least, row->unit, least, sizeof least);
        stw_quantity_format_exact(row->most, row->unit, most, sizeof most);
    }
    snprintf(out, out_size, "%s%s to %s", row->zero && row->least > 0 ? "0 or " : "", least, most);
}

/* Refuse a value outside the row's bounds, and a size or rate whose unit is missing. */
static stw_status check_quantity(const stw_spec_source *from, const stw_spec_row *row,
                                 const char *text, double value, stw_error *err) {
    const char *last = text + strlen(text);
    while (last > text && (last[-1] == ' ' || last[-1] == '\t')) last--;
    const bool bare = last > text && ((last[-1] >= '0' && last[-1] <= '9') || last[-1] == '.');
    if (bare && value > 0 && !from->base_units && stw_unit_is_needed(row->unit)) {
        char found[160], expected[160];
        stw_text_quote(text, found, sizeof found);
        stw_spec_expected(row, stw_unit_expected(row->unit), expected, sizeof expected);
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, from->file, from->line, from->column,
                           "%s%s: found %s without a unit, expected %s", from->prefix, row->key,
                           found, expected);
    }
    if (row->most > 0 && !(value >= row->least && value <= row->most) &&
        !(row->zero && value <= 0)) {
        char range[128];
        describe_bounds(row, range, sizeof range);
        return refuse_value(from, row, text, range, err);
    }
    return STW_STATUS_OK;
}

static stw_status put_count(const stw_spec_source *from, const stw_spec_row *row, const char *text,
                            stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    uint64_t value = 0;
    if (row->kind == STW_SPEC_BYTES && strcmp(text, "unlimited") == 0) /* and no word of the row */
        return refuse_value(from, row, text, "a size such as \"80 GiB\"", err);
    if (stw_u64_parse(text, row->unit, &value, row->key, &why) != STW_STATUS_OK)
        return refuse_quantity(from, row, &why, err);
    if (row->size == sizeof(uint32_t) && value >= STW_NONE)
        return refuse_value(from, row, text, "a count below 4294967294", err);
    stw_status status = check_quantity(from, row, text, (double)value, err);
    if (status != STW_STATUS_OK) return status;
    put_u64(from, row, value);
    return STW_STATUS_OK;
}

stw_status stw_spec_put_number(const stw_spec_source *from, const stw_spec_row *row, size_t index,
                               const char *text, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    double value = 0;
    if (stw_quantity_parse(text, row->unit, &value, row->key, &why) != STW_STATUS_OK)
        return refuse_quantity(from, row, &why, err);
    stw_status status = check_quantity(from, row, text, value, err);
    if (status != STW_STATUS_OK) return status;
    memcpy((char *)from->spec->base + row->offset + index * sizeof value, &value, sizeof value);
    return STW_STATUS_OK;
}

stw_status stw_spec_check_text(const stw_spec_source *from, const stw_spec_row *row,
                               const char *text, stw_error *err) {
    for (const char *p = text; *p != '\0';) {
        size_t length = stw_printable_length(p);
        if (length == 0)
            return refuse_value(from, row, text, "UTF-8 text without control characters", err);
        p += length;
    }
    return STW_STATUS_OK;
}

static stw_status put_text(const stw_spec_source *from, const stw_spec_row *row, const char *text,
                           stw_error *err) {
    char *to = (char *)from->spec->base + row->offset;
    stw_status status = stw_spec_check_text(from, row, text, err);
    if (status != STW_STATUS_OK) return status;
    if (row->kind == STW_SPEC_STRING) {
        const char *copy = stw_pool_string(from->spec->pool, text);
        if (copy == NULL) return stw_spec_no_memory(from, err);
        memcpy(to, &copy, sizeof copy);
        return STW_STATUS_OK;
    }
    if (strlen(text) >= row->size) {
        char expected[64];
        snprintf(expected, sizeof expected, "at most %zu bytes", row->size - 1);
        return refuse_value(from, row, text, expected, err);
    }
    memset(to, 0, row->size);
    memcpy(to, text, strlen(text));
    return STW_STATUS_OK;
}

bool stw_spec_is_search(const stw_spec_source *from, const stw_spec_row *row, const char *text) {
    return row->search != 0 && from->spec->searches != NULL && strcmp(text, "auto") == 0;
}

/* What is searched keeps the value that it had, which says what the run trains on; NULL then. */
static const char *note_search(const stw_spec_source *from, const stw_spec_row *row,
                               const char *text) {
    stw_searches *searches = from->spec->searches;
    const bool searched = stw_spec_is_search(from, row, text);
    if (row->search == 0 || searches == NULL) return text;
    searches->keys = searched ? searches->keys | row->search : searches->keys & ~row->search;
    searches->given = searched ? searches->given & ~row->search : searches->given | row->search;
    return searched ? NULL : text;
}

static stw_status put_text_of(const stw_spec_source *from, const stw_spec_row *row,
                              const char *text, stw_error *err);

stw_status stw_spec_put_scalar(const stw_spec_source *from, const stw_spec_row *row,
                               const char *text, stw_error *err) {
    const char *value = note_search(from, row, text);
    return value != NULL ? put_text_of(from, row, value, err) : STW_STATUS_OK;
}

static stw_status put_text_of(const stw_spec_source *from, const stw_spec_row *row,
                              const char *text, stw_error *err) {
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL; w++) {
        if (strcmp(w->word, text) != 0) continue;
        put_word(from, row, w->value);
        return STW_STATUS_OK;
    }
    switch (row->kind) {
    case STW_SPEC_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return refuse_value(from, row, text, "true or false", err);
        put_u64(from, row, text[0] == 't');
        return STW_STATUS_OK;
    case STW_SPEC_COUNT:
    case STW_SPEC_BYTES:
        return put_count(from, row, text, err);
    case STW_SPEC_NUMBER:
        return stw_spec_put_number(from, row, 0, text, err);
    case STW_SPEC_TEXT:
    case STW_SPEC_STRING:
        return put_text(from, row, text, err);
    case STW_SPEC_MAP:
        return refuse_value(from, row, text, "a map", err);
    default:
        return refuse_value(from, row, text, NULL, err);
    }
}
