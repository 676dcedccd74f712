/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model's tensors as CSV, without libcsv: libstowage does not link it. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "models/model.h"

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* Quote if RFC 4180 requires it, if the line would begin like a comment, and where readers drop
 * blanks at the ends of a field. */
static void write_field(stw_text *text, const char *field) {
    size_t n = strlen(field);
    if (n > 0 && strpbrk(field, ",\"\r\n") == NULL && field[0] != '#' && !is_blank(field[0]) &&
        !is_blank(field[n - 1])) {
        stw_text_append(text, field, n);
        return;
    }
    stw_text_append(text, "\"", 1);
    for (const char *at = field; *at != '\0'; at++) {
        if (*at == '"') stw_text_append(text, "\"", 1);
        stw_text_append(text, at, 1);
    }
    stw_text_append(text, "\"", 1);
}

static void write_tensor(const stw_model *model, const stw_tensor *tensor, stw_text *text) {
    write_field(text, tensor->name);
    stw_text_append(text, ",\"[", 3);
    for (uint32_t d = 0; d < tensor->rank; d++)
        stw_text_printf(text, "%s%" PRIu64, d > 0 ? ", " : "", tensor->shape[d]);
    stw_text_printf(text, "]\",%s,", stw_dtype_name(tensor->dtype));
    write_field(text, model->groups[model->blocks[tensor->block].group].name);
    stw_text_append(text, "\n", 1);
}

stw_status stw_model_write_csv(const stw_model *model, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_text_printf(&text, "name,shape,dtype,group\n");
    for (uint32_t k = 0; k < model->n_tensors; k++) write_tensor(model, &model->tensors[k], &text);
    for (uint32_t k = 0; k < model->n_buffers; k++)
        write_tensor(model, &model->buffer_tensors[k], &text);
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}
