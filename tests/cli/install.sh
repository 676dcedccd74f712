#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installation may be moved anywhere; stowage-run is free of the solver, and neither program
# needs MPI to start. tests/package/ tests the library.
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
env -i PATH=/usr/bin:/bin "$prefix/bin/stowage" clusters p5en | grep -q H200 || fail "the moved program does not find its clusters"

# Manual pages, completions and examples lie where man and the shells look for them.
for file in man/man1/stowage.1 man/man1/stowage-explain.1 man/man1/stowage-run.1 bash-completion/completions/stowage \
    zsh/site-functions/_stowage fish/vendor_completions.d/stowage.fish stowage/examples/default.yaml; do
    [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
done

# The installed documents have no dead links.
docs=$(dirname "$(find "$prefix/share/doc" -name HACKING.md)")
[ -f "$docs/docs/library.md" ] || fail "no documents"
env -u STW_SOURCE_DIR sh "$STW_SOURCE_DIR/tests/lint/links.sh" "$docs" >links.txt || { cat links.txt; fail "dead links"; }

ldd "$prefix/bin/stowage-run" >ldd.txt
if grep -E 'glpk|libcsv|libmpi|libnccl' ldd.txt; then fail "stowage-run must not need these"; fi
ldd "$prefix/bin/stowage" >ldd.txt
if grep -E 'libmpi|libcuda|libnccl' ldd.txt; then fail "stowage must not need these"; fi

rm -rf "$prefix"
