#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Closed descriptors, full devices, the limit on file sizes, and inputs that are no regular files.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml -q -o plan.json
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme -q -o nvme.json

# descriptors 0 to 2 that are closed are /dev/null, in both programs: no file gets their numbers. What is written to one
# that was closed is an error.
closed() { expect 1 "$1: cannot be written: it is closed" sh -c '"$@" >&-' sh "$STOWAGE" $2; }
for words in --help --version models "inspect tiny" "simulate plan.json" "report plan.json" "run --help" \
    "run plan.json --backend host --steps 1" "plan --model tiny --cluster tiny.yaml --json"; do
    closed "standard output" "$words"
done
closed /dev/stdout "plan --model tiny --cluster tiny.yaml -q -o /dev/stdout"
expect 1 "standard input: cannot be read: it is closed" sh -c '"$0" simulate - <&-' "$STOWAGE"
"$STOWAGE" plan --model tiny --cluster tiny.yaml -q -o closed.json <&- >&- 2>&-
cmp -s plan.json closed.json || [ "$(member plan.json hash)" = "$(member closed.json hash)" ] ||
    fail "another plan with closed descriptors"
mkdir -p state
rm -f state/*
for program in "$STOWAGE run" "$STOWAGE_RUN"; do
    # shellcheck disable=SC2086 # a program and its argument
    $program nvme.json --backend host --steps 1000000 --nvme state <&- >&- 2>&- &
    pid=$!
    tries=0
    until ls -l "/proc/$pid/fd" 2>/dev/null | grep -q "state/"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "no file of state after 20 s: $program"
        sleep 0.1
    done
    for fd in 0 1 2; do
        target=$(readlink "/proc/$pid/fd/$fd")
        [ "$target" = /dev/null ] || { kill $pid; fail "descriptor $fd of $program is $target"; }
    done
    kill $pid
    wait $pid || true
done
rm -rf state

# whatever stdout does not take is an error with a message
full() { expect 1 "standard output: cannot be written" sh -c '"$@" >/dev/full' sh "$@"; }
for words in --help --version help "help plan" "plan --help" models clusters "inspect tiny" "clusters --show h100-80g-x8" \
    "plan --model tiny --cluster tiny.yaml" "plan --model tiny --cluster tiny.yaml --json" "simulate plan.json" \
    "report plan.json" "run --help" "run plan.json --backend host --steps 1" \
    "run plan.json --backend host --steps 1 --json"; do
    # shellcheck disable=SC2086 # several words
    full "$STOWAGE" $words
done
for words in --help --version --probe "plan.json --backend host --steps 1"; do
    # shellcheck disable=SC2086
    full "$STOWAGE_RUN" $words
done
expect 1 "/dev/full: the problem cannot be written: No space" "$STOWAGE" plan --model tiny --cluster tiny.yaml \
    --write-lp /dev/full
expect 1 "/dev/full: cannot be written: No space" "$STOWAGE" plan --model tiny --cluster tiny.yaml -o /dev/full

# the limit on file sizes (1 KiB or 512 B) is an error, and leaves neither a part nor a temporary file
limited() { sh -c 'ulimit -f 1; exec "$@"' sh "$@"; }
mkdir -p small
echo old >small/p.json
expect 1 "small/p.json: cannot be written: File too large" limited "$STOWAGE" plan --model tiny --cluster tiny.yaml \
    -o small/p.json
[ "$(cat small/p.json)" = old ] || fail "a failed write replaced a file"
expect 1 "small/p.lp: the problem cannot be written: File too large" limited "$STOWAGE" plan --model tiny \
    --cluster tiny.yaml --write-lp small/p.lp
expect 1 "small/trace.json: cannot be written: File too large" limited "$STOWAGE_RUN" plan.json --backend host --steps 1 \
    --trace small/trace.json
[ "$(ls -A small)" = p.json ] || fail "left behind: $(ls -A small)"

# a FIFO is written at once or refused; descriptors are written where they stand; a link stays a link
rm -rf way && mkdir -p way/sub && mkfifo way/fifo && ln -s sub/p.json way/link
tiny_plan() { timeout 120 "$STOWAGE" plan --model tiny --cluster tiny.yaml -q "$@"; }
expect 3 "way/fifo: is a FIFO that no process reads" tiny_plan -o way/fifo
expect 3 "way/fifo: is a FIFO that no process reads" tiny_plan --write-lp way/fifo
expect 3 "way/no/p.json: cannot be written: its folder does not exist" tiny_plan -o way/no/p.json
cat way/fifo >way/read.json &
exec 3>way/fifo # when it is open, cat has it open
tiny_plan -o way/fifo || fail "a FIFO with a reader: exit $?"
exec 3>&-
wait $!
[ "$(member way/read.json hash)" = "$(member plan.json hash)" ] || fail "a FIFO got another plan"
{ echo first && tiny_plan -o /dev/stdout; } >way/out
[ "$(head -n 1 way/out)" = first ] || fail "/dev/stdout is replaced or cut"
[ "$(tail -n +2 way/out | wc -l)" = "$(wc -l <plan.json)" ] || fail "/dev/stdout got another plan"
for turn in 1 2; do # its target does not exist, then it does
    tiny_plan -o way/link
    [ -L way/link ] && [ ! -L way/sub/p.json ] && [ -s way/sub/p.json ] || fail "a link is replaced ($turn)"
done
[ "$(ls -A way way/sub | sort | tr '\n' ' ')" = " fifo link out p.json read.json sub way/sub: way: " ] ||
    fail "left behind: $(ls -A way way/sub)"

# to open a FIFO would wait for a writer
rm -rf odd && mkdir -p odd && mkfifo odd/config.json odd/f.safetensors odd/f.yaml odd/f.json odd/f.csv
at_once() { expect 3 "$1" timeout 120 "$STOWAGE" $2; }
at_once "odd/f.json: is a FIFO, expected a regular file" "simulate odd/f.json"
at_once "odd/f.yaml: is a FIFO" "plan --model tiny --cluster odd/f.yaml"
at_once "odd/f.yaml: is a FIFO" "plan --model tiny --cluster tiny.yaml --run odd/f.yaml"
at_once "odd/config.json: is a FIFO" "inspect odd"
at_once "odd/f.csv: is a FIFO" "inspect odd/f.csv"
at_once "odd/f.safetensors: is a FIFO, expected a regular file" "inspect odd/f.safetensors"
at_once "odd/f.safetensors: is a FIFO" "run plan.json --backend host --weights odd/f.safetensors"
at_once "odd: is a folder" "simulate odd"
at_once "/dev/zero: is a device" "simulate /dev/zero"
# descriptors that are open already are read
"$STOWAGE" simulate /dev/stdin <plan.json >/dev/null
# shellcheck disable=SC2002 # a pipe is what is tested
cat plan.json | "$STOWAGE" simulate /dev/fd/0 >/dev/null
cat plan.json | "$STOWAGE" simulate - >/dev/null
echo "descriptors: ok"
