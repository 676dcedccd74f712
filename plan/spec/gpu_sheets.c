/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/gpu_sheets.h"

#include <stdio.h>
#include <string.h>

#include "core/units.h"

static const stw_gpu_sheet sheets[] = {
#define X(name, bf16, fp8, nvlink, pcie, rates, best, half)                                        \
    {name, bf16, fp8, nvlink, pcie, rates, best, half},
#include "plan/spec/gpu_sheets.inc"
#undef X
};

/* The share of a data sheet's rate that collectives reach on H200; their rates across PCIe by its
 * generation, from 3 on. */
static const double NVLINK_SHARE = 0.8;
static const double pcie_bps[] = {10e9, 20e9, 40e9, 80e9};

const stw_gpu_sheet *stw_gpu_sheet_find(const char *name) {
    const stw_gpu_sheet *found = NULL;
    for (size_t i = 0; i < sizeof sheets / sizeof sheets[0]; i++) {
        size_t n = strlen(sheets[i].name);
        if (strncmp(name, sheets[i].name, n) != 0 || (name[n] != '\0' && name[n] != ' ')) continue;
        if (found == NULL || n > strlen(found->name)) found = &sheets[i];
    }
    return found;
}

bool stw_gpu_lacks(const char *name, stw_dtype dtype) {
    const stw_gpu_sheet *sheet = stw_gpu_sheet_find(name);
    if (sheet == NULL) return false;
    if (dtype == STW_DTYPE_BF16) return strcmp(sheet->half, "fp16") == 0;
    return (dtype == STW_DTYPE_F8_E4M3 || dtype == STW_DTYPE_F8_E5M2) && sheet->fp8[0] == '\0';
}

bool stw_gpu_is_target(const char *name) { return strncmp(name, "AMD ", 4) == 0; }

/* A figure of a data sheet; 0 where there is none. */
static stw_status read_figure(const char *text, stw_unit unit, const char *what, double *out,
                              stw_error *err) {
    *out = 0;
    return text[0] == '\0' ? STW_STATUS_OK : stw_quantity_parse(text, unit, out, what, err);
}

stw_status stw_gpu_sheet_apply(const stw_gpu_sheet *sheet, const char *origin, stw_cluster *cluster,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double bf16, nvlink, best;
    STW_TRY(read_figure(sheet->bf16, STW_UNIT_FLOPS, "sheet.bf16", &bf16, err));
    STW_TRY(read_figure(sheet->nvlink, STW_UNIT_BPS, "sheet.nvlink", &nvlink, err));
    if (!(bf16 > 0))
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                         "sheet.bf16: found \"%.30s\", expected the dense peak", sheet->bf16));
    if (strlen(sheet->pcie) != 1 || sheet->pcie[0] < '3' || sheet->pcie[0] > '6')
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                         "sheet.pcie: found \"%.20s\", expected 3, 4, 5 or 6", sheet->pcie));
    STW_TRY(read_figure(sheet->best_bf16, STW_UNIT_FLOPS, "best.bf16", &best, err));
    cluster->gpu.bf16_flops = bf16;
    cluster->gpu.best_bf16_flops = best;
    snprintf(cluster->gpu.rates, sizeof cluster->gpu.rates, "%s", sheet->rates);
    cluster->nvlink_bps = nvlink > 0 ? NVLINK_SHARE * nvlink : pcie_bps[sheet->pcie[0] - '3'];
out:
    return stw_error_in(status, origin, err);
}
