/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two programs: option parsing, help, output, error messages, paths of data and of
 * the other program. Everything is called from the main thread; option values point into argv. */
#ifndef STW_CLI_COMMON_H
#define STW_CLI_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/text.h"

/** A list of option values in the order given (--set K=V --set K=V). */
typedef struct stw_values {
    size_t n;
    const char *items[64];
} stw_values;

typedef enum stw_option_kind {
    STW_OPTION_FLAG,
    STW_OPTION_VALUE, /* the last one counts */
    STW_OPTION_ONCE,  /* a second one is refused: it is neither added to the first nor meant to
                         replace it */
    STW_OPTION_LIST
} stw_option_kind;

/** One option of a command; `out` is bool *, const char ** or stw_values * by kind. */
typedef struct stw_option {
    const char *name;    /* "--steps" */
    const char *letter;  /* "-n", or NULL */
    const char *metavar; /* "N"; NULL for flags */
    const char *help;
    stw_option_kind kind;
    void *out;
} stw_option;

/** Options that every command has. */
typedef struct stw_general {
    bool help, json, verbose, quiet;
    bool full; /* of commands with STW_FULL_OPTION */
    const char *output;
    int argc; /* the command with its options, as given */
    char **argv;
} stw_general;

/** One command of a program. */
typedef struct stw_usage {
    const char *program, *command; /* command: NULL for stowage-run */
    const char *arguments;         /* "PLAN RUN" */
    const char *summary;
    const stw_option *options;
    size_t n_options;
    size_t least, most; /* positional arguments */
    /* What an unknown option may mean, "; did you mean ...", or false; may be NULL. */
    bool (*hint)(const char *word, char *out, size_t out_size);
} stw_usage;

/** Parse argv[1..]. Fills options, general and `positional` (room for `usage->most`). USAGE errors
 * name the argument and the nearest option. With --help the number of arguments is not checked. */
STW_MUST_USE stw_status stw_options_parse(int argc, char **argv, const stw_usage *usage,
                                          stw_general *general, const char **positional,
                                          size_t *n_positional, stw_error *err);
#define STW_MOST_OPTIONS 48
/** The options of a command, followed by those of every command that it does not have itself.
 * @param out [STW_MOST_OPTIONS]
 * @return how many */
size_t stw_usage_options(const stw_usage *usage, stw_general *general, stw_option *out);
/** What --help prints: text for people; with --help=man a manual page (roff); with --help=words
 * lines with tabs, of which completions are made (scripts/completion). */
typedef enum stw_help_form { STW_HELP_TEXT, STW_HELP_MAN, STW_HELP_WORDS } stw_help_form;
/** @return false: there is no such form */
bool stw_help_form_take(const char *name);
stw_help_form stw_help_form_asked(void);
/** Usage with one line per option, in the form that was asked for, to stdout. */
void stw_usage_print(const stw_usage *usage);
/** Text of a manual page, with what roff would take for its own escaped. */
void stw_print_roff(const char *text);
/** The head of a manual page: its title and NAME. */
void stw_print_roff_head(const char *name, const char *summary);
/** Parse an unsigned option value; USAGE if it is not one. @param text NULL keeps *out */
STW_MUST_USE stw_status stw_option_u64(const char *name, const char *text, uint64_t least,
                                       uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_option_double(const char *name, const char *text, double *out,
                                          stw_error *err);
/** A share from 0 to 1, also in percent: 0.01 and 1% are the same. */
STW_MUST_USE stw_status stw_option_share(const char *name, const char *text, double *out,
                                         stw_error *err);

/** First in main: descriptors 0 to 2 that are closed become a /dev/null where reads and writes
 * fail, a write over the limit on file sizes (SIGXFSZ) becomes an error, and signals that end
 * the process (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGXCPU) remove temporary files first. */
void stw_process_begin(void);
/** Last in main: flush stdout. Returns `code`; if stdout did not take everything and `code` is 0,
 * the exit code of that error. */
int stw_process_end(int code);
/** Print an error to stderr and return the exit code. */
int stw_exit(stw_status status, const stw_error *err);
/** Write the text to -o FILE, or to stdout: there in colour, if it is a terminal that has colour.
 * With --json to both. */
STW_MUST_USE stw_status stw_emit(const stw_general *general, const stw_text *text, stw_error *err);
/** Is a summary for people printed beside the file of -o? */
bool stw_has_summary(const stw_general *general);
/** USAGE if the path (may be NULL) has a suffix that is not among these.
 * @param what is written, for the error; @param suffixes ".md .csv" */
STW_MUST_USE stw_status stw_check_suffix(const char *path, const char *what, const char *suffixes,
                                         stw_error *err);
/** A path, and how the command line gives it: "-o", "--model". The path may be NULL or "-". */
typedef struct stw_named_path {
    const char *name, *path;
} stw_named_path;
/** USAGE if an output is the same file as an input, a file of an input folder that models are read
 * from, or another output. Before any work. */
STW_MUST_USE stw_status stw_check_outputs(const stw_named_path *outputs, size_t n_outputs,
                                          const stw_named_path *inputs, size_t n_inputs,
                                          stw_error *err);
/** Columns of what is printed to `fd`: $COLUMNS, else as the terminal says, else 80; 0 (no limit)
 * where COLUMNS is 0 and `fd` is no terminal. */
unsigned stw_terminal_columns(int fd);
/** `fd` is a terminal; NO_COLOR is not set; TERM is set and not "dumb". */
bool stw_terminal_has_colour(int fd);
/** A report for a terminal with headings in bold and verdicts in colour. */
void stw_text_colour(const stw_text *in, stw_text *out);
/** Print to stdout, wrapped to 80 columns, and end the line.
 * @param indent of each line; @param column where the cursor stands */
void stw_print_wrapped(const char *text, size_t indent, size_t column);
/** Set the log level from -v and -q. */
void stw_general_apply(const stw_general *general);

/** Folder of this program, without a final slash. */
STW_MUST_USE stw_status stw_program_folder(char *out, size_t out_size, stw_error *err);
/** Folder with zoo/, arch/ and examples/: $STOWAGE_DATA, <exe>/../share/stowage, or the source
 * tree. */
STW_MUST_USE stw_status stw_data_folder(char *out, size_t out_size, stw_error *err);
/** Replace this process with stowage-run, which links CUDA and not the solver. Launchers then see
 * one process per rank. Returns an exit code if this fails.
 * @param name by which the program was called, "stowage run"
 * @param first argument before argv[1..], or NULL */
int stw_become_run(const char *name, const char *first, int argc, char **argv);
/** Path of the program `name` in the folder of this program. */
STW_MUST_USE stw_status stw_sibling(const char *name, char *out, size_t out_size, stw_error *err);

#endif
