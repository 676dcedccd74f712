#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Manual pages and completions: every option of --help is in each, and the shells that are here complete with them.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
sh "$STW_SOURCE_DIR/scripts/manuals" help "$STOWAGE" "$STOWAGE_RUN"
PATH=$(dirname "$STOWAGE"):$PATH
for command in $("$STOWAGE" --help=words | cut -f 2); do
    page=help/man1/stowage-$command.1
    "$STOWAGE" "$command" --help=words | sed -n 's/^option	--\([a-z-]*\)	.*/\1/p' >options.txt
    [ -s options.txt ] || fail "$command has no options"
    while read -r option; do
        "$STOWAGE" "$command" --help | grep -q -e "--$option[ ,]" || "$STOWAGE" "$command" --help | grep -q -e "--$option\$" ||
            fail "$command --help lacks --$option"
        grep -q "$(echo "fB--$option" | sed 's/-/\\\\-/g')" "$page" || fail "$page lacks --$option"
        grep -q -e "--$option" help/bash/stowage || fail "bash lacks --$option"
        grep -q -e "--$option\[" help/zsh/_stowage || fail "zsh lacks --$option"
        grep -q "from $command\" -l $option" help/fish/stowage.fish || fail "fish lacks $command --$option"
    done <options.txt
    grep -q "^ *$command)" help/bash/stowage || fail "bash lacks $command"
done
for code in 0 4 9 70; do grep -qx "$code" help/man1/stowage.1 || fail "the manual lacks exit code $code"; done
expect 2 "takes no value" "$STOWAGE" plan --help=nonsense

if command -v mandoc >/dev/null 2>&1; then
    for page in help/man1/*.1; do
        mandoc -Tlint -W error "$page" >lint.txt || { cat lint.txt; fail "$page"; }
        mandoc -Tutf8 "$page" >page.txt || fail "$page"
    done
fi

cat >try.bash <<'EOB'
. help/bash/stowage
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_stowage
echo "${COMPREPLY[*]}"
EOB
complete_bash() { bash try.bash "$@"; }
if command -v bash >/dev/null 2>&1; then
    [ "$(complete_bash stowage exp)" = explain ] || fail "bash: no command"
    [ "$(complete_bash stowage plan --mod)" = --model ] || fail "bash: no option"
    [ "$(complete_bash stowage plan --model Qwen3-0)" = Qwen3-0.6B ] || fail "bash: no model"
    [ "$(complete_bash stowage plan --set placement.mo)" = placement.moments= ] || fail "bash: no key"
    complete_bash stowage plan --cluster h200-x | grep -q h200-x8 || fail "bash: no cluster"
fi
if command -v zsh >/dev/null 2>&1; then
    # what its own functions are given
    zsh -f -c '_arguments() { print -l -- "$@" }; _describe() { print -l -- $commands }
        compadd() { [[ $1 = -S ]] && shift 2; print -l -- ${(P)2} }; _files() { }
        words=("${(@)argv}"); CURRENT=$#words; source help/zsh/_stowage' zsh stowage explain --fr >zsh.txt ||
        fail "zsh: $(cat zsh.txt)"
    grep -q -e '--from\[.*:FRAMEWORK\\*:FILE:' zsh.txt || { cat zsh.txt; fail "zsh: no option"; }
    zsh -f -c '_describe() { print -l -- $commands }; words=(stowage e); CURRENT=2; source help/zsh/_stowage' >zsh.txt
    grep -q '^explain:' zsh.txt || fail "zsh: no command"
fi
if command -v fish >/dev/null 2>&1; then
    HOME=$PWD fish -c 'source help/fish/stowage.fish; complete -C "stowage exp"; complete -C "stowage plan --mod"
        complete -C "stowage plan --model Qwen3-0"; complete -C "stowage plan --set placement.mo"' >fish.txt
    for word in explain --model Qwen3-0.6B placement.moments; do
        grep -q -e "^$word" fish.txt || { cat fish.txt; fail "fish: no $word"; }
    done
fi
echo "completion: ok"
