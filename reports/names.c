/* SPDX-License-Identifier: Apache-2.0 */
/* Many names on a screen of 25 lines: names that begin alike stand together. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "reports/reports.h"
#include "reports/table.h"

/* Lines that a list may take, without those around it. */
enum { MOST_LINES = 20 };

/* Nodes of the tables of GPUs, "h100-80g-x8". Others are instances that clouds rent. */
static bool is_preset(const char *name) {
    const char *end = strrchr(name, 'x');
    return end != NULL && end > name && end[-1] == '-' && isdigit((unsigned char)end[1]) &&
           end[1 + strspn(end + 1, "0123456789")] == '\0';
}

/* Length of what names of a family have in common: "Qwen3-" of Qwen3-30B-A3B, "p5." of p5.48xlarge;
 * 0: the name stands alone. */
static size_t stem_of(const char *name) {
    if (is_preset(name)) return (size_t)(strrchr(name, 'x') - name) + 1;
    for (const char *at = name; *at != '\0'; at++)
        if (at > name && *at == '-' && isdigit((unsigned char)at[1]))
            return (size_t)(at - name) + 1;
    const char *dot = strrchr(name, '.');
    return dot != NULL && dot > name && strchr(name, '-') == NULL ? (size_t)(dot - name) + 1 : 0;
}

static bool alike(const char *a, const char *b) {
    const size_t n = stem_of(a);
    return n > 0 && n == stem_of(b) && strncmp(a, b, n) == 0;
}

/* Names from `first` on that begin alike. @return how many */
static size_t family(const char *const *names, size_t n, size_t first) {
    size_t last = first + 1;
    while (last < n && alike(names[first], names[last])) last++;
    return last - first;
}

/* "h100-80g-x1" or "a100-{40g-x1, 40g-x4}", with commas between */
static void put_flow(const char *const *names, size_t n, stw_text *out) {
    for (size_t i = 0, of; i < n; i += of) {
        of = family(names, n, i);
        const size_t stem = stem_of(names[i]);
        stw_text_printf(out, "%s", i > 0 ? ", " : "");
        if (of == 1) {
            stw_text_printf(out, "%s", names[i]);
            continue;
        }
        stw_text_printf(out, "%.*s{", (int)stem, names[i]);
        for (size_t k = i; k < i + of; k++)
            stw_text_printf(out, "%s%s", k > i ? ", " : "", names[k] + stem);
        stw_text_printf(out, "}");
    }
}

static void put_families(const char *const *names, size_t n, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {"begins with", "goes on with"};
    stw_text list = STW_TEXT_INIT;
    stw_table t;
    stw_table_begin(&t, pool, heads, 2);
    for (size_t i = 0, of; i < n; i += of) {
        of = family(names, n, i);
        if (of == 1) continue;
        const size_t stem = stem_of(names[i]);
        list.length = 0;
        for (size_t k = i; k < i + of; k++)
            stw_text_printf(&list, "%s%s", k > i ? ", " : "", names[k] + stem);
        stw_table_cell(&t, "%.*s", (int)stem, names[i]);
        stw_table_cell(&t, "%s", list.data != NULL ? list.data : "");
    }
    list.length = 0;
    for (size_t i = 0, of; i < n; i += of) {
        of = family(names, n, i);
        if (of == 1) stw_text_printf(&list, "%s%s", list.length > 0 ? ", " : "", names[i]);
    }
    if (list.length > 0) stw_table_cell(&t, "others");
    if (list.length > 0) stw_table_cell(&t, "%s", list.data);
    if (list.failed) out->failed = true;
    stw_text_free(&list);
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
}

static size_t lines_of(const stw_text *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->length; i++) n += text->data[i] == '\n';
    return n;
}

/* A long list in a paragraph; stw_doc_line has a limit. */
static void put_paragraph(const stw_text *flow, stw_text *out) {
    const size_t width = stw_report_width() > 0 ? stw_report_width() : 80;
    for (const char *at = flow->data; at != NULL && *at != '\0';) {
        const size_t n = stw_line_length(at, width - 2);
        stw_text_printf(out, "  %.*s\n", (int)n, at);
        at += n + strspn(at + n, " ");
    }
}

/* Writes `list`, or where that is too long what `shorter` holds. */
static void put_either(stw_text *list, stw_text *shorter, stw_text *out) {
    if (list->failed || shorter->failed) out->failed = true;
    if (lines_of(list) <= MOST_LINES && list->data != NULL)
        stw_text_append(out, list->data, list->length);
    else
        put_paragraph(shorter, out);
    stw_text_free(list);
    stw_text_free(shorter);
}

stw_status stw_report_model_names(const char *const *names, size_t n, bool picked, stw_text *out,
                                  stw_error *err) {
    stw_text list = STW_TEXT_INIT, flow = STW_TEXT_INIT;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a list");
    put_families(names, n, pool, &list);
    put_flow(names, n, &flow);
    put_either(&list, &flow, out);
    stw_doc_line(out, STW_FORMAT_TERMINAL, "%zu model%s. Parameters, bytes and context: -v%s", n,
                 n == 1 ? "" : "s", picked ? "" : " for all, stowage models PATTERN for some");
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* Clusters with the same GPU as the one at `first` (not before it). */
static size_t same_gpu(const stw_listed_cluster *clusters, size_t n, size_t first,
                       const char **names) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        const stw_cluster *a = clusters[first].cluster, *b = clusters[i].cluster;
        if (strcmp(a->gpu.name, b->gpu.name) != 0) continue;
        if (i < first) return 0;
        names[found++] = clusters[i].name;
    }
    return found;
}

static const char *an_instance(const stw_listed_cluster *clusters, size_t n) {
    for (size_t i = n; i > 0; i--)
        if (!is_preset(clusters[i - 1].name)) return clusters[i - 1].name;
    return "";
}

stw_status stw_report_cluster_names(const stw_listed_cluster *clusters, size_t n, bool picked,
                                    stw_text *out, stw_error *err) {
    static const char *const heads[] = {"GPU", ">memory", "clusters"};
    stw_text list = STW_TEXT_INIT, shorter = STW_TEXT_INIT, flow = STW_TEXT_INIT;
    stw_table t;
    stw_pool *pool = stw_pool_new();
    const char **names = pool != NULL ? stw_pool_array(pool, n, sizeof *names) : NULL;
    if (names == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a list");
    }
    stw_table_begin(&t, pool, heads, 3);
    for (size_t i = 0; i < n; i++) {
        const stw_cluster *c = clusters[i].cluster;
        const size_t found = same_gpu(clusters, n, i, names);
        if (found == 0) continue;
        flow.length = 0;
        put_flow(names, found, &flow);
        stw_table_cell(&t, "%s", c->gpu.name);
        stw_table_cell(&t, "%.0f GiB", (double)c->gpu.memory_bytes / (double)(1ull << 30));
        stw_table_cell(&t, "%s", flow.data != NULL ? flow.data : "");
    }
    size_t presets = 0;
    for (size_t i = 0; i < n; i++)
        if (is_preset(clusters[i].name)) names[presets++] = clusters[i].name;
    put_flow(names, presets, &shorter);
    if (n > presets)
        stw_text_printf(&shorter, ", and %zu instances that clouds rent, such as %s", n - presets,
                        an_instance(clusters, n));
    if (flow.failed) out->failed = true;
    stw_text_free(&flow);
    stw_table_write(&t, STW_FORMAT_TERMINAL, &list);
    put_either(&list, &shorter, out);
    stw_doc_line(out, STW_FORMAT_TERMINAL, "%zu cluster%s. Memory, network, rates: -v%s", n,
                 n == 1 ? "" : "s", picked ? "" : " for all, stowage clusters PATTERN for some");
    stw_pool_free(pool);
    return stw_text_status(out, err);
}
