/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/walk_cases.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

enum { SAMPLED = 300 }; /* of a search that makes tens of thousands of calls */

const walk_file walk_files[] = {
    {"tiny.csv", "name,shape,dtype,group\n"
                 "embed.weight,\"[1024, 64]\",BF16,embed\n"
                 "layers.0.w,\"[64, 64]\",BF16,layer\n"
                 "layers.1.w,\"[64, 64]\",BF16,layer\n"
                 "norm.weight,[64],BF16,norm\n"},
    {"config.json",
     "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2,\n"
     " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 128,\n"
     " \"intermediate_size\": 128, \"torch_dtype\": \"bfloat16\"}\n"},
    {"cluster.yaml",
     "name: walk\nnodes: 1\nnode:\n  gpus: 1\n  gpu: {memory: 1 GiB, context: 0, comm: 16 MiB}\n"
     "  host: {memory: 1 GiB, process: 16 MiB}\n  nvme: {capacity: 1 GiB}\n"},
    {"two.yaml", "name: walk\nnodes: 1\nnode:\n  gpus: 2\n  gpu: {memory: 1 GiB, context: 0, "
                 "comm: 16 MiB}\n  host: {memory: 1 GiB, process: 16 MiB}\n"},
    {"gpu.yaml", "name: walk\nnodes: 1\nnode:\n  gpus: 1\n  gpu: {memory: 40 GiB, context: 1 GiB}\n"
                 "  host: {memory: 8 GiB, process: 2 GiB}\n  nvme: {capacity: 1 GiB}\n"},
    {"gpus.yaml",
     "name: walk\nnodes: 1\nnode:\n  gpus: 2\n  gpu: {memory: 40 GiB, context: 1 GiB}\n"
     "  host: {memory: 16 GiB, process: 2 GiB}\n"},
    {"samples.csv", "time,rank,phase,metric,bytes\n1,0,forward_backward\n"
                    "2,0,,host,400000000\n2,0,,device,900000000\n2,0,,reserved,111149056\n"},
    {"trainer.log", "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 1.5\n"
                    "elapsed time per iteration (ms): 3.5 |\n"},
    {"snapshot.pickle", "\x80\x04}(\x8c\x08"
                        "segments]}(\x8c\x06"
                        "deviceK\x01\x8c\x0a"
                        "total_size"
                        "M\x01\x01\x8c\x0e"
                        "allocated_sizeM\x01\x01"
                        "uau."},
    {"error.log",
     "Traceback (most recent call last):\n  File \"torch/nn/functional.py\", line 3, in linear\n"
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
     "capacity of 1.00 GiB of which 0 bytes is free. Of the allocated memory 1.00 GiB is allocated "
     "by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.\n"},
    {"run.yaml", "batch: {micro_batch: 1, seq_len: 32}\nplacement: {moments: host}\n"
                 "optimizer: {clip_norm: 1}\n"},
};

#define PLAN "stowage", "plan", "--cluster", "{in}/cluster.yaml", "--model"
/* Little is left to decide, so that every call can fail in turn. */
#define FORCED                                                                                     \
    "--set", "placement.params=gpu", "--set", "placement.grads=gpu", "--set",                      \
        "placement.moments=host", "--set", "update.stream=1", "--set", "prefetch.depth=2"
#define NVME_PLAN                                                                                  \
    "--set", "placement.moments=nvme", "--set", "prefetch.bucket=64 KiB", "--set",                 \
        "prefetch.depth=2"

#define RUN_KEPT "stowage-run", "{in}/nvme.json", "-b", "host", "-n", "4", "--keep-state", "--nvme"
#define STATE_ERROR "STOWAGE_FAIL=pread:150", "STOWAGE_NVME_IO=threads"

/* Exit code of plans of a list of tensors: forward and backward are unknown. */
enum { UNKNOWN = 9 };

const walk_case walk_setup[] = {
    {.name = "setup plan",
     .arguments = {PLAN, "{in}/tiny.csv", "-o", "tiny.json"},
     .outputs = {"tiny.json"},
     .code = UNKNOWN},
    {.name = "setup nvme",
     .arguments = {PLAN, "{in}/tiny.csv", NVME_PLAN, "-o", "nvme.json"},
     .outputs = {"nvme.json"},
     .code = UNKNOWN},
    {.name = "setup ranks",
     .arguments = {"stowage", "plan", "--cluster", "{in}/two.yaml", "--model", "{in}/tiny.csv",
                   "-o", "two.json"},
     .outputs = {"two.json"},
     .code = UNKNOWN},
    {.name = "setup gpu",
     .arguments = {"stowage", "plan", "--cluster", "{in}/gpu.yaml", "--model", "{in}/tiny.csv",
                   FORCED, "-o", "gpu.json"},
     .outputs = {"gpu.json"},
     .code = UNKNOWN},
    {.name = "setup gpus",
     .arguments = {"stowage", "plan", "--cluster", "{in}/gpus.yaml", "--model", "{in}/tiny.csv",
                   "-o", "gpus.json"},
     .outputs = {"gpus.json"},
     .code = UNKNOWN},
    {.name = "setup foreign",
     .arguments = {PLAN, "{in}/config.json", "--set", "engine=fsdp2", "-o", "foreign.json"},
     .outputs = {"foreign.json"}},
    {.name = "setup run",
     .arguments = {"stowage-run", "{in}/tiny.json", "-b", "host", "-n", "2", "-o", "run.json"},
     .outputs = {"run.json"}},
    /* Two runs that meet an error in their third step and leave their state. */
    {.name = "setup state",
     .arguments = {RUN_KEPT, "{in}"},
     .environment = {STATE_ERROR},
     .code = 3},
    {.name = "setup state again",
     .arguments = {RUN_KEPT, "{in}"},
     .environment = {STATE_ERROR},
     .code = 3},
};

const walk_case walk_cases[] = {
    {.name = "models", .arguments = {"stowage", "models", "Qwen3"}, .exact = true},
    {.name = "clusters", .arguments = {"stowage", "clusters", "h200"}, .exact = true},
    {.name = "clusters --show",
     .arguments = {"stowage", "clusters", "--show", "h200-x1"},
     .exact = true},
    {.name = "help", .arguments = {"stowage", "plan", "--help"}, .exact = true},
    {.name = "version", .arguments = {"stowage", "--version"}, .exact = true},
    {.name = "inspect csv",
     .arguments = {"stowage", "inspect", "{in}/tiny.csv", "--tensors", "tensors.csv"},
     .outputs = {"tensors.csv"},
     .exact = true},
    {.name = "inspect config",
     .arguments = {"stowage", "inspect", "{in}/config.json", "--json"},
     .exact = true},
    {.name = "plan",
     .arguments = {PLAN, "{in}/tiny.csv", FORCED, "-o", "plan.json"},
     .outputs = {"plan.json"},
     .code = UNKNOWN},
    {.name = "plan free",
     .arguments = {PLAN, "{in}/tiny.csv", "-o", "plan.json"},
     .outputs = {"plan.json"},
     .most = SAMPLED,
     .code = UNKNOWN},
    {.name = "plan config",
     .arguments = {PLAN, "{in}/config.json", "--run", "{in}/run.yaml", "--json"},
     .most = SAMPLED},
    {.name = "plan --write-lp",
     .arguments = {PLAN, "{in}/tiny.csv", NVME_PLAN, "--write-lp", "plan.lp", "-o", "plan.json"},
     .outputs = {"plan.lp", "plan.json"},
     .code = UNKNOWN},
    {.name = "plan over",
     .most = SAMPLED,
     .arguments = {PLAN, "{in}/tiny.csv", "--set", "node.gpu.memory=16.5 MiB", "--set",
                   "node.host.memory=16.5 MiB", "--set", "node.nvme.capacity=0", "-o", "plan.json"},
     .outputs = {"plan.json"},
     .code = 4},
    {.name = "plan here",
     .most = SAMPLED,
     .asks = true,
     .arguments = {"stowage", "plan", "--model", "{in}/tiny.csv", "-o", "plan.json"},
     .outputs = {"plan.json"},
     .code = UNKNOWN},
    {.name = "simulate",
     .arguments = {"stowage", "simulate", "{in}/tiny.json", "--trace", "t.json"},
     .outputs = {"t.json"},
     .code = UNKNOWN},
    {.name = "simulate snapshot",
     .arguments = {"stowage", "simulate", "{in}/tiny.json", "--snapshot", "s.pickle", "-q"},
     .outputs = {"s.pickle"},
     .code = UNKNOWN},
    {.name = "report", .arguments = {"stowage", "report", "{in}/tiny.json"}},
    {.name = "report md",
     .arguments = {"stowage", "report", "{in}/tiny.json", "{in}/run.json", "-o", "r.md"},
     .outputs = {"r.md"}},
    {.name = "report csv",
     .arguments = {"stowage", "report", "{in}/tiny.json", "-o", "r.csv"},
     .outputs = {"r.csv"}},
    {.name = "report json",
     .arguments = {"stowage", "report", "{in}/tiny.json", "-o", "r.json"},
     .outputs = {"r.json"}},
    {.name = "report html",
     .arguments = {"stowage", "report", "{in}/tiny.json", "{in}/run.json", "-o", "r.html"},
     .outputs = {"r.html"}},
    {.name = "report openmetrics",
     .arguments = {"stowage", "report", "{in}/tiny.json", "-o", "r.om"},
     .outputs = {"r.om"}},
    {.name = "report run", .arguments = {"stowage", "report", "{in}/run.json"}},
    {.name = "validate",
     .arguments = {"stowage", "validate", "{in}/tiny.json", "{in}/run.json", "--json"}},
    {.name = "validate log",
     .arguments = {"stowage", "validate", "{in}/foreign.json", "{in}/trainer.log"},
     .code = 8},
    {.name = "validate files",
     .arguments = {"stowage", "validate", "{in}/foreign.json", "{in}/trainer.log",
                   "{in}/snapshot.pickle", "--json"},
     .code = 3},
    {.name = "explain", .arguments = {"stowage", "explain", "{in}/error.log"}},
    {.name = "explain snapshot",
     .arguments = {"stowage", "explain", "{in}/snapshot.pickle", "-o", "why.json"},
     .outputs = {"why.json"}},
    {.name = "validate --learn",
     .arguments = {"stowage", "validate", "{in}/foreign.json", "{in}/samples.csv", "--learn",
                   "learned.yaml"},
     .outputs = {"learned.yaml"},
     .code = 8},
    {.name = "probe",
     .asks = true,
     .arguments = {"stowage-run", "--probe", "-o", "c.yaml"},
     .outputs = {"c.yaml"}},
    {.name = "run",
     .arguments = {"stowage-run", "{in}/tiny.json", "-b", "host", "-n", "2", "-o", "run.json",
                   "--trace", "t.json"},
     .outputs = {"run.json", "t.json"}},
    {.name = "stowage run",
     .arguments = {"stowage", "run", "{in}/tiny.json", "--backend", "host", "--json"}},
    {.name = "run nvme",
     .arguments = {"stowage-run", "{in}/nvme.json", "-b", "host", "-n", "2", "--nvme", ".", "-o",
                   "run.json"},
     .outputs = {"run.json"},
     .environment = {"STOWAGE_NVME_IO=io_uring"}},
    {.name = "run nvme threads",
     .arguments = {"stowage-run", "{in}/nvme.json", "-b", "host", "-n", "2", "--nvme", ".", "-o",
                   "run.json"},
     .outputs = {"run.json"},
     .environment = {"STOWAGE_NVME_IO=threads"}},
    {.name = "run keep",
     .arguments = {RUN_KEPT, ".", "-o", "run.json"},
     .outputs = {"run.json"},
     .environment = {"STOWAGE_NVME_IO=io_uring"},
     .state = WALK_STATE_LEFT},
    {.name = "run keep threads",
     .arguments = {RUN_KEPT, ".", "-o", "run.json"},
     .outputs = {"run.json"},
     .environment = {"STOWAGE_NVME_IO=threads"},
     .state = WALK_STATE_LEFT},
    {.name = "state list",
     .arguments = {"stowage", "state", "list", "."},
     .state = WALK_STATE_STAYS},
    {.name = "state list json",
     .arguments = {"stowage", "state", "list", ".", "--json"},
     .state = WALK_STATE_STAYS},
    {.name = "state verify",
     .arguments = {"stowage", "state", "verify", "."},
     .state = WALK_STATE_STAYS},
    {.name = "state verify json",
     .arguments = {"stowage", "state", "verify", ".", "--json"},
     .state = WALK_STATE_STAYS},
    {.name = "state remove",
     .arguments = {"stowage", "state", "remove", "."},
     .state = WALK_STATE_GOES},
    {.name = "run 2 ranks",
     .arguments = {"mpirun", "--oversubscribe", "-n", "2", "{bin}/stowage-run", "{in}/two.json",
                   "-b", "host", "-n", "1", "--timeout", "20", "-o", "run.json"},
     .outputs = {"run.json"},
     .needs = "lib/stowage/stowage-mpi.so",
     .environment = {"LSAN_OPTIONS=detect_leaks=0:exitcode=99", "ASAN_OPTIONS=detect_leaks=0"},
     .calls = "MPI_",
     .most = 20},
    {.name = "run 2 ranks, @1",
     .arguments = {"mpirun", "--oversubscribe", "-n", "2", "{bin}/stowage-run", "{in}/two.json",
                   "-b", "host", "-n", "1", "--timeout", "20", "-o", "run.json"},
     .outputs = {"run.json"},
     .needs = "lib/stowage/stowage-mpi.so",
     .environment = {"LSAN_OPTIONS=detect_leaks=0:exitcode=99", "ASAN_OPTIONS=detect_leaks=0"},
     .calls = "MPI_",
     .rank = "@1",
     .most = 20},
    {.name = "calibrate",
     .arguments = {"stowage-run", "--calibrate", "--quick", "-o", "c.yaml"},
     .outputs = {"c.yaml"},
     .environment = {"STOWAGE_PROBE_BYTES=32 MiB"},
     .asks = true,
     .named = true,
     .most = 6},
    {.name = "run cuda",
     .arguments = {"stowage-run", "{in}/gpu.json", "-b", "cuda", "-n", "2", "-o", "run.json"},
     .outputs = {"run.json"},
     .environment = {"LSAN_OPTIONS=detect_leaks=0:exitcode=99"},
     .named = true},
    {.name = "run nccl",
     .arguments = {"mpirun", "--oversubscribe", "-n", "2", "{bin}/stowage-run", "{in}/gpus.json",
                   "-b", "cuda", "-n", "1", "--timeout", "20", "-o", "run.json"},
     .outputs = {"run.json"},
     .environment = {"LSAN_OPTIONS=detect_leaks=0:exitcode=99"},
     .calls = "n->",
     .rank = "@1",
     .named = true},
};

const size_t walk_n_files = LENGTH(walk_files), walk_n_setup = LENGTH(walk_setup),
             walk_n_cases = LENGTH(walk_cases);
