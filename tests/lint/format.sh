#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-format 14, where there is one: other versions break lines elsewhere.
# Usage: format.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
formatter=
for name in clang-format-14 clang-format; do
    if "$name" --version 2>/dev/null | grep -q 'version 14\.'; then formatter=$name; break; fi
done
[ -n "$formatter" ] || { echo "no clang-format 14 here"; exit 77; }
files '\.(c|h|cu|cuh)$' | xargs "$formatter" --dry-run --Werror
