/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/cluster_edit.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/tree_edit.h"
#include "plan/spec/spec_keys.h"

enum { LARGEST = 64 << 20 };

static stw_status parse(const char *path, const stw_text *text, stw_cluster *out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(
        stw_tree_parse_yaml(path, text->data != NULL ? text->data : "", text->length, &tree, err));
    STW_TRY(stw_cluster_from_node(tree, tree->root, out, err));
    STW_TRY(stw_cluster_check(out, path, err));
out:
    stw_tree_free(tree);
    return status;
}

stw_status stw_cluster_file_open(const char *path, stw_cluster_file *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char *data = NULL;
    uint64_t length = 0;
    out->path = path;
    out->exists = stw_file_exists(path);
    if (!out->exists) return STW_STATUS_OK;
    STW_TRY(stw_file_read(path, LARGEST, &data, &length, err));
    stw_text_append(&out->text, data, length);
    STW_TRY(stw_text_status(&out->text, err));
    STW_TRY(parse(path, &out->text, &out->cluster, err));
out:
    free(data);
    return status;
}

void stw_cluster_file_close(stw_cluster_file *file) { stw_text_free(&file->text); }

/* The row's value in both, as written. */
static stw_status write_both(const stw_spec_row *row, const stw_cluster *a, const stw_cluster *b,
                             stw_text *of_a, stw_text *of_b, stw_error *err) {
    of_a->length = of_b->length = 0;
    stw_spec_write_value(row, a, of_a);
    stw_spec_write_value(row, b, of_b);
    stw_status status = stw_text_status(of_a, err);
    return status == STW_STATUS_OK ? stw_text_status(of_b, err) : status;
}

static bool same(const stw_text *a, const stw_text *b) {
    return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0);
}

/* Put every value that differs into the text, or where `text` is NULL refuse the first one. */
static stw_status put_changes(const char *path, const stw_cluster *now, const stw_cluster *wanted,
                              stw_text *text, bool *any, stw_error *err) {
    const stw_spec_table *table = stw_cluster_table();
    stw_status status = STW_STATUS_OK;
    stw_text is = STW_TEXT_INIT, becomes = STW_TEXT_INIT;
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        STW_TRY(write_both(row, now, wanted, &is, &becomes, err));
        if (same(&is, &becomes)) continue;
        *any = true;
        if (text == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, path,
                             "%s: found %s after setting it to %s; the file cannot be changed in "
                             "place",
                             row->key, is.data, becomes.data));
        STW_TRY(stw_yaml_put(path, text, row->key, becomes.data, err));
    }
out:
    stw_text_free(&is);
    stw_text_free(&becomes);
    return status;
}

stw_status stw_cluster_file_update(stw_cluster_file *file, const stw_cluster *wanted, bool *changed,
                                   stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_cluster read;
    bool differs = false;
    *changed = !file->exists;
    if (file->exists) {
        stw_text_append(&text, file->text.data, file->text.length);
        STW_TRY(put_changes(file->path, &file->cluster, wanted, &text, changed, err));
    } else {
        stw_cluster_write_yaml(wanted, &text);
    }
    STW_TRY(stw_text_status(&text, err));
    if (!*changed) goto out;
    STW_TRY(parse(file->path, &text, &read, err));
    STW_TRY(put_changes(file->path, &read, wanted, NULL, &differs, err));
    STW_TRY(stw_file_write(file->path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}
