/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "reports/page.h"
#include "reports/picture.h"

enum { BUCKETS = 48, WIDTH = 960, LEFT = 70, PLOT = 640, HEIGHT = 200, TOP = 44, SPACE = 296 };

/* From below; the colours are those of the HTML page. */
static const struct {
    stw_component component;
    const char *colour;
} stack[] = {{STW_COMPONENT_CONTEXT, "#5f6670"},
             {STW_COMPONENT_PROCESS, "#5f6670"},
             {STW_COMPONENT_ROLE_PROCESS, "#84725e"},
             {STW_COMPONENT_COMM, "#9aa1ab"},
             {STW_COMPONENT_PARAMS, "#0072b2"},
             {STW_COMPONENT_MASTER, "#3d4fb0"},
             {STW_COMPONENT_GRADS, "#e69f00"},
             {STW_COMPONENT_EXP_AVG, "#009e73"},
             {STW_COMPONENT_EXP_AVG_SQ, "#7ad3b4"},
             {STW_COMPONENT_ACTIVATIONS, "#d55e00"},
             {STW_COMPONENT_LOGITS, "#cc79a7"},
             {STW_COMPONENT_UNSHARD, "#f0e442"},
             {STW_COMPONENT_REDUCE, "#a6761d"},
             {STW_COMPONENT_STAGE, "#8c8cb8"},
             {STW_COMPONENT_KV_CACHE, "#882255"},
             {STW_COMPONENT_ROLLOUT_WEIGHTS, "#56b4e9"},
             {STW_COMPONENT_ROLLOUT_WORK, "#c9a4d8"},
             {STW_COMPONENT_LOAD_STAGING, "#b5cf6b"},
             {STW_COMPONENT_PAGE_LOCK_ROUNDING, "#c7c7c7"},
             {STW_COMPONENT_PAGE_LOCK_CACHE, "#aec7b8"},
             {STW_COMPONENT_CHECKPOINT_STAGING, "#dbb98e"},
             {STW_COMPONENT_OBJECT_STORE, "#9c4f4f"},
             {STW_COMPONENT_DATA_LOADERS, "#6d8f5a"},
             {STW_COMPONENT_SLACK, "#d8dce2"}};
enum { N_STACK = sizeof stack / sizeof stack[0] };

typedef struct chart {
    const stw_memory_grid *grid;
    uint64_t limit;
    double top; /* bytes at the upper edge */
    double y;   /* of that edge */
    stw_text *out;
} chart;

static size_t n_buckets(const chart *c) {
    return (size_t)c->grid->base->n_movements * c->grid->buckets;
}
static uint64_t bytes_of(const chart *c, size_t bucket, stw_component component) {
    return c->grid->bytes[bucket * STW_N_COMPONENTS + component];
}
static double x_of(const chart *c, size_t bucket) {
    return LEFT + PLOT * (double)bucket / (double)n_buckets(c);
}
static double y_of(const chart *c, double bytes) {
    return c->y + HEIGHT * (1 - fmin(bytes / c->top, 1));
}

static uint64_t highest(const chart *c) {
    uint64_t most = 0;
    for (size_t b = 0; b < n_buckets(c); b++) {
        uint64_t sum = 0;
        for (unsigned i = 0; i < STW_N_COMPONENTS; i++)
            sum = stw_plus(sum, bytes_of(c, b, (stw_component)i));
        most = stw_max_u64(most, sum);
    }
    return most;
}

/* One component: along its upper edge, back along the lower one. `below` grows by it. */
static void put_area(const chart *c, unsigned s, double *below) {
    const size_t n = n_buckets(c);
    double at = y_of(c, below[0]);
    stw_text_printf(c->out, "<path fill=\"%s\" d=\"M%d %.1f", stack[s].colour, LEFT, at);
    for (size_t b = 0; b < n; b++) {
        const double y = y_of(c, below[b] + (double)bytes_of(c, b, stack[s].component));
        if (fabs(y - at) >= 0.1) stw_text_printf(c->out, "H%.1fV%.1f", x_of(c, b), at = y);
    }
    stw_text_printf(c->out, "H%.1f", x_of(c, n));
    for (size_t b = n; b-- > 0;) {
        const double y = y_of(c, below[b]);
        if (fabs(y - at) >= 0.1) stw_text_printf(c->out, "H%.1fV%.1f", x_of(c, b + 1), at = y);
        below[b] += (double)bytes_of(c, b, stack[s].component);
    }
    stw_text_printf(c->out, "H%dZ\"/>\n", LEFT);
}

/* Areas, and the legend from above as the stack stands. */
static void put_areas(const chart *c, double *below) {
    uint64_t most[N_STACK];
    unsigned shown = 0;
    for (unsigned s = 0; s < N_STACK; s++) {
        most[s] = 0;
        for (size_t b = 0; b < n_buckets(c); b++)
            most[s] = stw_max_u64(most[s], bytes_of(c, b, stack[s].component));
        if (most[s] > 0) put_area(c, s, below);
    }
    for (unsigned s = N_STACK; s-- > 0;) {
        if ((double)most[s] < 0.01 * c->top) continue;
        const double y = c->y + 16 * shown++;
        stw_text_printf(c->out,
                        "<rect x=\"%d\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n",
                        LEFT + PLOT + 20, y, stack[s].colour);
        stw_text label = STW_TEXT_INIT;
        stw_text_printf(&label, "%s %s", stw_component_name(stack[s].component),
                        stw_word_gib(most[s]).text);
        stw_picture_text(c->out, LEFT + PLOT + 36, y + 9, "start", &label);
    }
}

static stw_phase phase_of(const chart *c, uint32_t stretch) {
    return c->grid->base->movements[c->grid->order[stretch]].phase;
}

/* Phases that follow each other with their names, at most as many as have room. */
static void put_phases(const chart *c) {
    const uint32_t n = c->grid->base->n_movements;
    for (uint32_t m = 0, last; m < n; m = last + 1) {
        for (last = m; last + 1 < n && phase_of(c, last + 1) == phase_of(c, m);) last++;
        const double from = x_of(c, (size_t)m * c->grid->buckets),
                     to = x_of(c, (size_t)(last + 1) * c->grid->buckets);
        stw_text_printf(c->out,
                        "<path stroke=\"#666\" stroke-dasharray=\"2 3\" d=\"M%.1f %.1fv%d\"/>\n",
                        from, c->y, HEIGHT);
        stw_text label = STW_TEXT_INIT;
        const char *name = stw_phase_name(phase_of(c, m));
        const size_t room = (size_t)((to - from) / 6.2), length = strlen(name);
        stw_text_printf(&label, "%.*s%s",
                        (int)(length <= room ? length
                              : room > 2     ? room - 2
                                             : 1),
                        name, length <= room ? "" : "..");
        stw_picture_text(c->out, (from + to) / 2, c->y + HEIGHT + 14, "middle", &label);
    }
}

static void put_line(const chart *c, double bytes, const char *what) {
    stw_text label = STW_TEXT_INIT;
    const double y = y_of(c, bytes);
    stw_text_printf(c->out, "<path stroke=\"#b00020\" stroke-width=\"1.5\" d=\"M%d %.1fh%d\"/>\n",
                    LEFT, y, PLOT);
    stw_text_printf(&label, "%s %s", what, stw_word_gib((uint64_t)bytes).text);
    stw_picture_text(c->out, LEFT + PLOT - 4, y - 4, "end", &label);
}

static void put_axis(const chart *c) {
    for (int i = 0; i <= 4; i++) {
        stw_text label = STW_TEXT_INIT;
        const double bytes = c->top * i / 4;
        stw_text_printf(&label, "%s", stw_word_gib((uint64_t)bytes).text);
        stw_picture_text(c->out, LEFT - 6, y_of(c, bytes) + 4, "end", &label);
        stw_text_printf(c->out, "<path stroke=\"#ddd\" d=\"M%d %.1fh%d\"/>\n", LEFT, y_of(c, bytes),
                        PLOT);
    }
}

static stw_status put_chart(const stw_page_item *item, stw_tier tier, uint32_t kind, double y,
                            stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = item->plan;
    stw_memory_grid grid;
    stw_text title = STW_TEXT_INIT;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a picture");
    STW_TRY(stw_memory_grid_make(item, tier, kind, BUCKETS, pool, &grid, err));
    chart c = {&grid,
               tier == STW_TIER_GPU ? stw_plan_gpu_capacity(plan) : stw_plan_host_capacity(plan), 1,
               y, out};
    const double peak = (double)highest(&c);
    /* a limit far above would flatten the picture: it is said in the title alone */
    const bool near = c.limit != STW_UNLIMITED && peak > 0.25 * (double)c.limit;
    c.top = 1.08 * fmax(near ? (double)c.limit : 0, fmax(peak, 1));
    double *below = stw_pool_array(pool, n_buckets(&c) + 1, sizeof *below);
    if (below == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a picture"));
    stw_text_printf(&title, "%s, %s: peak %s of %s",
                    tier == STW_TIER_GPU ? "GPU memory" : "Host memory", grid.who,
                    stw_word_gib((uint64_t)peak).text, stw_word_gib(c.limit).text);
    stw_picture_text(out, LEFT, y - 10, "start", &title);
    put_axis(&c);
    put_areas(&c, below);
    put_phases(&c);
    if (near) put_line(&c, (double)c.limit, "limit");
out:
    stw_text_free(&title);
    stw_pool_free(pool);
    return status;
}

stw_status stw_picture_memory(const stw_page_item *item, stw_text *out, stw_error *err) {
    static const stw_tier tiers[] = {STW_TIER_GPU, STW_TIER_HOST};
    stw_status status = STW_STATUS_OK;
    uint32_t kinds[2][STW_PAGE_MOST_KINDS], n[2];
    for (int i = 0; i < 2; i++) n[i] = stw_memory_pick(item->plan, tiers[i], kinds[i]);
    if (n[0] == 0 && n[1] == 0) return STW_STATUS_OK;
    stw_picture_begin(out, WIDTH, 2 * SPACE, "Memory over time, by component");
    for (int i = 0; i < 2; i++)
        if (n[i] > 0) STW_TRY(put_chart(item, tiers[i], kinds[i][0], TOP + i * SPACE, out, err));
    stw_picture_end(out);
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}
