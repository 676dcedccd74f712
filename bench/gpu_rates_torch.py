#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates of one GPU for the kinds of work that a training step consists of: products, grouped products, causal attention,
element-wise kernels, launches.

    python3 bench/gpu_rates_torch.py [--seconds 150] > rates.csv

One line per figure; lines that begin with # describe the machine. FLOPs are those that the kernels do: a product of (m, k) and
(k, n) has 2 m n k; causal attention forward 2 b h s^2 d (half of the square), its backward 2.5 times that. GB/s counts what the
kernel has to read and write. A time is the median of several groups of calls between two CUDA events, after the clocks have
settled under load; inputs are random (power depends on the data) and rotate through more memory than the L2 cache holds.
"""
import argparse
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEAD = "kind,impl,dtype,pass,m,n,k,groups,batch,seq,heads,kv_heads,head_dim,causal,ms,tflops,gbps,note"
DEVICE = torch.device("cuda")
started = time.monotonic()
limit = 150.0


def left():
    return limit - (time.monotonic() - started)


def say(kind, impl, dtype, pass_, ms, flops=0.0, bytes_=0.0, m="", n="", k="", groups="", batch="", seq="", heads="", kv="", dim="",
        causal="", note=""):
    tflops = f"{flops / ms / 1e9:.1f}" if flops else ""
    gbps = f"{bytes_ / ms / 1e6:.0f}" if bytes_ else ""
    print(f"{kind},{impl},{dtype},{pass_},{m},{n},{k},{groups},{batch},{seq},{heads},{kv},{dim},{causal},{ms:.5f},{tflops},{gbps},{note}",
          flush=True)


def smi(fields):
    try:
        return subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"], capture_output=True,
                              text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "?"


def timed(fn, group_ms=15.0, samples=5, most=200):
    """Milliseconds of one call. fn(i) issues the i-th call; it picks its operands by i."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    fn(0)
    start.record()
    fn(1)
    end.record()
    torch.cuda.synchronize()
    calls = max(1, min(most, int(group_ms / max(start.elapsed_time(end), 1e-3))))
    if start.elapsed_time(end) > 100:
        samples = 2
    found = []
    for s in range(samples):
        torch.cuda._sleep(int(calls * 25e-6 * 1.7e9) if calls > 4 else 100000)  # the queue fills meanwhile
        start.record()
        for i in range(calls):
            fn(s + i)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return statistics.median(found)


class Pool:
    """Random numbers in one allocation, handed out as matrices at rotating places."""

    def __init__(self, elements, dtype, scale=1.0):
        self.flat = torch.empty(elements, dtype=torch.bfloat16, device=DEVICE)
        for piece in self.flat.split(1 << 28):
            piece.normal_(0, scale)
        if dtype != torch.bfloat16:
            self.flat = self.flat.to(dtype)

    def sets(self, elements):
        """How many disjoint places there are, at most what 400 MB need."""
        size = elements * self.flat.element_size()
        return max(1, min(self.flat.numel() // elements, -(-400_000_000 // size), 64))

    def take(self, i, rows, columns):
        n = rows * columns
        at = (i % self.sets(n)) * n
        return self.flat[at:at + n].view(rows, columns)


def heat(seconds):
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(50):
            torch.mm(a, a)
        torch.cuda.synchronize()


def product(dtype, name, a_pool, b_pool, out, pass_, m, k, n, **how):
    """A linear layer of k inputs and n outputs on m rows: y = x W', dx = dy W, dW = dy' x."""
    shape = {"forward": (m, n), "dgrad": (m, k), "wgrad": (n, k)}[pass_]

    def call(i):
        to = out[:shape[0] * shape[1]].view(shape)
        if pass_ == "forward":
            torch.mm(a_pool.take(i, m, k), b_pool.take(i, n, k).t(), out=to)
        elif pass_ == "dgrad":
            torch.mm(a_pool.take(i, m, n), b_pool.take(i, n, k), out=to)
        else:
            torch.mm(a_pool.take(i, m, n).t(), b_pool.take(i, m, k), out=to)

    ms = timed(call, **how)
    size = a_pool.flat.element_size()
    say("product", "cublas", name, pass_, ms, 2.0 * m * n * k, size * (m * k + n * k + m * n), m=m, n=n, k=k)


PAIRS = [(512, 512), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384), (1024, 4096), (4096, 1024), (2048, 8192),
         (8192, 2048), (4096, 512), (4096, 14336), (14336, 4096), (4096, 28672), (8192, 1024), (8192, 28672), (28672, 8192),
         (5120, 20480), (7168, 2048), (2048, 768), (768, 2048), (1536, 6144), (2560, 2560), (4096, 50304), (2048, 151936)]


def products():
    a, b = Pool(1 << 31, torch.bfloat16), Pool(1 << 31, torch.bfloat16)
    out = torch.empty(1 << 32, dtype=torch.bfloat16, device=DEVICE)
    for m in (4096, 16384, 1024, 65536, 512):
        for k, n in PAIRS:
            if m * max(k, n) > 1 << 31 or 2.0 * m * n * k > 4e13:
                continue
            if m == 512 and k * n < 4096 * 4096:
                continue
            for pass_ in ("forward", "dgrad", "wgrad"):
                if m in (512, 65536) and pass_ == "dgrad":
                    continue
                if left() < 95:
                    return
                product(torch.bfloat16, "bf16", a, b, out, pass_, m, k, n, samples=3)
    torch.cuda.synchronize()
    # Half precision takes the same bits of the pools as other numbers; so it gets pools of its own.
    del a, b, out
    a, b = Pool(1 << 28, torch.float16), Pool(1 << 28, torch.float16)
    out = torch.empty(1 << 29, dtype=torch.float16, device=DEVICE)
    for k, n in ((2048, 2048), (4096, 4096), (4096, 14336)):
        for pass_ in ("forward", "wgrad"):
            product(torch.float16, "fp16", a, b, out, pass_, 8192, k, n, samples=3)


def products_of_floats():
    a, b = Pool(1 << 27, torch.float32), Pool(1 << 27, torch.float32)
    out = torch.empty(1 << 28, dtype=torch.float32, device=DEVICE)
    for name, allowed in (("tf32", True), ("fp32", False)):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        for k, n in ((1024, 1024), (2048, 2048), (4096, 4096), (4096, 14336)):
            for pass_ in ("forward", "wgrad"):
                product(torch.float32, name, a, b, out, pass_, 4096, k, n, samples=2)
    torch.backends.cuda.matmul.allow_tf32 = False


def products_of_fp8():
    pool_a, pool_b = Pool(1 << 29, torch.float8_e4m3fn), Pool(1 << 29, torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)
    for k, n in ((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (4096, 14336), (14336, 4096), (8192, 28672), (7168, 2048)):
        for m in (1024, 4096, 16384):
            for name, fast in (("tensor fast", True), ("tensor", False)):
                def call(i):
                    torch._scaled_mm(pool_a.take(i, m, k), pool_b.take(i, n, k).t(), one, one, out_dtype=torch.bfloat16,
                                     use_fast_accum=fast)
                say("product", name, "fp8", "forward", timed(call, samples=3), 2.0 * m * n * k, m * k + n * k + 2 * m * n, m=m, n=n, k=k)
            if m == 4096:
                rows, columns = torch.ones(m, 1, device=DEVICE), torch.ones(1, n, device=DEVICE)
                def by_row(i):
                    torch._scaled_mm(pool_a.take(i, m, k), pool_b.take(i, n, k).t(), rows, columns, out_dtype=torch.bfloat16,
                                     use_fast_accum=True)
                say("product", "row", "fp8", "forward", timed(by_row, samples=3), 2.0 * m * n * k, m * k + n * k + 2 * m * n, m=m, n=n, k=k)


def grouped():
    for experts, k, n in ((8, 4096, 14336), (8, 4096, 28672), (16, 2048, 1536), (32, 7168, 4096), (32, 2048, 7168), (64, 4096, 3072),
                          (128, 2048, 1536), (128, 768, 2048)):
        weights = torch.randn(experts, k, n, device=DEVICE, dtype=torch.bfloat16)
        for each in (64, 256, 1024, 4096):
            m = experts * each
            if m * max(k, n) > 1 << 30:
                continue
            x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
            dy = torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16)
            offs = torch.arange(each, m + 1, each, device=DEVICE, dtype=torch.int32)
            flops, bytes_ = 2.0 * m * n * k, 2 * (m * k + experts * n * k + m * n)
            calls = [("bmm", "forward", lambda i: torch.bmm(x.view(experts, each, k), weights)),
                     ("loop", "forward", lambda i: [torch.mm(x[e * each:(e + 1) * each], weights[e]) for e in range(experts)]),
                     ("bmm", "wgrad", lambda i: torch.bmm(x.view(experts, each, k).transpose(1, 2), dy.view(experts, each, n)))]
            if hasattr(torch, "_grouped_mm"):
                calls += [("grouped_mm", "forward", lambda i: torch._grouped_mm(x, weights, offs=offs)),
                          ("grouped_mm", "dgrad", lambda i: torch._grouped_mm(dy, weights.transpose(1, 2), offs=offs)),
                          ("grouped_mm", "wgrad", lambda i: torch._grouped_mm(x.t(), dy, offs=offs))]
            for impl, pass_, call in calls:
                try:
                    say("grouped", impl, "bf16", pass_, timed(call, group_ms=8, samples=3), flops, bytes_, m=each, n=n, k=k, groups=experts)
                except RuntimeError as e:
                    print(f"# grouped {impl} {pass_}: {str(e).splitlines()[0][:100]}")


def attention_case(backend, name, seq, tokens, heads, kv, dim, causal=True):
    batch = max(1, tokens // seq)
    make = lambda h: torch.randn(batch, seq, h, dim, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    q, k, v = make(heads), make(kv), make(kv)
    flops = (2.0 if causal else 4.0) * batch * heads * seq * seq * dim
    shape = dict(batch=batch, seq=seq, heads=heads, kv=kv, dim=dim, causal=int(causal))
    with sdpa_kernel(backend):
        run = lambda i: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != heads)
        with torch.no_grad():
            forward = timed(run, group_ms=8, samples=3)
        y = run(0)
        dy = torch.randn_like(y)
        backward = timed(lambda i: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), group_ms=8, samples=3)
    say("attention", name, "bf16", "forward", forward, flops, **shape)
    say("attention", name, "bf16", "backward", backward, 2.5 * flops, **shape)


def attention():
    cases = []
    for dim, heads in ((128, 32), (64, 32)):
        for seq in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
            cases.append((seq, 16384, heads, heads, dim))
    cases += [(131072, 131072, 16, 16, 128), (131072, 131072, 16, 16, 64)]
    for seq in (2048, 8192, 32768):
        cases += [(seq, 16384, 16, 16, 128), (seq, 16384, 64, 64, 128), (seq, 16384, 32, 8, 128), (seq, 16384, 64, 8, 128),
                  (seq, 16384, 4, 4, 128), (seq, 16384, 24, 24, 64)]
    cases += [(2048, 65536, 32, 32, 128), (2048, 4096, 32, 32, 128), (4096, 4096, 32, 8, 128), (4096, 16384, 128, 128, 192)]
    for case in cases:
        for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.CUDNN_ATTENTION, "cudnn")):
            if left() < 25:
                return
            try:
                attention_case(backend, name, *case)
            except RuntimeError as e:
                print(f"# attention {name} {case}: {str(e).splitlines()[0][:100]}")
    for seq in (2048, 8192):
        for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.CUDNN_ATTENTION, "cudnn")):
            try:
                attention_case(backend, name, seq, 16384, 32, 32, 128, causal=False)
            except RuntimeError as e:
                print(f"# attention {name} full: {str(e).splitlines()[0][:100]}")


def hf_rms_norm(x, weight):
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def both_passes(name, make, inputs, forward_bytes, backward_bytes, m, n):
    """forward_bytes, backward_bytes: what a fused kernel has to move."""
    leaves = [t.requires_grad_() for t in inputs]
    with torch.no_grad():
        say("elementwise", name, "bf16", "forward", timed(lambda i: make(*leaves), samples=3), 0, forward_bytes, m=m, n=n)
    y = make(*leaves)
    dy = torch.randn_like(y) if y.dim() else None
    ms = timed(lambda i: torch.autograd.grad(y, leaves, dy, retain_graph=True), samples=3)
    say("elementwise", name, "bf16", "backward", ms, 0, backward_bytes, m=m, n=n)


def elementwise():
    for m, n in ((16384, 4096), (16384, 8192), (4096, 2048)):
        new = lambda *shape: torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)
        one = 2 * m * n
        both_passes("rms_norm torch", lambda x, w: F.rms_norm(x, (n,), w, 1e-6), [new(m, n), new(n)], 2 * one, 3 * one, m, n)
        both_passes("rms_norm transformers", hf_rms_norm, [new(m, n), new(n)], 2 * one, 3 * one, m, n)
        both_passes("layer_norm", lambda x, w: F.layer_norm(x, (n,), w), [new(m, n), new(n)], 2 * one, 3 * one, m, n)
        both_passes("silu * up", lambda g, u: F.silu(g) * u, [new(m, n), new(m, n)], 3 * one, 5 * one, m, n)
        both_passes("gelu", F.gelu, [new(m, n)], 2 * one, 3 * one, m, n)
        x, y = new(m, n), new(m, n)
        say("elementwise", "add", "bf16", "forward", timed(lambda i: x + y, samples=3), 0, 3 * one, m=m, n=n)
        say("elementwise", "copy", "bf16", "forward", timed(lambda i: y.copy_(x), samples=3), 0, 2 * one, m=m, n=n)
        say("elementwise", "to fp32", "bf16", "forward", timed(lambda i: x.float(), samples=3), 0, 3 * one, m=m, n=n)
        cos, sin, q = new(1, 1, m, 128), new(1, 1, m, 128), new(1, n // 128, m, 128)
        rotate = lambda t: torch.cat((-t[..., 64:], t[..., :64]), -1)
        say("elementwise", "rotary transformers", "bf16", "forward", timed(lambda i: q * cos + rotate(q) * sin, samples=3), 0, 2 * one, m=m, n=n)
    big, other = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE), torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    say("elementwise", "copy of 1 GiB", "bytes", "forward", timed(lambda i: big.copy_(other)), 0, 2 << 30)
    tokens, vocab = 4096, 50304
    logits = torch.randn(tokens, vocab, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(0, vocab, (tokens,), device=DEVICE)
    both_passes("loss fp32", lambda t: F.cross_entropy(t.float(), labels), [logits], 2 * tokens * vocab, 4 * tokens * vocab, tokens, vocab)


class Layer(torch.nn.Module):
    """A dense decoder layer in plain torch."""

    def __init__(self, hidden, heads, ffn):
        super().__init__()
        new = lambda i, o: torch.nn.Linear(i, o, bias=False, device=DEVICE, dtype=torch.bfloat16)
        self.heads, self.qkv, self.out = heads, new(hidden, 3 * hidden), new(hidden, hidden)
        self.up, self.down = new(hidden, ffn), new(ffn, hidden)
        self.first = torch.nn.LayerNorm(hidden, device=DEVICE, dtype=torch.bfloat16)
        self.second = torch.nn.LayerNorm(hidden, device=DEVICE, dtype=torch.bfloat16)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).split(h, -1))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.second(x))))


def layers():
    """Whole layers, forward and backward: the check of the sum of the rates; the smallest: what Python takes to issue one."""
    for hidden, heads, batch, seq in ((128, 2, 1, 16), (1536, 12, 8, 2048), (2048, 16, 8, 2048), (4096, 32, 6, 2048), (4096, 32, 1, 16384),
                                      (8192, 64, 4, 2048)):
        layer = Layer(hidden, heads, 4 * hidden)
        x = torch.randn(batch, seq, hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        with torch.no_grad():
            fn = lambda i: layer(x)
            forward = timed(fn, most=20)
        def step(i):
            layer(x).sum().backward()
        both = timed(step, most=20)
        for p in layer.parameters():
            p.grad = None
        tokens = batch * seq
        flops = 24.0 * tokens * hidden * hidden + 2.0 * tokens * seq * hidden
        note = "as GPU sees it" if hidden > 128 else "Python issues it"
        if hidden == 128:
            def by_clock(fn, n=60):
                fn(0)
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for i in range(n):
                    fn(i)
                torch.cuda.synchronize()
                return (time.perf_counter() - begun) / n * 1e3
            forward, both = by_clock(lambda i: layer(x)), by_clock(step)
        say("layer", "torch", "bf16", "forward", forward, flops, m=tokens, n=hidden, seq=seq, heads=heads, batch=batch, note=note)
        say("layer", "torch", "bf16", "forward and backward", both, 3 * flops + tokens * seq * hidden, m=tokens, n=hidden, seq=seq,
            heads=heads, batch=batch, note=note)


def launches():
    x = torch.zeros(16, device=DEVICE)
    w = torch.zeros(16, 16, device=DEVICE)
    for name, call in (("add_", lambda: x.add_(1)), ("add", lambda: x + x), ("mm", lambda: torch.mm(w, w))):
        for _ in range(100):
            call()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(2000):
            call()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        ms = (issued - begun) / 2000 * 1e3
        say("launch", name, "fp32", "forward", ms, note=f"with the GPU's time {(time.perf_counter() - begun) / 2000 * 1e3:.5f} ms")


def sustained():
    """The first 20 ms after a pause, and 2 s under load."""
    a = torch.randn(16384, 8192, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    c = torch.empty(16384, 8192, device=DEVICE, dtype=torch.bfloat16)
    q = torch.randn(2, 32, 8192, 128, device=DEVICE, dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        works = [("product", 2.0 * 16384 * 8192 * 8192, lambda: torch.mm(a, b, out=c)),
                 ("attention", 4.0 * 32 * 8192 * 8192 * 128, lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))]
        for name, flops, call in works:
            call()
            torch.cuda.synchronize()
            time.sleep(3)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for seconds, what in ((0.02, "burst after a pause"), (2.5, "first 2.5 s"), (2.5, "next 2.5 s")):
                n = max(2, int(seconds / (flops / 6e14)))
                start.record()
                for _ in range(n):
                    call()
                end.record()
                time.sleep(max(0.0, seconds - 1))
                seen = smi("clocks.sm,power.draw,temperature.gpu").replace(",", " ;")
                torch.cuda.synchronize()
                say("sustained", name, "bf16", "forward", start.elapsed_time(end) / n, flops, note=f"{what}: {seen}")


def main():
    global limit
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150, help="what is left after so many seconds is left out")
    parser.add_argument("--only", help="names of parts, with commas")
    args = parser.parse_args()
    limit = args.seconds
    if not torch.cuda.is_available():
        sys.exit("gpu_rates_torch.py: no GPU")
    props = torch.cuda.get_device_properties(0)
    print(f"# device: {props.name}, {props.multi_processor_count} SMs, {props.total_memory} bytes, capability {props.major}.{props.minor}")
    print(f"# torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    print(f"# driver, clocks of SM and memory and their maxima, power limit: {smi('driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit')}")
    print(f"# command: {' '.join(sys.argv)}")
    print(HEAD)
    parts = [launches, sustained, products, products_of_fp8, products_of_floats, grouped, elementwise, layers, attention]
    for part in parts:
        if args.only and part.__name__ not in args.only.split(","):
            continue
        begun = time.monotonic()
        try:
            heat(1.0)
            part()
        except Exception as e:  # one part that a version of torch lacks must not cost the others
            print(f"# {part.__name__} ended: {type(e).__name__}: {str(e).splitlines()[0][:160]}")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(f"# {part.__name__}: {time.monotonic() - begun:.1f} s; {smi('clocks.sm,power.draw,temperature.gpu')}", flush=True)


if __name__ == "__main__":
    main()
