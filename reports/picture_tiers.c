/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/blocks.h"
#include "reports/facts.h"
#include "reports/picture.h"

enum { WIDTH = 960, LEFT = 150, MAP = 780, ROW = 30 };

/* A part of a row, with its words where there is room. @return where it ends */
static double put_part(stw_text *out, double x, double y, double width, const char *colour,
                       const char *words) {
    stw_text_printf(out,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"#fff\"><title>%s</title></rect>\n",
                    x, y, width, ROW - 8, colour, words);
    if (width > 6.5 * (double)strlen(words)) {
        stw_text label = STW_TEXT_INIT;
        stw_text_printf(&label, "%s", words);
        stw_picture_text(out, x + width / 2, y + 15, "middle", &label);
    }
    return x + width;
}

static void put_name(stw_text *out, double y, const char *name) {
    stw_text label = STW_TEXT_INIT;
    stw_text_printf(&label, "%s", name);
    stw_picture_text(out, LEFT - 8, y + 15, "end", &label);
}

/* Parameters, gradients or moments, as wide as the parameters that they belong to. */
static void put_state(const stw_plan *plan, const stw_plan_facts *f, int part, double y,
                      stw_text *out) {
    static const char *const names[] = {"parameters", "gradients", "moments, master"};
    static const char *const colours[] = {"#8ec1e6", "#f3c677", "#9ed8b6"};
    static const char *const words[] = {"GPU", "host", "NVMe"};
    const bool parked[] = {plan->run.park.params, plan->run.park.grads, plan->run.park.moments};
    double all = 0, x = LEFT;
    const uint32_t n =
        plan->decisions.n_state < STW_MAX_PLACES ? plan->decisions.n_state : STW_MAX_PLACES;
    for (uint32_t i = 0; i < n; i++) all += (double)f->place_params[i];
    if (!(all > 0)) return;
    put_name(out, y, names[part]);
    for (uint32_t i = 0; i < n; i++) {
        const stw_place *place = &plan->decisions.state[i].place;
        const stw_tier tier = part == 0 ? place->params : part == 1 ? place->grads : place->moments;
        const bool waits = parked[part] && tier == STW_TIER_GPU;
        const double share = (double)f->place_params[i] / all;
        stw_text label = STW_TEXT_INIT;
        if (plan->decisions.state[i].units == 0) continue;
        stw_text_printf(&label, "%s%s%s", waits ? "parked on the host" : words[tier],
                        share < 1 ? " " : "", share < 1 ? stw_word_share(share, 1).text : "");
        if (part == 2 && !waits)
            stw_text_printf(&label, ", update %s", stw_update_name(place->update));
        if (label.failed) out->failed = true;
        x = put_part(out, x, y, fmax(MAP * share, 2), waits ? "#f7dca8" : colours[tier],
                     label.data != NULL ? label.data : "");
        stw_text_free(&label);
    }
}

/* Blocks in their order; equal neighbours are one part. */
static stw_status put_blocks(const stw_plan *plan, double y, stw_text *out, stw_error *err) {
    static const char *const colours[STW_N_ACTS] = {
        [STW_ACT_KEEP] = "#8ec1e6", [STW_ACT_RECOMPUTE] = "#d9d9d9", [STW_ACT_OFFLOAD] = "#f3c677"};
    const stw_model *model = plan->job->model;
    stw_pool *pool = stw_pool_new();
    stw_act *acts = pool != NULL ? stw_pool_array(pool, model->n_blocks, sizeof *acts) : NULL;
    double x = LEFT;
    if (acts == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a picture");
    }
    stw_block_acts(plan->job, &plan->decisions, acts);
    put_name(out, y, "activations, by block");
    for (uint32_t b = 0, n; b < model->n_blocks; b += n) {
        stw_text label = STW_TEXT_INIT;
        for (n = 1; b + n < model->n_blocks && acts[b + n] == acts[b];) n++;
        stw_text_printf(&label, "%u %s", (unsigned)n, stw_act_name(acts[b]));
        if (label.failed) out->failed = true;
        x = put_part(out, x, y, (double)MAP * n / model->n_blocks, colours[acts[b]],
                     label.data != NULL ? label.data : "");
        stw_text_free(&label);
    }
    stw_pool_free(pool);
    return STW_STATUS_OK;
}

static void put_key(double y, stw_text *out) {
    static const struct {
        const char *colour, *words;
    } keys[] = {{"#8ec1e6", "on the GPU, kept"},
                {"#f3c677", "on the host, offloaded"},
                {"#f7dca8", "parked on the host between uses"},
                {"#9ed8b6", "on NVMe"},
                {"#d9d9d9", "recomputed"}};
    double x = LEFT;
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        stw_text label = STW_TEXT_INIT;
        stw_text_printf(&label, "%s", keys[i].words);
        stw_text_printf(out,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", x,
                        y, keys[i].colour);
        stw_picture_text(out, x + 14, y + 9, "start", &label);
        x += 34 + 6.2 * (double)strlen(keys[i].words);
    }
}

stw_status stw_picture_tiers(const stw_plan *plan, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan_facts facts;
    const bool blocks = plan->decisions.n_blocks > 0 && plan->job->model->n_blocks > 0;
    stw_plan_facts_get(plan, &facts);
    stw_picture_begin(out, WIDTH, 36 + ROW * (blocks ? 4 : 3),
                      "Where the state of the largest rank is, and activations by block");
    for (int part = 0; part < 3; part++) put_state(plan, &facts, part, 10 + part * ROW, out);
    if (blocks) STW_TRY(put_blocks(plan, 10 + 3 * ROW, out, err));
    put_key(14 + ROW * (blocks ? 4 : 3), out);
    stw_picture_end(out);
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}
