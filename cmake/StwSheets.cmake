# SPDX-License-Identifier: Apache-2.0
# Tables of GPUs, compiled into programs that do not read CSV: rows of models/clusters/gpus.csv and rates.csv as X(...)
# with the columns that plan/spec/gpu_sheets.c and gpu_rates.c name. Heads of numbers begin with "=".

# stw_sheet_rows(FILE OUTPUT column...)
function(stw_sheet_rows file output)
    file(READ "${file}" text)
    string(REGEX REPLACE "[][;]" " " text "${text}") # what CMake's lists take apart
    string(REPLACE "\n" ";" lines "${text}")
    list(FILTER lines INCLUDE REGEX "^[^#]")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    list(POP_FRONT lines heads)
    string(REPLACE "," ";" heads "${heads}")
    set(text "")
    foreach(line IN LISTS lines)
        string(REPLACE "," ";" fields "${line};end") # the last field may be empty
        set(row "")
        foreach(wanted IN LISTS ARGN)
            string(REGEX REPLACE "^=" "" column "${wanted}")
            list(FIND heads "${column}" at)
            if(at EQUAL -1)
                message(FATAL_ERROR "${file} has no column ${column}")
            endif()
            list(GET fields ${at} value)
            if(value MATCHES "\"") # quoted fields come last
                message(FATAL_ERROR "${file}: ${column}: found a quoted field: ${line}")
            endif()
            if(wanted MATCHES "^=" AND NOT value MATCHES "^[0-9.]+$")
                message(FATAL_ERROR "${file}: ${column}: found \"${value}\", expected a number: ${line}")
            elseif(wanted MATCHES "^=")
                string(APPEND row "${value}, ")
            else()
                string(APPEND row "\"${value}\", ")
            endif()
        endforeach()
        string(REGEX REPLACE ", $" "" row "${row}")
        string(APPEND text "X(${row})\n")
    endforeach()
    file(CONFIGURE OUTPUT "${output}" CONTENT "${text}" @ONLY)
endfunction()

stw_sheet_rows("${PROJECT_SOURCE_DIR}/models/clusters/gpus.csv"
    "${PROJECT_BINARY_DIR}/generated/plan/spec/gpu_sheets.inc"
    node.gpu.name sheet.bf16 sheet.fp8 sheet.nvlink sheet.pcie rates best.bf16 half)
stw_sheet_rows("${PROJECT_SOURCE_DIR}/models/clusters/rates.csv"
    "${PROJECT_BINARY_DIR}/generated/plan/spec/gpu_rates.inc"
    rates work kernel head pass =256 =512 =1024 =2048 =4096 =8192 =16384 =32768 =65536 =131072)
