/* SPDX-License-Identifier: Apache-2.0 */
/* Import of a framework's settings: "FRAMEWORK:FILE" becomes a config of the model, from which the
 * templates of models/arch make its tensors, and settings of the run spec. What a file leaves open
 * has the framework's default. An import owns what it points to; one thread at a time. */
#ifndef STW_PLANNER_IMPORT_H
#define STW_PLANNER_IMPORT_H

#include "models/model.h"
#include "plan/spec/cluster.h"
#include "plan/spec/run_spec.h"

typedef enum stw_import_use {
    STW_IMPORT_TAKEN,        /* into the model or the run spec */
    STW_IMPORT_ASSUMED,      /* not given, and not a default of the framework */
    STW_IMPORT_NO_EFFECT,    /* known to change neither bytes nor seconds of a step */
    STW_IMPORT_NOT_MODELLED, /* known, may change bytes or seconds, without a counterpart here */
    STW_IMPORT_UNKNOWN,
    STW_N_IMPORT_USES
} stw_import_use;

typedef struct stw_import_line {
    stw_import_use use;
    const char *flag, *value;
    const char *note; /* what became of it: "parallel.tp=2"; or "" */
} stw_import_line;

typedef struct stw_import {
    stw_pool *pool;
    const char *path;
    char *config; /* of the model, JSON */
    size_t config_length;
    size_t n_settings, settings_capacity;
    const char **settings;     /* KEY=VALUE of the run spec */
    const char *const *alone;  /* settings where there is one data-parallel rank, NULL at the end */
    const char *const *single; /* the same where there is one GPU */
    uint64_t global_batch;     /* sequences of an iteration; 0: one micro batch on every rank */
    size_t n_lines, lines_capacity;
    stw_import_line *lines; /* in the order of the file, then what was assumed */
} stw_import;

/** Is this "FRAMEWORK:..." with a framework that can be imported? */
bool stw_import_is(const char *what);
/** Read "FRAMEWORK:FILE". BAD_INPUT: contradictions, values that are no numbers, flags without
 * which there is no model. NOT_BUILT_IN: flags of which nothing that is planned would be true.
 * *out is valid (maybe empty) in any case; free with stw_import_free. */
STW_MUST_USE stw_status stw_import_read(const char *what, stw_import *out, stw_error *err);
/** The same of bytes that are in memory. @param path of the file, for errors and names */
STW_MUST_USE stw_status stw_import_parse(const char *framework, const char *path, const char *text,
                                         size_t length, stw_import *out, stw_error *err);
void stw_import_free(stw_import *import);

/** The model. The caller frees it. */
STW_MUST_USE stw_status stw_import_model(const stw_import *import, const char *data_folder,
                                         stw_model **out, stw_error *err);
/** Set the keys of the run. */
STW_MUST_USE stw_status stw_import_run(const stw_import *import, stw_run_spec *run, stw_error *err);
/** Set what depends on the number of data-parallel ranks, once layout and cluster are final:
 * batch.grad_accumulation from the global batch, and import->alone. */
STW_MUST_USE stw_status stw_import_batch(const stw_import *import, const stw_cluster *cluster,
                                         stw_run_spec *run, stw_error *err);
/** Number of lines of a use. */
size_t stw_import_count(const stw_import *import, stw_import_use use);
/** A table of the lines for people. */
void stw_import_write(const stw_import *import, stw_text *out);

#endif
