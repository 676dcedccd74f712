#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that would not do the same are refused before they train: the first difference is named with key,
# rank and both values, by every rank, and all ranks end with the same exit code.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
[ "${STW_WITH_MPI:-0}" != 0 ] && [ "${STW_WITH_MPI:-OFF}" != OFF ] || exit 77
mpirun=${STW_MPIEXEC:-mpirun}
command -v "$mpirun" >/dev/null 2>&1 || exit 77
tiny_model

# plan NAME RANKS SETTING...: a streamed plan
plan() {
    out=$1
    tiny_cluster "$2"
    shift 2
    set -- --set placement.moments=host --set optimizer.implementation=streamed "$@"
    "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" -o "$out.json" >/dev/null || fail "no plan $out"
}

# A rank: WORLD's odd one out takes its own plan, options and program; its exit code is kept in a file.
cat >rank.sh <<'EOF2'
rank=$OMPI_COMM_WORLD_RANK
plan=$PLAN options= program=$STOWAGE_RUN
[ "$rank" != "$ODD" ] || { plan=$ODD_PLAN options=$ODD_OPTIONS program=$ODD_PROGRAM; }
code=0
# shellcheck disable=SC2086
"$program" "$plan" --backend host --steps 3 --timeout 20 --allow-tmpfs -q $options >"out.$rank" 2>&1 || code=$?
echo "$code" >"code.$rank"
EOF2

# differ NAME RANKS ODD KEY TEXT: every rank exits with CODE and says "KEY: TEXT"
differ() {
    name=$1 n=$2
    rm -f out.* code.*
    PLAN=plan-$n.json ODD=$3 "$mpirun" -n "$n" sh rank.sh >mpirun.txt 2>&1 || { cat mpirun.txt; fail "$name: mpirun"; }
    rank=0
    while [ "$rank" -lt "$n" ]; do
        [ "$(cat "code.$rank")" = "$CODE" ] || { cat out.*; fail "$name: rank $rank exits with $(cat "code.$rank"), expected $CODE"; }
        grep -q -F -e "error: $4: $5" "out.$rank" || { cat out.*; fail "$name: rank $rank does not say \"$4: $5\""; }
        if grep -q -e MPI -e "took part" "out.$rank"; then cat out.*; fail "$name: rank $rank speaks of MPI"; fi
        rank=$((rank + 1))
    done
    echo "$name: $(sed -n 's/.*error: //p' out.0 | head -n 1)"
}

plan plan-2 2
plan plan-4 4
plan lr 4 --set optimizer.lr=0.5
plan nvme 2 --set placement.moments=nvme --set optimizer.implementation=auto
plan other-1 1
CODE=6
export PLAN ODD ODD_PLAN ODD_OPTIONS ODD_PROGRAM STOWAGE_RUN
ODD_OPTIONS='' ODD_PROGRAM=$STOWAGE_RUN
ODD_PLAN=lr.json differ "learning rate" 4 2 optimizer.lr "rank 2 has 0.5, rank 0 has 0.001"
ODD_PLAN=other-1.json differ "plan of one rank" 2 1 cluster.node.gpus "rank 1 has 1, rank 0 has 2"
ODD_PLAN=plan-2.json
ODD_OPTIONS=--no-digest differ "digest" 2 0 --no-digest "rank 1 has false, rank 0 has true"
ODD_OPTIONS="--seed 7" differ "seed" 2 1 --seed "rank 1 has 7, rank 0 has 1"
ODD_OPTIONS="--timeout 5" differ "time limit" 2 1 --timeout "rank 1 has 5.0, rank 0 has 20.0"

# The benchmark program, which measures after every step, on one rank.
[ -z "${STW_CEILING:-}" ] || ODD_OPTIONS='' ODD_PROGRAM=$STW_CEILING differ "ceiling" 2 1 ceiling "rank 1 has true, rank 0 has false"

# A failure of one rank is told to all.
cp plan-2.json kept.json
cp nvme.json plan-2.json
CODE=3 ODD_OPTIONS="--nvme nowhere" differ "folder" 2 1 "rank 1: nowhere" ""
cp kept.json plan-2.json

# Another version: the same program with another number in it.
version=$("$STOWAGE_RUN" --version | sed -n '1s/stowage-run //p')
other=$(echo "$version" | tr 0-9 1-90)
LC_ALL=C sed "s/stowage $version (ranks/stowage $other (ranks/" "$STOWAGE_RUN" >other-run
chmod +x other-run
if cmp -s other-run "$STOWAGE_RUN"; then fail "the version is not in the program"; fi
export STOWAGE_MPI_PLUGIN="${STOWAGE_MPI_PLUGIN:-$STW_BUILD_DIR/lib/stowage/stowage-mpi.so}"
ODD_OPTIONS='' ODD_PROGRAM=./other-run differ "version" 2 1 version "rank 1 is stowage $other"
echo "ranks_disagree: ok"
