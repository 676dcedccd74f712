# SPDX-License-Identifier: Apache-2.0
"""Weight syncs and loads of 1 to 4 CPU ranks over gloo: every placement by bucket and tensor parallelism of the target, FSDP2
to an engine's slices and to a folder, ranks that refuse, die or stop."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_sync_job.py")


@unittest.skipIf(VERSION < (2, 6) or not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
                 "DTensors and FSDP2 need torch 2.6 with gloo")
class SyncRanks(unittest.TestCase):
    def launch(self, case: str, world: int, **environment: str) -> list:
        """Output of each rank. Rank 1 may be killed or stopped if the case says so."""
        lost = environment.get("WHAT") in ("killed", "stopped")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-W", "ignore", JOB, case, folder], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, universal_newlines=True,
                                      env={**os.environ, **environment, "RANK": str(r), "WORLD_SIZE": str(world),
                                           "OMP_NUM_THREADS": "1"}) for r in range(world)]
            out = []
            try:
                for r, rank in enumerate(ranks):
                    if lost and r == 1:
                        continue
                    out.append(rank.communicate(timeout=240)[0])
                    self.assertEqual(rank.returncode, 0, out[-1])
            finally:
                for rank in ranks:
                    if rank.poll() is None:
                        rank.send_signal(signal.SIGKILL)
                    rank.communicate()
        return out

    def test_placements(self) -> None:
        for world in [1, 2, 4]:
            with self.subTest(world=world):
                self.launch("placements", world)

    def test_three_ranks(self) -> None:
        self.launch("errors", 3)

    def test_fsdp2(self) -> None:
        for world in [3, 4]:
            with self.subTest(world=world):
                self.launch("fsdp2", world)

    def test_peers(self) -> None:
        for what, where in [("refuses", "last"), ("killed", "first"), ("stopped", "middle")]:
            with self.subTest(what=what, where=where):
                start = time.monotonic()
                out = self.launch("peers", 3, WHAT=what, WHERE=where)
                self.assertLess(time.monotonic() - start, 120)
                if what != "refuses":
                    self.assertTrue(all("error: sync of step 2" in text for text in out) and any("rank 1:" in text for text in out), out)


if __name__ == "__main__":
    unittest.main()
