/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts in a real bash beside our reading of them: the arguments of the last launch, and a few
 * variables of its environment, are equal, or the reader says that it does not know.
 * Usage: shell_compare FILE...; a file has scripts after lines "==== equal" or "==== refused".
 * Programs in a folder of this test's own stand for launchers. Words that the reader leaves open
 * match any words; all others have to be there. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planner/frameworks/shell/shell.h"

enum { MAX_RECORD = 1 << 20, MAX_WORDS = 4096, LIMIT_S = 20 };

static const char *const launchers[] = {"train",     "torchrun",         "python", "python3",
                                        "deepspeed", "accelerate",       "swift",  "megatron",
                                        "ray",       "llamafactory-cli", "mpirun", "srun"};
static const char *const variables[] = {"NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES",
                                        "PYTORCH_CUDA_ALLOC_CONF", "MB"};
enum {
    N_LAUNCHERS = sizeof launchers / sizeof launchers[0],
    N_VARIABLES = sizeof variables / sizeof variables[0]
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static bool starts(const stw_shell_word *words, size_t n) {
    const char *base = n > 0 ? strrchr(words[0].text, '/') : NULL;
    base = n == 0 ? "" : base != NULL ? base + 1 : words[0].text;
    if (strcmp(base, "srun") == 0) /* bash that it starts is read */
        for (size_t i = 1; i < n; i++)
            if (strcmp(words[i].text, "sh") == 0 || strcmp(words[i].text, "bash") == 0)
                return false;
    for (size_t i = 0; i < N_LAUNCHERS; i++)
        if (strcmp(base, launchers[i]) == 0) return true;
    return false;
}

/* ---- bash ---- */

static void write_file(const char *path, const char *text, size_t length, int mode) {
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    if (file < 0 || write(file, text, length) != (ssize_t)length || close(file) != 0) die(path);
}

/* Launchers write their arguments and variables; srun and sbatch start shells as they do. */
static void write_launchers(void) {
    char text[4096], path[256], names[512] = "";
    if (mkdir("bin", 0777) != 0 && errno != EEXIST) die("bin");
    if (mkdir("launch", 0777) != 0 && errno != EEXIST) die("launch");
    for (size_t i = 0; i < N_VARIABLES; i++) {
        strcat(names, " ");
        strcat(names, variables[i]);
    }
    snprintf(text, sizeof text,
             "#!/bin/bash\nif [ \"${0##*/}\" = srun ]; then\n"
             "  for ((i = 1; i <= $#; i++)); do\n    case ${!i} in\n"
             "      sh|bash) shift $((i - 1)); exec \"$@\" ;;\n    esac\n  done\nfi\n"
             "{\n  printf '%%s\\0' \"${0##*/}\" \"$@\"\n  printf '\\1\\0'\n"
             "  for name in%s; do\n    [ -v $name ] && printf '%%s\\0' \"$name=${!name}\"\n"
             "  done\n} >\"$STW_RECORD\"\nexit 0\n",
             names);
    for (size_t i = 0; i < N_LAUNCHERS; i++) {
        snprintf(path, sizeof path, "bin/%s", launchers[i]);
        write_file(path, text, strlen(text), 0777);
    }
    static const char *const sourced[][2] = {
        {"launch/set_a.sh", "# it sets\nMBS=4\nSET=\"$MBS x\"\n"},
        {"launch/set_b.sh", "MBS=$(($1 + $2)); shift\n"},
        {"launch/set_c.sh", ". ./set_a.sh\nMBS=$((MBS * 2))\n"},
        {"launch/set_d.sh", "MBS=3\nreturn 4\nMBS=9\n"}};
    for (size_t i = 0; i < sizeof sourced / sizeof sourced[0]; i++)
        write_file(sourced[i][0], sourced[i][1], strlen(sourced[i][1]), 0666);
    const char *batch = "#!/bin/bash\nexec bash\n";
    write_file("bin/sbatch", batch, strlen(batch), 0777);
}

/* @return bytes of the record; 0: nothing was launched */
static size_t run_bash(const char *script, size_t length, char *record) {
    char path[4096], folder[3800], name[4096];
    int ends[2];
    write_file("launch/script.sh", script, length, 0666);
    (void)unlink("record");
    if (getcwd(folder, sizeof folder) == NULL || pipe(ends) != 0) die("pipe");
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        snprintf(path, sizeof path, "PATH=%s/bin:/usr/bin:/bin", folder);
        snprintf(name, sizeof name, "STW_RECORD=%s/record", folder);
        char *const environment[] = {path, name, "LC_ALL=C", NULL};
        char *const words[] = {"bash", "script.sh", NULL};
        const int null = open("/dev/null", O_RDWR);
        if (null < 0 || chdir("launch") != 0) _exit(126);
        (void)setpgid(0, 0);
        dup2(null, 0);
        dup2(null, 2);
        dup2(ends[1], 1);
        close(ends[0]);
        execve("/bin/bash", words, environment);
        _exit(127);
    }
    close(ends[1]);
    char buffer[4096];
    int status = 0;
    alarm(LIMIT_S); /* ends this test: a script that hangs is a mistake of its author */
    while (read(ends[0], buffer, sizeof buffer) > 0) {
    } /* until all that it started has ended */
    alarm(0);
    close(ends[0]);
    (void)waitpid(child, &status, 0);
    FILE *file = fopen("record", "rb");
    const size_t n = file != NULL ? fread(record, 1, MAX_RECORD, file) : 0;
    if (file != NULL) fclose(file);
    return n;
}

/* ---- both ---- */

typedef struct launch {
    size_t n;
    const char *words[MAX_WORDS];
    size_t n_set;
    const char *set[N_VARIABLES];
} launch;

static void split(const char *record, size_t length, launch *out) {
    bool set = false;
    out->n = out->n_set = 0;
    for (const char *at = record; at < record + length; at += strlen(at) + 1) {
        if (strcmp(at, "\1") == 0)
            set = true;
        else if (set && out->n_set < N_VARIABLES)
            out->set[out->n_set++] = at;
        else if (!set && out->n < MAX_WORDS)
            out->words[out->n++] = at;
    }
}

static bool is_open(const stw_shell_word *word) { return word->maybe > 0 || word->unknown; }

static bool has_open(const stw_shell *shell) {
    bool any = false;
    for (size_t i = 0; i < shell->n_words; i++) any = any || is_open(&shell->words[i]);
    return any;
}

static bool same_word(size_t i, const char *ours, const char *theirs) {
    const char *base = i == 0 && strrchr(ours, '/') != NULL ? strrchr(ours, '/') + 1 : ours;
    return strcmp(base, theirs) == 0;
}

/* Open words match any number of words. */
static bool match(const stw_shell *shell, const launch *theirs) {
    size_t i = 0, k = 0, open = SIZE_MAX, back = 0;
    while (k < theirs->n) {
        if (i < shell->n_words && is_open(&shell->words[i])) {
            open = ++i;
            back = k;
        } else if (i < shell->n_words && same_word(i, shell->words[i].text, theirs->words[k])) {
            i++;
            k++;
        } else if (open != SIZE_MAX) {
            i = open;
            k = ++back;
        } else {
            return false;
        }
    }
    while (i < shell->n_words && is_open(&shell->words[i])) i++;
    return i == shell->n_words;
}

/* @return the variable that differs; NULL: none does */
static const char *other_variable(const stw_shell *shell, const launch *theirs, bool *open) {
    for (size_t i = 0; i < N_VARIABLES; i++) {
        const stw_shell_variable *v = stw_shell_variable_of(shell, variables[i]);
        const char *ours = stw_shell_value(shell, variables[i]), *other = NULL;
        const size_t n = strlen(variables[i]);
        for (size_t k = 0; k < theirs->n_set; k++)
            if (strncmp(theirs->set[k], variables[i], n) == 0 && theirs->set[k][n] == '=')
                other = theirs->set[k] + n + 1;
        if (v != NULL && v->n > 0 && is_open(&v->words[0])) {
            *open = true;
            continue;
        }
        if ((ours == NULL) != (other == NULL) || (ours != NULL && strcmp(ours, other) != 0))
            return variables[i];
    }
    return NULL;
}

typedef enum verdict { EQUAL, REFUSED, WRONG } verdict;

static verdict judge(const char *script, size_t length, const launch *theirs, char *why,
                     size_t why_size) {
    stw_pool *pool = stw_pool_new();
    stw_error err = STW_ERROR_INIT;
    stw_shell shell;
    verdict result = EQUAL;
    if (pool == NULL) die("pool");
    const stw_status status =
        stw_shell_find("launch/script.sh", script, length, starts, pool, &shell, &err);
    const char *variable = NULL;
    bool open = false;
    if (status != STW_STATUS_OK) {
        result = err.line > 0 ? REFUSED : WRONG;
        snprintf(why, why_size, "line %d: %s", err.line, err.text);
    } else if (shell.n_found == 0 ||
               (theirs->n == 0 && (shell.unsure > 0 || shell.arguments || has_open(&shell)))) {
        result = shell.n_found > 0 ? REFUSED : theirs->n == 0 ? EQUAL : WRONG;
        snprintf(why, why_size, "%s",
                 shell.n_found > 0 ? "it may not run, or a word is open" : "nothing is found");
    } else if (shell.arguments || shell.ambiguous > 0) {
        result = REFUSED;
        snprintf(why, why_size, "line %d: several, or with arguments alone", shell.ambiguous);
    } else if (!match(&shell, theirs)) {
        result = WRONG;
        size_t n = 0;
        for (size_t i = 0; i < shell.n_words && n < why_size; i++)
            n += (size_t)snprintf(why + n, why_size - n,
                                  is_open(&shell.words[i]) ? "?[%s] " : "[%s] ",
                                  shell.words[i].text);
    } else if ((variable = other_variable(&shell, theirs, &open)) != NULL) {
        result = WRONG;
        const char *ours = stw_shell_value(&shell, variable);
        snprintf(why, why_size, "%s=%s", variable, ours != NULL ? ours : "(none)");
    } else {
        snprintf(why, why_size, "a word is open");
        if (open || has_open(&shell) || shell.unsure > 0) result = REFUSED;
    }
    stw_pool_free(pool);
    return result;
}

static size_t counts[3], unexpected;

static void compare(const char *path, int line, const char *expected, const char *script,
                    size_t length) {
    static char record[MAX_RECORD];
    static launch theirs;
    static const char *const names[] = {"equal", "refused", "wrong"};
    char why[2048] = "";
    split(record, run_bash(script, length, record), &theirs);
    const verdict result = judge(script, length, &theirs, why, sizeof why);
    counts[result]++;
    const bool any = *expected == '\0' || strcmp(expected, "any") == 0;
    if (result != WRONG && (any || strcmp(expected, names[result]) == 0)) {
        if (getenv("STW_VERBOSE") != NULL && result == REFUSED)
            printf("%s:%d: refused: %s\n", path, line, why);
        return;
    }
    unexpected++;
    printf("%s:%d: %s, expected %s\n%.*s", path, line, names[result], any ? "equal" : expected,
           (int)length, script);
    printf("  read: %s\n  bash:", why);
    for (size_t i = 0; i < theirs.n; i++) printf(" [%s]", theirs.words[i]);
    for (size_t i = 0; i < theirs.n_set; i++) printf(" %s", theirs.set[i]);
    printf("\n");
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = malloc(MAX_RECORD + 1);
    if (file == NULL || text == NULL) die(path);
    text[fread(text, 1, MAX_RECORD, file)] = '\0';
    fclose(file);
    return text;
}

static void compare_file(const char *path) {
    char *text = read_all(path), *at = text;
    int line = 1;
    if (strncmp(text, "====", 4) != 0) { /* one script */
        compare(path, 1, "", text, strlen(text));
        at = strchr(text, '\0');
    }
    while (*at != '\0') {
        char *begin = strchr(at, '\n');
        char expected[16] = "";
        if (begin == NULL || sscanf(at, "==== %15s", expected) != 1) die(at);
        char *end = strstr(begin, "\n====");
        begin++;
        end = end != NULL ? end + 1 : strchr(begin, '\0');
        compare(path, line + 1, expected, begin, (size_t)(end - begin));
        for (; at < end; at++) line += *at == '\n';
    }
    free(text);
}

int main(int argc, char **argv) {
    if (access("/bin/bash", X_OK) != 0) return 77;
    if (setpgid(0, 0) != 0 && errno != EPERM) die("setpgid");
    write_launchers();
    for (int i = 1; i < argc; i++) compare_file(argv[i]);
    printf("%zu equal, %zu refused, %zu wrong; %zu not as expected\n", counts[EQUAL],
           counts[REFUSED], counts[WRONG], unexpected);
    return unexpected > 0 || counts[WRONG] > 0 ? 1 : 0;
}
