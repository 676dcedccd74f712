/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of file it is, and lines of texts: stacks are gathered by the process that a line
 * names, until a message says that memory ended. */
#include "plan/measured/failure.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "core/pickle.h"
#include "plan/measured/failure_parts.h"
#include "plan/measured/log_line.h"
#include "plan/measured/recording.h"

#define LIMIT_BYTES (4ull << 30)

enum { MOST_STACKS = 64, MOST_TAG = 48, JOINED_LINES = 6 };

/* The stack of one process, as far as its lines have come. */
typedef struct stack {
    char tag[MOST_TAG];
    stw_failure frames;
    bool open; /* its last frame lacks its line of source */
} stack;

typedef struct scan {
    stw_failures *to;
    const char *end; /* of the text */
    stack *stacks;
    size_t n_stacks;
    uint64_t cgroup_used, cgroup_limit;
    uint64_t pod_limit;        /* of YAML */
    bool pod_differ, pod_yaml; /* there are several; the last limits are of YAML */
    int pod_limits_open;       /* so many more lines may belong to limits */
    stw_gpu_tables tables;
    stw_error *err;
} scan;

static stack *stack_of(scan *s, const char *line) {
    char tag[MOST_TAG] = "";
    const char *at = "";
    const size_t n = stw_line_tag(line, &at);
    if (n < sizeof tag) memcpy(tag, at, n);
    for (size_t i = 0; i < s->n_stacks; i++)
        if (strcmp(s->stacks[i].tag, tag) == 0) return &s->stacks[i];
    if (s->n_stacks == MOST_STACKS) return &s->stacks[0];
    stack *made = &s->stacks[s->n_stacks++];
    memcpy(made->tag, tag, sizeof tag);
    made->frames = stw_failure_nothing();
    return made;
}

/* The line of source of a frame: the next one, or the one that an arrow marks. */
static void take_code(stack *of, const char *line, stw_pool *pool) {
    const char *arrow = strstr(line, "\xe2\x9d\xb1"), *ipython = strstr(line, "---> ");
    const char *code = ipython != NULL ? ipython + 5 : arrow != NULL ? arrow + 3 : line;
    if (!of->open || of->frames.n_frames == 0) return;
    if (arrow == NULL && ipython == NULL && strstr(line, "\xe2\x94\x82") != NULL) return;
    of->open = false;
    const char *kept = stw_pool_printf(pool, "%.200s", code);
    if (kept != NULL) of->frames.frames[of->frames.n_frames - 1].code = kept;
}

/* "memory: usage 6291456kB, limit 6291456kB, failcnt 12" */
static void take_cgroup(scan *s, const char *line) {
    const char *at = strstr(line, "memory: usage ");
    uint64_t used, limit;
    if (at == NULL) return;
    at = stw_failure_bytes(at + strlen("memory: usage "), &used);
    const char *comma = at != NULL ? strstr(at, "limit ") : NULL;
    if (comma == NULL || stw_failure_bytes(comma + strlen("limit "), &limit) == NULL) return;
    s->cgroup_used = used;
    s->cgroup_limit = limit;
}

/* "Limits:" and "  memory:  64Gi": `kubectl describe` has it some lines after the state of its
 * container, YAML has "limits:" before all states. */
static void take_pod(scan *s, const stw_failure_line *line) {
    enum { LINES_OF_LIMITS = 6, LINES_OF_STATE = 12 };
    const char *word = line->text + strspn(line->text, " \t");
    uint64_t limit;
    if (strcasecmp(word, "limits:") == 0) {
        s->pod_limits_open = LINES_OF_LIMITS + 1;
        s->pod_yaml = word[0] == 'l';
    }
    if (s->pod_limits_open == 0) return;
    s->pod_limits_open--;
    if (strncmp(word, "memory:", 7) != 0) return;
    s->pod_limits_open = 0;
    if (stw_failure_bytes(word + 7 + strspn(word + 7, " \t"), &limit) == NULL) return;
    stw_failure *last = s->to->n > 0 ? &s->to->items[s->to->n - 1] : NULL;
    if (s->pod_yaml) {
        s->pod_differ |= s->pod_limit != STW_NOT_SAID && s->pod_limit != limit;
        s->pod_limit = limit;
    } else if (last != NULL && strcmp(last->who, "Kubernetes") == 0 &&
               line->number - last->line <= LINES_OF_STATE && last->alike == 0) {
        last->limit = limit;
    }
}

/* A call that pins memory fails with words that say nothing of it. */
static void settle_kind(stw_failure *f) {
    if (f->kind != STW_FAILURE_DEVICE || f->n_frames == 0) return;
    if (strcmp(f->frames[f->n_frames - 1].function, "pin_memory") == 0 ||
        strstr(f->frames[f->n_frames - 1].code, "pin_memory(") != NULL)
        f->kind = STW_FAILURE_PAGE_LOCK;
}

static uint64_t rank_of(const char *tag) {
    return strncmp(tag, "[rank", 5) == 0 ? strtoull(tag + 5, NULL, 10) : STW_NOT_SAID;
}

/* A message that a terminal has wrapped goes on in the next lines. */
static stw_status read_on(const scan *s, const char *line, const char *at, stw_failure *f) {
    stw_text joined = STW_TEXT_INIT, next = STW_TEXT_INIT;
    const char *end = s->end;
    stw_failure again;
    stw_text_append(&joined, line, strlen(line));
    for (int i = 0; i < JOINED_LINES && f->unused == STW_NOT_SAID && at < end; i++) {
        at = stw_log_line(at + 1, end, &next);
        if (next.data == NULL || joined.failed || stw_frame_begins(next.data)) break;
        stw_text_append(&joined, next.data, next.length);
        if (joined.data != NULL && stw_failure_message(joined.data, s->to->pool, &again) &&
            again.kind == f->kind) {
            again.text = f->text;
            *f = again;
        }
    }
    stw_status status = stw_text_status(joined.failed ? &joined : &next, s->err);
    stw_text_free(&joined);
    stw_text_free(&next);
    return status;
}

/* @param at the end of the line in the file */
static stw_status take_message(scan *s, const stw_failure_line *line, const char *at) {
    stack *of = stack_of(s, line->text);
    stw_failure f;
    if (!stw_failure_message(line->text, s->to->pool, &f)) {
        take_code(of, line->text, s->to->pool);
        return STW_STATUS_OK;
    }
    if (f.kind == STW_FAILURE_ALLOCATOR && f.unused == STW_NOT_SAID) {
        stw_status status = read_on(s, line->text, at, &f);
        if (status != STW_STATUS_OK) return status;
    }
    f.line = line->number;
    f.offset = line->offset;
    f.rank = rank_of(of->tag);
    f.n_frames = of->frames.n_frames;
    f.frames = of->frames.frames;
    if (f.kind == STW_FAILURE_HOST_KILL && strcmp(f.who, "cgroup") == 0) {
        f.used = s->cgroup_used;
        f.limit = s->cgroup_limit;
    }
    if (strcmp(f.who, "Kubernetes") == 0 && !s->pod_differ) f.limit = s->pod_limit;
    of->frames = stw_failure_nothing();
    of->open = false;
    settle_kind(&f);
    return stw_failures_add(s->to, &f, s->err);
}

static stw_status take_line(scan *s, const stw_failure_line *line, const char *at) {
    stw_frame frame;
    take_cgroup(s, line->text);
    take_pod(s, line);
    if (stw_frame_begins(line->text)) {
        stack *of = stack_of(s, line->text);
        of->frames = stw_failure_nothing();
        of->open = false;
    } else if (stw_frame_read(line->text, s->to->pool, &frame)) {
        stack *of = stack_of(s, line->text);
        if (!stw_failure_add_frame(&of->frames, s->to->pool, &frame))
            return stw_fail(s->err, STW_STATUS_NO_MEMORY, s->to->file, "out of memory");
        of->open = true;
    } else {
        stw_status status = take_message(s, line, at);
        if (status != STW_STATUS_OK) return status;
        return stw_gpu_tables_line(&s->tables, line->text, s->to, s->err);
    }
    return STW_STATUS_OK;
}

static stw_status scan_text(scan *s, const char *text, size_t length) {
    stw_text line = STW_TEXT_INIT;
    stw_status status = STW_STATUS_OK;
    stw_failure_line here = {.number = 1};
    for (const char *at = text, *end = text + length; at < end && status == STW_STATUS_OK; at++) {
        here.offset = (size_t)(at - text);
        at = stw_log_line(at, end, &line);
        here.text = line.data != NULL ? line.data : "";
        status = stw_text_status(&line, s->err);
        if (status == STW_STATUS_OK && here.text[0] != '\0') status = take_line(s, &here, at);
        if (at < end && *at == '\n') here.number++;
    }
    stw_text_free(&line);
    return status;
}

/* The highest that the lines before the first failure say. What cannot be read there is no matter
 * here. */
static stw_status read_peaks(stw_failures *to, const char *text, size_t length, stw_error *err) {
    stw_recording *samples = NULL;
    stw_error ignored = STW_ERROR_INIT;
    if (to->n > 0) length = to->items[0].offset;
    stw_status status = stw_recording_new(to->file, &samples, err);
    if (status != STW_STATUS_OK) return status;
    status = stw_recording_parse_log(samples, to->file, text, length, &ignored);
    for (size_t i = 0; i < samples->n && status == STW_STATUS_OK; i++) {
        const stw_recorded *r = &samples->items[i];
        uint64_t *most = r->metric == STW_METRIC_ALLOCATED  ? &to->logged_allocated
                         : r->metric == STW_METRIC_RESERVED ? &to->logged_reserved
                                                            : NULL;
        if (most != NULL && (*most == STW_NOT_SAID || r->bytes > *most)) *most = r->bytes;
    }
    stw_recording_free(samples);
    if (status != STW_STATUS_NO_MEMORY) return STW_STATUS_OK;
    return stw_fail(err, status, to->file, "out of memory for samples");
}

static stw_status parse_text(stw_failures *to, const char *text, size_t length, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    scan s = {.to = to,
              .cgroup_used = STW_NOT_SAID,
              .cgroup_limit = STW_NOT_SAID,
              .pod_limit = STW_NOT_SAID,
              .err = err};
    char *kept = stw_pool_alloc(to->pool, length + 1);
    s.stacks = stw_pool_array(to->pool, MOST_STACKS, sizeof *s.stacks);
    if (kept == NULL || s.stacks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, to->file, "out of memory for the text");
    for (size_t i = 0; i < length; i++) kept[i] = text[i] != '\0' ? text[i] : ' ';
    to->text = kept;
    s.end = kept + length;
    STW_TRY(scan_text(&s, kept, length));
    STW_TRY(read_peaks(to, kept, length, err));
    if (to->n == 0 && to->n_gpus == 0 && to->n_processes == 0 &&
        to->logged_allocated == STW_NOT_SAID && to->logged_reserved == STW_NOT_SAID)
        status = stw_fail(err, STW_STATUS_BAD_INPUT, to->file,
                          "nothing in it says that memory ended; expected a memory snapshot of "
                          "torch, or a log with an out-of-memory error, a kernel's or launcher's "
                          "kill, or the output of nvidia-smi or dcgmi (docs/explain.md)");
out:
    return status;
}

stw_status stw_failures_parse(const char *file, const char *text, size_t length, stw_failures **out,
                              stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_failures *to = pool != NULL ? stw_pool_alloc(pool, sizeof *to) : NULL;
    if (to == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    }
    *to = (stw_failures){.pool = pool,
                         .file = stw_pool_string(pool, file),
                         .text = "",
                         .logged_allocated = STW_NOT_SAID,
                         .logged_reserved = STW_NOT_SAID};
    if (to->file == NULL) to->file = ""; /* the pool has failed then */
    stw_status status = stw_pickle_begins(text, length)
                            ? stw_failures_parse_snapshot(to, text, length, err)
                            : parse_text(to, text, length, err);
    if (status != STW_STATUS_NO_MEMORY && stw_pool_has_failed(to->pool))
        status = stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    if (status == STW_STATUS_OK)
        *out = to;
    else
        stw_failures_free(to);
    return status;
}

stw_status stw_failures_read(const char *path, stw_failures **out, stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, LIMIT_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK) status = stw_failures_parse(path, text, (size_t)length, out, err);
    free(text);
    return status;
}
