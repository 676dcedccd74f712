/* SPDX-License-Identifier: Apache-2.0 */
/* Finds values that differ from their defaults and refuses values that are not implemented. */
#include <string.h>

#include "plan/spec/spec_keys.h"

/* Values are equal if their texts are. */
static stw_status write_both(const stw_spec_row *row, const void *base, const void *defaults,
                             stw_text *value, stw_text *usual, bool *equal, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_spec_write_value(row, base, value);
    stw_spec_write_value(row, defaults, usual);
    STW_TRY(stw_text_status(value, err));
    STW_TRY(stw_text_status(usual, err));
    *equal = value->length == usual->length &&
             (value->length == 0 || memcmp(value->data, usual->data, value->length) == 0);
out:
    return status;
}

stw_status stw_spec_first_changed(const stw_spec_table *table, const char *prefix, const void *base,
                                  const void *defaults, const stw_spec_row **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    for (size_t i = 0; i < table->n_rows && *out == NULL && status == STW_STATUS_OK; i++) {
        const stw_spec_row *row = &table->rows[i];
        stw_text value = STW_TEXT_INIT, usual = STW_TEXT_INIT;
        bool equal = true;
        if (strncmp(row->key, prefix, strlen(prefix)) != 0) continue;
        status = write_both(row, base, defaults, &value, &usual, &equal, err);
        if (!equal) *out = row;
        stw_text_free(&value);
        stw_text_free(&usual);
    }
    return status;
}

/* Refuse a value other than the default of a row that is not implemented. */
static stw_status check_default(const stw_spec_row *row, const void *base, const void *defaults,
                                const char *origin, stw_error *err) {
    stw_text value = STW_TEXT_INIT, usual = STW_TEXT_INIT;
    bool equal = true;
    stw_status status = write_both(row, base, defaults, &value, &usual, &equal, err);
    if (status == STW_STATUS_OK && !equal)
        status =
            stw_fail(err, STW_STATUS_NOT_BUILT_IN, origin,
                     "%s: %.120s is not implemented; set it to %.120s%s%s", row->key, value.data,
                     usual.data, row->instead[0] != '\0' ? " and use " : "", row->instead);
    stw_text_free(&value);
    stw_text_free(&usual);
    return status;
}

stw_status stw_spec_check_effect(const stw_spec_table *table, const void *base,
                                 const void *defaults, const char *origin, stw_error *err) {
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        const stw_spec_word *word = stw_spec_word_of(row, base);
        if (word != NULL && word->instead != NULL)
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, origin,
                            "%s: %s is not implemented; use %s", row->key, word->word,
                            word->instead);
        if (row->instead == NULL) continue;
        stw_status status = check_default(row, base, defaults, origin, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}
