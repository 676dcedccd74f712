#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `cmake --install build` works after ./demo: the target that demo builds holds all that is installed.
set -eu
fail() { echo "FAIL: $*"; exit 1; }
[ -z "${STW_SANITIZE:-}" ] || { echo "not with sanitizers"; exit 77; }
target=$(sed -n 's/.*cmake --build build .*--target //p' "$STW_SOURCE_DIR/demo")
[ "$(echo "$target" | wc -l)" = 1 ] || fail "demo builds in more than one place"

# Without CUDA: its kernels take minutes to compile and are not what is tested.
launcher=$(sed -n 's/^CMAKE_C_COMPILER_LAUNCHER:[A-Z]*=//p' "$STW_BUILD_DIR/CMakeCache.txt")
rm -rf fresh prefix
"$STW_CMAKE" -S "$STW_SOURCE_DIR" -B fresh -DSTW_CUDA=OFF -DCMAKE_C_COMPILER="$STW_CC" \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" >configure.log || fail "configure"
# shellcheck disable=SC2086
"$STW_CMAKE" --build fresh --parallel 2 --target $target >build.log 2>&1 || { cat build.log; fail "build"; }
"$STW_CMAKE" --install fresh --prefix "$PWD/prefix" >install.log 2>&1 || { cat install.log; fail "cmake --install after demo's build"; }
"$STW_CMAKE" --install "$STW_BUILD_DIR" --prefix "$PWD/full" >full.log 2>&1 || fail "cmake --install"
(cd prefix && find . ! -type d | sort) >found.txt
(cd full && find . ! -type d | sort) >wanted.txt
diff wanted.txt found.txt || fail "an installation after demo lacks files"
rm -rf fresh prefix full
echo "demo install: ok"
