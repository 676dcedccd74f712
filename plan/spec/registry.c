/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "plan/spec/spec_rows.h"

enum { MOST_ROWS = 192 };

/* Filled once; stw_engine_spec_register alone changes it later. */
static struct {
    const stw_engine_spec *engines[STW_MAX_ENGINES];
    stw_spec_word words[STW_MAX_ENGINES + 1]; /* of the key `engine` */
    uint32_t n_engines;
    const stw_spec_section *sections[STW_MAX_SECTIONS];
    uint32_t n_sections;
    stw_spec_row rows[MOST_ROWS];
    stw_spec_table table;
} all;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool has_section(const stw_spec_section *section) {
    for (uint32_t i = 0; i < all.n_sections; i++)
        if (all.sections[i] == section) return true;
    return false;
}

static void add_engine(const stw_engine_spec *engine) {
    uint32_t index = all.n_engines++;
    all.engines[index] = engine;
    all.words[index] = (stw_spec_word){engine->name, index, engine->instead};
    if (engine->section != NULL && !has_section(engine->section))
        all.sections[all.n_sections++] = engine->section;
}

static size_t add_rows(size_t n, const stw_spec_row *rows, size_t n_rows, size_t offset) {
    for (size_t i = 0; i < n_rows && n < MOST_ROWS; i++, n++) {
        all.rows[n] = rows[i];
        all.rows[n].offset += offset;
        if (strcmp(rows[i].key, "engine") != 0) continue;
        all.rows[n].words = all.words;
        all.rows[n].fallback = all.engines[0]->name;
    }
    return n;
}

static void make_table(void) {
    stw_spec_table common[2];
    stw_run_spec_common_rows(&common[0], &common[1]);
    size_t n = add_rows(0, common[0].rows, common[0].n_rows, 0);
    for (uint32_t i = 0; i < all.n_sections; i++)
        n = add_rows(n, all.sections[i]->rows, all.sections[i]->n_rows,
                     offsetof(stw_run_spec, sections) + i * STW_SECTION_BYTES);
    n = add_rows(n, common[1].rows, common[1].n_rows, 0);
    all.table = (stw_spec_table){all.rows, n};
}

static void add_built_in(void) {
    for (uint32_t i = 0; stw_engines_built_in[i] != NULL; i++) add_engine(stw_engines_built_in[i]);
    make_table();
}

static void need_built_in(void) { (void)pthread_once(&once, add_built_in); }

stw_status stw_engine_spec_register(const stw_engine_spec *engine, stw_error *err) {
    need_built_in();
    const stw_spec_section *section = engine->section;
    bool adds = section != NULL && !has_section(section);
    const char *why = NULL;
    if (stw_engine_spec_named(engine->name) != NULL)
        why = "its name is taken";
    else if (all.n_engines == STW_MAX_ENGINES)
        why = "there are too many engines";
    else if (adds && all.n_sections == STW_MAX_SECTIONS)
        why = "there are too many sections of keys";
    else if (adds && section->size > STW_SECTION_BYTES)
        why = "its settings are too large";
    else if (adds && all.table.n_rows + section->n_rows > MOST_ROWS)
        why = "there are too many keys";
    if (why != NULL)
        return stw_fail(err, STW_STATUS_USAGE, "engine", "%s cannot be registered: %s",
                        engine->name, why);
    add_engine(engine);
    make_table();
    return STW_STATUS_OK;
}

uint32_t stw_engine_spec_count(void) {
    need_built_in();
    return all.n_engines;
}

const stw_engine_spec *stw_engine_spec_at(uint32_t index) {
    return index < stw_engine_spec_count() ? all.engines[index] : NULL;
}

const stw_engine_spec *stw_engine_spec_named(const char *name) {
    for (uint32_t i = 0; i < stw_engine_spec_count(); i++)
        if (strcmp(all.engines[i]->name, name) == 0) return all.engines[i];
    return NULL;
}

const char *stw_engine_name(uint32_t index) {
    const stw_engine_spec *engine = stw_engine_spec_at(index);
    return engine != NULL ? engine->name : "?";
}

const stw_engine_spec *stw_run_spec_engine(const stw_run_spec *run) {
    const stw_engine_spec *engine = stw_engine_spec_at(run->engine);
    const bool inside = run->optimizer.implementation == STW_OPTIMIZER_STOWAGE;
    return inside && engine != NULL && engine->stepped != NULL ? engine->stepped : engine;
}

const char *stw_run_spec_parks(const stw_run_spec *run) {
    if (run->park.params) return "park.params";
    if (run->park.grads) return "park.grads";
    return run->park.moments ? "park.moments" : NULL;
}

void stw_engine_words(const stw_engine_spec *engine, char *out, size_t out_size) {
    snprintf(out, out_size, "%s%s%s", engine->name, engine->with != NULL ? " with " : "",
             engine->with != NULL ? engine->with : "");
}

const stw_spec_table *stw_run_spec_table(void) {
    need_built_in();
    return &all.table;
}

void stw_run_spec_settings(const stw_run_spec *run, const stw_spec_section *section, void *out) {
    memset(out, 0, section->size);
    for (uint32_t i = 0; i < all.n_sections; i++)
        if (all.sections[i] == section) memcpy(out, run->sections[i], section->size);
}

static bool is_refused(const stw_engine_spec *engine, const char *key, const char *word) {
    const stw_engine_refusal *r = engine->refuses;
    for (; r != NULL && r->key != NULL; r++)
        if (strcmp(r->key, key) == 0 && strcmp(r->word, word) == 0) return true;
    return false;
}

void stw_run_spec_accepted(const stw_run_spec *run, const char *key, const char *except, char *out,
                           size_t out_size) {
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    size_t used = 0;
    out[0] = '\0';
    for (const stw_spec_word *w = row != NULL ? row->words : NULL; w != NULL && w->word != NULL;
         w++) {
        bool other = except == NULL || strcmp(w->word, except) != 0;
        if (other && w->instead == NULL && used < out_size &&
            !is_refused(stw_run_spec_engine(run), key, w->word))
            used += (size_t)snprintf(out + used, out_size - used, "%s%s", used > 0 ? " | " : "",
                                     w->word);
    }
}

stw_status stw_run_spec_check_sections(const stw_run_spec *run, const char *origin,
                                       stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < all.n_sections && status == STW_STATUS_OK; i++)
        if (all.sections[i]->check != NULL) status = all.sections[i]->check(run, origin, err);
    return status;
}

stw_status stw_run_spec_refuse(const char *origin, stw_error *err, const char *key,
                               const char *found, const char *expected) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, origin, "%s: found %s, expected %s", key, found,
                    expected);
}

stw_status stw_run_spec_refuse_value(const stw_run_spec *run, const char *origin, stw_error *err,
                                     const char *key, const char *expected) {
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    stw_text found = STW_TEXT_INIT;
    if (row != NULL) stw_spec_write_value(row, run, &found);
    stw_status status = stw_run_spec_refuse(origin, err, key,
                                            found.data != NULL ? found.data : "nothing", expected);
    stw_text_free(&found);
    return status;
}
