/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of one node can see of each other when one of them does not come: each keeps a page of
 * shared memory with the collective that it is in, and /proc says whether its process is there, or
 * stopped. Nothing is left behind: the page is a memory file without a name, which others open
 * through /proc. One thread at a time calls begin and end; the rest is for any thread. All
 * functions accept NULL. */
#ifndef STW_BACKEND_COMM_WATCH_H
#define STW_BACKEND_COMM_WATCH_H

#include "backend/comm/comm.h"

typedef struct stw_watch stw_watch;

/** This rank's page. Cannot fail in a way that matters: without it (NULL) errors name no rank. */
stw_watch *stw_watch_open(const stw_ranks *ranks);
void stw_watch_close(stw_watch *watch);
/** Find the pages of the other ranks of this node, which are all there once a collective has
 * succeeded. */
void stw_watch_find(stw_watch *watch);

/** A collective begins: `what` it is, for errors of this rank and of others. */
void stw_watch_begin(stw_watch *watch, const char *what);
void stw_watch_end(stw_watch *watch);
/** This rank ends with an error, so nobody should wait for it.
 * @param why told to the others; the first call's; NULL: not known, or for want of others */
void stw_watch_give_up(stw_watch *watch, const char *why);
/** Once this rank has given up: wait, for a second at most, until the other ranks of this node have
 * as well, for a launcher ends them as soon as one has gone. */
void stw_watch_linger(const stw_watch *watch);
/** "rank 1 has failed: ..." where this rank has given up with a reason, else "". */
void stw_watch_why(const stw_watch *watch, char *out, size_t out_size);
/** Has another rank of this node given up? */
bool stw_watch_others_gave_up(stw_watch *watch);
/** What this rank is in: "operation 12 (barrier)".
 * @param otherwise where nothing is known */
void stw_watch_operation(const stw_watch *watch, const char *otherwise, char *out, size_t out_size);
/** Name the ranks of this node that have not come to it: "rank 1 (process 4711) is stopped after
 * operation 11 (digests)".
 * @param out always NUL-terminated; "" where nothing is known */
void stw_watch_describe(stw_watch *watch, char *out, size_t out_size);

/** "1 of 4 ranks to start: rank 1 (process 4711) has not joined: ..." where ranks of this node have
 * not joined and this is the lowest one that has. Any thread.
 * @return false: there is nothing for this rank to say */
bool stw_watch_missing(stw_watch *watch, char *out, size_t out_size);

/** Where that names none: a rank that has given up, for people to look at its error. */
void stw_watch_who_gave_up(const stw_watch *watch, char *out, size_t out_size);
/** For a handler of signals that end the process: if other ranks of this node have ended before,
 * name them and the operation on stderr. Launchers end all ranks where one has died. */
void stw_watch_on_signal(void);

#endif
