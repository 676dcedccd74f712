/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses roles that contradict themselves, are not implemented, or have keys without effect. What
 * needs the model or the cluster is refused later, by the role's engine. */
#include <stdio.h>
#include <string.h>

#include "plan/spec/registry.h"

/* Beginnings of the keys that have no effect on roles of a kind. */
static const char *const not_of_rollout[] = {"parallel.dp_shard",
                                             "parallel.dp_replicate",
                                             "parallel.pp",
                                             "parallel.vpp",
                                             "parallel.cp",
                                             "parallel.etp",
                                             "parallel.sequence_parallel",
                                             "placement.params",
                                             NULL};

static const char *const not_of_models[] = {"parallel.",
                                            "gpu_memory_utilization",
                                            "kv_dtype",
                                            "max_model_len",
                                            "max_num_seqs",
                                            "max_num_batched_tokens",
                                            "enforce_eager",
                                            "free_cache_engine",
                                            "sleep_level",
                                            "update_bucket",
                                            "update_in_place",
                                            "builds_trainer_model",
                                            NULL};
static const char *const not_of_critic[] = {
    "parallel.",     "gpu_memory_utilization", "kv_dtype",
    "max_model_len", "max_num_seqs",           "max_num_batched_tokens",
    "enforce_eager", "free_cache_engine",      "sleep_level",
    "update_bucket", "update_in_place",        "builds_trainer_model",
    "dtype",         "placement.params",       NULL};

typedef struct role_check {
    const stw_run_spec *run;
    const stw_role *role, *defaults;
    uint32_t index;
    const char *origin;
} role_check;

static stw_status refuse(const role_check *c, const char *key, const char *found,
                         const char *expected, stw_error *err) {
    char full[96];
    snprintf(full, sizeof full, "roles.%u.%s", (unsigned)c->index, key);
    return stw_run_spec_refuse(c->origin, err, full, found, expected);
}

static bool is_role(const stw_run_spec *run, const char *name) {
    for (uint32_t i = 0; i < run->n_roles; i++)
        if (strcmp(run->roles[i].name, name) == 0) return true;
    return false;
}

static stw_status check_names(const role_check *c, stw_error *err) {
    const stw_run_spec *run = c->run;
    const stw_role *role = c->role;
    char found[160];
    bool repeated = strcmp(role->name, "trainer") == 0 || strcmp(role->name, "none") == 0;
    for (uint32_t i = 0; i < c->index; i++)
        if (strcmp(run->roles[i].name, role->name) == 0) repeated = true;
    stw_text_quote(role->name, found, sizeof found);
    if (role->name[0] == '\0' || repeated) return refuse(c, "name", found, "a unique name", err);
    stw_text_quote(role->with, found, sizeof found);
    if (strcmp(role->with, "trainer") != 0 && strcmp(role->with, "none") != 0 &&
        (!is_role(run, role->with) || strcmp(role->with, role->name) == 0))
        return refuse(c, "with", found, "trainer, none or another role", err);
    return STW_STATUS_OK;
}

/* Keys that have no effect on this kind of role. */
static stw_status check_keys(const role_check *c, stw_error *err) {
    static const char *const words[] = {"rollout", "reference", "critic", "reward"};
    const stw_role_kind kind = c->role->kind;
    const char *const *without = kind == STW_ROLE_ROLLOUT  ? not_of_rollout
                                 : kind == STW_ROLE_CRITIC ? not_of_critic
                                                           : not_of_models;
    char expected[80];
    const stw_spec_row *row = NULL;
    stw_status status = STW_STATUS_OK;
    for (; *without != NULL && row == NULL && status == STW_STATUS_OK; without++)
        status =
            stw_spec_first_changed(stw_role_table(), *without, c->role, c->defaults, &row, err);
    if (status != STW_STATUS_OK || row == NULL) return status;
    stw_text found = STW_TEXT_INIT;
    stw_spec_write_value(row, c->role, &found);
    snprintf(expected, sizeof expected, "its default: it has no effect on a %s", words[kind]);
    status = refuse(c, row->key, found.data != NULL ? found.data : "nothing", expected, err);
    stw_text_free(&found);
    return status;
}

/* Do weights of the trainer go to this role? */
static bool is_synced(const role_check *c) {
    const char *const *key = stw_run_spec_engine(c->run)->keys;
    for (uint32_t i = 0; i < c->index; i++)
        if (c->run->roles[i].kind == STW_ROLE_ROLLOUT) return false;
    if (stw_run_spec_engine(c->run)->own_process) return true; /* it has one way alone */
    while (key != NULL && *key != NULL && strcmp(*key, "weight_sync.") != 0) key++;
    return key != NULL && *key != NULL;
}

/* Beside adapters the reference is the trainer's model without them. */
static stw_status check_shared(const role_check *c, stw_error *err) {
    static const char *const keys[] = {"dtype", "placement.params"};
    stw_status status = STW_STATUS_OK;
    if (c->role->kind != STW_ROLE_REFERENCE || c->run->trainable.lora_rank == 0) return status;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status == STW_STATUS_OK; i++) {
        const stw_spec_row *row = NULL;
        stw_text found = STW_TEXT_INIT;
        status = stw_spec_first_changed(stw_role_table(), keys[i], c->role, c->defaults, &row, err);
        if (status != STW_STATUS_OK || row == NULL) continue;
        stw_spec_write_value(row, c->role, &found);
        status = refuse(c, row->key, found.data != NULL ? found.data : "nothing",
                        "its default, because with trainable.lora the reference is the trainer's "
                        "model",
                        err);
        stw_text_free(&found);
    }
    return status;
}

/* Why the sync cannot write into the rollout's weights. NULL: it can. */
static const char *why_not_in_place(const role_check *c, bool sleeps) {
    if (!is_synced(c) || !stw_run_spec_engine(c->run)->own_process)
        return "false, because this trainer's engine does not write into the role's weights";
    if (strcmp(c->role->with, "none") == 0)
        return "false, because roles on own nodes receive in place anyway";
    if (stw_dtype_bits(c->role->dtype) < 16)
        return "false, because the inference engine quantizes what it loads";
    return sleeps ? "false, because weights that sleep (free_cache_engine) are in memory that no "
                    "other process can open"
                  : NULL;
}

/* Keys that another key of the role leaves without effect. */
static stw_status check_pairs(const role_check *c, stw_error *err) {
    const stw_role *role = c->role;
    const bool quantized = role->dtype == STW_DTYPE_F8_E4M3 || role->dtype == STW_DTYPE_F4;
    if (quantized && role->kind != STW_ROLE_ROLLOUT)
        return refuse(c, "dtype", role->dtype == STW_DTYPE_F4 ? "mxfp4" : "fp8",
                      "fp32, bf16 or fp16, because the trainer's engine runs the model", err);
    const bool shares = strcmp(role->with, "none") != 0;
    const bool sleeps =
        role->free_cache_engine != false && (shares || role->free_cache_engine == 1);
    if (role->sleep_level != STW_AUTO && !sleeps)
        return refuse(c, "sleep_level", role->sleep_level == 1 ? "1" : "2",
                      "auto, because the role does not sleep (free_cache_engine: true)", err);
    char bucket[40];
    snprintf(bucket, sizeof bucket, "%llu bytes", (unsigned long long)role->update_bucket_bytes);
    if (role->update_bucket_bytes != c->defaults->update_bucket_bytes && !is_synced(c))
        return refuse(c, "update_bucket", bucket,
                      "its default, because no weights are synced to the role: it is not the first "
                      "rollout, or the trainer's engine has no weight sync",
                      err);
    const char *in_place = why_not_in_place(c, sleeps);
    if (role->update_in_place && in_place != NULL)
        return refuse(c, "update_in_place", "true", in_place, err);
    if (role->builds_trainer_model && shares)
        return refuse(c, "builds_trainer_model", "true",
                      "false, because the trainer's model is on the nodes that it shares", err);
    return STW_STATUS_OK;
}

/* Values that are not implemented. */
static stw_status check_values(const role_check *c, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    stw_status status =
        stw_spec_check_effect(stw_role_table(), c->role, c->defaults, c->origin, &why);
    if (status == STW_STATUS_OK) return status;
    return stw_fail(err, status, c->origin, "roles.%u.%s", (unsigned)c->index, why.text);
}

stw_status stw_run_spec_check_roles(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_role defaults;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    memset(&defaults, 0, sizeof defaults);
    const stw_spec usual = {stw_role_table(), &defaults, pool, NULL};
    STW_TRY(stw_spec_defaults(&usual, err));
    for (uint32_t i = 0; i < run->n_roles; i++) {
        const role_check c = {run, &run->roles[i], &defaults, i, origin};
        STW_TRY(check_names(&c, err));
        STW_TRY(check_keys(&c, err));
        STW_TRY(check_pairs(&c, err));
        STW_TRY(check_shared(&c, err));
        STW_TRY(check_values(&c, err));
    }
out:
    stw_pool_free(pool);
    return status;
}
