#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No two sources use each other: neither call functions of each other, nor are there two headers that
# include each other. A .c or .cu belongs with the .h of the same name. Calls through a table of
# functions are not seen: that is how a lower source calls a higher one.
# Usage: pairs.sh [ROOT]
set -u
awk_file=$(cd "$(dirname "$0")" && pwd)/_functions.awk
. "$(dirname "$0")/_files.sh"
files '^(core|models|plan|blocks|engines|planner|sim|backend|reports|library|cli|include)/.*\.(c|h|cu|cuh)$' |
    xargs awk -f "$awk_file" | awk '
    function unit(path) { sub(/\.[a-z]+$/, "", path); return path }
    # Every unit that has this function: one, or a fallback and what replaces it.
    function own(name, where) {
        if (index(owners[name] " ", " " where " ") == 0) owners[name] = owners[name] " " where
    }
    function take(from, to, why) {
        if (from != to && !((from, to) in taken)) taken[from, to] = why
    }
    $1 == "define" && $6 == "extern" { own($4, unit($2)); seen++ }
    $1 == "declare" { declared[$4] = unit($2) }
    $1 == "use" { n_uses++; user[n_uses] = $2; line[n_uses] = $3; used[n_uses] = $4 }
    $1 == "include" && $2 ~ /\.h$/ { take($2, $4, $2 ":" $3 ": includes " $4) }
    END {
        # Functions that a macro defines belong to the header that declares them.
        for (name in declared) if (!(name in owners)) own(name, declared[name])
        for (i = 1; i <= n_uses; i++) {
            if (!(used[i] in owners)) continue
            from = unit(user[i])
            n = split(owners[used[i]], list, " ")
            mine = index(owners[used[i]] " ", " " from " ") > 0
            for (k = 1; k <= n && !mine; k++)
                take(from, list[k], user[i] ":" line[i] ": uses " used[i])
        }
        for (pair in taken) {
            split(pair, of, SUBSEP)
            if (of[1] < of[2] && ((of[2], of[1]) in taken)) {
                print of[1] " and " of[2] " use each other:"
                print "  " taken[of[1], of[2]]
                print "  " taken[of[2], of[1]]
                bad++
            }
        }
        printf "%d functions, %d pairs\n", seen, bad
        exit bad > 0 || seen == 0
    }'
