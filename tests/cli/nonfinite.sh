#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A gradient that is NaN or infinite: what a run makes of it, and --error-if-nonfinite.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" >/dev/null; }
plan --set node.gpus=1 -o gpu.json
plan --set node.gpus=1 --set placement.moments=host -o host.json
plan --set node.gpus=1 --set placement.moments=nvme -o nvme.json
plan --set node.gpus=1 --set optimizer.clip_norm=0 -o free.json
rm -rf state
mkdir state
run() { "$STOWAGE" run "$@" --backend host --nvme state --allow-tmpfs --steps 4; }

# The same bits in every place; all components are NaN alike. The warning names the step.
for name in gpu host nvme; do
    run $name.json --set-gradient 3:1000=nan -o $name-nan.json -q 2>warned.txt || fail "$name: nan"
    grep -q "step 3: the gradient norm is NaN" warned.txt || fail "$name: no warning"
    run $name.json --set-gradient 4:1000=-inf -o $name-inf.json -q 2>warned.txt || fail "$name: -inf"
    grep -q "step 4: the gradient norm is infinite" warned.txt || fail "$name: no warning"
    for what in nan inf; do
        [ "$(digests $name-$what.json)" = "$(digests gpu-$what.json)" ] || fail "$name, $what: other bits"
    done
done
[ "$(sed -n '/"digest": {/,/}/s/.*: "\(.*\)".*/\1/p' gpu-nan.json | sort -u | wc -l)" = 1 ] || fail "not all is NaN"
grep -q '"grad_norm": "Infinity"' gpu-inf.json && grep -q '"clip_factor": 0.0' gpu-inf.json || fail "norm of inf"
grep -q '"first_nonfinite_step": 3' gpu-nan.json || fail "no first step"
"$STOWAGE" report gpu-inf.json >report.txt
grep -q "Gradient norm of the last step: infinite" report.txt || fail "report of inf"
grep -q "of 1 of 4 steps, the first is step 4" report.txt || fail "report of steps"
run gpu.json --set-gradient 3:1000=nan 2>/dev/null >summary.txt || fail "summary"
grep -q "gradient norm: not finite in 1 of 4 steps, first in step 3" summary.txt || fail "summary"
run gpu.json --set-gradient 4:0=nan -o last.json -q 2>/dev/null || fail "last"
grep -q '"grad_norm": "NaN"' last.json && grep -q '"clip_factor": "NaN"' last.json || fail "norm of NaN"
sed 's/"grad_norm": "NaN"/"grad_norm": "nan"/' last.json >wrong.json
expect 3 'grad_norm' "$STOWAGE" report wrong.json

# A step that is refused was not begun; state on NVMe is that of the step before.
for name in gpu host free; do
    expect 3 "step 3: the gradient of element 1000 of model.embed_tokens.weight is NaN (parameter group 0, bucket" \
        run $name.json --set-gradient 3:1000=nan --error-if-nonfinite
done
expect 3 "The step was not begun: the state is that of step 2" \
    run nvme.json --set-gradient 3:1000=inf --error-if-nonfinite --keep-state
"$STOWAGE" state verify state >verified.txt || fail "the state is damaged"
"$STOWAGE" state list state --json | grep -q '"step": 2' || fail "not the state of step 2"
"$STOWAGE" state remove state >/dev/null
run gpu.json --error-if-nonfinite -o looked.json -q || fail "finite gradients are refused"
run gpu.json -o plain.json -q || fail "plain"
[ "$(digests looked.json)" = "$(digests plain.json)" ] || fail "looking changes bits"

for bad in 3 3:4 0:1=nan 3:1= 3:1=NaNa 3:x=1 a:1=nan 3:1=1e3x -1:1=nan; do
    expect 2 "expected STEP:ELEMENT=VALUE" run gpu.json --set-gradient "$bad"
done
expect 2 "the run has 4" run gpu.json --set-gradient 5:0=nan
expect 2 "the model has 5196544" run gpu.json --set-gradient 1:5196544=nan

# Two ranks: the bits of one, and the rank that has it is named by all.
needs_mpi
plan -o ranks.json
two() { "$mpirun" -n 2 "$STOWAGE_RUN" ranks.json --backend host --steps 4 "$@"; }
two --set-gradient 3:1000=nan -o ranks-nan.json -q 2>warned.txt || fail "two ranks, nan"
[ "$(grep -c "step 3: the gradient norm is NaN" warned.txt)" = 1 ] || fail "two ranks warn"
two --set-gradient 4:1000=-inf -o ranks-inf.json -q 2>warned.txt || fail "two ranks, inf"
for what in nan inf; do
    [ "$(digests ranks-$what.json)" = "$(digests gpu-$what.json)" ] || fail "two ranks, $what: other bits"
done
grep -q '"grad_norm": "Infinity"' ranks-inf.json || fail "two ranks, norm of inf"
found=0
for element in 0 5196543; do
    expect 3 "step 2: the gradient of element" two --set-gradient 2:$element=nan --error-if-nonfinite
    grep -q "rank 1: gradients: step 2" expect.out && found=1 || true
done
[ $found = 1 ] || fail "rank 1 is not named"
two --error-if-nonfinite -o looked.json -q || fail "two ranks, finite gradients are refused"
[ "$(digests looked.json)" = "$(digests plain.json)" ] || fail "two ranks, looking changes bits"
