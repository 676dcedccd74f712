/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core at 0.16.1): transformer_block.py, get_num_layers_to_build;
 * transformer_layer.py, get_transformer_layer_offset; pipeline_parallel_layer_layout.py,
 * PipelineParallelLayerLayout; multi_token_prediction.py, get_mtp_num_layers_to_build. */
#include "engines/megatron/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "engines/megatron/blocks.h"
#include "engines/megatron/megatron.h"
#include "plan/spec/registry.h"

/* Characters of an expanded layout; chunks of all stages. */
enum { MOST_LAYOUT = 1 << 14, MOST_CHUNKS = 1 << 20 };

/* ---- layout strings ---- */

typedef struct expansion {
    char *text; /* [MOST_LAYOUT + 1] */
    size_t n;
    bool too_long;
} expansion;

static void put(expansion *to, const char *text, size_t n, unsigned long times) {
    for (; times > 0 && !to->too_long; times--) {
        to->too_long = to->n + n > MOST_LAYOUT;
        if (to->too_long) return;
        memcpy(to->text + to->n, text, n);
        to->n += n;
        to->text[to->n] = '\0';
    }
}

/* "*n" at `at`: its number and where it ends; false where there is none. */
static bool times_at(const char *at, unsigned long *times, const char **end) {
    char *digits_end;
    if (at[0] != '*' || at[1] < '0' || at[1] > '9') return false;
    *times = strtoul(at + 1, &digits_end, 10);
    *end = digits_end;
    return true;
}

/* Parentheses first, then single characters; commas are dropped. */
static void repeat_parentheses(const char *from, expansion *to) {
    unsigned long times;
    while (*from != '\0') {
        size_t body = *from == '(' ? strcspn(from + 1, ")") : 0;
        const char *end = from + 1;
        if (body > 0 && from[body + 1] == ')' && times_at(from + body + 2, &times, &end))
            put(to, from + 1, body, times);
        else
            put(to, from, 1, *from != ',');
        from = end;
    }
}

static void repeat_characters(const char *from, expansion *to) {
    unsigned long times;
    while (*from != '\0') {
        const char *end = from + 1;
        if (*from == ',') {
            put(to, from, 1, 0);
        } else if (times_at(from + 1, &times, &end)) {
            put(to, from, 1, times);
        } else {
            put(to, from, 1, 1);
        }
        from = end;
    }
}

/* Embedding first and loss last, each once; multi-token prediction after all layers, in one chunk.
 */
static const char *check_order(const char *layout) {
    const char *mtp = strchr(layout, 'm');
    size_t first = strspn(layout, "|"), n = strlen(layout);
    while (n > first && layout[n - 1] == '|') n--;
    if (layout[strspn(layout, "EtmL|")] != '\0')
        return "E, t, m, L, |, and repetitions x*n, (...)*n";
    if (layout[first] != 'E' || strchr(layout + first + 1, 'E') != NULL)
        return "one E (embedding), at the beginning";
    if (layout[n - 1] != 'L' || strchr(layout, 'L') != layout + n - 1)
        return "one L (loss), at the end";
    if (mtp != NULL && strchr(mtp, 't') != NULL) return "m (multi-token prediction) after every t";
    if (mtp != NULL && strchr(mtp + strcspn(mtp, "|"), 'm') != NULL) return "every m in one chunk";
    return NULL;
}

bool stw_megatron_read_layout(const char *text, stw_pool *pool, stw_megatron_chunk **chunks,
                              uint32_t *n_chunks, const char **expected) {
    expansion once = {.text = stw_pool_array(pool, MOST_LAYOUT + 1, 1)};
    expansion layout = {.text = stw_pool_array(pool, MOST_LAYOUT + 1, 1)};
    *expected = "a layout that fits into memory";
    if (once.text == NULL || layout.text == NULL) return false;
    repeat_parentheses(text, &once);
    repeat_characters(once.text, &layout);
    *expected = "at most 16384 layers and chunks";
    if (once.too_long || layout.too_long) return false;
    if ((*expected = check_order(layout.text)) != NULL) return false;
    uint32_t n = 1;
    for (const char *c = layout.text; *c != '\0'; c++) n += *c == '|';
    *expected = "a layout that fits into memory";
    *chunks = stw_pool_array(pool, n, sizeof **chunks);
    if (*chunks == NULL) return false;
    *n_chunks = n;
    n = 0;
    for (const char *c = layout.text; *c != '\0'; c++) {
        n += *c == '|';
        (*chunks)[n].layers += *c == 't';
        (*chunks)[n].mtp += *c == 'm';
    }
    return true;
}

static stw_status refuse_layout(const stw_job *job, const char *expected, stw_error *err) {
    return stw_run_spec_refuse_value(job->run, NULL, err, "megatron.pipeline_layout", expected);
}

/* @param chunks out, [pp x vpp] */
static stw_status follow_layout(const stw_job *job, const char *layout, stw_megatron_chunk *chunks,
                                stw_error *err) {
    const stw_parallel *p = &job->run->parallel;
    const uint64_t ways = stw_times(p->pp, p->vpp);
    const uint32_t mtp = stw_megatron_settings_of(job->run).mtp_num_layers;
    stw_megatron_chunk *read, all = {0, 0};
    const char *expected;
    char text[160];
    uint32_t n;
    if (!stw_megatron_read_layout(layout, job->pool, &read, &n, &expected))
        return refuse_layout(job, expected, err);
    if (n != ways) {
        snprintf(text, sizeof text,
                 "%llu chunks, which is pp %u x vpp %u (it has %u; see parallel.vpp)",
                 (unsigned long long)ways, p->pp, p->vpp, n);
        return refuse_layout(job, text, err);
    }
    for (uint32_t i = 0; i < n; i++) {
        chunks[i] = read[i];
        all.layers += read[i].layers;
        all.mtp += read[i].mtp;
        if (read[i].mtp > 0 && (i % p->pp == 0 || i / p->pp + 1 < p->vpp))
            return refuse_layout(job, "m in the last chunk of a stage that is not the first", err);
    }
    if (all.layers == stw_megatron_layers(job) && all.mtp == mtp) return STW_STATUS_OK;
    snprintf(text, sizeof text,
             "%u layers (t; it has %u) and megatron.mtp_num_layers %u (m; it has %u)",
             stw_megatron_layers(job), all.layers, mtp, all.mtp);
    return refuse_layout(job, text, err);
}

/* ---- division ---- */

void stw_megatron_propose_layout(uint64_t layers, uint64_t chunks, bool mtp, char *out,
                                 size_t out_size) {
    uint64_t each = (layers + 2) / chunks, more = (layers + 2) % chunks, plain = chunks - 2;
    if (chunks < 2 || each == 0) {
        snprintf(out, out_size, "Et|t|...|L");
        return;
    }
    /* the middle chunks that have one layer more come first */
    uint64_t fuller = stw_min_u64(more, plain), rest = plain - fuller;
    uint64_t ends = more - fuller; /* chunks at the ends that have one more */
    int n = snprintf(out, out_size, "Et*%llu|", (unsigned long long)(each - 1 + (ends > 0)));
    if (fuller > 0)
        n += snprintf(out + n, out_size - (size_t)n, "(t*%llu|)*%llu",
                      (unsigned long long)(each + 1), (unsigned long long)fuller);
    if (rest > 0)
        n += snprintf(out + n, out_size - (size_t)n, "(t*%llu|)*%llu", (unsigned long long)each,
                      (unsigned long long)rest);
    snprintf(out + n, out_size - (size_t)n, "t*%llu%sL",
             (unsigned long long)(each - 1 + (ends > 1)), mtp ? "m" : "");
}

static stw_status cannot_divide(const stw_job *job, const char *what, stw_error *err) {
    const stw_parallel *p = &job->run->parallel;
    const uint32_t layers = stw_megatron_layers(job);
    char layout[96];
    stw_megatron_propose_layout(layers, stw_times(p->pp, p->vpp),
                                stw_megatron_settings_of(job->run).mtp_num_layers > 0, layout,
                                sizeof layout);
    return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.pp",
                    "pp %u x vpp %u does not divide %s%u layers; unequal stages: "
                    "megatron.pipeline_layout ('%s'), megatron.first_stage_layers and "
                    "last_stage_layers, or megatron.account_for_embedding and account_for_loss",
                    p->pp, p->vpp, what, layers, layout);
}

/* Layers of the first stage, of the last one and of each between them; false: no such division. */
static bool divide(const stw_job *job, uint32_t *first, uint32_t *last, uint32_t *middle) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const uint32_t pp = job->run->parallel.pp, vpp = job->run->parallel.vpp;
    uint32_t left = stw_megatron_layers(job), stages = pp;
    if (s.first_stage_layers == 0 && s.last_stage_layers == 0) {
        left += (uint32_t)s.account_for_embedding + (uint32_t)s.account_for_loss;
        *first = *last = *middle = left / pp;
        return left % (pp * vpp) == 0;
    }
    if ((uint64_t)s.first_stage_layers + s.last_stage_layers > left) return false;
    left -= s.first_stage_layers + s.last_stage_layers;
    stages -= (uint32_t)(s.first_stage_layers > 0) + (uint32_t)(s.last_stage_layers > 0);
    if (stages > 0 ? left % stages != 0 : left > 0) return false;
    *middle = stages > 0 ? left / stages : 0;
    *first = s.first_stage_layers > 0 ? s.first_stage_layers : *middle;
    *last = s.last_stage_layers > 0 ? s.last_stage_layers : *middle;
    return *first % vpp == 0 && *last % vpp == 0 && *middle % vpp == 0;
}

static stw_status divide_layers(const stw_job *job, stw_megatron_chunk *chunks, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const uint32_t pp = job->run->parallel.pp, vpp = job->run->parallel.vpp, n = pp * vpp;
    uint32_t first = 0, last = 0, middle = 0;
    if (!divide(job, &first, &last, &middle))
        return cannot_divide(job,
                             s.first_stage_layers + s.last_stage_layers > 0
                                 ? "what first_stage_layers and last_stage_layers leave of "
                                 : "the model's ",
                             err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t stage = i % pp;
        chunks[i].layers = (stage == 0 ? first : stage + 1 == pp ? last : middle) / vpp;
    }
    if ((s.account_for_embedding && chunks[0].layers == 0) ||
        (s.account_for_loss && chunks[n - 1].layers == 0))
        return cannot_divide(job, "embedding, loss and ", err);
    chunks[0].layers -= s.account_for_embedding;
    chunks[n - 1].layers -= s.account_for_loss;
    chunks[n - 1].mtp = s.mtp_num_layers;
    return STW_STATUS_OK;
}

/* ---- blocks ---- */

/* With layers of multi-token prediction the final norm follows the last layer
 * (transformer_block.py, has_final_layernorm_in_this_stage), else it is in the last chunk. */
static void place(stw_job *job, const stw_megatron_chunk *chunks, uint32_t n) {
    uint32_t chunk = 0, in_chunk = 0, seen = 0, mtp = n - 1;
    const uint32_t layers = stw_megatron_layers(job);
    const bool norm_follows = stw_megatron_settings_of(job->run).mtp_num_layers > 0;
    for (uint32_t i = 0; i < n; i++)
        if (chunks[i].mtp > 0) mtp = i;
    for (uint32_t b = 0; b < job->model->n_blocks; b++) {
        if (stw_megatron_is_layer(job, b)) {
            for (; chunk + 1 < n && in_chunk == chunks[chunk].layers; in_chunk = 0) chunk++;
            in_chunk++;
            seen++;
            job->chunks[b] = chunk;
        } else if (stw_megatron_is_mtp(job, b)) {
            job->chunks[b] = mtp;
        } else if (seen == 0) {
            job->chunks[b] = 0;
        } else {
            bool follows = norm_follows && seen == layers && !stw_megatron_is_head(job, b);
            job->chunks[b] = follows ? chunk : n - 1;
        }
    }
}

stw_status stw_megatron_place_blocks(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_parallel *p = &job->run->parallel;
    const char *layout = stw_megatron_settings_of(job->run).pipeline_layout;
    const uint64_t n = stw_times(p->pp, p->vpp);
    if (n > MOST_CHUNKS) return cannot_divide(job, "the model's ", err);
    job->chunks = stw_pool_array(job->pool, job->model->n_blocks, sizeof *job->chunks);
    stw_megatron_chunk *chunks = stw_pool_array(job->pool, n, sizeof *chunks);
    if (job->chunks == NULL || chunks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "pipeline stages", "out of memory");
    if (layout != NULL)
        STW_TRY(follow_layout(job, layout, chunks, err));
    else
        STW_TRY(divide_layers(job, chunks, err));
    place(job, chunks, (uint32_t)n);
out:
    return status;
}
