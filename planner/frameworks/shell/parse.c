/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/tree.h"

#include <ctype.h>
#include <string.h>

#include "planner/frameworks/shell/scan.h"

enum { MAX_DEPTH = 64, MAX_WORDS = 8192 };

typedef stw_shell_parser parser;
typedef stw_shell_node node;

static node *list(parser *p);
static node *command(parser *p);

static void fail(parser *p, const char *expected) {
    char found[64];
    size_t n = (size_t)(p->end - p->at), word = 0;
    while (word < n && word < 20 && strchr(" \t\r\n", p->at[word]) == NULL) word++;
    memcpy(found, p->at, word);
    found[word] = '\0';
    if (p->status == STW_STATUS_OK)
        p->status = stw_fail_at(p->err, STW_STATUS_BAD_INPUT, p->path, p->line, 1,
                                "found \"%s\", expected %s", n == 0 ? "the end" : found, expected);
}

static node *make(parser *p, stw_shell_kind kind, node *left, node *right) {
    node *made = stw_pool_alloc(p->pool, sizeof *made);
    if (made == NULL) {
        if (p->status == STW_STATUS_OK)
            p->status = stw_fail(p->err, STW_STATUS_NO_MEMORY, p->path, "out of memory");
        static node none;
        return &none;
    }
    *made = (node){.kind = kind, .line = p->line, .left = left, .right = right};
    return made;
}

static bool ok(const parser *p) { return p->status == STW_STATUS_OK; }

static void add(parser *p, node *to, stw_shell_raw raw) {
    stw_shell_raw *grown =
        stw_pool_grow(p->pool, to->words, to->n, to->n + 1, &to->capacity, sizeof *grown);
    if (to->n >= MAX_WORDS)
        p->status = stw_fail_at(p->err, STW_STATUS_BAD_INPUT, p->path, p->line, 1,
                                "found more than %d words of a command", MAX_WORDS);
    else if (grown == NULL)
        p->status = stw_fail(p->err, STW_STATUS_NO_MEMORY, p->path, "out of memory");
    if (!ok(p)) return;
    to->words = grown;
    grown[to->n++] = raw;
}

/* ---- blanks, lines, words ---- */

static bool at_line_end(const parser *p, const char *c) {
    return c < p->end && (*c == '\n' || (*c == '\r' && c + 1 < p->end && c[1] == '\n'));
}

static void count(parser *p, const char *from, const char *to) {
    for (; from < to && !p->one_line; from++) p->line += *from == '\n';
}

static void move(parser *p, const char *to) {
    count(p, p->at, to);
    p->at = to;
}

static void skip(parser *p) {
    for (;;) {
        if (p->at >= p->end) return;
        if (*p->at == ' ' || *p->at == '\t' ||
            (*p->at == '\r' && (p->at + 1 == p->end || p->at[1] != '\n')))
            p->at++;
        else if (*p->at == '\\' && at_line_end(p, p->at + 1))
            move(p, p->at + (p->at[1] == '\r' ? 3 : 2));
        else if (*p->at == '#')
            while (p->at < p->end && *p->at != '\n') p->at++;
        else
            return;
    }
}

static bool is_meta(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' ||
           (c != '\0' && strchr(";&|()<>", c) != NULL);
}

/* A line has ended: texts of here-documents go by. */
static void read_here(parser *p) {
    for (int i = 0; i < p->n_here; i++) {
        const char *start = p->at, *body_end = p->at;
        const stw_shell_raw *last = &p->here[i].end;
        const int line = p->line;
        for (bool ended = false; p->at < p->end && !ended;) {
            const char *from = p->at, *to = memchr(from, '\n', (size_t)(p->end - from));
            const char *next = to != NULL ? to + 1 : p->end;
            if (to == NULL) to = p->end;
            while (p->here[i].tabs && from < to && *from == '\t') from++;
            if (to > from && to[-1] == '\r') to--;
            ended =
                (size_t)(to - from) == last->length && memcmp(from, last->text, last->length) == 0;
            move(p, next);
            if (!ended) body_end = next;
        }
        p->here[i].node->input = (stw_shell_raw){start, (size_t)(body_end - start), line};
    }
    p->n_here = 0;
}

/* @return is a line's end taken? */
static bool take_line(parser *p) {
    skip(p);
    if (!at_line_end(p, p->at)) return false;
    move(p, p->at + (*p->at == '\r' ? 2 : 1));
    read_here(p);
    return true;
}

static void skip_lines(parser *p) {
    while (ok(p) && take_line(p)) {
    }
}

/* The end of the word that begins here. */
static const char *word_end(parser *p) {
    const char *start = p->at, *c = start;
    while (c < p->end) {
        const bool list_of = *c == '(' && c > start && c[-1] == '=' &&
                             stw_scan_assignment(start, c) == (size_t)(c - start);
        const bool process =
            c == start && (*c == '<' || *c == '>') && c + 1 < p->end && c[1] == '(';
        const char *placeholder = stw_scan_placeholder(start, c, p->end);
        if (placeholder != NULL) return placeholder;
        if (is_meta(*c) && !list_of && !process) break;
        const char *next =
            list_of ? stw_scan_brackets(c, p->end, 0) : stw_scan_part(c, p->end, false, 0);
        if (next == NULL) {
            p->at = c;
            fail(p, "quotes and brackets that close, and at most 64 brackets in each other");
            return c;
        }
        c = next;
    }
    return c;
}

static bool read_word(parser *p, stw_shell_raw *out) {
    const char *start = p->at, *last = word_end(p);
    *out = (stw_shell_raw){start, (size_t)(last - start), p->line};
    if (!ok(p) || last == start) return false;
    move(p, last);
    return true;
}

/* Is this the next word? It is not taken. */
static bool is_next(parser *p, const char *word) {
    const size_t n = strlen(word);
    skip(p);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, word, n) == 0 &&
           (p->at + n == p->end || is_meta(p->at[n]));
}

static bool take(parser *p, const char *word) {
    if (!is_next(p, word)) return false;
    p->at += strlen(word);
    return true;
}

static void expect(parser *p, const char *word) {
    skip_lines(p);
    if (!take(p, word)) fail(p, word);
}

static bool is_operator(parser *p, const char *op) {
    const size_t n = strlen(op);
    skip(p);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, op, n) == 0;
}

static bool take_operator(parser *p, const char *op) {
    if (!is_operator(p, op)) return false;
    p->at += strlen(op);
    return true;
}

/* ---- redirections ---- */

/* Without its quotes. @return had it any? */
static bool unquote(parser *p, stw_shell_raw *raw) {
    char *text = stw_pool_printf(p->pool, "%.*s", (int)raw->length, raw->text);
    size_t n = 0;
    if (text == NULL) return false;
    for (size_t i = 0; i < raw->length; i++)
        if (strchr("'\"\\", text[i]) == NULL) text[n++] = text[i];
    const bool quoted = n != raw->length;
    raw->text = text;
    raw->length = n;
    return quoted;
}

/* @return is a redirection taken? */
static bool redirection(parser *p, node *to) {
    static const char *const ops[] = {"<<<", "<<-", "&>>", "<<", "<&", "<>", ">>",
                                      ">&",  ">|",  "&>",  "<",  ">",  NULL};
    const char *c = p->at;
    while (c < p->end && isdigit((unsigned char)*c)) c++;
    const char *op = NULL;
    for (size_t i = 0; ops[i] != NULL && op == NULL; i++) {
        const size_t n = strlen(ops[i]);
        if ((size_t)(p->end - c) >= n && memcmp(c, ops[i], n) == 0 && (c == p->at || *c != '&'))
            op = ops[i];
    }
    if (op == NULL) return false;
    if (op[1] == '\0' && c == p->at && c + 1 < p->end && c[1] == '(') return false; /* <(command) */
    p->at = c + strlen(op);
    skip(p);
    stw_shell_raw word;
    if (!read_word(p, &word)) {
        fail(p, "a file");
        return true;
    }
    to->alone = !to->redirected;
    to->redirected = true;
    if (op[0] != '<' || op[1] != '<' || op[2] == '<') return true;
    if (p->n_here == STW_SHELL_MAX_HERE) {
        fail(p, "at most 8 here-documents of a line");
        return true;
    }
    to->has_input = true;
    to->input = (stw_shell_raw){p->at, 0, p->line}; /* the text may end before its lines */
    to->literal = unquote(p, &word);
    to->tabs = op[2] == '-';
    p->here[p->n_here].node = to;
    p->here[p->n_here].end = word;
    p->here[p->n_here++].tabs = op[2] == '-';
    return true;
}

static void redirections(parser *p, node *to) {
    for (skip(p); ok(p) && p->at < p->end && redirection(p, to); skip(p)) {
    }
}

/* ---- commands ---- */

/* Words that end a list. */
static bool ends_list(parser *p) {
    static const char *const ends[] = {"then", "elif", "else", "fi", "do", "done", "esac", "}"};
    skip(p);
    if (p->at >= p->end || *p->at == ')' || is_operator(p, ";;") || is_operator(p, ";&"))
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (is_next(p, ends[i])) return true;
    return false;
}

static node *do_group(parser *p) {
    skip_lines(p);
    if (take_operator(p, ";")) skip_lines(p);
    const bool braces = is_next(p, "{");
    expect(p, braces ? "{" : "do");
    node *body = list(p);
    expect(p, braces ? "}" : "done");
    return body;
}

static node *if_command(parser *p) {
    node *made = make(p, STW_SHELL_IF, NULL, NULL);
    made->left = list(p);
    expect(p, "then");
    made->right = list(p);
    if (take(p, "elif")) {
        p->depth++;
        made->other = p->depth < MAX_DEPTH ? if_command(p) : NULL;
        if (p->depth >= MAX_DEPTH) fail(p, "at most 64 commands in each other");
        p->depth--;
        return made;
    }
    if (take(p, "else")) made->other = list(p);
    expect(p, "fi");
    return made;
}

static node *for_command(parser *p, stw_shell_kind kind) {
    node *made = make(p, kind, NULL, NULL);
    stw_shell_raw word;
    skip(p);
    if (kind == STW_SHELL_FOR && is_operator(p, "((")) {
        const char *from = p->at + 2, *last = stw_scan_brackets(p->at, p->end, 0);
        made->kind = STW_SHELL_COUNT;
        if (last == NULL || last[-2] != ')') fail(p, "(( )) that closes");
        for (int i = 0; i < 3 && ok(p); i++) {
            const char *to = from;
            while (to < last - 2 && *to != ';') to++;
            add(p, made, (stw_shell_raw){from, (size_t)(to - from), p->line});
            from = to + (to < last - 2);
        }
        if (ok(p)) move(p, last);
    } else {
        if (!read_word(p, &word)) fail(p, "a name");
        if (ok(p) && stw_scan_name(word.text, word.text + word.length) != word.length)
            fail(p, "a name before this");
        add(p, made, word);
        skip_lines(p);
        if (take(p, "in")) {
            made->in = true;
            for (skip(p); ok(p) && read_word(p, &word); skip(p)) add(p, made, word);
        }
    }
    made->right = do_group(p);
    return made;
}

static node *case_item(parser *p) {
    node *made = make(p, STW_SHELL_ITEM, NULL, NULL);
    stw_shell_raw word;
    (void)take_operator(p, "(");
    do {
        skip(p);
        if (!read_word(p, &word)) fail(p, "a pattern");
        if (ok(p)) add(p, made, word);
    } while (ok(p) && take_operator(p, "|"));
    if (ok(p) && !take_operator(p, ")")) fail(p, ") after a pattern");
    made->left = list(p);
    made->end = take_operator(p, ";;&") ? 't' : take_operator(p, ";&") ? '&' : ';';
    if (made->end == ';' && !take_operator(p, ";;") && ok(p) && !is_next(p, "esac"))
        fail(p, ";; or esac");
    return made;
}

static node *case_command(parser *p) {
    node *made = make(p, STW_SHELL_CASE, NULL, NULL), **last = &made->left;
    stw_shell_raw word;
    skip(p);
    if (!read_word(p, &word)) fail(p, "a word");
    if (ok(p)) add(p, made, word);
    expect(p, "in");
    for (skip_lines(p); ok(p) && !take(p, "esac"); skip_lines(p)) {
        *last = case_item(p);
        last = &(*last)->next;
    }
    return made;
}

/* Words up to ]], with && || ( ) < > among them. */
static node *test_command(parser *p) {
    node *made = make(p, STW_SHELL_TEST, NULL, NULL);
    while (ok(p)) {
        static const char *const ops[] = {"&&", "||", "(", ")", "<", ">"};
        stw_shell_raw word = {.length = 0};
        skip_lines(p);
        if (take(p, "]]")) return made;
        const stw_shell_raw *before = made->n > 0 ? &made->words[made->n - 1] : NULL;
        const bool pattern =
            before != NULL && before->length > 0 && before->length <= 2 &&
            memchr("=!", before->text[0], 2) != NULL &&
            (before->length == 1 ? before->text[0] == '=' : strchr("=~", before->text[1]) != NULL);
        for (size_t i = 0; i < 6 && !pattern && word.length == 0; i++)
            if (is_operator(p, ops[i])) word = (stw_shell_raw){p->at, strlen(ops[i]), p->line};
        if (word.length > 0) {
            move(p, p->at + word.length);
        } else { /* brackets and bars are parts of a pattern */
            const char *c = p->at;
            while (c != NULL && c < p->end && strchr(" \t\r\n", *c) == NULL) {
                if (*c == '(' && pattern)
                    c = stw_scan_brackets(c, p->end, 0);
                else if (!pattern && is_meta(*c))
                    break;
                else if (pattern && *c == ')')
                    break;
                else
                    c = stw_scan_part(c, p->end, false, 0);
            }
            if (c == NULL || c == p->at) {
                fail(p, "]]");
                return made;
            }
            word = (stw_shell_raw){p->at, (size_t)(c - p->at), p->line};
            move(p, c);
        }
        add(p, made, word);
    }
    return made;
}

static node *function(parser *p, stw_shell_raw name) {
    node *made = make(p, STW_SHELL_FUNCTION, NULL, NULL);
    add(p, made, name);
    skip_lines(p);
    made->left = command(p);
    if (ok(p) && made->left->kind == STW_SHELL_SIMPLE) fail(p, "a function's body in { } or ( )");
    return made;
}

static node *bracket_command(parser *p) {
    const char *last = stw_scan_brackets(p->at, p->end, 0);
    if (is_operator(p, "((") && last != NULL && last - p->at >= 4 && last[-2] == ')' &&
        stw_scan_brackets(p->at + 1, p->end, 0) == last - 1) {
        node *made = make(p, STW_SHELL_SUM, NULL, NULL);
        add(p, made, (stw_shell_raw){p->at + 2, (size_t)(last - p->at) - 4, p->line});
        move(p, last);
        return made;
    }
    node *made = make(p, STW_SHELL_SUBSHELL, NULL, NULL);
    p->at++;
    made->left = list(p);
    skip_lines(p);
    if (!take_operator(p, ")")) fail(p, ")");
    return made;
}

static node *simple(parser *p) {
    node *made = make(p, STW_SHELL_SIMPLE, NULL, NULL);
    for (skip(p); ok(p) && p->at < p->end; skip(p)) {
        stw_shell_raw word;
        if (redirection(p, made)) continue;
        if (!read_word(p, &word)) break;
        add(p, made, word);
        if (made->n > 1 || stw_scan_assignment(word.text, word.text + word.length) > 0) continue;
        if (!is_operator(p, "(")) continue;
        p->at++;
        if (!take_operator(p, ")")) fail(p, ") after a function's name");
        return ok(p) ? function(p, word) : made;
    }
    return made;
}

static node *compound(parser *p) {
    skip(p);
    node *made = NULL;
    stw_shell_raw word;
    if (p->at < p->end && *p->at == '(') return bracket_command(p);
    if (take(p, "{")) {
        made = make(p, STW_SHELL_GROUP, NULL, NULL);
        made->left = list(p);
        expect(p, "}");
    } else if (take(p, "if")) {
        made = if_command(p);
    } else if (is_next(p, "while") || is_next(p, "until")) {
        made = make(p, is_next(p, "while") ? STW_SHELL_WHILE : STW_SHELL_UNTIL, NULL, NULL);
        p->at += 5;
        made->left = list(p);
        made->right = do_group(p);
    } else if (is_next(p, "for") || is_next(p, "select")) {
        const bool loops = take(p, "for");
        if (!loops) (void)take(p, "select");
        made = for_command(p, loops ? STW_SHELL_FOR : STW_SHELL_SELECT);
    } else if (take(p, "case")) {
        made = case_command(p);
    } else if (take(p, "[[")) {
        made = test_command(p);
    } else if (take(p, "function")) {
        skip(p);
        if (!read_word(p, &word)) fail(p, "a function's name");
        if (take_operator(p, "(") && !take_operator(p, ")")) fail(p, ")");
        made = ok(p) ? function(p, word) : make(p, STW_SHELL_GROUP, NULL, NULL);
    }
    return made;
}

static node *command(parser *p) {
    node *made = NULL;
    if (++p->depth > MAX_DEPTH) fail(p, "at most 64 commands in each other");
    if (ok(p)) made = compound(p);
    if (made != NULL) redirections(p, made);
    if (ok(p) && made == NULL && ends_list(p)) fail(p, "a command");
    if (ok(p) && made == NULL) {
        made = simple(p);
        if (ok(p) && made->kind == STW_SHELL_SIMPLE && made->n == 0 && !made->has_input) {
            skip(p);
            if (p->at < p->end && !at_line_end(p, p->at) && *p->at != ';') fail(p, "a command");
        }
    }
    p->depth--;
    return made != NULL ? made : make(p, STW_SHELL_GROUP, NULL, NULL);
}

static node *pipeline(parser *p) {
    bool negated = false;
    while (take(p, "!")) negated = !negated;
    if (take(p, "time")) (void)take(p, "-p");
    while (take(p, "!")) negated = !negated;
    node *made = command(p);
    while (ok(p) && is_operator(p, "|") && !is_operator(p, "||")) {
        p->at += is_operator(p, "|&") ? 2 : 1;
        skip_lines(p);
        made = make(p, STW_SHELL_PIPE, made, command(p));
    }
    return negated ? make(p, STW_SHELL_NOT, made, NULL) : made;
}

static node *and_or(parser *p) {
    node *made = pipeline(p);
    while (ok(p) && (is_operator(p, "&&") || is_operator(p, "||"))) {
        const stw_shell_kind kind = is_operator(p, "&&") ? STW_SHELL_AND : STW_SHELL_OR;
        p->at += 2;
        skip_lines(p);
        made = make(p, kind, made, pipeline(p));
    }
    return made;
}

/* One command of a list with what ends it. @return has the line ended? */
static bool item(parser *p, node ***last) {
    node *made = and_or(p);
    const bool background = ok(p) && is_operator(p, "&") && !is_operator(p, "&&");
    if (background) p->at++;
    if (background) made = make(p, STW_SHELL_BACKGROUND, made, NULL);
    **last = made;
    *last = &made->next;
    if (!background && is_operator(p, ";") && !is_operator(p, ";;") && !is_operator(p, ";&"))
        p->at++;
    else if (!background)
        return true;
    return false;
}

static node *list(parser *p) {
    node *first = NULL, **last = &first;
    if (++p->depth > MAX_DEPTH) fail(p, "at most 64 commands in each other");
    for (skip_lines(p); ok(p) && !ends_list(p); skip_lines(p)) {
        const bool ended = item(p, &last);
        if (ok(p) && ended && !take_line(p) && !ends_list(p)) fail(p, "the end of a command");
    }
    p->depth--;
    return first;
}

stw_status stw_shell_parse(stw_shell_parser *p, stw_shell_node **out) {
    node **last = out;
    *out = NULL;
    skip_lines(p);
    while (ok(p) && p->at < p->end) {
        const bool ended = item(p, &last);
        if (!ok(p) || take_line(p)) break;
        if (ended && p->at < p->end) fail(p, "the end of a command");
    }
    return p->status;
}
