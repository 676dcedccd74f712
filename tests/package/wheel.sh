#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The wheel of this build in an empty virtual environment: it plans, and brings both commands.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
[ -z "${STW_SANITIZE:-}" ] || { echo "not with sanitizers"; exit 77; }
[ -e "$STW_BUILD_DIR/lib/libstowage.so" ] || { echo "no libstowage.so in this build"; exit 77; }
python3 -c 'import setuptools, wheel, pip, venv' 2>/dev/null || { echo "python3 lacks pip, setuptools, venv or wheel"; exit 77; }
rm -rf prefix python dist venv
"$STW_CMAKE" --install "$STW_BUILD_DIR" --prefix "$PWD/prefix" >install.log || fail "cmake --install"
cp -R "$STW_SOURCE_DIR/python" python
STOWAGE_PREFIX=$PWD/prefix python3 -m pip wheel -q --no-index --no-deps --no-build-isolation --wheel-dir dist ./python >pip.log 2>&1 ||
    { cat pip.log >&2; fail "pip wheel"; }
case $(ls dist) in
stowage-*-py3-none-manylinux_*.whl) ;;
*) ls dist; fail "one wheel for every Python 3" ;;
esac
python3 -m venv venv && venv/bin/python -m pip install -q --no-index dist/*.whl >pip.log 2>&1 || { cat pip.log; fail "pip install"; }
unset STOWAGE STOWAGE_RUN STOWAGE_DATA STOWAGE_LIBRARY PYTHONPATH
rm -rf prefix python # nothing of these is needed
venv/bin/python -c '
import stowage
plan = stowage.plan("GPT-2", set={"batch.seq_len": 128})
assert plan.fits and plan.tensors, plan
plan.write("plan.json")
assert "site-packages" in stowage.program() and "site-packages" in stowage._native.load().path
' || fail "the package plans"
venv/bin/stowage --version | grep -q "^stowage $(venv/bin/python -c 'import stowage; print(stowage.__version__)')" || fail "the command stowage"
venv/bin/stowage-run --version >/dev/null || fail "the command stowage-run"
venv/bin/stowage simulate plan.json >/dev/null || fail "stowage reads the package's plan"
