/* SPDX-License-Identifier: Apache-2.0 */
/* What the writers of frameworks' settings share. */
#ifndef STW_PLANNER_EMIT_EMISSION_H
#define STW_PLANNER_EMIT_EMISSION_H

#include "plan/files/plan.h"
#include "planner/frameworks/import/flags.h"
#include "planner/frameworks/import/import.h"

typedef struct stw_emit_flag {
    const char *name, *value; /* value NULL: absent */
} stw_emit_flag;

typedef struct stw_emission {
    const stw_plan *plan;
    const stw_import *import; /* of the same framework, or NULL */
    stw_pool *pool;
    size_t n, capacity;
    stw_emit_flag *flags;
    const char *allocator; /* of the environment (stw_emit_allocator), or NULL */
    stw_text notes;        /* lines for people, such as names that a user has to give */
    stw_error *err;
    stw_status status; /* the first failure; nothing is added after it */
} stw_emission;

/* ---- the plan's settings ---- */

/** A key of the run as in YAML; NULL: auto or none. In the pool. */
const char *stw_emit_text(stw_emission *e, const char *key);
/** The same of a role. */
const char *stw_emit_role_text(stw_emission *e, uint32_t role, const char *key);
/** @return 0 where it is a word */
uint64_t stw_emit_count(stw_emission *e, const char *key);
bool stw_emit_on(stw_emission *e, const char *key);
/** Does the key have this value? */
bool stw_emit_has(stw_emission *e, const char *key, const char *value);
/** Data-parallel ranks that take different sequences. */
uint64_t stw_emit_ranks(stw_emission *e);
/** none, full or selective; of an automatic choice, what the planner took for all groups. */
const char *stw_emit_recompute(stw_emission *e);
/** recompute.method and recompute.num_layers of engine megatron: what realises the plan's choice
 * where it names no method. */
const char *stw_emit_recompute_method(stw_emission *e);
const char *stw_emit_recompute_layers(stw_emission *e);

/* ---- the framework's flags ---- */

/** Give a flag a value; NULL: the file has none. Of equal names the last one counts. */
void stw_emit_put(stw_emission *e, const char *name, const char *value);
void stw_emit_put_count(stw_emission *e, const char *name, uint64_t value);
/** The largest image of batch.image_tokens, in pixels, unless the file says so already.
 * @param usual tokens of an image where the flag is not given, or its pixels */
void stw_emit_put_pixels(stw_emission *e, const char *name, uint64_t usual_tokens,
                         uint64_t usual_pixels);
void stw_emit_put_switch(stw_emission *e, const char *name, bool value);
/** The flag of this name, or NULL. */
stw_emit_flag *stw_emit_find(stw_emission *e, const char *name);
/** The list [a, b] with another character between its items; NULL without brackets. */
const char *stw_emit_list(stw_emission *e, const char *list, const char *between);

/* ---- writers (megatron.c, deepspeed.c, rl.c, fsdp2.c, saves.c) ---- */

/** Flags of a run, for Megatron-LM and for what passes them on. */
void stw_emit_megatron(stw_emission *e);
/** Flags of the model (megatron_model.c). */
void stw_emit_megatron_model(stw_emission *e);
/** Both, where no file has the model's; checkpoints. */
void stw_emit_megatron_lm(stw_emission *e);
void stw_emit_deepspeed(stw_emission *e);
void stw_emit_ms_swift(stw_emission *e);
void stw_emit_llamafactory(stw_emission *e);
void stw_emit_verl(stw_emission *e);
/** Did the file itself, as it was, have to say the sequences of a pass for log-probabilities? One
 * that does not stays as it is, and a note says so. @param reference of the reference */
bool stw_emit_verl_lacks(const stw_emission *e, bool reference);
void stw_emit_areal(stw_emission *e);
/** A Python module with torch's calls; no such file is read back. */
void stw_emit_fsdp2(stw_emission *e, stw_text *out);
/** Checkpoints (saves.c). @param dashes names as in "save-steps", else "save_steps" */
void stw_emit_put_hf_saves(stw_emission *e, bool dashes);
void stw_emit_put_megatron_swift_saves(stw_emission *e);
void stw_emit_put_areal_saves(stw_emission *e);
void stw_emit_put_verl_saves(stw_emission *e, bool megatron);
/** The run that this module realises, whose activations are those of the plan. @param run out; free
 * with stw_run_spec_free, also on error */
STW_MUST_USE stw_status stw_emit_fsdp2_says(stw_emission *e, stw_run_spec *run, stw_error *err);

/* ---- forms of files (text.c, document.c, script.c) ---- */

/** The file of the import with other values where they changed, if it is YAML or JSON.
 * @return false: it is none; e->status: a change that cannot be made in place */
bool stw_emit_as_document(stw_emission *e, stw_text *out);

/** The value of PYTORCH_CUDA_ALLOC_CONF; NULL: the defaults. */
const char *stw_emit_allocator(stw_emission *e);
/** The file of the import with other values where they changed, if it is a launch script, all of it
 * is understood and nothing else changes.
 * @return false: nothing is written; the command is to be written anew */
bool stw_emit_as_own_script(stw_emission *e, const char *framework, stw_text *out);
/** Refuse a command that was written anew and lost or changed something else than meant
 * (e->status). */
void stw_emit_check_command(stw_emission *e, const char *framework, const stw_text *text);
/** A value as words of a shell. @param one as a single word */
void stw_emit_append_words(stw_text *out, const char *text, bool one);
/** The name of an argument as a framework's command has it. */
void stw_emit_append_name(stw_text *out, const char *framework, const char *name);
/** What the script exports under a name, as a word of a shell; or NULL. */
const char *stw_emit_exported(const stw_import *import, const char *name);
/** CUDA_DEVICE_MAX_CONNECTIONS=1 (arguments.py, validate_args): before Blackwell tensor and context
 * parallelism need one connection, and FSDP needs more. */
bool stw_emit_needs_one_connection(const stw_emission *e);
bool stw_emit_one_connection_harms(const stw_emission *e);
void stw_emit_as_arguments(const stw_emission *e, stw_text *out);
void stw_emit_as_script(const stw_emission *e, stw_text *out); /* ms-swift */
void stw_emit_as_hydra(const stw_emission *e, stw_text *out);
void stw_emit_as_json(const stw_emission *e, stw_text *out);
void stw_emit_as_yaml(const stw_emission *e, stw_text *out);

#endif
