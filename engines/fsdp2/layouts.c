/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/fsdp2/layouts.h"

#include "engines/tensor_parallel.h"

#define BIT(name) (1u << STW_SEARCH_##name)

/* What parallel.tp cannot be combined with in any layout of the run. */
static bool has_tensor_parallelism(const stw_run_spec *run) {
    return run->n_roles == 0 && run->batch.log_prob_micro_batch == 0 &&
           run->attention != STW_ATTENTION_EAGER && run->trainable.lora_rank == 0 &&
           run->trainable.freeze.n == 0;
}

static bool admits(const stw_layout_case *c, const uint64_t *value) {
    const uint64_t tp = value[STW_SEARCH_TP];
    if (!stw_layout_has_sequence(c, value)) return false;
    if ((c->searched & BIT(TP)) != 0 && tp > 1 &&
        (!has_tensor_parallelism(c->run) || value[STW_SEARCH_CP] > 1 || value[STW_SEARCH_EP] > 1 ||
         value[STW_SEARCH_ETP] > 1 || value[STW_SEARCH_FUSED_LOSS] != 0 ||
         value[STW_SEARCH_OWN_2] != 0 ||
         stw_tp_check_model(c->model, (uint32_t)tp, "fsdp2", NULL) != STW_STATUS_OK))
        return false;
    return stw_layout_admits_chunks(c, value);
}

const stw_layout_rules stw_fsdp2_layouts = {
    .searches = BIT(TP) | BIT(SEQUENCE) | STW_LAYOUT_KEYS_OF_CHUNKS,
    .own = {"fsdp.reshard_after_forward", "fsdp.reshard_to_node"},
    .admits = admits,
    .settings = stw_layout_loss_settings};
