#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# State on NVMe: what runs leave, how it is named, and `stowage state`.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme -o nvme.json >/dev/null
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=host -o host.json >/dev/null
rm -rf state
mkdir state
files() { find state -type f | wc -l | tr -d ' '; }
# The folder may lie on any file system: the build tree may be in memory.
run() { "$STOWAGE" run "$@" --backend host --nvme state --allow-tmpfs; }

# One copy: nothing has a name, whatever ends the run. Two copies: the file goes with a run that ends well.
run nvme.json --steps 2 -o one.json >/dev/null || fail "one copy"
run nvme.json --steps 2 --keep-state -o two.json >/dev/null || fail "two copies"
[ "$(files)" = 0 ] || fail "a run that ended well left files"
[ "$(digests one.json)" = "$(digests two.json)" ] || fail "copies change the result"
"$STOWAGE" validate nvme.json two.json >/dev/null || fail "a run with --keep-state is one of the plan"
run nvme.json --steps 2 >summary.txt || fail "summary"
grep -q "verification: [0-9]* of [0-9]* elements checked, 0 mismatches" summary.txt || fail "of how many elements"

# The plan's space is that of its copies.
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme --set placement.nvme_copies=2 -o twice.json >/dev/null
once=$(sed -n '/"nvme": {/,/}/s/^ *"total": \([0-9]*\).*/\1/p' nvme.json | sort -n | tail -n 1)
twice=$(sed -n '/"nvme": {/,/}/s/^ *"total": \([0-9]*\).*/\1/p' twice.json | sort -n | tail -n 1)
[ -n "$once" ] && [ "$twice" = $((2 * once)) ] || fail "two copies take $twice bytes, one $once"
expect 2 "no state on NVMe" "$STOWAGE" run host.json --backend host --keep-state
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme --set node.nvme.capacity=70MiB -o small.json >/dev/null
expect 1 "two take 79.29 MiB per node, the plan's cluster has 70.00 MiB. .*--set placement.nvme_copies=2" \
    "$STOWAGE" run small.json --backend host --nvme state --allow-tmpfs --keep-state
# plans say how many copies they count, and what two would take
"$STOWAGE" report --full nvme.json >one.txt
grep -q "NVMe .* 0.04 of 16.00 GiB per node (0.2%), one copy of the state" one.txt || fail "no count of copies"
grep -q "one copy, written in place.*placement.nvme_copies=2.*--keep-state.* 0.08 GiB per node\.$" one.txt || fail "what two copies take"
"$STOWAGE" report --full small.json | grep -q "0.08 GiB per node, more than it has" || fail "two copies do not fit"
"$STOWAGE" report twice.json | grep -q " 0.08 of 16.00 GiB per node (0.5%), two copies of the state" || fail "two copies"
run nvme.json --steps 1 --keep-state 2>&1 >/dev/null | grep -q "two copies.*placement.nvme_copies=2" || fail "run does not tell of two copies"
[ -z "$(run twice.json --steps 1 --keep-state 2>&1 >/dev/null)" ] || fail "the plan counts two copies, and run warns"

# stop SIGNAL FILE: a run that was stopped after some steps; its messages in FILE. A shell lets what it starts in the
# background ignore SIGINT; timeout does not, and sends it when it gets SIGALRM.
stop() {
    signal=$1 before=
    [ "$1" != INT ] || signal=ALRM before="timeout -s INT 60"
    $before "$STOWAGE" run nvme.json --backend host --nvme state --allow-tmpfs --steps 1000000 -q --keep-state 2>"$2" &
    pid=$!
    for wait in $(seq 300); do
        [ "$(files)" = 0 ] || break
        sleep 0.1
    done
    kill "-$signal" $pid
    wait $pid && fail "$1: the run did not end" || true
    [ "$(files)" = 1 ] || { cat "$2"; fail "$1: $(files) files after $wait"; }
}

# A signal names what is kept, also with -q; what SIGKILL left is named by the next run.
for name in TERM HUP INT USR1 XCPU; do
    stop "$name" stopped.txt
    path=$(find state -type f)
    grep -q "ended by SIG$name; no result is written" stopped.txt || { cat stopped.txt; fail "$name does not say what ended the run"; }
    grep -q "step [0-9]* is kept in $path; see: stowage state list state" stopped.txt || { cat stopped.txt; fail "$name names nothing"; }
    "$STOWAGE" state remove state | grep -q "removed $path" || fail "remove"
    [ "$(files)" = 0 ] || fail "remove left files"
done
stop KILL killed.txt
path=$(find state -type f)
run nvme.json --steps 1 -q -o next.json 2>next.txt || fail "the next run"
grep -q "1 file of .*$path; see: stowage state list state" next.txt || { cat next.txt; fail "the next run names nothing"; }

# list, verify
"$STOWAGE" state list state >list.txt || fail "list"
grep -q "$path *[1-9][0-9]* *0 of 1 .* yes .* ended" list.txt || { cat list.txt; fail "list"; }
"$STOWAGE" state list state --json | grep -q '"whole": true' || fail "list --json"
"$STOWAGE" state verify state >verify.txt || { cat verify.txt; fail "verify"; }
grep -q "all checksums are right" verify.txt || fail "verify says nothing"
size=$(stat -c %s "$path")
printf '\125' | dd of="$path" bs=1 seek=$((size / 4)) conv=notrunc 2>/dev/null
printf '\125' | dd of="$path" bs=1 seek=$((size * 3 / 4)) conv=notrunc 2>/dev/null
expect 8 "damaged; the first: bytes [0-9]* to [0-9]* (exp_avg" "$STOWAGE" state verify state
expect 8 '"damaged": true' "$STOWAGE" state verify state --json

# What only has the name of state is named, and hides nothing else.
mkfifo state/stowage-nvme-1-rank0.state
ln -s /etc/passwd state/stowage-nvme-2-rank0.state
"$STOWAGE" state list state >list.txt || fail "list beside a FIFO"
grep -q "$path " list.txt && grep -q "no: it is no regular file" list.txt && grep -q "no: it is a symbolic link" list.txt ||
    { cat list.txt; fail "list beside odd files"; }
expect 8 "it is no regular file" "$STOWAGE" state verify state
expect 3 "it is not removed" "$STOWAGE" state remove state/stowage-nvme-1-rank0.state
grep "stowage-nvme-2-rank0" list.txt | grep -q "unknown *unknown$" || { cat list.txt; fail "the age of a link"; }
"$STOWAGE" state list state --json | grep -q '"age_s": null' || fail "the age of a link in JSON"
rm state/stowage-nvme-1-rank0.state state/stowage-nvme-2-rank0.state

# What another version may read is removed by its own name alone.
head -c 20000 /dev/zero >state/stowage-nvme-9-rank0.state
expect 3 "no state of this version, and another may read it" "$STOWAGE" state remove state
[ -e state/stowage-nvme-9-rank0.state ] || fail "a file of another version was removed"
"$STOWAGE" state remove state/stowage-nvme-9-rank0.state >/dev/null || fail "remove a named file"
[ "$(files)" = 0 ] || fail "remove left files"

# Records count under their own header alone: another run of the same plan has the same sizes.
stop KILL killed.txt
mv "$(find state -type f)" other.state
stop KILL killed.txt
path=$(find state -type f)
"$STOWAGE" state verify state >/dev/null || fail "state of a killed run"
dd if=other.state of="$path" bs=4096 count=1 conv=notrunc 2>/dev/null
expect 8 "its records are of another run or rank than its header" "$STOWAGE" state verify state
"$STOWAGE" state list state | grep -q "no: its records are of another run or rank" || fail "list of another run's header"
printf '\003' | dd of="$path" bs=1 seek=8 conv=notrunc 2>/dev/null
expect 8 "the file has format 3, this program reads 4" "$STOWAGE" state verify state
rm "$path" other.state

# State that was destroyed while the run went on is not called kept.
destroy() { # SIGNAL COMMAND...
    signal=$1
    shift
    "$STOWAGE" run nvme.json --backend host --nvme state --allow-tmpfs --steps 1000000 -q --keep-state 2>destroyed.txt &
    pid=$!
    for wait in $(seq 300); do
        [ "$(files)" = 0 ] || break
        sleep 0.1
    done
    kill -STOP $pid
    path=$(find state -type f)
    "$@"
    kill "-$signal" $pid
    kill -CONT $pid
    wait $pid && fail "the run did not end" || true
    grep -q "is damaged: the header or the record was changed in $path; see: stowage state verify state" destroyed.txt ||
        { cat destroyed.txt; fail "destroyed state is called kept: $*"; }
    rm -f "$path"
}
cut() { truncate -s 4096 "$path"; }
spoil() { printf '\125' | dd of="$path" bs=1 seek=20 conv=notrunc 2>/dev/null; }
destroy TERM cut
destroy TERM spoil

# A limit on the size of files is a limit, exit 1.
expect 1 "File too large" sh -c 'ulimit -f 100; exec "$0" run nvme.json --backend host --nvme state --allow-tmpfs' "$STOWAGE"

# Files of a live run stay; other files are not ours.
echo mine >state/notes.txt
"$STOWAGE" run nvme.json --backend host --nvme state --allow-tmpfs --steps 1000000 -q --keep-state 2>/dev/null &
pid=$!
for wait in $(seq 300); do
    [ "$(files)" = 1 ] || break
    sleep 0.1
done
expect 2 "process $pid .* uses it" "$STOWAGE" state remove state
"$STOWAGE" state list state | grep -q running || fail "list of a live run after $wait"
[ "$(files)" = 2 ] || fail "a live run's file was removed"
live=$(cd state && ls -- *.state | head -n 1)
cp "state/$live" state/stowage-nvme-copied.state
"$STOWAGE" state list state >list.txt || fail "list of a copy"
grep -q "copied.state .* yes .* copy of a file of process $pid on" list.txt || { cat list.txt; fail "a copy is not called so"; }
grep "$live" list.txt | grep -q "process $pid on .*, running" || { cat list.txt; fail "the file beside its copy"; }
rm state/stowage-nvme-copied.state
kill -KILL $pid
wait $pid || true
"$STOWAGE" state remove state >/dev/null || fail "remove after the end"
[ "$(files)" = 1 ] || fail "remove took or left something"
expect 2 "expected FOLDER" "$STOWAGE" state remove
expect 3 "expected a folder" "$STOWAGE" state remove state/notes.txt
expect 2 "did you mean list" "$STOWAGE" state lists state
rm state/notes.txt
"$STOWAGE" state list state | grep -q "holds no state" || fail "an empty folder"

# What is no folder is called so, also where it lies in memory.
for path in /dev/null nvme.json; do
    expect 3 "$path: it is not a folder" "$STOWAGE" run nvme.json --backend host --nvme "$path"
done

# tmpfs is memory
for folder in /dev/shm /run; do
    [ "$(stat -f -c %T "$folder" 2>/dev/null)" = tmpfs ] && [ -w "$folder" ] || continue
    expect 2 "is memory (tmpfs) and no disk" "$STOWAGE" run nvme.json --backend host --nvme "$folder"
    break
done
echo "state: ok"
