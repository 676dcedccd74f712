#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Planning in too little memory: at every limit of the address space a plan or an error, never an abort.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
E=$STW_SOURCE_DIR/models/examples

# sanitizers reserve more address space than any limit here
(ulimit -v 4000000 && "$STOWAGE" --version) >/dev/null 2>&1 || exit 77

errors=0 plans=0
limited() { # KIB WANTED ARGUMENTS
    kib=$1 wanted=$2 code=0
    shift 2
    (ulimit -v "$kib" && exec "$STOWAGE" plan "$@") >limited.out 2>limited.err || code=$?
    case $code in
    1 | 127) # 127: the program itself does not start
        [ -s limited.err ] || fail "$kib KiB: exit $code without a word"
        errors=$((errors + 1))
        ;;
    "$wanted") plans=$((plans + 1)) ;;
    *) fail "$kib KiB: exit $code: $(cat limited.err)" ;;
    esac
}
kib=6500
while [ $kib -le 14000 ] || { [ $plans -le 3 ] && [ $kib -le 40000 ]; }; do
    limited $kib 0 --model Qwen3-0.6B --cluster "$E/h200-x1.yaml" --set "node.gpu.memory=12 GiB"
    limited $kib 4 --model Qwen3-0.6B --cluster "$E/h200-x1.yaml" --set batch.micro_batch=4096
    kib=$((kib + 500))
done
[ $errors -gt 3 ] || fail "only $errors limits were too low"
[ $plans -gt 3 ] || fail "only $plans limits were enough"
echo "memory: $errors errors, $plans plans"
