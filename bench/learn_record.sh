#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Record FSDP2 runs of several models on this machine, for `stowage validate --learn`.
#
#     GPUS=2 bench/learn_record.sh OUT [CASES.jsonl]
#
# writes OUT/cluster.yaml (stowage calibrate; an existing one is kept) and OUT/NAME.json for each case. STOWAGE names
# the program, PYTHON a python3 with torch and transformers. learn.py compares predictions before and after learning.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?folder}
cases=${2:-$here/learn_cases.jsonl}
gpus=${GPUS:-2}
stowage=${STOWAGE:-$here/../build/bin/stowage}
python=${PYTHON:-python3}
mkdir -p "$out"
[ -e "$out/cluster.yaml" ] || "$stowage" calibrate -q -o "$out/cluster.yaml" || exit 1
failed=0
while IFS= read -r case; do
    name=$(printf '%s\n' "$case" | sed -n 's/.*"name": "\([a-z0-9]*\)".*/\1/p')
    [ -e "$out/$name.json" ] && continue
    "$stowage" record -q -o "$out/$name.json" -- "$python" -m torch.distributed.run --nproc-per-node "$gpus" \
        "$here/record_torch.py" --case "$case" >"$out/$name.log" 2>&1 </dev/null && echo "$name: recorded" ||
        { echo "$name: FAILED"; tail -n 15 "$out/$name.log"; failed=1; rm -f "$out/$name.json"; }
done <"$cases"
exit "$failed"
