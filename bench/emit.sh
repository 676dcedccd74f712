#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Round trips of --from and --emit: ROUNDS random settings of every file of a framework, planned,
# emitted, imported and planned again, to the same bytes; and as many with any keys at all, which
# may be refused. The same seed as the unit test, which does 4 and 6.
# usage: bench/emit.sh [ROUNDS]
set -eu
: "${STW_BUILD_DIR:=build}"
STW_EMIT_ROUNDS=${1:-200} STW_EMIT_KEYS=${1:-200} exec "$STW_BUILD_DIR/tests/test_planner_emit"
