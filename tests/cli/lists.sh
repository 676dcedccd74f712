#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CSV list that `inspect --tensors` writes reads back as the same list: for odd names, empty
# tensors, scalars and integers, and for every model of the zoo.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"

# safetensors FILE JSON BYTES: a header and zeros
safetensors() {
    printf "\\$(printf %o $((${#2} % 256)))\\$(printf %o $((${#2} / 256)))\\0\\0\\0\\0\\0\\0%s" "$2" >"$1"
    head -c "$3" /dev/zero >>"$1"
}
header='{"a,b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}'
header="$header,\"say \\\"x\\\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}"
header="$header,\"#c \":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}"
header="$header,\"two\\nlines\\t\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[28,32]}"
header="$header,\"layers.0.empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[32,32]}"
header="$header,\"layers.0.index\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[32,64]}"
header="$header,\"layers.0.mask\":{\"dtype\":\"BOOL\",\"shape\":[8],\"data_offsets\":[64,72]}"
header="$header,\"layers.0.w\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[72,104]}}"
safetensors odd.safetensors "$header" 104
"$STOWAGE" inspect odd.safetensors --tensors odd.csv >odd.txt || fail "inspect odd.safetensors"
grep -q "17 parameters in 6 tensors" odd.txt || { cat odd.txt; fail "integers count as parameters"; }
grep -q "12 elements in 2 buffers" odd.txt || { cat odd.txt; fail "integers are no buffers"; }
"$STOWAGE" inspect odd.csv --tensors again.csv >again.txt || fail "the list of odd tensors does not read back"
cmp odd.csv again.csv || fail "the list of odd tensors changed"
sed 1d odd.txt >odd.lines
sed 1d again.txt | diff odd.lines - || fail "the list describes another model"
tiny_cluster 1
planned "$STOWAGE" plan --model odd.csv --cluster tiny.yaml -o odd.json >/dev/null || fail "the list of odd tensors cannot be planned"
"$STOWAGE" run odd.json --backend host --steps 2 -o odd.run.json >/dev/null || fail "the list of odd tensors cannot be run"

printf 'name,shape,dtype\nw,"[4, 0]",F32\n' >empty.csv
"$STOWAGE" inspect empty.csv >/dev/null || fail "a list of an empty tensor is refused"
expect 3 "no parameters" "$STOWAGE" plan --model empty.csv --cluster tiny.yaml
printf 'name,shape,dtype\nw,[4],I32\n' >integers.csv
expect 3 "no parameters" "$STOWAGE" inspect integers.csv
printf 'name,shape,dtype\nq,[400],U8\nscale,[4],F32\n' >packed.csv
"$STOWAGE" inspect packed.csv 2>&1 >/dev/null | grep -q "quantized" || fail "packed weights are not warned of"

for path in "$STW_SOURCE_DIR"/models/zoo/*.json; do
    name=$(basename "$path" .json)
    "$STOWAGE" inspect "$name" --tensors one.csv --json >one.json || fail "inspect $name"
    "$STOWAGE" inspect one.csv --tensors two.csv --json >two.json || fail "the list of $name does not read back"
    cmp one.csv two.csv || fail "the list of $name changed"
    [ "$(member one.json params)" = "$(member two.json params)" ] || fail "the list of $name has other parameters"
done
echo "lists: ok"
