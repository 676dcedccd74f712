/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks compare before they run together: every key of the run spec, every option that changes
 * a result or a schedule, the decisions and the model are in it, and the first difference is named
 * with key, rank and both values. */
#include "backend/executor/run.h"
#include "plan/files/plan_terms.h"
#include "plan/spec/registry.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static stw_plan *plan_with(const char *const *settings) {
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan((fixture_size){2, 64, 136, 515}, &cluster, settings);
    fixture_state(plan, 1, &(stw_place)FIXTURE_STREAM, &(uint32_t){UINT32_MAX});
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_rank_run run_of(const stw_plan *plan, const stw_executor_options *options) {
    return (stw_rank_run){.plan = plan,
                          .job = plan->job,
                          .options = options,
                          .backend = &stw_backend_host,
                          .weights_path = options->weights,
                          .timeout_s = options->timeout_s};
}

static stw_status compare(const char *zero, const char *other, stw_error *err) {
    return stw_exec_compare_lists(
        &(stw_exec_lists){zero, other, 0, 3, 1, "start all ranks with the same plan"}, err);
}

/* Settings of two runs differ first in `key`: rank 3 has `other`, rank 0 `zero`. */
static void differ(const stw_rank_run *a, const stw_rank_run *b, const char *key, const char *zero,
                   const char *other) {
    stw_text one = STW_TEXT_INIT, two = STW_TEXT_INIT;
    stw_error said_err = STW_ERROR_INIT;
    char said[300];
    CHECK_OK(stw_exec_settings(a, &one, err));
    CHECK_OK(stw_exec_settings(b, &two, err));
    CU_ASSERT_EQUAL(compare(one.data, one.data, &said_err), STW_STATUS_OK);
    CU_ASSERT_EQUAL(compare(one.data, two.data, &said_err), STW_STATUS_DEVICE);
    CU_ASSERT_STRING_EQUAL(said_err.where, key);
    snprintf(said, sizeof said, "rank 3 has %s, rank 0 has %s;", other, zero);
    if (other != NULL && strstr(said_err.text, said) == NULL) {
        fprintf(stderr, "%s: %s, expected %s\n", said_err.where, said_err.text, said);
        CU_FAIL("the values are not named");
    }
    stw_text_free(&one);
    stw_text_free(&two);
}

static stw_status after(void *state, stw_rank_run *run, uint32_t iteration, stw_error *err) {
    (void)state;
    (void)run;
    (void)iteration;
    (void)err;
    return STW_STATUS_OK;
}

/* Lines of the list that are options: they stand before those of the plan. */
static uint32_t options_of(const stw_rank_run *run) {
    stw_text list = STW_TEXT_INIT;
    uint32_t n = 0;
    CHECK_OK(stw_exec_settings(run, &list, err));
    for (stw_term l = stw_term_at(list.data); l.key_length > 0; l = stw_term_at(stw_term_next(&l)))
        n += strncmp(l.key, "--", 2) == 0 || strncmp(l.key, "poison_freed ", 13) == 0 ||
             strncmp(l.key, "ceiling ", 8) == 0;
    stw_text_free(&list);
    return n;
}

static void every_option(void) {
    const stw_executor_options base = {.steps = 3, .seed = 5, .timeout_s = 20};
    static const struct {
        stw_executor_options with; /* steps, seed, timeout_s 0: those of `base` */
        const char *key, *zero, *other;
    } rows[] = {
        {{.steps = 4}, "--steps", "3", "4"},
        {{.seed = 6}, "--seed", "5", "6"},
        {{.weights = "folder"}, "--weights", "random", "files"},
        {{.timeout_s = 2.5}, "--timeout", "20.0", "2.5"},
        {{.no_digest = true}, "--no-digest", "false", "true"},
        {{.compare_weights = true}, "--compare-weights", "false", "true"},
        {{.error_if_nonfinite = true}, "--error-if-nonfinite", "false", "true"},
        {{.other_grad = {2, 7, 0.5f}}, "--set-gradient", "none", "2:7=0.5"},
        {{.output = "run.json"}, "--output", "none", "run.json"},
        {{.trace = "trace.json"}, "--trace", "none", "trace.json"},
        {{.sync_to = "weights"}, "--sync-to", "none", "weights"},
        {{.checkpoint = "saves"}, "--checkpoint", "none", "folder"},
        {{.checkpoint_every = 3}, "--every", "0", "3"},
        {{.checkpoint_keep = 2}, "--keep", "0", "2"},
        {{.poison_freed = true}, "poison_freed", "false", "true"},
        {{.after_iteration = after}, "ceiling", "false", "true"},
    };
    const uint32_t n = sizeof rows / sizeof rows[0];
    stw_plan *plan = plan_with((const char *const[]){NULL});
    stw_rank_run a = run_of(plan, &base), b;
    stw_executor_options other;
    for (uint32_t i = 0; i < n; i++) {
        other = rows[i].with;
        if (other.steps == 0) other.steps = base.steps;
        if (other.seed == 0) other.seed = base.seed;
        if (!(other.timeout_s > 0)) other.timeout_s = base.timeout_s;
        b = run_of(plan, &other);
        differ(&a, &b, rows[i].key, rows[i].zero, rows[i].other);
    }
    /* step, element and value of a gradient each count */
    stw_executor_options one = base;
    one.other_grad = (stw_other_grad){2, 7, 0.5f};
    static const stw_other_grad others[] = {{3, 7, 0.5f}, {2, 8, 0.5f}, {2, 7, 0.25f}};
    static const char *const words[] = {"3:7=0.5", "2:8=0.5", "2:7=0.25"};
    a = run_of(plan, &one);
    for (int i = 0; i < 3; i++) {
        other = base;
        other.other_grad = others[i];
        b = run_of(plan, &other);
        differ(&a, &b, "--set-gradient", "2:7=0.5", words[i]);
    }
    stw_backend gpu = stw_backend_host;
    gpu.name = "cuda";
    b = a;
    b.backend = &gpu;
    differ(&a, &b, "--backend", "host", "cuda");
    b = a;
    snprintf(b.resumed, sizeof b.resumed, "step 3 of save 12");
    differ(&a, &b, "--resume", "none", "step 3 of save 12");
    CU_ASSERT_EQUAL(options_of(&a), n + 2); /* a new option needs a row */
    stw_plan_free(plan);
}

static void decisions_and_model(void) {
    const stw_executor_options options = {.steps = 3};
    stw_plan *plan = plan_with((const char *const[]){NULL});
    stw_plan *other = plan_with((const char *const[]){NULL});
    stw_rank_run a = run_of(plan, &options), b = run_of(other, &options);
    other->decisions.load = STW_LOAD_SHARDED_READ;
    CHECK_OK(stw_plan_derive(other, err));
    differ(&a, &b, "decided.load.method", stw_load_name(plan->decisions.load), "sharded_read");
    other->decisions.load = plan->decisions.load;
    CHECK_OK(stw_plan_derive(other, err));
    other->programs[0]->ops[3].from_offset_bytes += 64;
    stw_text list = STW_TEXT_INIT;
    CHECK_OK(stw_exec_settings(&b, &list, err));
    CU_ASSERT_PTR_NOT_NULL(strstr(list.data, "collectives.0.load = "));
    stw_text_free(&list);
    char key[100];
    snprintf(key, sizeof key, "program.%s.0.load", plan->job->kinds[0].name);
    differ(&a, &b, key, NULL, NULL);
    other->model->digest[0] ^= 1;
    differ(&a, &b, "model.digest", plan->model->digest, other->model->digest);
    stw_plan_free(other);
    stw_plan_free(plan);
}

static void keys_of_one_rank_alone(void) {
    static const char *const groups[] = {
        "optimizer.groups=[{match: [1d], lr: 0.25, weight_decay: 0}]", NULL};
    const stw_executor_options options = {.steps = 3};
    stw_plan *none = plan_with((const char *const[]){NULL}), *one = plan_with(groups);
    stw_rank_run a = run_of(none, &options), b = run_of(one, &options);
    differ(&a, &b, "optimizer.groups", "[]", "none");
    differ(&b, &a, "optimizer.groups.0.match.0", "1d", "none");
    one->run.optimizer.groups[0].lr = 0.5;
    stw_plan *two = plan_with(groups);
    a = run_of(two, &options);
    differ(&a, &b, "optimizer.groups.0.lr", "0.25", "0.5");
    stw_plan_free(two);
    stw_plan_free(one);
    stw_plan_free(none);
}

/* Another value in the memory of a row; false where the value is not kept there. */
static bool change(const stw_spec_row *row, void *base) {
    unsigned char *at = (unsigned char *)base + row->offset;
    double number;
    switch (row->kind) {
    case STW_SPEC_BOOL:
        *at = !*at;
        return true;
    case STW_SPEC_NUMBER:
    case STW_SPEC_PAIR:
        memcpy(&number, at, sizeof number);
        number = number < 1 ? 1.5 : 0.5;
        memcpy(at, &number, sizeof number);
        return true;
    case STW_SPEC_COUNT:
    case STW_SPEC_BYTES:
        *at = (unsigned char)(*at + (*at < 100 ? 7 : -7));
        return true;
    case STW_SPEC_WORDS: /* the next word that is kept as another value */
        for (const stw_spec_word *w = row->words; row->size > 0 && w->word != NULL; w++)
            if (w->value != stw_spec_get_u64(row, base)) {
                memcpy(at, &w->value, row->size);
                return true;
            }
        return false;
    case STW_SPEC_FLAGS:
        at[row->words[0].value] = !at[row->words[0].value];
        return true;
    case STW_SPEC_MAP:
        *at = *at == 0;
        return true;
    case STW_SPEC_STRING: {
        const char *text = "another";
        memcpy(at, &text, sizeof text);
        return true;
    }
    default: /* lists: keys_of_one_rank_alone */
        return false;
    }
}

static void every_key_of_the_run(void) {
    const stw_executor_options options = {.steps = 3};
    const stw_spec_table *table = stw_run_spec_table();
    stw_plan *plan = plan_with((const char *const[]){NULL});
    stw_rank_run run = run_of(plan, &options);
    stw_text before = STW_TEXT_INIT;
    unsigned changed = 0;
    CHECK_OK(stw_exec_settings(&run, &before, err));
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        stw_error found = STW_ERROR_INIT;
        stw_text after = STW_TEXT_INIT;
        stw_run_spec kept = plan->run;
        if (!change(row, &plan->run)) continue;
        changed++;
        CU_ASSERT_EQUAL(stw_exec_settings(&run, &after, &found), STW_STATUS_OK);
        stw_status status = compare(before.data, after.data, &found);
        size_t length =
            strlen(found.where) < strlen(row->key) ? strlen(found.where) : strlen(row->key);
        bool named = length > 5 && strncmp(found.where, row->key, length) == 0; /* or its map */
        if (status != STW_STATUS_DEVICE || !named)
            fprintf(stderr, "%s: status %d, named %s\n", row->key, status, found.where);
        CU_ASSERT_EQUAL(status, STW_STATUS_DEVICE);
        CU_ASSERT_TRUE(named);
        plan->run = kept;
        stw_text_free(&after);
    }
    CU_ASSERT_TRUE(changed > 60);
    stw_text_free(&before);
    stw_plan_free(plan);
}

STW_TEST_MAIN("backend agree", {"every option", every_option},
              {"decisions and model", decisions_and_model},
              {"keys of one rank alone", keys_of_one_rank_alone},
              {"every key of the run", every_key_of_the_run})
