/* SPDX-License-Identifier: Apache-2.0 */
/* A vision tower of transformers beside its decoder, as torch's allocator sees it: pixels, patches
 * and their positions, mergers, and how the decoder's input and its first layers take their
 * outputs. The tower's blocks are blocks of the decoder (engines/decoder.h), which calls this. */
#ifndef STW_ENGINES_TOWER_H
#define STW_ENGINES_TOWER_H

#include "blocks/trace.h"

typedef struct stw_tower {
    stw_builder *b;
    const stw_job *job;
    bool runs; /* the model has one, and there are images */
    bool no_grad;
    bool again;                  /* checkpoints do blocks of it again */
    uint32_t embed, merger;      /* blocks */
    uint32_t first, last, layer; /* its first and last transformer block; the decoder's first */
    uint32_t taps;               /* mergers of deepstack: the first one's block */
    uint32_t n_taps;
    stw_calls *calls[2];   /* of the merger, of one of deepstack */
    stw_kept *kept;        /* [n_taps + 1] of mergers, that of the last one last */
    uint32_t *grads;       /* [model.n_tensors] */
    stw_trace_hooks hooks; /* of gradients alone */
    bool is_hooked;
    uint32_t *features; /* [n_taps + 1] outputs of mergers, then their gradients */
    uint32_t pixels, index, weights, positions, tables[2], casts[2], joined;
    uint32_t text;   /* output of the decoder's embedding, then its gradient */
    uint32_t before; /* a layer's output, which stays until the next layer has run */
} stw_tower;

/** Is it known tensor by tensor: is it Qwen3-VL's? True where there is none, false where it has no
 * images. */
bool stw_tower_is_known(const stw_job *job);
/** @param grads [model.n_tensors] kept
 * @param hooks of them that of gradients is called; NULL: gradients are tensors
 * @param again blocks of the tower are recomputed
 * @return false: out of memory */
bool stw_tower_begin(stw_tower *t, stw_builder *b, uint32_t *grads, const stw_trace_hooks *hooks,
                     bool no_grad, bool again);

static inline bool stw_tower_has(const stw_tower *t, uint32_t block) {
    return t->runs && block >= t->first && block <= t->last;
}
/** Is a block's output kept by a merger, too? */
bool stw_tower_is_tapped(const stw_tower *t, uint32_t block);

/* ---- forward ---- */

/** The model is called: pixels are cast. */
void stw_tower_begin_forward(stw_tower *t);
/** @param text the output of the decoder's embedding
 * @return the input of the tower's first block */
uint32_t stw_tower_embed(stw_tower *t, uint32_t text);
/** A block of it is called, and it has returned. */
void stw_tower_enter(stw_tower *t);
void stw_tower_leave(stw_tower *t);
/** After a block of the tower, or a layer of the decoder.
 * @param hidden its output: the merger of deepstack reads it, or its tokens of images change
 * @return what the next one gets */
uint32_t stw_tower_after(stw_tower *t, uint32_t block, uint32_t hidden);
/** After the last block. @return the input of the decoder's first layer */
uint32_t stw_tower_merge(stw_tower *t, uint32_t hidden);
/** The decoder has returned, and the model has. */
void stw_tower_end_decoder(stw_tower *t);
void stw_tower_end_forward(stw_tower *t);

/* ---- backward ---- */

/** Before the backward of a block of the tower, or of a layer of the decoder.
 * @param grad of its output, as the next one has left it
 * @return the same */
uint32_t stw_tower_before_backward(stw_tower *t, uint32_t block, uint32_t grad);
/** After that of the first block. @return the gradient of the decoder's embedding */
uint32_t stw_tower_embed_backward(stw_tower *t, uint32_t grad);

#endif
