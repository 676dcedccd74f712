/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"

static const uint64_t GIB = 1ull << 30;
static const uint64_t MAX_NODE_DOUBLINGS = 10, MAX_NODE_FACTOR = 1ull << 10;
static const uint64_t DISK_STEP_GIB = 100, MOST_DISK_STEPS = 160;
static const uint64_t MIN_SEQ_LEN = 128, LONG_SEQ_LEN = 8192;

#define MOST_CHANGES STW_MAX_FIX_CHANGES /* of a step */
#define MAX_CUT 16                       /* ranks, and experts of each kind of block */

/* A limit is asked about up to so many times what it is, and some more. */
enum { LIMIT_TIMES = 16, LIMIT_MORE_GIB = 4096 };

/* Counts of GiB and tokens change by one part of so many where others may be at risk. */
enum { FURTHER_PART = 12 };

#define FEWER "fewer activations and logits per GPU"

/* A share of the GPU goes down by one of so many parts, to so many of them. */
enum { SHARES = 20, LEAST_SHARE = 4 };

/* ---- steps ---- */

static void set_count(stw_change *c, const char *key, uint64_t count, const char *unit) {
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->value, sizeof c->value, "%llu%s", (unsigned long long)count, unit);
}

static void set_text(stw_change *c, const char *key, const char *value) {
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->value, sizeof c->value, "%s", value);
}

/* The i-th number below `from` that divides `whole`; 1 where there are fewer. */
static uint64_t part_below(uint64_t from, uint64_t whole, uint64_t i) {
    uint64_t value = from;
    while (value > 1 && i > 0)
        if (whole % --value == 0) i--;
    return value;
}

static uint64_t parts_below(uint64_t from, uint64_t whole) {
    uint64_t n = 0;
    for (uint64_t value = 1; value < from; value++) n += whole % value == 0;
    return n;
}

/* Moments come back where a trainer that loads all of its state for an update needs them. */
static uint32_t park_changes(const stw_knob *k, uint64_t steps, stw_change *out) {
    uint32_t n = 0;
    for (uint64_t i = 0; i < steps; i++) {
        set_text(&out[n++], k->words[i], "host");
        if (strcmp(k->words[i], "park.moments") != 0) continue;
        set_text(&out[n++], "park.moments_back", "forward_backward");
    }
    return n;
}

/* Does the run have this value already? */
static bool is_word(const stw_run_spec *run, const char *key, const char *word) {
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    stw_text text = STW_TEXT_INIT;
    if (row == NULL) return false;
    stw_spec_write_value(row, run, &text);
    bool same = text.data != NULL && strcmp(text.data, word) == 0;
    stw_text_free(&text);
    return same;
}

static bool is_among(const stw_change *changes, uint32_t n, const char *key) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(changes[i].key, key) == 0) return true;
    return false;
}

/* The next of "KEY=VALUE KEY=VALUE". @param words in and out @return false: there is none */
static bool next_word(const char **words, stw_change *out) {
    if (*words == NULL || **words == '\0') return false;
    const char *equals = strchr(*words, '='), *end = equals + strcspn(equals, " ");
    snprintf(out->key, sizeof out->key, "%.*s", (int)(equals - *words), *words);
    snprintf(out->value, sizeof out->value, "%.*s", (int)(end - equals - 1), equals + 1);
    *words = *end == ' ' ? end + 1 : end;
    return true;
}

/* A trial sets the micro batches by itself. */
static uint32_t layout_changes(const stw_knob *k, uint64_t i, stw_change *out) {
    const char *words = stw_layout_step_words(k, i);
    uint32_t n = 0;
    while (n < MOST_CHANGES && next_word(&words, &out[n]))
        n += strcmp(out[n].key, "batch.grad_accumulation") != 0;
    return n;
}

/* What a step changes. @param out room for MOST_CHANGES @return how many */
static uint32_t changes_of(const stw_knob *k, uint64_t i, stw_change *out) {
    uint64_t value = k->from;
    if (i == 0) return 0;
    switch (k->kind) {
    case STW_KNOB_WORD:
        set_text(out, k->key, k->word);
        return 1;
    case STW_KNOB_PARK:
        return park_changes(k, i, out);
    case STW_KNOB_LAYOUT:
        return layout_changes(k, i, out);
    case STW_KNOB_NODES:
    case STW_KNOB_GIB:
        value = (k->from / k->step + i) * k->step;
        break;
    case STW_KNOB_DOWN:
        value = (stw_div_up_u64(k->from, k->step) - i) * k->step;
        break;
    case STW_KNOB_PART:
        value = part_below(k->from, k->whole, i);
        break;
    case STW_KNOB_DOUBLE:
        value = k->from << i;
        break;
    case STW_KNOB_SHARE:
        snprintf(out->key, sizeof out->key, "%s", k->key);
        snprintf(out->value, sizeof out->value, "%g", (double)(k->from - i) / SHARES);
        return 1;
    }
    set_count(out, k->key, value, k->kind == STW_KNOB_GIB ? "GiB" : "");
    return 1;
}

bool stw_mix_go_on(stw_mix *mix) {
    const stw_knob *k = mix->knobs[mix->n - 1];
    uint64_t *step = &mix->steps[mix->n - 1], more = 1;
    if (k->kind == STW_KNOB_WORD) return false;
    if (k->kind == STW_KNOB_NODES) { /* powers of two divide what others may not */
        uint64_t factor = 1;
        while (k->from * factor <= k->from + *step) factor *= 2;
        more = k->from * (factor - 1) - *step;
    }
    if (k->kind == STW_KNOB_GIB) more = stw_div_up_u64(k->from / k->step + *step, FURTHER_PART);
    if (k->kind == STW_KNOB_DOWN) more = stw_div_up_u64(k->n + 1 - *step, FURTHER_PART);
    *step += more;
    return *step <= k->n;
}

/* By how many doublings, or words, a step is from the run. */
static double amount_of(const stw_knob *k, uint64_t i) {
    stw_change to[MOST_CHANGES];
    if (k->kind == STW_KNOB_LAYOUT) return stw_layout_step_amount(k, i);
    const uint32_t n = changes_of(k, i, to);
    if (k->kind == STW_KNOB_WORD || k->kind == STW_KNOB_PARK) return n;
    const double from = (double)k->from / (k->kind == STW_KNOB_SHARE ? SHARES : 1);
    return fabs(log2(fmax(strtod(to->value, NULL), 1e-3) / fmax(from, 1)));
}

double stw_mix_amount(const stw_mix *mix) {
    double amount = 0;
    for (uint32_t i = 0; i < mix->n; i++) amount += amount_of(mix->knobs[i], mix->steps[i]);
    return amount;
}

/* Settings that go with a knob, which the run and other changes do not say. */
static uint32_t add_with(const stw_plan *plan, const char *with, stw_change *out, uint32_t n) {
    stw_change c;
    while (n < STW_MAX_MIX_CHANGES && next_word(&with, &c))
        if (!is_among(out, n, c.key) && !is_word(&plan->run, c.key, c.value)) out[n++] = c;
    return n;
}

/* A limit above the node's memory is one of another node: both are stated. */
static uint32_t add_memory(const stw_plan *plan, stw_change *out, uint32_t n) {
    for (uint32_t i = 0; i < n && n < STW_MAX_MIX_CHANGES; i++) {
        if (strcmp(out[i].key, "node.host.limit") != 0) continue;
        if (strtoull(out[i].value, NULL, 10) <= plan->cluster.host.memory_bytes / GIB) return n;
        memmove(&out[i + 1], &out[i], (n - i) * sizeof *out);
        set_text(&out[i], "node.host.memory", out[i + 1].value);
        return n + 1;
    }
    return n;
}

uint32_t stw_mix_changes(const stw_plan *plan, const stw_mix *mix, stw_change *out) {
    stw_change step[MOST_CHANGES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < mix->n; i++) {
        const uint32_t more = changes_of(mix->knobs[i], mix->steps[i], step);
        for (uint32_t c = 0; c < more && n < STW_MAX_MIX_CHANGES; c++)
            if (!is_among(out, n, step[c].key)) out[n++] = step[c];
    }
    for (uint32_t i = 0; i < mix->n; i++) n = add_with(plan, mix->knobs[i]->with, out, n);
    return add_memory(plan, out, n);
}

/* ---- knobs ---- */

typedef struct adding {
    const stw_plan *plan;
    stw_knobs *knobs;
} adding;

static void add_knob(const adding *to, stw_knob k) {
    if (k.n > 0 && to->knobs->n < STW_MAX_KNOBS) to->knobs->list[to->knobs->n++] = k;
}

/* A knob of steps 1 to n from a count. */
static stw_knob counted(const char *key, const char *why, stw_knob_kind kind, uint64_t from,
                        uint64_t step, uint64_t n) {
    return (stw_knob){
        .key = key, .why = why, .kind = kind, .from = from, .step = step, .whole = from, .n = n};
}

static stw_reach reach_of(const char *key) {
    if (strcmp(key, "engine") == 0) return STW_REACH_ENGINE;
    return strncmp(key, "park.", 5) == 0 ? STW_REACH_PARK : STW_REACH_SETTING;
}

static void add_word(const adding *to, const stw_engine_fix *f) {
    const stw_reach reach = reach_of(f->key);
    if (is_word(&to->plan->run, f->key, f->value)) return;
    add_knob(to, (stw_knob){.key = f->key,
                            .why = f->why,
                            .kind = STW_KNOB_WORD,
                            .reach = reach,
                            .word = f->value,
                            .with = f->with,
                            .n = 1,
                            .alone = reach == STW_REACH_ENGINE});
}

static void add(const adding *to, const char *key, const char *word, const char *why) {
    add_word(to, &(stw_engine_fix){.key = key, .value = word, .why = why});
}

/* Does another role use the trainer's GPUs? */
static bool shares_gpus(const stw_plan *plan) {
    for (uint32_t r = 1; r < plan->job->n_roles; r++)
        if (plan->job->roles[r].home == 0) return true;
    return false;
}

/* State that waits on the host while other roles use the GPUs: the first words are the cheapest. */
static void add_parks(const adding *to) {
    static const char *const keys[] = {"park.moments", "park.params", "park.grads"};
    const stw_run_spec *run = &to->plan->run;
    const bool parked[] = {run->park.moments, run->park.params, run->park.grads};
    const char **words = stw_pool_array(to->plan->pool, 3, sizeof *words);
    uint64_t n = 0;
    if (words == NULL || !shares_gpus(to->plan)) return;
    for (int i = 0; i < 3; i++)
        if (!parked[i]) words[n++] = keys[i];
    if (n == 0) return;
    add_knob(to, (stw_knob){.key = words[0],
                            .why = "state waits on the host while other roles use the GPUs",
                            .kind = STW_KNOB_PARK,
                            .reach = STW_REACH_PARK,
                            .words = words,
                            .n = n});
    if (!run->park.moments)
        add(to, "park.moments", "host", "moments wait on the host but in the step");
}

/* Choices that the spec takes from the planner. */
static void add_choices(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    const struct {
        const char *key;
        bool fixed;
    } choices[] = {
        {"placement.moments", run->placement.moments != STW_AUTO},
        {"placement.master", run->placement.master != STW_AUTO},
        {"placement.grads", run->placement.grads != STW_AUTO},
        {"placement.params", run->placement.params != STW_AUTO},
        {"placement.activations", run->placement.activations != STW_AUTO},
        {"recompute.granularity", run->recompute.granularity != STW_AUTO},
        {"optimizer.implementation", run->optimizer.implementation != STW_OPTIMIZER_AUTO},
        {"update.resident", run->update.resident < STW_AUTO_NUMBER},
        {"update.stream", run->update.stream < STW_AUTO_NUMBER},
        {"update.direct", run->update.direct > 0 && run->update.direct < STW_AUTO_NUMBER},
        {"update.cpu", run->update.cpu < STW_AUTO_NUMBER},
        {"load.method", run->load.method != STW_AUTO},
        {"prefetch.bucket", run->prefetch.bucket_bytes != STW_AUTO_BYTES},
        {"prefetch.depth", run->prefetch.depth != STW_AUTO},
    };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
        if (choices[i].fixed) add(to, choices[i].key, "auto", "leaves the choice to the planner");
    const stw_engine *engine = stw_engine_of(run);
    const bool risky = to->plan->verdict == STW_VERDICT_AT_RISK;
    for (const stw_engine_fix *f = risky ? engine->risk_fixes : NULL; f != NULL && f->key != NULL;
         f++)
        add_word(to, f);
    for (const stw_engine_fix *f = engine->fixes; f != NULL && f->key != NULL; f++) add_word(to, f);
}

/* Do weights go from the trainer to a rollout? */
static bool syncs(const stw_run_spec *run) {
    const char *const *key = stw_run_spec_engine(run)->keys;
    while (key != NULL && *key != NULL && strcmp(*key, "weight_sync.") != 0) key++;
    return key != NULL && *key != NULL;
}

/* What the first rollout, which gets its weights from the trainer, can do with less of. */
static void add_synced(const adding *to, uint32_t number, const stw_role *role) {
    stw_pool *pool = to->plan->pool;
    const bool shares = strcmp(role->with, "none") != 0;
    const bool sleeps =
        role->free_cache_engine != false && (shares || role->free_cache_engine == 1);
    const char *level = stw_pool_printf(pool, "roles.%u.sleep_level", (unsigned)number);
    const char *bucket = stw_pool_printf(pool, "roles.%u.update_bucket", (unsigned)number);
    if (level == NULL || bucket == NULL) return;
    /* an engine without levels refuses the trial */
    if (sleeps && (role->sleep_level == 1 || role->sleep_level == STW_AUTO))
        add(to, level, "2", "asleep it discards its weights, which every sync brings anew");
    if (role->update_bucket_bytes > GIB)
        add(to, bucket, "1GiB", "smaller buffers of the weight sync");
}

/* What a role holds of GPUs that others or its own other bytes need. */
static void add_roles(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    bool synced = !syncs(run);
    for (uint32_t r = 0; r < run->n_roles; r++) {
        const stw_role *role = &run->roles[r];
        if (role->kind == STW_ROLE_ROLLOUT && !synced) {
            synced = true;
            add_synced(to, r, role);
        }
        stw_pool *pool = to->plan->pool;
        const char *share = stw_pool_printf(pool, "roles.%u.gpu_memory_utilization", (unsigned)r);
        const char *builds = stw_pool_printf(pool, "roles.%u.builds_trainer_model", (unsigned)r);
        const char *frees = stw_pool_printf(pool, "roles.%u.free_cache_engine", (unsigned)r);
        if (share == NULL || builds == NULL || frees == NULL) return;
        if (role->builds_trainer_model)
            add(to, builds, "false", "a rollout needs its own weights alone");
        if (role->free_cache_engine == false && strcmp(role->with, "none") != 0)
            add(to, frees, "true", "the role sleeps while others use its GPUs");
        const uint64_t now = (uint64_t)(role->gpu_memory_utilization * SHARES + 0.999);
        add_knob(to, counted(share, "a smaller KV cache", STW_KNOB_SHARE, now, 1,
                             now > LEAST_SHARE ? now - LEAST_SHARE : 0));
    }
}

/* Limits below what the node has. */
static void add_host_room(const adding *to) {
    const stw_cluster *cluster = &to->plan->cluster;
    uint64_t memory = cluster->host.memory_bytes;
    const struct {
        const char *key;
        uint64_t limit_bytes;
    } limits[] = {{"node.host.limit", cluster->host.limit_bytes},
                  {"node.host.page_lock_limit", cluster->host.page_lock_limit_bytes}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].limit_bytes < memory)
            add_knob(to, counted(limits[i].key, "the node has the memory", STW_KNOB_GIB,
                                 limits[i].limit_bytes / GIB, 1,
                                 memory / GIB - limits[i].limit_bytes / GIB));
}

/* Doublings of `from` while all of `whole` can be cut into so many parts: 8 of 24 ranks, not 16. */
static uint64_t cutting_doublings(uint64_t from, const uint64_t *whole, size_t n_whole) {
    for (uint64_t n = 0;; n++)
        for (size_t i = 0; i < n_whole; i++)
            if (whole[i] % (from << (n + 1)) != 0) return n;
}

/* The experts of the kinds of blocks that have some. */
static size_t experts_of(const stw_model *model, uint64_t *out, size_t most) {
    size_t n = 0;
    for (uint32_t g = 0; g < model->n_groups && n < most; g++)
        if (model->groups[g].facts.experts > 0) out[n++] = model->groups[g].facts.experts;
    return n;
}

/* Packed sequences of a micro batch: fewer whole ones where the tokens of a step are given and need
 * not fill it, parts of what it has elsewhere. */
static void add_packed(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    const uint64_t packed = run->batch.max_tokens_per_gpu;
    const uint64_t one = stw_max_u64(stw_div_up_u64(run->batch.seq_len, run->parallel.cp), 1);
    stw_knob k = counted("batch.max_tokens_per_gpu", FEWER, STW_KNOB_PART, packed, one, 0);
    k.reach = STW_REACH_BATCH;
    if (packed <= one) return;
    if (run->batch.tokens_per_step > 0) {
        k.kind = STW_KNOB_DOWN;
        k.n = stw_div_up_u64(packed, one) - 1;
    } else {
        for (uint64_t parts = 2; packed / parts >= one; parts++) k.n += packed % parts == 0;
    }
    add_knob(to, k);
}

/* Other ways to compute the same, on the same machines. */
static void add_ways(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    const uint64_t micro = run->batch.micro_batch, replicas = run->parallel.dp_replicate;
    const uint64_t passes = micro * run->batch.grad_accumulation;
    add(to, "attention", "flash", "keeps no attention scores");
    add_knob(to, counted("parallel.dp_replicate",
                         "shards the state over more GPUs instead of replicating it", STW_KNOB_PART,
                         replicas, 1, parts_below(replicas, replicas)));
    add_word(to, &(stw_engine_fix){.key = "loss.fused",
                                   .value = "true",
                                   .why = "never holds all logits at once",
                                   .with = "loss.upcast=fp32"}); /* as fused kernels compute */
    stw_knob k =
        counted("batch.micro_batch", FEWER, STW_KNOB_PART, micro, 1, parts_below(micro, passes));
    k.reach = STW_REACH_BATCH;
    k.whole = passes;
    add_knob(to, k);
    add_packed(to);
}

static void add_parallel(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    uint64_t cut[MAX_CUT] = {to->plan->job->group};
    size_t kinds = experts_of(to->plan->model, &cut[1], MAX_CUT - 1);
    stw_knob ep = counted("parallel.ep", "gathers only a part of the experts", STW_KNOB_DOUBLE,
                          run->parallel.ep, 1, 0);
    stw_knob cp = counted("parallel.cp", "cuts sequences over GPUs", STW_KNOB_DOUBLE,
                          run->parallel.cp, 1, cutting_doublings(run->parallel.cp, cut, 1));
    if (kinds > 0) ep.n = cutting_doublings(run->parallel.ep, &cut[1], kinds);
    if (kinds == 0) cp.n += MAX_NODE_DOUBLINGS;
    ep.follows_nodes = true;
    cp.follows_nodes = kinds == 0;
    add_knob(to, ep);
    add_knob(to, cp);
}

/* What changes the run's meaning. */
static void add_quality(const adding *to) {
    const stw_run_spec *run = &to->plan->run;
    uint64_t length = run->batch.seq_len, step = length > LONG_SEQ_LEN ? 1024 : MIN_SEQ_LEN;
    if (run->precision.grads == STW_DTYPE_F32)
        add_knob(to, (stw_knob){.key = "precision.grads",
                                .why = "changes numerics: gradients in bf16",
                                .kind = STW_KNOB_WORD,
                                .reach = STW_REACH_NUMERICS,
                                .word = "bf16",
                                .n = 1,
                                .alone = true});
    stw_knob k = counted("batch.seq_len", FEWER, STW_KNOB_DOWN, length, step, 0);
    k.reach = STW_REACH_SEQUENCE;
    if (length > MIN_SEQ_LEN) k.n = stw_div_up_u64(length, step) - 1;
    add_knob(to, k);
}

/* Does the engine keep state on NVMe? */
static bool uses_nvme(const stw_plan *plan) {
    const stw_engine_refusal *r = plan->job->engine->spec.refuses;
    for (; r != NULL && r->key != NULL; r++)
        if (strcmp(r->key, "placement.moments") == 0 && strcmp(r->word, "nvme") == 0) return false;
    return true;
}

static void add_kept(const adding *to) {
    const uint64_t keep = to->plan->run.checkpoint.keep;
    if (to->plan->run.checkpoint.every > 0 && keep > 1)
        add_knob(to, counted("checkpoint.keep", "fewer checkpoints stay on a node's disk",
                             STW_KNOB_DOWN, keep, 1, keep - 1));
}

static void add_machines(const adding *to) {
    const uint64_t nodes = to->plan->cluster.nodes;
    const uint64_t disk = to->plan->cluster.nvme.capacity_bytes / GIB;
    const char *why = disk > 0 ? "a larger disk in each node"
                               : "a disk in each node, read at 3 and written at 1.5 GB/s unless "
                                 "node.nvme says other rates";
    stw_knob k = counted("node.nvme.capacity", why, STW_KNOB_GIB, disk, DISK_STEP_GIB,
                         uses_nvme(to->plan) ? MOST_DISK_STEPS : 0);
    k.reach = STW_REACH_MACHINES;
    add_knob(to, k);
    k = counted("nodes", "shards the state over more GPUs", STW_KNOB_NODES, nodes, 1,
                nodes * (MAX_NODE_FACTOR - 1));
    k.reach = STW_REACH_MACHINES;
    add_knob(to, k);
}

bool stw_knob_of_limit(const stw_plan *plan, const char *resource, stw_knob *out) {
    const stw_cluster *c = &plan->cluster;
    const struct {
        const char *resource, *key;
        uint64_t now_bytes;
    } keys[] = {{"gpu memory", "node.gpu.memory", c->gpu.memory_bytes},
                {"host memory", "node.host.limit", stw_cluster_host_capacity(c)},
                {"page-locked memory", "node.host.page_lock_limit", c->host.page_lock_limit_bytes},
                {"nvme", "node.nvme.capacity", c->nvme.capacity_bytes}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const uint64_t from = keys[i].now_bytes / GIB;
        if (strcmp(resource, keys[i].resource) != 0) continue;
        *out = counted(keys[i].key, "", STW_KNOB_GIB, from, 1, LIMIT_TIMES * from + LIMIT_MORE_GIB);
        return true;
    }
    return false;
}

void stw_knobs_of(const stw_plan *plan, stw_knobs *out) {
    const adding to = {plan, out};
    out->n = 0;
    add_parks(&to);
    add_choices(&to);
    add_roles(&to);
    add_host_room(&to);
    add_kept(&to);
    add_ways(&to);
    add_parallel(&to);
    add_quality(&to);
    add_machines(&to);
}
