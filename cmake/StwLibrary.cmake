# SPDX-License-Identifier: Apache-2.0
# libstowage: one object, partially linked from the rooms, in which only the names that
# include/ declares are global. The shared and the static library are made of it, so that
# neither can clash with names in the program that links it.

set(STW_HEADERS "${PROJECT_SOURCE_DIR}/include/stowage.h"
    "${PROJECT_SOURCE_DIR}/include/stowage_checkpoint.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${STW_HEADERS}")

# ---- what is exported: read from the header ------------------------------------------------------
set(exports "")
foreach(header IN LISTS STW_HEADERS)
    file(STRINGS "${header}" declarations REGEX "^STW_API")
    foreach(declaration IN LISTS declarations)
        if(NOT declaration MATCHES "(stw_[a-z0-9_]+)\\(")
            message(FATAL_ERROR "${header}: no name on the line \"${declaration}\"")
        endif()
        list(APPEND exports ${CMAKE_MATCH_1})
    endforeach()
endforeach()
list(LENGTH exports STW_N_EXPORTS)
list(JOIN exports "\n" text)
set(STW_EXPORTS "${PROJECT_BINARY_DIR}/generated/stowage.exports")
file(CONFIGURE OUTPUT "${STW_EXPORTS}" CONTENT "${text}\n")
list(JOIN exports ";\n        " text)
set(STW_VERSION_SCRIPT "${PROJECT_BINARY_DIR}/generated/stowage.map")
file(CONFIGURE OUTPUT "${STW_VERSION_SCRIPT}"
    CONTENT "{\n    global:\n        ${text};\n    local:\n        *;\n};\n")

# ---- the object ----------------------------------------------------------------------------------
# Of the planner everything but the file that needs GLPK, which is GPL: library/no_solver.c stands
# in for it.
set(rooms stw_core stw_models stw_models_csv stw_plan stw_blocks stw_engines stw_sim stw_backend stw_library)
if(STW_WITH_CUDA)
    list(PREPEND rooms stw_cuda) # before the weak fallbacks of the backend room
endif()
set(objects "$<FILTER:$<TARGET_OBJECTS:stw_planner>,EXCLUDE,glpk_solver>")
foreach(room IN LISTS rooms)
    list(APPEND objects "$<TARGET_OBJECTS:${room}>")
endforeach()
set(whole "${PROJECT_BINARY_DIR}/lib/stowage.o")
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
add_custom_command(OUTPUT "${whole}"
    COMMAND "${CMAKE_C_COMPILER}" -r -nostdlib -o "${whole}" ${objects}
    COMMAND "${CMAKE_OBJCOPY}" "--keep-global-symbols=${STW_EXPORTS}" "${whole}"
    DEPENDS ${rooms} stw_planner "${STW_EXPORTS}"
    COMMENT "Linking libstowage's object" COMMAND_EXPAND_LISTS VERBATIM)
set_source_files_properties("${whole}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
add_custom_target(stowage_object DEPENDS "${whole}")

# With the distribution's libraries from their .a files, libstowage.so holds these, too, and needs
# glibc alone. Their code is made for programs: it may be linked into a library once all of its names
# are local, but for its use of stdin, which a library has not (library/no_stdin.c).
if(STW_SHARED AND STW_STATIC_DEPS)
    set(shared_object "${PROJECT_BINARY_DIR}/lib/stowage_shared.o")
    set(jansson "${PROJECT_BINARY_DIR}/lib/jansson_without_stdin.a")
    set(archives "${jansson}" "${YAML_LIBRARY}" "${CSV_LIBRARY}")
    if(STW_WITH_URING)
        list(APPEND archives "${URING_LIBRARY}")
    endif()
    add_custom_command(OUTPUT "${shared_object}"
        COMMAND "${CMAKE_OBJCOPY}" --redefine-sym stdin=stw_no_stdin "${JANSSON_LIBRARY}"
            "${jansson}"
        COMMAND "${CMAKE_C_COMPILER}" -r -nostdlib -o "${shared_object}" ${objects} ${archives}
        COMMAND "${CMAKE_OBJCOPY}" "--keep-global-symbols=${STW_EXPORTS}" "${shared_object}"
        DEPENDS ${rooms} stw_planner "${STW_EXPORTS}" BYPRODUCTS "${jansson}"
        COMMENT "Linking the object of libstowage.so" COMMAND_EXPAND_LISTS VERBATIM)
    set_source_files_properties("${shared_object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    add_custom_target(stowage_shared_object DEPENDS "${shared_object}")
endif()

# ---- the libraries -------------------------------------------------------------------------------
set(library_kinds STATIC)
if(STW_SHARED)
    list(APPEND library_kinds SHARED)
endif()
foreach(kind IN LISTS library_kinds)
    string(TOLOWER stowage_${kind} library)
    set(object "${whole}")
    set(target stowage_object)
    set(linked stw::jansson stw::yaml stw::csv ${STW_URING_LIBRARY})
    if(kind STREQUAL "SHARED" AND STW_STATIC_DEPS)
        set(object "${shared_object}")
        set(target stowage_shared_object)
        set(linked "")
    endif()
    add_library(${library} ${kind} "${object}")
    add_dependencies(${library} ${target})
    set_target_properties(${library} PROPERTIES OUTPUT_NAME stowage LINKER_LANGUAGE C
        ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
    target_link_libraries(${library} PRIVATE stw_flags ${linked} Threads::Threads
        ${CMAKE_DL_LIBS} m ${STW_CUDA_LIBRARIES})
endforeach()
if(STW_SHARED)
    # Nothing of the static CUDA runtime leaks out either.
    target_link_options(stowage_shared PRIVATE "-Wl,--version-script=${STW_VERSION_SCRIPT}"
        -Wl,--no-undefined)
    set_target_properties(stowage_shared PROPERTIES LINK_DEPENDS "${STW_VERSION_SCRIPT}")
endif()
