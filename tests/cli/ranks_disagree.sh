#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that would not do the same are refused before they train: the first difference is named with key,
# rank and both values, by every rank, and all ranks end with the same exit code.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
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
"$program" "$plan" --backend host --steps 3 --timeout 20 --allow-tmpfs -q $OPTIONS $options >"out.$rank" 2>&1 || code=$?
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
export OPTIONS='' PLAN ODD ODD_PLAN ODD_OPTIONS ODD_PROGRAM STOWAGE_RUN
ODD_OPTIONS='' ODD_PROGRAM=$STOWAGE_RUN
ODD_PLAN=lr.json differ "learning rate" 4 2 optimizer.lr "rank 2 has 0.5, rank 0 has 0.001"
ODD_PLAN=other-1.json differ "plan of one rank" 2 1 cluster.node.gpus "rank 1 has 1, rank 0 has 2"
ODD_PLAN=plan-2.json
ODD_OPTIONS=--no-digest differ "digest" 2 0 --no-digest "rank 1 has false, rank 0 has true"
ODD_OPTIONS="--seed 7" differ "seed" 2 1 --seed "rank 1 has 7, rank 0 has 1"
ODD_OPTIONS="--timeout 5" differ "time limit" 2 1 --timeout "rank 1 has 5.0, rank 0 has 20.0"

# The benchmark program, which measures after every step, on one rank.
[ -z "${STW_CEILING:-}" ] || ODD_OPTIONS='' ODD_PROGRAM=$STW_CEILING differ "ceiling" 2 1 ceiling "rank 1 has true, rank 0 has false"

# Rank 0 alone writes a result: -o and --trace of another rank would be ignored.
ODD_OPTIONS="-o odd.json" differ "output of rank 1 alone" 2 1 --output "rank 1 has odd.json, rank 0 has none"
ODD_OPTIONS="--trace odd.json" differ "trace of rank 1 alone" 2 1 --trace "rank 1 has odd.json, rank 0 has none"

# Weights of other content. The sample has blocks of 64 KiB: first, last and between them.
rm -rf weights
"$STW_WRITE_SAFETENSORS" tiny weights 7 "4 MiB" 2>/dev/null
first=$(cd weights && ls -- *.safetensors | head -n 1)
second=$(cd weights && ls -- *.safetensors | sed -n 2p)
size=$(wc -c <"weights/$first")
# another NAME: a copy of the weights
another() { rm -rf "$1" && cp -r weights "$1"; }
# poke FILE BYTE: that byte becomes another one
poke() {
    old=$(od -A n -t u1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf '%b' "\\0$(printf '%o' $(((old + 1) % 256)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
cp plan-2.json kept.json
plan plan-2 2 --set load.method=sharded_read
another same
cp plan-2.json odd.json
cat >same.sh <<'EOF2'
folder=weights
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || folder=same
"$STOWAGE_RUN" plan-2.json --backend host --steps 1 --weights "$folder" -o same.json -q
EOF2
"$mpirun" -n 2 sh same.sh >same.txt 2>&1 || { cat same.txt; fail "equal copies of the weights are refused"; }
[ "$(member same.json digest_of)" != "" ] || fail "no digest_of"
same_of=$(member same.json digest_of)

# weights NAME KEY TEXT: rank 1 has the folder NAME
weights() { OPTIONS="--weights weights" ODD_PLAN=odd.json ODD_OPTIONS="--weights $1" differ "weights, $1" 2 1 "$2" "$3"; }
another end
poke "end/$first" $((size - 100))
weights end "weights: $first at byte $((size - 65536))" "rank 1 has "
another middle
data=$(($(od -A n -t u8 -N 8 "weights/$first" | tr -d ' ') + 8))
poke "middle/$first" $((data + (size - 65536 - data) / 2 + 1000))
weights middle "weights: $first at byte $((data + (size - 65536 - data) / 2))" "rank 1 has "
another header
LC_ALL=C sed 's/layers\.0\.self_attn\.q_norm/layers.0.self_attn.X_norm/
s/layers\.0\.self_attn\.k_norm/layers.0.self_attn.q_norm/
s/layers\.0\.self_attn\.X_norm/layers.0.self_attn.k_norm/' "weights/$second" >"header/$second"
! cmp -s "weights/$second" "header/$second" || fail "the second file has no norms of layer 0"
weights header "weights: $second header" "rank 1 has "
another name
mv "name/$first" name/other.safetensors
sed "s/$first/other.safetensors/" "weights/model.safetensors.index.json" >name/model.safetensors.index.json
weights name "weights: file 1" "rank 1 has "
"$mpirun" -n 2 sh -c 'exec "$STOWAGE_RUN" plan-2.json --backend host --steps 1 --weights end -o end.json -q' >end.txt 2>&1 ||
    { cat end.txt; fail "other weights on all ranks are refused"; }
[ "$(member end.json digest_of)" != "$same_of" ] || fail "runs of other weights are said to have the same digests"
cp kept.json plan-2.json

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
