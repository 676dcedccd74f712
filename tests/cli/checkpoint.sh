#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A run that is saved and resumed at 1, 2, 4, 3 and 1 ranks, in another placement each time, ends in the digests of the one
# that was not interrupted: fp32; bf16 with master; experts cut by ep; state on NVMe.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
tiny_model

# round_trip NAME COMMON-SETTINGS -- RANKS:SETTINGS...
round_trip() {
    name=$1 common=$2
    shift 3
    rm -rf "save-$name"
    # shellcheck disable=SC2086
    plan_of "$name" 1 $common
    run_of "$name" 1 --steps 10 || { cat "run-$name.txt"; fail "$name, uninterrupted"; }
    reference=$(all_digests "run-$name.json")
    step=0
    for leg in "$@"; do
        ranks=${leg%%:*}
        # shellcheck disable=SC2046,SC2086
        plan_of "$name-$ranks" "$ranks" $common $(echo "${leg#*:}" | tr , ' ')
        resume=
        [ "$step" = 0 ] || resume="--resume save-$name"
        step=$((step + 2))
        # shellcheck disable=SC2086
        run_of "$name-$ranks" "$ranks" --steps "$step" --checkpoint "save-$name" $resume --nvme . --allow-tmpfs ||
            { cat "run-$name-$ranks.txt"; fail "$name on $ranks ranks to step $step"; }
        ! grep -q "was not saved" "run-$name-$ranks.txt" || { cat "run-$name-$ranks.txt"; fail "$name: not saved"; }
    done
    found=$(all_digests "run-$name-$ranks.json")
    [ "$found" = "$reference" ] || fail "$name: $found, expected $reference"
    echo "$name: $found after step $step"
}

round_trip fp32 "precision.params=fp32" -- 1:placement.moments=host 2:placement.moments=gpu \
    4:update.cpu=1 3:placement.moments=host,placement.params=host 1:placement.moments=nvme
round_trip bf16 "precision.params=bf16 precision.master=fp32 optimizer.clip_norm=1" -- 1:placement.moments=gpu \
    2:placement.moments=nvme 4:placement.moments=host 3:placement.moments=gpu 1:update.direct=1
echo "checkpoint: ok"
