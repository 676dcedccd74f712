/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of keys. One table per spec serves to read and write YAML and JSON, to set defaults and
 * `--set` values, to find the nearest known key, and to refuse values that are not implemented. A
 * row describes one key and the member of the spec's struct that holds its value. Rows of one map
 * ("optimizer.kind", "optimizer.lr") are adjacent; the table's order is the written order. Tables
 * are constant; any thread may use them. */
#ifndef STW_PLAN_SPEC_KEYS_H
#define STW_PLAN_SPEC_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "core/pool.h"
#include "core/status.h"
#include "core/text.h"
#include "core/tree.h"
#include "core/units.h"

#define STW_SPEC_MAX_ITEMS 64 /* roles */

typedef enum stw_spec_kind {
    STW_SPEC_WORDS,   /* one of `words`; bool, 32-bit or 64-bit, or stored nowhere (size 0) */
    STW_SPEC_BOOL,    /* bool */
    STW_SPEC_COUNT,   /* uint32_t or uint64_t, whole */
    STW_SPEC_BYTES,   /* uint64_t */
    STW_SPEC_NUMBER,  /* double in `unit` */
    STW_SPEC_PAIR,    /* two neighbouring doubles, written as a list */
    STW_SPEC_TEXT,    /* char[size] */
    STW_SPEC_STRING,  /* const char * into the pool; a word stands for NULL */
    STW_SPEC_STRINGS, /* a stw_strings, its items in the pool */
    STW_SPEC_FLAGS,   /* a list of words; word i is the bool at offset + words[i].value */
    STW_SPEC_MAP,     /* a map that one word switches off (uint32_t 0); its rows follow */
    STW_SPEC_ITEMS    /* a list of maps with the keys of `items->table` */
} stw_spec_kind;

/** A word that stands for a value ("auto", "none"); other values may be numbers. */
typedef struct stw_spec_word {
    const char *word;    /* NULL ends the list */
    uint64_t value;      /* converted if the member is a double */
    const char *instead; /* not NULL: not implemented; what to use instead */
} stw_spec_word;

/* X(name, why a key has no effect, a setting that gives it an effect or NULL). Conditions of
 * effect. A key that always has an effect needs none. plan/job/effect.c tests them. */
#define STW_NEED_TABLE(X)                                                                          \
    X(OWN, "the job is a framework's, whose program loads weights, sets rates and has the CPUs",   \
      "engine: stowage")                                                                           \
    X(STEP, "the engine's framework executes the optimizer step", "engine: stowage")               \
    X(HIDES, "what follows a step is no forward that trains, but log-probabilities or a rollout",  \
      NULL)                                                                                        \
    X(CLIP, "no gradient norm is computed", "optimizer.clip_norm: 1 and engine: stowage")          \
    X(BF16_GRADS, "gradients are not bf16", "precision.grads: bf16")                               \
    X(FORWARD, "forward and backward of a list of tensors are unknown", "a config.json as model")  \
    X(ENCODER, "the model has no encoder beside its decoder", NULL)                                \
    X(VISION, "the model has no vision tower", NULL)                                               \
    X(EXPERTS, "the model has no routed experts", NULL)                                            \
    X(RANKS, "there is one rank", "node.gpus or nodes: 2 or more")                                 \
    X(SHARDS, "gradients are not reduced over ranks", "node.gpus or nodes: 2 or more")             \
    X(GATHERS, "parameters are used in place: one rank, one dtype", "parallel.dp_shard above 1")   \
    X(NODES, "there is one node", "nodes: 2 or more")                                              \
    X(PEERS, "a node has one GPU", "node.gpus: 2 or more")                                         \
    X(TP, "parallel.tp is 1", "parallel.tp: 2 or more")                                            \
    X(NVME, "no state can lie on NVMe", "engine: stowage and node.nvme.capacity above 0")          \
    X(STORES, "neither state nor kept checkpoints lie on NVMe",                                    \
      "engine: stowage or checkpoint.keep")                                                        \
    X(WRITES, "nothing is written to NVMe",                                                        \
      "checkpoint.every, or engine: stowage and node.nvme.capacity above 0")                       \
    X(COMMITS, "the engine writes state on NVMe in place", "engine: stowage")                      \
    X(FILES, "no weights are read from disk", "load.weights")                                      \
    X(CACHED, "files are read from disk", "load.page_cached: true")                                \
    X(FOREIGN, "load and optimizer step are Stowage's, piece by piece", NULL)                      \
    X(CPU_STEP, "nothing is updated on the CPU", "optimizer.implementation: cpu")                  \
    X(OWN_KERNELS, "the framework's own code updates on the CPU", "engine: stowage")               \
    X(CALLS, "the engine's programs have no calls and no pageable copies", NULL)                   \
    X(ISSUES, "the engine's programs have no calls", NULL)                                         \
    X(RATE, "no such optimizer works on the CPU", NULL)                                            \
    X(ACCUMULATES, "a step has one micro batch", "batch.grad_accumulation: 2 or more")             \
    X(CACHES, "the engine has one arena and no caching allocator", NULL)                           \
    X(DIRECT, "no update is direct", "optimizer.implementation: direct")                           \
    X(RINGS, "no admissible update streams through a ring", "optimizer.implementation: streamed")  \
    X(UNTIED, "the model has no embedding apart from its head", NULL)                              \
    X(FUSED, "the loss is of all tokens at once", "loss.fused: true")                              \
    X(LOG_PROB, "there is no pass for log-probabilities", "batch.log_prob_micro_batch")            \
    X(CHUNKS, "the tokens of a micro batch are one chunk", "a smaller loss.chunk")                 \
    X(SYNCS, "no rollout takes the trainer's weights", "a role of kind rollout")                   \
    X(CHECKPOINTS, "no checkpoint is written", "checkpoint.every: 1 or more")                      \
    X(OWN_SAVES, "the framework writes the checkpoints", "checkpoint.format: stowage")             \
    X(FOREIGN_SAVES, "Stowage always writes beside training", NULL)                                \
    X(PARKED_PARAMS, "parameters are not parked", "park.params: host")                             \
    X(PARKED_MOMENTS, "moments are not parked", "park.moments: host")                              \
    X(STORE, "a node has no object store", "node.host.object_store")                               \
    X(PLANS, "plans do not use it; calibrate records it", NULL)

#define X(name, why, instead) STW_NEED_##name,
typedef enum stw_need { STW_NEED_TABLE(X) STW_N_NEEDS } stw_need;
#undef X

struct stw_spec_items;

typedef struct stw_spec_row {
    const char *key; /* dotted, "optimizer.kind" */
    stw_spec_kind kind;
    stw_unit unit;
    size_t offset, size;        /* the member in its struct */
    const stw_spec_word *words; /* may be NULL */
    const struct stw_spec_items *items;
    const char *fallback; /* the default, as `--set` takes it */
    const char *instead; /* not NULL: only the default is implemented; what to use instead, or "" */
    const char *note;    /* the comment in written YAML; NULL: the words, if any */
    /* Bounds of a count, size or number in base units; most 0: none. Words are outside them. */
    double least, most;
    bool zero;        /* 0 is accepted below `least` */
    bool shared;      /* a part of a node has its GPUs' share of it (stw_cluster_part) */
    uint64_t needs;   /* a bit for each stw_need */
    uint32_t search;  /* not 0: `auto` is accepted, and sets this bit of stw_searches */
    bool label;       /* only for reports; changes neither bytes nor seconds */
    const char *also; /* names in other programs, for hints only; separated by spaces */
} stw_spec_row;

typedef struct stw_spec_table {
    const stw_spec_row *rows;
    size_t n_rows;
} stw_spec_table;

typedef struct stw_spec_items {
    const stw_spec_table *table;
    size_t item_size;
    size_t count_offset; /* offset of the uint32_t item count; the row's offset is the array's */
} stw_spec_items;

/** Keys whose value the planner chooses, as bits of stw_spec_row.search. The members keep the
 * values they had before `auto`, or the defaults. */
typedef struct stw_searches {
    uint32_t keys;  /* set to `auto` */
    uint32_t given; /* set to a value */
} stw_searches;

/** A spec's struct with its table. */
typedef struct stw_spec {
    const stw_spec_table *table;
    void *base;
    stw_pool *pool;         /* for strings and lists; NULL if the table has none */
    stw_searches *searches; /* NULL: a row's `search` has no effect */
} stw_spec;

/** Set every row to its default. */
STW_MUST_USE stw_status stw_spec_defaults(const stw_spec *spec, stw_error *err);
/** Read an object over the present values. BAD_INPUT names file, line, what was found and what was
 * expected; for an unknown key, the nearest known one. */
STW_MUST_USE stw_status stw_spec_read(const stw_spec *spec, const stw_tree *tree,
                                      const stw_node *node, stw_error *err);
/** Set one key. "roles.0.name" sets a key of an item; index n of n items appends one. Lists and
 * maps are written as in YAML. @param origin for errors, such as "--set" */
STW_MUST_USE stw_status stw_spec_set(const stw_spec *spec, const char *key, const char *value,
                                     const char *origin, stw_error *err);
/** True if this dotted key is a row or a map of the table, or a key of a list item. */
bool stw_spec_has_key(const stw_spec_table *table, const char *key);
/** Find the keys that a wrong dotted key may mean. The order is: the same name in another map,
 * names in other programs, longer and shorter names. If there are none, the key with the most
 * similar spelling.
 * @return number of keys in `out` [most]; 0: none is near */
size_t stw_spec_near(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                     const char **out, size_t most);
/** The same without keys that are only spelt alike. */
size_t stw_spec_meant(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                      const char **out, size_t most);
/** Write "; did you mean "a" or "b"?", or "" without keys. 320 bytes always suffice for four of
 * them. */
void stw_spec_hint(const char *prefix, const char *const *keys, size_t n, char *out,
                   size_t out_size);
#define STW_SPEC_MOST_NEAR 4

/** Append all members to the open JSON object, in base units. */
void stw_spec_write_json(const stw_spec_table *table, const void *base, stw_json *json);
/** Append the whole spec as YAML with units and comments. */
void stw_spec_write_yaml(const stw_spec_table *table, const void *base, stw_text *out);
/** Append one value as in YAML ("16 MiB", "auto", "[model, optimizer]"). */
void stw_spec_write_value(const stw_spec_row *row, const void *base, stw_text *out);

/** NOT_BUILT_IN for the first value that is not implemented; names key, value and what to use
 * instead. @param defaults a struct of the same type that holds the defaults */
STW_MUST_USE stw_status stw_spec_check_effect(const stw_spec_table *table, const void *base,
                                              const void *defaults, const char *origin,
                                              stw_error *err);

/** Find the first row whose key begins with `prefix` and whose value is not the default; *out is
 * NULL if there is none. */
STW_MUST_USE stw_status stw_spec_first_changed(const stw_spec_table *table, const char *prefix,
                                               const void *base, const void *defaults,
                                               const stw_spec_row **out, stw_error *err);

/* The table of cluster.yaml. */
const stw_spec_table *stw_cluster_table(void); /* stw_cluster */

/* Shared by the parts of this module. */
const stw_spec_row *stw_spec_find(const stw_spec_table *table, const char *key, size_t length);
/** True if `key` is the name of a map, so that rows "key.something" exist. The empty key is the
 * root. */
bool stw_spec_is_map(const stw_spec_table *table, const char *key, size_t length);
/** The value of a word row, a bool or a count, widened. */
uint64_t stw_spec_get_u64(const stw_spec_row *row, const void *base);
double stw_spec_get_double(const stw_spec_row *row, const void *base);
/** The word that the row's value is spelt as, or NULL. */
const stw_spec_word *stw_spec_word_of(const stw_spec_row *row, const void *base);

#endif
