#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage keys`: every key of the example specs is listed, and docs/keys.md is what the command writes. UPDATE=1 writes it anew.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
page=$STW_SOURCE_DIR/docs/keys.md

"$STOWAGE" keys -o keys.md || fail "keys -o keys.md"
if [ -n "${UPDATE:-}" ]; then
    cp keys.md "$page"
    exit 0
fi
cmp keys.md "$page" || fail "docs/keys.md is not what \`stowage keys\` writes; UPDATE=1 sh tests/cli/keys.sh writes it anew"

# The names in default.yaml at any depth, as the last part of a listed key.
"$STOWAGE" keys -o keys.csv || fail "keys -o keys.csv"
sed -n 's/^[# -]*\([a-z_0-9]*\):.*/\1/p' "$STW_SOURCE_DIR/models/examples/default.yaml" | sort -u >names.txt
[ "$(wc -l <names.txt)" -gt 100 ] || fail "default.yaml has too few keys"
while read -r name; do
    grep -q "^\([a-zN_.]*\.\)\{0,1\}$name[.,]" keys.csv || fail "the key $name is not listed"
done <names.txt

[ "$("$STOWAGE" keys prefetch.depth | head -n 1)" = "prefetch.depth: auto" ] || fail "one key"
"$STOWAGE" keys --json >keys.json || fail "keys --json"
grep -q '"schema": *"stowage.keys/1"' keys.json || fail "no schema"
if "$STOWAGE" keys prefetch.dpeth >none.txt 2>&1; then fail "an unknown key is listed"; fi
grep -q 'did you mean "prefetch.depth"' none.txt || fail "no hint: $(cat none.txt)"
echo "keys: ok"
