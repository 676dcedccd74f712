#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A disk that fills loses nothing: the save is a warning that names path, found and expected, what is left of it goes, the
# checkpoints before it stay, and the run goes on to its end. What is damaged is named by `state` and by a resume, before use.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
tiny_model
rm -rf disk
plan_of disk 1 precision.params=bf16 precision.master=fp32 placement.moments=host
run_of disk 1 --steps 2 || { cat run-disk.txt; fail "without saves"; }
reference=$(all_digests run-disk.json)
run_of disk 1 --steps 1 --checkpoint disk || { cat run-disk.txt; fail "the first save"; }

# a limit on the size of files, of 40 MiB, stands for the disk
(
    # shellcheck disable=SC3045 # dash and bash have it; what has not is skipped
    ulimit -f 81920 2>/dev/null || exit 77
    trap '' XFSZ
    run_of disk 1 --steps 2 --checkpoint disk --every 1 --keep 1 --resume disk
) || { cat run-disk.txt; fail "a full disk ends the run"; }
grep -q "the checkpoint of step 2 was not saved: disk/.step-00000002.*safetensors: cannot be made longer: .*; found .* free, expected .* rank 0" run-disk.txt ||
    { cat run-disk.txt; fail "the warning"; }
[ "$(all_digests run-disk.json)" = "$reference" ] || fail "the run does not go on"
[ "$(ls -A disk | grep -c step)" = 1 ] || { ls -A disk; fail "something is left"; }
"$STOWAGE" state verify disk >verify.txt || { cat verify.txt; fail "the checkpoint before"; }

# list, verify, remove
run_of disk 1 --steps 2 --checkpoint disk --resume disk || { cat run-disk.txt; fail "the second save"; }
[ "$(all_digests run-disk.json)" = "$reference" ] || fail "resumed"
"$STOWAGE" state list disk | grep -q " step-00000002 .* yes" || fail "list"
mkdir disk/.step-00000007.0123456789abcdef.partial
"$STOWAGE" state list disk --json | grep -q '"complete": false' || fail "an incomplete one"
"$STOWAGE" state list "$PWD/disk" >list.txt
grep -q " .step-00000007.0123456789abcdef.partial " list.txt || { cat list.txt; fail "a name is cut"; }
tr -s ' \n' ' ' <list.txt | grep -q "3 checkpoints in $PWD/disk. To remove those that are not complete: stowage state remove $PWD/disk" ||
    { cat list.txt; fail "the folder"; }
expect 0 "1 of 3 checkpoints removed; to remove one that is complete, name its folder" "$STOWAGE" state remove disk
# folders of other programs have such names, too; links lead elsewhere
mkdir -p disk/step-00000099 precious
: >disk/step-00000099/theirs
: >precious/file
ln -s ../precious disk/.step-00000098.0123456789abcdef.partial
expect 0 "step-00000099: has neither manifest nor marker and is not removed" "$STOWAGE" state remove disk
[ -f disk/step-00000099/theirs ] && [ -f precious/file ] && [ ! -e disk/.step-00000098.0123456789abcdef.partial ] || fail "more is removed"
rm -r disk/step-00000099
printf x | dd of=disk/step-00000002/optimizer-00001-of-00001.safetensors bs=1 seek=20000000 conv=notrunc 2>/dev/null
expect 8 "1 of 2 checkpoints: damaged or not complete" "$STOWAGE" state verify disk
grep -q "1 part damaged; the first:" expect.out || { cat expect.out; fail "verify"; }
expect 8 "optimizer-00001-of-00001.safetensors: is damaged: its .* bytes from .* that rank 0 wrote (from .* on) have hash" \
    "$STOWAGE" run plan-disk.json --backend host --steps 3 --resume disk
rm disk/step-00000002/rank-00000.done
run_of disk 1 --steps 2 --resume disk || { cat run-disk.txt; fail "an incomplete one is passed over"; }
grep -q "is not complete.*passed over" run-disk.txt && grep -q "resumed from disk/step-00000001" run-disk.txt || { cat run-disk.txt; fail "the one before"; }
expect 0 "removed disk/step-00000002" "$STOWAGE" state remove disk/step-00000002/
: >file
expect 3 "file/.lock: cannot be opened: Not a directory" "$STOWAGE" run plan-disk.json --backend host --steps 1 --checkpoint file
expect 3 "file: cannot be opened: Not a directory" "$STOWAGE" run plan-disk.json --backend host --steps 1 --resume file
# what stands where a checkpoint is to be stays, and the checkpoint is found under its first name
mkdir -p stands
: >stands/step-00000003
run_of disk 1 --steps 3 --checkpoint stands || { cat run-disk.txt; fail "a file in the way"; }
grep -q "was not saved: stands/step-00000003: found something else than a checkpoint: it stays, and the new one is stands/.step" run-disk.txt ||
    { cat run-disk.txt; fail "in the way"; }
run_of disk 1 --steps 3 --resume stands || { cat run-disk.txt; fail "resumed from the first name"; }
expect 2 "has no effect without --checkpoint" "$STOWAGE" run plan-disk.json --backend host --every 2

# weights are read from a checkpoint as from any such folder, and its config.json goes with them
cp tiny/config.json disk/step-00000001/
run_of disk 1 --steps 1 --weights disk/step-00000001 --checkpoint again || { cat run-disk.txt; fail "as weights"; }
cmp again/step-00000001/config.json tiny/config.json || fail "config.json"
echo "checkpoint_disk: ok"
