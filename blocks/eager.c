/* SPDX-License-Identifier: Apache-2.0 */
/* The order is that of transformers' eager decoder (5.23, models/qwen3/modeling_qwen3.py and
 * models/qwen3_moe, integrations/moe.py: grouped_mm) and of autograd's backward of it, operation by
 * operation: a tensor is taken when the operation that makes it runs, and dropped when the last
 * reference to it goes, which for a local variable of forward is the end of its function.
 * Attention is the flash kernel (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
 * mha_fwd and mha_bwd; its backward as cudnn/MHA.cpp, run_cudnn_SDP_bprop, has it: dq, dk, dv, and
 * room for the sums of rows, dq in fp32, and dk and dv of all query heads where there are fewer key
 * heads). Adapters: peft/tuners/lora/layer.py, Linear.forward: base(x) + B(A(x)) * scale.
 * Latent attention, and experts beside it: transformers 5.17, models/deepseek_v2,
 * models/deepseek_v3.
 *
 * A node of the graph drops its input first, and what it saved when it has run
 * (torch/csrc/autograd/ engine.cpp, evaluate_function; release_variables). Under torch's checkpoint
 * it holds nothing itself, and what it unpacked goes as it returns (torch/utils/checkpoint.py,
 * _checkpoint_hook). torch/utils/checkpoint.py recomputes up to the last tensor that is saved. */
#include <stddef.h>

#include "blocks/steps.h"

/* clang-format off */

/* ---- norms: the input in fp32, reciprocal roots, the normalised input ---- */

enum { WIDE = FIRST, ROOT, NORMED, SQUARES, MEAN, SUM, WHOLE,
       SCALED, WEIGHTED, UP, TO_ROOT, DIRECT, CUBE, HALF, REST, POWER, TWICE, THROUGH, TO_X };
enum { W = STW_NORM_WIDE, N = STW_NORM_NARROW, R = STW_NORM_ROW };

static const stw_call_step norm_forward[] = {
    TAKE(WIDE, W), TAKE(SQUARES, W), TAKE(MEAN, R), DROP(SQUARES), TAKE(SUM, R), TAKE(ROOT, R),
    DROP(SUM), TAKE(WHOLE, W), LEAVE(ROOT), LEAVE(WIDE), TAKE(NORMED, N), TAKE(OUT, N),
    LEAVE_FACTOR(NORMED), DROP(WHOLE), DROP(MEAN), END};

/* From the gradient of the normalised input on. THROUGH is added to DIRECT in place
 * (input_buffer.cpp, accumulate). */
#define THROUGH_ROOT                                                                               \
    TAKE(TO_ROOT, W), TAKE(DIRECT, W), TAKE(SUM, R), DROP(TO_ROOT), DROP(UP), TAKE(CUBE, R),       \
    TAKE(HALF, R), TAKE(REST, R), DROP(HALF), DROP(CUBE), GO(SUM, ROOT), TAKE(MEAN, W),            \
    DROP(REST), TAKE(POWER, W), TAKE(TWICE, W), TAKE(THROUGH, W), DROP(TWICE), DROP(POWER),        \
    GO(MEAN, WIDE), RELEASE(0), DROP(THROUGH), TAKE(TO_X, N), DROP(DIRECT), ADD(TO_X, 0)

static const stw_call_step norm_backward[] = {
    TAKE(SCALED, N), TAKE_IF(STW_IF_TRAINED, 0, WEIGHTED, N), DROP_IF(AGAIN, NORMED),
    GRAD_IF(STW_IF_TRAINED, 0), SUM_IF(STW_IF_TRAINED, 0, R), DROP(WEIGHTED), DROP(GRAD),
    DROP(NORMED),
    TAKE(UP, W), DROP(SCALED), THROUGH_ROOT, END};

/* Gemma's (models/gemma3/modeling_gemma3.py, Gemma3RMSNorm): 1 + weight is made in fp32, and what
 * it multiplies is. As the last call of a block, its backward begins with a copy in fp32, which
 * needs nothing of forward. */
enum { FACTOR = MEAN, WEIGHT = HALF };
enum { F = STW_NORM_WEIGHT };

static const stw_call_step wide_norm_forward[] = {
    TAKE(WIDE, W), TAKE(SQUARES, W), TAKE(MEAN, R), DROP(SQUARES), TAKE(SUM, R), DROP(MEAN),
    TAKE(ROOT, R), DROP(SUM), TAKE(NORMED, W), LEAVE(ROOT), LEAVE(WIDE),
    TAKE(WEIGHT, F), TAKE(FACTOR, F), DROP(WEIGHT), STOP, TAKE(WHOLE, W), LEAVE(FACTOR),
    LEAVE_FACTOR(NORMED), TAKE(OUT, N), DROP(WHOLE), END};

static const stw_call_step wide_norm_backward[] = {
    NEED(KNOWN, W), DROP(GRAD), TAKE_IF(STW_IF_TRAINED, 0, WEIGHTED, W), TAKE(UP, W),
    DROP_IF(AGAIN, NORMED), DROP_IF(AGAIN, FACTOR), TAKE_IF(STW_IF_TRAINED, 0, WEIGHT, F),
    SUM_IF(STW_IF_TRAINED, 0, R), DROP(WEIGHTED), DROP(KNOWN), DROP(FACTOR), DROP(NORMED),
    GRAD_IF(STW_IF_TRAINED, 0), DROP(WEIGHT),
    THROUGH_ROOT, END};

/* Times an activated gate, both in fp32 (models/qwen3_5/modeling_qwen3_5.py,
 * Qwen3_5RMSNormGated). */
enum { GATE_WIDE = TO_X + 1, GATE_ACTIVE, BY_WEIGHT, TO_OPEN, TO_NORMED, TO_Z };

static const stw_call_step gated_norm_forward[] = {
    TAKE(WIDE, W), TAKE(SQUARES, W), TAKE(MEAN, R), DROP(SQUARES), TAKE(SUM, R), TAKE(ROOT, R),
    DROP(SUM), TAKE(WHOLE, W), TAKE(NORMED, N), TAKE(BY_WEIGHT, N), DROP(WHOLE), TAKE(GATE_WIDE, W),
    TAKE(GATE_ACTIVE, W), TAKE(WEIGHTED, W), TAKE(OUT, N), DROP(WEIGHTED), DROP(MEAN), LEAVE(WIDE),
    LEAVE(ROOT), LEAVE_FACTOR(NORMED), LEAVE(BY_WEIGHT), LEAVE(GATE_WIDE), LEAVE(GATE_ACTIVE), END};

static const stw_call_step gated_norm_backward[] = {
    TAKE(UP, W), DROP(GRAD), TAKE(TO_OPEN, W), TAKE(SCALED, W), TAKE(TO_NORMED, N), DROP(SCALED),
    DROP(UP), DROP(GATE_ACTIVE), DROP(BY_WEIGHT), TAKE(UP, W), GO(TO_OPEN, GATE_WIDE),
    TAKE(TO_Z, N), DROP(UP), ADD(TO_Z, 1),
    TAKE(SCALED, N), TAKE_IF(STW_IF_TRAINED, 0, WEIGHTED, N), GRAD_IF(STW_IF_TRAINED, 0),
    SUM_IF(STW_IF_TRAINED, 0, R), DROP(WEIGHTED), GO(TO_NORMED, NORMED), TAKE(UP, W), DROP(SCALED),
    THROUGH_ROOT, END};

/* aten/src/ATen/native/cuda/layer_norm_kernel.cu: the input as it is, an fp32 mean and root. */
static const stw_call_step layer_norm_forward[] = {
    TAKE(OUT, N), TAKE(MEAN, R), TAKE(ROOT, R), LEAVE(MEAN), LEAVE(ROOT), END};

static const stw_call_step layer_norm_backward[] = {
    TAKE(TO_X, N), GRAD_IF(STW_IF_TRAINED, 0), GRAD_IF(STW_IF_BIASED, 1), RELEASE_IF(AGAIN, 0, 0),
    DROP_IF(AGAIN, MEAN), DROP_IF(AGAIN, ROOT), DROP(GRAD), RELEASE_IF(0, AGAIN, 0), DROP(MEAN),
    DROP(ROOT), ADD(TO_X, 0), END};

/* ---- products ---- */

enum { ROWS = FIRST, TO_INPUT, LOW, BASE, HIGH, PART, TO_LOW };
enum { TOKENS = 0, O = STW_PRODUCT_OUT, I = STW_PRODUCT_IN, K = STW_PRODUCT_RANK };

static const stw_call_step product_forward[] = {STOP, TAKE(OUT, O), END};

/* With a bias the input's gradient comes first (AddmmBackward0 against MmBackward0), and the bias
 * has one, too. */
static const stw_call_step product_backward[] = {
    TAKE_IF(STW_IF_HEADS, 0, ROWS, O), DROP_IF(STW_IF_HEADS, GRAD),
    TAKE_IF(STW_IF_BIASED, STW_IF_CONSTANT, TO_INPUT, I), GRAD_IF(STW_IF_TRAINED, 0),
    TAKE_IF(0, STW_IF_BIASED | STW_IF_CONSTANT, TO_INPUT, I),
    GRAD_IF(STW_IF_BIASED, 1), SUM_IF(STW_IF_BIASED, 1, TOKENS),
    RELEASE_IF(AGAIN, 0, 0), DROP(GRAD), DROP(ROWS), RELEASE_IF(0, AGAIN, 0),
    ADD_VIEW(TO_INPUT, 0), END};

static const stw_call_step adapted_forward[] = {
    TAKE(BASE, O), TAKE(LOW, K), STOP, TAKE(HIGH, O), LEAVE(LOW), TAKE(PART, O), DROP(HIGH),
    TAKE(OUT, O), DROP(BASE), DROP(PART), END};

static const stw_call_step adapted_backward[] = {
    TAKE_IF(STW_IF_HEADS, 0, ROWS, O), DROP_IF(STW_IF_HEADS, GRAD),
    NEED(KNOWN, O), DROP_IF(STW_IF_CONSTANT, GRAD), DROP_IF(STW_IF_CONSTANT, ROWS),
    GRAD_OF(2), TAKE(TO_LOW, K), GO(KNOWN, LOW),
    GRAD_OF(1), TAKE_IF(0, STW_IF_CONSTANT, TO_INPUT, I), GO_INPUT(TO_LOW, 0),
    ADD_VIEW(TO_INPUT, 0),
    TAKE_IF(0, STW_IF_CONSTANT, TO_INPUT, I), DROP(GRAD), DROP(ROWS), ADD_VIEW(TO_INPUT, 0), END};

/* ---- rotary embeddings of queries or keys ---- */

enum { STRAIGHT = FIRST, NEGATIVE, TURNED, SINES, LOWER };
enum { ALL = STW_ROTARY_OUT, EACH_HALF = STW_ROTARY_HALF };

static const stw_call_step rotary_forward[] = {
    TAKE(STRAIGHT, ALL), TAKE(NEGATIVE, EACH_HALF), TAKE(TURNED, ALL), DROP(NEGATIVE),
    TAKE(SINES, ALL), DROP(TURNED), TAKE(OUT, ALL), DROP(STRAIGHT), DROP(SINES), END};

/* TURNED is added to LOWER in place. */
static const stw_call_step rotary_backward[] = {
    TAKE(SINES, ALL), TAKE(NEGATIVE, EACH_HALF), TAKE(LOWER, ALL), DROP(NEGATIVE),
    TAKE(TURNED, ALL), DROP(SINES), DROP(TURNED), TAKE(STRAIGHT, ALL), DROP(GRAD), DROP(STRAIGHT),
    ADD(LOWER, 0), END};

/* A part is rotated, then the whole is put together; of the gradient each part is put into zeros.
 * models/qwen3_5 rotates keys before it puts queries together. */
enum { INTO_ALL = LOWER + 1, PUT };
enum { P = STW_ROTARY_PART };

static const stw_call_step partial_rotary_forward[] = {
    TAKE(STRAIGHT, P), TAKE(NEGATIVE, EACH_HALF), TAKE(TURNED, P), DROP(NEGATIVE), TAKE(SINES, P),
    DROP(TURNED), TAKE(LOWER, P), DROP(STRAIGHT), DROP(SINES), TAKE(OUT, ALL), DROP(LOWER), END};

static const stw_call_step partial_rotary_backward[] = {
    TAKE(SINES, P), TAKE(NEGATIVE, EACH_HALF), TAKE(LOWER, P), DROP(NEGATIVE), TAKE(TURNED, P),
    DROP(SINES), DROP(TURNED), TAKE(STRAIGHT, P), DROP(STRAIGHT), TAKE(INTO_ALL, ALL), DROP(GRAD),
    TAKE(PUT, ALL), DROP(LOWER), DROP(PUT), ADD(INTO_ALL, 0), END};

/* ---- latent attention: parts with positions, keys ---- */

/* models/deepseek_v2, apply_rotary_emb, of a part that is in fp32: its output is cast back. The
 * gradient is multiplied by conjugates, which are a tensor of their own. */
enum { AS_COMPLEX = FIRST, TO_COMPLEX, CONJUGATES, TO_WIDE };

static const stw_call_step turn_forward[] = {
    TAKE(AS_COMPLEX, STW_TURN_WIDE), TAKE(OUT, STW_TURN_OUT), DROP(AS_COMPLEX), END};

static const stw_call_step turn_backward[] = {
    TAKE(TO_COMPLEX, STW_TURN_WIDE), DROP(GRAD), TAKE(CONJUGATES, STW_TURN_TABLE),
    TAKE(TO_WIDE, STW_TURN_WIDE), DROP(CONJUGATES), DROP(TO_COMPLEX), ADD(TO_WIDE, 0), END};

/* models/deepseek_v3, apply_rotary_pos_emb_interleave: cos and sin times both halves, a difference
 * and a sum. In backward each half is put into a gradient of the whole part. */
enum { BY_COS = FIRST, BY_SIN, DIFFERENCE, TOTAL, TO_EVEN, TO_ODD, MINUS, MORE, FROM_EVEN };

static const stw_call_step turn_pairs_forward[] = {
    TAKE(BY_COS, EACH_HALF), TAKE(BY_SIN, EACH_HALF), TAKE(DIFFERENCE, EACH_HALF), DROP(BY_COS),
    DROP(BY_SIN), TAKE(BY_COS, EACH_HALF), TAKE(BY_SIN, EACH_HALF), TAKE(TOTAL, EACH_HALF),
    DROP(BY_COS), DROP(BY_SIN), TAKE(OUT, ALL), DROP(DIFFERENCE), DROP(TOTAL), END};

static const stw_call_step turn_pairs_backward[] = {
    TAKE(TO_EVEN, EACH_HALF), TAKE(TO_ODD, EACH_HALF), TAKE(MINUS, EACH_HALF),
    TAKE(MORE, EACH_HALF), DROP(MINUS), DROP(MORE), TAKE(MORE, EACH_HALF), DROP(GRAD), DROP(MORE),
    TAKE(STRAIGHT, ALL), DROP(TO_ODD), TAKE(FROM_EVEN, ALL), DROP(TO_EVEN), DROP(FROM_EVEN),
    ADD(STRAIGHT, 0), END};

static const stw_call_step concat_backward[] = {ADD(GRAD, 0), END};

/* DeepseekV2Attention.expand_kv: two copies into parts of a new tensor. The backward of each
 * (torch/csrc/autograd/functions/tensor.cpp, CopySlices) copies the whole gradient and its part;
 * that of the last one makes zeros for the part that it wrote over. */
enum { WHOLE_GRAD = FIRST, TURNED_PART, PART_ZEROS, NEXT_GRAD, STRAIGHT_PART, TO_SHARED };

static const stw_call_step keys_forward[] = {TAKE(OUT, STW_KEYS_OUT), END};

static const stw_call_step keys_backward[] = {
    TAKE(WHOLE_GRAD, STW_KEYS_OUT), TAKE(TURNED_PART, STW_KEYS_TURNED),
    TAKE(PART_ZEROS, STW_KEYS_TURNED), DROP(PART_ZEROS), DROP(GRAD),
    TAKE(NEXT_GRAD, STW_KEYS_OUT), TAKE(STRAIGHT_PART, STW_KEYS_STRAIGHT), DROP(NEXT_GRAD),
    DROP(WHOLE_GRAD), TAKE(TO_SHARED, STW_KEYS_SHARED), DROP(TURNED_PART), ADD(STRAIGHT_PART, 0),
    ADD(TO_SHARED, 1), END};

/* ---- attention ---- */

enum { LSE = FIRST, TO_Q, TO_K, TO_V, WORK };

static const stw_call_step attention_forward[] = {
    TAKE(OUT, STW_ATTENTION_OUT), TAKE(LSE, STW_ATTENTION_ROW), LEAVE(LSE), END};

static const stw_call_step attention_backward[] = {
    TAKE(TO_Q, STW_ATTENTION_Q), TAKE(TO_K, STW_ATTENTION_K), TAKE(TO_V, STW_ATTENTION_V),
    TAKE(WORK, STW_ATTENTION_WORK), DROP(WORK),
    RELEASE_OUT_IF(AGAIN, 0), DROP_IF(AGAIN, LSE), RELEASE_IF(AGAIN, 0, 2), RELEASE_IF(AGAIN, 0, 0),
    GO_INPUT(GRAD, 1), RELEASE_IF(0, AGAIN, 0), RELEASE_IF(0, AGAIN, 2), DROP(LSE),
    RELEASE_OUT_IF(0, AGAIN), ADD(TO_Q, 0), ADD(TO_K, 1), ADD(TO_V, 2), END};

/* With a mask, as windows smaller than the sequence have one (aten/src/ATen/native/transformers/
 * cuda/attention.cu; cudnn/MHA.cpp, run_cudnn_SDP_bprop): the mask becomes numbers that are added
 * to the scores, and stays for backward, in which every query head has keys and values. */
enum { BIAS = WORK + 1, ALL_K, ALL_V };

static const stw_call_step masked_attention_forward[] = {
    TAKE(BIAS, STW_ATTENTION_BIAS), TAKE(OUT, STW_ATTENTION_OUT), TAKE(LSE, STW_ATTENTION_ROW),
    LEAVE(LSE), LEAVE(BIAS), END};

static const stw_call_step masked_attention_backward[] = {
    TAKE(TO_Q, STW_ATTENTION_Q), TAKE(ALL_K, STW_ATTENTION_ALL_K),
    TAKE(ALL_V, STW_ATTENTION_ALL_V), TAKE(WORK, STW_ATTENTION_WORK), DROP(WORK),
    RELEASE_OUT_IF(AGAIN, 0), DROP_IF(AGAIN, LSE), RELEASE_IF(AGAIN, 0, 2), RELEASE_IF(AGAIN, 0, 0),
    RELEASE_IF(AGAIN, 0, 1), DROP_IF(AGAIN, BIAS), DROP(GRAD), RELEASE_IF(0, AGAIN, 1),
    RELEASE_IF(0, AGAIN, 0), RELEASE_IF(0, AGAIN, 2), DROP(LSE), DROP(BIAS),
    RELEASE_OUT_IF(0, AGAIN), TAKE(TO_V, STW_ATTENTION_V), DROP(ALL_V),
    TAKE(TO_K, STW_ATTENTION_K), DROP(ALL_K), ADD(TO_Q, 0), ADD(TO_K, 1), ADD(TO_V, 2), END};

/* Eager attention: keys and values once for each query head, softmax in fp32 and its cast, tanh of
 * capped scores (eager_attention_forward). */
enum { ALL_HEADS = FIRST, CAPPED, SOFTMAX, CAST };

static const stw_call_step eager_attention_forward[] = {
    TAKE(ALL_HEADS, STW_EAGER_COPIES), TAKE(CAPPED, STW_EAGER_CAPPED),
    TAKE(SOFTMAX, STW_EAGER_WIDE), TAKE(CAST, STW_EAGER_CAST), TAKE(OUT, STW_EAGER_OUT),
    LEAVE(ALL_HEADS), LEAVE(CAPPED), LEAVE(SOFTMAX), LEAVE(CAST), END};

/* ---- attention of a vision tower ---- */

/* models/qwen3_vl/modeling_qwen3_vl.py, apply_rotary_pos_emb_vision and Qwen3VLVisionAttention:
 * queries and keys are rotated in fp32, with tables that FSDP has cast and that are cast back;
 * values stay a part of the product, which therefore stays. SDPA runs image by image: outputs are
 * put into one, and gradients of the parts, too. */
enum { WIDE_Q = FIRST, WIDE_K, COS, SIN, PLAIN, FLIPS, ROTATED, WITH_SIN, SUM_Q, SUM_K, NARROW_Q,
       NARROW_K, ATTENDED, SUMS, GRAD_Q, GRAD_K, GRAD_V, PART_Q, PART_K, PART_V, ROOM, STACKED };
enum { V = STW_VISION_WIDE, VH = STW_VISION_HALF, VT = STW_VISION_TABLE, VN = STW_VISION_NARROW };

#define ROTATE(sum)                                                                                \
    TAKE(PLAIN, V), TAKE(FLIPS, VH), TAKE(ROTATED, V), DROP(FLIPS), TAKE(WITH_SIN, V),             \
    DROP(ROTATED), TAKE(sum, V), DROP(PLAIN), DROP(WITH_SIN)
#define ROTATE_BOTH                                                                                \
    TAKE(WIDE_Q, V), TAKE(WIDE_K, V), TAKE(COS, VT), TAKE(SIN, VT), ROTATE(SUM_Q), ROTATE(SUM_K),  \
    TAKE(NARROW_Q, VN), DROP(SUM_Q), TAKE(NARROW_K, VN), DROP(SUM_K), DROP(WIDE_Q), DROP(WIDE_K),  \
    LEAVE(COS), LEAVE(SIN)

/* From the gradient of what is rotated; the second way's goes into the first one's. The last that
 * reads a table drops it. */
#define ROTATE_BACK(from, to, sines, cosines)                                                      \
    TAKE(WITH_SIN, V), DROP(sines), TAKE(FLIPS, VH), TAKE(to, V), DROP(FLIPS), TAKE(ROTATED, V),   \
    DROP(WITH_SIN), DROP(ROTATED), TAKE(PLAIN, V), DROP(from), DROP(cosines), DROP(PLAIN)
#define ROTATE_BOTH_BACK(grad_q, grad_k, grad_v)                                                   \
    TAKE(WIDE_K, V), DROP(grad_k), TAKE(WIDE_Q, V), DROP(grad_q),                                  \
    ROTATE_BACK(WIDE_K, SUM_K, ROOM, ROOM), ROTATE_BACK(WIDE_Q, SUM_Q, SIN, COS),                  \
    TAKE(PART_K, VN), DROP(SUM_K),                                                                 \
    TAKE(PART_Q, VN), DROP(SUM_Q), TAKE(STACKED, STW_VISION_ALL), DROP(PART_Q), DROP(PART_K),      \
    DROP(grad_v), ADD(STACKED, 0)

static const stw_call_step vision_attention_forward[] = {
    ROTATE_BOTH, TAKE(ATTENDED, VN), TAKE(SUMS, STW_VISION_ROW), TAKE(OUT, VN), LEAVE(NARROW_Q),
    LEAVE(NARROW_K), LEAVE(SUMS), LEAVE(ATTENDED), END};

static const stw_call_step vision_attention_backward[] = {
    TAKE(GRAD_Q, VN), TAKE(GRAD_K, VN), TAKE(GRAD_V, VN), TAKE(ROOM, STW_VISION_WORK), DROP(ROOM),
    DROP_IF(AGAIN, ATTENDED), DROP_IF(AGAIN, SUMS), RELEASE_IF(AGAIN, 0, 0),
    DROP_IF(AGAIN, NARROW_Q), GO(GRAD, NARROW_K), DROP(NARROW_Q), RELEASE_IF(0, AGAIN, 0),
    DROP(SUMS), DROP(ATTENDED), TAKE(PART_V, VN), DROP(GRAD_V), TAKE(PART_K, VN), DROP(GRAD_K),
    TAKE(PART_Q, VN), DROP(GRAD_Q), ROTATE_BOTH_BACK(PART_Q, PART_K, PART_V), END};

static const stw_call_step vision_flash_forward[] = {
    ROTATE_BOTH, TAKE(OUT, VN), TAKE(SUMS, STW_VISION_ROW), LEAVE(NARROW_Q), LEAVE(NARROW_K),
    LEAVE(SUMS), END};

static const stw_call_step vision_flash_backward[] = {
    TAKE(GRAD_Q, VN), TAKE(GRAD_K, VN), TAKE(GRAD_V, VN), TAKE(ROOM, STW_VISION_WORK), DROP(ROOM),
    RELEASE_OUT_IF(AGAIN, 0), DROP_IF(AGAIN, SUMS), RELEASE_IF(AGAIN, 0, 0),
    DROP_IF(AGAIN, NARROW_Q), GO(GRAD, NARROW_K), DROP(NARROW_Q), RELEASE_IF(0, AGAIN, 0),
    DROP(SUMS), RELEASE_OUT_IF(0, AGAIN), ROTATE_BOTH_BACK(GRAD_Q, GRAD_K, GRAD_V), END};

/* ---- linear attention ---- */

/* models/qwen3_5/modeling_qwen3_5.py, Qwen3_5GatedDeltaNet, with torch's convolution, which runs
 * without the package causal_conv1d (its own saves nothing but its input): the input is copied into
 * rows of channels, the output has a few columns more, which the activation saves, too. */
enum { COPIED = FIRST, PADDED, TO_CONVOLVED };
enum { CV = STW_CONVOLUTION_OUT, CVP = STW_CONVOLUTION_PADDED };

static const stw_call_step convolution_forward[] = {
    TAKE(COPIED, CV), TAKE(PADDED, CVP), DROP(COPIED), TAKE(OUT, CV), LEAVE(PADDED), END};

static const stw_call_step convolution_backward[] = {
    TAKE(TO_CONVOLVED, CV), GO(GRAD, PADDED), TAKE(PADDED, CVP), DROP(TO_CONVOLVED),
    TAKE(COPIED, CV), GRAD_IF(STW_IF_TRAINED, 0), TAKE(TO_CONVOLVED, CV), DROP(COPIED),
    GO_INPUT(PADDED, 0), ADD(TO_CONVOLVED, 0), END};

/* flash-linear-attention 0.6.0, fla/ops/gated_delta_rule/chunk.py: the step width, the decay from
 * its softplus, copies of query, key and value; both normalised, with their roots; sums of the
 * decay, a triangle, keys and values by it, states and new values, which backward makes again. */
enum { STEP = FIRST, SHIFTED, SOFT, OWN_VALUE, OWN_QUERY, ROOT_Q, OWN_KEY, ROOT_K, DECAYS, TRIANGLE,
       BY_KEY, BY_VALUE, STATES, NEW_VALUE, LOCAL, TO_STATES, TO_NEW, TO_QUERY, TO_KEY, SOME,
       TO_BY_KEY, TO_DECAYS, MORE_KEY, TO_VALUE, MORE_DECAYS, TO_STEP, TO_DECAY };
/* The same slots at other times. */
enum { FULL_QUERY = TO_QUERY, FULL_KEY = TO_KEY, DECAY = TO_DECAY, UNNORMED_Q = BY_KEY,
       UNNORMED_K = TO_BY_KEY, TO_SOFT = LOCAL, TO_A = STATES, TO_B = NEW_VALUE,
       TOGETHER = TO_STATES, SUMMED_Q = MORE_KEY, SUMMED_K = BY_VALUE };
enum { RQ = STW_RULE_QUERY, RV = STW_RULE_VALUE, RR = STW_RULE_ROW, RS = STW_RULE_STATES };

static const stw_call_step delta_rule_forward[] = {
    TAKE(STEP, STW_RULE_STEP), TAKE(SOME, RR), TAKE(SHIFTED, RR), DROP(SOME), TAKE(SOFT, RR),
    TAKE(DECAY, RR), TAKE(FULL_QUERY, RQ), TAKE(FULL_KEY, RQ), TAKE(OWN_VALUE, RV),
    TAKE(OWN_QUERY, RQ), TAKE(ROOT_Q, RR), TAKE(OWN_KEY, RQ), TAKE(ROOT_K, RR), TAKE(DECAYS, RR),
    TAKE(TRIANGLE, STW_RULE_TRIANGLE), TAKE(BY_KEY, RQ), TAKE(BY_VALUE, RV), TAKE(STATES, RS),
    TAKE(NEW_VALUE, RV), TAKE(OUT, RV), DROP(BY_KEY), DROP(BY_VALUE), DROP(STATES), DROP(NEW_VALUE),
    DROP(FULL_KEY), DROP(FULL_QUERY), LEAVE(STEP), LEAVE(SHIFTED), LEAVE(SOFT), LEAVE(OWN_VALUE),
    LEAVE(OWN_QUERY), LEAVE(ROOT_Q), LEAVE(OWN_KEY), LEAVE(ROOT_K), LEAVE(DECAYS), LEAVE(TRIANGLE),
    DROP(DECAY), END};

/* Up to the gradients of normalised queries and keys, and of them as they came. */
#define RULE_BACKWARD                                                                              \
    TAKE(BY_KEY, RQ), TAKE(BY_VALUE, RV), TAKE(STATES, RS), TAKE(NEW_VALUE, RV), TAKE(LOCAL, RV),  \
    TAKE(TO_STATES, RS), TAKE(TO_NEW, RV), DROP(LOCAL), TAKE(TO_QUERY, RQ), TAKE(TO_KEY, RQ),      \
    TAKE(SOME, RR), TAKE(TO_BY_KEY, RQ), TAKE(TO_DECAYS, RR), DROP(SOME), TAKE(MORE_KEY, RQ),      \
    TAKE(TO_VALUE, RV), TAKE(MORE_DECAYS, RR), TAKE(TO_STEP, STW_RULE_STEP), DROP(TO_NEW),         \
    TAKE(TO_DECAY, RR), DROP(TO_DECAYS), DROP(BY_KEY), DROP(BY_VALUE), DROP(STATES),               \
    DROP(NEW_VALUE), DROP(TO_STATES), DROP(TO_BY_KEY), DROP(MORE_KEY), DROP(MORE_DECAYS),          \
    TAKE(UNNORMED_Q, RQ), DROP(TO_QUERY), TAKE(UNNORMED_K, RQ), DROP(TO_KEY),                      \
    DROP_IF(AGAIN, OWN_QUERY), DROP_IF(AGAIN, ROOT_Q), DROP_IF(AGAIN, OWN_KEY),                    \
    DROP_IF(AGAIN, ROOT_K), DROP_IF(AGAIN, OWN_VALUE), DROP_IF(AGAIN, DECAYS),                     \
    DROP_IF(AGAIN, TRIANGLE), DROP(GRAD), DROP(OWN_QUERY), DROP(ROOT_Q), DROP(OWN_KEY),            \
    DROP(ROOT_K), DROP(OWN_VALUE), DROP(DECAYS), DROP(TRIANGLE)
/* Then those of the decay and of the step width. */
#define DECAY_BACKWARD                                                                             \
    TAKE(TO_SOFT, RR), TAKE(SOME, RR), DROP(SOME), GO(TO_DECAY, SOFT), TAKE(SOME, RR),             \
    GO(TO_SOFT, SHIFTED), GRAD_IF(STW_IF_BIASED, 1), TAKE(TO_A, STW_RULE_STEP), DROP(SOME),        \
    GRAD_IF(STW_IF_TRAINED, 0), TAKE(TO_B, STW_RULE_STEP), GO(TO_STEP, STEP)

static const stw_call_step delta_rule_backward[] = {
    RULE_BACKWARD, DECAY_BACKWARD, TAKE(TOGETHER, STW_RULE_ALL), DROP(UNNORMED_Q), DROP(UNNORMED_K),
    DROP(TO_VALUE), ADD(TOGETHER, 0), ADD(TO_A, 1), ADD(TO_B, 2), END};

static const stw_call_step repeated_delta_rule_backward[] = {
    RULE_BACKWARD, TAKE(SUMMED_K, STW_RULE_KEY), DROP(UNNORMED_K), TAKE(SUMMED_Q, STW_RULE_KEY),
    DROP(UNNORMED_Q), DECAY_BACKWARD, TAKE(TOGETHER, STW_RULE_ALL), DROP(SUMMED_Q), DROP(SUMMED_K),
    DROP(TO_VALUE), ADD(TOGETHER, 0), ADD(TO_A, 1), ADD(TO_B, 2), END};

/* Indexers, in an order that is not known. */
static const stw_call_step other_attention_forward[] = {
    TAKE(SOFTMAX, STW_ELEMENTS_OUT), LEAVE(SOFTMAX), END};

/* ---- the MLP ---- */

enum { TO_FIRST = FIRST, TO_SECOND };

static const stw_call_step element_forward[] = {TAKE(OUT, STW_ELEMENTS_OUT), END};

static const stw_call_step activation_backward[] = {
    TAKE(TO_FIRST, STW_ELEMENTS_OUT), GO_INPUT(GRAD, 0), ADD(TO_FIRST, 0), END};

static const stw_call_step sigmoid_backward[] = {
    TAKE(TO_FIRST, STW_ELEMENTS_OUT), RELEASE_OUT_IF(AGAIN, 0), DROP(GRAD),
    RELEASE_OUT_IF(0, AGAIN), ADD(TO_FIRST, 0), END};

static const stw_call_step gate_backward[] = {
    TAKE(TO_SECOND, STW_ELEMENTS_OUT), TAKE(TO_FIRST, STW_ELEMENTS_OUT), RELEASE_IF(AGAIN, 0, 0),
    GO_INPUT(GRAD, 1), RELEASE_IF(0, AGAIN, 0), ADD(TO_FIRST, 0), ADD(TO_SECOND, 1), END};

/* Rows that are gathered, whose gradient is reduce-scattered; what is cast, padded or cropped. */
static const stw_call_step resize_backward[] = {
    TAKE(TO_FIRST, STW_ELEMENTS_IN), DROP(GRAD), ADD(TO_FIRST, 0), END};

/* ---- routed experts, as grouped products over copies of the tokens ---- */

enum { PROBS = FIRST, ORDER, ORDER_BACK, EXPERT, COPIES, BOTH, ACTIVE, INNER, DOWN,
       SCORES, SCORES_WIDE, WEIGHED, ORDERED,
       SPREAD, ZEROS, TO_WEIGHED, TO_PROBS, TO_DOWN, TO_INNER, TO_UP, TO_ACTIVE, TO_GATE, TO_BOTH,
       TO_COPIES, TO_HIDDEN, TO_SCORES, TO_ALL };
enum { X = STW_EXPERTS_COPIES, M = STW_EXPERTS_INNER, H = STW_EXPERTS_HIDDEN };

static const stw_call_step experts_forward[] = {
    TAKE(SCORES, STW_EXPERTS_SCORES), TAKE(SCORES_WIDE, STW_EXPERTS_WIDE),
    TAKE(PROBS, STW_EXPERTS_PROBS), DROP(SCORES_WIDE), TAKE(ORDER, STW_EXPERTS_INDEX),
    TAKE(ORDER_BACK, STW_EXPERTS_INDEX), TAKE(EXPERT, STW_EXPERTS_INDEX),
    TAKE(COPIES, X), TAKE(BOTH, STW_EXPERTS_BOTH), LEAVE_FACTOR(COPIES),
    TAKE(ACTIVE, STW_EXPERTS_ACTIVE), TAKE(INNER, M), LEAVE(BOTH), LEAVE(ACTIVE),
    TAKE(DOWN, X), LEAVE_FACTOR(INNER),
    TAKE(WEIGHED, X), LEAVE(DOWN), TAKE(ORDERED, X), DROP(WEIGHED), TAKE(OUT, H), DROP(ORDERED),
    DROP(SCORES), LEAVE(ORDER), LEAVE(ORDER_BACK), LEAVE(EXPERT), LEAVE(PROBS), STOP, END};

static const stw_call_step experts_backward[] = {
    TAKE(SPREAD, X), TAKE(ZEROS, X), TAKE(TO_WEIGHED, X), DROP(ZEROS), DROP(SPREAD),
    TAKE(TO_PROBS, X), TAKE(TO_DOWN, X), DROP(TO_PROBS), DROP(DOWN), DROP(TO_WEIGHED),
    DO(STW_STEP_NEXT), /* down projections */
    TAKE(TO_INNER, M), DROP(INNER), DROP(TO_DOWN), TAKE(TO_UP, M), TAKE(TO_ACTIVE, M), DROP(ACTIVE),
    DROP(TO_INNER), TAKE(TO_GATE, M), DROP(TO_ACTIVE), TAKE(TO_BOTH, STW_EXPERTS_BOTH), DROP(BOTH),
    DROP(TO_UP), DROP(TO_GATE),
    DO(STW_STEP_NEXT), /* gate and up projections */
    TAKE(TO_COPIES, X), DROP(COPIES), DROP(TO_BOTH), TAKE(ZEROS, H), TAKE(TO_HIDDEN, H),
    DROP(ZEROS), DROP(TO_COPIES), DROP(ORDER), DROP(ORDER_BACK), DROP(EXPERT), DROP(PROBS),
    DO(STW_STEP_REST), /* the router and others */
    TAKE(TO_SCORES, H), TAKE(TO_ALL, H), DROP(TO_HIDDEN), DROP(TO_SCORES), RELEASE(0),
    ADD(TO_ALL, 0), END};

/* ---- routed experts with scores in fp32 ---- */

/* DeepseekV3TopkRouter, F.linear of the input and of the weight in fp32. */
enum { WIDE_WEIGHT = FIRST, TO_WIDE_WEIGHT, TO_WIDE_INPUT };

static const stw_call_step wide_product_forward[] = {
    TAKE(WIDE_WEIGHT, STW_WIDE_PRODUCT_WEIGHT), STOP, TAKE(OUT, STW_WIDE_PRODUCT_OUT),
    LEAVE(WIDE_WEIGHT), END};

static const stw_call_step wide_product_backward[] = {
    TAKE_IF(STW_IF_TRAINED, 0, TO_WIDE_WEIGHT, STW_WIDE_PRODUCT_WEIGHT),
    TAKE(TO_WIDE_INPUT, STW_WIDE_PRODUCT_IN), RELEASE_IF(AGAIN, 0, 0), GO(GRAD, WIDE_WEIGHT),
    RELEASE_IF(0, AGAIN, 0), GRAD_IF(STW_IF_TRAINED, 0), DROP(TO_WIDE_WEIGHT),
    ADD(TO_WIDE_INPUT, 0), END};

/* DeepseekV2TopkRouter (topk_method greedy): the best scores, and their product with a factor. */
enum { ALL_SCORES = FIRST, CHOSEN_INDEX, CHOSEN, SCALED_GRAD, SPREAD_GRAD, TO_LOGITS, PRODUCTS,
       CHOICE, GROUPS, FLAGS, NO_FLAGS, MASKED, NORMALISED };
enum { S = STW_SCORES_ALL, C = STW_SCORES_CHOSEN };

static const stw_call_step softmax_scores_forward[] = {
    TAKE(ALL_SCORES, S), TAKE(CHOSEN, C), TAKE(CHOSEN_INDEX, STW_SCORES_INDEX), STOP, TAKE(OUT, C),
    DROP(CHOSEN), LEAVE(ALL_SCORES), LEAVE(CHOSEN_INDEX), END};

static const stw_call_step softmax_scores_backward[] = {
    TAKE(SCALED_GRAD, C), DROP(GRAD), TAKE(SPREAD_GRAD, S), GO(SCALED_GRAD, CHOSEN_INDEX),
    TAKE(TO_LOGITS, S), TAKE(PRODUCTS, S), DROP(PRODUCTS), GO(SPREAD_GRAD, ALL_SCORES),
    ADD(TO_LOGITS, 0), END};

/* DeepseekV3TopkRouter: scores with a bias choose groups, then experts of them, without a gradient;
 * the scores of those are gathered and divided by their sum in place, which keeps a copy. */
static const stw_call_step sigmoid_scores_forward[] = {
    TAKE(ALL_SCORES, S), TAKE(CHOICE, S), TAKE(GROUPS, S), TAKE(FLAGS, STW_SCORES_FLAGS),
    TAKE(NO_FLAGS, STW_SCORES_FLAGS), DROP(FLAGS), TAKE(MASKED, S), LEAVE(NO_FLAGS), DROP(CHOICE),
    TAKE(NORMALISED, C), TAKE(CHOSEN_INDEX, STW_SCORES_INDEX), DROP(NORMALISED),
    TAKE(NORMALISED, C), TAKE(CHOSEN, C), STOP, TAKE(OUT, C), DROP(NORMALISED), DROP(NO_FLAGS),
    DROP(MASKED), DROP(GROUPS), LEAVE(CHOSEN), LEAVE(ALL_SCORES), LEAVE(CHOSEN_INDEX), END};

static const stw_call_step sigmoid_scores_backward[] = {
    TAKE(SCALED_GRAD, C), DROP(GRAD), TAKE(PRODUCTS, C), GO(SCALED_GRAD, CHOSEN),
    TAKE(SPREAD_GRAD, S), GO(PRODUCTS, CHOSEN_INDEX), TAKE(TO_LOGITS, S),
    GO(SPREAD_GRAD, ALL_SCORES), ADD(TO_LOGITS, 0), END};

/* As experts above, where rows are weighed in fp32. Rows of other ranks' experts are masked around
 * each product (integrations/moe.py of 5.17; 5.23 does so under expert parallelism alone). */
enum { TOKEN = FIRST, BY_EXPERT, ROW_ORDER, ROW_BACK, SCORE, NUMBER, FLAG, ROWS_IN, RAW, GATE_UP,
       GATED, MIDDLE, RETURNED, WEIGHED_WIDE, ORDERED_WIDE, SUM_WIDE,
       TO_SUM, TO_RETURNED, TO_SCORE, TO_RAW, TO_MIDDLE, TO_RAISED, TO_GATED, TO_GATE_IN,
       TO_GATE_UP, TO_ROWS };
enum { IX = STW_WIDE_EXPERTS_INDEX, SC = STW_WIDE_EXPERTS_SCORE, CP = STW_WIDE_EXPERTS_COPIES,
       WD = STW_WIDE_EXPERTS_WEIGHED, IN = STW_WIDE_EXPERTS_INNER, BO = STW_WIDE_EXPERTS_BOTH };

static const stw_call_step wide_experts_forward[] = {
    TAKE(BY_EXPERT, IX), TAKE(ROW_ORDER, IX), TAKE(TOKEN, IX), TAKE(ROWS_IN, CP), LEAVE(TOKEN),
    TAKE(SCORE, SC), TAKE(NUMBER, SC), TAKE(FLAG, STW_WIDE_EXPERTS_FLAG),
    TAKE(RAW, BO), TAKE(GATE_UP, BO), DROP(RAW), TAKE(GATED, IN), TAKE(MIDDLE, IN), LEAVE(GATED),
    LEAVE(GATE_UP), TAKE(RAW, CP), LEAVE_FACTOR(MIDDLE), TAKE(RETURNED, CP), DROP(RAW),
    TAKE(WEIGHED_WIDE, WD), TAKE(ROW_BACK, IX), STOP, TAKE(ORDERED_WIDE, WD), DROP(WEIGHED_WIDE),
    TAKE(SUM_WIDE, STW_WIDE_EXPERTS_SUM), TAKE(OUT, STW_WIDE_EXPERTS_HIDDEN),
    DROP(BY_EXPERT), LEAVE(ROW_ORDER), LEAVE_FACTOR(ROWS_IN), LEAVE(SCORE), DROP(NUMBER),
    LEAVE(FLAG), LEAVE(RETURNED), DROP(ORDERED_WIDE), LEAVE(ROW_BACK), DROP(SUM_WIDE), END};

static const stw_call_step wide_experts_backward[] = {
    TAKE(TO_SUM, STW_WIDE_EXPERTS_SUM), DROP(GRAD), TAKE(ORDERED_WIDE, WD), DROP(TO_SUM),
    TAKE(WEIGHED_WIDE, WD), GO(ORDERED_WIDE, ROW_BACK),
    TAKE(TO_SUM, WD), TAKE(ORDERED_WIDE, WD), DROP_IF(AGAIN, RETURNED), DROP_IF(AGAIN, SCORE),
    TAKE(TO_RETURNED, CP), DROP(ORDERED_WIDE), TAKE(TO_SCORE, SC), DROP(TO_SUM),
    DROP(WEIGHED_WIDE), DROP(SCORE), DROP(RETURNED), TAKE(TO_RAW, CP), DROP(TO_RETURNED),
    GRAD_IF(STW_IF_TRAINED, 0), /* down projections */
    TAKE(TO_MIDDLE, IN), GO(TO_RAW, MIDDLE), TAKE(TO_RAISED, IN), TAKE(TO_GATED, IN),
    GO(TO_MIDDLE, GATED), TAKE(TO_GATE_IN, IN), GO(TO_GATED, GATE_UP), TAKE(TO_GATE_UP, BO),
    DROP(TO_GATE_IN), DROP(TO_RAISED), TAKE(TO_RAW, BO), DROP(TO_GATE_UP),
    GRAD_IF(STW_IF_TRAINED, 1), /* gate and up projections */
    TAKE(TO_RETURNED, CP), GO(TO_RAW, ROWS_IN), TAKE(TO_RAW, CP), GO(TO_RETURNED, FLAG),
    TAKE(NUMBER, SC), GO(TO_SCORE, ROW_ORDER), TAKE(TO_ROWS, STW_WIDE_EXPERTS_HIDDEN),
    GO(TO_RAW, TOKEN), ADD(NUMBER, 1), ADD(TO_ROWS, 0), END};

/* ---- sums, and gradients that are left ---- */

static const stw_call_step nothing[] = {END};
static const stw_call_step pass_backward[] = {DO(STW_STEP_PASS), END};
static const stw_call_step rest_backward[] = {DO(STW_STEP_REST), END};
static const stw_call_step rest_attention_backward[] = {{STW_STEP_REST, 1, 0, 0, 0}, END};

/* ---- the table ---- */

const stw_function stw_functions_eager[STW_N_FUNCTIONS] = {
    [STW_FUNCTION_NORM] = {norm_forward, norm_backward},
    [STW_FUNCTION_WIDE_NORM] = {wide_norm_forward, wide_norm_backward},
    [STW_FUNCTION_LAYER_NORM] = {layer_norm_forward, layer_norm_backward, .reads = 1},
    [STW_FUNCTION_PRODUCT] = {product_forward, product_backward, .reads = 1},
    [STW_FUNCTION_ADAPTED_PRODUCT] = {adapted_forward, adapted_backward, .reads = 1,
                                      .adapts = true},
    [STW_FUNCTION_ROTARY] = {rotary_forward, rotary_backward},
    [STW_FUNCTION_PARTIAL_ROTARY] = {partial_rotary_forward, partial_rotary_backward},
    [STW_FUNCTION_TURN] = {turn_forward, turn_backward},
    [STW_FUNCTION_TURN_PAIRS] = {turn_pairs_forward, turn_pairs_backward},
    [STW_FUNCTION_CONCAT] = {element_forward, concat_backward},
    [STW_FUNCTION_KEYS] = {keys_forward, keys_backward},
    [STW_FUNCTION_ATTENTION] = {attention_forward, attention_backward, .reads = 7,
                                .reads_out = true},
    [STW_FUNCTION_MASKED_ATTENTION] = {masked_attention_forward, masked_attention_backward,
                                       .reads = 7, .reads_out = true},
    [STW_FUNCTION_EAGER_ATTENTION] = {eager_attention_forward, NULL, .reads = 7, .reads_out = true},
    [STW_FUNCTION_VISION_ATTENTION] = {vision_attention_forward, vision_attention_backward,
                                       .reads = 1},
    [STW_FUNCTION_VISION_FLASH] = {vision_flash_forward, vision_flash_backward, .reads = 1,
                                   .reads_out = true},
    [STW_FUNCTION_CONVOLUTION] = {convolution_forward, convolution_backward, .reads = 1},
    [STW_FUNCTION_DELTA_RULE] = {delta_rule_forward, delta_rule_backward},
    [STW_FUNCTION_REPEATED_DELTA_RULE] = {delta_rule_forward, repeated_delta_rule_backward},
    [STW_FUNCTION_GATED_NORM] = {gated_norm_forward, gated_norm_backward},
    [STW_FUNCTION_OTHER_ATTENTION] = {other_attention_forward, NULL, .reads = 1},
    [STW_FUNCTION_ACTIVATION] = {element_forward, activation_backward, .reads = 1},
    [STW_FUNCTION_SIGMOID] = {element_forward, sigmoid_backward, .reads_out = true},
    [STW_FUNCTION_GATE] = {element_forward, gate_backward, .reads = 3},
    [STW_FUNCTION_EXPERTS] = {experts_forward, experts_backward, .reads = 1},
    [STW_FUNCTION_PART] = {element_forward, NULL},
    [STW_FUNCTION_WIDE_PRODUCT] = {wide_product_forward, wide_product_backward, .reads = 1},
    [STW_FUNCTION_SOFTMAX_SCORES] = {softmax_scores_forward, softmax_scores_backward},
    [STW_FUNCTION_SIGMOID_SCORES] = {sigmoid_scores_forward, sigmoid_scores_backward},
    [STW_FUNCTION_WIDE_EXPERTS] = {wide_experts_forward, wide_experts_backward},
    [STW_FUNCTION_GATHER] = {element_forward, resize_backward},
    [STW_FUNCTION_RESIZE] = {element_forward, resize_backward},
    [STW_FUNCTION_COPY] = {element_forward, concat_backward},
    [STW_FUNCTION_SUM] = {element_forward, pass_backward},
    [STW_FUNCTION_REST] = {nothing, rest_backward},
    [STW_FUNCTION_REST_ATTENTION] = {nothing, rest_attention_backward},
};
