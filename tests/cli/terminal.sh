#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Formats by suffix, standard input, -q and -v, help of commands; width and colour on a terminal.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@"; }
plan -o plan.json >summary.txt
"$STOWAGE" run plan.json --backend host --steps 1 -o run.json >/dev/null

# a suffix without a format is refused, the formats are listed, and nothing is written
for command in "inspect tiny" "simulate plan.json" "validate plan.json run.json" "report plan.json"; do
    # shellcheck disable=SC2086
    expect 2 ".txt .md .csv .json" "$STOWAGE" $command -o out.htm
done
expect 2 "formats: .json" plan -o out.htm
expect 2 "formats: .json" "$STOWAGE" run plan.json --backend host -o out.htm
expect 2 "formats: .yaml" "$STOWAGE" calibrate --quick -o out.htm
[ ! -e out.htm ] || fail "out.htm was written"
for name in out out.txt out.md out.csv out.json llama-3.1; do
    "$STOWAGE" report plan.json -o "$name" || fail "report -o $name"
    [ -s "$name" ] || fail "$name is empty"
done

# standard input
"$STOWAGE" report --full plan.json >file.txt
"$STOWAGE" report --full - <plan.json >stdin.txt
cmp -s file.txt stdin.txt || fail "report - differs from report of the file"
"$STOWAGE" report plan.json - <run.json >both.txt
grep -q "measured" both.txt || fail "report PLAN - has no measured values"
"$STOWAGE" simulate - <plan.json >/dev/null || fail "simulate -"
"$STOWAGE" validate plan.json - <run.json >/dev/null || fail "validate PLAN -"
"$STOWAGE" run - --backend host --steps 1 <plan.json >/dev/null || fail "run -"
"$STOWAGE" plan --model tiny --cluster - <tiny.yaml >/dev/null || fail "plan --cluster -"
echo 'batch: {seq_len: 128}' | plan --run - -o short.json >/dev/null || fail "plan --run -"
[ "$(member short.json seq_len)" = 128 ] || fail "--run - was not read"
expect 2 "standard input is given 2 times" sh -c '"$0" report - - <plan.json' "$STOWAGE"
expect 2 "standard input is given 2 times" sh -c '"$0" plan --model tiny --cluster - --run - <tiny.yaml' "$STOWAGE"
expect 3 "standard input:2" sh -c 'echo "{" | "$0" report -' "$STOWAGE"
expect 3 "standard input:1" sh -c 'echo "nodez: 2" | "$0" plan --model tiny --cluster -' "$STOWAGE"

# -q: no summary beside -o; -v: more messages, on stderr alone
[ -z "$(plan -q -o plan.json 2>&1)" ] || fail "plan -q -o is not quiet"
[ -z "$("$STOWAGE" run -q plan.json --backend host --steps 1 -o run.json 2>&1)" ] || fail "run -q -o is not quiet"
plan -v -o plan.json >verbose.txt 2>verbose.err
grep -q "debug: .*solve" verbose.err || fail "-v has no message on the solver"
plan -o plan.json 2>&1 >/dev/null | grep -q debug && fail "messages of -v without -v"

# progress without a terminal: a line after ten seconds, here those of a run that is stopped meanwhile
for quiet in "" -q; do
    # shellcheck disable=SC2086
    "$STOWAGE" run plan.json $quiet --backend host --no-digest --steps 1000000 >/dev/null 2>"long$quiet.err" &
    run=$!
    sleep 1
    kill -STOP "$run"
    [ -n "$quiet" ] || lines=$(wc -l <"long$quiet.err")
    sleep 10
    kill -CONT "$run"
    for wait in $(seq 600); do # until it gets the CPU; with -q nothing comes
        [ -z "$quiet" ] && [ ! -s long.err ] || break
        sleep 0.1
    done
    sleep 1
    kill -TERM "$run"
    wait "$run" && fail "a run that was ended exits with 0"
done
[ "$lines" = 0 ] || fail "a line of progress in the first second"
grep -q "^stowage: [a-z].*: .*[0-9][0-9] s$" long.err || { cat long.err; fail "no progress after ten seconds"; }
grep -v "ended by SIGTERM" long-q.err && fail "-q does not silence progress in a file"

# help
"$STOWAGE" help plan >help.txt
"$STOWAGE" plan --help >option.txt
cmp -s help.txt option.txt || fail "help plan differs from plan --help"
expect 2 "did you mean plan?" "$STOWAGE" help pla
"$STOWAGE" run --help >help.run
head -n 1 help.run | grep -q "^Usage: stowage run PLAN" || fail "run --help has another name"
grep -q -e --probe help.run && fail "run --help lists options of calibrate"
"$STOWAGE_RUN" --help | grep -q -e --probe || fail "stowage-run --help does not list --probe"
expect 2 "run: expected PLAN" "$STOWAGE" run

# on a terminal: COLUMNS is honoured, colour is on unless NO_COLOR or TERM=dumb forbid it
command -v script >/dev/null || { echo "terminal: no script(1), the rest is skipped"; exit 0; }
on_terminal() { script -qec "$*" /dev/null </dev/null | tr -d '\r'; }
escape=$(printf '\033')
export TERM=xterm
"$STOWAGE" report --full plan.json >file.txt
unset NO_COLOR
plain() { sed "s/$escape\[[0-9;]*[mK]//g" "$1"; }
for columns in 60 80 100; do
    export COLUMNS=$columns
    on_terminal "$STOWAGE" report --full plan.json >narrow.txt
    plain narrow.txt | awk -v most="$columns" 'length($0) > most { print; bad = 1 } END { exit bad }' ||
        fail "the report is wider than $columns columns"
    # Every figure of the report in a file is in the narrow one, whole.
    tr ' ' '\n' <file.txt | grep '[0-9]' | sort -u >figures.txt
    plain narrow.txt | tr ' ' '\n' | sort -u >shown.txt
    [ -z "$(comm -23 figures.txt shown.txt)" ] || { comm -23 figures.txt shown.txt >&2; fail "figures were cut at $columns columns"; }
done
export COLUMNS=200
on_terminal "$STOWAGE" report --full plan.json >wide.txt
bars() { sed 's/\[[]#=.|[]*\]/[]/' "$@"; } # they are as wide as the terminal allows
bars file.txt >unbarred.txt
plain wide.txt | bars | cmp -s - unbarred.txt || fail "a wide terminal gets another report than a file"
grep -q "$escape" wide.txt || fail "no colour on a terminal"
grep -q "$escape" file.txt && fail "colour in a file"
NO_COLOR=1 on_terminal "$STOWAGE" report plan.json | grep -q "$escape" && fail "NO_COLOR is not honoured"
TERM=dumb on_terminal "$STOWAGE" report plan.json | grep -q "$escape" && fail "TERM=dumb is not honoured"
on_terminal "$STOWAGE" report plan.json --json | grep -q "$escape" && fail "colour in JSON"
# a line counts the seconds of a long plan, here one that waits for its run spec; it is removed at the end
slow="(sleep 4.4; echo 'batch: {seq_len: 128}') | $STOWAGE plan --model tiny --cluster tiny.yaml --run -"
script -qec "$slow -o slow.json" /dev/null </dev/null >slow.txt
grep -q "planning: [0-9]* s.*planning: [0-9]* s.*$escape\[K" slow.txt || { cat -v slow.txt; fail "no line counts the seconds"; }
script -qec "$slow -q -o slow.json" /dev/null </dev/null >slow.txt
grep -q planning slow.txt && fail "-q does not silence the line of progress"
sh -c "$slow -o slow.json" 2>&1 | grep -q planning && fail "a line of progress without a terminal"
# so does a run, which tells phase, amount and seconds
for seconds in 3 10 60; do # a busy machine needs more until the steps begin
    long="timeout --foreground -s TERM $seconds $STOWAGE run plan.json --backend host --no-digest --steps 1000000"
    script -qec "$long" /dev/null </dev/null >run.txt || true
    grep -q "$escape\[Kstep [0-9]* of 1000000[:,].* [0-9]* s" run.txt && break
done
grep -q "$escape\[Kstep [0-9]* of 1000000[:,].* [0-9]* s" run.txt || { cat -v run.txt; fail "a run shows no progress"; }
grep -q "$escape\[Kstowage: ended by SIGTERM" run.txt || { cat -v run.txt; fail "a signal leaves the line of progress"; }
script -qec "$long -q" /dev/null </dev/null >run.txt || true
grep -q "step [0-9]" run.txt && fail "-q does not silence the progress of a run"
echo "terminal: ok"
