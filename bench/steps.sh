#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Does anything that chooses a layout or writes settings change the training? RUNS random runs of
# four engines through all layouts of a search, and RUNS files of every framework through a search,
# --emit and --from: tokens and sequences of an optimizer step, the trainer's step, and bytes stay.
# The same seed as the unit test, which does 30.
# usage: bench/steps.sh [RUNS]
set -eu
: "${STW_BUILD_DIR:=build}"
STW_STEP_RUNS=${1:-400} exec "$STW_BUILD_DIR/tests/test_planner_step"
