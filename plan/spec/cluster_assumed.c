/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/cluster_assumed.h"

#include <stdio.h>
#include <string.h>

enum { GPU_MEMORY, HOST_MEMORY, GPU_BF16, NVLINK, NIC, NVME_READ, NVME_WRITE, OTHERS };

const stw_spec_word stw_cluster_assumable[STW_N_ASSUMABLE + 1] = {
    {"node.gpu.memory", GPU_MEMORY, NULL},
    {"node.gpu.bf16", GPU_BF16, NULL},
    {"node.gpu.hbm", OTHERS, NULL},
    {"node.host.memory", HOST_MEMORY, NULL},
    {"node.host.bandwidth", OTHERS + 1, NULL},
    {"node.host.dma", OTHERS + 2, NULL},
    {"node.pcie.h2d", OTHERS + 3, NULL},
    {"node.pcie.d2h", OTHERS + 4, NULL},
    {"node.pcie.both", OTHERS + 5, NULL},
    {"node.nvlink", NVLINK, NULL},
    {"network.nic", NIC, NULL},
    {"node.nvme.read", NVME_READ, NULL},
    {"node.nvme.write", NVME_WRITE, NULL},
    {"node.cpu_adamw", OTHERS + 6, NULL},
    {NULL, 0, NULL},
};

/* A limit says how much of the host memory may be used. */
static const char *const LIMIT = "node.host.limit";

void stw_cluster_assume(stw_cluster *cluster, const stw_node *node) {
    for (const stw_spec_word *w = stw_cluster_assumable; w->word != NULL; w++) {
        bool limited = w->value == HOST_MEMORY && stw_node_path(node, LIMIT) != NULL;
        if (!limited && stw_node_path(node, w->word) == NULL) cluster->assumed[w->value] = true;
    }
    if (stw_node_path(node, "node.gpu.name") == NULL)
        memcpy(memset(cluster->gpu.name, 0, sizeof cluster->gpu.name), "GPU", 3);
}

/* Does the setting give `wanted`: as itself, or in a map? */
static bool gives(const char *key, const stw_tree *tree, const char *wanted) {
    size_t length = strlen(key);
    if (strncmp(wanted, key, length) != 0) return false;
    if (wanted[length] == '\0') return true;
    return wanted[length] == '.' && tree != NULL &&
           stw_node_path(tree->root, wanted + length + 1) != NULL;
}

void stw_cluster_give(stw_cluster *cluster, const char *key, const char *value) {
    stw_tree *tree = NULL; /* a value that cannot be parsed was refused before */
    bool parsed = strchr(value, '{') != NULL &&
                  stw_tree_parse_yaml(key, value, strlen(value), &tree, NULL) == STW_STATUS_OK;
    for (const stw_spec_word *w = stw_cluster_assumable; w->word != NULL; w++)
        if (gives(key, parsed ? tree : NULL, w->word)) cluster->assumed[w->value] = false;
    if (gives(key, parsed ? tree : NULL, LIMIT)) cluster->assumed[HOST_MEMORY] = false;
    stw_tree_free(tree);
}

bool stw_cluster_has_gpus(const stw_cluster *cluster) {
    return cluster->gpus > 0 && strcmp(cluster->gpu.name, STW_NO_GPU) != 0;
}

static bool is_used(const stw_cluster *c, uint64_t assumable) {
    switch (assumable) {
    case GPU_BF16:
        return c->gpus > 0;
    case NVLINK:
        return c->gpus > 1;
    case NIC:
        return c->nodes > 1;
    case NVME_READ:
    case NVME_WRITE:
        return c->nvme.capacity_bytes > 0;
    default:
        return true;
    }
}

void stw_cluster_forget_unused(stw_cluster *cluster) {
    for (const stw_spec_word *w = stw_cluster_assumable; w->word != NULL; w++)
        if (!is_used(cluster, w->value)) cluster->assumed[w->value] = false;
}
