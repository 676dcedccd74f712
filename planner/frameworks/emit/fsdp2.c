/* SPDX-License-Identifier: Apache-2.0 */
/* A Python module that realises a plan of engine fsdp2 (torch.distributed.fsdp, 2.6 or later). */
#include <string.h>

#include "core/checked.h"
#include "core/log.h"
#include "engines/fsdp_keys.h"
#include "plan/program/blocks.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/fsdp2_model.h"

static const char *dtype(stw_emission *e, const char *key) {
    const char *text = stw_emit_text(e, key);
    if (text == NULL || strcmp(text, "fp32") == 0) return "torch.float32";
    return strcmp(text, "fp16") == 0 ? "torch.float16" : "torch.bfloat16";
}

/* recompute.granularity: selective. */
static bool keeps_operations(const stw_emission *e) {
    return e->plan->run.recompute.granularity == 2 && stw_fsdp_modules_of(&e->plan->run).ops;
}

/* Stowage's optimizer in the job. */
static bool steps_inside(const stw_emission *e) {
    return stw_engine_steps_inside(&e->plan->job->engine->spec);
}

/* Room for regions that are aligned apart from each other, in a job of other parts than the plan's:
 * a byte less than all state is resident state and a ring. */
#define INSIDE_ALIGNS_BYTES (1ull << 20)

/* What the optimizer takes of the GPU: resident state and the ring. */
static uint64_t inside_gpu_bytes(const stw_emission *e) {
    const stw_layout *layout = e->plan->layouts[e->plan->job->largest];
    const stw_ring *ring = &layout->rings[STW_RING_GPU];
    uint64_t bytes = stw_times(ring->slots, ring->slot_bytes);
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        const bool state = r->component != STW_COMPONENT_PARAMS &&
                           r->component != STW_COMPONENT_GRADS && r->tier == STW_TIER_GPU;
        if (state) bytes = stw_plus(bytes, r->bytes);
    }
    return ring->slots > 0 ? bytes : stw_plus(bytes, INSIDE_ALIGNS_BYTES);
}

/* What it takes of the host where a part of its state lies on NVMe; 0: none does. */
static uint64_t inside_host_bytes(const stw_emission *e) {
    const stw_layout *layout = e->plan->layouts[e->plan->job->largest];
    if (layout->arena_bytes[STW_TIER_NVME] == 0) return 0;
    return stw_plus(layout->arena_bytes[STW_TIER_HOST], 16 * STW_ALIGN_BYTES);
}

/* Where the optimizer has its state. */
static void write_inside(stw_emission *e, stw_text *out) {
    const stw_ring *ring = &e->plan->layouts[e->plan->job->largest]->rings[STW_RING_GPU];
    const uint64_t host_bytes = inside_host_bytes(e);
    stw_text_printf(out,
                    "GPU_MEMORY = %llu  # bytes of the optimizer: resident state and the ring; the "
                    "rest is page-locked\n",
                    (unsigned long long)inside_gpu_bytes(e));
    if (ring->slots > 0)
        stw_text_printf(out, "BUCKET, DEPTH = %llu, %u  # bytes and number of the ring's slots\n",
                        (unsigned long long)e->plan->decisions.prefetch.bucket_bytes, ring->slots);
    else
        stw_text_printf(out, "BUCKET = DEPTH = None  # all state is resident\n");
    if (host_bytes > 0)
        stw_text_printf(
            out,
            "HOST_MEMORY = %llu  # bytes of a rank, page-locked; state that has no room "
            "in them lies on NVMe\n",
            (unsigned long long)host_bytes);
}

/* Ways in which ranks share a layer or a sequence: the model does that, or its program. */
static void write_limits(const stw_emission *e, stw_text *out) {
    const stw_parallel *p = &e->plan->run.parallel;
    const struct {
        const char *key, *what, *by;
        uint32_t ways;
    } limits[] = {
        {"parallel.cp", "context parallelism",
         "cut every sequence over neighbouring ranks\n"
         "           (torch.distributed.tensor.experimental.context_parallel)",
         p->cp},
        {"parallel.ep", "expert parallelism", "spread the experts and exchange tokens", p->ep},
        {"parallel.tp", "tensor parallelism",
         "call parallelize_module with the model's plan\n           (see shard)", p->tp},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].ways <= 1) continue;
        stw_text_printf(out,
                        "\n    Limit: the plan has %s %u, and this module has no %s.\n"
                        "           The model or the program must %s.\n"
                        "           Without it a rank needs more memory than was planned.\n",
                        limits[i].key, limits[i].ways, limits[i].what, limits[i].by);
        stw_log(STW_LOG_WARN,
                "--emit fsdp2: the plan has %s %u, and the module that is written has no %s: the "
                "model or the program must do it, or a rank needs more memory than was planned",
                limits[i].key, limits[i].ways, limits[i].what);
    }
}

static void write_head(stw_emission *e, stw_text *out) {
    const bool inside = steps_inside(e);
    const stw_run_spec *run = &e->plan->run;
    const char *clip = stw_emit_text(e, "optimizer.clip_norm");
    stw_text_printf(out, "\"\"\"Settings of torch FSDP2 (2.6 or later) for ");
    stw_emit_python_text(e, e->plan->model->name, out);
    stw_text_printf(
        out,
        " on %u x %u GPUs. In every rank, after init_process_group():\n\n"
        "    model = ...            # in PARAMS, on the meta device\n"
        "    shard(model)           # then model.to_empty(device=DEVICE), weights, and\n"
        "                           # buffers that no file has (inv_freq of rotary)\n"
        "    optimizer = adamw(%s, lr=...)%s\n"
        "    each of MICRO_BATCHES: micro_batch(model, index), forward, backward\n"
        "    %soptimizer.step()%s\n",
        e->plan->cluster.nodes, e->plan->cluster.gpus,
        !inside                    ? "model.parameters()"
        : inside_host_bytes(e) > 0 ? "model, FOLDER"
                                   : "model",
        inside && inside_host_bytes(e) > 0 ? "  # a folder on a local disk of each node" : "",
        inside ? "" : "torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM), ",
        inside ? "       # clips, too" : "");
    write_limits(e, out);
    stw_text_printf(out, "\"\"\"\n");
    if (stw_emit_on(e, "allocator.expandable_segments"))
        stw_text_printf(out, "# Start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the "
                             "environment.\n");
    stw_text_printf(out,
                    "%s%simport torch\n"
                    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import "
                    "checkpoint_wrapper\n"
                    "from torch.distributed.device_mesh import init_device_mesh\n"
                    "from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, "
                    "OffloadPolicy, fully_shard\n",
                    inside && run->optimizer.n_groups > 0 ? "from fnmatch import fnmatchcase\n\n"
                                                          : "",
                    inside ? "import stowage.torch\n" : "");
    if (keeps_operations(e))
        stw_text_printf(out, "from torch.utils.checkpoint import CheckpointPolicy, "
                             "create_selective_checkpoint_contexts\n");
    stw_text_printf(out, "\n");
    stw_text_printf(out, "PARAMS = %s  # the dtype in which parameters are created\n",
                    dtype(e, "precision.params"));
    stw_text_printf(out, "DEVICE = \"%s\"  # where shards of parameters lie\n",
                    stw_emit_on(e, "fsdp.offload_policy") ? "cpu" : "cuda");
    stw_text_printf(out, "SEQUENCES = %llu  # of a micro batch, on each data-parallel rank\n",
                    (unsigned long long)run->batch.micro_batch);
    stw_text_printf(out, "SEQUENCE_LENGTH = %llu  # tokens\n",
                    (unsigned long long)run->batch.seq_len);
    stw_text_printf(out, "MICRO_BATCHES = %llu  # of an optimizer step\n",
                    (unsigned long long)run->batch.grad_accumulation);
    stw_text_printf(out, "MAX_NORM = %s  # of %s%s\n", clip != NULL ? clip : "None",
                    inside ? "the gradients" : "clip_grad_norm_",
                    clip != NULL ? "" : ": gradients are not clipped");
    if (inside) write_inside(e, out);
}

/* NAME = {0, 1, 2}: the layers with a policy, by index. @return are there any? */
static bool write_layers(const stw_emission *e, const stw_act *acts, stw_act act, const char *name,
                         stw_text *out) {
    const stw_model *model = e->plan->model;
    uint32_t layer = 0, n = 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        if (!model->groups[model->blocks[b].group].facts.transformer) continue;
        if (acts[b] == act && n++ == 0)
            stw_text_printf(out, "%s = {%u", name, layer);
        else if (acts[b] == act)
            stw_text_printf(out, ", %u", layer);
        layer++;
    }
    if (n > 0) stw_text_printf(out, "}\n");
    return n > 0;
}

/* @return are layers recomputed? */
static bool write_activations(stw_emission *e, stw_text *out) {
    stw_act *acts = stw_pool_array(e->pool, e->plan->model->n_blocks, sizeof *acts);
    if (acts == NULL) {
        if (e->status == STW_STATUS_OK)
            e->status = stw_fail(e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
        return false;
    }
    stw_block_acts(e->plan->job, &e->plan->decisions, acts);
    const bool some = write_layers(e, acts, STW_ACT_RECOMPUTE, "RECOMPUTED", out);
    if (write_layers(e, acts, STW_ACT_OFFLOAD, "OFFLOADED", out))
        stw_text_printf(out,
                        "# Activations of OFFLOADED go to the host after forward: torch has no "
                        "setting for it\n# (torchtune's OffloadActivations does it).\n");
    return some;
}

static void write_mesh(stw_emission *e, stw_text *out) {
    const stw_parallel *p = &e->plan->run.parallel;
    const uint64_t sharded = stw_emit_ranks(e) * p->cp;
    const uint64_t copies = p->dp_replicate > 0 ? p->dp_replicate : 1;
    if (p->tp > 1) {
        stw_text_printf(out,
                        "    mesh = init_device_mesh(\"cuda\", (%llu, %u), mesh_dim_names=(\"dp\", "
                        "\"tp\"))\n"
                        "    # Tensor parallelism comes first: "
                        "torch.distributed.tensor.parallel.parallelize_module\n"
                        "    # with the model's own plan, on mesh[\"tp\"].\n"
                        "    mesh = mesh[\"dp\"]\n",
                        (unsigned long long)sharded, p->tp);
        return;
    }
    if (copies > 1)
        stw_text_printf(out,
                        "    mesh = init_device_mesh(\"cuda\", (%llu, %llu))  # replicas, "
                        "shards\n",
                        (unsigned long long)copies, (unsigned long long)(sharded / copies));
    else
        stw_text_printf(out, "    mesh = init_device_mesh(\"cuda\", (%llu,))\n",
                        (unsigned long long)sharded);
}

/* The policy that engines/bytes.c names (of_operations). */
static void write_policy(const stw_emission *e, stw_text *out) {
    if (!keeps_operations(e)) return;
    stw_text_printf(
        out, "\n\ndef contexts():\n"
             "    \"\"\"Of each layer attention and every second product are kept, and what ranks "
             "reduced.\"\"\"\n"
             "    aten = torch.ops.aten\n"
             "    kept = {aten._scaled_dot_product_flash_attention.default,\n"
             "            aten._scaled_dot_product_efficient_attention.default,\n"
             "            torch.ops._c10d_functional.reduce_scatter_tensor.default}"
             "  # and the operation of another attention kernel\n"
             "    products = {True: 0, False: 0}  # of the forward that is made again, of the first"
             "\n\n"
             "    def policy(context, operation, *args, **kwargs):\n"
             "        if operation == aten.mm.default:\n"
             "            products[context.is_recompute] += 1\n"
             "            keep = products[context.is_recompute] %% 2 == 1\n"
             "        else:\n"
             "            keep = operation in kept\n"
             "        return CheckpointPolicy.MUST_SAVE if keep else "
             "CheckpointPolicy.PREFER_RECOMPUTE\n\n"
             "    return create_selective_checkpoint_contexts(policy)\n");
}

/* What of every layer is made again. */
static void write_selective(const stw_emission *e, stw_text *out) {
    if (e->plan->run.recompute.granularity != 2) return;
    stw_text_printf(out, "    for blocks, index in layers(model):\n");
    if (keeps_operations(e))
        stw_text_printf(out, "        blocks[index] = checkpoint_wrapper(blocks[index], "
                             "context_fn=contexts)\n");
    else
        stw_text_printf(out, "        for name, part in list(blocks[index].named_children()):\n"
                             "            if name in PARTS:\n"
                             "                setattr(blocks[index], name, "
                             "checkpoint_wrapper(part))\n");
}

static void write_shard(stw_emission *e, bool recomputed, stw_text *out) {
    stw_text_printf(out, "\n\ndef shard(model):\n");
    write_mesh(e, out);
    stw_text_printf(out,
                    "    settings = {\n"
                    "        \"mesh\": mesh,\n"
                    "        \"mp_policy\": MixedPrecisionPolicy(param_dtype=%s, reduce_dtype=%s),"
                    "\n        \"offload_policy\": %s,\n        \"reshard_after_forward\": ",
                    dtype(e, "precision.compute"), dtype(e, "precision.reduce"),
                    stw_emit_on(e, "fsdp.offload_policy") ? "CPUOffloadPolicy()"
                                                          : "OffloadPolicy()");
    if (stw_emit_on(e, "fsdp.reshard_to_node"))
        stw_text_printf(out, "%u,\n    }\n", e->plan->cluster.gpus);
    else
        stw_text_printf(out, "%s,\n    }\n",
                        stw_emit_on(e, "fsdp.reshard_after_forward") ? "True" : "False");
    if (recomputed)
        stw_text_printf(out, "    for number, (blocks, index) in enumerate(layers(model)):\n"
                             "        if number in RECOMPUTED:\n"
                             "            blocks[index] = checkpoint_wrapper(blocks[index])\n");
    write_selective(e, out);
    stw_text_printf(out, "    for blocks, index in layers(model):\n"
                         "        fully_shard(blocks[index], **settings)\n");
    if (stw_emit_on(e, "fsdp.wrap_embeddings"))
        stw_text_printf(out, "    fully_shard(model.get_input_embeddings(), **settings)\n");
    stw_text_printf(out, "    fully_shard(model, **settings)\n");
}

/* The constructor hides steps behind a module that it is given, but not behind groups. */
static void write_adamw_inside(stw_emission *e, stw_text *out) {
    const bool grouped = e->plan->run.optimizer.n_groups > 0;
    const bool overlaps = e->plan->run.optimizer.overlap;
    const bool half = e->plan->run.precision.exp_avg == STW_DTYPE_BF16;
    const bool spills = inside_host_bytes(e) > 0;
    if (grouped) stw_emit_python_groups(e, out);
    stw_text_printf(
        out,
        "\n\ndef adamw(model, %s**arguments):\n"
        "    \"\"\"After shard(). Instead of GPU_MEMORY, BUCKET%s%s and DEPTH: plan=\"FILE\" of "
        "stowage "
        "plan -o FILE.\"\"\"\n"
        "    optimizer = stowage.torch.AdamW(%s, clip_norm=MAX_NORM, overlap=%s, "
        "gpu_memory=GPU_MEMORY,\n"
        "                                    bucket=BUCKET, depth=DEPTH, %s%s**arguments)\n",
        spills ? "nvme, " : "", half ? ", moments" : "", spills ? ", HOST_MEMORY" : "",
        grouped ? "groups(model)" : "model", overlaps && !grouped ? "True" : "False",
        half ? "moments=torch.bfloat16, " : "",
        spills ? "nvme=nvme, host_memory=HOST_MEMORY, " : "");
    if (overlaps && grouped) stw_text_printf(out, "    optimizer.hide_behind(model)\n");
    stw_text_printf(out, "    return optimizer\n");
}

static void write_optimizer(stw_emission *e, stw_text *out) {
    const bool cpu = stw_emit_on(e, "fsdp.offload_policy");
    const char *kind = stw_emit_text(e, "optimizer.implementation");
    const char *how = cpu ? "foreach=False" : "fused=True"; /* as the plan takes auto */
    if (steps_inside(e)) {
        write_adamw_inside(e, out);
        return;
    }
    if (kind != NULL && strcmp(kind, "fused") == 0) how = "fused=True";
    if (kind != NULL && strcmp(kind, "foreach") == 0) how = "foreach=True";
    if (kind != NULL && strcmp(kind, "loop") == 0) how = "foreach=False";
    stw_text_printf(out,
                    "\n\ndef adamw(params, **arguments):\n"
                    "    return torch.optim.AdamW(params, %s, **arguments)\n",
                    how);
}

static void write_micro_batch(stw_emission *e, stw_text *out) {
    const bool sync = stw_emit_on(e, "fsdp.sync_each_micro_batch");
    const bool reshard = stw_emit_on(e, "fsdp.reshard_after_backward");
    const char *last = "index == MICRO_BATCHES - 1";
    stw_text_printf(out,
                    "\n\ndef micro_batch(model, index):\n"
                    "    model.set_requires_gradient_sync(%s)\n"
                    "    model.set_reshard_after_backward(%s)\n",
                    sync ? "True" : last, reshard ? "True" : last);
}

void stw_emit_fsdp2(stw_emission *e, stw_text *out) {
    write_head(e, out);
    const bool recomputed = write_activations(e, out);
    if (e->plan->run.recompute.granularity == 2 && !keeps_operations(e))
        stw_emit_python_parts(e, out);
    write_policy(e, out);
    stw_emit_python_layers(e, out);
    write_shard(e, recomputed, out);
    write_optimizer(e, out);
    write_micro_batch(e, out);
}

static stw_status copy_value(const stw_run_spec *from, stw_run_spec *to, const char *key,
                             stw_error *err) {
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_spec_write_value(row, from, &text);
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_run_spec_set(to, key, text.data, "--emit", err));
out:
    stw_text_free(&text);
    return status;
}

/* Gradients have the dtype of PARAMS. GPU_MEMORY, BUCKET and DEPTH are
 * what was decided, by the planner or by keys. */
static stw_status say_inside(const stw_emission *e, stw_run_spec *run, stw_error *err) {
    static const char *const keys[] = {"precision.grads",   "precision.master",
                                       "precision.exp_avg", "precision.exp_avg_sq",
                                       "optimizer.overlap", "optimizer.implementation"};
    const stw_run_spec *planned = &e->plan->run;
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        STW_TRY(copy_value(planned, run, keys[i], err));
    run->optimizer.groups = planned->optimizer.groups;
    run->optimizer.n_groups = planned->optimizer.n_groups;
    run->update = planned->update;
    run->prefetch = planned->prefetch;
    run->placement.moments = planned->placement.moments;
    run->placement.master = planned->placement.master;
out:
    return status;
}

stw_status stw_emit_fsdp2_says(stw_emission *e, stw_run_spec *run, stw_error *err) {
    static const char *const keys[] = {"precision.params",
                                       "precision.compute",
                                       "precision.reduce",
                                       "batch.micro_batch",
                                       "batch.seq_len",
                                       "batch.grad_accumulation",
                                       "parallel.dp_replicate",
                                       "optimizer.clip_norm",
                                       "allocator.expandable_segments",
                                       "fsdp.offload_policy",
                                       "fsdp.reshard_after_forward",
                                       "fsdp.reshard_to_node",
                                       "fsdp.reshard_after_backward",
                                       "fsdp.wrap_embeddings",
                                       "fsdp.sync_each_micro_batch"};
    const stw_run_spec *planned = &e->plan->run;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_run_spec_init_as(planned, run, err));
    run->engine = planned->engine;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        STW_TRY(copy_value(planned, run, keys[i], err));
    /* adamw() as write_optimizer has it; activations that are to be offloaded are kept */
    const stw_optimizer_implementation how = planned->optimizer.implementation;
    const bool cpu = stw_emit_on(e, "fsdp.offload_policy");
    const bool known = how == STW_OPTIMIZER_FUSED || how == STW_OPTIMIZER_FOREACH;
    run->optimizer.implementation = known || how == STW_OPTIMIZER_LOOP ? how
                                    : cpu                              ? STW_OPTIMIZER_AUTO
                                                                       : STW_OPTIMIZER_FUSED;
    if (steps_inside(e)) STW_TRY(say_inside(e, run, err));
    run->recompute = planned->recompute; /* by layer */
    for (uint32_t i = 0; i < e->plan->decisions.n_blocks; i++)
        if (e->plan->decisions.blocks[i].act == STW_ACT_OFFLOAD &&
            e->plan->decisions.blocks[i].count > 0)
            STW_TRY(stw_run_spec_set(run, "recompute.granularity", "none", "--emit", err));
out:
    return status;
}
