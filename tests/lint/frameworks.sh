#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names of training frameworks stay with the engines (engines/ and blocks/), with import and export
# (planner/frameworks/) and in data. Comments count too.
# Usage: frameworks.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
names='fsdp|megatron|deepspeed|zero-?[123]([^0-9]|$)|areal|(^|[^a-z])verl($|[^a-z])'
sources=$(files '^(core|models|plan|planner|sim|backend|reports|library|cli|include)/.*\.(c|h|cu|cuh)$' |
    grep -vE '^planner/frameworks/')
[ -n "$sources" ] || { echo "no source was found"; exit 1; }
! echo "$sources" | xargs grep -inE "$names" /dev/null
