/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of a process that runs a command for somebody else: what would end it is for the command,
 * and what it does for the command's sake it does to the end. One command per process; from one
 * thread. */
#ifndef STW_RECORD_SIGNALS_H
#define STW_RECORD_SIGNALS_H

#include <sys/types.h>

/** Start a command, found as the shell finds it, with the mask and the dispositions of signals that
 * this process was started with, SIGXFSZ at its default. From then on signals that end a process
 * unless it says otherwise, real-time ones too, are passed on to it: not those that a fault of
 * one's own raises, nor SIGINT and SIGQUIT of the terminal, which sends them to the command, too.
 * What this process ignores the command ignores, too, unless it says otherwise: it is passed on.
 * @return 0, or errno: nothing has changed */
int stw_record_signals_start(char *const *command, pid_t *child);
/** The command has ended; call it before its number is given back. Of the signals that come now the
 * first is dropped, so that what was recorded is written, and the second ends this process. */
void stw_record_signals_ended(void);
/** Signals do what they did before stw_record_signals_start. */
void stw_record_signals_end(void);

#endif
