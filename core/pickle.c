/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pickle.h"

#include <inttypes.h>
#include <string.h>

/* Opcodes by the names of Python's pickletools. */
enum {
    OP_PROTO = 0x80,
    OP_FRAME = 0x95,
    OP_STOP = '.',
    OP_MARK = '(',
    OP_NONE = 'N',
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG1 = 0x8a,
    OP_BINFLOAT = 'G',
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE = 'X',
    OP_BINUNICODE8 = 0x8d,
    OP_SHORT_BINBYTES = 'C',
    OP_BINBYTES = 'B',
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_LIST = ']',
    OP_EMPTY_TUPLE = ')',
    OP_EMPTY_DICT = '}',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_TUPLE = 't',
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_MEMOIZE = 0x94,
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j'
};

/* A memo of more than the opcodes of a file can fill is refused. */
typedef struct values {
    stw_pickle_value **items;
    size_t n, capacity;
} values;

typedef struct reader {
    stw_pool *pool;
    const char *file;
    const unsigned char *data;
    size_t length, at, opcode_at;
    values stack, memo;
    size_t *marks;
    size_t n_marks, marks_capacity;
    stw_error *err;
} reader;

static stw_status fail(const reader *r, const char *what) {
    return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->file, "byte %zu: %s", r->opcode_at, what);
}

static stw_status no_memory(const reader *r) {
    return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory");
}

static stw_status push_to(reader *r, values *list, stw_pickle_value *value) {
    stw_pickle_value **items =
        stw_pool_regrow(r->pool, list->items, list->n, list->n + 1, &list->capacity, sizeof *items);
    if (items == NULL || value == NULL) return no_memory(r);
    list->items = items;
    items[list->n++] = value;
    return STW_STATUS_OK;
}

static stw_status push(reader *r, stw_pickle_value value) {
    stw_pickle_value *copy = stw_pool_alloc(r->pool, sizeof *copy);
    if (copy != NULL) *copy = value;
    return push_to(r, &r->stack, copy);
}

/* Items below the last mark belong to what is being built outside. */
static size_t floor_of(const reader *r) { return r->n_marks > 0 ? r->marks[r->n_marks - 1] : 0; }

static stw_status need(const reader *r, uint64_t bytes) {
    return bytes <= r->length - r->at ? STW_STATUS_OK : fail(r, "the file ends inside of it");
}

/* An unsigned number of n <= 8 bytes, little endian. */
static stw_status read_size(reader *r, size_t n, uint64_t *out) {
    stw_status status = need(r, n);
    *out = 0;
    for (size_t i = 0; i < n && status == STW_STATUS_OK; i++)
        *out |= (uint64_t)r->data[r->at + i] << (8 * i);
    if (status == STW_STATUS_OK) r->at += n;
    return status;
}

/* ---- scalars ---- */

static stw_status push_string(reader *r, size_t size_bytes) {
    uint64_t length = 0;
    stw_status status = read_size(r, size_bytes, &length);
    if (status == STW_STATUS_OK) status = need(r, length);
    if (status != STW_STATUS_OK) return status;
    char *text = stw_pool_alloc(r->pool, (size_t)length + 1);
    if (text == NULL) return no_memory(r);
    memcpy(text, r->data + r->at, (size_t)length);
    text[length] = '\0';
    r->at += (size_t)length;
    return push(r, (stw_pickle_value){.kind = STW_PICKLE_STRING, .text = text});
}

/* Two's complement of n bytes. */
static stw_status push_signed(reader *r, size_t n) {
    uint64_t value = 0;
    if (n > 8) return fail(r, "found an integer of more than 8 bytes");
    stw_status status = read_size(r, n, &value);
    if (status != STW_STATUS_OK) return status;
    if (n > 0 && n < 8 && (value >> (8 * n - 1) & 1) != 0) value |= ~0ull << (8 * n);
    int64_t integer;
    memcpy(&integer, &value, sizeof integer);
    return push(r, (stw_pickle_value){.kind = STW_PICKLE_INT, .integer = integer});
}

static stw_status push_unsigned(reader *r, size_t n) {
    uint64_t value = 0;
    stw_status status = read_size(r, n, &value);
    if (status != STW_STATUS_OK) return status;
    return push(r, (stw_pickle_value){.kind = STW_PICKLE_INT, .integer = (int64_t)value});
}

static stw_status push_real(reader *r) {
    stw_status status = need(r, 8);
    uint64_t bits = 0;
    double real;
    if (status != STW_STATUS_OK) return status;
    for (size_t i = 0; i < 8; i++) bits = bits << 8 | r->data[r->at + i];
    r->at += 8;
    memcpy(&real, &bits, sizeof real);
    return push(r, (stw_pickle_value){.kind = STW_PICKLE_REAL, .real = real});
}

static stw_status push_long(reader *r) {
    uint64_t n = 0;
    stw_status status = read_size(r, 1, &n);
    return status == STW_STATUS_OK ? push_signed(r, (size_t)n) : status;
}

/* ---- containers ---- */

static stw_status mark(reader *r) {
    size_t *marks = stw_pool_regrow(r->pool, r->marks, r->n_marks, r->n_marks + 1,
                                    &r->marks_capacity, sizeof *marks);
    if (marks == NULL) return no_memory(r);
    r->marks = marks;
    marks[r->n_marks++] = r->stack.n;
    return STW_STATUS_OK;
}

/* Move the values from `from` on to the container below them. */
static stw_status extend(reader *r, size_t from, stw_pickle_kind kind) {
    if (from == 0 || from - 1 < floor_of(r)) return fail(r, "nothing is there to add to");
    stw_pickle_value *to = r->stack.items[from - 1];
    size_t n = r->stack.n - from;
    if (to->kind != kind)
        return fail(r, kind == STW_PICKLE_DICT ? "adds to what is no dict"
                                               : "adds to what is no list");
    if (kind == STW_PICKLE_DICT && n % 2 != 0) return fail(r, "a key has no value");
    stw_pickle_value **items = stw_pool_regrow(r->pool, to->items, to->n_items, to->n_items + n,
                                               &to->capacity, sizeof *items);
    if (items == NULL && n > 0) return no_memory(r);
    if (n > 0) {
        to->items = items;
        memcpy(items + to->n_items, r->stack.items + from, n * sizeof(stw_pickle_value *));
        to->n_items += n;
    }
    r->stack.n = from;
    return STW_STATUS_OK;
}

static stw_status extend_marked(reader *r, stw_pickle_kind kind) {
    if (r->n_marks == 0) return fail(r, "has no mark");
    size_t from = r->marks[--r->n_marks];
    return extend(r, from, kind);
}

static stw_status extend_by(reader *r, size_t n, stw_pickle_kind kind) {
    if (r->stack.n < floor_of(r) + n) return fail(r, "the stack is empty");
    return extend(r, r->stack.n - n, kind);
}

/* The topmost n values as one. */
static stw_status push_tuple(reader *r, size_t n) {
    if (r->stack.n < floor_of(r) + n) return fail(r, "the stack is empty");
    size_t from = r->stack.n - n;
    stw_pickle_value tuple = {.kind = STW_PICKLE_LIST, .n_items = n, .capacity = n};
    tuple.items = stw_pool_array(r->pool, n, sizeof *tuple.items);
    if (tuple.items == NULL) return no_memory(r);
    if (n > 0) memcpy(tuple.items, r->stack.items + from, n * sizeof *tuple.items);
    r->stack.n = from;
    return push(r, tuple);
}

static stw_status push_marked_tuple(reader *r) {
    if (r->n_marks == 0) return fail(r, "has no mark");
    size_t from = r->marks[--r->n_marks];
    return push_tuple(r, r->stack.n - from);
}

/* ---- memo ---- */

/* Numbers are given in order, as all writers do. */
static stw_status put(reader *r, size_t number_bytes) {
    uint64_t number = r->memo.n;
    stw_status status = STW_STATUS_OK;
    if (number_bytes > 0) status = read_size(r, number_bytes, &number);
    if (status != STW_STATUS_OK) return status;
    if (r->stack.n <= floor_of(r)) return fail(r, "the stack is empty");
    stw_pickle_value *top = r->stack.items[r->stack.n - 1];
    if (number < r->memo.n) {
        r->memo.items[number] = top;
        return STW_STATUS_OK;
    }
    if (number > r->length) return fail(r, "found a number of the memo beyond what is in the file");
    while (r->memo.n < number && status == STW_STATUS_OK) { /* numbers that are never used */
        status = push_to(r, &r->memo, top);
        if (status == STW_STATUS_OK) r->memo.items[r->memo.n - 1] = NULL;
    }
    return status == STW_STATUS_OK ? push_to(r, &r->memo, top) : status;
}

static stw_status get(reader *r, size_t number_bytes) {
    uint64_t number = 0;
    stw_status status = read_size(r, number_bytes, &number);
    if (status != STW_STATUS_OK) return status;
    if (number >= r->memo.n || r->memo.items[number] == NULL)
        return fail(r, "found a number that the memo lacks");
    return push_to(r, &r->stack, r->memo.items[number]);
}

/* ---- the whole ---- */

static stw_status refuse(const reader *r, unsigned char opcode) {
    static const struct {
        unsigned char opcode;
        const char *name;
    } calls[] = {{'c', "GLOBAL"},   {0x93, "STACK_GLOBAL"}, {'R', "REDUCE"},  {'b', "BUILD"},
                 {'i', "INST"},     {'o', "OBJ"},           {0x81, "NEWOBJ"}, {0x92, "NEWOBJ_EX"},
                 {0x82, "EXT1"},    {0x83, "EXT2"},         {0x84, "EXT4"},   {'P', "PERSID"},
                 {'Q', "BINPERSID"}};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i].opcode == opcode)
            return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->file,
                            "byte %zu: found the opcode %s, which imports or calls; expected plain "
                            "data alone. Nothing was executed",
                            r->opcode_at, calls[i].name);
    return stw_fail(r->err, STW_STATUS_BAD_INPUT, r->file,
                    "byte %zu: found the opcode 0x%02x, expected those of dicts, lists, tuples, "
                    "strings and numbers",
                    r->opcode_at, opcode);
}

static stw_status empty(reader *r, stw_pickle_kind kind) {
    return push(r, (stw_pickle_value){.kind = kind});
}

static stw_status boolean(reader *r, int64_t value) {
    return push(r, (stw_pickle_value){.kind = STW_PICKLE_BOOL, .integer = value});
}

static stw_status skip(reader *r, size_t n) {
    uint64_t ignored = 0;
    return read_size(r, n, &ignored);
}

static stw_status step_scalar(reader *r, unsigned char opcode) {
    switch (opcode) {
    case OP_FRAME:
        return skip(r, 8);
    case OP_PROTO:
        return skip(r, 1);
    case OP_NONE:
        return empty(r, STW_PICKLE_NONE);
    case OP_NEWTRUE:
        return boolean(r, 1);
    case OP_NEWFALSE:
        return boolean(r, 0);
    case OP_BININT:
        return push_signed(r, 4);
    case OP_BININT1:
        return push_unsigned(r, 1);
    case OP_BININT2:
        return push_unsigned(r, 2);
    case OP_LONG1:
        return push_long(r);
    case OP_BINFLOAT:
        return push_real(r);
    case OP_SHORT_BINUNICODE:
    case OP_SHORT_BINBYTES:
        return push_string(r, 1);
    case OP_BINUNICODE:
    case OP_BINBYTES:
        return push_string(r, 4);
    case OP_BINUNICODE8:
    case OP_BINBYTES8:
        return push_string(r, 8);
    default:
        return refuse(r, opcode);
    }
}

static stw_status step(reader *r, unsigned char opcode) {
    switch (opcode) {
    case OP_MARK:
        return mark(r);
    case OP_EMPTY_LIST:
        return empty(r, STW_PICKLE_LIST);
    case OP_EMPTY_TUPLE:
        return push_tuple(r, 0);
    case OP_EMPTY_DICT:
        return empty(r, STW_PICKLE_DICT);
    case OP_APPEND:
        return extend_by(r, 1, STW_PICKLE_LIST);
    case OP_APPENDS:
        return extend_marked(r, STW_PICKLE_LIST);
    case OP_SETITEM:
        return extend_by(r, 2, STW_PICKLE_DICT);
    case OP_SETITEMS:
        return extend_marked(r, STW_PICKLE_DICT);
    case OP_TUPLE:
        return push_marked_tuple(r);
    case OP_TUPLE1:
        return push_tuple(r, 1);
    case OP_TUPLE2:
        return push_tuple(r, 2);
    case OP_TUPLE3:
        return push_tuple(r, 3);
    case OP_MEMOIZE:
        return put(r, 0);
    case OP_BINPUT:
        return put(r, 1);
    case OP_LONG_BINPUT:
        return put(r, 4);
    case OP_BINGET:
        return get(r, 1);
    case OP_LONG_BINGET:
        return get(r, 4);
    default:
        return step_scalar(r, opcode);
    }
}

bool stw_pickle_begins(const char *data, size_t length) {
    return length >= 2 && (unsigned char)data[0] == OP_PROTO && data[1] >= 2 && data[1] <= 5;
}

stw_status stw_pickle_parse(stw_pool *pool, const char *file, const char *data, size_t length,
                            const stw_pickle_value **out, stw_error *err) {
    reader r = {.pool = pool, .file = file, .length = length, .err = err};
    r.data = (const unsigned char *)data;
    stw_status status = STW_STATUS_OK;
    if (!stw_pickle_begins(data, length)) return fail(&r, "expected a pickle of protocol 2 to 5");
    while (status == STW_STATUS_OK) {
        r.opcode_at = r.at;
        if (r.at == length) return fail(&r, "the file ends before the opcode STOP");
        unsigned char opcode = r.data[r.at++];
        if (opcode == OP_STOP) break;
        status = step(&r, opcode);
    }
    if (status != STW_STATUS_OK) return status;
    if (r.stack.n != 1 || r.n_marks != 0) return fail(&r, "expected one value at the end");
    *out = r.stack.items[0];
    return STW_STATUS_OK;
}

const stw_pickle_value *stw_pickle_get(const stw_pickle_value *dict, const char *key) {
    if (dict == NULL || dict->kind != STW_PICKLE_DICT) return NULL;
    for (size_t i = dict->n_items; i >= 2; i -= 2) {
        const stw_pickle_value *name = dict->items[i - 2];
        if (name->kind == STW_PICKLE_STRING && strcmp(name->text, key) == 0)
            return dict->items[i - 1];
    }
    return NULL;
}
