/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters by name. `<data>/clusters/gpus.csv` and `nodes.csv` have one row per GPU and per node;
 * their columns are keys of cluster.yaml, or figures of a data sheet that keys follow from. A row
 * of nodes.csv begins with a GPU's row, or with a cluster.yaml, and sets its own keys on top. */
#include "plan/spec/presets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "core/pattern.h"
#include "core/tree.h"
#include "core/units.h"
#include "models/table.h"
#include "plan/spec/gpu_sheets.h"

enum { MOST_NEAR = 5, MOST_NAMES = 512, MOST_DIGITS = 7 };

/* The columns of a table that are not keys, by their heads. */
static size_t column_of(const stw_table *table, const char *head) {
    for (size_t f = 0; table->n_rows > 0 && f < table->rows[0].n_fields; f++)
        if (strcmp(table->rows[0].fields[f], head) == 0) return f;
    return SIZE_MAX;
}

static const char *field_of(const stw_table *table, const stw_table_row *row, const char *head) {
    size_t column = column_of(table, head);
    return column < row->n_fields ? row->fields[column] : "";
}

static stw_status read_table(stw_pool *pool, const char *data_folder, const char *name,
                             stw_table *out, stw_error *err) {
    const char *path = stw_pool_printf(pool, "%s/clusters/%s", data_folder, name);
    if (path == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    stw_status status = stw_table_read(pool, path, out, err);
    for (size_t r = 0; status == STW_STATUS_OK && r < out->n_rows; r++)
        if (out->rows[r].n_fields != out->rows[0].n_fields)
            status = stw_table_fail(out, &out->rows[r], err, "found %zu columns, expected %zu",
                                    out->rows[r].n_fields, out->rows[0].n_fields);
    return status;
}

/* Columns of gpus.csv that are no keys. */
static bool is_sheet(const char *head) {
    return strncmp(head, "sheet.", 6) == 0 || strncmp(head, "best.", 5) == 0;
}

/* Set the keys of a row; empty cells and columns that are no keys set nothing. */
static stw_status set_keys(const stw_table *table, const stw_table_row *row, stw_cluster *cluster,
                           stw_error *err) {
    char origin[512];
    stw_status status = STW_STATUS_OK;
    snprintf(origin, sizeof origin, "%.480s:%d", table->file, row->line);
    for (size_t f = 0; f < row->n_fields && status == STW_STATUS_OK; f++) {
        const char *key = table->rows[0].fields[f];
        if (strchr(key, '.') != NULL && !is_sheet(key) && !stw_cluster_has_key(key))
            return stw_table_fail(table, &table->rows[0], err, "the key %.60s is unknown", key);
        if (row->fields[f][0] == '\0' || !stw_cluster_has_key(key) || strcmp(key, "name") == 0)
            continue;
        status = stw_cluster_set(cluster, key, row->fields[f], origin, err);
    }
    return status;
}

/* The share of a data sheet's rate that copies reach, a little below H200's 0.89. */
static const double HBM_SHARE = 0.88;

/* The keys of a GPU's row, and those that follow from its data sheet. */
static stw_status set_gpu(const stw_table *gpus, const stw_table_row *row, stw_cluster *cluster,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char origin[512];
    double hbm = 0;
    const stw_gpu_sheet sheet = {.name = field_of(gpus, row, "node.gpu.name"),
                                 .bf16 = field_of(gpus, row, "sheet.bf16"),
                                 .fp8 = field_of(gpus, row, "sheet.fp8"),
                                 .nvlink = field_of(gpus, row, "sheet.nvlink"),
                                 .pcie = field_of(gpus, row, "sheet.pcie"),
                                 .rates = field_of(gpus, row, "rates"),
                                 .best_bf16 = field_of(gpus, row, "best.bf16")};
    snprintf(origin, sizeof origin, "%.480s:%d", gpus->file, row->line);
    STW_TRY(set_keys(gpus, row, cluster, err));
    STW_TRY(stw_quantity_parse(field_of(gpus, row, "sheet.hbm"), STW_UNIT_BPS, &hbm, origin, err));
    STW_TRY(stw_gpu_sheet_apply(&sheet, origin, cluster, err));
    cluster->gpu.hbm_bps = HBM_SHARE * hbm;
out:
    return status;
}

static stw_status read_preset(const char *data_folder, const stw_table *gpus,
                              const stw_table *nodes, const stw_table_row *row,
                              stw_cluster *cluster, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char path[4096];
    const char *name = field_of(nodes, row, "name"), *gpu = field_of(nodes, row, "gpu");
    const char *file = field_of(nodes, row, "file");
    STW_TRY(stw_cluster_defaults(cluster, err));
    if (file[0] != '\0') {
        snprintf(path, sizeof path, "%s/%s", data_folder, file);
        STW_TRY(stw_cluster_read(path, cluster, err));
    } else {
        size_t g = 1;
        while (g < gpus->n_rows && strcmp(gpus->rows[g].fields[0], gpu) != 0) g++;
        if (g >= gpus->n_rows)
            return stw_table_fail(nodes, row, err, "the GPU \"%.60s\" is not in gpus.csv", gpu);
        STW_TRY(set_gpu(gpus, &gpus->rows[g], cluster, err));
        snprintf(cluster->calibration.versions, sizeof cluster->calibration.versions,
                 "data sheets");
    }
    STW_TRY(set_keys(nodes, row, cluster, err));
    snprintf(cluster->name, sizeof cluster->name, "%s", name);
    cluster->nodes = 1;
    STW_TRY(stw_cluster_check(cluster, name, err));
out:
    return status;
}

stw_status stw_presets_read(const char *data_folder, stw_presets *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_table gpus, nodes;
    *out = (stw_presets){.pool = stw_pool_new()};
    if (out->pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "clusters", "out of memory");
    STW_TRY(read_table(out->pool, data_folder, "gpus.csv", &gpus, err));
    STW_TRY(read_table(out->pool, data_folder, "nodes.csv", &nodes, err));
    for (size_t r = 1; r < nodes.n_rows && out->n < MOST_NAMES; r++) {
        const stw_table_row *row = &nodes.rows[r];
        stw_listed_cluster *grown =
            stw_pool_grow(out->pool, out->items, out->n, out->n + 1, &out->capacity, sizeof *grown);
        stw_cluster *cluster = stw_pool_alloc(out->pool, sizeof *cluster);
        if (grown == NULL || cluster == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, "clusters", "out of memory");
            goto out;
        }
        STW_TRY(read_preset(data_folder, &gpus, &nodes, row, cluster, err));
        out->items = grown;
        out->items[out->n++] = (stw_listed_cluster){.name = field_of(&nodes, row, "name"),
                                                    .source = field_of(&nodes, row, "source"),
                                                    .cluster = cluster};
    }
out:
    return status;
}

void stw_presets_free(stw_presets *presets) {
    stw_pool_free(presets->pool);
    *presets = (stw_presets){0};
}

/* "4 x h100-80g-x8", "4xh100-80g-x8": the number of nodes, and the name behind it. */
static const char *split_nodes(const char *what, uint32_t *nodes) {
    size_t digits = strspn(what, "0123456789");
    const char *at = what + digits;
    *nodes = 1;
    if (digits == 0 || digits > MOST_DIGITS) return what;
    at += strspn(at, " ");
    if (*at != 'x' && *at != 'X' && *at != '*') return what;
    at++;
    at += strspn(at, " ");
    if (*at == '\0') return what;
    *nodes = (uint32_t)strtoul(what, NULL, 10);
    return at;
}

/* The names that contain the word, then those that are spelt alike. */
static stw_status fail_unknown(const stw_presets *presets, const char *what, const char *name,
                               stw_error *err) {
    const char *names[MOST_NAMES], *found[MOST_NEAR], *next = NULL;
    char near[512] = "";
    size_t n = 0, n_found = 0;
    for (size_t i = 0; i < presets->n; i++) {
        bool contains = stw_name_matches(presets->items[i].name, name);
        if (contains && n_found < MOST_NEAR)
            found[n_found++] = presets->items[i].name;
        else
            names[n++] = presets->items[i].name;
    }
    while (n_found < MOST_NEAR && (next = stw_nearest(name, names, n)) != NULL) {
        size_t i = 0;
        while (names[i] != next) i++;
        names[i] = names[--n];
        found[n_found++] = next;
    }
    const char *times = strrchr(what, 'x');
    if (times != NULL && times > what && times[-1] == ' ' && strpbrk(times, "0123456789") != NULL &&
        strspn(times + 1, " 0123456789") == strlen(times + 1))
        return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                        "no such file or cluster; nodes are counted in front: \"2 x NAME\"");
    for (size_t i = 0, used = 0; i < n_found && used < sizeof near - 80; i++)
        used += (size_t)snprintf(near + used, 80, "%s%s%s",
                                 i == 0            ? "; did you mean "
                                 : i + 1 < n_found ? ", "
                                                   : " or ",
                                 found[i], i + 1 == n_found ? "?" : "");
    return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                    "no such file, and none of the %zu clusters that `stowage clusters` lists%s",
                    presets->n, near);
}

static bool is_name(const char *name, const char *given) {
    const char *prefix = "Standard_"; /* of sizes of virtual machines */
    size_t n = strlen(prefix);
    if (strncasecmp(name, prefix, n) == 0 && strcasecmp(name + n, given) == 0) return true;
    return strcasecmp(name, given) == 0;
}

/* The cluster of this name, or the only one of this family ("p5en" is p5en.48xlarge). */
static const stw_cluster *find(const stw_presets *presets, const char *given) {
    const stw_cluster *of_family = NULL;
    size_t n = 0, length = strlen(given);
    for (size_t i = 0; i < presets->n; i++) {
        const char *name = presets->items[i].name;
        if (is_name(name, given)) return presets->items[i].cluster;
        if (strncasecmp(name, given, length) != 0 || name[length] != '.') continue;
        of_family = presets->items[i].cluster;
        n++;
    }
    return n == 1 ? of_family : NULL;
}

bool stw_cluster_is_file(const char *what) {
    const char *suffix = stw_path_suffix(what);
    return strcmp(what, "-") == 0 || strchr(what, '/') != NULL || stw_file_exists(what) ||
           strcasecmp(suffix, ".yaml") == 0 || strcasecmp(suffix, ".yml") == 0;
}

bool stw_cluster_is_node(const char *what) {
    uint32_t nodes;
    return what[0] != '\0' && !stw_cluster_is_file(what) && split_nodes(what, &nodes) == what;
}

/* "NAME:2", two GPUs of a node. @return how many; 0: it is none */
static uint32_t split_part(const char *what, char *whole, size_t room) {
    const char *colon = strrchr(what, ':');
    if (colon == NULL || colon == what || colon[1] == '\0' || (size_t)(colon - what) >= room ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || stw_file_exists(what))
        return 0;
    snprintf(whole, room, "%.*s", (int)(colon - what), what);
    return (uint32_t)strtoul(colon + 1, NULL, 10);
}

static stw_status take_part(const char *what, uint32_t gpus, stw_cluster *out, stw_error *err) {
    stw_cluster node = *out;
    if (gpus > node.gpus)
        return stw_fail(err, STW_STATUS_BAD_INPUT, what, "a node of it has %u GPUs, found %u",
                        node.gpus, gpus);
    node.nodes = 1;
    stw_cluster_part(&node, gpus, out);
    return STW_STATUS_OK;
}

stw_status stw_cluster_open(const char *what, const char *data_folder, stw_cluster *out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char whole[4096];
    const uint32_t part = split_part(what, whole, sizeof whole);
    if (part > 0) {
        status = stw_cluster_open(whole, data_folder, out, err);
        return status == STW_STATUS_OK ? take_part(what, part, out, err) : status;
    }
    stw_presets presets = {0};
    uint32_t nodes;
    const char *name = split_nodes(what, &nodes);
    if (what[0] == '\0')
        return stw_fail(err, STW_STATUS_BAD_INPUT, "\"\"", "the name of the cluster is empty");
    if (stw_cluster_is_file(what)) return stw_cluster_read(what, out, err);
    STW_TRY(stw_presets_read(data_folder, &presets, err));
    const stw_cluster *found = find(&presets, name);
    if (found == NULL) {
        status = fail_unknown(&presets, what, name, err);
        goto out;
    }
    *out = *found;
    char number[16];
    snprintf(number, sizeof number, "%u", nodes);
    STW_TRY(stw_cluster_set(out, "nodes", number, what, err));
    if ((uint64_t)out->nodes * out->gpus <= 1) out->gpu.comm_bytes = 0; /* no NCCL with one rank */
out:
    stw_presets_free(&presets);
    return status;
}
