#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One bit of one rank's copy of the weights is another one, at random places outside the sample that ranks compare before
# they load: what two ranks read is refused with tensor, file and ranks, whatever the load method; what one rank
# reads alone is told, and found with --compare-weights.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
tiny_model
flips=${STW_FLIPS:-2}
rm -rf weights odd
"$STW_WRITE_SAFETENSORS" tiny weights 7 "1 GiB" 2>/dev/null
file=$(cd weights && ls -- *.safetensors)
[ "$(echo "$file" | wc -l)" = 1 ] || fail "several files: $file"
size=$(wc -c <"weights/$file")
data=$(($(od -A n -t u8 -N 8 "weights/$file" | tr -d ' ') + 8))

# tensors.txt: first byte, end, name of every tensor
head -c "$data" "weights/$file" | tail -c +9 | awk -v data="$data" -F '"' '
    /": *\{$/ { name = $2 }
    /"data_offsets"/ { split($3, at, /[^0-9]+/); print data + at[2], data + at[3], name }' >tensors.txt
[ "$(wc -l <tensors.txt)" -gt 20 ] || { cat tensors.txt; fail "the header was not understood"; }
tensor_at() { awk -v at="$1" '$1 <= at && at < $2 { print $3 }' tensors.txt; }

# places SEED: random bytes of tensors that are in no block of the sample
places() {
    awk -v seed="$1" -v n="$flips" -v size="$size" -v data="$data" '
        { first[NR] = $1; end[NR] = $2 }
        END {
            srand(seed)
            last = size - data - 65536
            while (found < n) {
                t = 1 + int(rand() * NR) # of large tensors and small ones alike
                at = first[t] + int(rand() * (end[t] - first[t]))
                sampled = 0
                for (k = 0; k < 17; k++) {
                    block = data + int(last / 16) * k + int((last % 16) * k / 16)
                    if (at >= block && at < block + 65536) sampled = 1
                }
                if (!sampled) { print at; found++ }
            }
        }' tensors.txt
}

# flip AT: odd/ is a copy of the weights in which a bit of that byte is another one
flip() {
    rm -rf odd
    cp -r weights odd
    old=$(od -A n -t u1 -j "$1" -N 1 "odd/$file" | tr -d ' ')
    bit=$((1 << ($1 % 8)))
    new=$((old / bit % 2 == 1 ? old - bit : old + bit))
    printf '%b' "\\0$(printf '%o' "$new")" | dd of="odd/$file" bs=1 seek="$1" conv=notrunc 2>/dev/null
    if cmp -s "weights/$file" "odd/$file"; then fail "nothing was flipped"; fi
}

cat >rank.sh <<'EOF2'
rank=$OMPI_COMM_WORLD_RANK
folder=weights
[ "$rank" != "$ODD" ] || folder=odd
code=0
# shellcheck disable=SC2086
"$STOWAGE_RUN" "$PLAN" --backend host --steps 1 --timeout 30 --weights "$folder" -q -o "$NAME.json" $OPTIONS >"out.$rank" 2>&1 || code=$?
echo "$code" >"code.$rank"
EOF2
export PLAN ODD OPTIONS NAME STOWAGE_RUN

# start RANKS: all ranks end with `code`
start() {
    rm -f out.* code.*
    "$mpirun" -n "$1" sh rank.sh >mpirun.txt 2>&1 || { cat mpirun.txt; fail "mpirun"; }
    code=$(cat code.0)
    [ "$code" != 8 ] || return 0 # the verification reads a rank's own files; rank 0 says what it finds
    [ "$(cat code.* | sort -u)" = "$code" ] || { cat out.*; fail "$NAME: exit codes $(cat code.* | tr '\n' ' ')"; }
}

# found AT: is the flip at AT on rank ODD refused as it should be? Else it must have changed nothing.
found() {
    if [ "$code" = 0 ]; then
        [ "$(digests "$NAME.json")" = "$clean" ] || fail "$NAME: byte $1 of rank $ODD is another one, and so is the result"
        return 1
    fi
    tensor=$(tensor_at "$1")
    if [ "$code" = 8 ] && [ "$times" = 0 ]; then
        grep -q "of $tensor differs from its replay: .*(rank $ODD," out.0 || { cat out.*; fail "$NAME: rank 0 does not name $tensor and rank $ODD"; }
        return 1
    fi
    [ "$code" = 6 ] || { cat out.*; fail "$NAME: byte $1 ($tensor) of rank $ODD is another one: exit $code"; }
    for rank in $(seq 0 $((ranks - 1))); do
        grep -q "error: weights: $tensor: the bytes that rank [0-9]* reads from $file are not those that rank [0-9]* reads" "out.$rank" &&
            grep -q "rank $ODD reads" "out.$rank" || { cat out.*; fail "$NAME: rank $rank does not name $tensor, $file and rank $ODD"; }
    done
}

# method NAME RANKS TIMES METHOD OPTIONS SETTING...: clean files give a run; a flip is found on TIMES of the ranks
method() {
    NAME=$1 ranks=$2 times=$3 load=$4 OPTIONS=$5
    shift 5
    tiny_cluster "$ranks"
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set "load.method=$load" "$@" -o "$NAME.plan.json" -q >/dev/null || fail "no plan $NAME"
    PLAN=$NAME.plan.json ODD=none
    start "$ranks"
    [ "$code" = 0 ] || { cat out.*; fail "$NAME: equal files are refused"; }
    clean=$(digests "$NAME.json")
    read=$(member "$NAME.json" read_bytes) compared=$(member "$NAME.json" compared_bytes)
    n=0
    for at in $(places "$ranks$(echo "$NAME" | wc -c)" | head -n $((ranks > 3 ? (flips + 1) / 2 : flips))); do
        flip "$at"
        n=$((n + 1)) refused=0 ODD=0
        [ "$times" != 0 ] || ODD=1 # rank 0 reads for all
        while [ "$ODD" -lt "$ranks" ]; do
            start "$ranks"
            if found "$at"; then refused=$((refused + 1)) said=$(sed -n 's/.*error: //p' out.0); fi
            ODD=$((ODD + 1))
        done
        [ "$refused" = "$times" ] || fail "$NAME: byte $at: refused on $refused ranks, expected $times"
    done
    echo "$NAME: $n flips, $compared of $read bytes compared; ${said:-}"
}

method all 2 2 all_ranks ""
[ "$compared" = "$read" ] || fail "all ranks read everything, and $compared of $read bytes are compared"
method three 3 3 all_ranks ""
method replicas 2 2 sharded_read "" --set parallel.dp_replicate=2
[ "$compared" = "$read" ] || fail "replicas: $compared of $read bytes are compared"
method shards 2 2 sharded_read --compare-weights
[ "$compared" = "$read" ] || fail "--compare-weights: $compared of $read bytes are compared"
# a quarter, or a half, of the bytes is a rank's own; with the option it reads another quarter
method halves 4 2 sharded_read "" --set parallel.dp_replicate=2
method quarters 4 2 sharded_read --compare-weights
method broadcast 2 0 rank0_broadcast ""
[ "$compared" = 0 ] || fail "rank 0 reads alone, and $compared bytes are compared"
method leader 2 0 node_leader ""

# Said where it is not compared.
tiny_cluster 2
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set load.method=sharded_read -o shards.json -q >/dev/null
cat >said.sh <<'EOF2'
exec "$STOWAGE_RUN" shards.json --backend host --steps 1 --weights weights -v
EOF2
"$mpirun" -n 2 sh said.sh >said.txt 2>&1 || { cat said.txt; fail "no run"; }
grep -q "^weights: ranks read .* and compared 0 B of it; what one rank reads alone is compared by a sample" said.txt || { cat said.txt; fail "what was not compared is not said"; }
grep -q "of these a sample is compared (all with --compare-weights)" said.txt || { cat said.txt; fail "-v does not say it"; }

# The option where it has no effect.
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml -o one.json -q >/dev/null
expect 2 "the plan is for one rank" "$STOWAGE" run one.json --backend host --weights weights --compare-weights
expect 2 "it needs --weights" "$STOWAGE" run one.json --backend host --compare-weights
refused() { # PLAN TEXT
    PLAN=$1 OPTIONS=--compare-weights ODD=none NAME=refused
    start 2
    [ "$code" = 2 ] && grep -q -e "--compare-weights: has no effect with load.method $2" out.0 || { cat out.*; fail "$1: exit $code"; }
}
refused all.plan.json "all_ranks: all ranks read everything"
refused broadcast.plan.json "rank0_broadcast: one rank, or one of each node, reads for all"
echo "weights_flips: ok"
