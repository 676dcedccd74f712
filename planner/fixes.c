/* SPDX-License-Identifier: Apache-2.0 */
/* Fixes: changes of the specs under which a plan was found that fits. Each knob is tried alone,
 * then in pairs, at the last step that the specs admit; what fits is brought back to the fewest
 * steps that do. */
#include "planner/fixes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/resolve.h"

/* Pairs are sought where fewer changes than this are enough alone. */
#define ENOUGH_FIXES 3

/* Trials of a whole search: one to two seconds. */
#define MOST_TRIALS 120

/* Seconds to plan what was found to the end. */
#define VERIFY_S 2.0

typedef struct fix_search {
    stw_plan *plan;
    stw_fix_budget *budget;
    stw_knobs knobs;
    bool layouts; /* layouts of ranks were tried */
} fix_search;

/* ---- one setting ---- */

/* One knob or two, each at a step; the second may be NULL. */
typedef struct setting {
    stw_knob *knobs[2];
    uint64_t steps[2];
} setting;

static uint32_t changes_of(const setting *at, stw_change *out) {
    uint32_t n = 0;
    for (int k = 0; k < 2; k++)
        if (at->knobs[k] != NULL) n += stw_knob_changes(at->knobs[k], at->steps[k], &out[n]);
    return n;
}

static stw_status try_setting(const fix_search *search, const setting *at, stw_trial *out,
                              stw_error *err) {
    stw_change changes[2 * STW_MAX_KNOB_CHANGES];
    uint32_t n = changes_of(at, changes);
    stw_status status = stw_fix_try(search->plan, search->budget, changes, n, out, err);
    for (int k = 0; k < 2 && *out != STW_TRIAL_REFUSED; k++)
        if (at->knobs[k] != NULL) at->knobs[k]->tried = true;
    return status;
}

static stw_status admits(const fix_search *search, const setting *at, bool *out, stw_error *err) {
    stw_change changes[2 * STW_MAX_KNOB_CHANGES];
    uint32_t n = changes_of(at, changes);
    return stw_fix_admits(search->plan, changes, n, out, err);
}

/* ---- steps of a knob ---- */

/* The last step that the specs admit: they refuse a loss of few tokens cut in chunks, sequences
 * that cannot be cut so often. 0: there is none. */
static stw_status find_last(const fix_search *search, stw_knob *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    setting at = {{k, NULL}, {k->n, 0}};
    bool admitted = true;
    uint64_t low = 0, high = k->n;
    STW_TRY(admits(search, &at, &admitted, err));
    while (!admitted && high - low > 1) {
        bool here;
        at.steps[0] = low + (high - low) / 2;
        STW_TRY(admits(search, &at, &here, err));
        if (here)
            low = at.steps[0];
        else
            high = at.steps[0];
    }
    k->last = admitted ? k->n : low;
out:
    return status;
}

typedef struct range {
    uint64_t low, high; /* steps that do not fit, and that do */
} range;

/* A step within a range that the specs admit, *step or near it. @param step in and out; 0: none */
static stw_status admitted_step(const fix_search *search, const setting *at, int k, range in,
                                uint64_t *step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    setting tried = *at;
    bool admitted = false;
    const uint64_t want = *step;
    *step = 0;
    for (uint64_t i = 0; i < in.high - in.low - 1 && !admitted; i++) {
        tried.steps[k] = want + i < in.high ? want + i : in.high - 1 - i;
        STW_TRY(admits(search, &tried, &admitted, err));
        if (admitted) *step = tried.steps[k];
    }
out:
    return status;
}

/* The fewest steps of one knob of a setting that fits. @param low steps that do not fit
 * @param want what the setting says, which fewer steps must say, too */
static stw_status fewest(const fix_search *search, setting *at, int k, uint64_t low, stw_trial want,
                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    range in = {low, at->steps[k]};
    while (in.high - in.low > 1) {
        stw_trial trial;
        setting tried = *at;
        /* lengths are rarely needed in full: look near the start first */
        uint64_t mid = in.low == 0 && in.high > 16 ? in.high / 8 : in.low + (in.high - in.low) / 2;
        STW_TRY(admitted_step(search, at, k, in, &mid, err));
        if (mid == 0) break;
        tried.steps[k] = mid;
        STW_TRY(try_setting(search, &tried, &trial, err));
        if (trial >= want)
            in.high = mid;
        else
            in.low = mid;
    }
    at->steps[k] = in.high;
out:
    return status;
}

/* Counts of machines fit or not by powers of two first: those divide what the others may not.
 * @param at out, the fewest doublings that fit @param low out, steps that do not fit */
static stw_status double_until(const fix_search *search, setting *at, uint64_t *low,
                               stw_trial *trial, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_knob *k = at->knobs[0];
    uint32_t unfit = 0, fits = 0;
    stw_trial here;
    while (k->from * ((2ull << fits) - 1) <= k->n) fits++;
    for (*trial = STW_TRIAL_REFUSED; fits > 0 && *trial == STW_TRIAL_REFUSED; fits--) {
        at->steps[0] = k->from * ((1ull << fits) - 1);
        STW_TRY(try_setting(search, at, trial, err));
    }
    fits++;
    while (*trial >= STW_TRIAL_AT_RISK && fits - unfit > 1) {
        uint32_t mid = unfit + (fits - unfit) / 2;
        setting tried = *at;
        tried.steps[0] = k->from * ((1ull << mid) - 1);
        STW_TRY(try_setting(search, &tried, &here, err));
        if (here >= *trial) {
            at->steps[0] = tried.steps[0];
            fits = mid;
        } else {
            unfit = mid;
        }
    }
    *low = k->from * ((1ull << unfit) - 1);
out:
    return status;
}

/* ---- the search ---- */

static stw_status note_fix(const fix_search *search, const setting *at, stw_trial trial,
                           stw_error *err) {
    stw_change changes[2 * STW_MAX_KNOB_CHANGES];
    char why[256] = "";
    uint32_t n = 0;
    for (int k = 0; k < 2; k++) {
        const stw_knob *turned = at->knobs[k];
        if (turned == NULL) continue;
        const size_t used = strlen(why);
        n += stw_knob_changes(turned, at->steps[k], &changes[n]);
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", turned->why);
    }
    return stw_fix_note(search->plan, changes, n, why, trial, err);
}

/* Is a knob of this key enough by itself? Another one of that key, or a pair with it, is no
 * smaller.
 */
static bool is_enough(const fix_search *search, const char *key) {
    for (uint32_t i = 0; i < search->knobs.n; i++)
        if (search->knobs.list[i].enough && strcmp(search->knobs.list[i].key, key) == 0)
            return true;
    return false;
}

static stw_status try_alone(fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        stw_knob *k = &search->knobs.list[i];
        setting at = {{k, NULL}, {k->n, 0}};
        stw_trial trial = STW_TRIAL_REFUSED;
        uint64_t low = 0;
        STW_TRY(find_last(search, k, err));
        if (!k->single || (k->kind == STW_KNOB_WORD && is_enough(search, k->key))) continue;
        at.steps[0] = k->last;
        if (k->kind == STW_KNOB_UP)
            STW_TRY(double_until(search, &at, &low, &trial, err));
        else if (k->last > 0)
            STW_TRY(try_setting(search, &at, &trial, err));
        k->enough = trial >= STW_TRIAL_AT_RISK;
        if (!k->enough) continue;
        STW_TRY(fewest(search, &at, 0, low, trial, err));
        k->fewest = at.steps[0];
        STW_TRY(note_fix(search, &at, trial, err));
    }
out:
    return status;
}

/* Fewer nodes than are enough beside a word: one less, or where the specs refuse that the most
 * doublings that they admit. */
static stw_status try_most_below(const fix_search *search, setting *at, stw_trial *trial,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_knob *nodes = at->knobs[1];
    const uint64_t most = at->steps[1];
    uint32_t doublings = 0;
    STW_TRY(try_setting(search, at, trial, err));
    while (nodes->from * ((2ull << doublings) - 1) <= most) doublings++;
    for (; doublings > 0 && *trial == STW_TRIAL_REFUSED; doublings--) {
        at->steps[1] = nodes->from * ((1ull << doublings) - 1);
        STW_TRY(try_setting(search, at, trial, err));
    }
out:
    return status;
}

/* Where nodes alone are enough: another choice of the run may do with fewer of them. */
static stw_status try_fewer_nodes(fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_knob *nodes = NULL;
    for (uint32_t i = 0; i < search->knobs.n; i++)
        if (search->knobs.list[i].kind == STW_KNOB_UP) nodes = &search->knobs.list[i];
    if (nodes == NULL || !nodes->enough) return status;
    for (uint32_t i = 0; i < search->knobs.n && nodes->fewest > 1; i++) {
        stw_knob *word = &search->knobs.list[i];
        setting at = {{word, nodes}, {1, nodes->fewest - 1}};
        stw_trial trial;
        if (word->kind != STW_KNOB_WORD || !word->in_pairs || is_enough(search, word->key) ||
            strcmp(word->key, "engine") == 0)
            continue;
        STW_TRY(try_most_below(search, &at, &trial, err));
        if (trial < STW_TRIAL_AT_RISK) continue;
        STW_TRY(fewest(search, &at, 1, 0, trial, err));
        const setting bare = {{nodes, NULL}, {at.steps[1], 0}};
        stw_trial without = STW_TRIAL_UNFIT;
        STW_TRY(try_setting(search, &bare, &without, err));
        if (without < trial) STW_TRY(note_fix(search, &at, trial, err));
    }
out:
    return status;
}

/* Two knobs at their last steps; where the specs refuse these together, at fewer. */
static stw_status try_last_pair(const fix_search *search, setting *at, stw_trial *trial,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (;;) {
        STW_TRY(try_setting(search, at, trial, err));
        int k = at->steps[1] >= at->steps[0] ? 1 : 0;
        if (*trial != STW_TRIAL_REFUSED || at->steps[k] <= 1) break;
        at->steps[k] /= 2;
    }
out:
    return status;
}

/* The last step of the first knob of a pair; 0: none. */
static uint64_t last_beside(const stw_knob *k, const stw_knob *second) {
    bool nodes = second->kind == STW_KNOB_DOUBLE && strcmp(second->key, "nodes") == 0;
    return k->last == 0 && k->needs_nodes && nodes ? k->n : k->last;
}

/* The later knob of a pair costs more: it is brought back first, but where the first one needs it.
 */
static stw_status bring_back(const fix_search *search, setting *at, stw_trial want,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int first = at->knobs[0]->last == 0 ? 0 : 1;
    STW_TRY(fewest(search, at, first, 0, want, err));
    STW_TRY(fewest(search, at, 1 - first, 0, want, err));
out:
    return status;
}

static stw_status try_pairs(fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t b = 1; b < search->knobs.n; b++)
        for (uint32_t a = 0; a < b && search->plan->n_fixes < ENOUGH_FIXES; a++) {
            stw_knob *first = &search->knobs.list[a], *second = &search->knobs.list[b];
            setting at = {{first, second}, {last_beside(first, second), second->last}};
            stw_trial trial;
            if (is_enough(search, first->key) || is_enough(search, second->key) ||
                !first->in_pairs || !second->in_pairs || at.steps[0] == 0 || at.steps[1] == 0)
                continue;
            STW_TRY(try_last_pair(search, &at, &trial, err));
            if (trial < STW_TRIAL_AT_RISK) continue;
            STW_TRY(bring_back(search, &at, trial, err));
            STW_TRY(note_fix(search, &at, trial, err));
        }
out:
    return status;
}

/* The keys that were tried, each once: "parallel.cp, batch.seq_len, nodes". */
static stw_status note_tried(const fix_search *search, stw_error *err) {
    stw_text keys = STW_TEXT_INIT;
    if (search->layouts)
        stw_text_printf(&keys, "parallel.tp, parallel.pp, parallel.ep, their combinations");
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        const stw_knob *k = &search->knobs.list[i];
        bool again = false;
        for (uint32_t b = 0; b < i; b++)
            again |= search->knobs.list[b].tried && strcmp(search->knobs.list[b].key, k->key) == 0;
        if (k->tried && !again) stw_text_printf(&keys, "%s%s", keys.length > 0 ? ", " : "", k->key);
        if (k->tried && !again && k->kind == STW_KNOB_UP && k->last > 0)
            stw_text_printf(&keys, " (up to %llu)", (unsigned long long)(k->from + k->last));
    }
    if (search->budget->late && keys.length > 0)
        stw_text_printf(&keys, "; the time limit ended the search");
    stw_status status = stw_text_status(&keys, err);
    if (status == STW_STATUS_OK && keys.data != NULL) {
        search->plan->tried = stw_pool_string(search->plan->pool, keys.data);
        if (search->plan->tried == NULL)
            status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    }
    stw_text_free(&keys);
    return status;
}

/* The rows and the walk of a trial know neither which plan is fastest nor how an allocator splits
 * memory up. */
static stw_status verify(const fix_search *search, const stw_fix_judge *judge, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double end_s = fmin(search->budget->end_s, stw_planner_now_s() + VERIFY_S);
    for (uint32_t i = 0; i < search->plan->n_fixes && judge != NULL; i++) {
        const double left_s = end_s - stw_planner_now_s();
        if (left_s <= 0) break;
        STW_TRY(stw_fix_verify(search->plan, &search->plan->fixes[i], judge, left_s, err));
    }
out:
    return status;
}

stw_status stw_planner_fix(stw_plan *plan, double time_limit_s, const stw_fix_judge *judge,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_fix_budget budget = {.trials = MOST_TRIALS, .end_s = stw_planner_now_s() + time_limit_s};
    fix_search search = {.plan = plan, .budget = &budget};
    plan->n_fixes = 0;
    plan->fixes = stw_pool_array(plan->pool, STW_MAX_FIXES, sizeof *plan->fixes);
    if (plan->fixes == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    stw_knobs_of(plan, &search.knobs);
    STW_TRY(stw_fix_layouts(plan, &budget, &search.layouts, err));
    STW_TRY(try_alone(&search, err));
    STW_TRY(try_fewer_nodes(&search, err));
    if (plan->n_fixes < ENOUGH_FIXES) STW_TRY(try_pairs(&search, err));
    STW_TRY(note_tried(&search, err));
    STW_TRY(verify(&search, judge, err));
    stw_fixes_sort(plan);
out:
    return status;
}
