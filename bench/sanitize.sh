#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Do the kernels touch memory that is not theirs, or race? compute-sanitizer's memcheck and racecheck
# over the kernels' test by parts (without powers and rates) and over runs of a tiny model whose
# tensors have odd sizes: resident, streamed, direct and CPU buckets with clipping, in fp32 and with
# bf16 parameters and a master. Ends with 77 where the tool is missing, with 1 where it found
# something or a run failed.
#
#     bench/sanitize.sh [OUT_FOLDER]      TOOLS="memcheck racecheck" LIMIT_S=120 BUDGET_S=540
#                                         KERNELS=build/tests/gpu_test_cuda_kernels SANITIZER=...
#
# CLUSTER is not needed: nothing is timed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
folder=$(dirname "$STOWAGE")
kernels=${KERNELS:-$(dirname "$folder")/tests/gpu_test_cuda_kernels}
limit=${LIMIT_S:-120}
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
if [ ! -x "$sanitizer" ]; then
    echo "compute-sanitizer is missing here (looked on PATH and at $sanitizer); SANITIZER names another place"
    exit 77
fi
out=${1:-bench/results/sanitize}
mkdir -p "$out"
if [ -z "${CLUSTER:-}" ]; then
    "$folder/stowage-run" --probe -o "$out/cluster.yaml"
    CLUSTER=$out/cluster.yaml
fi
GPUS=1
begin "$out" "$out/tiny.csv" 3
bad=0

cat >"$out/tiny.csv" <<'END'
name,shape,dtype,group
embed.weight,"[1009, 67]",BF16,embed
layers.0.attn.weight,"[331, 67]",BF16,layer
layers.0.attn.bias,"[331]",BF16,layer
layers.0.norm.weight,"[1]",BF16,layer
layers.1.attn.weight,"[331, 67]",BF16,layer
layers.1.attn.bias,"[331]",BF16,layer
layers.1.norm.weight,"[1]",BF16,layer
head.weight,"[1009, 67]",BF16,head
END

# check TOOL NAME COMMAND...
check() {
    tool=$1
    name=$2
    shift 2
    code=0
    rm -f "$out/$name.$tool.log"
    bounded timeout -k 5 "$limit" "$sanitizer" --tool "$tool" --error-exitcode 99 --log-file "$out/$name.$tool.log" \
        "$@" >"$out/$name.$tool.txt" 2>&1 || code=$?
    says=$(grep 'SUMMARY' "$out/$name.$tool.log" 2>/dev/null | tail -n 1 | sed 's/^=* *//')
    case $code in
    0) found=clean ;;
    99) found=ERRORS ;;
    124 | 137) found="no time left" ;;
    *)
        found="exit $code"
        [ -n "$says" ] || says=$(tail -n 1 "$out/$name.$tool.txt")
        ;;
    esac
    case $code in 0 | 124 | 137) ;; *) bad=$((bad + 1)) ;; esac
    line "$tool" "$name" "$found" "$says"
    row "$tool: $name" clean "$found" "" "" tiny
}

# tiny NAME OPTION...: a plan, run under each tool
tiny() {
    tiny=$1
    shift
    if ! plan "$tiny" --set prefetch.bucket=64KiB "$@"; then
        line plan "$tiny" "$failure"
        bad=$((bad + 1))
        return 0
    fi
    for tool in $tools; do
        check "$tool" "$tiny" "$folder/stowage-run" "$out/$tiny.plan.json" --backend "$backend" --steps "$steps" -o "$out/$tiny.run.json"
    done
}

tools=${TOOLS:-memcheck racecheck}
mixed="$on_gpu --set update.resident=0.25 --set update.stream=0.25 --set update.direct=0.25 --set update.cpu=0.25"
line tool what found summary
# shellcheck disable=SC2086
tiny mixed $mixed
# shellcheck disable=SC2086
tiny mixed-bf16 $mixed $with_master
# shellcheck disable=SC2086
tiny streamed $streamed
# shellcheck disable=SC2086
tiny direct $on_gpu --set optimizer.implementation=direct --set update.direct=1
for tool in $tools; do
    if [ -x "$kernels" ]; then
        for test in loading adamw norm convert seeded copies; do check "$tool" "$test" "$kernels" "$test"; done
    else
        line "$tool" kernels missing "$kernels: KERNELS names another place"
        bad=$((bad + 1))
    fi
done
show "compute-sanitizer, $machine"
[ "$bad" = 0 ] || { echo "$bad are not clean"; exit 1; }
