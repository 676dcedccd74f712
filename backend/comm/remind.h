/* SPDX-License-Identifier: Apache-2.0 */
/* One line for people while ranks join: after 10 seconds, or half of a shorter limit, it says who
 * is waited for and until when. A thread prints it, since MPI_Init returns only once all ranks have
 * called it. The lowest rank of each node that waits prints; the others are silent. */
#ifndef STW_BACKEND_COMM_REMIND_H
#define STW_BACKEND_COMM_REMIND_H

#include "backend/comm/watch.h"

typedef struct stw_remind stw_remind;

/** @param watch borrowed until the end; NULL: nothing is printed
 * @return NULL where there is nothing to do; printing is a service and never an error */
stw_remind *stw_remind_begin(stw_watch *watch, double timeout_s);
void stw_remind_end(stw_remind *remind); /* NULL is fine */

#endif
