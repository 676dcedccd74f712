#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every source says its licence in one of its first three lines.
# Usage: spdx.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
bad=0
count=0
for file in $(files '\.(c|h|cu|cuh|sh|py|cmake|in)$' '(^|/)CMakeLists\.txt$' '^(demo|check|\.ci/run)$' \
    '^scripts/'); do
    count=$((count + 1))
    if ! head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0'; then
        echo "$file: no SPDX-License-Identifier: Apache-2.0 in its first three lines"
        bad=1
    fi
done
echo "$count files"
[ "$count" -gt 0 ] || bad=1
exit $bad
