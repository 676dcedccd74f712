#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Peaks of the weight sync for verl issue 5995's five settings and two models, against weight_sync.csv: case, GPU bytes of the
# fullest rank and host bytes of the fullest node in that phase. UPDATE=1 writes the file anew.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
examples=$STW_SOURCE_DIR/models/examples
golden=$STW_SOURCE_DIR/tests/golden/weight_sync.csv
echo "case,gpu_bytes,host_bytes" >found.csv
for model in Qwen3.5-35B-A3B "$examples/qwen3.5-27b.json"; do
    for case in none policy param optimizer both; do
        name=$(basename "$model" .json)-$case
        planned "$STOWAGE" plan --model "$model" --cluster h200-x8 --set nodes=8 --run "$examples/verl-5995-$case.yaml" -o "$name.json" >/dev/null 2>&1 ||
            fail "$name: no plan"
        awk -v name="$name" -F'[:,]' '
            /^  "peaks"/ { peaks = 1 } /^  "ranks"/ { peaks = 0 }
            peaks && /"gpu_bytes"/ { tier = "gpu" } peaks && /"host_bytes"/ { tier = "host" }
            peaks && /"weight_sync"/ { peak[tier] = $2 + 0 }
            END { printf "%s,%.0f,%.0f\n", name, peak["gpu"], peak["host"] }
        ' "$name.json" >>found.csv
    done
done
if [ -n "${UPDATE:-}" ]; then
    cp found.csv "$golden"
    exit 0
fi
awk -F, 'function near(a, b) { d = a > b ? a - b : b - a; return d <= 2e-3 * (b > 0 ? b : 1) }
    FNR == NR { gpu[$1] = $2; host[$1] = $3; next }
    FNR == 1 { next }
    { if (!near($2, gpu[$1]) || !near($3, host[$1])) { print "found: " $0 ", golden: " gpu[$1] "," host[$1]; bad = 1 }
      seen++ }
    END { exit bad || seen != 10 }' "$golden" found.csv || fail "peaks of the weight sync moved"
echo "weight_sync: ok"
