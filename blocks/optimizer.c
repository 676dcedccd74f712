/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of Muon:
 * - Megatron-LM d98e8a6, megatron/core/optimizer/emerging_optimizers.py: TensorParallelMuon
 *   (orthogonalize splits q, k and v; scaled_orthogonalize_fn multiplies twice), AdamW for what has
 *   not two dimensions and for embedding and head (_is_muon_excluded).
 * - NVIDIA-NeMo/Emerging-Optimizers 0.3.0 (0.5.0a0 does the same), orthogonalized_optimizers/:
 *   orthogonalized_optimizer.py (_init_group makes a momentum_buffer like the parameter; step),
 *   muon_utils.py (newton_schulz_tp, newton_schulz, newton_schulz_step). Products are in bf16
 *   (fp32_matmul_prec: medium).
 * A local variable of step holds the update of one matrix until that of the next one is made. */
#include "blocks/optimizer.h"

#include "core/checked.h"

/* ---- rows ---- */

enum action {
    END,
    TAKE,     /* a tensor */
    DROP,     /* it */
    LEAVE,    /* the next matrix drops it, when it has made its own */
    PASS,     /* over elements: bytes read and written for each */
    PARTS,    /* what follows is done for each part ... */
    REPEAT,   /* ... and this so many times ... */
    AGAIN,    /* ... up to here ... */
    NEXT,     /* ... up to here */
    GATHER,   /* the part, of all ranks */
    SUM,      /* the product, over all ranks */
    PRODUCTS, /* matrix products: with the long side, or of the short sides alone */
    SQUARES
};

/* Elements of what a step takes or passes over. */
enum extent {
    ALL,    /* the parameter */
    PART,   /* the part */
    MATRIX, /* what is iterated on: the part, gathered if it is */
    SQUARE  /* its shorter side, squared */
};

enum slot {
    UPDATE, /* the tensors of a step */
    COPIES,
    SHARDS,
    JOINED,
    SQUARED,
    UNIT,
    X,
    AX,
    BX,
    NEW_X,
    WIDE,
    ONCE,
    WHOLE,
    DONE, /* of the first part; the others follow */
    N_SLOTS = DONE + STW_MOST_PARTS
};

/* A step of a row is done under its condition. */
enum condition { ALWAYS, NESTEROV, SPLIT, UNSPLIT, GATHERED, SUMMED };

struct stw_update_step {
    uint8_t act, with, slot, size;
    uint8_t bytes; /* of an element */
};

enum { F32 = 4, BF16 = 2 };

/* clang-format off */
static const struct stw_update_step muon[] = {
    {PASS, ALWAYS, 0, ALL, 8},       /* weight decay */
    {PASS, ALWAYS, 0, ALL, 12},      /* momentum: lerp_ */
    {TAKE, NESTEROV, UPDATE, ALL, F32},
    {PASS, NESTEROV, 0, ALL, 12},
    {TAKE, SPLIT, COPIES, ALL, F32}, /* q, k and v: reshape */
    {PASS, SPLIT, 0, ALL, 8},
    {PARTS, ALWAYS, 0, 0, 0},
    {TAKE, GATHERED, SHARDS, MATRIX, F32},
    {GATHER, GATHERED, 0, MATRIX, F32},
    {TAKE, GATHERED, JOINED, MATRIX, F32},
    {PASS, GATHERED, 0, MATRIX, 16}, /* into shards, cat */
    {TAKE, SUMMED, SQUARED, MATRIX, F32},
    {PASS, SUMMED, 0, MATRIX, 8},
    {DROP, SUMMED, SQUARED, 0, 0},
    {TAKE, ALWAYS, UNIT, MATRIX, F32}, /* normalize */
    {PASS, ALWAYS, 0, MATRIX, 12},
    {TAKE, ALWAYS, X, MATRIX, BF16},
    {PASS, ALWAYS, 0, MATRIX, 6},
    {DROP, ALWAYS, UNIT, 0, 0},
    {REPEAT, ALWAYS, 0, 0, 0},
    {TAKE, ALWAYS, AX, SQUARE, BF16}, /* X X' */
    {PRODUCTS, ALWAYS, 0, 0, 0},
    {SUM, SUMMED, 0, SQUARE, BF16},
    {TAKE, ALWAYS, BX, SQUARE, BF16}, /* b A + c A A */
    {SQUARES, ALWAYS, 0, 0, 0},
    {TAKE, ALWAYS, NEW_X, MATRIX, BF16}, /* a X + B X */
    {PRODUCTS, ALWAYS, 0, 0, 0},
    {DROP, ALWAYS, BX, 0, 0},
    {DROP, ALWAYS, AX, 0, 0},
    {DROP, ALWAYS, X, 0, 0},
    {AGAIN, ALWAYS, NEW_X, X, 0}, /* the result is the next factor */
    {TAKE, ALWAYS, WIDE, MATRIX, F32},
    {PASS, ALWAYS, 0, MATRIX, 6},
    {DROP, ALWAYS, X, 0, 0},
    {DROP, GATHERED, JOINED, 0, 0},
    {DROP, GATHERED, SHARDS, 0, 0},
    {TAKE, ALWAYS, ONCE, PART, F32}, /* times both scales */
    {TAKE, ALWAYS, DONE, PART, F32},
    {PASS, ALWAYS, 0, PART, 16},
    {DROP, ALWAYS, ONCE, 0, 0},
    {DROP, ALWAYS, WIDE, 0, 0},
    {NEXT, ALWAYS, 0, 0, 0},
    {DROP, SPLIT, COPIES, 0, 0},
    {TAKE, SPLIT, WHOLE, ALL, F32}, /* cat */
    {PASS, SPLIT, 0, ALL, 8},
    {DROP, SPLIT, DONE, 0, 0},
    {DROP, SPLIT, DONE + 1, 0, 0},
    {DROP, SPLIT, DONE + 2, 0, 0},
    {LEAVE, SPLIT, WHOLE, 0, 0},
    {LEAVE, UNSPLIT, DONE, 0, 0},
    {PASS, ALWAYS, 0, ALL, 12}, /* into the main parameter */
    {PASS, ALWAYS, 0, ALL, 6},  /* and from there into the parameter */
    {DROP, NESTEROV, UPDATE, 0, 0},
    {END, ALWAYS, 0, 0, 0},
};
/* clang-format on */

#define BOTH_MOMENTS (STW_STATE(EXP_AVG) | STW_STATE(EXP_AVG_SQ))

static const stw_optimizer optimizers[STW_N_OPTIMIZER_KINDS] = {
    [STW_OPTIMIZER_KIND_ADAMW] = {{BOTH_MOMENTS, NULL}, {BOTH_MOMENTS, NULL}},
    [STW_OPTIMIZER_KIND_MUON] = {{STW_STATE(EXP_AVG), muon}, {BOTH_MOMENTS, NULL}},
};

const stw_optimizer *stw_optimizer_of(const stw_run_spec *run) {
    return &optimizers[run->optimizer.kind];
}

/* ---- a matrix's walk through its row ---- */

typedef struct walk {
    const stw_update_matrix *m;
    stw_update_need *need;
    stw_work *work;
    stw_builder *b; /* NULL: bytes alone */
    uint32_t *left;
    uint64_t live[N_SLOTS], now;
    uint32_t tensors[N_SLOTS];
    uint32_t part; /* the current one */
    bool split;
} walk;

static uint64_t rows_of_all(const stw_update_matrix *m) {
    uint64_t rows = 0;
    for (int i = 0; i < STW_MOST_PARTS; i++) rows = stw_plus(rows, m->parts[i]);
    return rows;
}

/* The sides of what is iterated on. With SUM the side that ranks cut is the long one. */
static void sides(const walk *w, uint64_t *shorter, uint64_t *longer) {
    const stw_update_matrix *m = w->m;
    uint64_t rows = m->parts[w->part], columns = m->columns;
    if (m->cut == STW_UPDATE_GATHERED && m->by_columns) columns = stw_times(columns, m->ways);
    if (m->cut == STW_UPDATE_GATHERED && !m->by_columns) rows = stw_times(rows, m->ways);
    const bool by_rows = m->cut == STW_UPDATE_SUMMED ? m->by_columns : rows <= columns;
    *shorter = by_rows ? rows : columns;
    *longer = by_rows ? columns : rows;
}

static uint64_t elements(const walk *w, uint8_t size) {
    uint64_t shorter, longer;
    sides(w, &shorter, &longer);
    switch (size) {
    case ALL:
        return stw_times(rows_of_all(w->m), w->m->columns);
    case PART:
        return stw_times(w->m->parts[w->part], w->m->columns);
    case MATRIX:
        return stw_times(shorter, longer);
    default:
        return stw_times(shorter, shorter);
    }
}

static bool holds(const walk *w, uint8_t with) {
    switch (with) {
    case NESTEROV:
        return w->m->nesterov;
    case SPLIT:
        return w->split;
    case UNSPLIT:
        return !w->split;
    case GATHERED:
        return w->m->cut == STW_UPDATE_GATHERED;
    case SUMMED:
        return w->m->cut == STW_UPDATE_SUMMED;
    default:
        return true;
    }
}

/* Each part has a result of its own. */
static uint32_t slot_of(const walk *w, uint8_t given, bool takes) {
    return given == DONE && takes ? DONE + w->part : given;
}

static void take(walk *w, uint32_t slot, uint64_t bytes) {
    w->live[slot] = bytes;
    w->now = stw_plus(w->now, bytes);
    w->need->peak_bytes = stw_max_u64(w->need->peak_bytes, w->now);
    if (w->b != NULL) w->tensors[slot] = stw_tensor_take(w->b, 0, bytes);
}

static void drop(walk *w, uint32_t slot) {
    w->now -= w->live[slot];
    if (w->b != NULL && w->live[slot] > 0) stw_tensor_drop(w->b, w->tensors[slot]);
    w->live[slot] = 0;
}

static void leave(walk *w, uint32_t slot) {
    w->need->left_bytes = w->live[slot];
    if (w->b == NULL) return;
    stw_tensor_drop(w->b, *w->left);
    *w->left = w->tensors[slot];
}

static void rename_slot(walk *w, uint32_t from, uint32_t to) {
    w->live[to] = w->live[from];
    w->tensors[to] = w->tensors[from];
    w->live[from] = 0;
}

static void compute(walk *w, const struct stw_update_step *step) {
    uint64_t shorter, longer;
    sides(w, &shorter, &longer);
    const double s = (double)shorter, k = step->act == SQUARES ? s : (double)longer;
    w->need->calls++;
    if (w->work != NULL) stw_work_product(w->work, false, s, k, s, 1, 0);
}

static void communicate(walk *w, const struct stw_update_step *step) {
    const uint64_t bytes = stw_times(elements(w, step->size), step->bytes);
    const bool gathers = step->act == GATHER;
    uint64_t *all = gathers ? &w->need->gathered_bytes : &w->need->summed_bytes;
    *all = stw_plus(*all, bytes);
    *(gathers ? &w->need->gathers : &w->need->sums) += 1;
}

static void one_step(walk *w, const struct stw_update_step *step) {
    const uint64_t bytes = stw_times(elements(w, step->size), step->bytes);
    switch (step->act) {
    case TAKE:
        take(w, slot_of(w, step->slot, true), bytes);
        break;
    case DROP:
        drop(w, slot_of(w, step->slot, false));
        break;
    case LEAVE:
        leave(w, step->slot);
        break;
    case PASS:
        w->need->calls++;
        if (w->work != NULL) stw_work_traffic(w->work, (double)bytes);
        break;
    case GATHER:
    case SUM:
        communicate(w, step);
        break;
    case PRODUCTS:
    case SQUARES:
        compute(w, step);
        break;
    default:
        break;
    }
}

static void run(walk *w, const struct stw_update_step *steps) {
    uint32_t parts = 0, repeats = 0, round = 0;
    for (uint32_t i = 0; steps[i].act != END; i++) {
        const struct stw_update_step *step = &steps[i];
        if (step->act == PARTS) parts = i;
        if (step->act == REPEAT) repeats = i, round = 0;
        if (holds(w, step->with)) one_step(w, step);
        if (step->act == AGAIN) {
            rename_slot(w, step->slot, step->size);
            if (++round < w->m->repeats) i = repeats;
        }
        if (step->act == NEXT && w->part + 1 < STW_MOST_PARTS && w->m->parts[w->part + 1] > 0) {
            w->part++;
            i = parts;
        }
    }
}

stw_update_need stw_update_of(const struct stw_update_step *steps, const stw_update_matrix *matrix,
                              stw_work *work) {
    stw_update_need need = {0};
    walk w = {.m = matrix, .need = &need, .work = work, .split = matrix->parts[1] > 0};
    run(&w, steps);
    return need;
}

void stw_update_tensors(stw_builder *b, const struct stw_update_step *steps,
                        const stw_update_matrix *matrix, uint32_t *left) {
    stw_update_need need = {0};
    walk w = {.m = matrix, .need = &need, .b = b, .left = left, .split = matrix->parts[1] > 0};
    run(&w, steps);
}
