/* SPDX-License-Identifier: Apache-2.0 */
/* Shows which rank of a node is missing in a collective. Each rank keeps a page of shared memory
 * with its present collective, and /proc shows whether its process exists or is stopped. The page
 * is a memory file without a name, which others open through /proc, so that nothing is left behind.
 * One thread at a time calls begin and end; any thread may call the rest. All functions accept
 * NULL. */
#ifndef STW_BACKEND_COMM_WATCH_H
#define STW_BACKEND_COMM_WATCH_H

#include "backend/comm/comm.h"

typedef struct stw_watch stw_watch;

/** Make this rank's page. NULL on failure, which only means that errors name no rank. */
stw_watch *stw_watch_open(const stw_ranks *ranks);
void stw_watch_close(stw_watch *watch);
/** Find the pages of the other ranks of this node; all exist after one successful collective. */
void stw_watch_find(stw_watch *watch);

/** Record that a collective begins. @param what its name, for errors of this rank and of others */
void stw_watch_begin(stw_watch *watch, const char *what);
void stw_watch_end(stw_watch *watch);
/** Record that this rank ends with an error, so that no rank waits for it.
 * @param why shown to the others; the first call's counts; NULL: unknown, or because other ranks
 * are missing */
void stw_watch_give_up(stw_watch *watch, const char *why);
/** After this rank has given up: wait, at most one second, until the other ranks of this node have
 * given up, too, because a launcher kills them when one rank exits. */
void stw_watch_linger(const stw_watch *watch);
/** Write "rank 1 has failed: ..." if this rank has given up with a reason, else "". */
void stw_watch_why(const stw_watch *watch, char *out, size_t out_size);
/** True if another rank of this node has given up. */
bool stw_watch_others_gave_up(stw_watch *watch);
/** Write this rank's present collective: "operation 12 (barrier)".
 * @param otherwise the text if nothing is known */
void stw_watch_operation(const stw_watch *watch, const char *otherwise, char *out, size_t out_size);
/** Name the ranks of this node that have not reached it: "rank 1 (process 4711) is stopped after
 * operation 11 (digests)".
 * @param out always NUL-terminated; "" if nothing is known */
void stw_watch_describe(stw_watch *watch, char *out, size_t out_size);

/** Write "1 of 4 ranks to start: rank 1 (process 4711) has not joined: ..." if ranks of this node
 * have not joined and this is the lowest rank that has. Any thread.
 * @return false: nothing to write */
bool stw_watch_missing(stw_watch *watch, char *out, size_t out_size);

/** If stw_watch_describe names no rank: name a rank that has given up, whose error a user should
 * read. */
void stw_watch_who_gave_up(const stw_watch *watch, char *out, size_t out_size);
/** For a handler of fatal signals: if other ranks of this node have ended before, name them and the
 * operation on stderr. Launchers kill all ranks when one has died. */
void stw_watch_on_signal(void);

#endif
