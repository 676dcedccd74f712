#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone and twice: it includes what it uses and has a guard. A *_body.h is the
# text of a source that several files compile with other macros.
set -u
. "$(dirname "$0")/_files.sh"
bad=0
count=0
for header in $(files '\.h$' | grep -vE '^(tests|bench|backend/cuda)/|_body\.h$'); do
    count=$((count + 1))
    printf '#include "%s"\n#include "%s"\ntypedef int not_empty;\n' "$header" "$header" |
        "${STW_CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror \
            -fsyntax-only -I. -I"${STW_BUILD_DIR:-build}/generated" -x c - || {
        echo "$header: does not compile alone"
        bad=1
    }
done
echo "$count headers"
[ "$count" -gt 0 ] || bad=1
exit $bad
