#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every relative link of README.md, HACKING.md, CHANGELOG.md, docs/ and bench/results/ leads to a file or folder of the tree.
# Links in code (blocks and spans) are none.
# Usage: links.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
files '^(README|HACKING|CHANGELOG)\.md$' '^docs/.*\.md$' '^bench/results/.*\.md$' >"${TMPDIR:-/tmp}/links.$$"
trap 'rm -f "${TMPDIR:-/tmp}/links.$$"' EXIT
n=0 bad=0
while read -r page; do
    for link in $(awk '
        /^ *```/ { code = !code; next }
        code || /^    / { next }
        {
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^) ]*\)/)) {
                print substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
            }
        }' "$page"); do
        case $link in '#'* | *://* | mailto:*) continue ;; esac
        n=$((n + 1))
        [ -e "$(dirname "$page")/${link%%#*}" ] && continue
        echo "$page: link to $link: no such file"
        bad=$((bad + 1))
    done
done <"${TMPDIR:-/tmp}/links.$$"
echo "$n links, $bad dead"
[ "$bad" = 0 ] && [ "$n" -gt 0 ]
