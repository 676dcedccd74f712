#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ./demo shows a job that fits on this machine, and no times of what nobody would run on it. The programs
# of this build take the place of those that the demo builds.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
mkdir -p scripts tools build/bin build/generated
cp "$STW_SOURCE_DIR/demo" demo
printf '#!/bin/sh\n' >scripts/packages
printf '#!/bin/sh\n' >tools/cmake
: >build/generated/stw_config.h
chmod +x scripts/packages tools/cmake
folder=$(dirname "$STOWAGE")
printf '#!/bin/sh\nexec "%s" "$@"\n' "$STOWAGE" >build/bin/stowage
printf '#!/bin/sh\nexec "%s/stowage-run" "$@"\n' "$folder" >build/bin/stowage-run
chmod +x build/bin/stowage build/bin/stowage-run
PATH=$PWD/tools:$PATH STEPS=2 ./demo >demo.txt 2>&1 || { cat demo.txt; fail "./demo"; }
! grep "does not fit" demo.txt || fail "the demo shows a plan that does not fit"
grep -q "fits on 1 node" demo.txt || { cat demo.txt; fail "no verdict"; }
grep -q "0 mismatches" demo.txt || fail "nothing was verified"
if build/bin/stowage-run --probe | grep -q '^  gpus: 0'; then
    ! grep "[0-9] min\|tokens/s\|hours\|forward_backward [0-9]" demo.txt || fail "times of what nobody would run"
fi
for file in plan.json trace.json run.json report.md; do
    [ -s "build/demo/$file" ] || fail "no $file"
done
echo "demo: ok"
