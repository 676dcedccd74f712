#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two builds of one version, one with a changed operation: ranks of both refuse to train together, and where the hello
# cannot tell them apart the verification does.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
tiny_model
tiny_cluster 2
build_of() { "$1" --version | sed -n 's/^build //p'; }
own=$(build_of "$STOWAGE_RUN")
other=$(build_of "$STW_OTHER_RUN")
echo "$own" | grep -q -x '[0-9a-f]\{16\}' || fail "build: found \"$own\""
[ "$own" != "$other" ] || fail "a changed operation does not change the build's identity"
[ "$own" = "$(build_of "$STW_DISGUISED_RUN")" ] || fail "the disguised program shows itself"
[ "$own" = "$(build_of "$STOWAGE")" ] || fail "the two programs of a build differ"
for program in "$STOWAGE" "$STOWAGE_RUN"; do
    "$program" --version --json >version.json
    [ "$(member version.json build)" = "$own" ] || fail "--version --json: $(cat version.json)"
done
expect 2 "expected --json" "$STOWAGE" --version --yaml

export STOWAGE_MPI_PLUGIN="${STOWAGE_MPI_PLUGIN:-$STW_BUILD_DIR/lib/stowage/stowage-mpi.so}"
export ODD PROGRAM STOWAGE_RUN PLAN
cat >rank.sh <<'EOF2'
rank=$OMPI_COMM_WORLD_RANK
program=$STOWAGE_RUN
[ "$rank" != "$ODD" ] || program=$PROGRAM
code=0
"$program" "$PLAN" --backend host --steps 3 --timeout 20 -q -o run.json >"out.$rank" 2>&1 || code=$?
echo "$code" >"code.$rank"
EOF2

# start PROGRAM ODD CODE TEXT: rank ODD is PROGRAM; every rank exits with CODE, and one of them says TEXT
start() {
    PROGRAM=$1 ODD=$2
    rm -f out.* code.* run.json
    "$mpirun" -n 2 sh rank.sh >mpirun.txt 2>&1 || { cat mpirun.txt; fail "mpirun"; }
    for rank in 0 1; do
        expected=$3
        [ "$expected" != 8 ] || [ "$rank" = 0 ] || expected=0 # rank 0 alone has the result
        [ "$(cat code.$rank)" = "$expected" ] || { cat out.*; fail "rank $rank exits with $(cat code.$rank), expected $expected"; }
        if [ "$3" = 6 ]; then grep -q -F "$4" out.$rank || { cat out.*; fail "rank $rank does not say $4"; }; fi
    done
    [ -z "$4" ] || cat out.* | grep -q -e "$4" || { cat out.*; fail "no rank says $4"; }
}

"$STOWAGE" plan --model tiny --cluster tiny.yaml -o plan.json >/dev/null
PLAN=plan.json
start "$STOWAGE_RUN" 1 0 ""
[ "$(member run.json build)" = "$own" ] || fail "the run file does not say by which build"
[ "$(member run.json mismatched)" = 0 ] || fail "equal builds: mismatches"
start "$STW_OTHER_RUN" 1 6 "build: rank 1 is build $other, rank 0 is build $own"
start "$STW_OTHER_RUN" 0 6 "build: rank 1 is build $own, rank 0 is build $other"

# Where the identity says nothing: found by the elements of the rank that computes otherwise.
start "$STW_DISGUISED_RUN" 1 8 "differs from its replay: found 0x[0-9a-f]*, expected 0x[0-9a-f]* (rank 1, "
start "$STW_DISGUISED_RUN" 0 8 "differs from its replay: found 0x[0-9a-f]*, expected 0x[0-9a-f]* (rank 0, "
[ "$(member run.json mismatched)" -gt 100 ] || fail "few elements differ: $(member run.json mismatched)"
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml -o one.json >/dev/null
expect 8 "checked elements differ from the reference" "$STW_DISGUISED_RUN" one.json --backend host --steps 3 -o disguised.json
expect 8 "checked elements differ from the reference" "$STW_OTHER_RUN" one.json --backend host --steps 3 -o other.json
[ "$(member other.json build)" = "$other" ] || fail "the run file of the other build"
echo "two_builds: ok"
