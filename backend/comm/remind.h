/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one line while ranks join: after 10 seconds, or half of a shorter limit, it names the
 * missing ranks and the deadline. A thread prints it, since MPI_Init returns only after all ranks
 * have called it. Only the lowest waiting rank of each node prints. */
#ifndef STW_BACKEND_COMM_REMIND_H
#define STW_BACKEND_COMM_REMIND_H

#include "backend/comm/watch.h"

typedef struct stw_remind stw_remind;

/** @param watch borrowed until the end; NULL: nothing is printed
 * @return NULL if there is nothing to do; a failure to print is not an error */
stw_remind *stw_remind_begin(stw_watch *watch, double timeout_s);
void stw_remind_end(stw_remind *remind); /* NULL is fine */

#endif
