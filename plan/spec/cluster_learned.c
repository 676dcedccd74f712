/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/cluster_learned.h"

#include <stdio.h>
#include <string.h>

#include "core/units.h"

static const struct {
    const char *name, *key, *what; /* of the entry in `learned`; of the value */
    size_t at;
    bool is_size;
} learnables[STW_N_LEARNABLE] = {
    [STW_LEARN_PROCESS] = {"process", "node.torch.process", "process base",
                           offsetof(stw_cluster, torch.process_bytes), true},
    [STW_LEARN_LAUNCHER] = {"launcher", "node.torch.launcher", "launcher of a node",
                            offsetof(stw_cluster, torch.launcher_bytes), true},
    [STW_LEARN_CONTEXT] = {"context", "node.gpu.context", "CUDA context",
                           offsetof(stw_cluster, gpu.context_bytes), true},
    [STW_LEARN_EFFICIENCY] = {"efficiency", "node.gpu.efficiency", "compute efficiency",
                              offsetof(stw_cluster, gpu.efficiency), false},
};

const char *stw_learned_key(stw_learnable which) { return learnables[which].key; }
const char *stw_learned_what(stw_learnable which) { return learnables[which].what; }
bool stw_learned_is_size(stw_learnable which) { return learnables[which].is_size; }

void stw_learned_format(stw_learnable which, stw_learned_value value, char *out, size_t out_size) {
    if (learnables[which].is_size)
        stw_bytes_format(value.bytes, out, out_size);
    else
        snprintf(out, out_size, "%.3g", value.number);
}

stw_learned_value stw_cluster_learnable(const stw_cluster *cluster, stw_learnable which) {
    stw_learned_value value;
    memcpy(&value, (const char *)cluster + learnables[which].at, sizeof value);
    return value;
}

static bool same(stw_learnable which, stw_learned_value a, stw_learned_value b) {
    return learnables[which].is_size ? a.bytes == b.bytes
                                     : !(a.number < b.number) && !(a.number > b.number);
}

bool stw_cluster_holds_learned(const stw_cluster *cluster, stw_learnable which) {
    const stw_learned *entry = &cluster->learned[which];
    return entry->samples > 0 && same(which, entry->value, stw_cluster_learnable(cluster, which));
}

void stw_cluster_learn(stw_cluster *cluster, stw_learnable which, const stw_learned *entry) {
    const stw_learned_value now = stw_cluster_learnable(cluster, which),
                            was = stw_cluster_holds_learned(cluster, which)
                                      ? cluster->learned[which].was
                                      : now;
    cluster->learned[which] = *entry;
    cluster->learned[which].was = was;
    memcpy((char *)cluster + learnables[which].at, &entry->value, sizeof entry->value);
}

uint32_t stw_cluster_keep_learned(const stw_cluster *from, stw_cluster *cluster) {
    uint32_t kept = 0;
    if (strcmp(from->gpu.name, cluster->gpu.name) != 0) return 0;
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        if (!stw_cluster_holds_learned(from, (stw_learnable)w)) continue;
        stw_cluster_learn(cluster, (stw_learnable)w, &from->learned[w]);
        kept++;
    }
    return kept;
}

static bool is_empty(stw_learnable which, const stw_learned *entry) {
    stw_learned none;
    memset(&none, 0, sizeof none);
    return same(which, entry->value, none.value) && same(which, entry->was, none.was) &&
           entry->from[0] == '\0' && entry->model[0] == '\0' && entry->phase[0] == '\0' &&
           entry->date[0] == '\0';
}

stw_status stw_cluster_check_learned(const stw_cluster *cluster, const char *origin,
                                     stw_error *err) {
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        const stw_learned *entry = &cluster->learned[w];
        if (entry->samples == 0 && !is_empty((stw_learnable)w, entry))
            return stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                            "learned.%s.samples: found 0, expected the number of samples that the "
                            "value is learned from",
                            learnables[w].name);
        if (entry->samples > 0 && entry->from[0] == '\0')
            return stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                            "learned.%s.from: found nothing, expected the file of a recording",
                            learnables[w].name);
    }
    return STW_STATUS_OK;
}

static bool same_source(const stw_learned *a, const stw_learned *b) {
    return strcmp(a->from, b->from) == 0 && strcmp(a->model, b->model) == 0 &&
           strcmp(a->date, b->date) == 0;
}

static void put_source(const stw_learned *entry, stw_text *out) {
    stw_text_printf(out, "%slearned from %s", out->length > 0 ? "; " : "", entry->from);
    if (entry->model[0] != '\0' || entry->date[0] != '\0')
        stw_text_printf(out, " (%s%s%s)", entry->model,
                        entry->model[0] != '\0' && entry->date[0] != '\0' ? ", " : "", entry->date);
}

static void put_value(const stw_cluster *cluster, stw_learnable which, const char *before,
                      stw_text *out) {
    char value[48], was[48];
    stw_learned_format(which, cluster->learned[which].value, value, sizeof value);
    stw_learned_format(which, cluster->learned[which].was, was, sizeof was);
    stw_text_printf(out, "%s%s %s (was %s)", before, learnables[which].what, value, was);
}

uint32_t stw_cluster_learned_words(const stw_cluster *cluster, stw_text *out) {
    uint32_t n = 0;
    bool told[STW_N_LEARNABLE] = {false};
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        const char *before = ": ";
        if (told[w] || !stw_cluster_holds_learned(cluster, (stw_learnable)w)) continue;
        put_source(&cluster->learned[w], out);
        for (unsigned v = w; v < STW_N_LEARNABLE; v++) {
            if (!stw_cluster_holds_learned(cluster, (stw_learnable)v) ||
                !same_source(&cluster->learned[w], &cluster->learned[v]))
                continue;
            put_value(cluster, (stw_learnable)v, before, out);
            told[v] = true;
            before = ", ";
            n++;
        }
    }
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        char now[48], value[48];
        if (told[w] || cluster->learned[w].samples == 0) continue;
        stw_learned_format((stw_learnable)w, stw_cluster_learnable(cluster, (stw_learnable)w), now,
                           sizeof now);
        stw_learned_format((stw_learnable)w, cluster->learned[w].value, value, sizeof value);
        stw_text_printf(out, "%s%s was set to %s after %s was learned from %s",
                        out->length > 0 ? "; " : "", learnables[w].key, now, value,
                        cluster->learned[w].from);
        n++;
    }
    return n;
}

/* Is the row of an entry that is empty? */
static bool is_left_out(const stw_cluster *cluster, const char *key) {
    static const char map[] = "learned.";
    if (strncmp(key, map, sizeof map - 1) != 0) return false;
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        const size_t length = strlen(learnables[w].name);
        const char *name = key + sizeof map - 1;
        if (strncmp(name, learnables[w].name, length) == 0 && name[length] == '.')
            return cluster->learned[w].samples == 0 &&
                   is_empty((stw_learnable)w, &cluster->learned[w]);
    }
    return false;
}

stw_spec_table stw_learned_rows(const stw_cluster *cluster, const stw_spec_table *table,
                                stw_spec_row *rows, size_t most) {
    size_t n = 0;
    for (size_t i = 0; i < table->n_rows && n < most; i++)
        if (!is_left_out(cluster, table->rows[i].key)) rows[n++] = table->rows[i];
    return (stw_spec_table){rows, n};
}
