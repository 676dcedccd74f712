#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No raw product of sizes: bytes, elements and counts of them are multiplied by core/checked.h
# (stw_mul_u64, or stw_times, which saturates). A size is a name that ends in one of the words below;
# a product with a double (a cast, a literal, a name that the function declares as one, or that ends in
# _s, _bps, _share) is none. In
# engines/bytes.c, whose sums can be as large as its products, sums are held to stw_plus as well.
# Loops of the backends and probes, whose products are offsets inside buffers that exist, are not read.
# Usage: products.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
files '^(plan|blocks|engines|planner|sim|library)/.*\.(c|h)$' '^backend/((comm|executor|nvme)/)?[^/]*\.(c|h)$' | xargs awk '
    BEGIN {
        size = "(^|_)(bytes|params|numel|tokens|elements|element|units|slots|hidden|vocab|width|widths|ffn|experts|heads|dim)$"
        real = "(_s|_bps|_pps|_share|^share|seconds|rate|priority)$"
    }
    # Text without comments, strings and character constants; a comment may go on over lines.
    function plain(text,   out, at) {
        out = ""
        while (text != "") {
            if (in_comment) {
                at = index(text, "*/")
                if (at == 0) return out
                text = substr(text, at + 2)
                in_comment = 0
            }
            if (!match(text, /\/\/|\/\*|"([^"\\]|\\.)*"|\047([^\047\\]|\\.)*\047/)) return out text
            out = out substr(text, 1, RSTART - 1)
            at = substr(text, RSTART, 2)
            if (at == "//") return out
            in_comment = at == "/*"
            if (!in_comment) out = out "0"
            text = substr(text, RSTART + RLENGTH)
        }
        return out
    }
    # "size", "real" or "": what a name, or any name of a group, says.
    function kind_of_name(name) {
        return name ~ real || (name in doubles) ? "real" : name ~ size ? "size" : ""
    }
    function kind_of_group(text,   kind) {
        kind = ""
        if (text ~ /double|float|[0-9]\.[0-9]/) return "real"
        while (match(text, /[A-Za-z_][A-Za-z0-9_]*/)) {
            if (kind_of_name(substr(text, RSTART, RLENGTH)) == "real") return "real"
            if (kind_of_name(substr(text, RSTART, RLENGTH)) == "size") kind = "size"
            text = substr(text, RSTART + RLENGTH)
        }
        return kind
    }
    # Place of the bracket that opens the one at the end of the text.
    function opening(text,   at, depth, c) {
        depth = 0
        for (at = length(text); at > 0; at--) {
            c = substr(text, at, 1)
            if (c == ")" || c == "]") depth++
            if ((c == "(" || c == "[") && --depth == 0) return at
        }
        return 1
    }
    function closing(text,   at, depth, c) {
        depth = 0
        for (at = 1; at <= length(text); at++) {
            c = substr(text, at, 1)
            if (c == "(" || c == "[") depth++
            if ((c == ")" || c == "]") && --depth == 0) return at
        }
        return length(text)
    }
    function kind_left(text,   at, name, group) {
        sub(/[ \n]+$/, "", text)
        if (text ~ /([0-9]\.[0-9]*|[0-9]e[-+]?[0-9]+)f?$/) return "real"
        while (text ~ /\]$/) text = substr(text, 1, opening(text) - 1)
        if (text ~ /\)$/) {
            at = opening(text)
            group = substr(text, at)
            text = substr(text, 1, at - 1)
            if (!match(text, /[A-Za-z_][A-Za-z0-9_]*$/)) return kind_of_group(group)
        }
        if (!match(text, /[A-Za-z_][A-Za-z0-9_]*$/)) return ""
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, 1, RSTART - 1)
        if (match(text, /[A-Za-z0-9_.>\[\]-]*$/)) text = substr(text, 1, RSTART - 1)
        if (text ~ /\((double|float)\)$/) return "real"
        return kind_of_name(name)
    }
    function kind_right(text,   name, c) {
        sub(/^[ \n]+/, "", text)
        while (match(text, /^\((const )?[a-z_0-9]+( long| int)*\)/)) {
            if (substr(text, 1, RLENGTH) ~ /double|float/) return "real"
            text = substr(text, RLENGTH + 1)
        }
        if (text ~ /^([0-9]*\.[0-9]|[0-9]+\.|[0-9]+e)/) return "real"
        if (text ~ /^\(/) return kind_of_group(substr(text, 1, closing(text)))
        name = ""
        while (match(text, /^[A-Za-z_][A-Za-z0-9_]*/)) {
            name = substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
            while (text ~ /^\[/) text = substr(text, closing(text) + 1)
            if (!sub(/^(->|\.)/, "", text)) break
        }
        return name == "sizeof" ? "real" : kind_of_name(name)
    }
    function check(   at, place, text, left, right, op, line, k, lines) {
        place = 1
        while (match(substr(all, place), place_of)) {
            at = place + RSTART
            op = substr(all, at, 1)
            text = substr(all, at + (substr(all, at + 1, 1) == "=" ? 2 : 1))
            left = kind_left(substr(all, at > 400 ? at - 400 : 1, at > 400 ? 400 : at - 1))
            right = kind_right(substr(text, 1, 400))
            if (left != "real" && right != "real" && (left == "size" || right == "size")) {
                before = substr(all, 1, at)
                lines = gsub(/\n/, "\n", before)
                split(all, of_file, "\n")
                line = of_file[lines + 1]
                sub(/^ +/, "", line)
                printf "%s:%d: a raw %s of sizes: %s\n", file, first + lines + 1,
                    op == "*" ? "product" : "sum", line
                bad++
            }
            place = at + 1
        }
    }
    # One function, or what stands between two.
    function finish(   text, n, i, names) {
        place_of = file ~ /engines\/bytes\.c$/ ? "[ ][*+]=?[ \n]" : "[ ][*]=?[ \n]"
        split("", doubles)
        text = all
        while (match(text, /(double|float) [^;(){}]*/)) {
            n = split(substr(text, RSTART + 6, RLENGTH - 6), names, /,/)
            for (i = 1; i <= n; i++)
                if (match(names[i], /[A-Za-z_][A-Za-z0-9_]*/))
                    doubles[substr(names[i], RSTART, RLENGTH)] = 1
            text = substr(text, RSTART + 6)
            sub(/^[^;(){}]*/, "", text)
        }
        check()
        all = ""
        first = FNR
    }
    FNR == 1 { finish(); file = FILENAME; in_comment = 0; first = 0; seen++ }
    { all = all plain($0) "\n" }
    /^}/ { finish() }
    END {
        finish()
        printf "%d files, %d raw products\n", seen, bad
        exit bad > 0 || seen == 0
    }'
