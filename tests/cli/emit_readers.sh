#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `--emit` writes means to other readers what the file meant: bash, PyYAML (where it is installed) and Python's json read
# files with hostile values before and after. bench/emit_readers.py has any number of random ones.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
command -v bash >/dev/null || exit 77
CLUSTER="$STW_SOURCE_DIR/models/examples/h100-80g-x8.yaml"
emit() { # FRAMEWORK FILE OPTION...: the settings in out.FILE, what is said of them in notes.txt
    framework=$1 file=$2
    shift 2
    planned "$STOWAGE" plan --from "$framework:$file" --cluster "$CLUSTER" "$@" --emit "$framework:out.$file" -q >notes.txt 2>err.txt ||
        fail "$file: $(cat err.txt)"
}

# a script: its quotes, commands and comments stay, whether something changes or not
cat >launch.sh <<'EOS'
#!/bin/bash
# costs $5; --seq-length 7 is for others
set -eu
mkdir -p logs
python3 convert.py --tensor-model-parallel-size 1 --seq-length 5
MODEL=(--num-layers 8 --hidden-size 512   # small
  --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL[@]}" \
  --micro-batch-size 2 --global-batch-size 64 --use-distributed-optimizer \
  --save "out-$(date +%Y)" --load '$HOME/ck' \
  --wandb-exp-name "a  \"b\" `echo c`" 2>&1 | tee logs/x.log
echo done $?
EOS
emit megatron launch.sh --set nodes=1
cmp -s launch.sh out.launch.sh || fail "nothing changed, and other bytes: $(diff launch.sh out.launch.sh)"
grep -q '^No changes against launch.sh$' notes.txt || fail "$(cat notes.txt)"
emit megatron launch.sh --set nodes=1 --set parallel.tp=2 --set megatron.distributed_optimizer=false --set batch.micro_batch=4
sed -e '2a export CUDA_DEVICE_MAX_CONNECTIONS=1' -e 's/micro-batch-size 2/micro-batch-size 4/; s/ --use-distributed-optimizer / /' \
    -e 's/`" 2>/`" --tensor-model-parallel-size 2 2>/' launch.sh >expected.sh
diff expected.sh out.launch.sh >diff.txt || fail "other lines: $(cat diff.txt)"

# YAML: a text of several lines keeps its line ends, strings stay strings, comments stay
cat >run.yaml <<'EOS'
# my run
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
finetuning_type: full   # all of it
bf16: true
system: |
  You are "it": # no comment

    with $HOME
note: "1e5"
when: '2020-01-01'
"we ird: key": [1, "2", {a: b}]
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 1024
dataset: yes
per_device_train_batch_size: 1 # small
gradient_accumulation_steps: 2
EOS
emit llamafactory run.yaml --set nodes=1 --set batch.micro_batch=2 --set optimizer.clip_norm=0.00001
sed 's/^\(per_device_train_batch_size:\) 1 /\1 2 /' run.yaml >expected.yaml
echo 'max_grad_norm: 1.0e-05' >>expected.yaml # a number for every reader
diff expected.yaml out.run.yaml >diff.txt || fail "other lines: $(cat diff.txt)"

# JSON: keys and strings keep their escapes
printf '{\n\t"zero_optimization": {"stage": 3}, "bf16": {"enabled": true},\n\t"a \\"q\\" \\\\": "\\u00e9\\n", "k": {"x\\ty": [1, {"z": null}]},\n\t"train_micro_batch_size_per_gpu": "auto"\n}\n' >ds.json
emit deepspeed ds.json --model Qwen3-0.6B --set nodes=1 --set batch.seq_len=1024 --set recompute.granularity=full --set deepspeed.zero_stage=2
sed 's/"stage": 2/"stage": 3/' out.ds.json | diff ds.json - >diff.txt || fail "other text: $(cat diff.txt)"
python3 -c 'import json; json.load(open("out.ds.json"))' || fail "no JSON"

# random ones
python3 "$STW_SOURCE_DIR/bench/emit_readers.py" "$STOWAGE" 32 7 "$PWD/files" >files.txt || fail "$(cat files.txt)"
compared=$(sed -n 's/^.* \([0-9]*\) changed.*$/\1/p' files.txt | awk '{ n += $1 } END { print n + 0 }')
[ "$compared" -ge 5 ] || fail "too few files are compared: $(cat files.txt)"
