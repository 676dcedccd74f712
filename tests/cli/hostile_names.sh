#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names that files bring along neither move the cursor nor begin a line, in any output. Also: a byte
# order mark, weights of 64 bits, an empty cluster, and memory that runs out inside a reader.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
escape=$(printf '\033')
csi=$(printf '\302\233')
# right-to-left override, isolate, Arabic letter mark, zero width space, line separator, tag
hidden=$(printf '\342\200\256 \342\201\246 \330\234 \342\200\213 \342\200\250 \363\240\201\201')
bad="x${escape}[2J${csi}31m$hidden
  fits on 1 node"
rm -rf hostile && mkdir -p hostile "hostile/$bad"
cp tiny/config.json "hostile/$bad/config.json"
printf 'name,shape,dtype,group\n"a%sb\nc","[2048, 4]",F32,"g%s\n  h"\n' "$bad" "$bad" >hostile/list.csv

# clean FILE: no control character but the newline
clean() {
    [ "$(LC_ALL=C tr -d '\n' <"$1" | LC_ALL=C tr -dc '\000-\037\177' | wc -c)" = 0 ] || fail "$2: control characters"
    ! grep -q "$csi" "$1" || fail "$2: an escape of eight bits"
    for mark in $hidden; do
        ! grep -qF "$mark" "$1" || fail "$2: a character that hides or reorders text"
    done
    ! grep -q "^  fits on 1 node$" "$1" || fail "$2: a name has begun a line"
}
shown() {
    "$@" >shown.out 2>shown.err || true
    [ -s shown.out ] || [ -s shown.err ] || fail "nothing is said by: $*"
    clean shown.out "$*"
    clean shown.err "$*"
}
plan() { "$STOWAGE" plan --cluster tiny.yaml --model "$@"; }
plan "hostile/$bad" -q -o "hostile/$bad/p.json"
for format in md csv json; do
    "$STOWAGE" inspect "hostile/$bad" -o "hostile/out.$format"
    clean "hostile/out.$format" "inspect in $format"
    "$STOWAGE" report "hostile/$bad/p.json" -o "hostile/out.$format"
    clean "hostile/out.$format" "report in $format"
done
shown "$STOWAGE" inspect hostile/list.csv
shown "$STOWAGE" inspect hostile/list.csv --json
shown "$STOWAGE" inspect "hostile/$bad"
shown "$STOWAGE" inspect "hostile/none$bad"
shown plan hostile/list.csv
shown plan "hostile/$bad"
shown plan "hostile/$bad" --json
shown plan "hostile/$bad" --set node.gpu.memory=100MiB
shown plan "hostile/$bad" -v
shown plan tiny --set "fridge$bad=1"
shown plan tiny --set "load.weights=$bad"
shown "$STOWAGE" simulate "hostile/$bad/p.json"
shown "$STOWAGE" report "hostile/$bad/p.json"
shown "$STOWAGE" run "hostile/$bad/p.json" --backend host --steps 1 --weights "hostile/$bad"
shown "$STOWAGE" "$bad"
shown "$STOWAGE" models "$bad"
# strings of the planner and of a run, which only reports show
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set node.gpu.memory=100MiB -q -o over.json || true
"$STOWAGE" plan --model tiny --cluster tiny.yaml -q -o plan.json
"$STOWAGE" run plan.json --backend host --steps 1 -o run.json >/dev/null
json='\\u001b[2J\\u202e\\u2066\\u061c\\u200b\\u2028\\udb40\\udc41\\n  fits on 1 node'
for key in name version set value resource phase tried device backend source rule needs unit why; do
    for file in plan over run; do
        sed "s/\"$key\": \"[^\"]*\"/\"$key\": \"$json\"/" $file.json >hostile/edited.json
        shown "$STOWAGE" report hostile/edited.json
        [ $file = run ] || shown "$STOWAGE" simulate hostile/edited.json
        [ $file != run ] || shown "$STOWAGE" validate plan.json hostile/edited.json
    done
done

# a byte order mark is no part of a document
mkdir -p bom
{ printf '\357\273\277' && cat tiny/config.json; } >bom/config.json
expect 0 "5,640,448 parameters\|parameters in" "$STOWAGE" inspect bom
{ printf '\357\273\277' && cat tiny.yaml; } >bom/tiny.yaml
expect 0 "fits" "$STOWAGE" plan --model bom --cluster bom/tiny.yaml
{ printf '\357\273\277' && cat plan.json; } >bom/plan.json
expect 0 "" "$STOWAGE" simulate bom/plan.json

# an empty cluster is not an H200, with whatever it says of itself
: >empty.yaml
echo '{}' >object.yaml
echo 'assumed: []' >assumed.yaml
for file in empty object assumed; do
    expect 3 "node.gpu.memory: found nothing" "$STOWAGE" plan --model tiny --cluster $file.yaml
done

# memory that runs out while JSON is read is not bad JSON; a sanitizer needs more than any limit here
if [ -z "${STW_SANITIZE:-}" ]; then
    { printf '[' && awk 'BEGIN { for (i = 0; i < 300000; i++) printf "{\"a\": %d, \"b\": \"text\"}, ", i }' && printf '1]'; } >large.json
    reached=0
    for limit in 20 24 28 32 40 48 56 64 72 80; do
        code=0
        sh -c 'ulimit -v $(($1 * 1024)) && exec "$2" simulate large.json' sh $limit "$STOWAGE" >expect.out 2>&1 || code=$?
        ! grep -q "not valid JSON" expect.out || { cat expect.out >&2; fail "$limit MiB: called bad JSON"; }
        ! grep -q "out of memory" expect.out || { [ $code = 1 ] && reached=$((reached + 1)); }
    done
    [ $reached -ge 3 ] || fail "memory ran out only $reached times"
fi

# weights of 64 bits are rounded to the dtype of the plan: two tensors of 2048 zeros, one of 1024
header='{"a":{"dtype":"F64","shape":[2048],"data_offsets":[0,16384]},"b":{"dtype":"BF16","shape":[1024],"data_offsets":[16384,18432]}}'
# shellcheck disable=SC2059 # the length is written as a byte
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0" && printf %s "$header" && head -c 18432 /dev/zero; } >wide.safetensors
planned plan wide.safetensors -q -o wide.json
expect 0 " 0 mismatches" "$STOWAGE" run wide.json --backend host --steps 2 --weights wide.safetensors
echo "hostile names: ok"
