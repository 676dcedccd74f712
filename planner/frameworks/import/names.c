/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* strcasecmp */
#include "planner/frameworks/import/names.h"

#include <string.h>
#include <strings.h>

#include "models/model.h"

/* Endings that change no shape. */
static const char *const endings[] = {"-Instruct", "-Base", "-Chat",     "-it",     "-hf",
                                      "-mcore",    "-2507", "-Thinking", "-Zero",   "-0528",
                                      "-0324",     "-2501", "-BF16",     "-Preview"};

/* Other models whose config.json has the shapes of one in the zoo. */
static const struct {
    const char *name, *zoo;
} alike[] = {
    {"Qwen2-0.5B", "Qwen2.5-0.5B"},
    {"Qwen2-1.5B", "Qwen2.5-1.5B"},
    {"Qwen2-7B", "Qwen2.5-7B"},
    {"Qwen2-72B", "Qwen2.5-72B"},
    {"Qwen2.5-Math-1.5B", "Qwen2.5-1.5B"},
    {"Qwen2.5-Math-7B", "Qwen2.5-7B"},
    {"DeepSeek-R1-Distill-Qwen-7B", "Qwen2.5-7B"},
    {"DeepSeek-R1-Distill-Qwen-14B", "Qwen2.5-14B"},
    {"DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-32B"},
    {"DeepSeek-R1-Qwen3-8B", "Qwen3-8B"}, /* 0528 */
    {"DeepSeek-R1-0528-Qwen3-8B", "Qwen3-8B"},
    {"DeepSeek-R1-Distill-Llama-8B", "Llama-3.1-8B"},
    {"DeepSeek-R1-Distill-Llama-70B", "Llama-3.1-70B"},
    {"Meta-Llama-3-8B", "Llama-3.1-8B"},
    {"Meta-Llama-3-70B", "Llama-3.1-70B"},
    {"Meta-Llama-3.1-8B", "Llama-3.1-8B"},
    {"Meta-Llama-3.1-70B", "Llama-3.1-70B"},
    {"Meta-Llama-3.1-405B", "Llama-3.1-405B"},
    {"Llama-3.3-70B", "Llama-3.1-70B"},
};

static const char *among(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(names[i], name) == 0) return names[i];
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
        if (strcasecmp(alike[i].name, name) == 0) return alike[i].zoo;
    return NULL;
}

static bool strip(char *name) {
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t ending = strlen(endings[i]);
        if (n <= ending || strcasecmp(name + n - ending, endings[i]) != 0) continue;
        name[n - ending] = '\0';
        return true;
    }
    return false;
}

/* A folder of huggingface_hub's cache: .../models--ORG--NAME/snapshots/COMMIT. NULL: it is none */
static char *cached(char *path) {
    char *found = strstr(path, "models--");
    if (found == NULL || (found != path && found[-1] != '/')) return NULL;
    char *name = strstr(found + strlen("models--"), "--");
    if (name == NULL) return NULL;
    name += 2;
    name[strcspn(name, "/")] = '\0';
    return name;
}

stw_status stw_names_zoo(const char *data_folder, const char *name, stw_pool *pool,
                         const char **out, stw_error *err) {
    const char *const *names;
    size_t n = 0;
    *out = NULL;
    stw_status status = stw_zoo_list(data_folder, pool, &names, &n, err);
    if (status != STW_STATUS_OK) return status;
    char *own = stw_pool_string(pool, name);
    if (own == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    for (size_t end = strlen(own); end > 0 && own[end - 1] == '/'; end--) own[end - 1] = '\0';
    char *last = cached(own);
    if (last == NULL) last = strrchr(own, '/') != NULL ? strrchr(own, '/') + 1 : own;
    do {
        *out = among(names, n, last);
    } while (*out == NULL && strip(last));
    return STW_STATUS_OK;
}

bool stw_names_same(const char *a, const char *b) {
    size_t n[2] = {strlen(a), strlen(b)};
    const char *from[2] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        while (n[i] > 1 && from[i][n[i] - 1] == '/') n[i]--;
        for (size_t k = n[i]; k > 0; k--)
            if (from[i][k - 1] == '/' && k < n[i]) {
                from[i] += k, n[i] -= k;
                break;
            }
    }
    return n[0] == n[1] && memcmp(from[0], from[1], n[0]) == 0;
}
