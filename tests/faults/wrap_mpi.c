/* SPDX-License-Identifier: Apache-2.0 */
/* The wrappers of table.h for the module of MPI. */
#include <errno.h>
#include <mpi.h>

#include "tests/faults/faults.h"
#include "tests/faults/table.h"

STW_FAULTS_MPI(STW_FAULT_WRAP)
