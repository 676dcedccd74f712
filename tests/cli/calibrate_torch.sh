#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# calibrate measures torch's optimizers where python3 has torch, here a stub of it: its rates and raw samples are in cluster.yaml, and plans
# use them. Without python, without torch, with a script that fails or never ends, calibrate says so and succeeds.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
tiny_model
export STOWAGE_PROBE_BYTES=16MiB CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE=1
mkdir -p stub/torch empty
cat >stub/torch/__init__.py <<'END'
import time
threads = 1
class Tensor:
    def __init__(self, n): self.n, self.grad = n, None
    def requires_grad_(self, on): return self
def set_num_threads(n):
    global threads
    threads = n
def full(shape, value): return Tensor(shape[0])
def full_like(tensor, value): return Tensor(tensor.n)
class cuda:
    @staticmethod
    def is_available(): return False
class optim:
    class AdamW:
        def __init__(self, params, lr, foreach, fused):
            assert all(p.grad is not None for p in params) and not (foreach and fused)
            # seconds of an element
            self.s = sum(p.n for p in params) * (1e-8 if fused else 2e-8 if foreach else 4e-8) / threads
        def step(self):
            print("a library speaks")
            time.sleep(self.s)
END
mkdir -p stub/torch/utils stub/deepspeed/ops
: >stub/torch/utils/__init__.py
: >stub/deepspeed/__init__.py
: >stub/deepspeed/ops/__init__.py
echo 'def get_default_build_root(): return "/no/such/folder"' >stub/torch/utils/cpp_extension.py
echo 'installed_ops = {"cpu_adam": True}' >stub/deepspeed/git_version_info.py
cat >stub/deepspeed/ops/adam.py <<'END'
import torch
class DeepSpeedCPUAdam(torch.optim.AdamW):
    def __init__(self, params, lr): super().__init__(params, lr, False, True)
END

calibrate() { # NAME [VARIABLE=value...]
    name=$1
    shift
    env "$@" "$STOWAGE" calibrate -v -o "$name.yaml" 2>"$name.err" || { cat "$name.err" >&2; fail "calibrate: $name"; }
}
rate() { sed -n "s/.*[{ ]$1: \([0-9.]*\) \([MG]\)param\/s.*/\1 \2/p" stub.yaml | awk '{ print $1 * ($2 == "G" ? 1e9 : 1e6) }'; }

calibrate stub PYTHONPATH="$PWD/stub"
for name in loop loop_one foreach foreach_one fused fused_one cpu_adam cpu_adam_one; do
    grep -q "what: \"torch $name\".*param/s" stub.yaml || { cat stub.err >&2; fail "no samples of $name"; }
done
grep -q "torch: {" stub.yaml || grep -q "torch:" stub.yaml || fail "the rates are not in cluster.yaml"
# a sleeping stub is as fast as it says, or slower on a busy machine
awk -v fused="$(rate fused_one)" -v loop="$(rate loop_one)" 'BEGIN { exit !(fused > 1e6 && fused < 1.01e8 && loop < 2.6e7 && loop < fused) }' ||
    { cat stub.yaml >&2; fail "rates are not the stub's"; }
plan() { "$STOWAGE" plan --model tiny --cluster "$1" --set engine=fsdp2 --set fsdp.offload_policy=true --set optimizer.cpu_threads=1 --json; }
plan stub.yaml >stub.json || fail "plan with measured rates"

# an extension that is not there is not compiled
echo 'installed_ops = {"cpu_adam": False}' >stub/deepspeed/git_version_info.py
calibrate notbuilt PYTHONPATH="$PWD/stub"
grep -q "cpu_adam: RuntimeError not compiled yet" notbuilt.err || { cat notbuilt.err >&2; fail "an extension that is not built is not named"; }
grep -q 'what: "torch loop_one"' notbuilt.yaml || fail "a missing extension costs other rates"

calibrate none PYTHONPATH="$PWD/empty"
grep -q "not measured: python has no torch" none.err || { cat none.err >&2; fail "missing torch is not named"; }
! grep -q "what: \"torch" none.yaml || fail "samples without torch"
calibrate nopython STOWAGE_PYTHON=/no/such/python
grep -q "no python3" nopython.err || fail "missing python is not named"
calibrate quick STOWAGE_PYTHON=/no/such/python
printf 'import sys\nsys.exit(3)\n' >fails.py
printf '#!/bin/sh\nexec python3 "%s"\n' "$PWD/fails.py" >fails
printf '#!/bin/sh\nprintf "sample\\tfused\\t1 thread\\tparam/s\\t5e6\\t-1\\tx\\n"\nsleep 617 &\nwait\n' >hangs
chmod +x fails hangs
calibrate fails STOWAGE_PYTHON="$PWD/fails"
grep -q "the script failed after 0 rates" fails.err || fail "a failure is not named"
calibrate hangs STOWAGE_PYTHON="$PWD/hangs"
grep -q "were over after 1 rates" hangs.err || fail "a script that never ends is not named"
grep -q "values: \[5000000\]" hangs.yaml || fail "what came before the limit is lost"
! pgrep -f "sleep 617" >/dev/null 2>&1 || fail "processes are left"
echo "calibrate_torch: ok"
