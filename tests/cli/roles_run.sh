#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A plan with a rollout beside the trainer runs its load and steps; validate compares these alone.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
cat >roles.yaml <<'EOF'
roles:
- {name: rollout, kind: rollout, engine: vllm, gpu_memory_utilization: 0.5, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024}
EOF
"$STOWAGE" plan -q --model tiny --cluster cpu-only --run roles.yaml -o plan.json >/dev/null
grep -q '"phase": "weight_sync"' plan.json || fail "the plan has no weight sync"
"$STOWAGE" run plan.json --backend host --steps 2 -o run.json >run.txt 2>&1 || fail "run: $(cat run.txt)"
"$STOWAGE" validate plan.json run.json >validate.txt || fail "validate: $(head -3 validate.txt)"
