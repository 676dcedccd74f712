/* SPDX-License-Identifier: Apache-2.0 */
/* A change in the framework's own settings: those of a plan with it that the plan without it has
 * not. */
#include <string.h>

#include "planner/explain/parts.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/frameworks/frames.h"

enum { MOST_LINES = 6 };

static bool has_line(const char *text, const char *line, size_t n) {
    for (const char *at = text; at != NULL && (at = strstr(at, "\n")) != NULL;) {
        at++;
        if (strncmp(at, line, n) == 0 && (at[n] == '\n' || at[n] == '\0')) return true;
    }
    return strncmp(text, line, n) == 0 && (text[n] == '\n' || text[n] == '\0');
}

/* Lines of `now` that `before` has not; with an import those that it notes as changes. */
static void differ(const char *before, const char *now, bool noted, stw_text *out) {
    int n = 0;
    for (const char *at = now; *at != '\0' && n < MOST_LINES;) {
        const size_t length = strcspn(at, "\n");
        const bool sign = (at[0] == '-' || at[0] == '+') && at[1] == ' ';
        if (noted ? sign : length > 0 && !has_line(before, at, length)) {
            stw_text_printf(out, "%s%.*s", out->length > 0 ? "\n" : "", (int)length, at);
            n++;
        }
        at += length + (at[length] == '\n');
    }
}

static const char *writer_of(const stw_explanation *e, const stw_explain_options *options) {
    const stw_failure *f = e->failure;
    const char *engine = stw_run_spec_engine(&e->plan->run)->name;
    if (options->from != NULL) return options->from;
    const stw_program_name p =
        stw_program_of(f != NULL ? f->frames : NULL, f != NULL ? f->n_frames : 0, e->found->text);
    return stw_program_writer(&p, engine);
}

const char *stw_explain_settings(stw_explanation *e, const stw_explain_options *given,
                                 const stw_plan *before, const stw_plan *now) {
    const char *what = writer_of(e, given), *kept = NULL;
    const stw_emit_options options = {
        .from = given->from, .import = given->import, .data_folder = given->data_folder};
    stw_text one = STW_TEXT_INIT, other = STW_TEXT_INIT, notes = STW_TEXT_INIT,
             told = STW_TEXT_INIT, lines = STW_TEXT_INIT;
    if (what == NULL || before == NULL) return NULL;
    stw_status status = stw_emit_plan(what, now, &options, &other, &told, NULL);
    if (status == STW_STATUS_OK && options.import == NULL)
        status = stw_emit_plan(what, before, &options, &one, &notes, NULL);
    if (status == STW_STATUS_OK) {
        if (options.import != NULL) {
            differ("", told.data != NULL ? told.data : "", true, &lines);
        } else if (one.data != NULL && other.data != NULL) {
            differ(one.data, other.data, false, &lines);
            /* what its settings do not say, and is set where training starts */
            differ(notes.data != NULL ? notes.data : "", told.data != NULL ? told.data : "", false,
                   &lines);
        }
        if (lines.length > 0 && !lines.failed) kept = stw_pool_string(e->pool, lines.data);
    }
    e->failed |= status == STW_STATUS_NO_MEMORY || lines.failed;
    stw_text_free(&one);
    stw_text_free(&other);
    stw_text_free(&notes);
    stw_text_free(&told);
    stw_text_free(&lines);
    return kept;
}
