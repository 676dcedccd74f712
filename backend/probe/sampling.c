/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a calibration, and what its parts do with their samples. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/probe/probe.h"
#include "core/log.h"
#include "core/progress.h"

#define QUICK_S 12.0 /* after these no sample is taken that no plan needs */
#define FULL_S 140.0
#define QUICK_END_S 16.0 /* by these all should be measured */
#define FULL_END_S 170.0

/* Seconds that the parts take, about; the progress line alone depends on it. */
static const struct {
    bool gpu, several;
    double quick_s, full_s;
} parts[STW_N_PROBE_PARTS] = {
    [STW_PROBE_PART_NCCL] = {true, true, 6, 16},
    [STW_PROBE_PART_CONTEXT] = {true, false, 1, 2},
    [STW_PROBE_PART_PAGE_LOCK] = {true, false, 1, 8},
    [STW_PROBE_PART_LINKS] = {true, false, 2, 10},
    [STW_PROBE_PART_GPU_WORK] = {true, false, 1, 4},
    [STW_PROBE_PART_TOGETHER] = {true, false, 3, 12},
    [STW_PROBE_PART_SIZES] = {true, false, 1, 16},
    [STW_PROBE_PART_CPU] = {false, false, 2, 14},
    [STW_PROBE_PART_FILES] = {false, false, 2, 5},
    [STW_PROBE_PART_DISK] = {false, false, 8, 30},
    [STW_PROBE_PART_TORCH] = {false, false, 0, 60},
};

void stw_probe_progress(const stw_probe *probe, stw_probe_part part, double share,
                        const char *what) {
    double before_s = 0, all_s = 0, mine_s = 0;
    char line[96];
    for (int p = 0; p < STW_N_PROBE_PARTS; p++) {
        if ((parts[p].gpu && probe->gpus < 1) || (parts[p].several && probe->gpus < 2)) continue;
        double s = stw_probe_pick(probe, parts[p].quick_s, parts[p].full_s);
        all_s += s;
        if (p < (int)part) before_s += s;
        if (p == (int)part) mine_s = s;
    }
    snprintf(line, sizeof line, "calibrating, %s", what);
    double done = 1000 * (before_s + mine_s * share) / all_s;
    stw_progress_phase(line, STW_PROGRESS_SHARE, 1000);
    stw_progress_add((uint64_t)done);
}

double stw_probe_seconds(const stw_probe *probe, double quick, double full) {
    return probe->time_scale * stw_probe_pick(probe, quick, full);
}

double stw_probe_seconds_left(const stw_probe *probe, double least, double most) {
    double end_s = probe->start_s + stw_probe_pick(probe, QUICK_END_S, FULL_END_S);
    double left = end_s - stw_process_now_s();
    return probe->time_scale * (left < least ? least : left > most ? most : left);
}

bool stw_probe_has_time(const stw_probe *probe) {
    return stw_process_now_s() - probe->start_s < stw_probe_pick(probe, QUICK_S, FULL_S);
}

double stw_probe_three_digits(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.3g", value);
    return strtod(text, NULL);
}

double stw_probe_keep(const stw_probe *probe, const stw_sample *sample) {
    stw_samples_add(probe->samples, sample);
    return stw_probe_three_digits(stw_sample_median(sample));
}

double stw_probe_keep_rate(const stw_probe *probe, const stw_sample *sample) {
    double median = stw_probe_keep(probe, sample), least = median, most = median;
    for (uint32_t i = 0; i < sample->n && i < STW_SAMPLE_VALUES; i++) {
        if (sample->values[i] < least) least = sample->values[i];
        if (sample->values[i] > most) most = sample->values[i];
    }
    if (!stw_sample_is_steady(sample) && probe->time_scale >= 1)
        stw_log(STW_LOG_WARN,
                "%s (%s) varied between %.3g and %.3g %s: something else was at work on this "
                "machine; calibrate again before you count on it",
                sample->what, sample->detail, least, most, sample->unit);
    return median;
}
