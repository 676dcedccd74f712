/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/sweep.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"

const char *stw_sweep_verdict_name(stw_sweep_verdict verdict) {
#define X(name, text) text,
    static const char *const names[] = {STW_SWEEP_VERDICT_TABLE(X)};
#undef X
    return (unsigned)verdict < STW_SWEEP_N_VERDICTS ? names[verdict] : "?";
}

stw_status stw_sweep_new(stw_sweep **out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_sweep *sweep = pool != NULL ? stw_pool_alloc(pool, sizeof *sweep) : NULL;
    if (sweep == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "sweep", "out of memory");
    }
    sweep->pool = pool;
    sweep->arguments.version = sweep->arguments.model = sweep->arguments.model_digest = "";
    sweep->arguments.cluster = sweep->arguments.inputs = "";
    *out = sweep;
    return STW_STATUS_OK;
}

void stw_sweep_free(stw_sweep *sweep) {
    if (sweep != NULL) stw_pool_free(sweep->pool);
}

stw_status stw_sweep_make_rows(stw_sweep *sweep, stw_error *err) {
    uint64_t n = 1;
    for (uint32_t a = 0; a < sweep->n_axes; a++) {
        n = stw_times(n, sweep->axes[a].n);
        if (n <= STW_SWEEP_MOST_POINTS) continue;
        return stw_fail(err, STW_STATUS_BAD_INPUT, "sweep",
                        "the combinations of all values are more than %d", STW_SWEEP_MOST_POINTS);
    }
    sweep->n_points = (uint32_t)n;
    sweep->rows = stw_pool_array(sweep->pool, sweep->n_points, sizeof *sweep->rows);
    if (sweep->rows == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "sweep", "out of memory");
    for (uint32_t i = 0; i < sweep->n_points; i++)
        sweep->rows[i].iteration_s = sweep->rows[i].tokens_per_s = (double)NAN;
    return STW_STATUS_OK;
}

const char *stw_sweep_value(const stw_sweep *sweep, uint32_t row, uint32_t axis) {
    for (uint32_t a = sweep->n_axes; a-- > axis + 1;) row /= sweep->axes[a].n;
    return sweep->axes[axis].values[row % sweep->axes[axis].n];
}

uint32_t stw_sweep_count(const stw_sweep *sweep, stw_sweep_verdict verdict) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < sweep->n_points; i++) n += sweep->rows[i].verdict == verdict;
    return n;
}

bool stw_sweep_row_fits(const stw_sweep_row *row) {
    return row->verdict == STW_SWEEP_FITS || row->verdict == STW_SWEEP_AT_RISK;
}

double stw_sweep_tokens_per_gpu(const stw_sweep_row *row) {
    return row->gpus > 0 ? row->tokens_per_s / (double)row->gpus : (double)NAN;
}

double stw_sweep_gpu_hours(const stw_sweep_row *row) {
    return row->tokens_per_s > 0 ? 1e9 / row->tokens_per_s / 3600 * (double)row->gpus : (double)NAN;
}

double stw_sweep_usd(const stw_sweep_row *row) {
    return row->usd_per_gpu_hour > 0 ? stw_sweep_gpu_hours(row) * row->usd_per_gpu_hour
                                     : (double)NAN;
}

static bool beats(const stw_sweep_row *a, const stw_sweep_row *b) {
    double a_speed = stw_sweep_tokens_per_gpu(a), b_speed = stw_sweep_tokens_per_gpu(b);
    return a->gpus <= b->gpus && a_speed >= b_speed && (a->gpus < b->gpus || a_speed > b_speed);
}

void stw_sweep_mark_front(stw_sweep *sweep) {
    for (uint32_t i = 0; i < sweep->n_points; i++) {
        stw_sweep_row *row = &sweep->rows[i];
        row->front = stw_sweep_row_fits(row) && row->tokens_per_s > 0;
        for (uint32_t k = 0; row->front && k < sweep->n_points; k++) {
            const stw_sweep_row *other = &sweep->rows[k];
            if (stw_sweep_row_fits(other) && other->tokens_per_s > 0 && beats(other, row))
                row->front = false;
        }
    }
}

/* ---- the arguments of two sweeps ---- */

static stw_status differ(const char *file, const char *what, const char *a, const char *b,
                         stw_error *err) {
    char here[160], there[160];
    stw_text_quote(a, here, sizeof here);
    stw_text_quote(b, there, sizeof there);
    return stw_fail(err, STW_STATUS_BAD_INPUT, file,
                    "is a sweep with other arguments: %s is %s there and %s here; use another file "
                    "or remove it",
                    what, there, here);
}

static stw_status check_axes(const stw_sweep *a, const stw_sweep *b, const char *file,
                             stw_error *err) {
    for (uint32_t x = 0; x < a->n_axes || x < b->n_axes; x++) {
        const stw_sweep_axis *here = x < a->n_axes ? &a->axes[x] : NULL;
        const stw_sweep_axis *there = x < b->n_axes ? &b->axes[x] : NULL;
        if (here == NULL || there == NULL || strcmp(here->key, there->key) != 0)
            return differ(file, "a key that varies", here != NULL ? here->key : "none",
                          there != NULL ? there->key : "none", err);
        for (uint32_t i = 0; i < here->n || i < there->n; i++) {
            const char *one = i < here->n ? here->values[i] : "none";
            const char *other = i < there->n ? there->values[i] : "none";
            if (strcmp(one, other) != 0) return differ(file, here->key, one, other, err);
        }
    }
    return STW_STATUS_OK;
}

stw_status stw_sweep_check_same(const stw_sweep *a, const stw_sweep *b, const char *file,
                                stw_error *err) {
    const stw_sweep_arguments *x = &a->arguments, *y = &b->arguments;
    const struct {
        const char *what, *a, *b;
    } words[] = {{"the version", x->version, y->version},
                 {"the model", x->model, y->model},
                 {"the model's digest", x->model_digest, y->model_digest},
                 {"the cluster", x->cluster, y->cluster},
                 {"the hash of cluster and run", x->inputs, y->inputs}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].a, words[i].b) != 0)
            return differ(file, words[i].what, words[i].a, words[i].b, err);
    for (uint32_t i = 0; i < x->n_settings || i < y->n_settings; i++) {
        const char *one = i < x->n_settings ? x->settings[i] : "none";
        const char *other = i < y->n_settings ? y->settings[i] : "none";
        if (strcmp(one, other) != 0) return differ(file, "--set", one, other, err);
    }
    if (x->time_limit_s != y->time_limit_s) {
        char one[40], other[40];
        stw_text_double(x->time_limit_s, one, sizeof one);
        stw_text_double(y->time_limit_s, other, sizeof other);
        return differ(file, "--time-limit", one, other, err);
    }
    return check_axes(a, b, file, err);
}
