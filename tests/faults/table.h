/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that STOWAGE_FAIL=call:n can make fail, and how they fail then. CMake reads the names:
 * a line that begins with X( names a call. The linker replaces it by __wrap_<call> (--wrap), in our
 * objects and in libraries that are linked from their archives.
 *
 * X(name, type, (parameters), (arguments), value of a failed call, errno) */
#ifndef STW_TESTS_FAULTS_TABLE_H
#define STW_TESTS_FAULTS_TABLE_H

/* Calls that are made all the same when they fail: what they release is released. */
#define STW_FAULTS_DONE(X)                                                                         \
    X(close, int, (int fd), (fd), -1, EIO)                                                         \
    X(fclose, int, (FILE * file), (file), EOF, ENOSPC)                                             \
    X(closedir, int, (DIR * folder), (folder), -1, EIO)

#define STW_FAULTS_LIBC(X)                                                                         \
    X(malloc, void *, (size_t n), (n), NULL, ENOMEM)                                               \
    X(calloc, void *, (size_t n, size_t size), (n, size), NULL, ENOMEM)                            \
    X(realloc, void *, (void *old, size_t n), (old, n), NULL, ENOMEM)                              \
    X(strdup, char *, (const char *text), (text), NULL, ENOMEM)                                    \
    X(posix_memalign, int, (void **out, size_t align, size_t n), (out, align, n), ENOMEM, ENOMEM)  \
    X(mmap, void *, (void *at, size_t n, int prot, int flags, int fd, off_t offset),               \
      (at, n, prot, flags, fd, offset), MAP_FAILED, ENOMEM)                                        \
    X(madvise, int, (void *at, size_t n, int advice), (at, n, advice), -1, EINVAL)                 \
    X(memfd_create, int, (const char *name, unsigned flags), (name, flags), -1, EMFILE)            \
    X(fsync, int, (int fd), (fd), -1, EIO)                                                         \
    X(fdatasync, int, (int fd), (fd), -1, EIO)                                                     \
    X(ftruncate, int, (int fd, off_t n), (fd, n), -1, ENOSPC)                                      \
    X(fallocate, int, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), -1, ENOSPC)        \
    X(posix_fadvise, int, (int fd, off_t at, off_t n, int advice), (fd, at, n, advice), EINVAL,    \
      EINVAL)                                                                                      \
    X(rename, int, (const char *from, const char *to), (from, to), -1, EIO)                        \
    X(linkat, int, (int from_folder, const char *from, int to_folder, const char *to, int flags),  \
      (from_folder, from, to_folder, to, flags), -1, EIO)                                          \
    X(unlink, int, (const char *path), (path), -1, EIO)                                            \
    X(flock, int, (int fd, int how), (fd, how), -1, ENOLCK)                                        \
    X(mkdir, int, (const char *path, mode_t mode), (path, mode), -1, ENOSPC)                       \
    X(rmdir, int, (const char *path), (path), -1, EIO)                                             \
    X(unlinkat, int, (int folder, const char *name, int how), (folder, name, how), -1, EIO)        \
    X(fdopendir, DIR *, (int fd), (fd), NULL, ENOMEM)                                              \
    X(lstat, int, (const char *path, struct stat *out), (path, out), -1, EIO)                      \
    X(getrandom, ssize_t, (void *to, size_t n, unsigned flags), (to, n, flags), -1, EAGAIN)        \
    X(fchmod, int, (int fd, mode_t mode), (fd, mode), -1, EPERM)                                   \
    X(stat, int, (const char *path, struct stat *out), (path, out), -1, EIO)                       \
    X(fstat, int, (int fd, struct stat *out), (fd, out), -1, EIO)                                  \
    X(statfs, int, (const char *path, struct statfs *out), (path, out), -1, EIO)                   \
    X(statvfs, int, (const char *path, struct statvfs *out), (path, out), -1, EIO)                 \
    X(access, int, (const char *path, int mode), (path, mode), -1, EIO)                            \
    X(realpath, char *, (const char *path, char *out), (path, out), NULL, ENOMEM)                  \
    X(readlink, ssize_t, (const char *path, char *out, size_t n), (path, out, n), -1, EIO)         \
    X(opendir, DIR *, (const char *path), (path), NULL, EMFILE)                                    \
    X(readdir, struct dirent *, (DIR * folder), (folder), NULL, EIO)                               \
    X(fopen, FILE *, (const char *path, const char *mode), (path, mode), NULL, EMFILE)             \
    X(fread, size_t, (void *to, size_t size, size_t n, FILE *file), (to, size, n, file), 0, EIO)   \
    X(fgets, char *, (char *to, int n, FILE *file), (to, n, file), NULL, EIO)                      \
    X(fflush, int, (FILE * file), (file), EOF, ENOSPC)                                             \
    X(pipe, int, (int fds[2]), (fds), -1, EMFILE)                                                  \
    X(dup2, int, (int from, int to), (from, to), -1, EMFILE)                                       \
    X(fork, pid_t, (void), (), -1, EAGAIN)                                                         \
    X(waitpid, pid_t, (pid_t pid, int *out, int options), (pid, out, options), -1, ECHILD)         \
    X(sigaction, int, (int n, const struct sigaction *new, struct sigaction *old), (n, new, old),  \
      -1, EINVAL)                                                                                  \
    X(sched_getaffinity, int, (pid_t pid, size_t n, cpu_set_t * out), (pid, n, out), -1, EINVAL)   \
    X(sched_setaffinity, int, (pid_t pid, size_t n, const cpu_set_t *set), (pid, n, set), -1,      \
      EINVAL)                                                                                      \
    X(gethostname, int, (char *out, size_t n), (out, n), -1, ENAMETOOLONG)                         \
    X(uname, int, (struct utsname * out), (out), -1, EFAULT)                                       \
    X(dlopen, void *, (const char *path, int flags), (path, flags), NULL, ENOMEM)                  \
    X(pthread_create, int,                                                                         \
      (pthread_t * out, const pthread_attr_t *how, void *(*start)(void *), void *of),              \
      (out, how, start, of), EAGAIN, EAGAIN)                                                       \
    X(pthread_setaffinity_np, int, (pthread_t thread, size_t n, const cpu_set_t *set),             \
      (thread, n, set), EINVAL, EINVAL)                                                            \
    X(pthread_condattr_setclock, int, (pthread_condattr_t * how, clockid_t clock), (how, clock),   \
      EINVAL, EINVAL)                                                                              \
    X(pthread_mutex_init, int, (pthread_mutex_t * m, const pthread_mutexattr_t *how), (m, how),    \
      ENOMEM, ENOMEM)                                                                              \
    X(pthread_cond_init, int, (pthread_cond_t * c, const pthread_condattr_t *how), (c, how),       \
      ENOMEM, ENOMEM)

#define STW_FAULTS_URING(X)                                                                        \
    X(io_uring_get_probe_ring, struct io_uring_probe *, (struct io_uring * ring), (ring), NULL, 0) \
    X(io_uring_queue_init, int, (unsigned n, struct io_uring *ring, unsigned flags),               \
      (n, ring, flags), -ENOMEM, 0)                                                                \
    X(__io_uring_get_cqe, int,                                                                     \
      (struct io_uring * ring, struct io_uring_cqe * *out, unsigned submit, unsigned wait,         \
       sigset_t *signals),                                                                         \
      (ring, out, submit, wait, signals), -EIO, 0)

#define STW_FAULTS_GLPK(X)                                                                         \
    X(glp_simplex, int, (glp_prob * p, const glp_smcp *how), (p, how), GLP_EFAIL, 0)               \
    X(glp_intopt, int, (glp_prob * p, const glp_iocp *how), (p, how), GLP_EFAIL, 0)                \
    X(glp_write_lp, int, (glp_prob * p, const glp_cpxcp *how, const char *path), (p, how, path),   \
      1, 0)

/* In the module of MPI. */
#define STW_FAULTS_MPI(X)                                                                          \
    X(MPI_Initialized, int, (int *out), (out), MPI_ERR_OTHER, 0)                                   \
    X(MPI_Init_thread, int, (int *argc, char ***argv, int wanted, int *provided),                  \
      (argc, argv, wanted, provided), MPI_ERR_OTHER, 0)                                            \
    X(MPI_Query_thread, int, (int *out), (out), MPI_ERR_OTHER, 0)                                  \
    X(MPI_Comm_set_errhandler, int, (MPI_Comm comm, MPI_Errhandler handler), (comm, handler),      \
      MPI_ERR_COMM, 0)                                                                             \
    X(MPI_Comm_rank, int, (MPI_Comm comm, int *out), (comm, out), MPI_ERR_COMM, 0)                 \
    X(MPI_Comm_size, int, (MPI_Comm comm, int *out), (comm, out), MPI_ERR_COMM, 0)                 \
    X(MPI_Test, int, (MPI_Request * request, int *done, MPI_Status *status),                       \
      (request, done, status), MPI_ERR_INTERN, 0)                                                  \
    X(MPI_Iallreduce, int,                                                                         \
      (const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,             \
       MPI_Request *request),                                                                      \
      (from, to, n, type, op, comm, request), MPI_ERR_INTERN, 0)                                   \
    X(MPI_Iallgather, int,                                                                         \
      (const void *from, int n, MPI_Datatype type, void *to, int n_to, MPI_Datatype type_to,       \
       MPI_Comm comm, MPI_Request *request),                                                       \
      (from, n, type, to, n_to, type_to, comm, request), MPI_ERR_NO_MEM, 0)                        \
    X(MPI_Ibcast, int,                                                                             \
      (void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),       \
      (data, n, type, root, comm, request), MPI_ERR_INTERN, 0)                                     \
    X(MPI_Ibarrier, int, (MPI_Comm comm, MPI_Request * request), (comm, request), MPI_ERR_INTERN,  \
      0)                                                                                           \
    X(MPI_Finalize, int, (void), (), MPI_ERR_OTHER, 0)

/* Calls that wrap.c has by hand, for their shape or for further ways in which they fail: short
 * ("read/short", "write/short", "pread/short", "pwrite/short", "io_uring/short"), interrupted
 * ("read/again", "write/again"), at the end of the file ("pread/end"), in the kernel
 * ("io_uring/result"). ferror only tells of a stream that failed, and main begins the count. */
#define STW_FAULTS_BY_HAND(X)                                                                      \
    X(read)                                                                                        \
    X(write)                                                                                       \
    X(pread)                                                                                       \
    X(pwrite)                                                                                      \
    X(open)                                                                                        \
    X(ferror)                                                                                      \
    X(fprintf)                                                                                     \
    X(printf)                                                                                      \
    X(puts)                                                                                        \
    X(putchar)                                                                                     \
    X(execl)                                                                                       \
    X(execv)                                                                                       \
    X(main)
#define STW_FAULTS_URING_BY_HAND(X) X(io_uring_submit_and_wait)

#endif
