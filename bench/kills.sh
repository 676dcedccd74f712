#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long form of tests/cli/checkpoint_kills.sh: SIGKILL at 300 random moments (KILLS), 1 and 2 ranks, while every step is
# saved. Usage: bench/kills.sh BUILD, in an empty folder on the disk in question.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
export STOWAGE="$build/bin/stowage" STW_SOURCE_DIR="$root" STW_BUILD_DIR="$build" STW_WITH_MPI=1
export KILLS="${KILLS:-300}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
exec sh "$root/tests/cli/checkpoint_kills.sh"
