/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/run.h"

#include <string.h>

#include "planner/frameworks/shell/conditions.h"
#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/pattern.h"
#include "planner/frameworks/shell/places.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

typedef stw_shell_reader reader;
typedef stw_shell_node node;
typedef stw_shell_truth truth;

enum { MAX_STEPS = 50000, MAX_PASSES = 16, MAX_ROUNDS = 2048, MAX_MATCHED = 4096 };

static bool runs(const reader *r) { return r->status == STW_STATUS_OK && !r->state->dead; }

void stw_shell_exit(reader *r) {
    r->state->dead = true;
    if (r->unsure > 0) stw_shell_may_end(r);
}

void stw_shell_end_command(reader *r) {
    const stw_shell_state *s = r->state;
    if (s->dead || s->errexit == STW_SHELL_NO || s->status == STW_SHELL_YES || r->checked) return;
    if (s->status == STW_SHELL_NO && s->errexit == STW_SHELL_YES)
        stw_shell_exit(r);
    else if (s->status == STW_SHELL_NO || s->doubt)
        stw_shell_may_end(r);
}

void stw_shell_end_with(reader *r, truth status) {
    stw_shell_set_status(r->state, status);
    stw_shell_end_command(r);
}

/* Of a test: the script does not say which. */
static void end_test(reader *r, truth status) {
    stw_shell_set_status(r->state, status);
    r->state->doubt = status == STW_SHELL_MAYBE;
    stw_shell_end_command(r);
}

/* ---- branches ---- */

/* The status of a list whose failure ends nothing. */
static truth checked(reader *r, const node *list) {
    const bool before = r->checked;
    r->checked = true;
    stw_shell_run(r, list);
    r->checked = before;
    return r->state->status;
}

/* It is decided: a command failed, with some number, or it did not. */
static void decide(reader *r, truth status) {
    stw_shell_set_status(r->state, status);
    if (status == STW_SHELL_NO) r->state->code = -1;
}

/* One of both runs, the first if the command before it ended with `status`, and the script does not
 * say which. NULL: nothing runs. @return does the first end in doubt? */
static bool either(reader *r, truth status, const node *one, const node *two) {
    stw_shell_state other, first;
    stw_shell_state_copy(r, &other, r->state);
    if (r->status != STW_STATUS_OK) return false;
    r->unsure++;
    decide(r, status);
    stw_shell_run(r, one);
    const bool doubt = r->state->doubt;
    first = *r->state;
    *r->state = other;
    decide(r, stw_shell_not(status));
    if (two != NULL) stw_shell_run(r, two);
    r->unsure--;
    stw_shell_state_join(r, r->state, &first);
    stw_shell_state_free(&first);
    return doubt;
}

static void run_if(reader *r, const node *n) {
    const truth condition = checked(r, n->left);
    if (!runs(r)) return;
    const node none = {.kind = STW_SHELL_GROUP, .line = n->line};
    const node *other = n->other != NULL ? n->other : &none;
    /* the text that later words show is that of `then`, or of `else` if there is one */
    if (condition == STW_SHELL_MAYBE)
        (void)either(r, STW_SHELL_YES, n->right, other);
    else
        stw_shell_run(r, condition == STW_SHELL_YES ? n->right : other);
}

static void run_chain(reader *r, const node *n) {
    const truth wanted = n->kind == STW_SHELL_AND ? STW_SHELL_YES : STW_SHELL_NO;
    const truth status = checked(r, n->left);
    const bool doubt = r->state->doubt;
    if (!runs(r)) return;
    if (status == STW_SHELL_MAYBE) {
        const bool after = either(r, wanted, n->right, NULL);
        if (runs(r)) r->state->doubt = doubt || after;
    } else if (status == wanted) {
        stw_shell_run(r, n->right);
    }
}

/* ---- loops ---- */

static void begin_loop(reader *r, stw_shell_loop *loop) {
    *loop = (stw_shell_loop){.parent = r->loop, .broken.dead = true, .continued.dead = true};
    r->loop = loop;
}

static void join_continued(reader *r, stw_shell_loop *loop) {
    stw_shell_state_join(r, r->state, &loop->continued);
    stw_shell_state_free(&loop->continued);
}

static void end_loop(reader *r, stw_shell_loop *loop) {
    stw_shell_state_join(r, r->state, &loop->broken);
    stw_shell_state_free(&loop->broken);
    stw_shell_state_free(&loop->continued);
    r->loop = loop->parent;
}

/* The body runs as often as only a running shell knows: until nothing more is left open. */
static void run_open(reader *r, stw_shell_loop *loop, const node *condition, const node *body) {
    const size_t found = r->out->n_found;
    bool same = false;
    for (int pass = 0; pass < MAX_PASSES && !same && runs(r); pass++) {
        stw_shell_state before, old;
        stw_shell_state_copy(r, &before, r->state);
        stw_shell_state_copy(r, &old, r->state);
        r->out->n_found = found;
        r->unsure++;
        stw_shell_run(r, body);
        join_continued(r, loop);
        if (runs(r) && condition != NULL) (void)checked(r, condition);
        r->unsure--;
        stw_shell_state after = *r->state;
        *r->state = before;
        stw_shell_state_join(r, r->state, &after);
        same = stw_shell_state_same(&old, r->state);
        stw_shell_state_free(&after);
        stw_shell_state_free(&old);
    }
    if (!same && runs(r)) stw_shell_fail(r, "", "a loop whose variables depend on each other");
    stw_shell_set_status(r->state, STW_SHELL_MAYBE);
}

static void run_while(reader *r, const node *n) {
    stw_shell_loop loop;
    stw_shell_state last = {.status = STW_SHELL_YES}; /* the status of the body */
    begin_loop(r, &loop);
    for (int round = 0; runs(r); round++) {
        truth condition = checked(r, n->left);
        if (n->kind == STW_SHELL_UNTIL) condition = stw_shell_not(condition);
        if (!runs(r)) break;
        if (condition == STW_SHELL_NO) {
            stw_shell_copy_status(r->state, &last);
            break;
        }
        if (condition == STW_SHELL_MAYBE) {
            run_open(r, &loop, n->left, n->right);
            break;
        }
        stw_shell_state before;
        stw_shell_state_copy(r, &before, r->state);
        stw_shell_run(r, n->right);
        join_continued(r, &loop);
        /* nothing changes any more: it only ends where it breaks */
        if (runs(r) && stw_shell_state_same(&before, r->state)) r->state->dead = true;
        stw_shell_copy_status(&last, r->state);
        stw_shell_state_free(&before);
        if (round > MAX_ROUNDS) stw_shell_fail(r, "", "found more than 2048 rounds of a loop");
    }
    end_loop(r, &loop);
}

/* The words of a loop, if it is known how many. */
static bool read_words(reader *r, const node *n, stw_shell_list *list) {
    bool known = true;
    for (size_t i = 1; i < n->n; i++) stw_shell_expand_words(r, n->words[i], list);
    if (!n->in) {
        known = !r->state->odd_arguments && !(r->state->script_arguments && r->arguments_unknown);
        for (size_t i = 0; i < r->state->n_arguments && known; i++)
            stw_shell_list_add(r, list, r->state->arguments[i]);
    }
    size_t kept = 0;
    for (size_t i = 0; i < list->n; i++) {
        const stw_shell_word *word = &list->items[i];
        const stw_value_kind kind = stw_value_kind_of(word->text);
        const bool files = word->unknown && !kind.unknown;
        const bool several = kind.unknown && strchr(word->text, STW_MARK_BARE) != NULL;
        if (stw_value_is_arguments(word->text)) {
            known = known && !r->arguments_unknown;
            continue;
        }
        known = known && !files && !several && word->maybe == 0;
        list->items[kept++] = *word;
    }
    list->n = kept;
    return known;
}

static void run_for(reader *r, const node *n) {
    const stw_shell_raw *name = &n->words[0];
    stw_shell_list list = {0};
    stw_shell_loop loop;
    const bool known = read_words(r, n, &list) && n->kind == STW_SHELL_FOR;
    if (!runs(r)) return;
    begin_loop(r, &loop);
    if (!known) {
        stw_shell_state_forget(r, name->text, name->length);
        if (n->kind == STW_SHELL_SELECT) stw_shell_state_forget(r, "REPLY", 5);
        run_open(r, &loop, NULL, n->right);
    }
    if (known && list.n == 0) stw_shell_set_status(r->state, STW_SHELL_YES);
    for (size_t i = 0; known && i < list.n && runs(r); i++) {
        stw_shell_list one = {0};
        stw_shell_list_add(r, &one, list.items[i]);
        stw_shell_state_assign(r, name->text, name->length,
                               (stw_shell_variable){.n = one.n, .words = one.items});
        stw_shell_run(r, n->right);
        join_continued(r, &loop);
        if (i > MAX_ROUNDS) stw_shell_fail(r, "", "found more than 2048 rounds of a loop");
    }
    end_loop(r, &loop);
}

static truth sum_status(stw_shell_sum sum) {
    if (sum.error) return STW_SHELL_NO;
    if (!sum.known || sum.maybe > 0) return STW_SHELL_MAYBE;
    return sum.value != 0 ? STW_SHELL_YES : STW_SHELL_NO;
}

static stw_shell_sum checked_sum(reader *r, stw_shell_raw raw) {
    const stw_shell_sum sum = stw_shell_sum_of(r, raw);
    stw_shell_check_sum(r, &sum);
    return sum;
}

static void run_count(reader *r, const node *n) {
    stw_shell_loop loop;
    stw_shell_state last = {.status = STW_SHELL_YES};
    if (n->words[0].length > 0) (void)checked_sum(r, n->words[0]);
    begin_loop(r, &loop);
    for (int round = 0; runs(r); round++) {
        const truth condition =
            n->words[1].length > 0 && strspn(n->words[1].text, " \t") < n->words[1].length
                ? sum_status(checked_sum(r, n->words[1]))
                : STW_SHELL_YES;
        if (condition == STW_SHELL_NO) stw_shell_copy_status(r->state, &last);
        if (condition == STW_SHELL_NO) break;
        node step = {.kind = STW_SHELL_SUM, .line = n->line, .words = &n->words[2], .n = 1};
        node body = {.kind = STW_SHELL_GROUP, .line = n->line, .left = n->right, .next = &step};
        if (condition == STW_SHELL_MAYBE) {
            run_open(r, &loop, NULL, &body);
            break;
        }
        stw_shell_run(r, n->right);
        join_continued(r, &loop);
        stw_shell_copy_status(&last, r->state);
        if (runs(r)) (void)checked_sum(r, n->words[2]);
        if (round > MAX_ROUNDS) stw_shell_fail(r, "", "found more than 2048 rounds of a loop");
    }
    end_loop(r, &loop);
}

/* ---- case ---- */

static truth matches(reader *r, const stw_shell_word *subject, const node *item) {
    truth any = STW_SHELL_NO;
    for (size_t i = 0; i < item->n && any != STW_SHELL_YES; i++) {
        const stw_shell_word pattern = stw_shell_expand(r, item->words[i], STW_SHELL_MATCH);
        const char *plain = stw_shell_plain(r, pattern.text);
        truth one = STW_SHELL_MAYBE;
        if (strcmp(plain, "*") == 0 && stw_shell_is_known(&pattern))
            one = STW_SHELL_YES;
        else if (stw_shell_is_known(&pattern) && stw_shell_is_known(subject) &&
                 !stw_pattern_is_extended(plain) && strlen(plain) <= MAX_MATCHED &&
                 strlen(subject->text) <= MAX_MATCHED) {
            const char *text = stw_shell_plain(r, subject->text);
            one = stw_pattern_matches(plain, text, strlen(text)) ? STW_SHELL_YES : STW_SHELL_NO;
        }
        if (one > any) any = one;
    }
    return any;
}

/* A branch and those into which it falls. @return does the case end with it? */
static void run_item(reader *r, const node *item) {
    if (item->left == NULL) stw_shell_set_status(r->state, STW_SHELL_YES);
    for (; item != NULL && runs(r); item = item->next) {
        stw_shell_run(r, item->left);
        if (item->end != '&') break;
    }
}

static void run_case(reader *r, const node *n) {
    const stw_shell_word subject = stw_shell_expand(r, n->words[0], STW_SHELL_VALUE);
    stw_shell_state done = {.dead = true};
    int open = 0;
    bool ended = false;
    for (const node *item = n->left; item != NULL && runs(r); item = item->next) {
        const truth match = matches(r, &subject, item);
        if (match == STW_SHELL_NO) continue;
        if (item->end == 't') stw_shell_poison(r, "case with ;;&");
        if (match == STW_SHELL_YES) {
            r->unsure += open > 0;
            run_item(r, item);
            r->unsure -= open > 0;
            ended = true;
            break;
        }
        stw_shell_state rest;
        stw_shell_state_copy(r, &rest, r->state);
        if (r->status != STW_STATUS_OK) break;
        open = 1;
        r->unsure++;
        run_item(r, item);
        r->unsure--;
        stw_shell_state_join(r, &done, r->state);
        stw_shell_state_free(r->state);
        *r->state = rest;
    }
    if (!ended && !r->state->dead) stw_shell_set_status(r->state, STW_SHELL_YES);
    stw_shell_state_join(r, r->state, &done);
    stw_shell_state_free(&done);
}

/* ---- the rest ---- */

/* What it sets is lost but its status. @param output of it is taken */
static void run_copy(reader *r, const node *list, bool output) {
    stw_shell_state *state = r->state, copy;
    stw_shell_loop *loop = r->loop;
    stw_shell_call *call = r->call, own = {.returned.dead = true};
    const int early = r->early;
    stw_shell_state_copy(r, &copy, state);
    if (r->status != STW_STATUS_OK) return;
    if (output && !copy.inherits) copy.errexit = STW_SHELL_NO;
    r->state = &copy;
    r->loop = NULL;
    if (call != NULL) r->call = &own;
    r->early = 0;
    stw_shell_run(r, list);
    if (copy.dead && !own.returned.dead) stw_shell_copy_status(&copy, &own.returned);
    stw_shell_copy_status(state, &copy);
    if (r->early > 0 || (!copy.dead && !own.returned.dead)) {
        stw_shell_set_status(state, STW_SHELL_MAYBE);
        state->doubt = true;
    }
    stw_shell_state_free(&own.returned);
    r->call = call;
    r->early = early;
    r->loop = loop;
    r->state = state;
    if (state->poison == 0) state->poison = copy.poison;
    if (state->poison_text == NULL) state->poison_text = copy.poison_text;
    stw_shell_state_free(&copy);
}

void stw_shell_run_inner(reader *r, const node *list) {
    const int poison = r->state->poison;
    r->inner++;
    run_copy(r, list, true);
    r->inner--;
    r->state->poison = poison; /* nothing of it is needed but its status */
}

/* What a shell at the end of a pipe reads, if the text is written there: cat <<END | bash. */
static node shell_input(const node *n) {
    node right = *n->right;
    const node *left = n->left;
    const bool cat = left->kind == STW_SHELL_SIMPLE && left->n == 1 && left->has_input &&
                     left->words[0].length == 3 && memcmp(left->words[0].text, "cat", 3) == 0;
    if (cat && right.kind == STW_SHELL_SIMPLE && !right.has_input) {
        right.has_input = true;
        right.input = left->input;
        right.literal = left->literal;
    }
    right.next = NULL;
    return right;
}

static void run_pipe(reader *r, const node *n) {
    const node right = shell_input(n);
    stw_shell_state *s = r->state, left;
    run_copy(r, n->left, false);
    left = *s;
    run_copy(r, &right, false);
    const bool doubt = s->doubt || left.doubt;
    if (s->pipefail != STW_SHELL_NO && left.status != STW_SHELL_YES && s->status != STW_SHELL_NO) {
        if (left.status == STW_SHELL_NO && s->pipefail == STW_SHELL_YES && s->code != 0)
            s->status = STW_SHELL_NO; /* one of both */
        else if (s->pipefail == STW_SHELL_YES && s->code == 0)
            stw_shell_copy_status(s, &left);
        else
            stw_shell_set_status(s, STW_SHELL_MAYBE);
        s->doubt = doubt || s->pipefail == STW_SHELL_MAYBE;
    }
    stw_shell_end_command(r);
}

static void define(reader *r, const node *n) {
    const char *name = stw_pool_printf(r->pool, "%.*s", (int)n->words[0].length, n->words[0].text);
    if (name == NULL)
        stw_shell_fail_memory(r);
    else
        stw_shell_state_define(r, name, n->left);
    stw_shell_set_status(r->state, STW_SHELL_YES);
}

static void run_one(reader *r, const node *n) {
    if (++r->steps > MAX_STEPS) stw_shell_fail(r, "", "found more than 50000 commands to run");
    if ((r->steps & 15) == 0) stw_shell_check_time(r);
    r->line = n->line;
    switch (n->kind) {
    case STW_SHELL_SIMPLE:
        r->run_simple(r, n);
        break;
    case STW_SHELL_PIPE:
        run_pipe(r, n);
        break;
    case STW_SHELL_AND:
    case STW_SHELL_OR:
        run_chain(r, n);
        break;
    case STW_SHELL_NOT: {
        const truth status = checked(r, n->left);
        const bool doubt = r->state->doubt;
        if (runs(r)) stw_shell_set_status(r->state, stw_shell_not(status));
        r->state->doubt = doubt;
        break;
    }
    case STW_SHELL_BACKGROUND:
        run_copy(r, n->left, false);
        stw_shell_set_status(r->state, STW_SHELL_YES);
        break;
    case STW_SHELL_SUBSHELL:
        run_copy(r, n->left, false);
        stw_shell_end_command(r);
        break;
    case STW_SHELL_GROUP:
        if (n->left == NULL) stw_shell_set_status(r->state, STW_SHELL_YES);
        stw_shell_run(r, n->left);
        break;
    case STW_SHELL_IF:
        run_if(r, n);
        break;
    case STW_SHELL_WHILE:
    case STW_SHELL_UNTIL:
        run_while(r, n);
        break;
    case STW_SHELL_FOR:
    case STW_SHELL_SELECT:
        run_for(r, n);
        break;
    case STW_SHELL_COUNT:
        run_count(r, n);
        break;
    case STW_SHELL_CASE:
        run_case(r, n);
        break;
    case STW_SHELL_ITEM:
        break;
    case STW_SHELL_FUNCTION:
        define(r, n);
        break;
    case STW_SHELL_SUM:
        end_test(r, sum_status(stw_shell_sum_of(r, n->words[0])));
        break;
    case STW_SHELL_TEST:
        end_test(r, stw_shell_condition(r, n));
        break;
    }
}

void stw_shell_run(reader *r, const node *list) {
    for (; list != NULL && runs(r); list = list->next) run_one(r, list);
}

void stw_shell_run_text(reader *r, const char *text, size_t length, int line, bool one_line) {
    stw_shell_parser p = {.pool = r->pool,
                          .path = r->path,
                          .at = text,
                          .end = text + length,
                          .line = line,
                          .one_line = one_line,
                          .err = r->err};
    if (++r->nested > 8) stw_shell_fail(r, "", "found more than 8 texts of commands in each other");
    while (runs(r)) {
        node *list;
        const stw_status status = stw_shell_parse(&p, &list);
        if (status != STW_STATUS_OK) r->status = status;
        if (status == STW_STATUS_BAD_INPUT && r->nested == 1 && r->unsure == 0) r->torn = p.line;
        if (status != STW_STATUS_OK || (list == NULL && p.at >= p.end)) break;
        stw_shell_run(r, list);
    }
    r->nested--;
}

void stw_shell_run_file(reader *r, const char *text, size_t length, bool places) {
    const struct stw_shell_origin file = {.text = text, .length = length};
    r->origin = places ? &file : NULL;
    stw_shell_run_text(r, text, length, 1, false);
    r->origin = NULL;
}

void stw_shell_run_word(reader *r, const stw_shell_word *word, int line, bool one_line) {
    const struct stw_shell_origin made = {
        .text = word->text, .length = strlen(word->text), .places = word->at, .outer = r->origin};
    if (r->origin != NULL) r->origin = &made;
    stw_shell_run_text(r, word->text, strlen(word->text), line, one_line);
    r->origin = made.outer;
}
