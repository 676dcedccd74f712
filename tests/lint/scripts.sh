#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Scripts parse, say `sh` or `bash` in their first line, and are executable where people call them.
# Usage: scripts.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
bad=0
count=0
for script in $(files '^(demo|check|\.ci/run)$' '^scripts/' '\.sh$'); do
    [ -f "$script" ] || { echo "$script: missing"; bad=1; continue; }
    count=$((count + 1))
    case $(head -n 1 "$script") in
    '#!/bin/sh') sh -n "$script" || bad=1 ;;
    '#!/usr/bin/env bash') bash -n "$script" || bad=1 ;;
    *)
        case $script in
        */_*.sh) sh -n "$script" && continue ;; # sourced by others
        esac
        echo "$script: its first line is neither #!/bin/sh nor #!/usr/bin/env bash"
        bad=1
        ;;
    esac
    case $script in
    tests/*) ;;
    *) [ -x "$script" ] || { echo "$script: not executable"; bad=1; } ;;
    esac
done
echo "$count scripts"
exit $bad
