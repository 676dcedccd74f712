/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/explain/explain.h"

#include <string.h>

#include "planner/explain/parts.h"
#include "planner/frameworks/frames.h"

/* Some messages only repeat, or follow from, what another one says. */
static bool is_weak(const stw_failure *f) {
    static const char *const weak[] = {"torchrun", "Python", "C++", "SLURM", "DataLoader"};
    if (f->kind == STW_FAILURE_ALLOCATOR && f->asked == STW_NOT_SAID && f->n_frames == 0)
        return true;
    for (size_t i = 0; i < sizeof weak / sizeof weak[0]; i++)
        if (strcmp(f->who, weak[i]) == 0 && f->kind != STW_FAILURE_SHARED_MEMORY) return true;
    return strcmp(f->who, "kernel") == 0 && f->kind == STW_FAILURE_HOST_ALLOC;
}

static const stw_failure *first_of(const stw_failures *found) {
    for (size_t i = 0; i < found->n; i++)
        if (!is_weak(&found->items[i])) return &found->items[i];
    return found->n > 0 ? &found->items[0] : NULL;
}

static bool is_of_host(const stw_failure *f) {
    return f != NULL && (f->kind == STW_FAILURE_HOST_KILL || f->kind == STW_FAILURE_HOST_ALLOC ||
                         f->kind == STW_FAILURE_PAGE_LOCK || f->kind == STW_FAILURE_SHARED_MEMORY);
}

/* Which command makes a plan, for the program whose stack it is. */
static void name_command(stw_explanation *e, const stw_program_name *p) {
    const char *model = p->model_too ? "--model MODEL " : "";
    if (e->plan != NULL) return;
    if (p->from != NULL)
        e->plan_command =
            stw_pool_printf(e->pool, "stowage plan %s--from %s:%s --cluster CLUSTER -o plan.json",
                            model, p->from, p->model_too ? "CONFIG" : "SCRIPT");
    else
        e->plan_command = stw_pool_printf(
            e->pool, "stowage plan %s--set engine=%s --cluster CLUSTER -o plan.json", model,
            p->engine);
}

stw_status stw_explain(const stw_failures *found, const stw_plan *plan,
                       const stw_explain_options *options, stw_explanation **out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_explanation *e = pool != NULL ? stw_pool_alloc(pool, sizeof *e) : NULL;
    if (e == NULL) {
        stw_pool_free(pool);
        return stw_planner_no_memory(err);
    }
    const uint64_t none = STW_NOT_SAID;
    *e = (stw_explanation){.pool = pool,
                           .found = found,
                           .failure = first_of(found),
                           .plan = plan,
                           .phase = STW_N_PHASES,
                           .component = STW_N_COMPONENTS,
                           .iterations = none,
                           .of_iterations = none,
                           .cause_text = "",
                           .planned_phase = STW_N_PHASES,
                           .planned_bytes = none,
                           .planned_allocated = none,
                           .planned_reserved = none,
                           .planned_limit = none,
                           .planned_component = none,
                           .available = none,
                           .planned_within = none};
    const stw_failure *f = e->failure;
    const stw_program_name program =
        stw_program_of(f != NULL ? f->frames : NULL, f != NULL ? f->n_frames : 0, found->text);
    e->program = program.name;
    e->on_host = is_of_host(f);
    name_command(e, &program);
    stw_explain_stacks(e);
    stw_explain_figures(e);
    stw_explain_untold(e);
    stw_explain_cause(e);
    stw_status status = stw_explain_changes(e, options, err);
    if (status == STW_STATUS_OK && (e->failed || stw_pool_has_failed(pool)))
        status = stw_planner_no_memory(err);
    if (status == STW_STATUS_OK)
        *out = e;
    else
        stw_explanation_free(e);
    return status;
}
