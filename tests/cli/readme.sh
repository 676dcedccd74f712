#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The commands that README shows work in their order, and the report that it shows has the headings
# and columns of today's. The tour runs with a small model in place of GPT-2. UPDATE=1 writes the report anew.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
readme=$STW_SOURCE_DIR/README.md
tiny_model
tiny_cluster 1
PATH=$(dirname "$STOWAGE"):$PATH
ln -sfn "$STW_SOURCE_DIR/models" models

# block HEADING: the first code block below a heading
block() { awk -v h="## $1" '$0 == h { on = 1 } on && /^```/ { if (++n == 2) exit; next } on && n == 1' "$readme"; }

block "A report" >report.txt
sed -n 's/^\$ //p' report.txt >report.sh
[ "$(wc -l <report.sh)" = 2 ] || fail "README's report is not made by two commands"
COLUMNS=80 sh -e report.sh >made.txt || fail "README's commands for the report"

# The parts of the report that README shows: verdict, placement, and the rows of the highest peaks.
excerpt() {
    sh -e report.sh >long.txt # sentences in one line
    gpu=$(sed -n 's/^  GPU memory: .* in \([a-z_]*\)\.$/\1/p' long.txt | head -n 1)
    host=$(sed -n 's/^  Host memory: .* in \([a-z_]*\)\.$/\1/p' long.txt | head -n 1)
    awk -v gpu="$gpu" -v host="$host" '
        /^Capacity report/ { part = "verdict" }
        part == "" { next }
        part == "verdict" && /^$/ { print "  ..."; part = "other" }
        part == "other" && /^State placement/ { part = "placement" }
        part == "other" && /^Peak memory$/ { part = "peaks"; print "" }
        part == "other" { next }
        part != "verdict" && /^$/ { part = "other"; next }
        part == "peaks" && /^  GPU / && $0 !~ " " gpu " " { next }
        part == "peaks" && /^  host / && $0 !~ " " host " " { next }
        { print }' made.txt
}
if [ -n "${UPDATE:-}" ]; then
    { grep '^\$' report.txt; excerpt; } >new.txt
    awk -v h="## A report" '$0 == h { on = 1 }
        on && /^```/ { n++; print; if (n == 1) while ((getline line <"new.txt") > 0) print line; if (n == 2) on = 0; next }
        on && n == 1 { next }
        { print }' "$readme" >readme.new
    cp readme.new "$readme"
    exit 0
fi
# Figures depend on the solver's choice among equal optima: compare words only.
words() { tr -d '0-9.,%#[]' <"$1" | tr -s ' -' | sed 's/ *$//' | sort -u; }
words made.txt >made.words
grep -v -e '^\$' -e '^ *\.\.\.$' report.txt >shown.txt
words shown.txt >shown.words
missing=$(comm -23 shown.words made.words)
[ -z "$missing" ] || { echo "$missing" >&2; fail "README shows lines that the report does not have"; }

block "Five-minute tour" | sed -n 's/^\$ //p' >tour.sh
[ "$(wc -l <tour.sh)" -ge 6 ] || fail "README's tour is too short"
grep -q GPT-2 tour.sh || fail "README's tour does not use GPT-2"
sed -i -e 's/GPT-2/tiny/' -e 's/--model tiny/& --cluster tiny.yaml/' -e 's/stowage run/& --backend host/' tour.sh
sh -e tour.sh >tour.txt || { cat tour.txt >&2; fail "README's tour"; }
grep -q "^#" report.md || fail "the tour wrote no report"
echo "readme: ok"
