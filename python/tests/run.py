# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests: run.py FILE. Exit code 77, "skipped", if it needs torch and no Python here has one."""

import os
import sys
import unittest
import warnings

SYSTEM = "/usr/bin/python3"  # Debian's package python3-torch belongs to it


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        needs_torch = "\nimport torch" in file.read()
    if needs_torch:
        try:
            import torch
        except ImportError:
            if os.path.exists(SYSTEM) and os.environ.get("STOWAGE_SYSTEM_PYTHON") != "tried":
                os.environ["STOWAGE_SYSTEM_PYTHON"] = "tried"
                os.execv(SYSTEM, [SYSTEM, *sys.argv])
            print("skipped: torch is missing (python3-torch, or pip install torch)")
            sys.exit(77)
        print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    folder, name = os.path.split(path)
    sys.path.insert(0, folder)
    warnings.simplefilter("ignore")
    program = unittest.main(module=os.path.splitext(name)[0], argv=[path, "-v"], exit=False, warnings="ignore")
    sys.exit(0 if program.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
