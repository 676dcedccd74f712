#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# State on NVMe of several ranks: it is whole when all ranks have committed the step; a rank that fails leaves no
# useless files of the others.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
tiny_model
tiny_cluster 4
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme --set load.method=rank0_broadcast -o nvme.json >/dev/null
rm -rf state
mkdir state
files() { find state -type f | wc -l | tr -d ' '; }
cat >rank.sh <<'END'
# rank.sh LIMIT STEPS: rank 2 cannot write more than LIMIT blocks of 512 bytes
[ "$OMPI_COMM_WORLD_RANK" != 2 ] || [ "$1" = none ] || ulimit -f "$1"
exec "$STOWAGE" run nvme.json --backend host --nvme state --allow-tmpfs --steps "$2" -q --keep-state --timeout 20
END
export STOWAGE

"$mpirun" -n 4 sh rank.sh none 3 >all.txt 2>&1 || { cat all.txt; fail "four ranks"; }
[ "$(files)" = 0 ] || fail "four ranks that ended well left files"

# The file of rank 2 cannot be made.
"$mpirun" -n 4 sh rank.sh 100 3 >none.txt 2>&1 && fail "a rank without space"
[ "$(files)" = 0 ] || { cat none.txt; fail "a rank without space: the others left $(files) files"; }

# A rank that is killed after some steps: what stays is whole, and has all ranks.
"$mpirun" -n 4 sh rank.sh none 1000000 >killed.txt 2>&1 &
pid=$!
for wait in $(seq 600); do
    [ "$(files)" != 4 ] || break
    sleep 0.1
done
[ "$(files)" = 4 ] || { kill $pid; cat killed.txt; fail "no files after $wait"; }
for wait in $(seq 600); do # all ranks have committed a step
    [ "$("$STOWAGE" state list state --json 2>/dev/null | grep -c '"whole": true')" != 4 ] || break
    sleep 0.1
done
victim=$(find state -name '*rank2.state' | sed 's/.*nvme-\([0-9]*\)-.*/\1/')
kill -KILL "$victim"
wait $pid || true
for wait in $(seq 600); do # the launcher may end before its ranks do
    "$STOWAGE" state list state --json 2>/dev/null | grep -q '"running": true' || break
    sleep 0.1
done
[ "$(files)" = 4 ] || { cat killed.txt; fail "$(files) files stayed, expected 4"; }
"$STOWAGE" state list state --json >list.json || fail "list"
[ "$(grep -c '"whole": true' list.json)" = 4 ] || { cat list.json; fail "the state of four ranks is not whole"; }
steps=$(sed -n 's/^      "step": \([0-9]*\).*/\1/p' list.json | sort -u | wc -l)
[ "$steps" = 1 ] || { cat list.json; fail "ranks have different steps"; }
"$STOWAGE" state verify state >verify.txt || { cat verify.txt; fail "verify"; }
rm "$(find state -name '*rank3.state')"
"$STOWAGE" state list state | grep -q "no: the state of" || fail "a missing rank is not said"
"$STOWAGE" state remove state >/dev/null || fail "remove"
[ "$(files)" = 0 ] || fail "remove left files"
echo "state of ranks: ok"
