/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures beside a Markdown report. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "reports/pictures.h"

/* A name as a part of a URL. */
static void put_url(const char *name, stw_text *out) {
    for (; *name != '\0'; name++) {
        const unsigned char c = (unsigned char)*name;
        if (isalnum(c) || strchr("-._~", c) != NULL)
            stw_text_append(out, name, 1);
        else
            stw_text_printf(out, "%%%02X", (unsigned)c);
    }
}

static stw_status write_picture(const stw_text *stem, const char *what, const stw_text *picture,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text path = STW_TEXT_INIT;
    if (picture->length == 0) return STW_STATUS_OK;
    stw_text_printf(&path, "%s-%s.svg", stem->data, what);
    STW_TRY(stw_text_status(&path, err));
    STW_TRY(stw_file_write(path.data, picture->data, picture->length, err));
out:
    stw_text_free(&path);
    return status;
}

stw_status stw_pictures_write(stw_page_item *item, const char *report, size_t number,
                              stw_text *link, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text stem = STW_TEXT_INIT, memory = STW_TEXT_INIT, tiers = STW_TEXT_INIT;
    const size_t length = strlen(report) - strlen(stw_path_suffix(report));
    stw_text_append(&stem, report, length);
    if (number > 0) stw_text_printf(&stem, "-%zu", number);
    STW_TRY(stw_text_status(&stem, err));
    const char *slash = strrchr(stem.data, '/');
    put_url(slash != NULL ? slash + 1 : stem.data, link);
    STW_TRY(stw_text_status(link, err));
    STW_TRY(stw_page_tracks(item, err));
    STW_TRY(stw_picture_memory(item, &memory, err));
    STW_TRY(stw_picture_tiers(item->plan, &tiers, err));
    STW_TRY(write_picture(&stem, "memory", &memory, err));
    STW_TRY(write_picture(&stem, "tiers", &tiers, err));
out:
    stw_text_free(&stem);
    stw_text_free(&memory);
    stw_text_free(&tiers);
    return status;
}
