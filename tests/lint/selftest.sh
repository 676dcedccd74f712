#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The lint checks themselves: each must refuse a tree that breaks its rule and accept one that
# does not.
set -u
lint=${STW_SOURCE_DIR:?}/tests/lint
tree=$PWD/tree
bad=0
spdx='/* SPDX-License-Identifier: Apache-2.0 */'

fresh() {
    rm -rf "$tree"
    mkdir -p "$tree/core" "$tree/models" "$tree/plan" "$tree/planner" "$tree/sim" \
        "$tree/backend/cuda"
    printf '%s\n#include <stdint.h>\n' "$spdx" >"$tree/core/a.h"
    printf '%s\n#include "core/a.h"\n' "$spdx" >"$tree/plan/b.c"
    printf '%s\n#include <glpk.h>\n' "$spdx" >"$tree/planner/c.c"
    printf '%s\n#include <cuda_runtime_api.h>\n' "$spdx" >"$tree/backend/cuda/d.c"
    {
        echo '| `core/` | x |'
        for name in models plan planner sim backend; do echo "| \`$name/\` | x |"; done
    } >"$tree/README.md"
}
# expect pass|fail CHECK WHAT
expect() {
    if sh "$lint/$2.sh" "$tree" >out.txt 2>&1; then got=pass; else got=fail; fi
    if [ "$got" != "$1" ]; then
        echo "$2: $3: expected $1, got $got"
        cat out.txt
        bad=1
    fi
}
# refuse CHECK FILE LINE: a good tree with one more line in FILE
refuse() {
    fresh
    mkdir -p "$(dirname "$tree/$2")"
    [ -f "$tree/$2" ] || echo "$spdx" >"$tree/$2"
    printf '%s\n' "$3" >>"$tree/$2"
    expect fail "$1" "$2: $3"
}

fresh
for check in includes spdx size readme; do expect pass $check "a good tree"; done
refuse includes core/e.c '#include "models/model.h"'
refuse includes models/e.c '#include "plan/files/plan.h"'
refuse includes sim/e.c '#include "planner/solve.h"'
refuse includes backend/e.c '#include "sim/sim.h"'
refuse includes plan/e.c '#include "cli/common.h"'
refuse includes plan/e.c '#include "b.h"'
refuse includes plan/e.c '#  include "../core/a.h"'
refuse includes planner/e.c '#include <glpk.h>'
refuse includes plan/e.h '#include <cuda_runtime_api.h>'
refuse includes backend/e.h '#include <cuda.h>'
refuse includes backend/host/e.c '#include "backend/cuda/cuda.h"'
refuse includes models/reader.c '#include <csv.h>'
refuse includes plan/e.c '#include <jansson.h>'
refuse includes backend/e.c '#include <mpi.h>'
refuse size core/a.h "$(printf '\tint x;')"
refuse size core/a.h "int x; "
refuse size core/a.h "/* $(printf '%0100d' 0) */"
refuse size core/a.h "$(yes '' | head -n 900; echo 'int x;')"
fresh && echo 'int x;' >"$tree/core/f.c" && expect fail spdx "a file without the line"
fresh && mkdir "$tree/cellar" && touch "$tree/cellar/x" &&
    expect fail readme "a folder that the table lacks"
fresh && echo '| `attic/` | x |' >>"$tree/README.md" &&
    expect fail readme "a folder that is not there"
rm -rf "$tree"
exit $bad
