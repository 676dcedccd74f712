#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two ranks over NCCL, started as torchrun starts them: one that is killed, stopped or asleep, or has another
# plan or version, is named by the other within the deadline plus 10 s.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
[ "${STW_WITH_CUDA:-OFF}" != OFF ] && [ "${STW_WITH_CUDA:-0}" != 0 ] || { echo "no CUDA in this build"; exit 77; }
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
[ "${gpus:-0}" -ge 2 ] || { echo "found ${gpus:-0} GPUs, two are needed"; exit 77; }
BACKEND=cuda RANKS=2 sh "$STW_SOURCE_DIR/bench/ranks.sh" table || fail "a rank hangs or is not named"
echo "ranks: ok"
