#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No function has more than seven parameters: what belongs together is a struct.
# Usage: arguments.sh [ROOT [N]]; with N it lists the N functions with the most parameters instead.
set -u
awk_file=$(cd "$(dirname "$0")" && pwd)/_functions.awk
most=${2:-}
. "$(dirname "$0")/_files.sh"
heads() {
    files '^(core|models|plan|blocks|engines|planner|sim|backend|reports|library|cli|include)/.*\.(c|h|cu|cuh)$' |
        xargs awk -f "$awk_file" | grep -E '^define '
}
if [ -n "$most" ]; then
    heads | awk '{ print $5, $4, $2 }' | sort -k1,1nr -k2,2 | head -n "$most"
    exit 0
fi
heads | awk '
    { seen++ }
    $5 > 7 { printf "%s:%d: %s has %d parameters, at most 7\n", $2, $3, $4, $5; bad++ }
    END { printf "%d functions\n", seen; exit bad > 0 || seen == 0 }'
