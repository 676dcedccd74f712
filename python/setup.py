# SPDX-License-Identifier: Apache-2.0
"""Puts the native part into the package: an installation of Stowage under stowage/ (bin/, lib/, share/).

It comes from $STOWAGE_PREFIX, where the CMake target `wheel` installs, or is built from the sources around this folder with
the preset `wheel`. Nothing is compiled against Python or torch, so one wheel serves all of them.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent


def install_sources(folder: Path) -> Path:
    """Build the sources around this folder and install them under `folder`."""
    source = HERE.parent
    if not (source / "CMakeLists.txt").exists():
        raise SystemExit(f"{source} lacks CMakeLists.txt: set STOWAGE_PREFIX to an installation of Stowage, or call "
                         "`pip install python/` in its source tree")
    build, prefix = folder / "cmake", folder / "prefix"
    jobs = str(os.cpu_count() or 1)
    for command in [["cmake", "--preset", "wheel", "-S", str(source), "-B", str(build)],
                    ["cmake", "--build", str(build), "--parallel", jobs, "--target", "installed"],
                    ["cmake", "--install", str(build), "--prefix", str(prefix), "--strip"]]:
        subprocess.run(command, check=True, cwd=source)
    return prefix


class BuildNative(build_py):
    def run(self) -> None:
        super().run()
        given = os.environ.get("STOWAGE_PREFIX")
        work = Path(self.get_finalized_command("build").build_temp).resolve() / "native"
        prefix = Path(given) if given else install_sources(work)
        package = Path(self.build_lib) / "stowage"
        library = next(iter(sorted(prefix.glob("lib*/**/libstowage.so"))), None)
        if library is None:
            raise SystemExit(f"{prefix} lacks libstowage.so: build with STW_SHARED=ON")
        self.mkpath(str(package / "lib"))
        shutil.copy2(library.resolve(), package / "lib" / "libstowage.so")
        plugins = prefix / "lib" / "stowage"
        if plugins.is_dir():
            shutil.copytree(plugins, package / "lib" / "stowage", dirs_exist_ok=True)
        shutil.copytree(prefix / "share" / "stowage", package / "share" / "stowage", dirs_exist_ok=True)
        self.mkpath(str(package / "bin"))
        for name in ["stowage", "stowage-run"]:
            shutil.copy2(prefix / "bin" / name, package / "bin" / name)
        licences = package / "licences"
        self.mkpath(str(licences))
        documents = prefix / "share" / "doc" / "stowage"
        for path in [documents / "LICENSE", documents / "third-party"]:
            if path.is_dir():
                shutil.copytree(path, licences / path.name, dirs_exist_ok=True)
            elif path.exists():
                shutil.copy2(path, licences / path.name)


class Wheel(bdist_wheel):
    """py3-none-manylinux_<glibc>: no Python ABI, but native code for this system's glibc and newer."""

    def get_tag(self):
        _, glibc = platform.libc_ver()
        major, minor = (glibc or "2.28").split(".")[:2]
        return "py3", "none", f"manylinux_{major}_{minor}_{platform.machine()}"


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildNative, "bdist_wheel": Wheel}, distclass=Native)
