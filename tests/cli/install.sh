#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installation may be moved anywhere; the library is found by pkg-config and compiles with one
# header; stowage-run is free of the solver, and neither program needs MPI to start.
set -u
[ -z "${STW_SANITIZE:-}" ] || { echo "not with sanitizers"; exit 77; }
prefix=$PWD/moved
rm -rf "$prefix" "$PWD/prefix"
fail() { echo "FAIL: $*"; exit 1; }

"$STW_CMAKE" --install "$STW_BUILD_DIR" --prefix "$PWD/prefix" >install.log || fail "cmake --install"
mv "$PWD/prefix" "$prefix"

for program in stowage stowage-run; do
    env -i PATH=/usr/bin:/bin "$prefix/bin/$program" --version >version.txt ||
        fail "$program --version"
    grep -q '[0-9]\.[0-9]' version.txt || fail "$program --version names no version"
done
# No STOWAGE_DATA: the zoo is found beside the program.
env -i PATH=/usr/bin:/bin "$prefix/bin/stowage" inspect Qwen3-0.6B --json >inspect.json ||
    fail "the moved program does not find its zoo"
grep -q '596049920' inspect.json || fail "Qwen3-0.6B has 596049920 parameters"

ldd "$prefix/bin/stowage-run" >ldd.txt
if grep -E 'glpk|libcsv|libmpi|libnccl' ldd.txt; then fail "stowage-run must not need these"; fi
ldd "$prefix/bin/stowage" >ldd.txt
if grep -E 'libmpi|libcuda|libnccl' ldd.txt; then fail "stowage must not need these"; fi

cat >user.c <<'END'
#include <stdio.h>
#include <stowage.h>

int main(void) {
    stw_error err = STW_ERROR_INIT;
    char text[200];
    stw_error_format(&err, text, sizeof text);
    return printf("%s\n", text) < 0;
}
END
command -v pkg-config >/dev/null || { echo "no pkg-config"; exit 77; }
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name stowage.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
# pkg-config quotes for a shell: a path may hold spaces.
compile() {
    eval "\"\$STW_CC\" -std=c11 -Wall -Wextra -Werror $(pkg-config --cflags stowage) user.c -o user $*"
}
if [ -e "$libdir/libstowage.so" ]; then
    compile "$(pkg-config --libs stowage)" || fail "compiling against libstowage.so"
    LD_LIBRARY_PATH=$libdir ./user || fail "running with libstowage.so"
fi
static=$(pkg-config --static --libs stowage | sed 's/-lstowage/-l:libstowage.a/')
compile "$static" || fail "compiling against libstowage.a"
./user || fail "running with libstowage.a"
rm -rf "$prefix"
