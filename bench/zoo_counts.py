#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare every zoo model with the reference implementation (transformers) on the meta device.

The model is built from its config without memory for weights. Names and shapes of all parameters are
compared with those of `stowage inspect MODEL --tensors`, tied weights once. Needs transformers and
torch (the CPU build is enough); not part of ctest.

usage: zoo_counts.py [--stowage BIN] [--zoo FOLDER] [-o FILE.csv] [MODEL...]
"""
import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = pathlib.Path(__file__).resolve().parent.parent
# model_type and class of configs whose publisher names code of his own
OTHER_TYPES = {"kimi_k2": "deepseek_v3", "mimo": "qwen2"}
OTHER_CLASSES = {"PhiMoEForCausalLM": "PhimoeForCausalLM", "MiMoForCausalLM": "Qwen2ForCausalLM"}


def build(path):
    config = json.loads(path.read_text())
    name = config["architectures"][0]
    model_type = OTHER_TYPES.get(config["model_type"], config["model_type"])
    config["model_type"] = model_type
    for key in ("auto_map", "quantization_config", "stored"):  # how weights are stored, not built
        config.pop(key, None)
    settings = CONFIG_MAPPING[model_type].from_dict(config)
    with torch.device("meta"):
        model = getattr(transformers, OTHER_CLASSES.get(name, name))(settings)
    model.tie_weights()
    return model


def reference(path):
    """Shapes of the parameters, and of the buffers."""
    model = build(path)
    return ({n: list(p.shape) for n, p in model.named_parameters(remove_duplicate=True)},
            {n: list(b.shape) for n, b in model.named_buffers()})


def ours(stowage, path, buffers):
    """Shapes in the tensor list, which has buffers too."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "tensors.csv"
        subprocess.run([stowage, "inspect", str(path), "--tensors", str(out)], check=True,
                       stdout=subprocess.DEVNULL)
        with out.open() as rows:
            shapes = {r["name"]: json.loads(r["shape"]) for r in csv.DictReader(rows)}
    return {n: shape for n, shape in shapes.items() if buffers.get(n) != shape}


def count(shapes):
    total = 0
    for shape in shapes.values():
        n = 1
        for size in shape:
            n *= size
        total += n
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stowage", default=str(ROOT / "build/bin/stowage"))
    parser.add_argument("--zoo", default=str(ROOT / "models/zoo"))
    parser.add_argument("-o", dest="output")
    parser.add_argument("models", nargs="*")
    args = parser.parse_args()
    paths = sorted(pathlib.Path(args.zoo).glob("*.json"))
    if args.models:
        paths = [p for p in paths if p.stem in args.models]
    rows, wrong = [], 0
    for path in paths:
        theirs, buffers = reference(path)
        mine = ours(args.stowage, path, buffers)
        differ = [n for n in sorted(set(theirs) | set(mine)) if theirs.get(n) != mine.get(n)]
        rows.append([path.stem, count(mine), count(theirs), len(theirs), len(differ)])
        print(f"{path.stem:28} {count(mine):>18,} {count(theirs):>18,} "
              f"{'equal' if not differ else 'DIFFERENT'}", flush=True)
        for name in differ[:8]:
            print(f"    {name}: stowage {mine.get(name)}, transformers {theirs.get(name)}")
        wrong += bool(differ)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: "
          f"{len(paths) - wrong} of {len(paths)} models equal")
    if args.output:
        with open(args.output, "w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(["model", "stowage", "transformers", "tensors", "different"])
            writer.writerows(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
