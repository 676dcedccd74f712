/* SPDX-License-Identifier: Apache-2.0 */
/* The part of MPI that the plugin uses, for tests: test_backend_plugin.c defines the functions. */
#ifndef STW_TESTS_UNIT_FAKE_MPI_MPI_H
#define STW_TESTS_UNIT_FAKE_MPI_MPI_H

typedef int MPI_Comm;
typedef int MPI_Request;
typedef int MPI_Datatype;
typedef int MPI_Op;
typedef int MPI_Errhandler;
typedef struct MPI_Status {
    int MPI_SOURCE;
} MPI_Status;

enum {
    MPI_SUCCESS = 0,
    MPI_COMM_NULL = 100,
    MPI_COMM_WORLD = 101,
    MPI_ANY_SOURCE = -1,
    MPI_THREAD_SERIALIZED = 2,
    MPI_ERRORS_RETURN = 3,
    MPI_UINT64_T = 4,
    MPI_BYTE = 5,
    MPI_SUM = 6,
    MPI_MAX_ERROR_STRING = 64
};
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_IN_PLACE ((void *)1)

int MPI_Error_string(int code, char *text, int *length);
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status);
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *there, MPI_Status *status);
int MPI_Finalized(int *finalised);
int MPI_Finalize(void);
int MPI_Initialized(int *initialised);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided);
int MPI_Query_thread(int *provided);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request);
int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request);
int MPI_Iallreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request);
int MPI_Iallgather(const void *from, int n, MPI_Datatype type, void *to, int to_n,
                   MPI_Datatype to_type, MPI_Comm comm, MPI_Request *request);
int MPI_Ibcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request);
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Recv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status *status);

#endif
