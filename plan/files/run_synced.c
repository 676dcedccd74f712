/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/run_synced.h"

void stw_run_synced_write(const stw_run_synced *synced, stw_json *json) {
    if (synced->version > 0) {
        stw_json_begin_object(json, "weight_sync");
        stw_json_u64(json, "version", synced->version);
        stw_json_u64(json, "rounds", synced->rounds);
        stw_json_u64(json, "messages", synced->messages);
        stw_json_u64(json, "sent_bytes", synced->sent_bytes);
        stw_json_u64(json, "received_bytes", synced->received_bytes);
        stw_json_end(json);
    }
    if (synced->folder == NULL) return;
    stw_json_begin_object(json, "sync_to");
    stw_json_string(json, "folder", synced->folder);
    stw_json_u64(json, "version", synced->folder_version);
    stw_json_u64(json, "bytes", synced->folder_bytes);
    stw_json_double(json, "median_s", synced->folder_s);
    stw_json_end(json);
}

static stw_status read_sync(const stw_tree *tree, const stw_node *root, stw_run_synced *out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *sync = NULL;
    STW_TRY(stw_node_object(tree, root, "weight_sync", &sync, err));
    STW_TRY(stw_node_u64(tree, sync, "version", &out->version, err));
    STW_TRY(stw_node_u64(tree, sync, "rounds", &out->rounds, err));
    STW_TRY(stw_node_u64(tree, sync, "messages", &out->messages, err));
    STW_TRY(stw_node_u64(tree, sync, "sent_bytes", &out->sent_bytes, err));
    STW_TRY(stw_node_u64(tree, sync, "received_bytes", &out->received_bytes, err));
out:
    return status;
}

static stw_status read_folder(const stw_tree *tree, const stw_node *root, stw_pool *pool,
                              stw_run_synced *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *to = NULL;
    const char *folder = NULL;
    STW_TRY(stw_node_object(tree, root, "sync_to", &to, err));
    STW_TRY(stw_node_string(tree, to, "folder", &folder, err));
    STW_TRY(stw_node_u64(tree, to, "version", &out->folder_version, err));
    STW_TRY(stw_node_u64(tree, to, "bytes", &out->folder_bytes, err));
    STW_TRY(stw_node_double(tree, to, "median_s", &out->folder_s, err));
    out->folder = stw_pool_string(pool, folder);
    if (out->folder == NULL) status = stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory");
out:
    return status;
}

stw_status stw_run_synced_read(const stw_tree *tree, const stw_node *root, stw_pool *pool,
                               stw_run_synced *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (stw_node_get(root, "weight_sync") != NULL) STW_TRY(read_sync(tree, root, out, err));
    if (stw_node_get(root, "sync_to") != NULL) STW_TRY(read_folder(tree, root, pool, out, err));
out:
    return status;
}
