# SPDX-License-Identifier: Apache-2.0
# bin/, lib/, lib/stowage/ (plugins), include/stowage.h, share/stowage/ and the tarball. Every path is
# found relative to the program, so the whole may be moved.

install(TARGETS stowage stowage-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS stowage_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(STW_SHARED)
    install(TARGETS stowage_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# Not CMAKE_INSTALL_LIBDIR: stowage and stowage-run look in ../lib/stowage.
install(TARGETS stw_nvtx LIBRARY DESTINATION lib/stowage)
if(STW_WITH_MPI)
    install(TARGETS stw_mpi LIBRARY DESTINATION lib/stowage)
endif()

# What ./demo builds: all that is installed, and nothing else.
add_custom_target(installed DEPENDS help_files stowage stowage-run stowage_static stw_nvtx
    $<TARGET_NAME_IF_EXISTS:stowage_shared> $<TARGET_NAME_IF_EXISTS:stw_mpi>)

# ---- the library's one header --------------------------------------------------------------------
install(FILES include/stowage.h include/stowage_checkpoint.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

file(RELATIVE_PATH STW_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" STW_PC_PREFIX "${STW_PC_PREFIX}")
set(STW_PC_PRIVATE "-lcsv -pthread -ldl -lm")
if(STW_WITH_URING)
    string(PREPEND STW_PC_PRIVATE "-luring ")
endif()
if(STW_WITH_CUDA)
    string(PREPEND STW_PC_PRIVATE "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt ")
endif()
configure_file(cmake/stowage.pc.in "${PROJECT_BINARY_DIR}/stowage.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/stowage.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- data and documents --------------------------------------------------------------------------
foreach(data "zoo json" "zoo csv" "arch csv" "examples yaml" "examples json" "clusters csv" "probe py")
    string(REPLACE " " ";" data "${data}")
    list(GET data 0 folder)
    list(GET data 1 extension)
    install(DIRECTORY models/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/stowage
        FILES_MATCHING PATTERN "*.${extension}")
endforeach()
# Manual pages and completions where man and the shells look for them under a prefix.
install(DIRECTORY "${STW_HELP_FOLDER}/man1" DESTINATION ${CMAKE_INSTALL_MANDIR} OPTIONAL)
install(FILES "${STW_HELP_FOLDER}/bash/stowage"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
install(FILES "${STW_HELP_FOLDER}/zsh/_stowage"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
install(FILES "${STW_HELP_FOLDER}/fish/stowage.fish"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
install(FILES LICENSE README.md CHANGELOG.md HACKING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
# What they link to lies beside them as in the tree (tests/lint/links.sh).
install(DIRECTORY bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(FILES include/stowage.h include/stowage_checkpoint.h
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/include)
install(FILES tests/package/main_job.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/package)
install(DIRECTORY python/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/python)
install(DIRECTORY reports/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/reports)
# The chart library of HTML reports is part of the program.
install(FILES reports/html/vendor/uPlot.LICENSE
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party RENAME uPlot)
if(STW_STATIC_DEPS)
    # The binaries hold these libraries; their licences travel along.
    foreach(package glpk:libglpk-dev gmp:libgmp-dev suitesparse:libsuitesparse-dev zlib:zlib1g-dev
            libtool:libltdl-dev jansson:libjansson-dev libyaml:libyaml-dev libcsv:libcsv-dev
            xxhash:libxxhash-dev liburing:liburing-dev)
        string(REGEX REPLACE ":.*" "" name ${package})
        string(REGEX REPLACE ".*:" "" package ${package})
        install(FILES "/usr/share/doc/${package}/copyright"
            DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party RENAME ${name} OPTIONAL)
    endforeach()
    foreach(licence GPL-3 LGPL-3 LGPL-2.1)
        install(FILES "/usr/share/common-licenses/${licence}"
            DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party OPTIONAL)
    endforeach()
endif()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME stowage)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
string(TOLOWER "${PROJECT_NAME}-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}"
    CPACK_PACKAGE_FILE_NAME)
set(CPACK_STRIP_FILES ON)
include(CPack)
