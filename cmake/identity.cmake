# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=tree -DOVERLAY=tree -DFOLDER=folder -P identity.cmake: the first 64 bits of SHA-256 of the settings and of
# every listed file's name and content, as FOLDER/core/build_identity.inc.
file(STRINGS "${FOLDER}/identity.list" names)
file(SHA256 "${FOLDER}/identity.settings" all)
foreach(name IN LISTS names)
    set(file "${SOURCE}/${name}")
    if(OVERLAY AND EXISTS "${OVERLAY}/${name}")
        set(file "${OVERLAY}/${name}")
    endif()
    file(SHA256 "${file}" content)
    string(APPEND all "\n${name} ${content}")
endforeach()
string(SHA256 identity "${all}")
string(SUBSTRING "${identity}" 0 16 identity)
file(WRITE "${FOLDER}/core/build_identity.inc" "\"${identity}\"\n")
