/* SPDX-License-Identifier: Apache-2.0 */
/* Signal handling of a process that runs a command: fatal signals are passed on to the command, and
 * this process finishes its own work afterwards. One command per process; from one thread. */
#ifndef STW_RECORD_SIGNALS_H
#define STW_RECORD_SIGNALS_H

#include <sys/types.h>

/** Start a command, found in PATH, with the signal mask and dispositions that this process was
 * started with, and SIGXFSZ at its default. From then on all signals whose default action ends a
 * process, real-time ones included, are passed on to it. Exceptions are signals of this process's
 * own faults, and SIGINT and SIGQUIT of the terminal, which sends them to the command itself.
 * Signals that this process ignores are passed on, too; the command ignores them unless it sets a
 * handler.
 * @return 0, or errno: nothing has changed */
int stw_record_signals_start(char *const *command, pid_t *child);
/** Call it when the command has ended, before its process id is released. From now on the first
 * signal is dropped, so that the recording is written, and the second ends this process. */
void stw_record_signals_ended(void);
/** Restore the signal handling before stw_record_signals_start. */
void stw_record_signals_end(void);

#endif
