/* SPDX-License-Identifier: Apache-2.0 */
/* Do all ranks do the same? Each rank lists what changes a result or a schedule, as lines "key =
 * value": options, model, run spec, cluster, decisions, layouts and programs; and, where it sees
 * weights files, a sample of them. Ranks compare a hash of each list; where it differs they
 * exchange the lists, so that all of them name the first line that differs. The version of the
 * program and the identity of its build are compared before anything else is looked at. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/run_sync.h"
#include "core/build.h"
#include "core/checked.h"
#include "core/json.h"
#include "plan/files/plan_terms.h"
#include "stw_config.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- the list ---- */

static void write_other_grad(const stw_other_grad *other, stw_json *json) {
    char words[96] = "none";
    if (other->step > 0)
        snprintf(words, sizeof words, "%llu:%llu=%.9g", (unsigned long long)other->step,
                 (unsigned long long)other->element, (double)other->value);
    stw_json_string(json, "--set-gradient", words);
}

static void write_options(const stw_rank_run *run, stw_json *json) {
    const stw_executor_options *o = run->options;
    stw_json_string(json, "--backend", run->backend->name);
    stw_json_u64(json, "--steps", o->steps);
    stw_json_u64(json, "--seed", o->seed);
    /* Paths may differ from node to node. */
    stw_json_string(json, "--weights", run->weights_path != NULL ? "files" : "random");
    stw_json_double(json, "--timeout", run->timeout_s);
    stw_json_bool(json, "--no-digest", o->no_digest);
    stw_json_bool(json, "--compare-weights", o->compare_weights);
    stw_json_bool(json, "--error-if-nonfinite", o->error_if_nonfinite);
    write_other_grad(&o->other_grad, json);
    stw_json_string(json, "--output", o->output != NULL ? o->output : "none");
    stw_json_string(json, "--sync-to", o->sync_to != NULL ? o->sync_to : "none");
    stw_json_string(json, "--trace", o->trace != NULL ? o->trace : "none");
    stw_json_bool(json, "poison_freed", o->poison_freed);
    stw_json_bool(json, "ceiling", o->after_iteration != NULL); /* measured after every step */
    stw_json_string(json, "--resume", run->resumed[0] != '\0' ? run->resumed : "none");
    stw_json_string(json, "--checkpoint", o->checkpoint != NULL ? "folder" : "none");
    stw_json_u64(json, "--every", o->checkpoint_every);
    stw_json_u64(json, "--keep", o->checkpoint_keep);
}

stw_status stw_exec_settings(const stw_rank_run *run, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    write_options(run, json);
    if (run->sync != NULL)
        stw_json_u64(json, "weight sync", stw_sync_schedule_sum(run->sync->schedule));
    stw_plan_write_terms(run->plan, json);
    /* Programs of different kinds of rank differ, but not in what ranks do together. */
    stw_plan_write_movement_hashes(
        run->plan->programs[stw_job_kind_of(run->plan->job, run->ranks.rank)], "collectives",
        stw_program_schedule_hash, json);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    STW_TRY(stw_terms_flatten(text.data, text.length, out, err));
out:
    stw_text_free(&text);
    return status;
}

static bool is_one_of(const char *key, const char *const *keys) {
    for (size_t i = 0; keys[i] != NULL; i++)
        if (strncmp(key, keys[i], strlen(keys[i])) == 0) return true;
    return false;
}

/* Lines that make a state what it is. Placement, layout and world do not. */
static bool is_of_state(const char *key) {
    static const char *const keys[] = {"model.digest ", "precision.", "optimizer.", "trainable.",
                                       NULL};
    return strncmp(key, "optimizer.implementation ", 25) != 0 && is_one_of(key, keys);
}

/* Lines that determine the digests of a run's state. */
static bool determines_digests(const char *key) {
    static const char *const keys[] = {"--steps ", "--seed ", "--set-gradient ", "--weights ",
                                       NULL};
    return is_of_state(key) || is_one_of(key, keys);
}

stw_status stw_exec_state_terms(const stw_rank_run *run, stw_text *out, stw_error *err) {
    stw_text list = STW_TEXT_INIT;
    stw_status status = stw_exec_settings(run, &list, err);
    for (const char *l = list.data; status == STW_STATUS_OK && *l != '\0';) {
        const size_t length = strcspn(l, "\n") + 1; /* every line ends in one */
        if (is_of_state(l)) stw_text_append(out, l, length);
        l += length;
    }
    stw_text_free(&list);
    return status == STW_STATUS_OK ? stw_text_status(out, err) : status;
}

stw_status stw_exec_digest_of(const stw_rank_run *run, char hex[17], stw_error *err) {
    stw_text list = STW_TEXT_INIT;
    uint64_t hash = 0;
    stw_status status = stw_exec_settings(run, &list, err);
    for (const char *l = list.data; status == STW_STATUS_OK && *l != '\0';) {
        size_t length = strcspn(l, "\n") + 1; /* every line ends in one */
        if (determines_digests(l)) hash = XXH3_64bits_withSeed(l, length, hash);
        l += length;
    }
    if (run->sample.length > 0)
        hash = XXH3_64bits_withSeed(run->sample.data, run->sample.length, hash);
    snprintf(hex, 17, "%016llx", (unsigned long long)hash);
    stw_text_free(&list);
    return status;
}

/* ---- comparing ---- */

enum { SETTINGS, WEIGHTS, N_LISTS };

/* What every rank says first. Every version says `version` in the same place and sends the same
 * number of bytes; the rest belongs to the version. */
typedef struct hello {
    char version[128];
    struct {
        uint64_t hash, bytes; /* its NUL included; 0: the rank has no such list */
    } lists[N_LISTS];
    stw_error error; /* what has failed on the rank so far */
    char build[24];  /* stw_build_identity */
} hello;
#define HELLO_BYTES 2048
_Static_assert(sizeof(hello) <= HELLO_BYTES, "the first exchange has a fixed size");

static bool has_key(const char *list, const stw_term *wanted) {
    for (stw_term l = stw_term_at(list); l.key_length > 0; l = stw_term_at(stw_term_next(&l)))
        if (stw_terms_have_same_key(&l, wanted)) return true;
    return false;
}

static stw_status fail_line(const stw_exec_lists *lists, const stw_term *base,
                            const stw_term *other, stw_error *err) {
    static const stw_term none = {"", "none", 0, 4};
    const stw_term *named = base != NULL ? base : other;
    char key[200];
    snprintf(key, sizeof key, "%.*s", named->key_length, named->key);
    if (base == NULL) base = &none;
    if (other == NULL) other = &none;
    return stw_fail(err, STW_STATUS_DEVICE, key,
                    "rank %u has %.*s, rank %u has %.*s; %s (ranks that differ from rank %u: %u)",
                    lists->rank, other->value_length < 200 ? other->value_length : 200,
                    other->value, lists->base_rank,
                    base->value_length < 200 ? base->value_length : 200, base->value, lists->advice,
                    lists->base_rank, lists->others);
}

stw_status stw_exec_compare_lists(const stw_exec_lists *lists, stw_error *err) {
    stw_term a = stw_term_at(lists->base), b = stw_term_at(lists->other);
    while (a.key_length > 0 && b.key_length > 0 && stw_terms_are_same(&a, &b)) {
        a = stw_term_at(stw_term_next(&a));
        b = stw_term_at(stw_term_next(&b));
    }
    if (a.key_length == 0 && b.key_length == 0) return STW_STATUS_OK;
    if (a.key_length == 0 ||
        (!stw_terms_have_same_key(&a, &b) && b.key_length > 0 && has_key(lists->other, &a)))
        return fail_line(lists, NULL, &b, err); /* the first rank lacks this key */
    return fail_line(lists, &a, b.key_length > 0 && stw_terms_have_same_key(&a, &b) ? &b : NULL,
                     err);
}

/* Ranks without the list are not compared. */
static stw_status exchange_lists(stw_rank_run *run, int which, const stw_text *list,
                                 const hello *all, stw_error *err) {
    static const char *const advice[] = {
        [SETTINGS] = "start all ranks with the same plan, options and version",
        [WEIGHTS] = "give all ranks the same weights files"};
    stw_status status = STW_STATUS_OK;
    uint32_t world = run->ranks.world, base = world, first = 0, others = 0;
    uint64_t room = 0;
    char *mine = NULL, *lists = NULL;
    for (uint32_t r = 0; r < world; r++) {
        room = stw_max_u64(room, all[r].lists[which].bytes);
        if (all[r].lists[which].bytes == 0) continue;
        if (base == world) base = r;
        if (memcmp(&all[r].lists[which], &all[base].lists[which], sizeof all[r].lists[which]) == 0)
            continue;
        if (others++ == 0) first = r;
    }
    if (others == 0) return STW_STATUS_OK;
    mine = calloc(1, room + 1);
    lists = calloc(world, room + 1);
    if (mine == NULL || lists == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "ranks", "out of memory for their settings"));
    if (list->length > 0) memcpy(mine, list->data, list->length);
    STW_TRY(stw_comm_exchange(run->comm, mine, lists, (uint32_t)(room + 1), err));
    run->agreed = true;
    const stw_exec_lists two = {
        lists + base * (room + 1), lists + first * (room + 1), base, first, others, advice[which]};
    status = stw_exec_compare_lists(&two, err);
    if (status == STW_STATUS_OK)
        status = stw_fail(err, STW_STATUS_BUG, "ranks",
                          "lists of ranks %u and %u have other hashes", base, first);
out:
    free(mine);
    free(lists);
    return status;
}

static stw_status compare_versions(stw_rank_run *run, const hello *all, stw_error *err) {
    for (uint32_t r = 1; r < run->ranks.world; r++) {
        if (memcmp(all[r].version, all[0].version, sizeof all[0].version) == 0) continue;
        run->agreed = true;
        return stw_fail(err, STW_STATUS_DEVICE, "version",
                        "rank %u is %.120s, rank 0 is %.120s; all ranks must be the same version",
                        r, all[r].version, all[0].version);
    }
    return STW_STATUS_OK;
}

/* Two builds of one version may compute differently, and nothing else that is compared shows it. */
static stw_status compare_builds(stw_rank_run *run, const hello *all, stw_error *err) {
    uint32_t first = 0, others = 0;
    for (uint32_t r = 1; r < run->ranks.world; r++)
        if (memcmp(all[r].build, all[0].build, sizeof all[0].build) != 0 && others++ == 0)
            first = r;
    if (others == 0) return STW_STATUS_OK;
    run->agreed = true;
    return stw_fail(err, STW_STATUS_DEVICE, "build",
                    "rank %u is build %.23s, rank 0 is build %.23s; start all ranks with programs "
                    "of the same sources, compilers and flags (--version shows the build; ranks "
                    "that differ from rank 0: %u)",
                    first, all[first].build, all[0].build, others);
}

/* The same text, but for numbers: free bytes differ from rank to rank. */
static bool same_text(const char *a, const char *b) {
    for (;;) {
        a += strspn(a, "0123456789.");
        b += strspn(b, "0123456789.");
        if (*a != *b) return false;
        if (*a == '\0') return true;
        a++;
        b++;
    }
}

static bool same_reason(const stw_error *a, const stw_error *b) {
    return a->status == b->status && strcmp(a->where, b->where) == 0 && same_text(a->text, b->text);
}

/* The error of the first rank that has one becomes everybody's. Where all ranks have it, rank 0
 * shows it alone. */
static stw_status adopt(stw_rank_run *run, const void *errors, size_t stride, stw_error *err) {
    stw_error first = STW_ERROR_INIT;
    uint32_t same = 0;
    for (uint32_t r = 0; r < run->ranks.world; r++) {
        stw_error error;
        memcpy(&error, (const char *)errors + r * stride, sizeof error);
        if (error.status == STW_STATUS_OK) continue;
        if (first.status == STW_STATUS_OK) {
            first = error;
            first.rank = (int)r;
        }
        same += same_reason(&error, &first);
    }
    if (first.status == STW_STATUS_OK) return STW_STATUS_OK;
    run->agreed = true;
    size_t used = strlen(first.text);
    if (same > 1)
        snprintf(first.text + used, sizeof first.text - used,
                 "%s%u ranks refuse for the same reason", used > 0 ? "; " : "", same);
    if (same == run->ranks.world) first.rank = -1;
    /* Ranks that leave together, as they do by MPI, give rank 0 the time to say it. */
    first.told = same == run->ranks.world && run->ranks.rank != 0 && stw_comm_meets(run->comm);
    if (err != NULL) *err = first;
    return first.status;
}

/* What this rank has met so far, in a form to be sent; `err` is then free for what all meet. */
static stw_error take_error(stw_status status, stw_error *err) {
    stw_error own = STW_ERROR_INIT;
    if (status != STW_STATUS_OK && err != NULL) own = *err;
    own.status = status;
    if (err != NULL) *err = (stw_error)STW_ERROR_INIT;
    return own;
}

/* Nobody could be told: the rank's own error is the first. */
static stw_status untold(stw_status status, const stw_error *own, stw_error *err) {
    if (own->status == STW_STATUS_OK) return status;
    if (err != NULL) *err = *own;
    return own->status;
}

stw_status stw_exec_agree_status(stw_rank_run *run, stw_status so_far, stw_error *err) {
    uint32_t world = run->ranks.world;
    if (world == 1) return so_far;
    stw_error own = take_error(so_far, err);
    stw_error *all = calloc(world, sizeof *all);
    stw_comm_about(run->comm, run->step == 0 ? "opening" : "agreeing on files");
    stw_status status = all == NULL
                            ? stw_fail(err, STW_STATUS_NO_MEMORY, "ranks", "out of memory")
                            : stw_comm_exchange(run->comm, &own, all, (uint32_t)sizeof own, err);
    status =
        status == STW_STATUS_OK ? adopt(run, all, sizeof *all, err) : untold(status, &own, err);
    free(all);
    return status;
}

/* Exchange hellos and judge them: versions, builds, then lists, then what has failed. */
static stw_status meet(stw_rank_run *run, hello *mine, const stw_text *list, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t world = run->ranks.world;
    unsigned char *sent = calloc(1, HELLO_BYTES), *got = calloc(world, HELLO_BYTES);
    hello *all = calloc(world, sizeof *all);
    if (sent == NULL || got == NULL || all == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "ranks", "out of memory");
    } else {
        memcpy(sent, mine, sizeof *mine);
        stw_comm_about(run->comm, "comparing versions and settings");
        status = stw_comm_exchange(run->comm, sent, got, HELLO_BYTES, err);
    }
    if (status != STW_STATUS_OK) {
        status = untold(status, &mine->error, err);
        goto out;
    }
    for (uint32_t r = 0; r < world; r++) memcpy(&all[r], got + r * HELLO_BYTES, sizeof *all);
    STW_TRY(compare_versions(run, all, err));
    STW_TRY(compare_builds(run, all, err));
    STW_TRY(exchange_lists(run, SETTINGS, list, all, err));
    STW_TRY(exchange_lists(run, WEIGHTS, &run->sample, all, err));
    STW_TRY(adopt(run, &all[0].error, sizeof *all, err));
out:
    free(sent);
    free(got);
    free(all);
    return status;
}

static void introduce(hello *mine, int which, const stw_text *list) {
    mine->lists[which].hash = XXH3_64bits(list->data != NULL ? list->data : "", list->length);
    mine->lists[which].bytes = list->length + 1;
}

stw_status stw_exec_agree(stw_rank_run *run, stw_status so_far, stw_error *err) {
    static const char version[] = "stowage " STW_VERSION " (ranks 3, plan 1, layout %d, operations "
                                  "%d, phases %d)";
    stw_text list = STW_TEXT_INIT;
    hello mine;
    if (run->ranks.world == 1) return so_far;
    stw_status listed = STW_STATUS_OK;
    if (run->plan != NULL) listed = stw_exec_settings(run, &list, err);
    memset(&mine, 0, sizeof mine);
    mine.error = take_error(so_far != STW_STATUS_OK ? so_far : listed, err);
    if (list.length > 0) introduce(&mine, SETTINGS, &list);
    if (run->sample.length > 0) introduce(&mine, WEIGHTS, &run->sample);
    snprintf(mine.version, sizeof mine.version, version, STW_LAYOUT_VERSION, STW_N_OP_KINDS,
             STW_N_PHASES);
    snprintf(mine.build, sizeof mine.build, "%s", stw_build_identity());
    stw_status status = meet(run, &mine, &list, err);
    stw_text_free(&list);
    return status;
}

stw_status stw_exec_agree_resume(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t world = run->ranks.world;
    char(*all)[sizeof run->resumed] = calloc(world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "ranks", "out of memory");
    stw_comm_about(run->comm, "comparing checkpoints");
    STW_TRY(stw_comm_gather(run->comm, run->resumed, all, (uint32_t)sizeof *all, err));
    for (uint32_t r = 1; r < world; r++)
        if (memcmp(all[r], all[0], sizeof *all) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "resume", "rank %u has opened %s, rank 0 %s",
                             r, all[r], all[0]));
out:
    free(all);
    return status;
}

/* ---- when a movement begins ---- */

/* What may differ from one movement to the next: the caller of a session sets steps and rates. */
typedef struct moment {
    uint64_t movement, step;
    stw_adamw adamw;
} moment;

static stw_status fail_moment(const moment *zero, const moment *other, uint32_t rank,
                              const char *phase, stw_error *err) {
    if (other->movement != zero->movement)
        return stw_fail(err, STW_STATUS_DEVICE, phase,
                        "rank %u begins movement %llu, rank 0 movement %llu of the plan", rank,
                        (unsigned long long)other->movement, (unsigned long long)zero->movement);
    if (other->step != zero->step)
        return stw_fail(err, STW_STATUS_DEVICE, phase, "rank %u takes step %llu, rank 0 step %llu",
                        rank, (unsigned long long)other->step, (unsigned long long)zero->step);
    for (uint32_t g = 0; g < STW_MAX_PARAM_GROUPS; g++)
        if (memcmp(&other->adamw.groups[g], &zero->adamw.groups[g], sizeof zero->adamw.groups[g]))
            return stw_fail(err, STW_STATUS_DEVICE, phase,
                            "parameter group %u: rank %u updates by %.9g, rank 0 by %.9g (learning "
                            "rate over bias correction); their weight decays are %.9g and %.9g",
                            g, rank, (double)other->adamw.groups[g].step_size,
                            (double)zero->adamw.groups[g].step_size,
                            (double)other->adamw.groups[g].lr_wd,
                            (double)zero->adamw.groups[g].lr_wd);
    return stw_fail(err, STW_STATUS_DEVICE, phase,
                    "the optimizer's scalars of ranks %u and 0 differ", rank);
}

stw_status stw_exec_begin_together(stw_rank_run *run, const stw_movement *movement,
                                   stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t world = run->ranks.world;
    moment mine, *all = NULL;
    char about[64];
    if (world == 1) return STW_STATUS_OK;
    all = calloc(world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "ranks", "out of memory");
    memset(&mine, 0, sizeof mine);
    mine.movement = (uint64_t)(movement - run->program->movements);
    mine.step = run->step;
    mine.adamw = run->adamw;
    snprintf(about, sizeof about, "start of %s, step %llu", stw_phase_name(movement->phase),
             (unsigned long long)run->step);
    stw_comm_about(run->comm, about);
    STW_TRY(stw_comm_gather(run->comm, &mine, all, (uint32_t)sizeof mine, err));
    for (uint32_t r = 1; r < world; r++)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0)
            STW_TRY(fail_moment(&all[0], &all[r], r, stw_phase_name(movement->phase), err));
out:
    free(all);
    return status;
}
