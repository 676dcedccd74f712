# SPDX-License-Identifier: Apache-2.0
"""The two programs that come with the package: `stowage` (GPL, it links the solver) and `stowage-run`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import NamedTuple, NoReturn, Union

from . import _native

PathLike = Union[str, "os.PathLike[str]"]


class Validation(NamedTuple):
    """agrees: every judged line is within tolerance. text: the lines, as `stowage validate` prints them."""

    agrees: bool
    text: str


def program(name: str = "stowage") -> str:
    """Path of a program: $STOWAGE or $STOWAGE_RUN if set, the package's own, else the one that PATH finds."""
    given = os.environ.get(name.upper().replace("-", "_"))
    if given:
        return given
    own = _native.PACKAGE / "bin" / name
    if own.exists():
        return str(own)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(name, path=folder)
        # The script that pip writes for this package would start itself again.
        if found and os.path.realpath(found) != os.path.realpath(sys.argv[0]):
            return found
    raise _native.Error(f"the program {name} was not found: {own} is missing and PATH has none")


def validate(plan: PathLike, run: PathLike) -> Validation:
    """Compare a plan file with a run file (of `stowage run` or `stowage record`), as `stowage validate` does."""
    result = _run(program(), "validate", os.fspath(plan), os.fspath(run))
    if result.returncode not in (0, 8):
        raise _failed(result)
    return Validation(result.returncode == 0, result.stdout)


def write_cluster(name: str, path: str) -> None:
    """Write cluster.yaml of a cluster that has a name."""
    try:
        command = program()
    except _native.Error as error:
        raise _native.Error(f"cluster: found {name}, which is no file; names of clusters need the program stowage: {error}") from None
    result = _run(command, "clusters", "--show", name, "-o", path)
    if result.returncode:
        raise _failed(result)


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)


def _failed(result: "subprocess.CompletedProcess[str]") -> _native.Error:
    text = result.stderr.strip().replace("stowage: error: ", "", 1)
    return _native.Error(text or f"{' '.join(result.args)} ended with exit code {result.returncode}")


def main() -> NoReturn:
    """The command `stowage`."""
    _start("stowage")


def main_run() -> NoReturn:
    """The command `stowage-run`."""
    _start("stowage-run")


def _start(name: str) -> NoReturn:
    try:
        path = program(name)
    except _native.Error as error:
        sys.exit(f"{name}: {error}")
    os.execv(path, [path, *sys.argv[1:]])
