/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memmem */
/* Functions by name: torch 1.13 to 2.11, transformers 4 and 5, accelerate, FSDP of both kinds,
 * DeepSpeed 0.9 to 0.18, Megatron-LM core 0.6 to 0.15, verl 0.2 to 0.9, AReaL 0.3 to 1.0, ms-swift
 * 2 to 4, vLLM 0.2 to 0.15, SGLang 0.1 to 0.5. docs/explain.md lists stacks that they were read
 * from. */
#include "planner/frameworks/frames.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A frame fits where all that is given does: a part of the file's path, the function (with a star:
 * its beginning), a part of the line of source. */
typedef struct pattern {
    const char *file, *function, *code;
} pattern;

typedef struct phase_rule {
    pattern frame;
    stw_phase phase;
    const char *part;
} phase_rule;

#define FILE_OF(file)                                                                              \
    { file, NULL, NULL }
#define CALL(function)                                                                             \
    { NULL, function, NULL }
#define IN(file, function)                                                                         \
    { file, function, NULL }
#define CODE(code)                                                                                 \
    { NULL, NULL, code }

static const char starts[] = "start of the inference engine";

/* The first rule that fits any frame counts: what calls others comes before these. STW_N_PHASES: it
 * cannot be told. */
static const phase_rule phases[] = {
    /* weights on their way to a rollout */
    {CALL("sync_model_weights"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("sync_rollout_weights"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("rollout_mode"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("update_weights*"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("_update_weights*"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("_move_model_to_vllm"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("move_model_to_vllm"), STW_PHASE_WEIGHT_SYNC, NULL},
    {CALL("broadcast_to_vllm"), STW_PHASE_WEIGHT_SYNC, NULL},
    {IN("sharding_manager/", "__enter__"), STW_PHASE_WEIGHT_SYNC, NULL},
    {IN("hybrid_engine/", "__enter__"), STW_PHASE_WEIGHT_SYNC, NULL},
    /* inference engines */
    {IN("vllm/", "load_model"), STW_PHASE_ROLLOUT, starts},
    {IN("vllm/", "init_device"), STW_PHASE_ROLLOUT, starts},
    {IN("vllm/", "_initialize_kv_caches"), STW_PHASE_ROLLOUT, starts},
    {IN("vllm/", "capture_model"), STW_PHASE_ROLLOUT, starts},
    {IN("vllm/", "raise_if_cache_size_invalid"), STW_PHASE_ROLLOUT, starts},
    {FILE_OF("vllm/"), STW_PHASE_ROLLOUT, NULL},
    {IN("sglang/", "load_model"), STW_PHASE_ROLLOUT, starts},
    {IN("sglang/", "init_memory_pool"), STW_PHASE_ROLLOUT, starts},
    {IN("sglang/", "init_cuda_graphs"), STW_PHASE_ROLLOUT, starts},
    {FILE_OF("sglang/srt/"), STW_PHASE_ROLLOUT, NULL},
    {CALL("generate_sequences"), STW_PHASE_ROLLOUT, NULL},
    {CALL("actor_rollout_generate_sequences"), STW_PHASE_ROLLOUT, NULL},
    {IN("transformers/generation/", "generate"), STW_PHASE_ROLLOUT, NULL},
    /* a model is made or read */
    {IN("deepspeed/__init__", "initialize"), STW_PHASE_LOAD, NULL},
    {IN("deepspeed/runtime/zero/partition_parameters", "_convert_to_zero_parameters"),
     STW_PHASE_LOAD, NULL},
    {IN("deepspeed/runtime/engine", "__init__"), STW_PHASE_LOAD, NULL},
    {CALL("from_pretrained"), STW_PHASE_LOAD, NULL},
    {CALL("_from_pretrained"), STW_PHASE_LOAD, NULL},
    {CALL("_load_pretrained_model"), STW_PHASE_LOAD, NULL},
    {CALL("load_checkpoint*"), STW_PHASE_LOAD, NULL},
    {CALL("_load_checkpoint*"), STW_PHASE_LOAD, NULL},
    {CALL("_load_best_model"), STW_PHASE_LOAD, NULL},
    {CALL("load_state_dict"), STW_PHASE_LOAD, NULL},
    {CALL("_load_from_state_dict"), STW_PHASE_LOAD, NULL},
    {CALL("set_model_state_dict"), STW_PHASE_LOAD, NULL},
    {CALL("_move_model_to_device"), STW_PHASE_LOAD, NULL},
    {CALL("setup_model_and_optimizer"), STW_PHASE_LOAD, NULL},
    {CALL("_build_model_optimizer"), STW_PHASE_LOAD, NULL},
    {CALL("init_model"), STW_PHASE_LOAD, NULL},
    {IN("torch/serialization", "load"), STW_PHASE_LOAD, NULL},
    {CODE(".load_state_dict("), STW_PHASE_LOAD, NULL},
    {CODE("from_pretrained("), STW_PHASE_LOAD, NULL},
    {CALL("to_empty"), STW_PHASE_LOAD, NULL},
    {CALL("fully_shard"), STW_PHASE_LOAD, NULL},
    {IN("fsdp/fully_sharded_data_parallel", "__init__"), STW_PHASE_LOAD, NULL},
    {IN("torch/nn/parallel/distributed", "__init__"), STW_PHASE_LOAD, NULL},
    /* it is saved */
    {CALL("save_checkpoint*"), STW_PHASE_CHECKPOINT, NULL},
    {CALL("_save_checkpoint*"), STW_PHASE_CHECKPOINT, NULL},
    {CALL("save_model"), STW_PHASE_CHECKPOINT, NULL},
    {CALL("save_pretrained"), STW_PHASE_CHECKPOINT, NULL},
    {CALL("fsdp_save_ckpt"), STW_PHASE_CHECKPOINT, NULL},
    {IN("torch/distributed/checkpoint/state_dict_saver", "*"), STW_PHASE_CHECKPOINT, NULL},
    {IN("torch/distributed/checkpoint/state_dict", "get_*"), STW_PHASE_CHECKPOINT, NULL},
    {IN("torch/serialization", "save"), STW_PHASE_CHECKPOINT, NULL},
    {IN("torch/nn/modules/module", "state_dict"), STW_PHASE_CHECKPOINT, NULL},
    {IN("_state_dict_utils", "*"), STW_PHASE_CHECKPOINT, NULL},
    {CODE("torch.save("), STW_PHASE_CHECKPOINT, NULL},
    {CODE(".state_dict()"), STW_PHASE_CHECKPOINT, NULL},
    /* the optimizer's step; lazily made state first */
    {IN("torch/optim/", "_init_group"), STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
    {{"torch/optim/", NULL, "state['exp_avg"}, STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
    {{"torch/optim/", NULL, "state[\"exp_avg"}, STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
    {CALL("initialize_optimizer_states"), STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
    {CALL("initialize_state"), STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
    {IN("torch/optim/", "*"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {IN("optim", "step"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {IN("deepspeed/runtime/engine", "step"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {IN("deepspeed/runtime/engine", "_take_model_step"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CALL("optimizer_step"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CALL("_optimizer_step"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CALL("step_with_ready_grads"), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CODE("optimizer.step("), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CODE("optim.step("), STW_PHASE_OPTIMIZER_STEP, NULL},
    {CALL("clip_grad_norm*"), STW_PHASE_OPTIMIZER_STEP, "clipping"},
    {CALL("_clip_grad_norm*"), STW_PHASE_OPTIMIZER_STEP, "clipping"},
    /* passes */
    {CALL("_engine_run_backward"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("backward"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("backward_step"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CODE(".backward("), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CODE("run_backward("), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("post_backward"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("pre_backward"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("_pre_backward"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("_post_backward_hook"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("_pre_backward_hook"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("unpack_hook"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    {CALL("recompute_fn"), STW_PHASE_FORWARD_BACKWARD, "backward"},
    /* passes that train call the functions of passes that do not */
    {CALL("evaluation_loop"), STW_PHASE_FORWARD_BACKWARD, "evaluation"},
    {CALL("prediction_step"), STW_PHASE_FORWARD_BACKWARD, "evaluation"},
    {CALL("compute_loss"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("compute_log_prob*"), STW_PHASE_LOG_PROB, NULL},
    {CALL("compute_ref_log_prob*"), STW_PHASE_LOG_PROB, NULL},
    {CALL("actor_rollout_compute_log_prob"), STW_PHASE_LOG_PROB, NULL},
    {CALL("_get_per_token_logps*"), STW_PHASE_LOG_PROB, NULL},
    {CALL("recompute_logp"), STW_PHASE_LOG_PROB, NULL},
    /* state that comes back to the GPU is of no phase of its own */
    {CALL("load_fsdp_*"), STW_N_PHASES, NULL},
    {CALL("load_megatron_*"), STW_N_PHASES, NULL},
    {CALL("update_policy"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("update_critic"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("train_batch"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("forward_step"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("forward"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {IN("torch/nn/functional", "*"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    {CALL("_call_impl"), STW_PHASE_FORWARD_BACKWARD, "forward"},
    /* modules that are made or moved, where none of the above is on the stack */
    {IN("torch/nn/modules/", "__init__"), STW_PHASE_LOAD, NULL},
    {IN("torch/nn/modules/", "reset_parameters"), STW_PHASE_LOAD, NULL},
    {IN("torch/nn/modules/module", "to"), STW_PHASE_LOAD, NULL},
    {IN("torch/nn/modules/module", "cuda"), STW_PHASE_LOAD, NULL},
    {IN("torch/nn/modules/module", "_apply"), STW_PHASE_LOAD, NULL},
    {CALL("set_module_tensor_to_device"), STW_PHASE_LOAD, NULL},
    {CODE("state['exp_avg"), STW_PHASE_FIRST_OPTIMIZER_STEP, NULL},
};

typedef struct component_rule {
    pattern frame;
    stw_component component;
} component_rule;

/* Of one frame the first rule counts; inner frames come first. STW_N_COMPONENTS: it cannot be told.
 */
static const component_rule components[] = {
    {{NULL, NULL, "'exp_avg_sq'"}, STW_COMPONENT_EXP_AVG_SQ},
    {{NULL, NULL, "\"exp_avg_sq\""}, STW_COMPONENT_EXP_AVG_SQ},
    {{NULL, NULL, "\"exp_avg\""}, STW_COMPONENT_EXP_AVG},
    {{NULL, NULL, "'exp_avg'"}, STW_COMPONENT_EXP_AVG},
    {IN("torch/optim/", "_init_group"), STW_COMPONENT_EXP_AVG},
    {CALL("_multi_tensor_adam*"), STW_COMPONENT_STAGE},
    {CALL("initialize_optimizer_states"), STW_COMPONENT_EXP_AVG},
    /* which of the moments a file is read into, no name says */
    {IN("optim", "load_state_dict"), STW_N_COMPONENTS},
    {IN("optim", "_process_value_according_to_param_policy"), STW_N_COMPONENTS},
    {IN("deepspeed/runtime/zero/", "load_state_dict"), STW_N_COMPONENTS},
    {{NULL, NULL, "optimizer.load_state_dict("}, STW_N_COMPONENTS},
    {CALL("load_checkpoint"), STW_N_COMPONENTS}, /* model and optimizer */
    {CALL("_load_base_checkpoint"), STW_N_COMPONENTS},
    {CALL("load_fsdp_model_to_gpu"), STW_COMPONENT_PARAMS},
    {CALL("load_fsdp_optimizer"), STW_N_COMPONENTS},
    {CALL("load_megatron_*"), STW_N_COMPONENTS},
    {CALL("_create_fp32_partitions"), STW_COMPONENT_MASTER},
    {CALL("_build_model_and_main_param_groups"), STW_COMPONENT_MASTER},
    {IN("param_and_grad_buffer", "__init__"), STW_COMPONENT_GRADS},
    {IN("distributed_data_parallel", "__init__"), STW_COMPONENT_GRADS},
    /* gathered parameters */
    {CALL("foreach_all_gather*"), STW_COMPONENT_UNSHARD},
    {CALL("init_all_gather_outputs"), STW_COMPONENT_UNSHARD},
    {CALL("init_unsharded_param"), STW_COMPONENT_UNSHARD},
    {CALL("alloc_all_gather_outputs"), STW_COMPONENT_UNSHARD},
    {CALL("unshard"), STW_COMPONENT_UNSHARD},
    {CALL("_all_gather_flat_param"), STW_COMPONENT_UNSHARD},
    {CALL("_alloc_padded_unsharded_flat_param"), STW_COMPONENT_UNSHARD},
    {CALL("all_gather_coalesced"), STW_COMPONENT_UNSHARD},
    {CALL("_all_gather_dtype"), STW_COMPONENT_UNSHARD},
    {CALL("fetch_sub_module"), STW_COMPONENT_UNSHARD},
    {CALL("summon_full_params"), STW_COMPONENT_UNSHARD},
    /* gradients on their way */
    {CALL("foreach_reduce"), STW_COMPONENT_REDUCE},
    {CALL("_reduce_grad"), STW_COMPONENT_REDUCE},
    {CALL("copy_grads_in_partition"), STW_COMPONENT_GRADS},
    {CALL("reduce_ipg_grads"), STW_COMPONENT_REDUCE},
    {CALL("__reduce_and_partition_ipg_grads"), STW_COMPONENT_REDUCE},
    {CALL("reduce_independent_p_g_buckets_and_remove_grads"), STW_COMPONENT_REDUCE},
    {CALL("average_tensor"), STW_COMPONENT_REDUCE},
    {CALL("post_backward"), STW_COMPONENT_REDUCE},
    /* logits and the loss */
    {CALL("cross_entropy"), STW_COMPONENT_LOGITS},
    {CALL("cross_entropy_loss"), STW_COMPONENT_LOGITS},
    {CALL("fixed_cross_entropy"), STW_COMPONENT_LOGITS},
    {CALL("ForCausalLMLoss"), STW_COMPONENT_LOGITS},
    {CALL("vocab_parallel_cross_entropy"), STW_COMPONENT_LOGITS},
    {CALL("vocab_parallel_entropy"), STW_COMPONENT_LOGITS},
    {CALL("entropy_from_logits*"), STW_COMPONENT_LOGITS},
    {CALL("logprobs_from_logits*"), STW_COMPONENT_LOGITS},
    {CALL("log_softmax"), STW_COMPONENT_LOGITS},
    {CALL("selective_log_softmax"), STW_COMPONENT_LOGITS},
    {{NULL, NULL, "lm_head("}, STW_COMPONENT_LOGITS},
    {{NULL, NULL, "logits.float()"}, STW_COMPONENT_LOGITS},
    {{NULL, NULL, "cross_entropy("}, STW_COMPONENT_LOGITS},
    {{NULL, NULL, "logits = "}, STW_COMPONENT_LOGITS},
    /* inference engines */
    {CALL("_allocate_kv_cache*"), STW_COMPONENT_KV_CACHE},
    {CALL("allocate_kv_cache*"), STW_COMPONENT_KV_CACHE},
    {CALL("initialize_kv_cache*"), STW_COMPONENT_KV_CACHE},
    {CALL("raise_if_cache_size_invalid"), STW_COMPONENT_KV_CACHE},
    {CALL("check_enough_kv_cache_memory"), STW_COMPONENT_KV_CACHE},
    {IN("sglang/srt/mem_cache/", "*"), STW_COMPONENT_KV_CACHE},
    {CALL("init_memory_pool"), STW_COMPONENT_KV_CACHE},
    {{NULL, NULL, "wake_up(tags=[\"weights\"]"}, STW_COMPONENT_ROLLOUT_WEIGHTS},
    {{NULL, NULL, "wake_up(tags=[\"kv_cache\"]"}, STW_COMPONENT_KV_CACHE},
    {IN("vllm/", "load_model"), STW_COMPONENT_ROLLOUT_WEIGHTS},
    {IN("vllm/", "load_weights"), STW_COMPONENT_ROLLOUT_WEIGHTS},
    {IN("sglang/", "load_model"), STW_COMPONENT_ROLLOUT_WEIGHTS},
    {IN("vllm/", "profile_run"), STW_COMPONENT_ROLLOUT_WORK},
    {IN("vllm/", "capture_model"), STW_COMPONENT_ROLLOUT_WORK},
    {IN("vllm/", "execute_model"), STW_COMPONENT_ROLLOUT_WORK},
    {IN("sglang/", "init_cuda_graphs"), STW_COMPONENT_ROLLOUT_WORK},
    {IN("torch/serialization", "save"), STW_COMPONENT_CHECKPOINT_STAGING},
};

static bool has(const char *text, const char *part) {
    return part == NULL || (text != NULL && strstr(text, part) != NULL);
}

static bool fits(const pattern *p, const stw_frame *f) {
    if (!has(f->file, p->file) || !has(f->code, p->code)) return false;
    if (p->function == NULL) return true;
    const size_t n = strlen(p->function);
    if (p->function[n - 1] == '*') return strncmp(f->function, p->function, n - 1) == 0;
    return strcmp(f->function, p->function) == 0;
}

stw_stack_phase stw_stack_phase_of(const stw_frame *frames, size_t n) {
    for (size_t r = 0; r < sizeof phases / sizeof phases[0]; r++)
        for (size_t i = n; i-- > 0;)
            if (fits(&phases[r].frame, &frames[i]))
                return (stw_stack_phase){phases[r].phase, phases[r].part, &frames[i]};
    return (stw_stack_phase){STW_N_PHASES, NULL, NULL};
}

stw_stack_component stw_stack_component_of(const stw_frame *frames, size_t n) {
    for (size_t i = n; i-- > 0;)
        for (size_t r = 0; r < sizeof components / sizeof components[0]; r++)
            if (fits(&components[r].frame, &frames[i]))
                return (stw_stack_component){components[r].component, &frames[i]};
    return (stw_stack_component){STW_N_COMPONENTS, NULL};
}

/* ---- how far a log has come ---- */

/* What counts iterations: "iteration        5/  120000 | elapsed", "global_step/max_steps':
 * '600/22156'", "step:12 - ". */
static const struct {
    const char *words, *beside;
} counters[] = {{" iteration ", "elapsed time per iteration"},
                {"global_step/max_steps", NULL},
                {"\"global_step\": ", NULL},
                {"'global_step': ", NULL},
                {"iteration': '", NULL},
                {"step:", " - "}};

static const struct {
    const char *words;
    stw_phase phase;
} marks[] = {{"Loading checkpoint shards:", STW_PHASE_LOAD},
             {"Loading safetensors checkpoint shards:", STW_PHASE_LOAD},
             {"loading checkpoint from", STW_PHASE_LOAD},
             {"loading release checkpoint from", STW_PHASE_LOAD},
             {"building GPT model", STW_PHASE_LOAD},
             {"saving checkpoint at iteration", STW_PHASE_CHECKPOINT},
             {"Saving model checkpoint to", STW_PHASE_CHECKPOINT},
             {"Capturing CUDA graph", STW_PHASE_ROLLOUT},
             {"Initializing an LLM engine", STW_PHASE_ROLLOUT},
             {"Model loading took", STW_PHASE_ROLLOUT},
             {"***** Running training *****", STW_PHASE_FORWARD_BACKWARD}};

static bool count_at(const char *at, const char *end, stw_log_progress *out) {
    while (at < end && *at != '\n' && !isdigit((unsigned char)*at)) at++;
    if (at == end || !isdigit((unsigned char)*at)) return false;
    char *rest = NULL;
    const uint64_t n = strtoull(at, &rest, 10);
    rest += strspn(rest, " ");
    out->iterations = n;
    if (*rest == '/') out->of = strtoull(rest + 1, NULL, 10);
    if (out->of == 0) out->of = STW_NOT_SAID;
    return true;
}

static const char *find(const char *from, const char *end, const char *words) {
    return memmem(from, (size_t)(end - from), words, strlen(words));
}

static void read_line(const char *line, const char *end, stw_log_progress *out) {
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        const char *at = find(line, end, counters[i].words);
        if (at == NULL || (counters[i].beside != NULL && find(at, end, counters[i].beside) == NULL))
            continue;
        if (!count_at(at + strlen(counters[i].words), end, out)) continue;
        out->phase = STW_N_PHASES;
        out->mark = NULL;
        return;
    }
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (find(line, end, marks[i].words) != NULL) {
            out->phase = marks[i].phase;
            out->mark = marks[i].words;
        }
}

stw_log_progress stw_log_progress_of(const char *text, size_t length) {
    stw_log_progress out = {
        .iterations = STW_NOT_SAID, .of = STW_NOT_SAID, .phase = STW_N_PHASES, .mark = NULL};
    for (const char *at = text, *end = text + length; at < end;) {
        size_t n = 0;
        while (at + n < end && at[n] != '\n' && at[n] != '\r') n++;
        read_line(at, at + n, &out);
        at += n + 1;
    }
    return out;
}

/* ---- whose program ---- */

/* The first that is found: those that call others come first. */
static const struct {
    const char *path, *text;
    stw_program_name program;
} programs[] = {
    {"verl/", "verl/trainer", {"verl", "verl", "fsdp2", false}},
    {"areal/", "areal/", {"AReaL", "areal", "fsdp2", false}},
    {"swift/", "[INFO:swift]", {"ms-swift", "ms-swift", "fsdp2", false}},
    {"llamafactory/", "llamafactory/", {"LLaMA-Factory", "llamafactory", "deepspeed", false}},
    {"megatron/", "megatron/training", {"Megatron-LM", "megatron", "megatron", false}},
    {"deepspeed/", "deepspeed/", {"DeepSpeed", "deepspeed", "deepspeed", true}},
    {"_fully_shard/", NULL, {"torch's FSDP2", NULL, "fsdp2", true}},
    {"torch/distributed/fsdp/", NULL, {"torch's FSDP", NULL, "fsdp2", true}},
};

stw_program_name stw_program_of(const stw_frame *frames, size_t n, const char *text) {
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++) {
        for (size_t i = 0; i < n; i++)
            if (strstr(frames[i].file, programs[p].path) != NULL) return programs[p].program;
        if (n == 0 && programs[p].text != NULL && strstr(text, programs[p].text) != NULL)
            return programs[p].program;
    }
    return (stw_program_name){NULL, NULL, "fsdp2", true};
}

const char *stw_program_writer(const stw_program_name *program, const char *engine) {
    static const char *const engines[] = {"fsdp2", "megatron", "deepspeed"};
    static const char *const writers[] = {"verl", "areal", "ms-swift", "megatron", "deepspeed"};
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++)
        if (program->from != NULL && strcmp(program->from, writers[i]) == 0) return writers[i];
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++)
        if (strcmp(engine, engines[i]) == 0) return engines[i];
    return NULL;
}
