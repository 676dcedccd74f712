/* SPDX-License-Identifier: Apache-2.0 */
/* The engines that a run spec can name, and the keys that they add to it. engines/ defines the
 * built-in ones; a program may register more. The table of run.yaml's keys is put together from the
 * common rows and the sections of all registered engines. Reading is safe from any thread.
 * Register before other threads use run specs. */
#ifndef STW_PLAN_REGISTRY_H
#define STW_PLAN_REGISTRY_H

#include "plan/spec/run_spec.h"
#include "plan/spec/spec_keys.h"

#define STW_MAX_ENGINES 16

/** Keys of an engine and the settings that they fill. Sections may serve several engines. */
typedef struct stw_spec_section {
    const char *name;         /* "x": the section's keys are "x.something" */
    const stw_spec_row *rows; /* offsets are in the settings */
    size_t n_rows;
    size_t size; /* bytes of the settings, at most STW_SECTION_BYTES */
    /** Check ranges and contradictions of the settings, with any engine; may be NULL. */
    stw_status (*check)(const stw_run_spec *run, const char *origin, stw_error *err);
} stw_spec_section;

/** A word of a key that this engine refuses, although other engines accept it. */
typedef struct stw_engine_refusal {
    const char *key, *word; /* key NULL ends the list */
} stw_engine_refusal;

/** An engine's own default for a key precision.*, used if the key is not set. If precision.params
 * or precision.compute is fp16, the defaults of `fp16` are used. */
typedef struct stw_engine_default {
    const char *key, *value; /* key NULL ends the list */
} stw_engine_default;

/** The description of an engine for run specs. */
typedef struct stw_engine_spec {
    const char *name;
    const char *instead;             /* not NULL: not implemented; what to use instead */
    const stw_spec_section *section; /* keys that this engine adds, or NULL */
    /** Prefixes of keys that have an effect with this engine, but not with every engine; the list
     * ends with NULL. May be NULL. */
    const char *const *keys;
    const stw_engine_refusal *refuses;  /* or NULL */
    const stw_engine_default *defaults; /* or NULL */
    const stw_engine_default *fp16;     /* for training in fp16; NULL: the same */
    const char *trains_as; /* the engine whose forward and backward are used; NULL: its own */
    unsigned updates;      /* a bit for each stw_update that the engine supports */
    /* Who owns the process. true: Stowage, which executes the load and holds one arena in each
     * tier. false: a framework, with its own loader and caching allocators. */
    bool own_process;
    /* Who executes the optimizer step. true: Stowage, on buckets of the flat space; in a
     * framework's process, the job's program calls Stowage's optimizer. */
    bool own_step;
    /* What the forward of a wrapped module is given is cast to the dtype of computation first. */
    bool casts_inputs;
    /* The same engine with Stowage's optimizer inside, for optimizer.implementation: stowage. It is
     * registered together with this engine, under the same name. NULL: none. */
    const struct stw_engine_spec *stepped;
    const char *with; /* the setting that selects this engine beside its name; NULL: none */
    /** Refuse contradictions of a run with this engine; may be NULL. */
    stw_status (*check)(const stw_run_spec *run, const char *origin, stw_error *err);
} stw_engine_spec;

/** The built-in engines in the order of their keys in written files; NULL at the end. The first one
 * is the default. engines/ defines the list. */
extern const stw_engine_spec *const stw_engines_built_in[];

/** Add an engine. It must stay valid while the program runs. USAGE: the name is taken, the section
 * is too large, or there are too many engines, sections or keys. */
STW_MUST_USE stw_status stw_engine_spec_register(const stw_engine_spec *engine, stw_error *err);
uint32_t stw_engine_spec_count(void);
/** Engine number `index`, NULL beyond the last. */
const stw_engine_spec *stw_engine_spec_at(uint32_t index);
/** The engine of this name, or NULL. */
const stw_engine_spec *stw_engine_spec_named(const char *name);
/** Name of engine number `index`, "?" beyond the last. */
const char *stw_engine_name(uint32_t index);
/** The engine of a run: the one that the key `engine` names, or its variant with Stowage's
 * optimizer. Never NULL for a run spec that stw_run_spec_init has made. */
const stw_engine_spec *stw_run_spec_engine(const stw_run_spec *run);
/** True if Stowage's optimizer runs in a framework's process. */
static inline bool stw_engine_steps_inside(const stw_engine_spec *engine) {
    return engine->own_step && !engine->own_process;
}
/** True if Stowage writes the run's checkpoints; false if a framework does, or nobody. */
static inline bool stw_run_spec_saves_own(const stw_run_spec *run) {
    return run->checkpoint.every > 0 && stw_run_spec_engine(run)->own_step &&
           (run->checkpoint.format == STW_CHECKPOINT_AUTO ||
            run->checkpoint.format == STW_CHECKPOINT_STOWAGE);
}
/** checkpoint.copies; 0 as long as the planner has not decided it. */
static inline uint64_t stw_run_spec_copies(const stw_run_spec *run) {
    return run->checkpoint.copies_bytes == STW_AUTO_BYTES ? 0 : run->checkpoint.copies_bytes;
}
/** The first key by which a run parks state on the host; NULL: none. */
const char *stw_run_spec_parks(const stw_run_spec *run);
/** Write the engine's name, or "NAME with optimizer.implementation: stowage". */
void stw_engine_words(const stw_engine_spec *engine, char *out, size_t out_size);

/** Every key of run.yaml. */
const stw_spec_table *stw_run_spec_table(void);
/** Copy a section's settings out. An unregistered section gives zeros.
 * @param out of section->size bytes */
void stw_run_spec_settings(const stw_run_spec *run, const stw_spec_section *section, void *out);

/** The words of a key that the run's engine accepts, as "auto | gpu | host".
 * @param except a word to leave out, or NULL */
void stw_run_spec_accepted(const stw_run_spec *run, const char *key, const char *except, char *out,
                           size_t out_size);

/** Every key of an item of run.roles. */
const stw_spec_table *stw_role_table(void);
/** Check run.roles: names, kinds, and keys that have no effect on a role of its kind.
 * (roles_check.c) */
STW_MUST_USE stw_status stw_run_spec_check_roles(const stw_run_spec *run, const char *origin,
                                                 stw_error *err);
/** Call every registered section's check. */
STW_MUST_USE stw_status stw_run_spec_check_sections(const stw_run_spec *run, const char *origin,
                                                    stw_error *err);
/** BAD_INPUT "key: found ..., expected ...", for checks. */
stw_status stw_run_spec_refuse(const char *origin, stw_error *err, const char *key,
                               const char *found, const char *expected);
/** The same; `found` is the run's value of the key. */
stw_status stw_run_spec_refuse_value(const stw_run_spec *run, const char *origin, stw_error *err,
                                     const char *key, const char *expected);

#endif
