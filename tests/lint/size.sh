#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No source above 800 lines, no line above 100 columns, no tab and no space at a line's end.
# Usage: size.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
files '\.(c|h|cu|cuh)$' | xargs awk '
    function refuse(line, why) { printf "%s:%d: %s\n", FILENAME, line, why; bad++ }
    FNR == 1 { files++ }
    FNR == 801 { refuse(801, "more than 800 lines") }
    /[ \t]$/ { refuse(FNR, "white space at the end") }
    /\t/ { refuse(FNR, "a tab") }
    length($0) > 100 && $0 !~ /https?:\/\// { refuse(FNR, "longer than 100 columns") }
    END { printf "%d files\n", files; exit bad > 0 || files == 0 }'
