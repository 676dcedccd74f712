/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over a communicator that the caller made and keeps: NCCL's, as torch has one. Nothing is
 * allocated, waited for or aborted here: whoever made the communicator does that. One thread at a
 * time, and no other operation of the communicator meanwhile. */
#ifndef STW_BACKEND_COMM_LENT_H
#define STW_BACKEND_COMM_LENT_H

#include "backend/comm/comm.h"

/** Buffers of messages: `offset` counts in the one that the message leaves or comes to. */
typedef struct stw_lent_buffers {
    const void *send;
    void *receive;
} stw_lent_buffers;

typedef struct stw_lent_ops {
    /** Find the library that made communicators of this process.
     * @return NOT_BUILT_IN or DEVICE where there is none; nothing is loaded */
    STW_MUST_USE stw_status (*find)(stw_error *err);
    /** Queue messages together on `stream`, after `find`. May block while NCCL connects two ranks
     * for the first time, at most `timeout_s`. */
    STW_MUST_USE stw_status (*messages)(void *comm, const stw_comm_message *messages, uint32_t n,
                                        const stw_lent_buffers *buffers, void *stream,
                                        double timeout_s, stw_error *err);
    /** Has an operation under way failed, by what NCCL knows? */
    STW_MUST_USE stw_status (*check)(void *comm, stw_error *err);
} stw_lent_ops;

/** NULL where NCCL is not built in. */
const stw_lent_ops *stw_lent_nccl_ops(void);

#endif
