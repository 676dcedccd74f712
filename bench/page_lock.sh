#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How much faster than cudaHostAlloc is memory page-locked? Runs the program page_lock, which the build
# makes where CUDA is in it.
#
#     bench/page_lock.sh [OUT_FOLDER]      BYTES="32 GiB" ROUNDS=1 PAGE_LOCK=build/bench/page_lock
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
start "${1:-bench/results/page_lock}"
model=
program=${PAGE_LOCK:-$(dirname "$(dirname "$STOWAGE")")/bench/page_lock}
if ! bounded "$program" "${BYTES:-32 GiB}" "${ROUNDS:-1}" >"$out/page_lock.json" 2>"$out/page_lock.txt"; then
    cat "$out/page_lock.txt"
    exit 1
fi
gpu=$(figure "$out/page_lock.json" device)
machine=${MACHINE:-"1 x ${gpu#NVIDIA }"}
size=$(gib "$(figure "$out/page_lock.json" bytes)")
own=$(figure "$out/page_lock.json" stowage_s)
cuda=$(figure "$out/page_lock.json" cuda_host_alloc_s)
line what "seconds" "GiB/s"
line "Stowage, first time" "$(calc %.3f "$(figure "$out/page_lock.json" stowage_first_s)")" \
    "$(calc %.2f "$size / $(figure "$out/page_lock.json" stowage_first_s)")"
line "Stowage" "$(calc %.3f "$own")" "$(calc %.2f "$size / $own")"
line "cudaHostAlloc" "$(calc %.3f "$cuda")" "$(calc %.2f "$size / $cuda")"
line "ratio" "$(calc %.2f "$cuda / $own")"
row "page-locking $size GiB" "" "$(calc %.3f "$own")" "" s
row "page-locking $size GiB by cudaHostAlloc" "" "$(calc %.3f "$cuda")" "" s
row "cudaHostAlloc over Stowage's page-locking" "" "$(calc %.2f "$cuda / $own")" "" ratio
show "page-locking $size GiB with $(figure "$out/page_lock.json" threads) threads, $machine"
