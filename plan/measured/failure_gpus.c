/* SPDX-License-Identifier: Apache-2.0 */
/* nvidia-smi: its table, --query-gpu and --query-compute-apps as CSV, dmon; dcgmi dmon with the
 * fields 250 to 252 (FBTTL, FBFRE, FBUSD, in MiB). */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "plan/measured/failure_parts.h"

#define MIB 1048576.0

enum { NO_TABLE, QUERY, APPS, DMON, MOST_COLUMNS = 64 };
enum { DEVICE, USED, CAPACITY, FREE, PID, NAME, N_KEYS };
enum { MOST_GPUS = 1024 };

/* ---- what is found ---- */

static stw_status add_gpu(stw_failures *to, const char *from, uint64_t device, uint64_t used,
                          uint64_t capacity, stw_error *err) {
    for (size_t i = 0; i < to->n_gpus; i++) {
        stw_gpu_use *g = &to->gpus[i];
        if (g->device != device) continue;
        g->lines++;
        if (used != STW_NOT_SAID && (g->used == STW_NOT_SAID || used > g->used)) g->used = used;
        if (capacity != STW_NOT_SAID) g->capacity = capacity;
        return STW_STATUS_OK;
    }
    if (to->n_gpus == MOST_GPUS) return STW_STATUS_OK;
    stw_gpu_use *gpus =
        stw_pool_grow(to->pool, to->gpus, to->n_gpus, to->n_gpus + 1, &to->gpus_room, sizeof *gpus);
    if (gpus == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, to->file, "out of memory");
    to->gpus = gpus;
    gpus[to->n_gpus++] = (stw_gpu_use){device, used, capacity, 1, from};
    return STW_STATUS_OK;
}

static stw_status add_process(stw_failures *to, const stw_gpu_process *process, stw_error *err) {
    for (size_t i = 0; i < to->n_processes; i++)
        if (to->processes[i].pid == process->pid && to->processes[i].device == process->device) {
            if (process->bytes != STW_NOT_SAID) to->processes[i].bytes = process->bytes;
            return STW_STATUS_OK;
        }
    if (to->n_processes == MOST_GPUS) return STW_STATUS_OK;
    stw_gpu_process *list = stw_pool_grow(to->pool, to->processes, to->n_processes,
                                          to->n_processes + 1, &to->processes_room, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, to->file, "out of memory");
    to->processes = list;
    list[to->n_processes++] = *process;
    return STW_STATUS_OK;
}

/* ---- tables of nvidia-smi ---- */

/* "|   0  NVIDIA H100 80GB HBM3   On  | 00000000:1E:00.0 Off |": the row of a GPU begins.
 * "| N/A  26C  P8   16W / 450W |  14214MiB / 24564MiB |": its memory. */
static stw_status take_gpu(stw_gpu_tables *state, const char *line, stw_failures *to, bool *taken,
                           stw_error *err) {
    const char *mib = strstr(line, "MiB /"), *bar = strchr(line, '|');
    uint64_t used, capacity;
    char *end = NULL;
    *taken = false;
    if (bar == NULL) return STW_STATUS_OK;
    const uint64_t number = strtoull(bar + 1, &end, 10);
    if (mib == NULL && end != bar + 1 && strstr(line, ":") != NULL && strstr(line, "MiB") == NULL &&
        number < MOST_GPUS)
        state->device = number;
    if (mib == NULL) return STW_STATUS_OK;
    const char *at = mib;
    while (at > line && isdigit((unsigned char)at[-1])) at--;
    *taken = stw_failure_bytes(at, &used) != NULL && stw_failure_bytes(mib + 5, &capacity) != NULL;
    if (!*taken) return STW_STATUS_OK;
    return add_gpu(to, "nvidia-smi", state->device, used, capacity, err);
}

/* "|    0   N/A  N/A      1234      C   python                  14208MiB |" */
static stw_status take_process(const char *line, stw_failures *to, stw_error *err) {
    char words[12][64];
    int n = 0;
    const char *at = strchr(line, '|');
    for (at = at != NULL ? at + 1 : NULL; at != NULL && *at != '\0' && n < 12;) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, " ");
        if (length == 0 || *at == '|') break;
        const size_t kept = length < sizeof words[0] ? length : sizeof words[0] - 1;
        memcpy(words[n], at, kept);
        words[n++][kept] = '\0';
        at += length;
    }
    uint64_t bytes = STW_NOT_SAID;
    if (n < 5 || stw_failure_bytes(words[n - 1], &bytes) == NULL) return STW_STATUS_OK;
    for (int i = 2; i < n - 1; i++) {
        const bool type = strcmp(words[i], "C") == 0 || strcmp(words[i], "G") == 0 ||
                          strcmp(words[i], "C+G") == 0;
        if (!type || !isdigit((unsigned char)words[i - 1][0])) continue;
        const stw_gpu_process process = {strtoull(words[0], NULL, 10),
                                         strtoull(words[i - 1], NULL, 10), bytes,
                                         stw_pool_string(to->pool, words[i + 1])};
        return process.name != NULL ? add_process(to, &process, err) : STW_STATUS_OK;
    }
    return STW_STATUS_OK;
}

/* ---- CSV and dmon ---- */

/* The next cell of a row. @param separator ',' or ' ' @return where it ends; NULL: no more */
static const char *next_cell(const char *at, char separator, char *out, size_t size) {
    at += strspn(at, separator == ',' ? " \t" : " \t#");
    if (*at == '\0') return NULL;
    const size_t n = strcspn(at, separator == ',' ? "," : " \t");
    size_t kept = n < size ? n : size - 1;
    memcpy(out, at, kept);
    while (kept > 0 && strchr(" \t\"\r", out[kept - 1]) != NULL) kept--;
    out[kept] = '\0';
    return at[n] == ',' ? at + n + 1 : at + n;
}

/* Which key a head is, or -1. */
static int key_of(const char *head) {
    static const struct {
        const char *begin;
        int key;
    } heads[] = {{"index", DEVICE},
                 {"gpu_uuid", -1},
                 {"memory.used", USED},
                 {"memory.total", CAPACITY},
                 {"memory.free", FREE},
                 {"pid", PID},
                 {"process_name", NAME},
                 {"used_gpu_memory", USED},
                 {"used_memory", USED},
                 {"FBUSD", USED},
                 {"FBTTL", CAPACITY},
                 {"FBFRE", FREE},
                 {"Entity", DEVICE},
                 {"gpu", DEVICE},
                 {"fb", USED}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const size_t n = strlen(heads[i].begin);
        if (strncmp(head, heads[i].begin, n) == 0 && (head[n] == '\0' || head[n] == ' '))
            return heads[i].key;
    }
    return -1;
}

/* A row of heads: which column has what. */
static bool take_heads(stw_gpu_tables *state, const char *line) {
    const bool csv = strstr(line, "memory.") != NULL || strstr(line, "used_gpu_memory") != NULL ||
                     strstr(line, "used_memory") != NULL;
    const bool dmon = !csv && line[0] == '#' &&
                      (strstr(line, "FBUSD") != NULL || strstr(line, "FBFRE") != NULL ||
                       strstr(line, " fb ") != NULL);
    char cell[96];
    int columns[N_KEYS], n = 0;
    if (!csv && !dmon) return false;
    if (csv && strchr(line, ',') == NULL) return false;
    for (int k = 0; k < N_KEYS; k++) columns[k] = -1;
    for (const char *at = line; n < MOST_COLUMNS; n++) {
        at = next_cell(at, csv ? ',' : ' ', cell, sizeof cell);
        if (at == NULL) break;
        const int key = key_of(cell);
        if (key >= 0 && columns[key] < 0) columns[key] = n;
    }
    if (columns[USED] < 0 && columns[FREE] < 0) return false;
    state->kind = dmon ? DMON : columns[PID] >= 0 ? APPS : QUERY;
    state->unit = strstr(line, "[GiB]") != NULL ? 1024 * MIB : MIB;
    for (int k = 0; k < N_KEYS; k++) state->columns[k] = columns[k];
    return true;
}

/* "GPU 0" of dcgmi is two words. */
static bool take_cells(const stw_gpu_tables *state, const char *line, char cells[][96], int *n) {
    const char separator = state->kind == DMON ? ' ' : ',';
    const char *at = line;
    *n = 0;
    if (state->kind == DMON && strncmp(line + strspn(line, " "), "GPU ", 4) == 0)
        at = strchr(line, 'U') + 1;
    while (*n < MOST_COLUMNS) {
        at = next_cell(at, separator, cells[*n], 96);
        if (at == NULL) break;
        (*n)++;
    }
    return *n > 1;
}

static uint64_t figure(const stw_gpu_tables *state, char cells[][96], int n, int key) {
    const int column = state->columns[key];
    char *end = NULL;
    if (column < 0 || column >= n) return STW_NOT_SAID;
    const double value = strtod(cells[column], &end);
    if (end == cells[column] || value < 0 || value >= 1e9) return STW_NOT_SAID;
    return (uint64_t)(key == DEVICE || key == PID ? value : value * state->unit + 0.5);
}

static stw_status take_row(stw_gpu_tables *state, const char *line, stw_failures *to,
                           stw_error *err) {
    char cells[MOST_COLUMNS][96];
    int n = 0;
    if (!take_cells(state, line, cells, &n)) return STW_STATUS_OK;
    uint64_t device = figure(state, cells, n, DEVICE), used = figure(state, cells, n, USED);
    const uint64_t capacity = figure(state, cells, n, CAPACITY),
                   empty = figure(state, cells, n, FREE);
    if (device == STW_NOT_SAID) device = 0;
    if (state->kind == APPS) {
        const stw_gpu_process process = {
            device, figure(state, cells, n, PID), used,
            stw_pool_string(to->pool, state->columns[NAME] >= 0 && state->columns[NAME] < n
                                          ? cells[state->columns[NAME]]
                                          : "")};
        if (process.pid == STW_NOT_SAID || process.name == NULL) return STW_STATUS_OK;
        return add_process(to, &process, err);
    }
    if (used == STW_NOT_SAID && capacity != STW_NOT_SAID && empty <= capacity)
        used = capacity - empty;
    if (used == STW_NOT_SAID || device >= MOST_GPUS) return STW_STATUS_OK;
    return add_gpu(to, state->kind == DMON ? "dmon" : "nvidia-smi", device, used, capacity, err);
}

stw_status stw_gpu_tables_line(stw_gpu_tables *state, const char *line, stw_failures *to,
                               stw_error *err) {
    bool taken = false;
    if (line[0] == '|') {
        stw_status status = take_gpu(state, line, to, &taken, err);
        if (status != STW_STATUS_OK || taken) return status;
        return take_process(line, to, err);
    }
    if (take_heads(state, line)) return STW_STATUS_OK;
    if (state->kind == NO_TABLE || line[0] == '#') return STW_STATUS_OK;
    return take_row(state, line, to, err);
}
