# SPDX-License-Identifier: Apache-2.0
# Draws lines of text as a terminal: awk -f docs/picture.awk text >picture.svg. Lines that begin with "$" are commands; lines
# without indent are headings; bars "[###...]" are drawn in colour.
function escape(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
{ lines[++n] = $0; if (length($0) > columns) columns = length($0) }
END {
    width = columns * 7.8 + 40; height = n * 18 + 36
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"A capacity report in a terminal\">\n", width, height, width, height
    printf "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"#10151c\"/>\n"
    printf "<g font-family=\"ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace\" font-size=\"13\" fill=\"#d7dde5\">\n"
    for (i = 1; i <= n; i++) {
        line = lines[i]; style = ""
        if (line ~ /^\$/) style = " fill=\"#8fc7ff\""
        else if (line ~ /does not fit/) style = " fill=\"#ff9d8a\" font-weight=\"bold\""
        else if (line ~ / fits/) style = " fill=\"#8fe0a0\" font-weight=\"bold\""
        else if (line ~ /^[^ ]/) style = " font-weight=\"bold\""
        text = escape(line)
        if (match(text, /\[#+/))
            text = substr(text, 1, RSTART) "<tspan fill=\"#f0b860\">" substr(text, RSTART + 1, RLENGTH - 1) "</tspan>" substr(text, RSTART + RLENGTH)
        if (line != "") printf "<text xml:space=\"preserve\" x=\"20\" y=\"%d\"%s>%s</text>\n", 30 + (i - 1) * 18, style, text
    }
    print "</g>\n</svg>"
}
