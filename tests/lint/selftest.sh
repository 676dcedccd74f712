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
    mkdir -p "$tree/docs" "$tree/core" "$tree/models" "$tree/plan/spec" "$tree/engines" "$tree/planner" \
        "$tree/sim" "$tree/backend/cuda"
    printf '%s\n#include <stdint.h>\n' "$spdx" >"$tree/core/a.h"
    printf '%s\n#include "core/a.h"\n' "$spdx" >"$tree/plan/spec/b.c"
    printf '%s\n#include <glpk.h>\n' "$spdx" >"$tree/planner/c.c"
    printf '%s\n#include <cuda_runtime_api.h>\n' "$spdx" >"$tree/backend/cuda/d.c"
    printf '%s\n' "$spdx" '/* As FSDP2 does. */' 'void stw_one(int a, int b, int c, int d,' \
        '             void (*then)(int, int), char f, int g) {' '    then(a, b);' '}' \
        >"$tree/engines/one.c"
    printf '%s\n' "$spdx" 'void stw_two(void) { stw_one(1, 2, 3, 4, stw_then, 6, 7); }' \
        >"$tree/engines/two.c"
    {
        echo '| `core/` | x |'
        for name in models plan engines planner sim backend docs; do echo "| \`$name/\` | x |"; done
    } >"$tree/docs/architecture.md"
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
for check in includes spdx size folders pairs arguments frameworks products; do expect pass $check "a good tree"; done
refuse includes core/e.c '#include "models/model.h"'
refuse includes models/e.c '#include "plan/files/plan.h"'
refuse includes sim/e.c '#include "planner/solve.h"'
refuse includes backend/e.c '#include "sim/sim.h"'
refuse includes plan/spec/e.c '#include "cli/common.h"'
refuse includes plan/spec/e.c '#include "library/handles.h"'
refuse includes include/stowage.h '#include "core/a.h"'
refuse includes library/e.c '#include "reports/reports.h"'
refuse includes plan/spec/e.c '#include "b.h"'
refuse includes plan/spec/e.c '#  include "../core/a.h"'
refuse includes planner/e.c '#include <glpk.h>'
refuse includes plan/spec/e.h '#include <cuda_runtime_api.h>'
refuse includes backend/e.h '#include <cuda.h>'
refuse includes backend/host/e.c '#include "backend/cuda/cuda.h"'
refuse includes models/reader.c '#include <csv.h>'
refuse includes plan/spec/e.c '#include <jansson.h>'
refuse includes backend/e.c '#include <mpi.h>'
refuse includes plan/spec/e.c '#include "engines/e.h"'
refuse includes plan/spec/e.h '#include "plan/job/job.h"'
refuse includes plan/program/e.c '#include "engines/e.h"'
refuse includes blocks/e.c '#include "engines/e.h"'
refuse includes engines/e.c '#include "planner/planner.h"'
refuse includes engines/one/e.c '#include "engines/other/e.h"'
refuse includes engines/e.c '#include "engines/other/e.h"'
refuse includes plan/e.c '#include "plan/spec/e.h"'
refuse pairs engines/one.c 'void stw_three(void) { stw_two(); }'
refuse pairs engines/one.h '#define STW_ONE stw_two()'
refuse pairs engines/one.c 'static void (*const calls[])(void) = {stw_two};'
refuse arguments plan/spec/e.c 'int f(int a, int b, int c, int d, int e, int f, int g, int h) { return 0; }'
refuse arguments plan/spec/e.c "$(printf 'static void\nf(int a, int b, int c, int d,\n  /* x) { */ int (*e)(int), int f, int g,\n  int h) {\n}')"
refuse arguments plan/spec/e.h 'static inline int f(int a, int b, int c, int d, int e, int f, int g, int h) { return 0; }'
refuse frameworks core/e.c '/* as in FSDP */'
refuse frameworks plan/spec/e.h 'struct megatron;'
refuse frameworks planner/e.c 'int x = strcmp(name, "DeepSpeed");'
refuse frameworks planner/e.c '/* ZeRO-3 */'
refuse frameworks backend/cuda/e.cu '/* see verl */'
refuse frameworks cli/e.c '/* AReaL pull request 1 */'
refuse locale cli/e.c 'void f(void) { (void)setlocale(LC_ALL, ""); }'
refuse locale backend/host/e.c 'void f(void) { (void)uselocale(0); }'
refuse locale planner/e.c 'void f(void) { (void)pthread_create(&t, NULL, f, NULL); }'
refuse locale library/e.c 'void f(void) { (void)stw_library_begin(error); }'
refuse size core/a.h "$(printf '\tint x;')"
refuse size core/a.h "int x; "
refuse size core/a.h "/* $(printf '%0100d' 0) */"
refuse size core/a.h "$(yes '' | head -n 900; echo 'int x;')"
refuse products plan/spec/e.c 'uint64_t f(uint64_t n_params, uint64_t b) { return n_params * b; }'
refuse products sim/e.c 'uint64_t f(uint64_t a, uint64_t b) { return a * stw_job_element_bytes(b); }'
refuse products planner/e.c 'void f(struct x *x) { x->row[1].bytes *= 2; }'
refuse products backend/executor/e.c "$(printf 'uint64_t f(struct x *x) {\n    return (uint64_t)x->n *\n           x->units[x->at];\n}')"
refuse products library/e.c "$(printf 'double f(double bytes) {\n    return 2 * bytes;\n}\nuint64_t g(uint64_t bytes) {\n    return 2 * bytes;\n}')"
refuse products engines/bytes.c 'uint64_t f(uint64_t bytes) { return 1 + bytes; }'
refuse products backend/e.h 'static uint64_t f(uint64_t a) { return a * (1 + the_tokens); }'
for line in 'double f(uint64_t bytes) { return 2.5 * bytes; } /* bytes * bytes */' 'uint64_t *bytes = at(&x[3 * i].bytes), n = 2 * 3;' \
    'double f(uint64_t bytes, double rate) { return rate * (double)bytes; }' 'void *f(int n) { return malloc(n * sizeof *all->bytes); }' \
    'uint64_t f(uint64_t bytes) { return stw_times(2, bytes) + bytes; }' 'const char *f(void) { return "bytes * 2"; }'; do
    fresh && echo "$line" >>"$tree/sim/e.c" && expect pass products "$line"
done
fresh && echo 'int x;' >"$tree/core/f.c" && expect fail spdx "a file without the line"
fresh && printf '#include "core/x.h"\n' >"$tree/core/y.h" && printf '#include "core/y.h"\n' >"$tree/core/x.h" &&
    expect fail pairs "two headers that include each other"
fresh && mkdir -p "$tree/planner/frameworks" && echo '/* verl */' >"$tree/planner/frameworks/e.c" &&
    expect pass frameworks "the folder of frameworks"
fresh && mkdir "$tree/cellar" && touch "$tree/cellar/x" &&
    expect fail folders "a folder that the table lacks"
fresh && echo '| `attic/` | x |' >>"$tree/docs/architecture.md" &&
    expect fail folders "a folder that is not there"
fresh && printf 'See [this](docs/architecture.md#rooms), `[a](b)` and [that](https://a.b/c).\n' >"$tree/README.md" &&
    expect pass links "links that lead somewhere"
fresh && printf 'See [up](../README.md).\n' >"$tree/docs/a.md" && expect fail links "a link to no file"
rm -rf "$tree"
exit $bad
