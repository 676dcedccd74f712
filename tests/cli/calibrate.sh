#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# calibrate writes a cluster.yaml with date, versions and raw samples that plan accepts, and warns of
# unsuitable settings. Buffers are small here: the rates have no meaning.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
export STOWAGE_PROBE_BYTES=64MiB CUDA_VISIBLE_DEVICES=
unset OMP_NUM_THREADS

"$STOWAGE" calibrate --quick -o quick.yaml 2>quick.err || { cat quick.err >&2; fail "calibrate --quick"; }
"$STOWAGE" calibrate -o full.yaml 2>full.err || { cat full.err >&2; fail "calibrate"; }
for file in quick.yaml full.yaml; do
    grep -q "^  measured: true" $file || fail "$file is not measured"
    grep -q "^  date: \"20[0-9][0-9]-[01][0-9]-[0-3][0-9]\"" $file || fail "$file has no date"
    grep -q "^  versions: .*Stowage" $file || fail "$file has no versions"
    grep -q "^  - {what: \"cpu_adamw\", detail: .*, unit: \"param/s\", values: \[[0-9]" $file ||
        fail "$file has no samples of cpu_adamw"
    "$STOWAGE" plan --model tiny --cluster $file -o $file.plan.json >/dev/null ||
        fail "plan does not accept $file"
    # Plans hold the figures and not the samples.
    grep -q '"cpu_adamw"' $file.plan.json || fail "the plan of $file has no cpu_adamw"
    ! grep -q '"samples"' $file.plan.json || fail "the plan of $file holds samples"
done

"$STOWAGE" calibrate --quick --json >cluster.json 2>/dev/null
[ "$(member cluster.json measured)" = true ] || fail "--json is not measured"
grep -q '"samples": \[' cluster.json || fail "--json has no samples"
[ "$(member cluster.json cpu_adamw)" != 0 ] || fail "--json has no cpu_adamw"

# --probe measures nothing
"$STOWAGE_RUN" --probe >probe.yaml 2>/dev/null
grep -q "^  measured: false" probe.yaml || fail "--probe says that it measured"
! grep -q "samples" probe.yaml || fail "--probe has samples"

# traps
cores=$(sed -n 's/^    cores: \([0-9]*\).*/\1/p' probe.yaml)
if [ "$cores" -gt 1 ]; then
    OMP_NUM_THREADS=1 "$STOWAGE_RUN" --probe 2>&1 >/dev/null | grep -q "OMP_NUM_THREADS=1" ||
        fail "OMP_NUM_THREADS=1 is not warned of"
    ! grep -q OMP_NUM_THREADS quick.err || fail "a warning without a reason"
    if command -v taskset >/dev/null; then
        taskset -c 0 "$STOWAGE_RUN" --probe 2>&1 >narrow.yaml | grep -q "affinity" ||
            fail "the affinity mask is not warned of"
        grep -q "^    cores: 1" narrow.yaml || fail "cores that may not be used are counted"
    fi
fi

# no disk, or no such folder: warnings, no failure
"$STOWAGE" calibrate --quick --nvme /no-such-folder -o nodisk.yaml 2>nodisk.err || fail "a disk is needed"
grep -q "disk is not measured" nodisk.err || fail "the missing disk is not warned of"
grep -q "capacity: 0 B" nodisk.yaml || fail "a missing disk has a capacity"
expect 3 "STOWAGE_PROBE_BYTES" env STOWAGE_PROBE_BYTES=lots "$STOWAGE" calibrate --quick
echo "calibrate: ok"
