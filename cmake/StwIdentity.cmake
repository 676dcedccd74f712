# SPDX-License-Identifier: Apache-2.0
# The identity of a build: a hash of the contents of everything that computes a result on a rank (the rooms that
# stowage-run executes plans with) and of the compilers with the flags that change what they make of it. Names of folders,
# dates, warnings and debug information are not in it. It is made anew whenever one of the sources changes (identity.cmake).

file(GLOB STW_IDENTITY_SOURCES CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
    "${PROJECT_SOURCE_DIR}/core/*.[ch]" "${PROJECT_SOURCE_DIR}/models/*.[ch]"
    "${PROJECT_SOURCE_DIR}/models/names/*.csv"
    "${PROJECT_SOURCE_DIR}/plan/*/*.[ch]" "${PROJECT_SOURCE_DIR}/blocks/*.[ch]"
    "${PROJECT_SOURCE_DIR}/engines/*.[ch]" "${PROJECT_SOURCE_DIR}/engines/*/*.[ch]"
    "${PROJECT_SOURCE_DIR}/backend/*.[ch]" "${PROJECT_SOURCE_DIR}/backend/*/*.[ch]"
    "${PROJECT_SOURCE_DIR}/backend/*/*.cu")
list(SORT STW_IDENTITY_SOURCES)

# stw_identity_flags(OUT flags...): those that change code. With what is in them of generator expressions.
function(stw_identity_flags out)
    set(flags ${ARGN})
    list(FILTER flags EXCLUDE REGEX
        "(^|:)(/|-(W|g|I|isystem|pedantic|f(file|debug|macro|profile)-prefix-map|fdiagnostics|pipe|M))")
    list(JOIN flags " " flags)
    set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# stw_identity_settings(OUT): compilers and flags, one a line
function(stw_identity_settings out)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
    separate_arguments(flags UNIX_COMMAND "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${config}}")
    foreach(room stw_core stw_models stw_plan stw_blocks stw_engines stw_backend)
        if(TARGET ${room})
            get_target_property(own ${room} COMPILE_OPTIONS)
            list(APPEND flags ${own})
        endif()
    endforeach()
    list(FILTER flags EXCLUDE REGEX "-NOTFOUND$")
    stw_identity_flags(flags ${flags} ${STW_C_OPTIONS})
    set(text "C ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_SYSTEM_PROCESSOR}\n${flags}\n")
    if(STW_WITH_CUDA)
        separate_arguments(flags UNIX_COMMAND "${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${config}}")
        get_target_property(own stw_cuda COMPILE_OPTIONS)
        stw_identity_flags(flags ${flags} ${own})
        string(APPEND text "CUDA ${CMAKE_CUDA_COMPILER_ID} ${CMAKE_CUDA_COMPILER_VERSION} "
            "${CMAKE_CUDA_ARCHITECTURES}\n${flags}\n")
    endif()
    set(${out} "${text}" PARENT_SCOPE)
endfunction()

# stw_identity(FOLDER [OVERLAY]): FOLDER/core/build_identity.inc, a string literal. Files of OVERLAY stand in for those of
# the source tree.
function(stw_identity folder)
    set(overlay "${ARGV1}")
    stw_identity_settings(settings)
    list(JOIN STW_IDENTITY_SOURCES "\n" names)
    file(CONFIGURE OUTPUT "${folder}/identity.list" CONTENT "${names}\n" @ONLY)
    file(CONFIGURE OUTPUT "${folder}/identity.settings" CONTENT "${settings}" @ONLY)
    set(files "")
    foreach(name IN LISTS STW_IDENTITY_SOURCES)
        if(overlay AND EXISTS "${overlay}/${name}")
            list(APPEND files "${overlay}/${name}")
        else()
            list(APPEND files "${PROJECT_SOURCE_DIR}/${name}")
        endif()
    endforeach()
    file(MAKE_DIRECTORY "${folder}/core")
    add_custom_command(OUTPUT "${folder}/core/build_identity.inc"
        COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DOVERLAY=${overlay}" "-DFOLDER=${folder}"
            -P "${PROJECT_SOURCE_DIR}/cmake/identity.cmake"
        DEPENDS ${files} "${folder}/identity.list" "${folder}/identity.settings"
            "${PROJECT_SOURCE_DIR}/cmake/identity.cmake"
        COMMENT "Identity of the build" VERBATIM)
endfunction()
