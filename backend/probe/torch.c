/* SPDX-License-Identifier: Apache-2.0 */
/* What a framework's optimizers reach on this node's CPUs. A script measures it (models/probe/
 * torch_rates.py, where its lines are described), because it needs Python and torch; here it is
 * started, read and, after its time, ended. */
#define _DEFAULT_SOURCE /* kill, setpgid */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/probe/probe.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/text.h"

#define LIMIT_S 90.0 /* torch takes up to 20 s to start, a first copy to a GPU another 5 */
#define SHORTEST 0.1 /* of that, in tests */

typedef struct script {
    const stw_probe *probe;
    stw_cluster *out;
    pid_t child;
    int lines; /* its stdout */
    uint32_t samples;
} script;

/* ---- lines ---- */

static void set_rate(stw_cluster *out, const char *name, double value) {
    const struct {
        const char *name;
        double *rate;
    } rates[] = {
        {"loop", &out->torch.loop.all_pps},         {"loop_one", &out->torch.loop.one_pps},
        {"foreach", &out->torch.foreach.all_pps},   {"foreach_one", &out->torch.foreach.one_pps},
        {"fused", &out->torch.fused.all_pps},       {"fused_one", &out->torch.fused.one_pps},
        {"cpu_adam", &out->torch.cpu_adam.all_pps}, {"cpu_adam_one", &out->torch.cpu_adam.one_pps},
        {"pageable", &out->pcie.pageable_bps},      {"call", &out->host.call_s}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (strcmp(rates[i].name, name) == 0) *rates[i].rate = stw_probe_three_digits(value);
    if (strcmp(name, "process") == 0) out->torch.process_bytes = (uint64_t)value;
}

/* "sample NAME DETAIL UNIT VALUE..." */
static void take_sample(script *s, char *fields) {
    char *rest = NULL, what[40];
    const char *name = strtok_r(fields, "\t", &rest), *detail = strtok_r(NULL, "\t", &rest);
    const char *unit = strtok_r(NULL, "\t", &rest);
    if (name == NULL || detail == NULL || unit == NULL) return;
    snprintf(what, sizeof what, "torch %s", name);
    stw_sample sample = stw_sample_make(what, detail, unit);
    for (char *v = strtok_r(NULL, "\t", &rest); v != NULL; v = strtok_r(NULL, "\t", &rest)) {
        char *end;
        double value = strtod(v, &end);
        if (end != v && *end == '\0' && value > 0 && value < 1e15) stw_sample_add(&sample, value);
    }
    if (sample.n == 0) return;
    set_rate(s->out, name, stw_probe_keep(s->probe, &sample));
    s->samples++;
}

static void take_line(script *s, char *line) {
    char *fields = strchr(line, '\t');
    if (fields == NULL) return;
    *fields++ = '\0';
    if (strcmp(line, "sample") == 0) {
        take_sample(s, fields);
    } else if (strcmp(line, "progress") == 0) {
        char *text = strchr(fields, '\t');
        stw_probe_progress(s->probe, STW_PROBE_PART_TORCH, strtod(fields, NULL),
                           text != NULL ? text + 1 : "torch");
    } else if (strcmp(line, "none") == 0) {
        stw_log(STW_LOG_INFO, "optimizers of torch on the CPU are not measured: %s", fields);
    }
}

/* ---- the process ---- */

static bool start(script *s, const char *path) {
    char ranks[16], cores[16], bytes[32];
    const char *python = getenv("STOWAGE_PYTHON");
    int ends[2];
    uint64_t most = stw_min_u64(s->probe->most_bytes, s->probe->room_bytes);
    if (python == NULL || python[0] == '\0') python = "python3";
    snprintf(ranks, sizeof ranks, "%u", s->out->gpus > 0 ? s->out->gpus : 1);
    snprintf(cores, sizeof cores, "%u", s->out->host.cores);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)most);
    if (pipe(ends) != 0) return false;
    s->child = fork();
    if (s->child == 0) {
        (void)setpgid(0, 0);
        if (dup2(ends[1], STDOUT_FILENO) < 0) _exit(127);
        close(ends[0]);
        close(ends[1]);
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(127);
        execlp(python, python, path, "--ranks", ranks, "--cores", cores, "--bytes", bytes,
               (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (s->child < 0) close(ends[0]);
    if (s->child > 0) (void)setpgid(s->child, s->child);
    s->lines = ends[0];
    return s->child > 0;
}

/* @return false after the last line, true when the time was over before it */
static bool read_lines(script *s, double end_s) {
    char buffer[4096];
    size_t used = 0;
    for (;;) {
        struct pollfd fd = {.fd = s->lines, .events = POLLIN};
        double left = end_s - stw_process_now_s();
        if (left <= 0) return true;
        int ready = poll(&fd, 1, (int)(1000 * left) + 1);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return ready == 0;
        ssize_t n = read(s->lines, buffer + used, sizeof buffer - 1 - used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        used += (size_t)n;
        buffer[used] = '\0';
        char *line = buffer;
        for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            take_line(s, line);
        }
        used = strlen(line);
        memmove(buffer, line, used);
        if (used == sizeof buffer - 1) used = 0; /* no line is that long */
    }
}

void stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out) {
    script s = {.probe = probe, .out = out};
    int code = 0;
    if (probe->depth != STW_PROBE_FULL || path == NULL) return;
    stw_probe_progress(probe, STW_PROBE_PART_TORCH, 0, "torch");
    if (!start(&s, path)) {
        stw_log(STW_LOG_INFO, "optimizers of torch on the CPU are not measured: %s",
                strerror(errno));
        return;
    }
    const double limit_s = LIMIT_S * (probe->time_scale < SHORTEST ? SHORTEST : probe->time_scale);
    bool late = read_lines(&s, stw_process_now_s() + limit_s);
    if (late) (void)kill(-s.child, SIGKILL);
    close(s.lines);
    while (waitpid(s.child, &code, 0) < 0 && errno == EINTR) continue;
    if (late)
        stw_log(STW_LOG_INFO, "optimizers of torch on the CPU: %.0f s were over after %u rates",
                limit_s, s.samples);
    else if (WIFEXITED(code) && WEXITSTATUS(code) == 127)
        stw_log(STW_LOG_INFO, "optimizers of torch on the CPU are not measured: no python3 (or set "
                              "STOWAGE_PYTHON)");
    else if (code != 0)
        stw_log(STW_LOG_INFO, "optimizers of torch on the CPU: the script failed after %u rates",
                s.samples);
}
