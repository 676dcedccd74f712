#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Does every update engine give the bits of torch.optim.AdamW(fused=True) on the GPU? The same seeded
# fp32 weights and gradients, STEPS steps without clipping, for each weight decay; then once with
# parameter groups (no decay for tensors of one dimension and for *.bias). Digests of parameters and
# both moments cover every element (backend/element.h). Also says where the device's float powers
# differ from rounded double ones: there an implementation that rounds them itself has other bias
# corrections and hence other bits (STEPS=120 passes the first such step of 0.999). Exits 1 where bits
# differ.
#
#     bench/bits.sh [OUT_FOLDER]      MODEL=Qwen3-0.6B STEPS=5 DECAYS="0 0.1" POWERS=10000
#                                     PLANS="resident stream direct cpu nvme mix" TORCH_DEVICE=cuda
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/bits}" Qwen3-0.6B 5
plans=${PLANS:-resident stream direct cpu nvme mix}
device=${TORCH_DEVICE:-cuda}
decays=${DECAYS:-0 0.1}
differing=0

"$STOWAGE" inspect "$model" --tensors "$out/tensors.csv" >/dev/null

# options_of PLAN: as words
options_of() {
    case $1 in
    resident) echo "$on_gpu --set placement.moments=gpu --set optimizer.implementation=fused" ;;
    stream) echo "$streamed" ;;
    direct) echo "$on_gpu --set optimizer.implementation=direct --set update.direct=1" ;;
    cpu) echo "$on_gpu --set placement.moments=host --set optimizer.implementation=cpu" ;;
    nvme) echo "$on_gpu --set placement.moments=nvme" ;;
    mix) echo "$on_gpu --set update.resident=0.25 --set update.stream=0.25 --set update.direct=0.25 --set update.cpu=0.25" ;;
    esac
}

# compare NAME WHAT DECAY REFERENCE OPTION...
compare() {
    compared=$1
    what=$2
    decay=$3
    reference=$4
    shift 4
    if ! measure "$compared" "$steps" run --set optimizer.clip_norm=none --set "optimizer.weight_decay=$decay" "$@"; then
        line "$what" "$decay" "$failure"
        differing=$((differing + 1))
        return 0
    fi
    found="$what	$decay"
    equals=0
    for part in params exp_avg exp_avg_sq; do
        wanted=$(figure "$reference" "digest.$part")
        is=$(ran "$compared" "verify.digest.$part")
        if [ "$is" = "$wanted" ] && [ "$is" != "?" ]; then
            equals=$((equals + 1))
            found="$found	equal"
        else
            differing=$((differing + 1))
            found="$found	DIFFERS"
        fi
    done
    row "digests of params and moments that equal torch fused AdamW: $what; weight decay $decay" 3 "$equals" "" digests
    line "$found	$(ran "$compared" verify.mismatched)	$("$python" "$bench/figures.py" updates "$out/$compared.plan.json")"
}

# torch_bits NAME OPTION...: $out/NAME.json
torch_bits() {
    name=$1
    shift
    logged "$out/$name.txt" "torch" "$python" "$bench/torch_bits.py" --tensors "$out/tensors.csv" --device "$device" \
        --steps "$steps" "$@" -o "$out/$name.json" && return 0
    echo "$name: $failure"
    line "torch" "?" "$failure"
    return 1
}

line plan decay params exp_avg exp_avg_sq mismatched updates
powers=${POWERS:-10000}
for decay in $decays; do
    torch_bits "torch-$decay" --weight-decay "$decay" --powers "$powers" || { differing=1; continue; }
    for plan in $plans; do
        # shellcheck disable=SC2046
        compare "$plan-$decay" "$plan" "$decay" "$out/torch-$decay.json" $(options_of "$plan")
    done
done

cat >"$out/groups.yaml" <<'END'
optimizer:
  groups:
    - match: [1d, "*.bias"]
      weight_decay: 0
END
if torch_bits torch-groups --weight-decay 0.1 --no-decay 1d --no-decay '*.bias'; then
    # shellcheck disable=SC2046
    compare groups "stream with groups" 0.1 "$out/torch-groups.json" --run "$out/groups.yaml" $(options_of stream)
    echo "groups: $(figure "$out/torch-groups.json" tensors_without_decay) tensors without decay"
else
    differing=$((differing + 1))
fi

reference=$out/torch-groups.json
show "bits against torch $(figure "$reference" torch) fused AdamW on $(figure "$reference" device), $model, $steps steps"
for decay in $decays; do
    echo "steps 1..$powers whose float power on the device (torch.pow there) is not the rounded double power:"
    for i in 0 1; do
        at="powers.$i"
        figure "$out/torch-$decay.json" "$at.beta" "$at.power_differs" "$at.first_that_differs" \
            "$at.bias_correction_differs" "$at.first_bias_correction" | while read -r beta n first m bias; do
            echo "  beta $beta: $n, the first is $first; in 1 - power: $m, the first is $bias"
            row "float powers of beta $beta that differ in steps 1..$powers" 0 "$n" "" steps
        done
    done
    break
done
[ "$differing" = 0 ] || { echo "$differing digests differ or are missing"; exit 1; }
