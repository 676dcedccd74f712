/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a plan's changes can a framework's settings say? Each is written and read back as the
 * settings of a plan are; where it is lost, the framework has no setting for it. */
#include "planner/frameworks/emit/said.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/spec/registry.h"

/* Of the machine, or follows from other keys and the number of GPUs. */
static bool is_no_setting(const char *key) {
    static const char *const beginnings[] = {"node", "batch.", "parallel.dp_"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (strncmp(key, beginnings[i], strlen(beginnings[i])) == 0) return true;
    return false;
}

/* The text of a key of the run, "roles.0.name" included; NULL: there is none. In the pool. */
static const char *text_of(const stw_run_spec *run, const char *key, stw_pool *pool) {
    const stw_spec_table *table = stw_run_spec_table();
    const void *base = run;
    unsigned role = 0;
    int used = 0;
    if (sscanf(key, "roles.%u.%n", &role, &used) == 1 && used > 0) {
        if (role >= run->n_roles) return NULL;
        table = stw_role_table();
        base = &run->roles[role];
        key += used;
    }
    const stw_spec_row *row = stw_spec_find(table, key, strlen(key));
    if (row == NULL) return NULL;
    stw_text text = STW_TEXT_INIT;
    stw_spec_write_value(row, base, &text);
    const char *out = stw_pool_string(pool, text.data != NULL ? text.data : "");
    stw_text_free(&text);
    return out;
}

/* What planning chooses is written as what it has chosen: only that of optimizers is known before.
 * @return NULL: nothing to try */
static const char *value_to_say(const char *key, const char *value) {
    if (strcmp(value, "auto") != 0) return value;
    return strcmp(key, "optimizer.implementation") == 0 ? "streamed" : NULL;
}

/* A copy of the plan's run whose roles are its own. */
static stw_status copy_run(const stw_plan *plan, stw_pool *pool, stw_run_spec *out) {
    *out = plan->run;
    if (plan->run.n_roles == 0) return STW_STATUS_OK;
    stw_role *roles = stw_pool_array(pool, plan->run.n_roles, sizeof *roles);
    if (roles == NULL) return STW_STATUS_NO_MEMORY;
    memcpy(roles, plan->run.roles, plan->run.n_roles * sizeof *roles);
    out->roles = roles;
    return STW_STATUS_OK;
}

/* Is a change one that only the framework's settings can say? */
static bool is_asked(const stw_said *by, const stw_fix_change *c) {
    return value_to_say(c->set, c->value) != NULL && !is_no_setting(c->set) &&
           !by->is_elsewhere(by->framework, c->set);
}

/* Do two runs differ in a key that the settings say? */
static bool differ(const stw_said *by, const stw_run_spec *a, const stw_run_spec *b,
                   const char *key, stw_pool *pool) {
    if (is_no_setting(key) || by->is_elsewhere(by->framework, key)) return false;
    const char *one = text_of(a, key, pool), *other = text_of(b, key, pool);
    return one != NULL && (other == NULL || strcmp(one, other) != 0);
}

/* Keys go together: some are of no use without others, and some bring others with them.
 * @param value out, of a key that is brought along; in the pool
 * @return the first that is lost, or NULL */
static const char *lost_of(const stw_said *by, const stw_fix *fix, const stw_run_spec *planned,
                           const stw_run_spec *read, stw_pool *pool, const char **value) {
    const stw_spec_table *table = stw_run_spec_table();
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (is_asked(by, &fix->changes[i]) && differ(by, planned, read, fix->changes[i].set, pool))
            return fix->changes[i].set;
    for (size_t r = 0; r < table->n_rows; r++) {
        const char *key = table->rows[r].key;
        if (table->rows[r].kind != STW_SPEC_ITEMS && !table->rows[r].label &&
            differ(by, planned, read, key, pool) &&
            !differ(by, &by->plan->run, by->as_it_is, key, pool)) {
            *value = text_of(read, key, by->plan->pool);
            return key;
        }
    }
    return NULL;
}

const char *stw_said_lost(const stw_said *by, const stw_fix *fix, const char **value) {
    *value = NULL;
    stw_plan with = *by->plan;
    stw_run_spec read = {0};
    stw_pool *pool = stw_pool_new();
    const char *lost = NULL;
    uint32_t asked = 0;
    stw_status status = pool != NULL ? copy_run(by->plan, pool, &with.run) : STW_STATUS_NO_MEMORY;
    for (uint32_t i = fix->n_changes; i-- > 0 && status == STW_STATUS_OK;) {
        const stw_fix_change *c = &fix->changes[i];
        if (!is_asked(by, c)) continue;
        asked++;
        lost = c->set; /* in the end the first one */
        status =
            stw_run_spec_set(&with.run, c->set, value_to_say(c->set, c->value), "--emit", NULL);
    }
    if (asked == 0 || status != STW_STATUS_OK)
        lost = NULL;
    else if (by->read_back(by, &with, &read) == STW_STATUS_OK)
        lost = lost_of(by, fix, &with.run, &read, pool, value);
    stw_run_spec_free(&read);
    stw_pool_free(pool);
    return lost;
}

/* Those of a plan that keep its run a comparable one: the others stay last. */
static int rank_of(const stw_plan *plan, const stw_fix *fix, bool said) {
    if (!stw_plan_fix_is_remedy(plan, fix)) return 2;
    return said ? 0 : 1;
}

stw_status stw_said_order(const stw_said *by, stw_plan *plan, stw_error *err) {
    stw_fix *list = stw_pool_array(plan->pool, plan->n_fixes, sizeof *list);
    int *ranks = stw_pool_array(plan->pool, plan->n_fixes, sizeof *ranks);
    if (list == NULL || ranks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        stw_fix *fix = &plan->fixes[i];
        const char *value = NULL, *unsaid = stw_said_lost(by, fix, &value);
        ranks[i] = rank_of(plan, fix, unsaid == NULL);
        if (unsaid == NULL) continue;
        const char *why = fix->why != NULL ? fix->why : "";
        fix->why = value == NULL
                       ? stw_pool_printf(plan->pool, "%s; settings of %s cannot say it (%s)", why,
                                         by->name, unsaid)
                       : stw_pool_printf(plan->pool, "%s; settings of %s say it with %s=%s", why,
                                         by->name, unsaid, value);
        if (fix->why == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
    }
    uint32_t n = 0;
    for (int rank = 0; rank <= 2; rank++)
        for (uint32_t i = 0; i < plan->n_fixes; i++)
            if (ranks[i] == rank) list[n++] = plan->fixes[i];
    memcpy(plan->fixes, list, n * sizeof *list);
    return STW_STATUS_OK;
}
