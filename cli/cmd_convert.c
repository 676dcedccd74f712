/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* sigaction */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "backend/checkpoint/convert.h"
#include "cli/commands.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/units.h"
#include "reports/table.h"

#define LEAST_SHARD 1000000ull

/* ---- a signal: what is written is removed first ---- */

static volatile sig_atomic_t ended_by;

static void on_signal(int number) { ended_by = number; }
static bool is_stopped(void) { return ended_by != 0; }

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGXCPU};

static void catch_signals(void) {
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    (void)sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(ending[i], &action, NULL);
}

/* The signal does what it would have done. */
static void end_by_signal(void) {
    struct sigaction plain;
    if (ended_by == 0) return;
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    (void)sigaction(ended_by, &plain, NULL);
    (void)raise(ended_by);
}

/* ---- options ---- */

typedef struct arguments {
    const char *checkpoint, *folder, *dtype, *from, *shard_size, *like;
} arguments;

static stw_status take_dtype(const arguments *a, stw_convert_options *o, stw_error *err) {
    static const char *const names[] = {"bf16", "fp32", "fp16"};
    static const stw_dtype dtypes[] = {STW_DTYPE_BF16, STW_DTYPE_F32, STW_DTYPE_F16};
    const char *dtype = a->dtype != NULL ? a->dtype : o->from_master ? "fp32" : NULL;
    o->casts = dtype != NULL;
    if (dtype == NULL) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(dtype, names[i]) == 0) {
            o->dtype = dtypes[i];
            return STW_STATUS_OK;
        }
    return stw_fail(err, STW_STATUS_USAGE, "--dtype",
                    "found \"%.40s\", expected bf16, fp32 or fp16", dtype);
}

static stw_status take_options(const arguments *a, stw_convert_options *o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    o->folder = a->folder;
    o->like = a->like;
    o->stop = is_stopped;
    if (o->folder == NULL || stw_file_is_stdout(o->folder))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "stowage convert",
                         "expected -o FOLDER, a folder that is empty or does not exist"));
    if (a->from != NULL && strcmp(a->from, "master") != 0 && strcmp(a->from, "params") != 0)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--from",
                         "found \"%.40s\", expected params or master", a->from));
    o->from_master = a->from != NULL && a->from[0] == 'm';
    STW_TRY(take_dtype(a, o, err));
    if (a->shard_size == NULL) goto out;
    if (stw_u64_parse(a->shard_size, STW_UNIT_BYTES, &o->shard_bytes, "--shard-size", err) !=
        STW_STATUS_OK)
        status = STW_STATUS_USAGE;
    else if (o->shard_bytes < LEAST_SHARD)
        status = stw_fail(err, STW_STATUS_USAGE, "--shard-size",
                          "found %.40s, expected at least 1 MB", a->shard_size);
    if (err != NULL && status != STW_STATUS_OK) err->status = status;
out:
    return status;
}

/* The model of the config.json beside the weights, or of `like`; NULL where nobody knows it. */
static stw_model *find_model(const char *folder, const char *like) {
    char path[STW_CHECKPOINT_PATH + 16], data[4096];
    stw_model *model = NULL;
    stw_error why = STW_ERROR_INIT;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (!stw_file_exists(path) && like != NULL)
        snprintf(path, sizeof path, "%.4000s/config.json", like);
    if (!stw_file_exists(path)) {
        stw_log(STW_LOG_WARN, "%s has no config.json: names of tensors are as saved", folder);
        return NULL;
    }
    if (stw_data_folder(data, sizeof data, &why) != STW_STATUS_OK ||
        stw_model_read_config(path, data, &model, &why) != STW_STATUS_OK)
        stw_log(STW_LOG_WARN, "%s: names of tensors are as saved: %s", path, why.text);
    return model;
}

/* ---- what is said ---- */

static void put_text(const stw_checkpoint *c, const stw_convert_options *o,
                     const stw_convert_result *r, stw_text *text) {
    stw_doc_line(text, STW_FORMAT_TERMINAL,
                 "%s: step %" PRIu64 " of %s, %u tensors in %u file%s, %s", o->folder,
                 c->manifest.step, c->path, r->n_tensors, r->n_files, r->n_files > 1 ? "s" : "",
                 stw_word_size(r->bytes).text);
}

static stw_status put_json(const stw_checkpoint *c, const stw_convert_options *o,
                           const stw_convert_result *r, stw_text *text, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.convert/1");
    stw_json_string(json, "checkpoint", c->path);
    stw_json_u64(json, "step", c->manifest.step);
    stw_json_string(json, "folder", o->folder);
    stw_json_string(json, "from", o->from_master ? "master" : "params");
    stw_json_string(json, "dtype", o->casts ? stw_dtype_name(o->dtype) : NULL);
    stw_json_u64(json, "tensors", r->n_tensors);
    stw_json_u64(json, "without_master", r->n_unmastered);
    stw_json_u64(json, "files", r->n_files);
    stw_json_u64(json, "bytes", r->bytes);
    stw_json_u64(json, "infinite", r->infinite);
    stw_json_double(json, "seconds", r->seconds);
    stw_json_end(json);
    return stw_json_finish(json, text, err);
}

static void warn(const stw_convert_options *o, const stw_convert_result *r) {
    if (r->infinite > 0)
        stw_log(STW_LOG_WARN,
                "%" PRIu64 " elements are beyond 65504, the largest of fp16, and are infinite now; "
                "the first ones are in %s",
                r->infinite, r->first);
    if (o->from_master && r->n_unmastered > 0)
        stw_log(STW_LOG_INFO, "%u tensors are not trained and have no master: they are parameters",
                r->n_unmastered);
}

static stw_status convert(const arguments *a, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_checkpoint *checkpoint = NULL;
    stw_model *model = NULL;
    stw_convert_options options = {0};
    stw_convert_result result;
    stw_text text = STW_TEXT_INIT;
    STW_TRY(take_options(a, &options, err));
    STW_TRY(stw_checkpoint_newest(a->checkpoint, &checkpoint, err));
    options.model = model = find_model(checkpoint->path, options.like);
    catch_signals();
    STW_TRY(stw_convert(checkpoint, &options, &result, err));
    warn(&options, &result);
    if (general->json)
        STW_TRY(put_json(checkpoint, &options, &result, &text, err));
    else if (!general->quiet)
        put_text(checkpoint, &options, &result, &text);
    if (text.length > 0) STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_model_free(model);
    stw_checkpoint_close(checkpoint);
    end_by_signal();
    return status;
}

int stw_cmd_convert(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    arguments a = {0};
    const char *words[1];
    size_t n = 0;
    const stw_option options[] = {
        {"--output", "-o", "FOLDER", "the folder to make; it may exist if it is empty",
         STW_OPTION_ONCE, &a.folder},
        {"--json", NULL, NULL, "write complete JSON to stdout", STW_OPTION_FLAG, &general.json},
        {"--quiet", "-q", NULL, "only errors on stderr, and no summary", STW_OPTION_FLAG,
         &general.quiet},
        {"--dtype", NULL, "DTYPE", "bf16, fp32 or fp16; default: as saved, of masters fp32",
         STW_OPTION_ONCE, &a.dtype},
        {"--from", NULL, "STATE", "params (the default), or master: fp32 weights, rounded once",
         STW_OPTION_ONCE, &a.from},
        {"--shard-size", NULL, "SIZE", "the most of one file; default 5 GB", STW_OPTION_ONCE,
         &a.shard_size},
        {"--like", NULL, "FOLDER",
         "also copy config.json, tokenizer and so on from this folder of the model",
         STW_OPTION_ONCE, &a.like},
    };
    const stw_usage usage = {
        "stowage",
        "convert",
        "CHECKPOINT -o FOLDER",
        "Write a plain Hugging Face folder of a checkpoint's model: safetensors in published "
        "names, their index, config.json, and what else lies beside them (tokenizer). CHECKPOINT "
        "is one checkpoint, or a folder of them: then its newest complete one. Every byte is "
        "compared with its hash; FOLDER appears when all of it is on the disk, and must be empty "
        "or not exist. Exit code 8: the checkpoint is damaged.",
        options,
        sizeof options / sizeof options[0],
        1,
        1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, words, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    a.checkpoint = words[0];
    return stw_exit(convert(&a, &general, &err), &err);
}
