#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What commands print is read on a screen: 25 lines of 80 columns, whole sentences, no empty names.
# Details are behind -v, `report` and --json.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
unset COLUMNS # as in a pipe, where nothing else is said
tiny_model
tiny_cluster 1
corpus=$STW_SOURCE_DIR/tests/fuzz/corpus
bad=0

# look NAME: lines, columns and texts of NAME.txt, which has stdout and the warnings
look() {
    awk -v name="$1" -v most="${2:-25}" '
        function say(what) { print name ": " what ": " $0; bad = 1 }
        # names of users, and what the log says, are as long as they are
        function has_path(  words, n, i) {
            n = split($0, words, " ")
            for (i = 1; i <= n; i++) if (length(words[i]) > 40) return 1
            return 0
        }
        length($0) > 80 && $0 !~ /^stowage: / && !has_path() { say("more than 80 columns") }
        /\(\)/ || /\(;/ || /\( / || / \)/ { say("an empty part in brackets") }
        /on  \(/ || /""/ || / : / || /: \.$/ || /, ,/ || / ,/ || /  \./ || /[^.]\.\.$/ { say("an empty name") }
        # a sentence ends with a full stop, a row of a table does not
        /^  [A-Z].*[a-z,]  [a-z].*\.$/ && !table { say("two spaces in a sentence") }
        /\(null\)|nan|inf / { say("no figure") }
        /^ *-+(  -+)+$/ { table = 1 }
        /^$/ { table = 0 }
        END {
            if (NR > most) { print name ": " NR " lines"; bad = 1 }
            if (NR == 0) { print name ": nothing is said"; bad = 1 }
            exit bad
        }' "$1.txt" || { cat "$1.txt"; bad=1; }
}

n=0
# screen ARGUMENTS...: of stowage, with its warnings; exit codes of verdicts are fine
screen() {
    n=$((n + 1))
    code=0
    "$STOWAGE" "$@" >"$n.txt" 2>&1 || code=$?
    case $code in
    0 | 4 | 8 | 9) ;;
    5) return 0 ;; # the time was over on a busy machine
    *) cat "$n.txt" >&2; fail "exit $code: $*" ;;
    esac
    echo "$n: $*" >>screens.txt
    look "$n"
}

# plans: engines, what fits and what does not, MoE and dense, adapters, roles, NVMe, layouts
for engine in stowage fsdp2 megatron deepspeed; do
    screen plan --model tiny --cluster tiny.yaml --set engine=$engine -o $engine.json
    screen simulate $engine.json
    screen plan --model Qwen3-8B --cluster h100-80g-x8 --set engine=$engine
    screen plan --model Qwen3-32B --cluster l40s-x4 --set engine=$engine --time-limit 5
done
screen plan --model Qwen3-30B-A3B --cluster h200-x8 --set engine=megatron --set parallel.ep=8
screen plan --model tiny --cluster tiny.yaml --set engine=megatron --set parallel=auto
screen plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set trainable.lora.rank=8 --set "trainable.lora.targets=[q_proj, v_proj]"
screen plan --model tiny --cluster tiny.yaml --set node.gpu.memory=200MiB --time-limit 5
screen plan --model tiny --cluster tiny.yaml --set placement.moments=nvme
for run in fsdp2-h200x4-park rl-qwen3-8b-hybrid fsdp2-lora; do
    screen plan --model Qwen3-8B --cluster h200-x4 --run "$STW_SOURCE_DIR/models/examples/$run.yaml" -o "$run.json"
    screen simulate "$run.json"
done
grep -l "parked on the host" ./*.txt >/dev/null || fail "no summary says what is parked"

# a report has headings and all that is said; its long tables are behind --full
n=$((n + 1))
"$STOWAGE" report fsdp2.json >"$n.txt"
echo "$n: report fsdp2.json" >>screens.txt
look "$n" 45

# settings of frameworks
cp "$corpus/import/command" cmd.sh
cp "$corpus/import/hydra" hydra.sh
screen plan --from megatron:cmd.sh --cluster h100-80g-x8 -o from.json
grep -q "^  cmd.sh fits" "$n.txt" && fail "the headline names the script for the model"
grep -q "model of cmd.sh" "$n.txt" || fail "the headline has no model"
screen plan --from megatron:cmd.sh --cluster h100-80g-x8 --set node.gpu.memory=3GiB --time-limit 5
screen plan --from llamafactory:"$corpus/import/llamafactory" --cluster h200-x8 --time-limit 5
screen plan --from ms-swift:"$corpus/import/script" --cluster h200-x4 --time-limit 5
for from in megatron:cmd.sh areal:"$corpus/import/areal" verl:hydra.sh \
    ms-swift:"$corpus/import/script" llamafactory:"$corpus/import/llamafactory"; do
    screen inspect "$from"
done
cat >zero.json <<'EOJ'
{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
EOJ
screen plan --model tiny --cluster tiny.yaml --from deepspeed:zero.json
grep -q "assumed" "$n.txt" || fail "nothing is assumed"
screen plan --model tiny --cluster tiny.yaml --from deepspeed:zero.json --set batch.micro_batch=2
grep "train_micro_batch_size_per_gpu" "$n.txt" && fail "something is assumed beside a value that is set"

# the other commands
"$STOWAGE" run stowage.json --backend host --steps 2 -q -o run.json
screen run stowage.json --backend host --steps 2
screen validate stowage.json run.json
screen validate fsdp2.json "$corpus/measured/samples.csv"
screen report run.json
screen report fsdp2.json megatron.json
screen record -o recorded.json -- sh -c 'sleep 1'
[ ! -e recorded.json ] || screen report recorded.json
screen diff stowage.json fsdp2.json
screen diff fsdp2.json stowage.json
screen diff stowage.json stowage.json
screen explain "$corpus/failure/torch22_backward" fsdp2.json
screen explain "$corpus/failure/kernel_cgroup" fsdp2.json
screen sweep --model tiny --cluster tiny.yaml --vary nodes=1:16 --vary batch.seq_len=1k:8k --time-limit 5
screen sweep --model tiny --cluster tiny.yaml --vary engine=stowage,fsdp2,megatron,deepspeed --vary batch.seq_len=1k:4k
screen size --model tiny --gpus h100-80g,h200,l40s --time-limit 5
screen size --model tiny,Qwen3-0.6B --gpus h100-80g,l40s --time-limit 5
screen models
screen models qwen2.5-coder
screen clusters
screen clusters h100
for model in Qwen3-8B Qwen3-30B-A3B DeepSeek-V3 tiny; do screen inspect $model; done
mkdir -p empty
screen state list empty
screen state verify empty

# help: 80 columns, as many lines as there are options
for command in plan simulate run validate size sweep diff inspect models clusters calibrate record state convert report explain help; do
    n=$((n + 1))
    "$STOWAGE" help $command >"$n.txt" 2>/dev/null || "$STOWAGE" --help >"$n.txt"
    echo "$n: help $command" >>screens.txt
    look "$n" 60
done
[ "$bad" = 0 ] || { cat screens.txt; fail "summaries"; }

# -v and the report have what the screen leaves out
for engine in fsdp2 megatron; do
    for all in -v --full; do
        "$STOWAGE" plan $all --model tiny --cluster tiny.yaml --set engine=$engine 2>/dev/null >all.txt
        grep -q "^State placement" all.txt || fail "$all lacks the placement"
    done
    "$STOWAGE" report --full $engine.json >report.txt
    grep -q "^Peak memory by component" report.txt || fail "the report lacks components"
    head -n 20 report.txt | grep -q "Throughput: .*MFU" || fail "the report does not begin with what it costs"
done
grep -q "executed by fsdp2\|forward_backward *fsdp2" report.txt && fail "a plan of another engine is executed by fsdp2"
"$STOWAGE" report --full stowage.json | grep "^  forward_backward  *fsdp2" && fail "a stowage plan is executed by fsdp2"
# figures are readable: 2 TB of NVMe are not 1953125000 KiB
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set node.nvme.capacity=2TB -q -o two.json
"$STOWAGE" diff stowage.json two.json -v >diff.txt
grep -q "1953125000" diff.txt && fail "a size in KiB"
grep -q "2 TB" diff.txt || fail "no size of the NVMe"
echo "summaries: ok ($n screens)"
