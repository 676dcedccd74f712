/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* strcasecmp */
/* What several commands understand alike: formats of reports, "-", patterns of names. */
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/commands.h"
#include "core/file.h"
#include "reports/reports.h"
#include "reports/table.h"

stw_status stw_report_format(const stw_general *general, stw_format *out, stw_error *err) {
    static const struct {
        const char *suffix;
        stw_format format;
    } formats[] = {
        {".md", STW_FORMAT_MARKDOWN}, {".csv", STW_FORMAT_CSV}, {".json", STW_FORMAT_JSON}};
    *out = general->json ? STW_FORMAT_JSON : STW_FORMAT_TERMINAL;
    bool to_stdout = general->output == NULL || strcmp(general->output, "-") == 0;
    if (to_stdout) stw_report_width_set(stw_terminal_columns(STDOUT_FILENO));
    if (to_stdout || general->json)
        return stw_check_suffix(general->output, "complete JSON", ".json", err);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const char *suffix = stw_path_suffix(general->output);
        if (strcasecmp(suffix, formats[i].suffix) == 0) *out = formats[i].format;
    }
    return stw_check_suffix(general->output, "a report", ".txt .md .csv .json", err);
}

uint32_t stw_summary_lines(bool imported) { return imported ? 16 : 23; }

bool stw_wants_all(const stw_general *general) { return general->verbose || general->full; }

bool stw_is_summary(const stw_general *general, stw_format format) {
    const bool to_stdout = general->output == NULL || strcmp(general->output, "-") == 0;
    return to_stdout && format == STW_FORMAT_TERMINAL && !stw_wants_all(general);
}

void stw_tell_details(const char *file, stw_text *out) {
    const bool kept = file != NULL && strcmp(file, "-") != 0;
    stw_doc_line(out, STW_FORMAT_TERMINAL, "All tables: --full, or stowage report %s -o FILE.html",
                 kept ? file : "PLAN");
}

stw_status stw_stdin_once(const char *const *paths, size_t n, stw_error *err) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += strcmp(paths[i], "-") == 0;
    if (found < 2) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, "-", "standard input is given %zu times", found);
}
