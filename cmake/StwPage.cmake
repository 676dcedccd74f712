# SPDX-License-Identifier: Apache-2.0
# Files of reports/html/, compiled into stowage as arrays: the HTML report needs no other file.

# stw_page_file(NAME FILE): appends `static const char NAME[]` with the bytes of FILE
function(stw_page_file name file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    set(STW_PAGE_TEXT "${STW_PAGE_TEXT}static const char ${name}[] = {\n${bytes}};\n" PARENT_SCOPE)
endfunction()

set(STW_PAGE_FOLDER "${PROJECT_SOURCE_DIR}/reports/html")
set(library "${STW_PAGE_FOLDER}/vendor/uPlot.iife.min.js")
file(SIZE "${library}" size)
file(STRINGS "${library}" head LIMIT_COUNT 1)
if(NOT head MATCHES "\\(v([0-9.]+)\\)")
    message(FATAL_ERROR "${library}: no version on its first line")
endif()
set(STW_PAGE_TEXT "#define STW_PAGE_LIBRARY \\\n    \"uPlot ${CMAKE_MATCH_1}, MIT licence, ${size} bytes\"\n")
stw_page_file(page_library_js "${library}")
stw_page_file(page_library_css "${STW_PAGE_FOLDER}/vendor/uPlot.min.css")
stw_page_file(page_licence "${STW_PAGE_FOLDER}/vendor/uPlot.LICENSE")
stw_page_file(page_css "${STW_PAGE_FOLDER}/report.css")
stw_page_file(page_charts "${STW_PAGE_FOLDER}/charts.js")
stw_page_file(page_js "${STW_PAGE_FOLDER}/report.js")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/reports/page_files.inc"
    CONTENT "${STW_PAGE_TEXT}" @ONLY)
