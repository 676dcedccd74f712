#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# node.price_per_gpu_hour: costs beside GPU-hours in plan, report, sweep and size; nothing is said without a price, and a price
# changes neither bytes nor seconds. size recommends by price where every kind has one, else by GPU-hours, and says which.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
rm -f free-sweep.json sweep.json # a sweep goes on with its file
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && (a - b) / b < 1e-3 && (b - a) / b < 1e-3) }'; }

# plan and report
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 -o free.json >free.txt
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set node.price_per_gpu_hour=2.5 -o paid.json >paid.txt
grep -q "USD" free.txt && fail "a cost without a price"
grep -q "Cost at 2.5 USD per GPU-hour: .* USD per iteration, .* USD per 1000, .* USD per 1e9 tokens" paid.txt || fail "no cost"
said() { grep -E "memory:|time:|Throughput|GPU-hours\." "$1"; }
[ "$(said paid.txt)" = "$(said free.txt)" ] || fail "a price changes the plan"
"$STOWAGE" report paid.json | grep -q "Cost at 2.5 USD" || fail "the report has no cost"
"$STOWAGE" report paid.json -o paid.csv
hours=$(awk -F, '/gpu_hours_per_1000_iterations/ { print $(NF - 1) }' paid.csv)
cost=$(awk -F, '/cost_of_1000_iterations/ { print $(NF - 1) }' paid.csv)
near "$cost" "$(awk -v h="$hours" 'BEGIN { print h * 2.5 }')" || fail "1000 iterations cost $cost, with $hours GPU-hours"
expect 3 "node.price_per_gpu_hour" "$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set node.price_per_gpu_hour=-1

# cluster.yaml
"$STOWAGE" clusters --show h100-80g-x8 >show.yaml
sed 's/price_per_gpu_hour: 0/price_per_gpu_hour: 3.5/' show.yaml >priced.yaml
"$STOWAGE" plan --model Qwen3-0.6B --cluster priced.yaml >priced.txt
grep -q "Cost at 3.5 USD per GPU-hour" priced.txt || fail "the price of cluster.yaml is not used"

# sweep
"$STOWAGE" sweep --model Qwen3-0.6B --cluster h100-80g-x8 --vary nodes=1,2 -o free-sweep.json -q
"$STOWAGE" report free-sweep.json | grep -q USD && fail "a sweep has costs without a price"
"$STOWAGE" sweep --model Qwen3-0.6B --cluster h100-80g-x8 --vary node.price_per_gpu_hour=2,4 -o sweep.json -q
"$STOWAGE" report --full sweep.json | grep -q "USD per 1e9 tokens" || fail "a sweep has no costs"
"$STOWAGE" report sweep.json -o sweep.csv
awk -F, 'NR == 2 { a = $NF } NR == 3 { b = $NF } END { exit !(a > 0 && b / a > 1.999 && b / a < 2.001) }' sweep.csv ||
    fail "twice the price is not twice the cost"

# size
size() { "$STOWAGE" size --model Qwen3-0.6B --set batch.seq_len=1k "$@"; }
size --gpus h100-80g,h200 >hours.txt
grep -q "Cheapest tokens for Qwen3-0.6B: .* GPU-hours per 1e9 tokens; no prices were given" hours.txt || fail "size names no kind by hours"
size --gpus h100-80g=100,h200=1 >one.txt
grep -q "Cheapest tokens for Qwen3-0.6B: .* of h200 (.* USD per 1e9 tokens, by the prices that were given)" one.txt || fail "size by price"
size --gpus h100-80g=1,h200=100 >other.txt
grep -q "Cheapest tokens for Qwen3-0.6B: .* of h100-80g (.* USD" other.txt || fail "size by other prices"
size --gpus h100-80g=1,h200 >half.txt
grep -q "GPU-hours per 1e9 tokens; by hours, as not every kind has a price" half.txt || fail "size with one price"
size --gpus h100-80g=1,h200=100 --json >size.json
[ "$(grep -c '"of_all_kinds": true' size.json)" = 1 ] || fail "one kind is the cheapest"
grep -q '"usd_per_1e9_tokens"' size.json || fail "the cost is not in JSON"
size --gpus gh200=2,gb200=5,rtx-4090=0.4 >kinds.txt || fail "kinds that are sold as one and four"
[ "$(grep -c -E '^  (gh200|gb200|rtx-4090) ' kinds.txt)" = 3 ] || fail "three kinds"
expect 2 "expected a price per GPU-hour in USD" size --gpus h100-80g=cheap
expect 2 "h100-80g is given twice" size --gpus h100-80g=1,h100-80g=2
echo "price: ok"
