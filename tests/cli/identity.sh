#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The identity of a build follows from the contents of the sources that compute and from the compiler: not from the folder,
# the date or what does not compute; it is made anew in a build that goes on.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
rm -rf one two three
mkdir -p one/source
for folder in core models plan blocks engines backend cmake; do cp -r "$STW_SOURCE_DIR/$folder" one/source/ 2>/dev/null; done
cat >one/source/CMakeLists.txt <<'EOF2'
cmake_minimum_required(VERSION 3.25)
project(identity LANGUAGES C)
include(cmake/StwIdentity.cmake)
stw_identity("${PROJECT_BINARY_DIR}/generated")
add_executable(show main.c core/build.c "${PROJECT_BINARY_DIR}/generated/core/build_identity.inc")
target_include_directories(show PRIVATE . "${PROJECT_BINARY_DIR}/generated")
EOF2
cat >one/source/main.c <<'EOF2'
#include <stdio.h>
#include "core/build.h"
int main(void) { return puts(stw_build_identity()) < 0; }
EOF2
cp -r one two

# built FOLDER [OPTION...]: the identity that the program there shows, built or built again
built() {
    folder=$1
    shift
    "$STW_CMAKE" -S "$folder/source" -B "$folder/build" -DCMAKE_C_COMPILER="$STW_CC" "$@" >"$folder/log.txt" 2>&1 &&
        "$STW_CMAKE" --build "$folder/build" >>"$folder/log.txt" 2>&1 || { cat "$folder/log.txt"; fail "no build in $folder"; }
    "$folder/build/show"
}
# again FOLDER: built on, without configuring
again() {
    "$STW_CMAKE" --build "$1/build" >"$1/log.txt" 2>&1 || { cat "$1/log.txt"; fail "no build in $1"; }
    "$1/build/show"
}

first=$(built one)
echo "$first" | grep -q -x '[0-9a-f]\{16\}' || fail "found \"$first\""
touch two/source/backend/element.h two/source/core/*.c
[ "$(built two)" = "$first" ] || fail "another folder, another date: another identity"
[ "$(again one)" = "$first" ] || fail "built on without a change: another identity"
[ "$(built two -DCMAKE_C_FLAGS="-Wall -g -ffile-prefix-map=/a=/b -I/usr/include")" = "$first" ] ||
    fail "flags that change no code change the identity"
[ "$(built two -DCMAKE_C_FLAGS=-ffast-math)" != "$first" ] || fail "-ffast-math does not change the identity"
[ "$(built two -DCMAKE_C_FLAGS=)" = "$first" ] || fail "the first flags have another identity"

# Every change is seen in a build that goes on, and taken back by its removal.
for file in backend/element.h backend/norm.h backend/cuda/kernels.cu backend/host/loops_adamw_body.h backend/executor/ops.c \
    plan/program/program.c engines/stowage/step.c plan/spec/run_spec.h models/safetensors.c core/checked.h; do
    cp "one/source/$file" kept
    echo "/* another */" >>"one/source/$file"
    [ "$(again one)" != "$first" ] || fail "$file: a change is not in the identity"
    cp kept "one/source/$file"
    [ "$(again one)" = "$first" ] || fail "$file: changed back, and another identity"
done
echo "/* new */" >one/source/backend/new.c
[ "$(built one)" != "$first" ] || fail "a new source is not in the identity"
echo "identity: ok ($first)"
