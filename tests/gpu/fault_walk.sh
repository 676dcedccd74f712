#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Calls of CUDA that fail one by one in a run on one GPU, and calls of NCCL on one of two ranks where
# there are two GPUs: an error, nothing half-written, no hang.
set -eu
n=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
[ "$n" -gt 0 ] && [ "$STW_WITH_CUDA" = ON ] || { echo "no GPU, or no CUDA in this build"; exit 77; }
walk() {
    "$STW_BUILD_DIR/tests/faults/fault_walk" "$@" "$STW_BUILD_DIR/faults/bin" "$STW_SOURCE_DIR/models"
}
walk -t 120 -c "run cuda"
[ "$n" -lt 2 ] || walk -m 4 -c "run nccl"
