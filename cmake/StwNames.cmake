# SPDX-License-Identifier: Apache-2.0
# models/names/*.csv, compiled into programs that have no data folder: X("name", "text") for each file.

file(GLOB STW_NAMES_FILES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/models/names/*.csv")
list(SORT STW_NAMES_FILES)
set(text "")
foreach(file IN LISTS STW_NAMES_FILES)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    get_filename_component(name "${file}" NAME_WE)
    file(READ "${file}" content)
    string(REGEX REPLACE "(^|\n)#[^\n]*" "\\1#" content "${content}") # lines keep their numbers
    if(content MATCHES "[\"\\\\;@]")
        message(FATAL_ERROR "${file}: a quote, a backslash, a semicolon or an at sign")
    endif()
    string(REPLACE "\n" "\\n\"\n  \"" content "${content}")
    string(APPEND text "X(\"${name}\",\n  \"${content}\")\n")
endforeach()
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/models/names.inc" CONTENT "${text}" @ONLY)
