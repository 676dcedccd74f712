/* SPDX-License-Identifier: Apache-2.0 */
/* Import of a framework's settings: "FRAMEWORK:FILE" becomes a config of the model, from which the
 * templates of models/arch make its tensors, and settings of the run spec. What a file leaves open
 * has the framework's default. An import owns what it points to; one thread at a time. */
#ifndef STW_PLANNER_IMPORT_H
#define STW_PLANNER_IMPORT_H

#include "models/model.h"
#include "plan/spec/cluster.h"
#include "plan/spec/run_spec.h"
#include "planner/frameworks/import/flags.h"
#include "planner/frameworks/shell/shell.h"

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
    const char *key;  /* of the run spec, for which something was assumed; NULL: none */
} stw_import_line;

/* Settings that follow from the model's sizes; stw_import_model adds them. */
typedef struct stw_import_derived {
    bool reduce_bucket, prefetch_bucket, persistence; /* "auto" of transformers' integration */
    bool all_linear;         /* adapters beside every linear layer of a block */
    const char *products;    /* Megatron's names of those that have adapters, or all-linear; NULL */
    bool grouped_gemm;       /* of experts, if the model has any */
    uint64_t loss_tokens;    /* of a micro batch, where a kernel fuses head and loss; 0: none */
    bool wrap_embeddings;    /* embeddings that are no head, too, are a unit of FSDP2 */
    bool sees;               /* images of a model with a vision tower are assumed */
    const char *pixels_name; /* what says how large one is; NULL: nothing does */
    uint64_t pixels;         /* of the largest image; 0: not given */
    uint64_t image_tokens;   /* of the largest image; 0: as many as its pixels make */
    bool each_loads;         /* one with a vision tower is loaded by every rank on its CPU */
    bool freeze_vision, freeze_projector, freeze_language; /* of such a model */
    uint64_t layers, hidden;        /* that flags give beside the name of a model; 0: none */
    uint32_t stages, experts_ranks; /* stages balanced by parameters as AReaL does; 0: none */
} stw_import_derived;

typedef struct stw_import {
    stw_pool *pool;
    const char *path;
    int line;          /* of a word of the command that is read, FRAMEWORK:FILE:LINE; 0: any */
    bool line_is_read; /* the file is a script, of which such a command is taken */
    const char *text;  /* of the file */
    size_t text_length;
    const char *dashes; /* before the names of flags: "--" or "" */
    char *config;       /* of the model, JSON; NULL: `model` names it */
    size_t config_length;
    const char *model;   /* as the file has it; NULL if it names none */
    const char *program; /* that the file starts, "verl.trainer.main_ppo"; NULL: not read */
    size_t n_launch;
    const char *const *launch; /* words before the arguments: torchrun, its flags, the program */
    const char *const *launch_source; /* the same as words of a shell */
    size_t n_exports;
    const char *const *exports; /* NAME=word of a shell, that commands of the script see */
    size_t n_variables;
    const char *const *variables; /* NAME=word, that words of these still have */
    const char *rest;             /* "$@" where the script passes its arguments on; or NULL */
    int between;                  /* the line of such words that others stand behind; 0: none */
    const stw_shell *shell;       /* where the words of the command stand in the file; or NULL */
    stw_import_derived derived;
    uint64_t gpus;          /* of the launch; 0: not in the file */
    uint64_t nodes;         /* of them; 0: not in the file */
    const char *nodes_name; /* what says so: "trainer.nnodes"; NULL: nothing does */
    const char *scheduler;  /* that kills a node's processes when its memory runs out; NULL: none */
    double kill_share;      /* of the memory, where it does */
    const char *one_gpu;    /* why the launch can have no other number of GPUs; NULL: it can */
    uint64_t shard_gpus; /* that share a copy of all state; others hold more copies. 0: not said */
    bool replicated; /* every GPU has all state: one GPU, or DistributedDataParallel on several */
    size_t n_settings, settings_capacity;
    const char **settings;     /* KEY=VALUE of the run spec */
    const char *const *alone;  /* settings where there is one data-parallel rank, NULL at the end */
    const char *const *single; /* the same where there is one GPU */
    uint64_t global_batch;     /* sequences of an iteration; 0: one micro batch on every rank */
    bool triple; /* DeepSpeed's rule: what the file leaves out of global batch, micro batch and
                  * accumulation follows from the others and the ranks; all three must agree */
    uint64_t micro, accumulation; /* of such a file; 0: not in it */
    uint64_t step_sequences; /* of an optimizer step, on whatever GPUs: stw_import_batch deals them
                              * to ranks and micro batches; 0: not known */
    stw_flags flags;         /* of the file; those of line 0 are defaults */
    size_t n_lines, lines_capacity;
    stw_import_line *lines; /* in the order of the file, then what was assumed */
} stw_import;

/** Is this "FRAMEWORK:..." with a framework that can be imported? */
bool stw_import_is(const char *what);
/** The program and version whose defaults keys have that a file leaves out: "verl 0.9.1". */
const char *stw_import_defaults(const char *what);
/** Does the file say which model it is? */
bool stw_import_has_model(const stw_import *import);
/** Read "FRAMEWORK:FILE" or, of a script, "FRAMEWORK:FILE:LINE". BAD_INPUT: contradictions, values
 * that are no numbers, flags without which there is no model. NOT_BUILT_IN: flags of which nothing
 * that is planned would be true. *out is valid (maybe empty) in any case; free with
 * stw_import_free. */
STW_MUST_USE stw_status stw_import_read(const char *what, stw_import *out, stw_error *err);
/** The same of bytes that are in memory. @param path of the file, or PATH:LINE, for errors, names
 * and files beside it */
STW_MUST_USE stw_status stw_import_parse(const char *framework, const char *path, const char *text,
                                         size_t length, stw_import *out, stw_error *err);
void stw_import_free(stw_import *import);

/** The path with its line, as stw_import_parse takes it. NULL: out of memory */
const char *stw_import_place(const stw_import *import);
/** The model, and the settings that follow from it. The caller frees it.
 * @param model what to open in place of the one that the file names; NULL: that one, by its name in
 * the zoo. USAGE if there is neither, or both a config and `model`. */
STW_MUST_USE stw_status stw_import_model(stw_import *import, const char *model,
                                         const char *data_folder, stw_model **out, stw_error *err);
/** Number of nodes of this many GPUs that the launch has. @return 0: the file does not say */
uint32_t stw_import_nodes(const stw_import *import, uint32_t gpus);
/** Set the keys of the cluster that the launcher decides: node.host.kill_share, unless the cluster
 * has its own. */
STW_MUST_USE stw_status stw_import_cluster(const stw_import *import, stw_cluster *cluster,
                                           stw_error *err);
/** Set the keys of the run. */
STW_MUST_USE stw_status stw_import_run(const stw_import *import, stw_run_spec *run, stw_error *err);
/** Set what depends on the number of data-parallel ranks, once layout and cluster are final:
 * batch.grad_accumulation from the global batch, and import->alone. A key that the file sets and
 * that has no effect on one GPU, on one micro batch, or without parked moments or saves gets its
 * default. */
STW_MUST_USE stw_status stw_import_batch(const stw_import *import, const stw_cluster *cluster,
                                         stw_run_spec *run, stw_error *err);
/** Number of lines of a use. */
size_t stw_import_count(const stw_import *import, stw_import_use use);
/** A table of the lines for people. */
void stw_import_write(const stw_import *import, stw_text *out);

#endif
