/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks and nodes in words, for reports and messages. Files use the names of kinds. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/job/job.h"

#define MOST_RUNS 3

/* Members in ascending order, gathered into runs: "1-7, 9-15, 17". */
typedef struct runs {
    char text[96];
    uint32_t n, members;
    uint32_t first, last; /* of the run that is not yet in the text */
} runs;

static void put_run(runs *r) {
    size_t used = strlen(r->text);
    if (r->members == 0) return;
    r->n++;
    if (r->n > MOST_RUNS) return;
    const char *comma = r->n > 1 ? ", " : "";
    if (r->first == r->last)
        snprintf(r->text + used, sizeof r->text - used, "%s%" PRIu32, comma, r->first);
    else
        snprintf(r->text + used, sizeof r->text - used, "%s%" PRIu32 "-%" PRIu32, comma, r->first,
                 r->last);
}

static void add_member(runs *r, uint32_t member) {
    if (r->members > 0 && member == r->last + 1) {
        r->last = member;
    } else {
        put_run(r);
        r->first = r->last = member;
    }
    r->members++;
}

static void describe(runs *r, const char *what, uint32_t all, char *out, size_t out_size) {
    put_run(r);
    if (r->members == 1)
        snprintf(out, out_size, "%s %" PRIu32, what, r->first);
    else if (r->members == all && all == 2)
        snprintf(out, out_size, "both %ss", what);
    else if (r->members == all)
        snprintf(out, out_size, "all %" PRIu32 " %ss", all, what);
    else if (r->n <= MOST_RUNS)
        snprintf(out, out_size, "%ss %s", what, r->text);
    else
        snprintf(out, out_size, "%" PRIu32 " %ss: %s, ...", r->members, what, r->text);
}

void stw_job_ranks_words(const stw_job *job, const bool *kinds, char *out, size_t out_size) {
    runs r = {.n = 0};
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (kinds[stw_job_kind_of(job, rank)]) add_member(&r, rank);
    describe(&r, "rank", job->ranks, out, out_size);
}

void stw_job_kind_words(const stw_job *job, uint32_t kind, char *out, size_t out_size) {
    runs r = {.n = 0};
    for (uint32_t i = 0; i < job->kinds[kind].n_ranks; i++)
        add_member(&r, job->kinds[kind].ranks[i]);
    describe(&r, "rank", job->ranks, out, out_size);
}

uint32_t stw_job_node_kind_of(const stw_job *job, uint32_t node) {
    for (uint32_t n = 0; n < job->n_node_kinds; n++) {
        bool same = true;
        for (uint32_t k = 0; k < job->n_kinds && same; k++) {
            uint32_t ranks = 0;
            for (uint32_t i = 0; i < job->ranks_per_node; i++)
                ranks += stw_job_kind_of(job, node * job->ranks_per_node + i) == k;
            same = ranks == job->node_kinds[n].kind_ranks[k];
        }
        if (same) return n;
    }
    return 0;
}

void stw_job_nodes_words(const stw_job *job, const bool *node_kinds, char *out, size_t out_size) {
    runs r = {.n = 0};
    uint32_t nodes = job->ranks / job->ranks_per_node;
    for (uint32_t node = 0; node < nodes; node++)
        if (node_kinds[stw_job_node_kind_of(job, node)]) add_member(&r, node);
    describe(&r, "node", nodes, out, out_size);
}
