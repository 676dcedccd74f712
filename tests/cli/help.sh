#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Help: every command has one, `stowage --help` lists every command, lines fit into a terminal, and
# README uses only commands and options that exist.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
readme=$STW_SOURCE_DIR/README.md

"$STOWAGE" --help >main.txt || fail "--help"
commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' main.txt | grep -v -x help)
[ "$(echo "$commands" | wc -l)" -ge 7 ] || fail "--help lists too few commands"
for command in $commands; do
    "$STOWAGE" "$command" --help >"help.$command" || fail "$command --help"
    grep -q "^Usage: stowage" "help.$command" || fail "$command --help has no usage line"
    grep -q -e "--json " "help.$command" || fail "$command --help does not list --json"
done
"$STOWAGE_RUN" --help >help.stowage-run || fail "stowage-run --help"
for code in 0 1 2 3 4 5 6 7 8 9 70; do
    grep -q "^ *$code  " main.txt || fail "--help does not explain exit code $code"
done
awk 'length($0) > 80 { print FILENAME ": " $0; bad = 1 } END { exit bad }' main.txt help.* ||
    fail "help is wider than 80 columns"

"$STOWAGE" help --help >/dev/null || fail "help --help"
"$STOWAGE" help help >asked.txt || fail "help help"
cmp -s asked.txt main.txt || fail "help help is not the help"
grep -q "^  help  *\[COMMAND\]" main.txt || fail "--help does not list help"

# Each "$ stowage COMMAND ... --option" of README.
sed -n 's/^\$ stowage \([^#]*\).*/\1/p' "$readme" >used.txt
[ -s used.txt ] || fail "README shows no command"
while read -r command rest; do
    [ -f "help.$command" ] || fail "README: unknown command $command"
    for word in $rest; do
        case $word in
        -*) grep -q -e "$word[ ,]" "help.$command" || fail "README: $command has no option $word" ;;
        esac
    done
done <used.txt
echo "help: ok"
