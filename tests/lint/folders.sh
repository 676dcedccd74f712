#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The folder table of docs/architecture.md names every folder at the top, and no folder that is not there.
# Usage: readme.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
bad=0
rows=$(sed -n 's/^| `\([a-z_]*\)\/` .*/\1/p' docs/architecture.md)
[ -n "$rows" ] || { echo "docs/architecture.md: no folder table"; exit 1; }
for folder in $(files '^[^./][^/]*/' | sed 's|/.*||' | sort -u); do
    echo "$rows" | grep -qx "$folder" || { echo "docs/architecture.md: $folder/ is not in the table"; bad=1; }
done
for folder in $rows; do
    [ -d "$folder" ] || { echo "docs/architecture.md: $folder/ is in the table but does not exist"; bad=1; }
done
exit $bad
