#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A run that is saved and resumed at 1, 2, 4, 3 and 1 ranks, in another placement each time, ends in the digests of the one
# that was not interrupted: fp32; bf16 with master; experts cut by ep; state on NVMe.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
tiny_model

# round_trip NAME COMMON-SETTINGS -- RANKS:SETTINGS...
round_trip() {
    name=$1 common=$2
    shift 3
    rm -rf "save-$name"
    # shellcheck disable=SC2086
    plan_of "$name" 1 $common
    run_of "$name" 1 --steps $((2 * $#)) || { cat "run-$name.txt"; fail "$name, uninterrupted"; }
    reference=$(all_digests "run-$name.json")
    step=0
    for leg in "$@"; do
        ranks=${leg%%:*}
        # shellcheck disable=SC2046,SC2086
        plan_of "$name-$ranks" "$ranks" $common $(echo "${leg#*:}" | tr , ' ')
        resume=
        [ "$step" = 0 ] || resume="--resume save-$name"
        step=$((step + 2))
        # shellcheck disable=SC2086
        run_of "$name-$ranks" "$ranks" --steps "$step" --checkpoint "save-$name" $resume --nvme . --allow-tmpfs ||
            { cat "run-$name-$ranks.txt"; fail "$name on $ranks ranks to step $step"; }
        ! grep -q "was not saved" "run-$name-$ranks.txt" || { cat "run-$name-$ranks.txt"; fail "$name: not saved"; }
    done
    # a resumed run has fewer samples than steps, and its memory growth begins at its own first steps
    "$STOWAGE" validate "plan-$name-$ranks.json" "run-$name-$ranks.json" >validated.txt 2>&1 || [ $? = 8 ] ||
        { cat validated.txt; fail "$name: validate after a resume"; }
    "$STOWAGE" report "run-$name-$ranks.json" | grep -q "resumed after optimizer step $((step - 2)) of $step" ||
        { "$STOWAGE" report "run-$name-$ranks.json"; fail "$name: report after a resume"; }
    found=$(all_digests "run-$name-$ranks.json")
    [ "$found" = "$reference" ] || fail "$name: $found, expected $reference"
    echo "$name: $found after step $step"
}

round_trip fp32 "precision.params=fp32" -- 1:placement.moments=host 2:placement.moments=gpu \
    4:update.cpu=1,parallel.dp_replicate=2 3:placement.moments=host,placement.params=host 1:placement.moments=nvme
round_trip bf16 "precision.params=bf16 precision.master=fp32 optimizer.clip_norm=1" -- 1:placement.moments=gpu \
    2:placement.moments=nvme 4:placement.moments=host 3:placement.moments=gpu 1:update.direct=1
model=moe
moe_model
round_trip moe "precision.params=bf16 precision.master=fp32" -- 1:placement.moments=host \
    2:parallel.ep=2,placement.moments=gpu 4:parallel.ep=4,placement.moments=nvme 3:placement.moments=host \
    1:placement.moments=gpu
# experts cut by ep, and 4 ranks of 2 x 2: ranks with different sets of state
round_trip cut "precision.params=bf16 precision.master=fp32 placement.moments=host" -- 4:parallel.ep=2 2:parallel.ep=2 4:parallel.ep=4
model=tiny

# Moments of another precision are converted; what makes the state another one is refused by key, with both values.
plan_of half 1 precision.params=bf16 precision.master=fp32 precision.exp_avg=bf16 precision.exp_avg_sq=bf16
run_of half 1 --steps 12 --resume save-bf16 || { cat run-half.txt; fail "moments in bf16"; }
plan_of whole 1 precision.params=fp32
run_of whole 1 --steps 14 --resume save-bf16 || { cat run-whole.txt; fail "bf16 with master as fp32"; }
grep -q "14 steps, of which 10 are the checkpoint's" run-whole.txt || { cat run-whole.txt; fail "steps of a resumed run"; }
growth=$(member run-whole.json host_growth_bytes)
[ "${growth%.*}" -lt 50000000 ] || fail "the 4 steps of a resumed run grow by $growth bytes"
for other in "optimizer.betas=[0.9,0.95]:optimizer.betas.1: found 0.999 in the checkpoint .* expected 0.95" \
    "optimizer.weight_decay=0.5:optimizer.weight_decay: found .* expected 0.5" "optimizer.eps=1e-6:optimizer.eps: found"; do
    plan_of other 1 precision.params=bf16 precision.master=fp32 optimizer.clip_norm=1 "${other%%:*}"
    expect 3 "${other#*:}" "$STOWAGE" run plan-other.json --backend host --steps 12 --resume save-bf16
done
plan_of other 1 precision.params=bf16 precision.master=fp32 optimizer.clip_norm=1 optimizer.lr=5e-5
run_of other 1 --steps 12 --resume save-bf16 || { cat run-other.txt; fail "another learning rate"; }
grep -q "optimizer.lr: the checkpoint has .*, the plan 5e-05; the checkpoint's counts" run-other.txt || { cat run-other.txt; fail "rate"; }
model=moe
plan_of moe2 1 precision.params=bf16 precision.master=fp32
expect 3 "model.digest: found" "$STOWAGE" run plan-moe2.json --backend host --steps 12 --resume save-bf16
model=tiny
expect 3 "found no checkpoint" "$STOWAGE" run plan-bf16.json --backend host --resume tiny
expect 2 "at least 10" "$STOWAGE" run plan-bf16.json --backend host --steps 4 --resume save-bf16
expect 3 "\-\-seed: found 1 in the checkpoint" "$STOWAGE" run plan-bf16.json --backend host --steps 12 --seed 2 --resume save-bf16

# The model part is what other readers of such folders see.
if python3 -c "import safetensors" 2>/dev/null; then
    python3 - save-bf16/step-00000010 save-moe/step-00000010 <<'EOP' || fail "safetensors"
import json, sys
from safetensors import safe_open
for folder in sys.argv[1:]:
    index = json.load(open(folder + "/model.safetensors.index.json"))["weight_map"]
    for file in set(index.values()):
        with safe_open(folder + "/" + file, "np") as f:
            assert sorted(f.keys()) == sorted(k for k, v in index.items() if v == file)
    assert json.load(open(folder + "/config.json"))["model_type"].startswith("qwen3")
assert "model.layers.0.mlp.experts.7.down_proj.weight" in index
EOP
fi
echo "checkpoint: ok"
