/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of copies on a GPU. Short tables of copies lie in GPU memory, long ones in page-locked host
 * memory: then a list goes to one of a few slots before it runs. Each run has an event, and a run
 * waits for that which had its slot before: when all events are reached, all runs are done. */
#include "backend/cuda/boxes.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.h"

#define SLOTS 4
#define RESIDENT_BYTES (512u << 10)
#define N_EVENTS (SLOTS + STW_BOX_MARKS) /* of runs, then marks */

struct stw_box_device {
    stw_box_lists lists;
    uint32_t n_bases;
    int ordinal;
    uint32_t sms;
    cudaEvent_t events[N_EVENTS];
    uint32_t n_events;      /* made so far */
    uint64_t runs;          /* so far */
    cudaStream_t side;      /* for what is set up */
    stw_box_copy *resident; /* all copies, or NULL */
    stw_box_copy *slots;    /* [SLOTS][most] in GPU memory, or NULL */
    stw_box_copy *staged;   /* all copies in page-locked memory, or NULL */
    uint8_t *casts;         /* [lists.n]: stw_cuda_casts */
    bool *direct;           /* [lists.n]: it reads or writes page-locked host memory */
    bool *host;             /* [n_bases]: page-locked host memory */
    uint32_t most;          /* copies of a list */
    const void **bound;     /* [n_bases] as given */
    uint64_t *seen;         /* [n_bases] page-locked: as kernels see them */
    uint64_t *bases;        /* [n_bases + 1] in GPU memory; behind them a sum */
    uint64_t *sum;          /* page-locked */
};

static stw_status use(const stw_box_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaSetDevice(device->ordinal), "choosing the GPU");
out:
    return status;
}

static void close_device(stw_box_device *device) {
    if (device == NULL) return;
    if (device->side != NULL) {
        (void)cudaSetDevice(device->ordinal);
        for (uint32_t i = 0; i < device->n_events; i++)
            (void)cudaEventSynchronize(device->events[i]);
        (void)cudaStreamSynchronize(device->side);
        (void)cudaStreamDestroy(device->side);
    }
    for (uint32_t i = 0; i < device->n_events; i++) (void)cudaEventDestroy(device->events[i]);
    if (device->resident != NULL) (void)cudaFree(device->resident);
    if (device->slots != NULL) (void)cudaFree(device->slots);
    if (device->staged != NULL) (void)cudaFreeHost(device->staged);
    if (device->seen != NULL) (void)cudaFreeHost(device->seen);
    if (device->bases != NULL) (void)cudaFree(device->bases);
    (void)cudaGetLastError();
    free(device->casts);
    free(device->direct);
    free(device->host);
    free(device->bound);
    free(device);
}

/* ---- opening ---- */

static stw_status choose(stw_box_device *device, const stw_box_config *config, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int count = 0, value = 0;
    STW_CUDA_TRY(cudaGetDeviceCount(&count), "counting GPUs");
    if (config->gpu_is_given) {
        if (config->gpu >= (uint32_t)count)
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, "gpu", "found %u, expected fewer than %d",
                             config->gpu, count));
        device->ordinal = (int)config->gpu;
    } else {
        STW_CUDA_TRY(cudaGetDevice(&device->ordinal), "asking for the current GPU");
    }
    STW_TRY(use(device, err));
    STW_CUDA_TRY(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device->ordinal),
                 "counting multiprocessors");
    device->sms = value < 1 ? 1 : (uint32_t)value;
out:
    return status;
}

static stw_cuda_casts casts_of(const stw_box_lists *lists, uint32_t list) {
    bool none = true, to_bf16 = true;
    for (uint32_t i = lists->first[list]; i < lists->first[list + 1]; i++) {
        const stw_box_copy *c = &lists->copies[i];
        none = none && c->from_type == c->to_type;
        to_bf16 = to_bf16 && c->from_type == STW_BOX_F32 && c->to_type == STW_BOX_BF16;
    }
    return none ? STW_CUDA_CASTS_NONE : to_bf16 ? STW_CUDA_CASTS_TO_BF16 : STW_CUDA_CASTS_ANY;
}

static stw_status make_tables(stw_box_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_box_lists *lists = &device->lists;
    const size_t bytes = (size_t)lists->first[lists->n] * sizeof *lists->copies;
    const size_t addresses = ((size_t)device->n_bases + 1) * sizeof *device->bases;
    void *memory = NULL;
    for (uint32_t l = 0; l < lists->n; l++) {
        device->casts[l] = (uint8_t)casts_of(lists, l);
        if (lists->first[l + 1] - lists->first[l] > device->most)
            device->most = lists->first[l + 1] - lists->first[l];
    }
    STW_CUDA_TRY(cudaMalloc(&memory, addresses), "allocating a table of addresses");
    device->bases = memory;
    STW_CUDA_TRY(cudaHostAlloc(&memory, addresses, cudaHostAllocPortable),
                 "allocating a table of addresses");
    device->seen = memory;
    device->sum = device->seen + device->n_bases;
    if (bytes == 0) goto out;
    if (bytes <= RESIDENT_BYTES) {
        STW_CUDA_TRY(cudaMalloc(&memory, bytes), "allocating a table of copies");
        device->resident = memory;
        STW_CUDA_TRY(cudaMemcpyAsync(device->resident, lists->copies, bytes, cudaMemcpyHostToDevice,
                                     device->side),
                     "copying a table to the GPU");
        STW_CUDA_TRY(cudaStreamSynchronize(device->side), "waiting for a table");
        goto out;
    }
    STW_CUDA_TRY(cudaMalloc(&memory, SLOTS * (size_t)device->most * sizeof *device->slots),
                 "allocating slots of a table of copies");
    device->slots = memory;
    STW_CUDA_TRY(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                 "allocating a table of copies");
    device->staged = memory;
    memcpy(device->staged, lists->copies, bytes);
out:
    return status;
}

static stw_status open_device(const stw_box_config *config, stw_box_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_box_device *device = calloc(1, sizeof *device);
    *out = NULL;
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "boxes", "out of memory");
    device->lists = config->lists;
    device->n_bases = config->n_bases;
    device->bound = calloc((size_t)config->n_bases + 1, sizeof *device->bound);
    device->casts = calloc((size_t)config->lists.n + 1, sizeof *device->casts);
    device->direct = calloc((size_t)config->lists.n + 1, sizeof *device->direct);
    device->host = calloc((size_t)config->n_bases + 1, sizeof *device->host);
    if (device->bound == NULL || device->casts == NULL || device->direct == NULL ||
        device->host == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "boxes", "out of memory"));
    STW_TRY(choose(device, config, err));
    STW_CUDA_TRY(cudaStreamCreateWithFlags(&device->side, cudaStreamNonBlocking),
                 "making a stream");
    for (; device->n_events < N_EVENTS; device->n_events++)
        STW_CUDA_TRY(
            cudaEventCreateWithFlags(&device->events[device->n_events], cudaEventDisableTiming),
            "making an event");
    STW_TRY(make_tables(device, err));
    *out = device;
    device = NULL;
out:
    close_device(device);
    return status;
}

/* ---- addresses ---- */

/* The address by which a kernel reaches memory of the caller's. */
static stw_status see(stw_box_device *device, uint32_t i, const void *address, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct cudaPointerAttributes about;
    device->seen[i] = 0;
    device->host[i] = false;
    if (address == NULL) goto out;
    STW_CUDA_TRY(cudaPointerGetAttributes(&about, address), "looking at the caller's memory");
    if (about.devicePointer == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "memory",
                         "found host memory at %p, expected GPU memory or page-locked host memory",
                         address));
    if (about.type == cudaMemoryTypeDevice && about.device != device->ordinal)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "memory",
                         "found memory of GPU %d at %p, expected memory of GPU %d", about.device,
                         address, device->ordinal));
    device->seen[i] = (uint64_t)(uintptr_t)about.devicePointer;
    device->host[i] = about.type == cudaMemoryTypeHost;
out:
    return status;
}

static bool reaches_host(const stw_box_device *device, uint32_t list) {
    for (uint32_t i = device->lists.first[list]; i < device->lists.first[list + 1]; i++) {
        const uint32_t bases[2] = {device->lists.copies[i].from_base,
                                   device->lists.copies[i].to_base};
        for (int k = 0; k < 2; k++)
            if (bases[k] >= STW_BOX_FIRST_BASE && device->host[bases[k] - STW_BOX_FIRST_BASE])
                return true;
    }
    return false;
}

static stw_status bind_device(stw_box_device *device, const void *const *addresses,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const size_t bytes = device->n_bases * sizeof *device->bound;
    if (bytes == 0 || memcmp(device->bound, addresses, bytes) == 0) goto out;
    STW_TRY(use(device, err));
    for (int i = 0; i < SLOTS; i++)
        STW_CUDA_TRY(cudaEventSynchronize(device->events[i]), "waiting for earlier rounds");
    memset(device->bound, 0, bytes); /* none, if one is refused */
    for (uint32_t i = 0; i < device->n_bases; i++) STW_TRY(see(device, i, addresses[i], err));
    STW_CUDA_TRY(
        cudaMemcpyAsync(device->bases, device->seen, bytes, cudaMemcpyHostToDevice, device->side),
        "copying addresses to the GPU");
    STW_CUDA_TRY(cudaStreamSynchronize(device->side), "waiting for addresses");
    memcpy(device->bound, addresses, bytes);
    for (uint32_t l = 0; l < device->lists.n; l++) device->direct[l] = reaches_host(device, l);
out:
    return status;
}

/* ---- runs ---- */

/* @param digest NULL: copy; else in GPU memory, and nothing is written */
static stw_status start_list(stw_box_device *device, uint32_t list, stw_cuda_boxes boxes,
                             uint64_t *digest, void *stream, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_box_lists *lists = &device->lists;
    const uint32_t first = lists->first[list], n = lists->first[list + 1] - first;
    const uint32_t slot = (uint32_t)(device->runs % SLOTS);
    const stw_cuda_launch launch = {stream, device->sms};
    boxes.bases = device->bases;
    boxes.n = n;
    boxes.tiles = lists->tiles[list];
    boxes.casts = (stw_cuda_casts)device->casts[list];
    boxes.direct = device->direct[list];
    if (n == 0) goto out;
    STW_TRY(use(device, err));
    STW_CUDA_TRY(cudaStreamWaitEvent(launch.stream, device->events[slot], 0),
                 "waiting for an earlier round");
    if (device->resident != NULL) {
        boxes.copies = device->resident + first;
    } else {
        stw_box_copy *copies = device->slots + (size_t)slot * device->most;
        STW_CUDA_TRY(cudaMemcpyAsync(copies, device->staged + first, n * sizeof *copies,
                                     cudaMemcpyHostToDevice, launch.stream),
                     "copying a table to the GPU");
        boxes.copies = copies;
    }
    STW_CUDA_TRY(digest != NULL ? stw_cuda_boxes_digest(launch, &boxes, digest)
                                : stw_cuda_boxes_run(launch, &boxes),
                 "starting copies of boxes");
    STW_CUDA_TRY(cudaEventRecord(device->events[slot], launch.stream), "recording an event");
    device->runs++;
out:
    return status;
}

static stw_status run_list(stw_box_device *device, uint32_t list, const stw_box_buffers *buffers,
                           void *stream, stw_error *err) {
    return start_list(device, list, (stw_cuda_boxes){.buffers = *buffers}, NULL, stream, err);
}

/* @param launch of a stream on which a sum was made in GPU memory */
static stw_status fetch_sum(stw_box_device *device, stw_cuda_launch launch, uint64_t *out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaMemcpyAsync(device->sum, device->bases + device->n_bases, sizeof *device->sum,
                                 cudaMemcpyDeviceToHost, launch.stream),
                 "copying a sum");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a sum");
    *out = *device->sum;
out:
    return status;
}

static stw_status digest_list(stw_box_device *device, uint32_t list, void *stream, uint64_t *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_box_lists *lists = &device->lists;
    const stw_cuda_launch launch = {stream, device->sms};
    uint64_t *sum = device->bases + device->n_bases;
    *out = 0;
    if (lists->first[list] == lists->first[list + 1]) goto out;
    STW_TRY(use(device, err));
    STW_CUDA_TRY(cudaMemsetAsync(sum, 0, sizeof *sum, launch.stream), "zeroing a sum");
    STW_TRY(start_list(device, list, (stw_cuda_boxes){0}, sum, stream, err));
    STW_TRY(fetch_sum(device, launch, out, err));
out:
    return status;
}

static stw_status sum_bytes(stw_box_device *device, const void *address, uint64_t bytes,
                            void *stream, uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cuda_launch launch = {stream, device->sms};
    uint64_t *sum = device->bases + device->n_bases;
    struct cudaPointerAttributes about;
    STW_TRY(use(device, err));
    if (bytes > 0) STW_CUDA_TRY(cudaPointerGetAttributes(&about, address), "looking at memory");
    if (bytes == 0 || about.devicePointer == NULL) { /* pageable memory */
        STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a stream");
        *out = stw_box_host_sum(address, bytes);
        goto out;
    }
    STW_CUDA_TRY(cudaMemsetAsync(sum, 0, sizeof *sum, launch.stream), "zeroing a sum");
    STW_CUDA_TRY(stw_cuda_boxes_sum(launch, about.devicePointer, bytes, sum), "starting a sum");
    STW_TRY(fetch_sum(device, launch, out, err));
out:
    return status;
}

/* ---- marks ---- */

static stw_status set_mark(stw_box_device *device, uint32_t number, void *stream, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(use(device, err));
    STW_CUDA_TRY(cudaEventRecord(device->events[SLOTS + number], stream), "setting a mark");
out:
    return status;
}

static stw_status follow_mark(stw_box_device *device, uint32_t number, void *stream,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(use(device, err));
    STW_CUDA_TRY(cudaStreamWaitEvent(stream, device->events[SLOTS + number], 0),
                 "ordering two streams");
out:
    return status;
}

static stw_status is_passed(stw_box_device *device, uint32_t number, bool *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const cudaError_t code = STW_CUDA_CALL(cudaEventQuery(device->events[SLOTS + number]));
    *out = code == cudaSuccess;
    if (code == cudaErrorNotReady)
        (void)cudaGetLastError(); /* a launch would return it */
    else
        STW_CUDA_TRY(code, "looking at a mark");
out:
    return status;
}

static const stw_box_ops cuda_ops = {.name = "cuda",
                                     .open = open_device,
                                     .close = close_device,
                                     .bind = bind_device,
                                     .run = run_list,
                                     .sum = sum_bytes,
                                     .digest = digest_list,
                                     .mark = set_mark,
                                     .follow = follow_mark,
                                     .passed = is_passed};

const stw_box_ops *stw_box_cuda_ops(void) { return &cuda_ops; }
