/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM at d98e8a6, megatron/core, transformer_impl local, as torch 2.11 executes it:
 * - torch's fused rms_norm; tensor_parallel/layers.py,
 *   LinearWithGradAccumulationAndAsyncCommunication, without fusion of gradient accumulation: the
 *   gradient of a weight is added to the main gradient when the function has returned
 *   (distributed_data_parallel.py, _make_backward_post_hook); with sequence parallelism its input's
 *   gradient is reduce-scattered into a new tensor; tensor_parallel/mappings.py.
 * - models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_bshd: the last cat() copies, and
 *   the empty rest that it takes has a gradient of zeros.
 * - fusions/fused_bias_swiglu.py; tensor_parallel/cross_entropy.py: the softmax lies where the fp32
 *   logits were, and so does their gradient. fusions/fused_cross_entropy.py makes it apart.
 * - transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher: rows are permuted, sent and
 *   sorted by expert, and so is what comes back, forward and backward. */
#include "engines/megatron/functions.h"

#include "blocks/steps.h"

/* clang-format off */

enum { O = STW_LOCAL_OUT, I = STW_LOCAL_IN, W = STW_LOCAL_WEIGHT };

enum { ROOT = FIRST, TO_X };

static const stw_call_step norm_forward[] = {
    TAKE(OUT, O), TAKE(ROOT, STW_LOCAL_ROOT), LEAVE(ROOT), END};
static const stw_call_step norm_backward[] = {
    TAKE(TO_X, O), DROP(GRAD), RELEASE(0), DROP(ROOT), ADD(TO_X, 0), END};

enum { TO_INPUT = FIRST, OWN, WEIGHT };

static const stw_call_step make_out[] = {TAKE(OUT, O), END};
static const stw_call_step product_backward[] = {
    TAKE(TO_INPUT, I), TAKE(WEIGHT, W), DROP(GRAD), RELEASE(0), DROP(WEIGHT), ADD(TO_INPUT, 0),
    END};
static const stw_call_step gathered_backward[] = {
    TAKE(TO_INPUT, I), TAKE(OWN, STW_LOCAL_OWN), TAKE(WEIGHT, W), DROP(TO_INPUT), DROP(GRAD),
    RELEASE(0), DROP(WEIGHT), ADD(OWN, 0), END};
static const stw_call_step tied_backward[] = {
    TAKE(TO_INPUT, I), TAKE(WEIGHT, W), DROP(GRAD), RELEASE(0), ADD(TO_INPUT, 0), END};

/* Rows of all ranks of tensor parallelism; an activation, too, whose input is read. */
static const stw_call_step make_in_backward[] = {
    TAKE(TO_INPUT, I), DROP(GRAD), RELEASE(0), ADD(TO_INPUT, 0), END};
static const stw_call_step scatter_backward[] = {
    TAKE(TO_INPUT, I), DROP(GRAD), ADD(TO_INPUT, 0), END};
static const stw_call_step view_backward[] = {ADD(GRAD, 0), END};

enum { COSINE = FIRST, SINE, STRAIGHT, NEGATIVE, TURNED, SINES, SUM, ZEROS };

static const stw_call_step rotary_forward[] = {
    TAKE(COSINE, STW_LOCAL_TABLE), TAKE(SINE, STW_LOCAL_TABLE), TAKE(STRAIGHT, O),
    TAKE(NEGATIVE, STW_LOCAL_HALF), TAKE(TURNED, O), DROP(NEGATIVE), TAKE(SINES, O), DROP(TURNED),
    TAKE(SUM, O), DROP(STRAIGHT), DROP(SINES), TAKE(OUT, O), DROP(SUM), LEAVE(COSINE), LEAVE(SINE),
    END};
static const stw_call_step rotary_backward[] = {
    TAKE(SINES, O), DROP(SINE), TAKE(NEGATIVE, STW_LOCAL_HALF), TAKE(TURNED, O), DROP(NEGATIVE),
    DROP(SINES), TAKE(STRAIGHT, O), DROP(GRAD), DROP(COSINE), DROP(STRAIGHT), TAKE(ZEROS, O),
    DROP(ZEROS), ADD(TURNED, 0), END};

enum { LSE = FIRST, TO_Q, TO_K, TO_V, WORK };

static const stw_call_step attention_forward[] = {
    TAKE(OUT, STW_ATTENTION_OUT), TAKE(LSE, STW_ATTENTION_ROW), LEAVE(LSE), END};
static const stw_call_step attention_backward[] = {
    TAKE(TO_Q, STW_ATTENTION_Q), TAKE(TO_K, STW_ATTENTION_K), TAKE(TO_V, STW_ATTENTION_V),
    TAKE(WORK, STW_ATTENTION_WORK), DROP(WORK), DROP(GRAD), RELEASE(0), RELEASE(1), RELEASE(2),
    DROP(LSE), {STW_STEP_RELEASE_OUT, 0, 0, 0, 0}, ADD(TO_Q, 0), ADD(TO_K, 1), ADD(TO_V, 2), END};

enum { ROUTER = FIRST, PERMUTED, ARRIVED, SORTED, FIRST_OUT, ACTIVE, DOWN, UNSORTED, BACK,
       TO_BACK, TO_UNSORTED, TO_DOWN, TO_ACTIVE, TO_FIRST, TO_SORTED, TO_ARRIVED, TO_PERMUTED,
       TO_HIDDEN, MATRIX };
enum { S = STW_LOCAL_SENT, R = STW_LOCAL_ROWS, F = STW_LOCAL_FIRST, A = STW_LOCAL_ACTIVE };

static const stw_call_step experts_forward[] = {
    TAKE(ROUTER, STW_LOCAL_ROUTER), TAKE(PERMUTED, S), TAKE(ARRIVED, R), DROP(PERMUTED),
    TAKE(SORTED, R), DROP(ARRIVED), TAKE(FIRST_OUT, F), TAKE(ACTIVE, A), TAKE(DOWN, R),
    TAKE(UNSORTED, R), TAKE(BACK, S), DROP(DOWN), DROP(UNSORTED), TAKE(OUT, O), DROP(BACK),
    LEAVE(ROUTER), LEAVE(SORTED), LEAVE(FIRST_OUT), LEAVE(ACTIVE), END};
static const stw_call_step experts_backward[] = {
    TAKE(TO_BACK, S), DROP(GRAD), TAKE(TO_UNSORTED, R), DROP(TO_BACK), TAKE(TO_DOWN, R),
    DROP(TO_UNSORTED), TAKE(TO_ACTIVE, A), TAKE(MATRIX, STW_LOCAL_MATRIX), DROP(TO_DOWN),
    DROP(ACTIVE), DROP(MATRIX), TAKE(TO_FIRST, F), DROP(TO_ACTIVE), DROP(FIRST_OUT),
    TAKE(TO_SORTED, R), TAKE(MATRIX, STW_LOCAL_MATRIX), DROP(TO_FIRST), DROP(SORTED), DROP(MATRIX),
    TAKE(TO_ARRIVED, R), DROP(TO_SORTED), TAKE(TO_PERMUTED, S), DROP(TO_ARRIVED),
    TAKE(TO_HIDDEN, O), DROP(TO_PERMUTED), DROP(ROUTER), RELEASE(0), ADD(TO_HIDDEN, 0), END};

static const stw_call_step pass_backward[] = {DO(STW_STEP_PASS), END};

enum { WIDE = FIRST, SOFTMAX, NARROW };

static const stw_call_step loss_forward[] = {TAKE(WIDE, STW_LOCAL_WIDE), TAKE(OUT, O), END};
static const stw_call_step fused_loss_forward[] = {
    TAKE(SOFTMAX, STW_LOCAL_WIDE), TAKE(WIDE, STW_LOCAL_WIDE), DROP(SOFTMAX), TAKE(OUT, O), END};
static const stw_call_step loss_backward[] = {
    DROP(GRAD), TAKE(NARROW, I), DROP(WIDE), ADD(NARROW, 0), END};

const stw_function stw_functions_local[STW_LOCAL_N] = {
    [STW_LOCAL_NORM] = {norm_forward, norm_backward, .reads = 1},
    [STW_LOCAL_PRODUCT] = {make_out, product_backward, .reads = 1},
    [STW_LOCAL_GATHERED] = {make_out, gathered_backward, .reads = 1},
    [STW_LOCAL_TIED_PRODUCT] = {make_out, tied_backward, .reads = 1},
    [STW_LOCAL_SCATTER] = {make_out, scatter_backward},
    [STW_LOCAL_COPY] = {make_out, view_backward},
    [STW_LOCAL_ROTARY] = {rotary_forward, rotary_backward},
    [STW_LOCAL_ATTENTION] = {attention_forward, attention_backward, .reads = 7, .reads_out = true},
    [STW_LOCAL_ACTIVATION] = {make_out, make_in_backward, .reads = 1},
    [STW_LOCAL_EXPERTS] = {experts_forward, experts_backward, .reads = 1},
    [STW_LOCAL_SUM] = {make_out, pass_backward},
    [STW_LOCAL_LOSS] = {loss_forward, loss_backward},
    [STW_LOCAL_FUSED_LOSS] = {fused_loss_forward, loss_backward},
};
