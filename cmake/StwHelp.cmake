# SPDX-License-Identifier: Apache-2.0
# Manual pages and completions, from the tables of options that the programs print (--help=man, --help=words).
set(STW_HELP_FOLDER "${PROJECT_BINARY_DIR}/help")
add_custom_command(
    OUTPUT "${STW_HELP_FOLDER}/stamp"
    COMMAND sh "${PROJECT_SOURCE_DIR}/scripts/manuals" "${STW_HELP_FOLDER}" "$<TARGET_FILE:stowage>" "$<TARGET_FILE:stowage-run>"
    DEPENDS stowage stowage-run scripts/manuals scripts/completion
    VERBATIM)
add_custom_target(help_files ALL DEPENDS "${STW_HELP_FOLDER}/stamp")
