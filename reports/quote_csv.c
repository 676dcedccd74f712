/* SPDX-License-Identifier: Apache-2.0 */
#include <csv.h>
#include <stdlib.h>
#include <string.h>

#include "reports/quote.h"

void stw_csv_quote(const char *text, stw_text *out) {
    const size_t length = strlen(text), size = csv_write(NULL, 0, text, length);
    char *field = malloc(size);
    if (field == NULL) {
        out->failed = true;
        return;
    }
    (void)csv_write(field, size, text, length);
    stw_text_append(out, field, size);
    free(field);
}
