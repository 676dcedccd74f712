/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/milp.h"

#include <stdarg.h>
#include <stdio.h>

stw_milp *stw_milp_new(const char *name) {
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return NULL;
    stw_milp *milp = stw_pool_alloc(pool, sizeof *milp);
    if (milp == NULL) {
        stw_pool_free(pool);
        return NULL;
    }
    milp->pool = pool;
    milp->name = stw_pool_string(pool, name);
    milp->out_of_memory = milp->name == NULL;
    return milp;
}

void stw_milp_free(stw_milp *milp) {
    if (milp != NULL) stw_pool_free(milp->pool);
}

static const char *name_new(stw_milp *milp, const char *format, va_list arguments) {
    char text[160];
    vsnprintf(text, sizeof text, format, arguments);
    const char *name = stw_pool_string(milp->pool, text);
    if (name == NULL) milp->out_of_memory = true;
    return name == NULL ? "" : name;
}

uint32_t stw_milp_column_add(stw_milp *milp, bool integer, double lower, double upper,
                             double objective, const char *format, ...) {
    stw_milp_column *columns =
        stw_pool_grow(milp->pool, milp->columns, milp->n_columns, (size_t)milp->n_columns + 1,
                      &milp->column_room, sizeof *columns);
    if (columns == NULL) {
        milp->out_of_memory = true;
        return 0;
    }
    milp->columns = columns;
    va_list arguments;
    va_start(arguments, format);
    const char *name = name_new(milp, format, arguments);
    va_end(arguments);
    columns[milp->n_columns] = (stw_milp_column){name, integer, lower, upper, objective};
    return milp->n_columns++;
}

uint32_t stw_milp_row_add(stw_milp *milp, double lower, double upper, const char *format, ...) {
    stw_milp_row *rows = stw_pool_grow(milp->pool, milp->rows, milp->n_rows,
                                       (size_t)milp->n_rows + 1, &milp->row_room, sizeof *rows);
    if (rows == NULL) {
        milp->out_of_memory = true;
        return 0;
    }
    milp->rows = rows;
    va_list arguments;
    va_start(arguments, format);
    const char *name = name_new(milp, format, arguments);
    va_end(arguments);
    rows[milp->n_rows] = (stw_milp_row){name, lower, upper, milp->n_terms, 0};
    return milp->n_rows++;
}

void stw_milp_term_add(stw_milp *milp, uint32_t column, double value) {
    if (value == 0) return;
    if (milp->n_rows == 0 || column >= milp->n_columns || !isfinite(value)) {
        milp->misused = true;
        return;
    }
    stw_milp_term *terms = stw_pool_grow(milp->pool, milp->terms, milp->n_terms, milp->n_terms + 1,
                                         &milp->term_room, sizeof *terms);
    if (terms == NULL) {
        milp->out_of_memory = true;
        return;
    }
    milp->terms = terms;
    terms[milp->n_terms++] = (stw_milp_term){column, value};
    milp->rows[milp->n_rows - 1].n_terms++;
}

stw_status stw_milp_check(const stw_milp *milp, stw_error *err) {
    if (milp->out_of_memory)
        return stw_fail(err, STW_STATUS_NO_MEMORY, milp->name, "no memory for the problem");
    if (milp->misused)
        return stw_fail(err, STW_STATUS_BUG, milp->name,
                        "a term outside any row, of no column, or not finite");
    return STW_STATUS_OK;
}
