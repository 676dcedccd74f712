/* SPDX-License-Identifier: Apache-2.0 */
/* No value of a plan file can be changed unnoticed: what follows from inputs and decisions is
 * derived again, inputs and the planner's evidence have checksums. How a file is laid out does not
 * count. */
#include <jansson.h>

#include "plan/files/verdict.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const stw_place mixed[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};
static const uint32_t units[] = {20, 40, 0};

/* A derived plan with evidence, as a document. @param seconds of the evidence */
static json_t *plan_document(double seconds) {
    const fixture_size size = {3, 256, 512, 1000};
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(size, &cluster, NULL);
    stw_text text = STW_TEXT_INIT;
    stw_solver_stage stages[] = {{"seconds", 1.25, 1.249, 8e-4, 0.05}};
    stw_price prices[] = {{"gpu_memory", "optimizer_step", 8, "GiB", -1e-3 * seconds}};
    stw_alternative others[] = {
        {.rule = "plainness", .seconds = 0.5, .share = 0.1, .needs = "9 blocks offloaded"}};
    fixture_state(plan, 3, mixed, units);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_plan_judge(plan);
    plan->outcome = STW_OUTCOME_OPTIMAL;
    plan->solver =
        (stw_solver_report){"glpk", "5.0", seconds, 10, 20, 143, 1.25, 1.249, 8e-4, 1, stages};
    plan->objective_s = 1.25;
    plan->n_prices = plan->n_alternatives = 1;
    plan->prices = prices;
    plan->alternatives = others;
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] = 0.25;
    plan->time_s[STW_PHASE_LOAD] = plan->time_s[STW_PHASE_FORWARD_BACKWARD] = 0.5;
    CHECK_OK(stw_plan_to_json(plan, &text, err));
    json_t *document = json_loads(text.data, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(document);
    stw_text_free(&text);
    stw_plan_free(plan);
    return document;
}

static stw_status read_document(const json_t *document, size_t flags, stw_error *err) {
    char *text = json_dumps(document, flags);
    stw_plan *plan = NULL;
    if (text == NULL) return STW_STATUS_NO_MEMORY;
    stw_status status = stw_plan_parse("plan.json", text, strlen(text), &plan, err);
    stw_plan_free(plan);
    free(text);
    return status;
}

static void layout_does_not_count(void) {
    json_t *document = plan_document(1);
    CHECK_OK(read_document(document, 0, err));
    CHECK_OK(read_document(document, JSON_COMPACT | JSON_SORT_KEYS, err));
    CHECK_OK(read_document(document, JSON_INDENT(4) | JSON_ENSURE_ASCII, err));
    json_t *solver = json_object_get(document, "solver"); /* another spelling of 10 */
    json_object_set_new(solver, "rows", json_real(10));
    CHECK_OK(read_document(document, 0, err));
    json_decref(document);
}

static json_t *another(const json_t *value) {
    char text[256];
    switch (json_typeof(value)) {
    case JSON_INTEGER:
        return json_integer(json_integer_value(value) + 1);
    case JSON_REAL:
        return json_real(json_real_value(value) * 1.5 + 1e-3);
    case JSON_TRUE:
        return json_false();
    case JSON_FALSE:
        return json_true();
    case JSON_NULL:
        return json_integer(1);
    default:
        snprintf(text, sizeof text, "%.200sx", json_string_value(value));
        return json_string(text);
    }
}

typedef struct changing {
    json_t *document;
    unsigned changed, accepted;
    char path[256];
} changing;

static void try_value(changing *c, json_t *value, json_t *parent, const char *key, size_t index) {
    const bool in_object = json_is_object(parent);
    json_t *kept = json_incref(value), *other = another(value);
    stw_error err = STW_ERROR_INIT;
    if (in_object)
        json_object_set_new(parent, key, other);
    else
        json_array_set_new(parent, index, other);
    stw_status status = read_document(c->document, 0, &err);
    c->changed++;
    if (status != STW_STATUS_BAD_INPUT && status != STW_STATUS_NOT_BUILT_IN) {
        fprintf(stderr, "status %d with another %s\n", (int)status, c->path);
        c->accepted++;
    }
    if (in_object)
        json_object_set_new(parent, key, kept);
    else
        json_array_set_new(parent, index, kept);
}

static void change_all(changing *c, json_t *parent) {
    const size_t length = strlen(c->path);
    const char *key;
    json_t *value;
    size_t index;
    if (json_is_object(parent)) {
        json_t *copy = json_copy(parent); /* iterates while the original changes */
        json_object_foreach(copy, key, value) {
            snprintf(c->path + length, sizeof c->path - length, ".%s", key);
            if (json_is_object(value) || json_is_array(value))
                change_all(c, value);
            else
                try_value(c, value, parent, key, 0);
        }
        json_decref(copy);
    } else {
        const size_t n = json_array_size(parent);
        for (index = 0; index < n; index++) {
            if (index > 1 && index + 1 < n) continue; /* rows are alike */
            value = json_array_get(parent, index);
            snprintf(c->path + length, sizeof c->path - length, "[%zu]", index);
            if (json_is_object(value) || json_is_array(value))
                change_all(c, value);
            else
                try_value(c, value, parent, NULL, index);
        }
    }
    c->path[length] = '\0';
}

static void every_value_counts(void) {
    changing c = {.document = plan_document(1)};
    change_all(&c, c.document);
    CU_ASSERT_TRUE(c.changed > 300);
    CU_ASSERT_EQUAL(c.accepted, 0);
    json_decref(c.document);
}

static void changed_members_are_named(void) {
    static const struct {
        const char *member, *inner, *key, *word;
    } cases[] = {
        {"run", "optimizer", "lr", "run: was changed since the file was written"},
        {"cluster", "node", "nvlink", "cluster: was changed"},
        {"solver", NULL, "simulated_plans", "solver: was changed"},
        {"solver", NULL, "bound", "bound: found 1.8745, expected at most the objective 1.25"},
        {"solver", NULL, "gap", "gap: found 0.0022, objective and bound give 0.0008"},
        {"blocks", NULL, "fetch_ahead", "expected at most 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document = plan_document(1);
        json_t *at = json_object_get(document, cases[i].member);
        if (cases[i].inner != NULL) at = json_object_get(at, cases[i].inner);
        json_t *value = json_object_get(at, cases[i].key);
        CU_ASSERT_PTR_NOT_NULL_FATAL(value);
        json_object_set_new(at, cases[i].key, i == 5 ? json_integer(4000000000) : another(value));
        CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT, cases[i].word);
        json_decref(document);
    }
    json_t *document = plan_document(1);
    json_object_del(document, "checksums");
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT, "\"checksums\" is missing");
    json_decref(document);
    document = plan_document(1);
    json_object_del(json_object_get(document, "checksums"), "run");
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT, "\"run\" is missing");
    json_decref(document);
}

/* Members with their own checksums, all genuine, of two plans. */
static void members_of_two_plans_are_refused(void) {
    static const char *const members[] = {"solver", "prices"};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        json_t *one = plan_document(1), *two = plan_document(2);
        json_object_set(one, members[i], json_object_get(two, members[i]));
        json_object_set(json_object_get(one, "checksums"), members[i],
                        json_object_get(json_object_get(two, "checksums"), members[i]));
        CHECK_FAILS(read_document(one, 0, err), STW_STATUS_BAD_INPUT, "copied from another plan");
        json_decref(one);
        json_decref(two);
    }
}

static void added_members_are_refused(void) {
    json_t *document = plan_document(1), *sums = json_object_get(document, "checksums");
    json_object_set_new(document, "remark", json_true());
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT,
                "remark: was added since the file was written");
    json_object_set(document, "remark", json_object_get(document, "outcome"));
    json_object_set(sums, "remark", json_object_get(sums, "outcome"));
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT, "some were added");
    json_decref(document);
    document = plan_document(1);
    json_object_del(json_object_get(document, "checksums"), "whole");
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT, "plan again");
    json_decref(document);
}

/* Where the run says gpu, moments on the host are of another plan. */
static void forced_placements_are_held(void) {
    json_t *document = plan_document(1);
    json_t *placement = json_object_get(json_object_get(document, "run"), "placement");
    CU_ASSERT_PTR_NOT_NULL_FATAL(placement);
    json_object_set_new(placement, "moments", json_string("gpu"));
    CHECK_FAILS(read_document(document, 0, err), STW_STATUS_BAD_INPUT,
                "which the settings in \"run\"");
    json_decref(document);
}

STW_TEST_MAIN("plan edits", {"layout does not count", layout_does_not_count},
              {"members of two plans are refused", members_of_two_plans_are_refused},
              {"added members are refused", added_members_are_refused},
              {"forced placements are held", forced_placements_are_held},
              {"every value counts", every_value_counts},
              {"changed members are named", changed_members_are_named})
