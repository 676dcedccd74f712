/* SPDX-License-Identifier: Apache-2.0 */
/* source FILE: a file beside the script is read. */
#define _POSIX_C_SOURCE 200809L /* stat */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "planner/frameworks/shell/builtins.h"
#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/run.h"

typedef stw_shell_reader reader;

enum { MOST_BYTES = 1 << 20 };

/* ---- which file ---- */

/* Words with which scripts say their own folder, without blanks, quotes, braces and "[0]". */
static bool is_own_folder(const reader *r, const char *text, size_t n) {
    static const char *const forms[] = {"$(dirname@)", "@%/*", "$(cd$(dirname@)&&pwd)",
                                        "$(dirname$(readlink-f@))", "$(dirname$(realpath@))"};
    static const char *const names[] = {"$0", "$BASH_SOURCE"};
    char plain[96];
    size_t kept = 0;
    for (size_t i = 0; i < n && kept + 1 < sizeof plain; i++) {
        if (n - i >= 3 && memcmp(text + i, "[0]", 3) == 0)
            i += 2;
        else if (strchr("\"{} \t`", text[i]) == NULL)
            plain[kept++] = text[i];
    }
    plain[kept] = '\0';
    for (size_t k = 0; k < (r->sourced == 0 ? 2 : 1); k++)
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
            const size_t before = strcspn(forms[i], "@"), own = strlen(names[k]);
            if (strncmp(plain, forms[i], before) == 0 &&
                strncmp(plain + before, names[k], own) == 0 &&
                strcmp(plain + before + own, forms[i] + before + 1) == 0)
                return true;
        }
    return false;
}

/* The path of a file from the script's folder on; NULL: it may lie elsewhere. */
static const char *from_folder(const reader *r, const stw_shell_word *word) {
    const char *text = word->text, *end = text + strlen(text);
    if (stw_shell_is_known(word)) return *text == '/' || r->state->moved ? NULL : text;
    if (word->maybe > 0 || (*text != STW_MARK_BARE && *text != STW_MARK_QUOTED)) return NULL;
    const size_t n = stw_value_expansion(text, end);
    const char *rest = text + n;
    const stw_value_kind kind = stw_value_kind_of(rest);
    if (n < 3 || *rest != '/' || kind.unknown || kind.assumed || kind.open) return NULL;
    return is_own_folder(r, text + 1, n - 2) ? rest + 1 : NULL;
}

/* @return its path if there is such a file; NULL: none */
static const char *find(reader *r, const stw_shell_word *word) {
    const char *rest = from_folder(r, word), *slash = strrchr(r->path, '/');
    struct stat about;
    if (rest == NULL || *rest == '\0') return NULL;
    const int folder = slash != NULL ? (int)(slash - r->path) + 1 : 0;
    const char *path = stw_pool_printf(r->pool, "%.*s%s", folder, r->path, rest);
    if (path == NULL) stw_shell_fail_memory(r);
    return path != NULL && stat(path, &about) == 0 && S_ISREG(about.st_mode) ? path : NULL;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What the files of Python's venv, conda and Ascend's CANN set is nothing that a launch takes. */
static bool is_environment(const char *text) {
    return strcmp(text, "activate") == 0 || strcmp(text, "bin/activate") == 0 ||
           ends_with(text, "/bin/activate") || ends_with(text, "/etc/profile.d/conda.sh") ||
           (strstr(text, "/Ascend/") != NULL && ends_with(text, "/set_env.sh"));
}

/* ---- what becomes of it ---- */

static void tell(reader *r, const char *path, bool is_read) {
    stw_shell *out = r->out;
    for (size_t i = 0; i < out->n_sources; i++)
        if (strcmp(out->sources[i].path, path) == 0) return;
    stw_shell_source_file *grown =
        stw_pool_grow(r->pool, out->sources, out->n_sources, out->n_sources + 1,
                      &out->sources_capacity, sizeof *grown);
    if (grown == NULL) {
        stw_shell_fail_memory(r);
        return;
    }
    out->sources = grown;
    grown[out->n_sources++] = (stw_shell_source_file){path, r->line, is_read};
}

static void run(reader *r, const char *text, const stw_shell_word *words, size_t n) {
    stw_shell_state *s = r->state;
    stw_shell_call own = {.returned.dead = true}, *outer = r->call;
    const stw_shell_state before = *s;
    stw_shell_list list = {0};
    bool odd = false;
    for (size_t i = 2; i < n; i++) {
        stw_shell_list_add(r, &list, words[i]);
        odd = odd || !stw_shell_is_known(&words[i]);
    }
    if (n > 2) {
        s->arguments = list.items;
        s->n_arguments = list.n;
        s->script_arguments = false;
        s->odd_arguments = odd;
    }
    r->call = &own;
    r->sourced++;
    if (text[strspn(text, " \t\r\n")] == '\0') stw_shell_set_status(s, STW_SHELL_YES);
    r->execute(r, &(stw_shell_word){.text = text}, r->line);
    stw_shell_state_join(r, r->state, &own.returned);
    stw_shell_state_free(&own.returned);
    r->sourced--;
    r->call = outer;
    if (n <= 2) return;
    s->arguments = before.arguments;
    s->n_arguments = before.n_arguments;
    s->script_arguments = before.script_arguments;
    s->shifted = before.shifted;
    s->odd_arguments = before.odd_arguments;
}

/* @return the text of a file; NULL: it is none of a script */
static const char *read_file(reader *r, const char *path) {
    char *data = NULL;
    uint64_t length = 0;
    const char *text = NULL;
    if (stw_file_read(path, MOST_BYTES, &data, &length, NULL) == STW_STATUS_OK &&
        strlen(data) == length &&
        stw_value_check(path, data, (size_t)length, NULL) == STW_STATUS_OK)
        text = stw_pool_string(r->pool, data);
    free(data);
    return text;
}

void stw_shell_source(reader *r, const stw_shell_word *words, size_t n) {
    const char *name = n > 1 ? stw_shell_plain(r, words[1].text) : "";
    const char *path = n > 1 ? find(r, &words[1]) : NULL;
    const char *text = path != NULL ? read_file(r, path) : NULL;
    if (text != NULL) {
        tell(r, path, true);
        run(r, text, words, n);
        return;
    }
    if (path == NULL && is_environment(name))
        tell(r, name, false);
    else
        stw_shell_state_change_all(r, true);
    stw_shell_set_status(r->state, STW_SHELL_MAYBE);
    r->state->doubt = path == NULL && !is_environment(name);
}
