# SPDX-License-Identifier: Apache-2.0
"""Runs a script on several CPU ranks over gloo."""

import os
import subprocess
import sys
from typing import Any

START = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
rank, world = dist.get_rank(), dist.get_world_size()
"""


def run_ranks(test: Any, script: str, world: int, folder: str) -> str:
    """The output of rank 0. Files that the script writes lie in sys.argv[2]."""
    path = os.path.join(folder, "job.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(START + script + "\ndist.destroy_process_group()\n")
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", path, os.path.join(folder, f"store{world}"), folder],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                              env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
                                   "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.abspath(__file__)),
                                                                  os.environ.get("PYTHONPATH", "")])})
             for r in range(world)]
    texts = [rank.communicate(timeout=240)[0] for rank in ranks]
    for rank, text in zip(ranks, texts):
        test.assertEqual(rank.returncode, 0, text)
    return texts[0]
