/* SPDX-License-Identifier: Apache-2.0 */
/* CSV tensor list: name,shape,dtype and optionally group, in any order of columns. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "models/internal.h"
#include "models/table.h"

enum { NAME, SHAPE, DTYPE, GROUP, N_COLUMNS };
enum { MAX_LIST_BYTES = 1 << 30 };

static const char *const columns[N_COLUMNS] = {"name", "shape", "dtype", "group"};

typedef struct columns_found {
    size_t at[N_COLUMNS]; /* column, or SIZE_MAX */
} columns_found;

static stw_status read_header(const stw_table *table, columns_found *found, stw_error *err) {
    static const stw_table_row none = {.line = 1};
    const stw_table_row *row = table->n_rows > 0 ? &table->rows[0] : &none;
    for (size_t c = 0; c < N_COLUMNS; c++) found->at[c] = SIZE_MAX;
    for (size_t f = 0; f < row->n_fields; f++) {
        size_t c = 0;
        while (c < N_COLUMNS && strcmp(row->fields[f], columns[c]) != 0) c++;
        if (c == N_COLUMNS || found->at[c] != SIZE_MAX)
            return stw_table_fail(table, row, err,
                                  "found the column \"%.60s\"%s, expected the header "
                                  "name,shape,dtype and optionally group",
                                  row->fields[f], c < N_COLUMNS ? " twice" : "");
        found->at[c] = f;
    }
    if (found->at[NAME] == SIZE_MAX || found->at[SHAPE] == SIZE_MAX || found->at[DTYPE] == SIZE_MAX)
        return stw_table_fail(table, row, err,
                              "expected the header name,shape,dtype and optionally group");
    return STW_STATUS_OK;
}

/* "[151936, 1024]", or "[]" for a scalar */
static bool parse_shape(const char *at, stw_tensor *tensor) {
    if (*at++ != '[') return false;
    at += strspn(at, " ");
    while (*at != ']' || tensor->rank > 0) { /* no size may be missing after a comma */
        uint64_t value = 0;
        if (tensor->rank == STW_TENSOR_MAX_RANK || !isdigit((unsigned char)*at)) return false;
        for (; isdigit((unsigned char)*at); at++)
            if (__builtin_mul_overflow(value, 10u, &value) ||
                __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
                return false;
        tensor->shape[tensor->rank++] = value;
        at += strspn(at, " ");
        if (*at == ']') break;
        if (*at++ != ',') return false;
        at += strspn(at, " ");
    }
    return at[1] == '\0';
}

static stw_status read_row(const stw_table *table, const stw_table_row *row,
                           const columns_found *found, stw_tensor *tensor, const char **group,
                           stw_error *err) {
    size_t n_columns = found->at[GROUP] == SIZE_MAX ? 3 : 4;
    if (row->n_fields != n_columns)
        return stw_table_fail(table, row, err, "found %zu columns, expected %zu", row->n_fields,
                              n_columns);
    *tensor = (stw_tensor){.name = row->fields[found->at[NAME]]};
    const char *shape = row->fields[found->at[SHAPE]], *dtype = row->fields[found->at[DTYPE]];
    if (tensor->name[0] == '\0') return stw_table_fail(table, row, err, "the name is empty");
    if (!parse_shape(shape, tensor))
        return stw_table_fail(table, row, err,
                              "the shape is \"%.80s\", expected at most %d sizes such as "
                              "\"[151936, 1024]\"",
                              shape, STW_TENSOR_MAX_RANK);
    if (!stw_dtype_parse(dtype, &tensor->dtype))
        return stw_table_fail(
            table, row, err, "the dtype is \"%.40s\", expected one such as BF16 or float32", dtype);
    if (stw_tensor_count(tensor, NULL) != STW_STATUS_OK)
        return stw_table_fail(table, row, err,
                              "the number of elements of %.80s does not fit in 64 bits", shape);
    *group = n_columns == 4 ? row->fields[found->at[GROUP]] : NULL;
    return STW_STATUS_OK;
}

typedef struct named {
    const char *name;
    const stw_table_row *row;
} named;

static int compare_named(const void *x, const void *y) {
    const named *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (a->row->line > b->row->line) - (a->row->line < b->row->line);
}

static stw_status refuse_twins(stw_pool *pool, const stw_table *table, const stw_tensor *tensors,
                               stw_error *err) {
    size_t n = table->n_rows - 1;
    named *list = stw_pool_array(pool, n, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, table->file, "out of memory");
    for (size_t k = 0; k < n; k++)
        list[k] = (named){.name = tensors[k].name, .row = &table->rows[k + 1]};
    qsort(list, n, sizeof *list, compare_named);
    for (size_t k = 1; k < n; k++)
        if (strcmp(list[k - 1].name, list[k].name) == 0)
            return stw_table_fail(table, list[k].row, err,
                                  "the tensor \"%.120s\" is already in line %d", list[k].name,
                                  list[k - 1].row->line);
    return STW_STATUS_OK;
}

/* Buffers are set apart; the order of either kind stays. */
static void part_buffers(stw_model *model, const stw_tensor *all, const char **groups, size_t n) {
    for (size_t k = 0; k < n; k++) {
        if (stw_is_buffer(all[k].name, all[k].dtype)) {
            model->buffer_tensors[model->n_buffers++] = all[k];
            continue;
        }
        groups[model->n_tensors] = groups[k];
        model->tensors[model->n_tensors++] = all[k];
    }
}

static stw_status read_table(stw_model *model, const stw_table *table, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    columns_found found;
    STW_TRY(read_header(table, &found, err));
    size_t n = table->n_rows - 1;
    if (n == 0) return stw_fail(err, STW_STATUS_BAD_INPUT, table->file, "lists no tensors");
    if (n > UINT32_MAX) return stw_fail(err, STW_STATUS_BAD_INPUT, table->file, "is too long");
    const char **groups = stw_pool_array(model->pool, n, sizeof *groups);
    stw_tensor *all = stw_pool_array(model->pool, n, sizeof *all);
    model->tensors = stw_pool_array(model->pool, n, sizeof *model->tensors);
    model->buffer_tensors = stw_pool_array(model->pool, n, sizeof *model->tensors);
    if (groups == NULL || all == NULL || model->tensors == NULL || model->buffer_tensors == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, table->file, "out of memory");
    for (size_t k = 0; k < n; k++)
        STW_TRY(read_row(table, &table->rows[k + 1], &found, &all[k], &groups[k], err));
    STW_TRY(refuse_twins(model->pool, table, all, err));
    part_buffers(model, all, groups, n);
    if (model->n_tensors == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, table->file,
                        "lists no parameters: all %zu tensors are buffers or integers", n);
    STW_TRY(stw_model_group_by_name(model, groups, err));
    STW_TRY(stw_model_place_buffers(model, err));
    STW_TRY(stw_model_finish(model, err));
    stw_model_warn_of_integers(model);
out:
    return status;
}

stw_status stw_model_parse_csv(const char *path, const char *text, size_t length, stw_model **out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_table table;
    *out = NULL;
    stw_model *model = stw_model_new("", path, "");
    if (model == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    model->name = stw_model_name_of(model->pool, path);
    if (model->name == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
        goto out;
    }
    STW_TRY(stw_table_parse(model->pool, path, text, length, &table, err));
    STW_TRY(read_table(model, &table, err));
    *out = model;
    model = NULL;
out:
    stw_model_free(model);
    return stw_error_in(status, path, err);
}

stw_status stw_model_read_csv(const char *path, stw_model **out, stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    *out = NULL;
    stw_status status = stw_file_read(path, MAX_LIST_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK) status = stw_model_parse_csv(path, text, (size_t)length, out, err);
    free(text);
    return status;
}
