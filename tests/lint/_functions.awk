# SPDX-License-Identifier: Apache-2.0
# For the lint scripts: what C sources define, declare, use and include, without compiling. One line
# each, separated by blanks:
#   define FILE LINE NAME PARAMETERS static|extern    a function with a body
#   declare FILE LINE NAME PARAMETERS                 a function without one
#   use FILE LINE NAME                                an stw_ name in a body, a value or a macro
#   include FILE LINE PATH                            an #include "PATH"

# Text without strings, character constants and comments; a comment may go on over lines.
function plain(text,   out, at, rest) {
    out = ""
    while (text != "") {
        if (in_comment) {
            at = index(text, "*/")
            if (at == 0) return out
            text = substr(text, at + 2)
            in_comment = 0
            continue
        }
        if (!match(text, /\/\/|\/\*|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/)) return out text
        out = out substr(text, 1, RSTART - 1)
        rest = substr(text, RSTART, 2)
        if (rest == "//") return out
        if (rest == "/*") in_comment = 1
        else out = out "0"
        text = substr(text, RSTART + RLENGTH)
    }
    return out
}

function uses(text) {
    while (match(text, /[A-Za-z_][A-Za-z0-9_]*/)) {
        if (substr(text, RSTART, 4) == "stw_")
            print "use", FILENAME, FNR, substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
    }
}

# The statement is a function's head: its name is the first one in front of a parenthesis that is no
# macro, and its parameters stand between that parenthesis and its partner.
function head(text,   name, n, depth, c, inside) {
    if (text ~ /^[ ]*typedef / || text ~ /=/ || text !~ /\)[ ]*$/) return 0
    while (match(text, /[A-Za-z_][A-Za-z0-9_]*[ ]*\(/)) {
        name = substr(text, RSTART, RLENGTH)
        sub(/[ ]*\($/, "", name)
        text = substr(text, RSTART + RLENGTH)
        if (name ~ /[a-z]/ && name !~ /^_/) break
        name = ""
    }
    if (name == "") return 0
    depth = 1
    n = 0
    inside = ""
    while (depth > 0 && match(text, /[(),]/)) {
        c = substr(text, RSTART, 1)
        inside = inside substr(text, 1, RSTART)
        text = substr(text, RSTART + 1)
        if (c == "(") depth++
        else if (c == ")") depth--
        else if (depth == 1) n++
    }
    head_name = name
    head_parameters = inside ~ /^[ ]*(void)?[ ]*\)$/ ? 0 : n + 1
    return 1
}

function finish(ends) {
    if (head(statement)) {
        if (ends == "{")
            print "define", FILENAME, first_line, head_name, head_parameters,
                statement ~ /(^| )static / ? "static" : "extern"
        else
            print "declare", FILENAME, first_line, head_name, head_parameters
    } else {
        uses(statement)
    }
    statement = ""
}

FNR == 1 { in_comment = 0; in_macro = 0; depth = 0; statement = "" }

{
    raw = $0
    line = plain(raw)
    continued = raw ~ /\\$/
    if (in_macro || line ~ /^[ ]*#/) {
        if (!in_macro && match(raw, /^[ ]*#[ ]*include[ ]*"[^"]*"/)) {
            path = substr(raw, RSTART, RLENGTH)
            gsub(/^[^"]*"|"$/, "", path)
            print "include", FILENAME, FNR, path
        } else {
            uses(line)
        }
        in_macro = continued
        next
    }
    if (line ~ /^[ ]*extern 0 \{$/) next # extern "C", whose closing brace is ignored below
    while (line != "") {
        if (depth > 0) {
            if (!match(line, /[{}]/)) { uses(line); break }
            inner = substr(line, 1, RSTART - 1)
            depth += substr(line, RSTART, 1) == "{" ? 1 : -1
            line = substr(line, RSTART + 1)
            uses(inner)
            continue
        }
        if (statement == "") first_line = FNR
        if (!match(line, /[{};]/)) { statement = statement line " "; break }
        statement = statement substr(line, 1, RSTART - 1)
        c = substr(line, RSTART, 1)
        line = substr(line, RSTART + 1)
        if (c == "}") statement = ""
        else finish(c)
        if (c == "{") depth = 1
    }
    if (statement ~ /^ *$/) statement = ""
}
