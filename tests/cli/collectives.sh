#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Bytes of collectives in plans equal those that torch's profiler recorded of FSDP2, DeepSpeed and Megatron-core on two GPUs.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
cd "$STW_SOURCE_DIR"
results=bench/results/2026-11-22-engines
python3 bench/collectives.py $results/collectives.jsonl $results/two-h200.yaml
