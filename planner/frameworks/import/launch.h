/* SPDX-License-Identifier: Apache-2.0 */
/* Launch scripts of programs with --flags: the flags, the GPUs of the launch, and what the
 * environment says of torch's allocator. One thread at a time. */
#ifndef STW_PLANNER_IMPORT_LAUNCH_H
#define STW_PLANNER_IMPORT_LAUNCH_H

#include "planner/frameworks/import/reading.h"
#include "planner/frameworks/shell/shell.h"

/** Flags from word `begin` on: --name value ..., --name=value; names lose dashes and underscores.
 * Of repeated flags the last one counts, as in argparse. BAD_INPUT at a word that is no flag, or
 * that hangs on a test which the script does not decide, unless the flag is idle.
 * @param table of the flags
 * @param plain BAD_INPUT, too, at a text that the script does not say, unless the flag is idle */
void stw_launch_read_flags(stw_reading *r, const stw_shell *shell, size_t begin,
                           const stw_flag_table *table, bool plain);
/** Refuse a flag that hangs on a test which the script does not decide.
 * @param row of the flag, or NULL: its name tells whether it matters */
void stw_launch_check_open(stw_reading *r, const stw_shell_word *word, const char *name,
                           const char *value, const stw_flag_row *row);
/** stw_shell_find for the file of an import, or for its command in the line that the import names.
 * The caller looks at n_found. */
stw_status stw_launch_find(stw_import *import, const char *text, size_t length,
                           bool (*wanted)(const stw_shell_word *words, size_t n), stw_shell *out,
                           stw_error *err);
/** What is to be said of the command that was found: refuse it where another may be the one that
 * counts, and note where several run, or none without arguments of the script. */
void stw_launch_check_found(stw_reading *r, const stw_shell *shell);
/** The value of a variable that the command sees, or NULL; one that hangs on a test which the
 * script does not decide is refused. @param known out, may be NULL: is it text, without expansions?
 */
const char *stw_launch_value(stw_reading *r, const stw_shell *shell, const char *name, bool *known);
/** PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF as the command sees it, into allocator.*. */
void stw_launch_read_allocator(stw_reading *r, const stw_shell *shell);
/** What the script exports, and "$@", for settings that are written from it. */
void stw_launch_keep_environment(stw_reading *r, const stw_shell *shell);
/** One of their values. */
void stw_launch_set_allocator(stw_reading *r, const char *name, const char *text);
/** --nproc_per_node and --nnodes of a launcher before word `end`, into out->gpus and nodes. */
void stw_launch_read_gpus(stw_reading *r, const stw_shell *shell, size_t end);

#endif
