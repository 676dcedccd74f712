#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The installed package: one header, libraries that export what it declares and nothing else, and a
# program that does the main job with them, in C and in C++, against the shared and the static one.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
[ -z "${STW_SANITIZE:-}" ] || { echo "not with sanitizers"; exit 77; }
command -v pkg-config >/dev/null || { echo "no pkg-config"; exit 77; }
# A path with a space, and not the prefix that was configured: the package may be moved.
prefix="$PWD/an installation"
rm -rf "$prefix" "$PWD/prefix"
"$STW_CMAKE" --install "$STW_BUILD_DIR" --prefix "$PWD/prefix" >install.log || fail "cmake --install"
mv "$PWD/prefix" "$prefix"

# ---- what is installed, and what it exports ----
(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ') >headers.txt
[ "$(cat headers.txt)" = "./stowage.h ./stowage_checkpoint.h " ] || { cat headers.txt; fail "two headers are installed"; }
"$STW_CC" -E -P -std=c99 "$prefix/include/stowage.h" | grep -oE '\bstw_[a-z0-9_]+ *\(' |
    tr -d ' (' | sort -u >declared.txt
[ "$(wc -l <declared.txt)" -ge 30 ] || fail "the header declares too few functions"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name stowage.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
exports() { # exports FILE NM-OPTIONS...: what a library defines for others
    file=$1
    shift
    nm "$@" --defined-only "$file" | awk 'NF == 3 { print $3 }' | sort -u >exported.txt
    diff declared.txt exported.txt || fail "$file: < declared, > exported"
}
exports "$libdir/libstowage.a" -g
kinds=static
if [ -e "$libdir/libstowage.so" ]; then
    kinds="static shared"
    exports "$libdir/libstowage.so" -D
    ldd "$libdir/libstowage.so" >ldd.txt
    if grep -E 'glpk|libmpi|libnccl' ldd.txt; then fail "libstowage.so must not need these"; fi
fi

# ---- the program ----
tiny_cluster 1
mkdir -p small
cat >small/config.json <<'EOF'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 32,
 "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 2, "num_hidden_layers": 3,
 "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "vocab_size": 3000, "max_position_embeddings": 4096}
EOF
# pkg-config quotes for a shell: a path may hold spaces.
compile() { # compile LANGUAGE KIND [PROGRAM]
    libs=$(pkg-config --libs stowage)
    [ "$2" = shared ] || libs=$(pkg-config --static --libs stowage | sed 's/-lstowage/-l:libstowage.a/')
    case $1 in
    c) compiler="\"\$STW_CC\" -std=c99 -Wpedantic" ;;
    *) compiler="\"\$STW_CXX\" -std=c++11 -x c++" ;;
    esac
    eval "$compiler -Wall -Wextra -Wshadow -Werror $(pkg-config --cflags stowage)" \
        '"$STW_SOURCE_DIR/tests/package/${3:-main_job}.c" -x none' "-o ${3:-main_job}_$1_$2 $libs"
}
h200=$prefix/share/stowage/examples/h200-x1.yaml
languages=c
if command -v "${STW_CXX:=c++}" >/dev/null; then languages="c c++"; else echo "no C++ compiler"; fi
for kind in $kinds; do
    for language in $languages; do
        program=main_job_${language}_$kind
        compile "$language" "$kind" || fail "$language against the $kind library"
        # STOWAGE_DATA only for the static library: nothing says where a program's data lie.
        data=
        [ "$kind" = shared ] || data=$prefix/share/stowage
        LD_LIBRARY_PATH=$libdir STOWAGE_DATA=$data "./$program" small tiny.yaml "$h200" >"$program.txt" ||
            { cat "$program.txt"; fail "$program"; }
        tail -n 1 "$program.txt" | grep -q 'main job: ok' || fail "$program said something else"
    done
done
# The plugin for MPI is found near the library.
ranks=1
if [ "${STW_WITH_MPI:-OFF}" = ON ] && [ "$kinds" != static ] &&
    command -v "${STW_MPIEXEC:=mpirun}" >/dev/null; then
    ranks="1 and 2"
    compile c shared ranks || fail "ranks against the shared library"
    tiny_cluster 2
    LD_LIBRARY_PATH=$libdir "$STW_MPIEXEC" -n 2 ./ranks_c_shared small tiny.yaml >ranks.txt 2>&1 ||
        { cat ranks.txt; fail "two ranks"; }
    grep -q 'ranks: ok' ranks.txt || { cat ranks.txt; fail "two ranks said something else"; }
fi
"$STOWAGE" simulate plan.json >/dev/null || fail "the programs read the library's plan"
"$STOWAGE" validate plan.json run.json >validate.txt ||
    fail "the programs read the library's result and agree with it"
rm -rf "$prefix"
echo "package: $languages, $kinds, $ranks ranks, $(wc -l <declared.txt) functions"
