#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The commands of docs/cases/ run, and what the pages say was planned is in the reports of these plans: every figure in GiB
# of a table's cells (first column and "reported" aside) and of the paragraph in bold.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
PATH=$(dirname "$STOWAGE"):$PATH

# The settings of which SETTING stands for one.
settings="none policy param optimizer both"

for page in "$STW_SOURCE_DIR"/docs/cases/*.md; do
    name=$(basename "$page" .md)
    mkdir -p "$name"
    cd "$name"
    ln -sfn "$STW_SOURCE_DIR/models" models
    sed -n 's/^    //p' "$page" >commands.sh
    for setting in $settings; do
        sed "s/SETTING/$setting/" commands.sh
        grep -q SETTING commands.sh || break
    done | awk '/^stowage plan/ { n++; $0 = $0 " -q -o plan" n ".json || { s=$?; [ $s = 4 ] || [ $s = 9 ]; }" } { print }' >all.sh
    grep -q '^stowage plan' all.sh || fail "$name: no command"
    sh -eu all.sh >all.txt 2>&1 || { cat all.txt >&2; fail "$name: its commands"; }
    for plan in plan*.json; do stowage report --full "$plan"; done >reports.txt 2>&1
    for plan in plan*.json; do
        narrow stowage report "$plan"
        narrow stowage report --full "$plan"
    done
    narrow stowage report plan*.json
    awk '
        function figures(text, line,    t, n) { # those before " GiB", also of a list: 7.9, 162.2 GiB
            while (match(text, /[0-9][0-9.]*(, [0-9][0-9.]*)* GiB/)) {
                t = substr(text, RSTART, RLENGTH - 4)
                text = substr(text, RSTART + RLENGTH)
                n = split(t, parts, /, /)
                for (i = 1; i <= n; i++) said[parts[i]] = line
            }
        }
        FILENAME ~ /reports/ {
            text = $0
            while (match(text, /[0-9]+\.[0-9]+ GiB/)) {
                have[substr(text, RSTART, RLENGTH - 4)] = 1
                text = substr(text, RSTART + RLENGTH)
            }
            next
        }
        /^\*\*/ { bold = 1 }
        bold { figures($0, FNR) }
        /\*\*$/ { bold = 0 }
        /^\|/ && !table { table = 1; columns = split($0, heads, "|") }
        /^\|/ { split($0, cells, "|"); for (c = 3; c < columns; c++) if (heads[c] !~ /reported/) figures(cells[c], FNR) }
        !/^\|/ { table = 0 }
        END {
            for (s in said) {
                decimals = index(s, ".") > 0 ? length(s) - index(s, ".") : 0
                found = 0
                for (h in have) { d = h - s; if (d < 0) d = -d; if (d <= 0.501 * 10 ^ -decimals) found = 1 }
                if (!found) { print FILENAME ":" said[s] ": " s " GiB is in no report"; bad = 1 }
            }
            exit bad
        }' reports.txt "$page" >&2 || fail "$name: its figures"
    cd ..
done
echo "docs: ok"
