/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/pieces.h"

#include "core/checked.h"

static bool travels(stw_dtype dtype) {
    return dtype == STW_DTYPE_F32 || dtype == STW_DTYPE_BF16 || dtype == STW_DTYPE_F16;
}

static stw_status check_tensor(const stw_sync_tensor *t, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = 0;
    if (!travels(t->dtype))
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                         "found dtype %s, expected F32, BF16 or F16", stw_dtype_name(t->dtype)));
    bytes = stw_sync_width(t->dtype);
    for (int d = 0; d < STW_BOX_DIMS; d++)
        STW_TRY(stw_mul_u64(bytes, t->shape[d], &bytes, t->name, err));
    if (bytes > UINT64_MAX / 4)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, t->name, "found %llu bytes, expected fewer",
                         (unsigned long long)bytes));
out:
    return status;
}

static stw_status check_piece(const stw_sync_job *job, const stw_sync_piece *piece, bool target,
                              uint32_t number, stw_error *err) {
    const char *kind = target ? "target" : "source";
    if (piece->tensor >= job->n_tensors)
        return stw_fail(err, STW_STATUS_BAD_INPUT, kind, "%u: found tensor %u of %u", number,
                        piece->tensor, job->n_tensors);
    const stw_sync_tensor *t = &job->tensors[piece->tensor];
    if (piece->rank >= job->world)
        return stw_fail(err, STW_STATUS_BAD_INPUT, t->name, "%s %u: found rank %u of %u ranks",
                        kind, number, piece->rank, job->world);
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        const uint64_t first = piece->box.first[d], count = piece->box.count[d];
        if (first > t->shape[d] || count > t->shape[d] - first)
            return stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                            "%s %u of rank %u: found elements %llu to %llu of dimension %d, "
                            "expected at most %llu",
                            kind, number, piece->rank, (unsigned long long)first,
                            (unsigned long long)(first + count), d,
                            (unsigned long long)t->shape[d]);
    }
    if (target ? piece->dtype != t->dtype : !travels(piece->dtype))
        return stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                        "%s %u of rank %u: found dtype %s, expected %s", kind, number, piece->rank,
                        stw_dtype_name(piece->dtype),
                        target ? stw_dtype_name(t->dtype) : "F32, BF16 or F16");
    if (!target && piece->memory == STW_SYNC_NONE && stw_box_volume(&piece->box) > 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                        "source %u of rank %u: found no memory, expected its number", number,
                        piece->rank);
    return STW_STATUS_OK;
}

stw_status stw_sync_job_check(const stw_sync_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (job->world == 0)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "world", "found 0, expected at least 1 rank"));
    if (job->bucket_bytes < STW_SYNC_LEAST_BUCKET)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "bucket_bytes",
                         "found %llu bytes, expected at least %llu",
                         (unsigned long long)job->bucket_bytes, STW_SYNC_LEAST_BUCKET));
    for (uint32_t i = 0; i < job->n_tensors; i++) STW_TRY(check_tensor(&job->tensors[i], err));
    for (uint32_t i = 0; i < job->n_sources; i++)
        STW_TRY(check_piece(job, &job->sources[i], false, i, err));
    for (uint32_t i = 0; i < job->n_targets; i++)
        STW_TRY(check_piece(job, &job->targets[i], true, i, err));
out:
    return status;
}
