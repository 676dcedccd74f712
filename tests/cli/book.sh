#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A sweep over nodes says first how many to book: text, Markdown and page alike; with a price what it costs; no more than was
# planned where nothing fits.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
sweep() { "$STOWAGE" sweep --model tiny --cluster tiny.yaml --set engine=fsdp2 --time-limit 10 --vary nodes=1:4 "$@" 2>/dev/null; }
lengths="--vary batch.seq_len=64,128,256"
# shellcheck disable=SC2086
sweep $lengths --set node.price_per_gpu_hour=2 -q -o priced.html
# shellcheck disable=SC2086
sweep $lengths --set node.price_per_gpu_hour=2 -o priced.md >priced.txt
answer="Book 1 node (1 GPU) for batch.seq_len 64 to 256."
sed -n 2p priced.txt | grep -qF "$answer" || { cat priced.txt >&2; fail "text: the answer is not first"; }
sed -n 3p priced.md | grep -qF "$answer" || fail "Markdown: the answer is not first"
grep -qF "[\"line\", \"$answer\"]" priced.html || fail "page: no answer"
grep -q "^  batch.seq_len  book .*USD/h  USD per 1e9  why not fewer" priced.txt || fail "no price"
grep -q "^  64  *1 node  .* 2  .*fewest tried" priced.txt || fail "USD per hour of one GPU are not its price"
sweep >alone.txt
sed -n 2p alone.txt | grep -qF "Book 1 node (1 GPU)." || { cat alone.txt >&2; fail "counts alone"; }
# shellcheck disable=SC2086
sweep $lengths --set node.gpu.memory=110MiB >risky.txt
sed -n 2p risky.txt | grep -qF "Book 2 nodes (2 GPUs), at risk, for batch.seq_len 64 to 256." || { cat risky.txt >&2; fail "at risk"; }
# shellcheck disable=SC2086
sweep $lengths --set node.gpu.memory=70MiB >none.txt
sed -n 2p none.txt | grep -qF "Nothing that was tried fits batch.seq_len 64 to 256." || { cat none.txt >&2; fail "nothing fits"; }
grep -q "^  64  *none  4 nodes: GPU memory in " none.txt || fail "nobody says why nothing fits"
sweep --set nodes=1 >said.txt && fail "nodes is given twice"
"$STOWAGE" sweep --model tiny --cluster tiny.yaml --vary batch.seq_len=64,128 2>/dev/null | grep -q "Book " && fail "an answer without counts"
echo "book: ok"
