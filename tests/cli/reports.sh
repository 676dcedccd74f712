#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What reports state in each format: the headline as CSV, which plan a row belongs to, tables in Markdown, nodes in titles.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@"; }

plan -o one.json >/dev/null
plan --set node.gpu.memory=160MiB --set batch.seq_len=64 -o two.json >/dev/null
"$STOWAGE" report one.json two.json -o two.csv
[ "$(head -n 1 two.csv)" = "plan,section,of,phase,what,value,unit" ] || fail "heads of the CSV report"
[ "$(sed 1d two.csv | cut -d, -f1 | uniq | tr '\n' ' ')" = "one.json two.json " ] || fail "rows without their plan"
for row in "model,tiny," "engine,stowage," "nodes,1,count" "tokens_per_iteration,4096,count" "iteration,[0-9.e-]*,s" \
    "tokens_per_second,[0-9.]*,1/s" "gpu_hours_per_1000_iterations,[0-9.e-]*,h" "warning,The rates .*"; do
    grep -q "^one.json,headline,,,$row\$" two.csv || fail "no row $row"
done

# prefetch has a value only where state is streamed
grep -A 4 '^  "prefetch": {' one.json | grep -q '"depth": null' || fail "a prefetch depth without a stream"
grep -A 4 '^  "prefetch": {' two.json | grep -q '"depth": [0-9]' || fail "no prefetch depth"
grep -q "^one.json,prefetch" two.csv && fail "prefetch rows without a stream"
grep -q "^two.json,prefetch,,,depth,[0-9]" two.csv || fail "no prefetch rows"

# Markdown: an empty line before and after each table and list
for name in one two; do
    "$STOWAGE" report $name.json -o $name.md
    awk 'NR > 1 && (/^\|/ != last) && !/^$/ && !blank { print FILENAME ": " $0; bad = 1 }
        { last = /^\|/; blank = /^$/ } END { exit bad }' $name.md || fail "a sentence in a table of $name.md"
done

planned "$STOWAGE" plan --model Llama-3.1-70B --cluster "4 x p5.48xlarge" --set engine=fsdp2 -o nodes.json >/dev/null
"$STOWAGE" report --full nodes.json >nodes.txt
"$STOWAGE" report nodes.json -o nodes.md
"$STOWAGE" report nodes.json -o nodes.csv
grep -q "^Capacity report: Llama-3.1-70B on 4 x p5.48xlarge\$" nodes.txt || fail "no node count in the title"
grep -q "^# Capacity report: Llama-3.1-70B on 4 x p5.48xlarge\$" nodes.md || fail "no node count in the Markdown title"
grep -q "^nodes.json,headline,,,cluster,4 x p5.48xlarge,\$" nodes.csv || fail "no node count in the CSV"
# one name for who executes a phase
grep -q "forward_backward  *fsdp2 " nodes.txt || fail "the report does not name the engine that executes"
grep -q "plan them with --set load.method=all_ranks" nodes.txt || fail "other ways to load"

# numbers without exponents; shares that have an effect; experts cost time
plan --set node.gpu.bf16=2GFLOP/s --set batch.seq_len=4k >slow.txt
grep -E "[0-9]e[+-]?[0-9]" slow.txt && fail "an exponent in a text"
expect 3 "update.resident: found 1e-09, expected 0 or at least" plan --set update.resident=1e-9
least=$(sed -n 's/.*at least \([0-9.e-]*\): .*/\1/p' expect.out)
expect 0 "fits" plan --set update.resident="$least"
seconds() { "$STOWAGE" plan --model "$@" | sed -n 's/^  forward_backward .* \([0-9.]*\) ms .*/\1/p' | head -1; }
none=$(seconds Qwen3-30B-A3B --cluster h200-x4 --set parallel.ep=4 --set node.nvlink=900GB/s)
slow=$(seconds Qwen3-30B-A3B --cluster h200-x4 --set parallel.ep=4 --set node.nvlink=90GB/s)
[ "${none%.*}" -lt "${slow%.*}" ] || fail "sending rows to experts takes no time: $none ms, $slow ms"
"$STOWAGE" help plan | grep -q "search" || fail "what --time-limit limits"
exit 0
