#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The direction of dependency, read from the #include lines: no room includes a sibling or a room
# above it, the rooms inside plan/ have an order, and each outside library is included by the one
# place that owns it.
# Usage: includes.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"

files '\.(c|h|cu|cuh)$' | xargs awk '
    function refuse(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, $0, why
        bad++
    }
    BEGIN {
        allowed["core"] = " core "
        allowed["models"] = " core models "
        allowed["plan"] = " core models plan "
        allowed["blocks"] = " core models plan blocks "
        allowed["engines"] = " core models plan blocks engines "
        allowed["planner"] = " core models plan blocks engines planner "
        allowed["sim"] = " core models plan blocks engines sim "
        allowed["backend"] = " core models plan blocks engines backend "
        allowed["reports"] = " core models plan blocks engines reports "
        allowed["include"] = " "
        allowed["library"] = " core models plan blocks engines planner sim backend include library "
        allowed["cli"] = " core models plan blocks engines planner sim backend reports cli "
        allowed["tests"] = " core models plan blocks engines planner sim backend reports cli include library tests bench "
        allowed["bench"] = allowed["tests"]
        # Inside plan/ a room includes itself and those before it.
        n_plan = split("sync checkpoint spec job program files measured", plan_rooms, " ")
        for (i = 1; i <= n_plan; i++) order[plan_rooms[i]] = i
        # Outside libraries: who may include them (a pattern over the path of the file).
        owner["glpk.h"] = "^planner/"
        owner["csv.h"] = "^(models|reports)/[a-z0-9_]*_csv\\.c$"
        owner["jansson.h"] = "^core/"
        owner["yaml.h"] = "^core/"
        owner["mpi.h"] = "^backend/mpi/"
        owner["nccl.h"] = "^backend/cuda/"
        owner["nvml.h"] = "^backend/"
        owner["liburing.h"] = "^backend/nvme/uring\\.c$"
    }
    /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
        seen++
        split(FILENAME, part, "/")
        room = part[1]
        text = $0
        sub(/^[ \t]*#[ \t]*include[ \t]*/, "", text)
        quoted = substr(text, 1, 1) == "\""
        text = substr(text, 2)
        sub(/[>"].*/, "", text)
        base = text
        sub(/^.*\//, "", base)
        if (quoted) {
            if (text == "stw_config.h") next
            if (room == "include" && text ~ /^stowage[a-z_]*\.h$/) next # installed side by side
            if (text ~ /(^|\/)\.\.(\/|$)/ || text !~ /\//) {
                refuse("write the path from the root of the repository")
                next
            }
            split(text, to, "/")
            if (index(allowed[room], " " to[1] " ") == 0)
                refuse(room "/ may include only" allowed[room])
            if (room == "plan" && to[1] == "plan") {
                if (!(part[2] in order) || !(to[2] in order))
                    refuse("plan/ has the rooms sync, checkpoint, spec, job, program, files and measured")
                else if (order[to[2]] > order[part[2]])
                    refuse("plan/" part[2] " may not include plan/" to[2])
            }
            if (room == "engines" && to[1] == "engines" && to[3] != "") {
                if (part[3] != "" && part[2] != to[2])
                    refuse("engines share what lies in engines/ itself")
                if (part[3] == "" && part[2] !~ /^built_in\./)
                    refuse("what engines share may not include one of them; only built_in.c lists them")
            }
            if (FILENAME ~ /^backend\// && FILENAME !~ /^backend\/(cuda)\// && to[2] == "cuda")
                refuse("only backend/cuda includes its own headers")
        } else if (text in owner) {
            if (FILENAME !~ owner[text] && FILENAME !~ /^tests\//)
                refuse("belongs to " owner[text])
            if (text == "glpk.h" && FILENAME !~ /^tests\//) glpk[FILENAME] = 1
        } else if (base ~ /^(cuda|cu[A-Z]|nvtx|nvToolsExt|device_launch|cooperative_groups)/) {
            if (FILENAME !~ /^backend\/cuda\// && FILENAME !~ /^(tests\/gpu|bench)\//)
                refuse("CUDA stays in backend/cuda")
        }
    }
    END {
        n = 0
        for (file in glpk) { n++; names = names " " file }
        if (n > 1) { printf "glpk.h is included by %d files, one is allowed:%s\n", n, names; bad++ }
        if (seen == 0) { print "no #include line was found: is this the source tree?"; bad++ }
        printf "%d include lines, %d refused\n", seen, bad
        exit bad > 0
    }'
