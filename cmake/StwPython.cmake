# SPDX-License-Identifier: Apache-2.0
# The Python package: `cmake --build . --target wheel` installs this build into a folder, and pip makes dist/stowage-*.whl of it
# and python/. The wheel holds libstowage.so, both programs and share/stowage (python/setup.py).

find_package(Python3 COMPONENTS Interpreter)
if(STW_SHARED AND Python3_Interpreter_FOUND)
    set(wheel "${PROJECT_BINARY_DIR}/wheel")
    add_custom_target(wheel
        COMMAND "${CMAKE_COMMAND}" -E rm -rf "${wheel}"
        COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${wheel}/prefix" --strip
        COMMAND "${CMAKE_COMMAND}" -E copy_directory "${PROJECT_SOURCE_DIR}/python" "${wheel}/python"
        COMMAND "${CMAKE_COMMAND}" -E env "STOWAGE_PREFIX=${wheel}/prefix"
            "${Python3_EXECUTABLE}" -m pip wheel --no-deps --wheel-dir "${PROJECT_BINARY_DIR}/dist" "${wheel}/python"
        COMMENT "Building the wheel" VERBATIM)
    add_dependencies(wheel installed)
endif()
