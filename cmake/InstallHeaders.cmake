# SPDX-License-Identifier: Apache-2.0
# Runs at install time with `source` and `destination`. Public is what include/stowage.h includes,
# directly or through others. In the repository headers include each other as "core/status.h";
# installed they live under stowage/, so that a user needs no include path of ours and no name of
# ours is in anybody's way.
cmake_policy(VERSION 3.25)
file(REMOVE_RECURSE "${destination}/stowage")
set(waiting include/stowage.h)
set(done "")
while(waiting)
    list(POP_FRONT waiting header)
    if(header IN_LIST done)
        continue()
    endif()
    list(APPEND done ${header})
    file(READ "${source}/${header}" text)
    string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
    list(TRANSFORM includes REPLACE "#include \"([^\"]+)\"" "\\1")
    list(APPEND waiting ${includes})
    string(REPLACE "#include \"" "#include \"stowage/" text "${text}")
    if(header STREQUAL "include/stowage.h")
        set(target "${destination}/stowage.h")
    else()
        set(target "${destination}/stowage/${header}")
    endif()
    message(STATUS "Installing: ${target}")
    file(WRITE "${target}" "${text}")
endwhile()
