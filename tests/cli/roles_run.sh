#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A plan with a rollout beside the trainer runs its load, its steps and its weight syncs; validate compares these alone.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
cat >roles.yaml <<'EOF'
roles:
- {name: rollout, kind: rollout, engine: vllm, gpu_memory_utilization: 0.5, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024}
EOF
"$STOWAGE" plan -q --model tiny --cluster cpu-only --run roles.yaml -o plan.json >/dev/null
grep -q '"phase": "weight_sync"' plan.json || fail "the plan has no weight sync"
# its seconds are shown as those of Stowage, and with a rollout on nodes of its own as those of a plan alone, wherever they are shown
"$STOWAGE" plan -q --model Qwen3-0.6B --cluster h200-x2 --run roles.yaml -o beside.json >plan.txt
grep -A2 '"phase": "weight_sync"' beside.json | grep -q '"by": "stowage"' || fail "the plan file does not say that Stowage executes the weight sync"
"$STOWAGE" report --full beside.json | grep -q "Weight sync (by stowage): " || fail "report: who executes the weight sync?"
sed 's/kind: rollout/kind: rollout, with: none, nodes: 1/' roles.yaml >alone.yaml
alone="plan --model Qwen3-0.6B --cluster h200-x2 --set nodes=2 --run alone.yaml"
"$STOWAGE" $alone -q -o gpus.json >plan.txt
for command in "$alone" "$alone -v" "simulate gpus.json" "report gpus.json"; do
    COLUMNS=0 "$STOWAGE" $command 2>/dev/null | grep -E 'weight_sync +(planned, not executed|[0-9.]+ m?s, planned, not executed)' >/dev/null ||
        fail "$command: the weight sync is shown as executed"
done
COLUMNS=0 "$STOWAGE" simulate gpus.json | grep -q "^ *weight_sync is planned, not executed" || fail "simulate: the weight sync is shown as executed"
"$STOWAGE" report gpus.json -o gpus.csv >/dev/null
grep -q "time,,weight_sync,executed_by,\"*planned, not executed" gpus.csv || fail "gpus.csv: who executes the weight sync?"
grep -A2 '"phase": "weight_sync"' gpus.json | grep -q '"by": "stowage"' && fail "the plan file says that Stowage executes the weight sync"
"$STOWAGE" run plan.json --backend host --steps 2 -o run.json >run.txt 2>&1 || fail "run: $(cat run.txt)"
"$STOWAGE" validate plan.json run.json >validate.txt || fail "validate: $(head -3 validate.txt)"
