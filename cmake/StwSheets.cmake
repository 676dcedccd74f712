# SPDX-License-Identifier: Apache-2.0
# Data sheets of GPUs, compiled into programs that do not read CSV: rows of models/clusters/gpus.csv as X(key, ...) with
# the columns that plan/spec/gpu_sheets.c names.

# stw_sheet_rows(FILE OUTPUT column...)
function(stw_sheet_rows file output)
    file(STRINGS "${file}" lines REGEX "^[^#]")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    list(POP_FRONT lines heads)
    string(REPLACE "," ";" heads "${heads}")
    set(text "")
    foreach(line IN LISTS lines)
        if(line MATCHES "\"")
            message(FATAL_ERROR "${file}: a quoted field: ${line}")
        endif()
        string(REPLACE "," ";" fields "${line};end") # the last field may be empty
        set(row "")
        foreach(column IN LISTS ARGN)
            list(FIND heads "${column}" at)
            if(at EQUAL -1)
                message(FATAL_ERROR "${file} has no column ${column}")
            endif()
            list(GET fields ${at} value)
            string(APPEND row "\"${value}\", ")
        endforeach()
        string(REGEX REPLACE ", $" "" row "${row}")
        string(APPEND text "X(${row})\n")
    endforeach()
    file(CONFIGURE OUTPUT "${output}" CONTENT "${text}" @ONLY)
endfunction()

stw_sheet_rows("${PROJECT_SOURCE_DIR}/models/clusters/gpus.csv"
    "${PROJECT_BINARY_DIR}/generated/gpu_sheets.inc"
    node.gpu.name sheet.bf16 sheet.fp8 sheet.nvlink sheet.pcie rates best.bf16)
