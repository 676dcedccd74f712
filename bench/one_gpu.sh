#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One GPU: calibrate, plan a streamed optimizer step, run it on CUDA and on the host backend, hold
# prediction against measurement, and see that falsified plans are found. Prints a table last.
#
#     bench/one_gpu.sh [OUT_FOLDER]          MODEL=Qwen3-4B STEPS=12 STOWAGE=build/bin/stowage
set -eu
stowage=${STOWAGE:-build/bin/stowage}
model=${MODEL:-Qwen3-4B}
steps=${STEPS:-12}
out=${1:-bench/results/one_gpu}
mkdir -p "$out"

member() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | head -n 1; }
digests() { grep -A 4 '"digest"' "$1" | grep -E '"(params|exp_avg|exp_avg_sq)"' | tr -d ' ,\n'; }
code() { "$@" >"$out/last.txt" 2>&1 && echo 0 || echo $?; }

"$stowage" --version
"$stowage" calibrate --quick -o "$out/cluster.yaml"
cat "$out/cluster.yaml"
streamed="--set placement.params=gpu --set placement.grads=gpu --set placement.moments=host --set optimizer.implementation=streamed"
# shellcheck disable=SC2086
"$stowage" plan --model "$model" --cluster "$out/cluster.yaml" $streamed -o "$out/plan.json"
"$stowage" simulate "$out/plan.json" --json >"$out/simulated.json"
"$stowage" run "$out/plan.json" --backend cuda --steps "$steps" --ceiling -o "$out/run.json"
"$stowage" validate "$out/plan.json" "$out/run.json" || echo "validate: exit $?"

# the same bits from the host backend, and from other placements
"$stowage" run "$out/plan.json" --backend cuda --steps 5 -o "$out/cuda5.json" >/dev/null
"$stowage" run "$out/plan.json" --backend host --steps 5 -o "$out/host5.json" >/dev/null
"$stowage" plan --model "$model" --cluster "$out/cluster.yaml" --set placement.moments=gpu -o "$out/resident.json" >/dev/null
"$stowage" run "$out/resident.json" --backend cuda --steps 5 -o "$out/resident5.json" >/dev/null
"$stowage" validate "$out/resident.json" "$out/resident5.json" >"$out/resident.txt" || echo "validate resident: exit $?"
"$stowage" plan --model "$model" --cluster "$out/cluster.yaml" --set node.gpu.memory=60GiB -o "$out/mixed.json"
"$stowage" run "$out/mixed.json" --backend cuda --steps 5 -o "$out/mixed5.json" >/dev/null
"$stowage" validate "$out/mixed.json" "$out/mixed5.json" >"$out/mixed.txt" || echo "validate mixed: exit $?"

# what a user gets who asks for nothing
"$stowage" plan --model "$model" --cluster "$out/cluster.yaml" -o "$out/default.json" >/dev/null
"$stowage" run "$out/default.json" --backend cuda --steps 5 -o "$out/default5.json" >/dev/null
"$stowage" validate "$out/default.json" "$out/default5.json" >"$out/default.txt" || echo "validate default: exit $?"

# falsified: a plan made with twice the bandwidth, a plan with a byte count 5% off
sed 's/both: [0-9.]* GB/both: 100 GB/; s/h2d: [0-9.]* GB/h2d: 110 GB/; s/d2h: [0-9.]* GB/d2h: 110 GB/; s/dma: [0-9.]* GB/dma: 400 GB/; s/bandwidth: [0-9.]* GB/bandwidth: 500 GB/' \
    "$out/cluster.yaml" >"$out/falsified.yaml"
ring() { sed -n "/^  \"prefetch\"/,/}/s/^ *\"$1\": *\([0-9]*\),\{0,1\}\$/\1/p" "$out/plan.json"; }
bucket=$(ring bucket_bytes)
depth=$(ring depth)
# shellcheck disable=SC2086
"$stowage" plan --model "$model" --cluster "$out/falsified.yaml" $streamed --set "prefetch.bucket=$bucket" --set "prefetch.depth=$depth" -o "$out/fast.json" >/dev/null
allocated=$(member "$out/plan.json" allocated)
sed "s/\"allocated\": $allocated/\"allocated\": $((allocated + allocated / 20))/" "$out/plan.json" >"$out/bytes.json"
fast=$(code "$stowage" validate "$out/fast.json" "$out/run.json")
bytes=$(code "$stowage" validate "$out/bytes.json" "$out/run.json")
genuine=$(code "$stowage" validate "$out/plan.json" "$out/run.json")

# seconds FILE: of the optimizer step
seconds() { sed -n 's/^ *"optimizer_step": *\([0-9]*\.[0-9e-]*\),\{0,1\}$/\1/p' "$1" | head -n 1; }
line() { printf '%-34s %s\n' "$1" "$2"; }

echo
echo "== one GPU, $model, moments streamed =="
line "staging on the GPU" "$depth x $bucket B"
line "step, planned (s)" "$(seconds "$out/plan.json")"
line "step, simulated (s)" "$(seconds "$out/simulated.json")"
line "step, measured (s, median)" "$(seconds "$out/run.json")"
line "its copies alone (s, median)" "$(member "$out/run.json" copies_s)"
line "parameters per second" "$(member "$out/run.json" params_per_s)"
line "bytes per second up, down" "$(member "$out/run.json" bytes_per_s_up), $(member "$out/run.json" bytes_per_s_down)"
line "link, both ways at once (calibrated)" "$(sed -n 's/^ *both: \([^#]*\).*/\1/p' "$out/cluster.yaml")"
for name in resident mixed default; do
    line "$name: step planned, measured (s)" "$(seconds "$out/$name.json"), $(seconds "$out/${name}5.json")"
done
line "digests cuda, streamed" "$(digests "$out/cuda5.json")"
line "digests host, streamed" "$(digests "$out/host5.json")"
line "digests cuda, resident" "$(digests "$out/resident5.json")"
line "digests cuda, mixed" "$(digests "$out/mixed5.json")"
line "digests cuda, default" "$(digests "$out/default5.json")"
line "validate: genuine" "exit $genuine"
line "validate: falsified bandwidth" "exit $fast"
line "validate: falsified bytes" "exit $bytes"
