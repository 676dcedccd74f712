/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a run trains: all of them, all except those of trainable.freeze, or only the
 * adapters of trainable.lora, which become tensors of the model beside the frozen ones. */
#ifndef STW_PLAN_JOB_TRAINABLE_H
#define STW_PLAN_JOB_TRAINABLE_H

#include "models/model.h"
#include "plan/job/engine.h"
#include "plan/spec/run_spec.h"

/** The target that names all linear layers of the language model's blocks. */
#define STW_ALL_LINEAR "all-linear"

typedef struct stw_trainable {
    const stw_model *model; /* the given model, or a copy with adapters in the pool */
    bool *frozen;           /* [model->n_tensors]; NULL: nothing is frozen */
} stw_trainable;

/** For each product `X.weight` of [out, in] elements that a target names, LoRA adds `X.lora_A` of
 * [rank, in] and `X.lora_B` of [out, rank] elements to its block (PEFT, peft/tuners/lora/layer.py).
 * A target is the last part of X, a shell pattern of X, or STW_ALL_LINEAR. If the engine merges
 * tensors into one product, they share lora_A, and a target names all of them. Tensors of experts
 * have one adapter for each expert. BAD_INPUT if a pattern matches nothing, or if nothing is left
 * to train. */
STW_MUST_USE stw_status stw_trainable_new(const stw_model *model, const stw_run_spec *run,
                                          const stw_engine *engine, stw_pool *pool,
                                          stw_trainable *out, stw_error *err);

#endif
