#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage explain`: a screen of 25 lines of 80 columns, JSON, errors, and changes that a plan has when they are set.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
corpus=$STW_SOURCE_DIR/tests/fuzz/corpus/failure
tiny_model
tiny_cluster 1

n=0
for file in "$corpus"/*; do
    case $file in */hostile_call*) continue ;; esac
    COLUMNS=80 "$STOWAGE" explain "$file" >screen.txt || fail "$file"
    awk 'length($0) > 80 && $0 !~ /[^ ]{60}/ { print "wide: " $0; bad = 1 } END { exit bad || NR > 25 || NR < 2 }' screen.txt ||
        { cat screen.txt; fail "$file is no screen"; }
    "$STOWAGE" explain "$file" --json | grep -q '"schema": "stowage.explanation/1"' || fail "$file --json"
    n=$((n + 1))
done
[ "$n" -gt 40 ] || fail "only $n files"

# a plan for a larger GPU, and a process that may take less: the first change is planned in the same room, and fits
planned "$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set placement.activations=keep \
    --set batch.seq_len=4096 --set batch.micro_batch=4 --set batch.grad_accumulation=1 --set node.gpu.memory=8GiB -q -o plan.json
cat >error.txt <<'EOE'
Traceback (most recent call last):
  File "train.py", line 8, in <module>
    loss = model(tokens)
  File "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 2.00 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 0.78 GiB memory in use. 800.00 MiB allowed; Of the allocated memory 720.00 MiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated.
EOE
"$STOWAGE" explain error.txt plan.json >said.txt || fail "explain with a plan"
grep -q "Phase: forward_backward, forward" said.txt || { cat said.txt; fail "no phase"; }
grep -q "^  What to change (planned within" said.txt || { cat said.txt; fail "no change"; }
COLUMNS=80 "$STOWAGE" explain error.txt plan.json >screen.txt
[ "$(wc -l <screen.txt)" -le 25 ] || { cat screen.txt; fail "more than a screen with a plan"; }
[ "$(wc -l <said.txt)" -le 25 ] || { cat said.txt; fail "more than a screen"; }
"$STOWAGE" explain error.txt plan.json --json >said.json
within=$(member said.json planned_within_bytes)
[ "$within" -gt 0 ] || fail "planned within nothing"
settings=$(sed -n '/"changes"/,/"why"/s/^ *"\(key\|value\)": "\(.*\)",\{0,1\}$/\2/p' said.json | paste -d = - - | sed 's/^/--set /' | tr '\n' ' ')
[ -n "$settings" ] || { cat said.json; fail "no settings"; }
# shellcheck disable=SC2086
planned "$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set placement.activations=keep --set batch.seq_len=4096 \
    --set batch.micro_batch=4 --set batch.grad_accumulation=1 --set "node.gpu.memory=$within B" $settings -q -o changed.json ||
    fail "the first change does not fit: $settings"

# without it nothing fits there
code=0
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set placement.activations=keep --set batch.seq_len=4096 \
    --set batch.micro_batch=4 --set batch.grad_accumulation=1 --set "node.gpu.memory=$within B" -q -o before.json || code=$?
[ "$code" = 4 ] || fail "exit $code: the plan fits without a change"

# logits that do not fit: a fused loss comes first, also where fewer blocks that keep their activations would do
planned "$STOWAGE" plan --model Qwen3-32B --cluster "2 x h100-80g-x8" --set engine=fsdp2 --set batch.seq_len=16384 -q -o large.json
cat >logits.txt <<'EOE'
Traceback (most recent call last):
  File "/opt/train.py", line 88, in <module>
    loss = model(input_ids=batch, labels=labels).loss
  File "/env/site-packages/transformers/models/qwen3/modeling_qwen3.py", line 512, in forward
    loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
  File "/env/site-packages/transformers/loss/loss_utils.py", line 55, in ForCausalLMLoss
    logits = logits.float()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB. GPU 3 has a total capacity of 79.11 GiB of which 3.21 GiB is free. Including non-PyTorch memory, this process has 75.88 GiB memory in use. Of the allocated memory 74.40 GiB is allocated by PyTorch, and 412.00 MiB is reserved by PyTorch but unallocated.
EOE
"$STOWAGE" explain logits.txt large.json >said.txt || fail "explain logits"
sed -n '/What to change/,$p' said.txt | grep "^  - " | head -n 1 | grep -q "loss.fused=true" || { cat said.txt; fail "no fused loss"; }

# errors name what was found and what was expected
echo "all is well" >log.txt
expect 3 "nothing in it says that memory ended" "$STOWAGE" explain log.txt
expect 3 "GLOBAL" "$STOWAGE" explain "$corpus/hostile_call"
expect 2 "expected FILE" "$STOWAGE" explain
expect 2 "needs the PLAN" "$STOWAGE" explain error.txt --from verl:train.sh
expect 2 "standard input is given 2 times" "$STOWAGE" explain - -
expect 3 "schema" "$STOWAGE" explain error.txt said.json
cp error.txt out.md
expect 2 "out.md" "$STOWAGE" explain out.md -o out.md
"$STOWAGE" explain error.txt plan.json -o out2.md && grep -q "Stack" out2.md || fail "no Markdown"
"$STOWAGE" explain error.txt plan.json -o out.csv && grep -q "^component,held_bytes,planned_bytes" out.csv || fail "no CSV"
"$STOWAGE" explain - plan.json <error.txt | cmp -s - said.txt || { "$STOWAGE" explain - plan.json <error.txt | grep -q "^  Phase" || fail "standard input"; }
# names of files that hostile programs choose
printf '  File "/x/\033[31mred.py", line 1, in \033]0;title\007f\nCUDA out of memory. Tried to allocate 1.00 GiB\n' >hostile.txt
"$STOWAGE" explain hostile.txt -v | od -c | grep -q 033 && fail "an escape reaches the terminal"
echo "explain: ok"
