#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Bytes of collectives in plans equal those that torch's profiler recorded of FSDP2, DeepSpeed and Megatron-core on two GPUs.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
cd "$STW_SOURCE_DIR"
python3 bench/collectives.py tests/measured/collectives.jsonl tests/measured/two-h200.yaml
