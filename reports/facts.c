/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "plan/files/verdict.h"

const char *stw_resource_words(stw_resource resource) {
    static const char *const words[STW_N_RESOURCES] = {
        [STW_RESOURCE_GPU] = "GPU compute",
        [STW_RESOURCE_HBM] = "GPU memory bandwidth",
        [STW_RESOURCE_PCIE_UP] = "PCIe, host to GPU",
        [STW_RESOURCE_PCIE_DOWN] = "PCIe, GPU to host",
        [STW_RESOURCE_PCIE] = "PCIe, both directions",
        [STW_RESOURCE_DMA] = "DMA of all GPUs of a node",
        [STW_RESOURCE_DMA_UP] = "DMA to all GPUs of a node",
        [STW_RESOURCE_DMA_DOWN] = "DMA from all GPUs of a node",
        [STW_RESOURCE_HOST_MEMORY] = "host memory bandwidth",
        [STW_RESOURCE_CPU] = "CPU",
        [STW_RESOURCE_NVLINK] = "NVLink",
        [STW_RESOURCE_NIC] = "network",
        [STW_RESOURCE_DISK] = "disk",
        [STW_RESOURCE_DISK_READ] = "disk, reads",
        [STW_RESOURCE_DISK_WRITE] = "disk, writes",
        [STW_RESOURCE_PAGE_CACHE] = "files in the page cache"};
    return (unsigned)resource < STW_N_RESOURCES ? words[resource] : "?";
}

const char *stw_component_words(stw_component component) {
    static const char *const words[STW_N_COMPONENTS] = {
        [STW_COMPONENT_PARAMS] = "parameters of the shard",
        [STW_COMPONENT_GRADS] = "gradients of the shard",
        [STW_COMPONENT_MASTER] = "fp32 master weights",
        [STW_COMPONENT_EXP_AVG] = "first moment of AdamW, or Muon's momentum",
        [STW_COMPONENT_EXP_AVG_SQ] = "second moment of AdamW",
        [STW_COMPONENT_ACTIVATIONS] = "kept for the backward pass",
        [STW_COMPONENT_LOGITS] = "output of the head, and the loss",
        [STW_COMPONENT_UNSHARD] = "gathered parameters",
        [STW_COMPONENT_REDUCE] = "gradients in reduction",
        [STW_COMPONENT_STAGE] = "buffers of the step",
        [STW_COMPONENT_KV_CACHE] = "KV cache of rollouts",
        [STW_COMPONENT_ROLLOUT_WEIGHTS] = "weights of inference engines",
        [STW_COMPONENT_ROLLOUT_WORK] = "their activations and CUDA graphs",
        [STW_COMPONENT_ROLE_PROCESS] = "their processes, contexts and NCCL",
        [STW_COMPONENT_COMM] = "NCCL",
        [STW_COMPONENT_CONTEXT] = "CUDA context",
        [STW_COMPONENT_SLACK] = "cached by the allocator for other streams",
        [STW_COMPONENT_LOAD_STAGING] = "buffers of the load",
        [STW_COMPONENT_PAGE_LOCK_ROUNDING] = "page-locked sizes rounded up",
        [STW_COMPONENT_PAGE_LOCK_CACHE] = "freed page-locked blocks that torch keeps",
        [STW_COMPONENT_PROCESS] = "processes of the ranks",
        [STW_COMPONENT_CHECKPOINT_STAGING] = "copies for a checkpoint",
        [STW_COMPONENT_CHECKPOINT_FILES] = "files of checkpoints",
        [STW_COMPONENT_OBJECT_STORE] = "objects of a scheduler",
        [STW_COMPONENT_DATA_LOADERS] = "data loaders"};
    const char *word = (unsigned)component < STW_N_COMPONENTS ? words[component] : NULL;
    return word != NULL ? word : "";
}

void stw_resource_name_words(const char *name, char *out, size_t out_size) {
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        if (strcmp(name, stw_resource_name((stw_resource)r)) == 0)
            name = stw_resource_words((stw_resource)r);
    if (strcmp(name, "pcie") == 0) name = "PCIe bandwidth";
    if (strcmp(name, "host_bandwidth") == 0 || strcmp(name, "host bandwidth") == 0)
        name = "host memory bandwidth";
    snprintf(out, out_size, "%s", name);
    for (char *p = out; *p != '\0'; p++)
        if (*p == '_') *p = ' ';
    if (strncmp(out, "gpu ", 4) == 0) memcpy(out, "GPU", 3);
    if (strncmp(out, "nvme", 4) == 0) memcpy(out, "NVMe", 4);
}

/* The resource with the most seconds of demand in one movement. */
static void find_bound(const stw_plan *plan, const stw_program *program,
                       const stw_movement *movement, stw_phase_facts *out) {
    double busy[STW_N_RESOURCES] = {0};
    stw_demand_add_movement(plan->job, program, movement, busy);
    unsigned most = 0;
    for (unsigned r = 1; r < STW_N_RESOURCES; r++)
        if (busy[r] > busy[most]) most = r;
    if (busy[most] <= out->busy_s) return;
    out->is_bound = true;
    out->binds = (stw_resource)most;
    out->busy_s = busy[most];
    memcpy(out->busy, busy, sizeof out->busy);
}

static void add_kind(const stw_plan *plan, uint32_t kind, stw_phase phase, stw_phase_facts *out) {
    if (plan->peaks != NULL && plan->peaks[kind].has[phase]) {
        uint64_t bytes = plan->peaks[kind].phase[phase][STW_TIER_GPU].total;
        if (!out->present || bytes > out->gpu_bytes) {
            out->gpu_bytes = bytes;
            out->gpu_kind = kind;
        }
        out->present = true;
    }
    const stw_program *program = plan->programs != NULL ? plan->programs[kind] : NULL;
    for (uint32_t m = 0; program != NULL && m < program->n_movements; m++)
        if (program->movements[m].phase == phase)
            find_bound(plan, program, &program->movements[m], out);
}

static void add_node(const stw_plan *plan, uint32_t node_kind, stw_phase phase,
                     stw_phase_facts *out) {
    if (plan->node_peaks != NULL && plan->node_peaks[node_kind].has[phase]) {
        uint64_t bytes = plan->node_peaks[node_kind].phase[phase][STW_TIER_HOST].total;
        if (bytes > out->host_bytes) {
            out->host_bytes = bytes;
            out->host_kind = node_kind;
        }
    }
    uint64_t nvme = 0;
    for (uint32_t k = 0; plan->peaks != NULL && k < plan->job->n_kinds; k++)
        if (plan->peaks[k].has[phase])
            nvme += plan->peaks[k].phase[phase][STW_TIER_NVME].total *
                    plan->job->node_kinds[node_kind].kind_ranks[k];
    if (nvme > out->nvme_bytes) out->nvme_bytes = nvme;
}

static void add_excesses(const stw_plan *plan, stw_plan_facts *facts) {
    static const char *const resources[STW_MAX_EXCESSES] = {"gpu memory", "host memory",
                                                            "page-locked memory", "nvme"};
    const uint64_t limits[STW_MAX_EXCESSES] = {facts->gpu_capacity, facts->host_capacity,
                                               plan->cluster.host.page_lock_limit_bytes,
                                               facts->nvme_capacity};
    for (unsigned r = 0; plan->peaks != NULL && r < STW_MAX_EXCESSES; r++) {
        stw_excess worst = {resources[r], STW_N_PHASES, 0, limits[r]};
        for (unsigned p = 0; p < STW_N_PHASES; p++) {
            uint64_t bytes = stw_plan_over_bytes(plan, resources[r], (stw_phase)p);
            if (bytes <= worst.bytes) continue;
            worst.phase = (stw_phase)p;
            worst.bytes = bytes;
        }
        if (worst.bytes > 0) facts->excesses[facts->n_excesses++] = worst;
    }
}

/* Elements of a region that belong to frozen tensors. */
static uint64_t frozen_of(const stw_job *job, const stw_region *region, const stw_space *space) {
    const stw_view view = stw_region_view(region, space);
    uint64_t n = 0;
    if (region->component != STW_COMPONENT_PARAMS || job->frozen == NULL) return 0;
    for (uint32_t i = stw_view_first_segment(view); i < space->n_segments; i++) {
        const uint64_t count = stw_view_count(view, i);
        if (count == 0) break;
        if (job->frozen[space->segments[i].tensor]) n += count;
    }
    return n;
}

static void add_region(const stw_job *job, const stw_region *region, const stw_space *space,
                       stw_plan_facts *facts) {
    const uint64_t frozen = frozen_of(job, region, space);
    const uint64_t element = region->params > 0 ? region->bytes / region->params : 0;
    const uint64_t copies = region->tier == STW_TIER_NVME ? stw_nvme_copies(job) : 1;
    const uint64_t all = stw_times(region->bytes, copies);
    const uint64_t still = stw_times(stw_times(frozen, element), copies);
    facts->frozen_params += frozen;
    facts->frozen_bytes[region->tier] += still;
    facts->place_bytes[region->decision][region->tier] += all - still;
    facts->state_bytes[region->tier] += all;
}

/* An engine that has all state in one place may keep more or less of it than the regions say while
 * it updates: its bytes are those of the walk, at the peaks of the step. */
static void take_walk(const stw_plan *plan, stw_plan_facts *facts) {
    static const stw_tier tiers[] = {STW_TIER_GPU, STW_TIER_HOST};
    const stw_phase step = STW_PHASE_OPTIMIZER_STEP;
    const stw_peaks *peaks = plan->peaks != NULL ? &plan->peaks[plan->job->largest] : NULL;
    if (peaks == NULL || !peaks->has[step]) return;
    for (int i = 0; i < 2; i++) {
        const uint64_t *components = peaks->phase[step][tiers[i]].components;
        uint64_t bytes = 0;
        for (unsigned c = 0; c < STW_N_STATE; c++) bytes = stw_plus(bytes, components[c]);
        facts->state_bytes[tiers[i]] = bytes;
        facts->place_bytes[0][tiers[i]] = bytes - stw_min_u64(bytes, facts->frozen_bytes[tiers[i]]);
    }
}

static void add_state(const stw_plan *plan, stw_plan_facts *facts) {
    const stw_job *job = plan->job;
    const stw_layout *layout = plan->layouts != NULL ? plan->layouts[job->largest] : NULL;
    uint64_t first;
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++)
        stw_decision_range(job, &plan->decisions, job->largest, i, &first, &facts->place_params[i]);
    /* matrices that are updated otherwise than the rest have a space of the engine's */
    for (uint32_t id = STW_N_STATE_SPACES; id < job->n_spaces && stw_optimizer_divides(job->run);
         id++)
        facts->place_params[0] += job->kinds[job->largest].spaces[id].n;
    for (uint32_t i = 0; layout != NULL && i < layout->n_regions; i++) {
        const stw_region *region = &layout->regions[i];
        add_region(job, region, &job->kinds[job->largest].spaces[region->space], facts);
    }
    if (job->engine->whole) take_walk(plan, facts);
}

/* What a caching allocator holds at its worst. Beyond the limit it holds nothing. */
static void add_reserved(const stw_plan *plan, stw_plan_facts *facts) {
    if (plan->job->engine->spec.own_process || plan->shown == NULL || plan->replayed == NULL ||
        plan->verdict == STW_VERDICT_DOES_NOT_FIT)
        return;
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
            const uint64_t bytes = plan->shown[k].phase[p][STW_TIER_GPU].total;
            if (!plan->shown[k].has[p] || bytes <= facts->gpu_reserved) continue;
            facts->gpu_reserved = bytes;
            facts->reserved_phase = (stw_phase)p;
        }
}

void stw_plan_facts_get(const stw_plan *plan, stw_plan_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->gpu_capacity = stw_plan_gpu_capacity(plan);
    facts->host_capacity = stw_plan_host_capacity(plan);
    facts->nvme_capacity = plan->cluster.nvme.capacity_bytes;
    facts->gpu_phase = facts->host_phase = STW_N_PHASES;
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        stw_phase_facts *f = &facts->phases[p];
        f->time_s = plan->time_s[p];
        f->whole_s = f->time_s;
        if (p == STW_PHASE_OPTIMIZER_STEP) f->whole_s += stw_plan_hidden_s(plan);
        for (uint32_t k = 0; k < plan->job->n_kinds; k++) add_kind(plan, k, (stw_phase)p, f);
        for (uint32_t n = 0; n < plan->job->n_node_kinds; n++) add_node(plan, n, (stw_phase)p, f);
        if (!f->present) continue;
        if (facts->gpu_phase == STW_N_PHASES || f->gpu_bytes > facts->gpu_peak) {
            facts->gpu_phase = (stw_phase)p;
            facts->gpu_peak = f->gpu_bytes;
        }
        if (facts->host_phase == STW_N_PHASES || f->host_bytes > facts->host_peak) {
            facts->host_phase = (stw_phase)p;
            facts->host_peak = f->host_bytes;
        }
        if (f->nvme_bytes > facts->nvme_peak) facts->nvme_peak = f->nvme_bytes;
    }
    add_state(plan, facts);
    add_excesses(plan, facts);
    add_reserved(plan, facts);
}

/* "GPU compute, forward_backward" of "gpu_compute in forward_backward" */
void stw_bound_words(const char *binds, char *out, size_t out_size) {
    const char *in = binds != NULL ? strstr(binds, " in ") : NULL;
    char name[64], words[96];
    out[0] = '\0';
    if (in == NULL) return;
    snprintf(name, sizeof name, "%.*s", (int)(in - binds), binds);
    stw_resource_name_words(name, words, sizeof words);
    snprintf(out, out_size, "%s in %s", words, in + 4);
}
