/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/sums.h"

#include <ctype.h>
#include <string.h>

#include "planner/frameworks/shell/scan.h"

enum { MAX_DEPTH = 32, UNARY = 12 };

typedef struct sum {
    stw_shell_reader *r;
    const char *at;
    int depth;
    bool skipped; /* the side of && || ?: that does not count */
    bool bad;     /* not known */
    bool error;   /* and wrong in any case */
    int maybe;
} sum;

static int64_t comma(sum *s);
static int64_t assigned(sum *s);
static int64_t binary(sum *s, int level);

static void blanks(sum *s) {
    while (isspace((unsigned char)*s->at)) s->at++;
}

/* Behind an expression: a fraction, a second number or name. Operators may be some that are not
 * read here. */
static bool is_wrong_end(const sum *s) {
    return !s->bad && (*s->at == '.' || stw_scan_is_name(*s->at));
}

static bool take(sum *s, const char *op) {
    blanks(s);
    if (strncmp(s->at, op, strlen(op)) != 0) return false;
    s->at += strlen(op);
    return true;
}

/* The value of a variable's text, which is an expression. */
static int64_t value_of(sum *s, const char *name, size_t n, const char *index, size_t index_n) {
    const stw_shell_variable *v = stw_shell_state_find(s->r->state, name, n);
    size_t i = 0;
    if (s->skipped) return 0;
    if (v == NULL || v->odd || s->depth > MAX_DEPTH) s->bad = true;
    if (s->bad) return 0;
    if (index != NULL) {
        const char *text = stw_pool_printf(s->r->pool, "%.*s", (int)index_n, index);
        sum inner = {.r = s->r, .at = text != NULL ? text : "", .depth = s->depth + 1};
        const int64_t k = comma(&inner);
        s->bad = inner.bad || *inner.at != '\0' || k < 0;
        i = (size_t)(k < 0 ? 0 : k);
        if (inner.maybe > 0) s->maybe = inner.maybe;
    }
    if (s->bad || i >= v->n) return 0;
    if (v->words[i].maybe > 0) s->maybe = v->words[i].maybe;
    if (stw_value_kind_of(v->words[i].text).unknown) s->bad = true;
    sum inner = {.r = s->r, .at = stw_shell_plain(s->r, v->words[i].text), .depth = s->depth + 1};
    blanks(&inner);
    const int64_t value = *inner.at == '\0' || s->bad ? 0 : comma(&inner);
    s->error = s->error || (!s->bad && (inner.error || is_wrong_end(&inner)));
    s->bad = s->bad || inner.bad || *inner.at != '\0';
    if (inner.maybe > 0) s->maybe = inner.maybe;
    return value;
}

static void store(sum *s, const char *name, size_t n, int64_t value) {
    if (s->skipped || s->bad) return;
    stw_shell_list list = {0};
    stw_shell_word word = {.text = stw_pool_printf(s->r->pool, "%lld", (long long)value),
                           .line = s->r->line,
                           .maybe = s->maybe};
    if (s->maybe > 0 && word.text != NULL) word.text = stw_shell_opened(s->r, word.text);
    stw_shell_list_add(s->r, &list, word);
    const stw_shell_variable *old = stw_shell_state_find(s->r->state, name, n);
    if (old != NULL && old->array)
        s->bad = true;
    else
        stw_shell_state_assign(s->r, name, n,
                               (stw_shell_variable){.n = list.n, .words = list.items});
}

static int digit(char c, int64_t base) {
    if (isdigit((unsigned char)c)) return c - '0';
    if (islower((unsigned char)c)) return c - 'a' + 10;
    if (isupper((unsigned char)c)) return c - 'A' + (base <= 36 ? 10 : 36);
    return c == '@' ? 62 : c == '_' ? 63 : 64;
}

static int64_t number(sum *s) {
    int64_t base = 10;
    uint64_t value = 0;
    if (s->at[0] == '0' && (s->at[1] == 'x' || s->at[1] == 'X')) {
        base = 16;
        s->at += 2;
    } else if (s->at[0] == '0') {
        base = 8;
    }
    for (;; s->at++) {
        if (*s->at == '#' && base == 10 && value >= 2 && value <= 64) {
            base = (int64_t)value;
            value = 0;
            continue;
        }
        if (!stw_scan_is_name(*s->at) && *s->at != '@') return (int64_t)value;
        const int d = digit(*s->at, base);
        if (d >= base && !s->bad) s->error = true;
        if (d >= base) s->bad = true;
        if (s->bad) return 0;
        value = value * (uint64_t)base + (uint64_t)d;
    }
}

static int64_t primary(sum *s) {
    blanks(s);
    if (s->depth > MAX_DEPTH) s->bad = true;
    if (s->bad) return 0;
    if (take(s, "(")) {
        s->depth++;
        const int64_t value = comma(s);
        s->depth--;
        if (!take(s, ")")) s->bad = true;
        return value;
    }
    for (int i = 0; i < 2; i++) { /* ++name, --name */
        if (!take(s, i == 0 ? "++" : "--")) continue;
        blanks(s);
        const size_t n = stw_scan_name(s->at, s->at + strlen(s->at));
        const char *name = s->at;
        if (n == 0) s->bad = true;
        s->at += n;
        const int64_t value = value_of(s, name, n, NULL, 0) + (i == 0 ? 1 : -1);
        store(s, name, n, value);
        return value;
    }
    if (isdigit((unsigned char)*s->at)) return number(s);
    const char *name = s->at;
    const size_t n = stw_scan_name(name, name + strlen(name));
    s->at += n;
    if (n == 0) s->bad = true;
    if (*s->at == '[' && n > 0) {
        const char *last = strchr(s->at, ']');
        if (last == NULL) s->bad = true;
        if (s->bad) return 0;
        const char *index = s->at + 1;
        s->at = last + 1;
        return value_of(s, name, n, index, (size_t)(last - index));
    }
    const int64_t value = value_of(s, name, n, NULL, 0);
    if (take(s, "++"))
        store(s, name, n, value + 1);
    else if (take(s, "--"))
        store(s, name, n, value - 1);
    return value;
}

static int64_t unary(sum *s) {
    blanks(s);
    const char op = *s->at;
    if (++s->depth > MAX_DEPTH) s->bad = true;
    int64_t value = 0;
    if (!s->bad && op != '\0' && strchr("!~+-", op) != NULL && s->at[1] != op) {
        s->at++;
        value = unary(s);
        value = op == '!'   ? !value
                : op == '~' ? ~value
                : op == '-' ? (int64_t)(0 - (uint64_t)value)
                            : value;
    } else if (!s->bad) {
        value = primary(s);
    }
    s->depth--;
    return value;
}

static int64_t power(sum *s, int64_t a, int64_t b) {
    uint64_t value = 1, base = (uint64_t)a;
    if (b < 0) s->bad = true;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) value *= base;
    return (int64_t)value;
}

enum op {
    OR,
    AND,
    BIT_OR,
    XOR,
    BIT_AND,
    EQ,
    NE,
    LE,
    GE,
    SHL,
    SHR,
    LT,
    GT,
    ADD,
    SUB,
    POW,
    MUL,
    DIV,
    MOD
};

static const struct {
    const char *text;
    int level;
} ops[] = {{"||", 1}, {"&&", 2},  {"|", 3},  {"^", 4},  {"&", 5}, {"==", 6}, {"!=", 6},
           {"<=", 7}, {">=", 7},  {"<<", 8}, {">>", 8}, {"<", 7}, {">", 7},  {"+", 9},
           {"-", 9},  {"**", 11}, {"*", 10}, {"/", 10}, {"%", 10}};

static int64_t apply(sum *s, int op, int64_t a, int64_t b) {
    const uint64_t x = (uint64_t)a, y = (uint64_t)b;
    const bool divides = op == DIV || op == MOD, shifts = op == SHL || op == SHR;
    if (s->skipped) return 0;
    if (divides && b == 0 && !s->bad) s->error = true;
    if ((divides && (b == 0 || (b == -1 && a == INT64_MIN))) || (shifts && (b < 0 || b > 63)))
        s->bad = true;
    if (s->bad) return 0;
    switch (op) {
    case OR:
        return a || b;
    case AND:
        return a && b;
    case BIT_OR:
        return a | b;
    case XOR:
        return a ^ b;
    case BIT_AND:
        return a & b;
    case EQ:
        return a == b;
    case NE:
        return a != b;
    case LE:
        return a <= b;
    case GE:
        return a >= b;
    case SHL:
        return (int64_t)(x << y);
    case SHR:
        return a >> b;
    case LT:
        return a < b;
    case GT:
        return a > b;
    case ADD:
        return (int64_t)(x + y);
    case SUB:
        return (int64_t)(x - y);
    case POW:
        return power(s, a, b);
    case MUL:
        return (int64_t)(x * y);
    case DIV:
        return a / b;
    default:
        return a % b;
    }
}

/* The operator that comes, unless it assigns. -1: none */
static int next_op(sum *s) {
    static const size_t order[] = {OR,  AND,     EQ, NE, LE,  GE,  SHL, SHR, POW, BIT_OR,
                                   XOR, BIT_AND, LT, GT, ADD, SUB, MUL, DIV, MOD};
    blanks(s);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const char *text = ops[order[i]].text;
        const size_t n = strlen(text);
        if (strncmp(s->at, text, n) != 0) continue;
        const bool compares = text[n - 1] == '=';
        return !compares && s->at[n] == '=' && order[i] != OR && order[i] != AND ? -1
                                                                                 : (int)order[i];
    }
    return -1;
}

static int64_t binary(sum *s, int level) {
    if (level == UNARY) return unary(s);
    if (s->bad) return 0;
    int64_t value = binary(s, level + 1);
    for (int op = next_op(s); !s->bad && op >= 0 && ops[op].level == level; op = next_op(s)) {
        const bool before = s->skipped;
        s->at += strlen(ops[op].text);
        if ((op == OR && value != 0) || (op == AND && value == 0)) s->skipped = true;
        if (op == POW && ++s->depth > MAX_DEPTH) s->bad = true;
        const int64_t right = binary(s, op == POW ? level : level + 1);
        if (op == POW) s->depth--;
        const bool decided = s->skipped && !before;
        s->skipped = before;
        value = decided ? op == OR : apply(s, op, value, right);
    }
    return value;
}

static int64_t choice(sum *s) {
    int64_t value = binary(s, 1);
    if (s->bad || !take(s, "?")) return value;
    const bool before = s->skipped;
    if (++s->depth > MAX_DEPTH) s->bad = true;
    s->skipped = before || value == 0;
    const int64_t yes = comma(s);
    if (!take(s, ":")) s->bad = true;
    s->skipped = before || value != 0;
    const int64_t no = s->bad ? 0 : choice(s);
    s->skipped = before;
    s->depth--;
    return value != 0 ? yes : no;
}

static int64_t assigned(sum *s) {
    static const struct {
        const char *text;
        int op;
    } assigns[] = {{"<<=", SHL},   {">>=", SHR}, {"+=", ADD}, {"-=", SUB},
                   {"*=", MUL},    {"/=", DIV},  {"%=", MOD}, {"&=", BIT_AND},
                   {"|=", BIT_OR}, {"^=", XOR},  {"=", -1}};
    blanks(s);
    const char *name = s->at;
    const size_t n = stw_scan_name(name, name + strlen(name));
    s->at += n;
    blanks(s);
    for (size_t i = 0; n > 0 && i < sizeof assigns / sizeof assigns[0]; i++) {
        const size_t length = strlen(assigns[i].text);
        if (strncmp(s->at, assigns[i].text, length) != 0 || (assigns[i].op < 0 && s->at[1] == '='))
            continue;
        s->at += length;
        if (++s->depth > MAX_DEPTH) s->bad = true;
        int64_t value = s->bad ? 0 : assigned(s);
        s->depth--;
        if (assigns[i].op >= 0)
            value = apply(s, assigns[i].op, value_of(s, name, n, NULL, 0), value);
        store(s, name, n, value);
        return value;
    }
    s->at = name;
    return choice(s);
}

static int64_t comma(sum *s) {
    int64_t value = assigned(s);
    while (!s->bad && take(s, ",")) value = assigned(s);
    blanks(s);
    return value;
}

/* Names in an expression that may assign them. */
static void forget_names(stw_shell_reader *r, const char *text) {
    const char *end = text + strlen(text);
    bool assigns = strstr(text, "++") != NULL || strstr(text, "--") != NULL;
    for (const char *c = strchr(text, '='); c != NULL && !assigns; c = strchr(c + 1, '=')) {
        const bool compares =
            c[1] == '=' || (c > text && strchr("=!", c[-1]) != NULL) ||
            (c > text && strchr("<>", c[-1]) != NULL && !(c > text + 1 && c[-2] == c[-1]));
        assigns = !compares;
    }
    while (assigns && text < end) {
        const size_t n = stw_scan_name(text, end);
        stw_shell_state_forget(r, text, n);
        text += n > 0 ? n : 1;
    }
}

stw_shell_sum stw_shell_calculate(stw_shell_reader *r, const char *text) {
    sum s = {.r = r, .at = text};
    blanks(&s);
    const int64_t value = *s.at == '\0' ? 0 : comma(&s);
    const bool known = !s.bad && *s.at == '\0';
    const bool error = (s.error || is_wrong_end(&s)) && s.maybe == 0;
    if (!known) forget_names(r, text);
    return (stw_shell_sum){known ? value : 0, known, s.maybe, error};
}
