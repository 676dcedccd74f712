#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The commands that README shows work in their order, and docs/report.svg shows today's report. The tour runs with a
# small model in place of GPT-2. UPDATE=1 draws the report anew.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
readme=$STW_SOURCE_DIR/README.md
tiny_model
tiny_cluster 1
PATH=$(dirname "$STOWAGE"):$PATH
ln -sfn "$STW_SOURCE_DIR/models" models

# block HEADING: the first code block below a heading
block() { awk -v h="## $1" '$0 == h { on = 1 } on && /^```/ { if (++n == 2) exit; next } on && n == 1' "$readme"; }

# ---- the picture: the report of one plan ----
plan='--model Qwen3-4B --cluster h200-x1 --set node.gpu.memory=48GiB'
COLUMNS=100 "$STOWAGE" plan $plan -q -o plan.json || fail "the picture's plan"
COLUMNS=100 "$STOWAGE" report plan.json >made.txt || fail "the picture's report"

# What a terminal shows.
excerpt() {
    echo "\$ stowage plan $plan -o plan.json"
    echo "\$ stowage report plan.json"
    cat made.txt
}
if [ -n "${UPDATE:-}" ]; then
    excerpt | awk -f "$STW_SOURCE_DIR/docs/picture.awk" >"$STW_SOURCE_DIR/docs/report.svg"
    exit 0
fi
# Figures depend on the solver's choice among equal optima: compare words only.
words() { tr -d '0-9.,%#=[]' <"$1" | tr -s ' -' | sed 's/ *$//' | sort -u; }
excerpt >made.part
words made.part >made.words
sed -n -e 's/<[^>]*>//g' -e 's/&lt;/</g' -e 's/&gt;/>/g' -e 's/&amp;/\&/g' -e '/./p' "$STW_SOURCE_DIR/docs/report.svg" >shown.txt
[ "$(wc -l <shown.txt)" -ge 15 ] || fail "docs/report.svg shows too little"
words shown.txt >shown.words
missing=$(comm -23 shown.words made.words)
[ -z "$missing" ] || { echo "$missing" >&2; fail "docs/report.svg shows lines that the report does not have"; }

block "Six commands" | sed -n 's/^\$ //p' >tour.sh
[ "$(wc -l <tour.sh)" -ge 6 ] || fail "README's tour is too short"
grep -q GPT-2 tour.sh || fail "README's tour does not use GPT-2"
sed -i -e 's/GPT-2/tiny/' -e 's/--model tiny/& --cluster tiny.yaml/' -e 's/stowage run/& --backend host/' tour.sh
sh -e tour.sh >tour.txt || { cat tour.txt >&2; fail "README's tour"; }
grep -q 'id="data"' report.html || fail "the tour wrote no report"
echo "readme: ok"
