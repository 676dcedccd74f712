#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How fast are page-cached weights loaded, with how much host memory, beside torch's FSDP2 broadcast
# from rank 0? Each model is written as bf16 safetensors (seeded values) into SCRATCH and loaded by
# each method. The first load of a method warms the page cache; the median of LOADS more counts.
#
#     bench/loads.sh [OUT_FOLDER]      MODELS="Qwen3-8B" METHODS="rank0_broadcast sharded_read node_leader"
#                                      SCRATCH=/dev/shm/stowage-loads LOADS=3 TORCH=1
#                                      PUBLISHED=1: files with published names (experts one by one ...)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/loads}" Qwen3-8B 1
scratch=${SCRATCH:-/dev/shm/stowage-loads}
writer=${WRITER:-$(dirname "$CEILING")/write_safetensors}
loads=${LOADS:-3}
trap 'rm -rf "$scratch"' EXIT
few_bytes="--set precision.params=bf16 --set precision.grads=bf16 --set precision.exp_avg=bf16 --set precision.exp_avg_sq=bf16"

line model method "load (s): predicted" measured off GB/s "host GiB: predicted" measured validate
for model in ${MODELS:-$model}; do
    rm -rf "$scratch"
    logged "$out/write-$model.txt" write "$writer" ${PUBLISHED:+--published} "$model" "$scratch" || {
        line "$model" "$failure"
        continue
    }
    bytes=$(cat "$scratch"/*.safetensors | wc -c)
    for method in ${METHODS:-rank0_broadcast sharded_read node_leader}; do
        name="$model-$method"
        samples=
        for load in $(seq 0 "$loads"); do
            # shellcheck disable=SC2086
            measure "$name" 1 run $few_bytes --set placement.params=gpu --set placement.grads=gpu \
                --set placement.moments=gpu --set "load.method=$method" \
                --set "load.weights=$scratch" --set load.page_cached=true || break
            [ "$load" = 0 ] || samples="$samples $(ran "$name" time_s.load)"
        done
        median=$(echo "$samples" | tr ' ' '\n' | grep . | sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print "?" }')
        predicted=$(planned "$name" time_s.load)
        rate=$(calc %.1f "$bytes / $median / 1e9")
        line "$model" "$method" "$(calc %.3f "$predicted")" "$(calc %.3f "$median")" "$(off "$predicted" "$median")" "$rate" \
            "$(gib "$(planned "$name" peaks.host_bytes.load)")" "$(gib "$(ran "$name" peaks.host_bytes.load)")" "exit $verdict"
        row "load by $method" "$predicted" "$median" "" s
        row "load by $method: rate" "" "$rate" "" GB/s
    done
    [ "${TORCH:-1}" = 1 ] || continue
    if logged "$out/torch-$model.txt" torch "$python" -m torch.distributed.run \
        --nproc-per-node "$gpus" "$bench/loads_torch.py" "$scratch" -o "$out/torch-$model.json"; then
        seconds=$(figure "$out/torch-$model.json" load_s)
        rate=$(calc %.1f "$bytes / $seconds / 1e9")
        line "$model" "torch broadcast" "" "$(calc %.3f "$seconds")" "" "$rate" "" \
            "$(gib "$(figure "$out/torch-$model.json" max_rss_bytes.0)") on rank 0"
        row "load by torch's broadcast from rank 0" "" "$seconds" "" s
    else
        line "$model" "torch broadcast" "$failure"
    fi
done
show "loads of page-cached weights, $machine"
