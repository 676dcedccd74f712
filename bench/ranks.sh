#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What happens when one of several ranks is killed, stopped or asleep, or has another plan or another
# version of the program, or when it is killed or stopped in the first, a middle or the last message of a weight
# sync? Prints a Markdown table: exit codes of all ranks, seconds until the others have ended (in syncs from the
# start of the ranks on), and what rank 0 says. Exit code 1 where a rank hangs, or is not named.
#
#     bench/ranks.sh [OUT_FOLDER]         RANKS="1 2 4" BACKEND=host DEADLINE=2 START_S=3
#
# The odd rank is the last one. BACKEND=host starts ranks with mpirun; BACKEND=cuda starts them by
# itself, one for each GPU, with the environment that torchrun gives. No GPU is needed for host.
set -u
STOWAGE=$(realpath "${STOWAGE:-build/bin/stowage}")
STOWAGE_RUN=$(realpath "${STOWAGE_RUN:-$(dirname "$STOWAGE")/stowage-run}")
backend=${BACKEND:-host}
if [ "$backend" = host ]; then wait_s=2 start_s=3; else wait_s=10 start_s=20; fi # NCCL takes seconds to join
deadline=${DEADLINE:-$wait_s}
start_s=${START_S:-$start_s} # until ranks step
out=${1:-bench/results/ranks}
export STOWAGE STOWAGE_RUN NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
mkdir -p "$out" && cd "$out" || exit 2
bad=0
port=$((20000 + $$ % 9000)) # one for each row: a rank that is late meets nobody

cat >config.json <<'EOF2'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 64,
 "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_hidden_layers": 4,
 "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "vocab_size": 8000, "max_position_embeddings": 4096}
EOF2
cat >cluster.yaml <<'EOF2'
nodes: 1
node:
  gpus: 1
  gpu: {name: any, memory: 4 GiB, context: 0 GiB, comm: 0 GiB, hbm: 1 TB/s, bf16: 100 TFLOP/s}
  host: {memory: 16 GiB, limit: 16 GiB, page_lock_limit: unlimited, process: 64 MiB, bandwidth: 40 GB/s, dma: 30 GB/s, cores: 2}
  pcie: {h2d: 12 GB/s, d2h: 12 GB/s, both: 10 GB/s, latency: 10 us}
  nvlink: 100 GB/s
  cpu_adamw: 1 Gparam/s
EOF2

# A rank: what it says, its exit code and its process id are kept in files.
cat >rank.sh <<'EOF2'
rank=${OMPI_COMM_WORLD_RANK:-${RANK:-0}}
plan=$PLAN program=$STOWAGE_RUN
echo $$ >"shell.$rank"
if [ "$rank" = "$ODD" ]; then
    case $CASE in
    sleeping) sleep "$SLEEP_S" ;;
    other_plan) plan=$OTHER_PLAN ;;
    other_version) program=./other-run ;;
    sync*) if [ "$BACKEND" = host ]; then export LD_PRELOAD="$PWD/odd.so"; else export STOWAGE_NCCL="$PWD/odd.so"; fi ;;
    esac
fi
"$program" "$plan" --backend "$BACKEND" --steps "$STEPS" --timeout "$DEADLINE" -q >"out.$rank" 2>&1 &
echo $! >"pid.$rank"
wait $!
echo $? >"code.$rank"
EOF2
version=$("$STOWAGE_RUN" --version | sed -n '1s/stowage-run //p')
LC_ALL=C sed "s/stowage $version (ranks/stowage $(echo "$version" | tr 0-9 1-90) (ranks/" "$STOWAGE_RUN" >other-run
chmod +x other-run
STOWAGE_MPI_PLUGIN=${STOWAGE_MPI_PLUGIN:-$(dirname "$STOWAGE_RUN")/../lib/stowage/stowage-mpi.so}
export STOWAGE_MPI_PLUGIN
export PLAN OTHER_PLAN SLEEP_S STEPS ODD CASE BACKEND="$backend" DEADLINE="$deadline"

# In the odd rank of a sync the call AT that sends a message ends in a signal; the number of calls goes to the file COUNT.
cat >odd.c <<'EOF2'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
static void called(void) {
    static long calls;
    const char *at = getenv("AT"), *count = getenv("COUNT");
    calls++;
    if (count != NULL && count[0] != '\0') {
        FILE *out = fopen(count, "w");
        fprintf(out, "%ld\n", calls);
        fclose(out);
    }
    if (at != NULL && atol(at) == calls) raise(atoi(getenv("SIGNAL")));
}
#ifdef HOST
#include <mpi.h>
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    if (tag == 2) called();
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}
#else /* what is not here is found in the libnccl.so.2 that this is linked with */
int ncclSend(const void *data, size_t n, int type, int to, void *comm, void *stream) {
    static int (*real)(const void *, size_t, int, int, void *, void *);
    if (real == NULL) real = (int (*)(const void *, size_t, int, int, void *, void *))dlsym(RTLD_NEXT, "ncclSend");
    called();
    return real(data, n, type, to, comm, stream);
}
#endif
EOF2
syncs=1
if [ "$backend" = host ]; then
    mpicc -shared -fPIC -w -DHOST -o odd.so odd.c || syncs=
else
    nccl=${STOWAGE_NCCL:-$(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -n 1)}
    cc -shared -fPIC -w -o odd.so odd.c -Wl,--no-as-needed "$nccl" -Wl,-rpath,"$(dirname "$nccl")" || syncs=
fi
[ -n "$syncs" ] || echo "no compiler or no $backend communicator to link with: syncs are left out" >&2
AT='' SIGNAL=0 COUNT=''
export AT SIGNAL COUNT

plan() {
    "$STOWAGE" plan --model config.json --cluster cluster.yaml --set node.gpus="$1" --set placement.moments=host \
        --set optimizer.implementation=streamed --set "$2" -o "$3" >/dev/null || exit 2
}

launch() {
    if [ "$backend" = host ]; then
        mpirun --enable-recovery -n "$1" sh rank.sh >launch.txt 2>&1 &
        launched=$!
        return
    fi
    (
        rank=0
        while [ "$rank" -lt "$1" ]; do
            RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
                sh rank.sh &
            rank=$((rank + 1))
        done
        wait
    ) >launch.txt 2>&1 &
    launched=$!
}

now() { date +%s.%N; }
since() { echo "$1 $(now)" | awk '{ printf "%.1f", $2 - $1 }'; }
# pid RANK: its process, "" where it has not started
pid() { cat "pid.$1" 2>/dev/null; }
# is_there RANK: its process runs or is stopped
is_there() { [ -n "$(pid "$1")" ] && grep -q -v ') [ZX] ' "/proc/$(pid "$1")/stat" 2>/dev/null; }

# one RANKS CASE WORD: a row; rank 0 must say WORD, "" for none
one() {
    ranks=$1 CASE=$2 word=$3
    ODD=$((ranks - 1)) PLAN=plan-$ranks.json OTHER_PLAN=other-$ranks.json STEPS=1000000
    SLEEP_S=$((deadline + 30)) pause=$start_s
    [ -n "$word" ] || STEPS=3 SLEEP_S=3 pause=0.3 # nobody waits for it: it goes on later
    limit=$((deadline + 10))
    case $CASE in sync*) PLAN=sync-$ranks.json STEPS=2 limit=$((limit + 2 * start_s)) ;; esac
    rm -f out.* code.* pid.* shell.*
    port=$((port + 1))
    began=$(now)
    launch "$ranks"
    case $CASE in
    killed | stopped)
        sleep "$pause"
        began=$(now)
        signal=KILL
        [ "$CASE" = killed ] || signal=STOP
        [ -z "$(pid "$ODD")" ] || kill -s "$signal" "$(pid "$ODD")"
        [ "$ranks$CASE" != 1stopped ] || { sleep 3; kill -s CONT "$(pid 0)"; }
        ;;
    esac
    hangs=
    while :; do # until all others have ended
        there=0 rank=0
        while [ "$rank" -lt "$ranks" ]; do
            [ "$rank" = "$ODD" ] && [ "$ranks" -gt 1 ] || [ -s "code.$rank" ] || { [ -n "$(pid "$rank")" ] && ! is_there "$rank"; } || there=1
            rank=$((rank + 1))
        done
        [ "$there" = 1 ] || break
        if [ "$(since "$began" | cut -d. -f1)" -gt $((limit + 18)) ]; then hangs=HANGS; break; fi
        sleep 0.1
    done
    seconds=$(since "$began")
    sleep 1
    codes='' rank=0
    while [ "$rank" -lt "$ranks" ]; do
        [ -s "code.$rank" ] || ! is_there "$rank" || kill -s KILL "$(pid "$rank")"
        sleep 0.1
        [ -s "code.$rank" ] || kill -s KILL "$(cat "shell.$rank" 2>/dev/null)" 2>/dev/null # it sleeps
        codes="$codes $(cat "code.$rank" 2>/dev/null || echo -)"
        rank=$((rank + 1))
    done
    kill "$launched" 2>/dev/null
    wait "$launched" 2>/dev/null
    said=$(sed -n 's/^stowage: error: //p' out.0 2>/dev/null | head -n 1 | tr '|' '/')
    if cat out.* 2>/dev/null | grep -q 'left to the system'; then said="$said (closing was cut off after 4 s)"; fi
    verdict=$hangs
    if [ -n "$word" ] && [ "$ranks" -gt 1 ]; then
        case $said in
        *"$word"*) ;;
        *) verdict="$verdict NOT NAMED" ;;
        esac
        [ "$(echo "$seconds" | cut -d. -f1)" -le "$limit" ] || verdict="$verdict TOO LATE"
    fi
    [ -z "$verdict" ] || bad=1
    echo "| $ranks | $CASE |$codes | $seconds |$verdict ${said:-no error} |"
}

# syncs RANKS: a row for each piece in which the odd rank is killed or stopped; the first sync has half of the messages of two
syncs() {
    plan "$1" "roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024,
        update_bucket: 1 MiB}]" "sync-$1.json"
    rm -f count.txt
    COUNT=count.txt
    one "$1" "sync, left alone" ""
    COUNT=''
    pieces=$(($(cat count.txt 2>/dev/null || echo 0) / 2))
    [ "$pieces" -ge 3 ] || { echo "| $1 | sync | | | FOUND $pieces MESSAGES |"; bad=1; return; }
    for AT in 1 $((pieces / 2)) "$pieces"; do
        for SIGNAL in 9 19; do
            [ "$SIGNAL" = 9 ] && how=killed || how=stopped
            one "$1" "sync, $how in message $AT of $pieces" "weight sync, round "
            case $said in *"rank $odd (process"*) ;; *) bad=1; echo "| $1 | | | | RANK $odd IS NOT NAMED |" ;; esac
        done
    done
    AT='' SIGNAL=0
}

echo "stowage-run $version, $backend backend, --timeout $deadline; the odd rank is the last one"
echo
echo "| ranks | the odd rank is | exit codes | seconds | what rank 0 says |"
echo "|---:|---|---|---:|---|"
for n in ${RANKS:-1 2 4}; do
    plan "$n" optimizer.lr=0.001 "plan-$n.json"
    plan "$n" optimizer.lr=0.5 "other-$n.json"
    odd=$((n - 1))
    one "$n" killed "rank $odd (process"
    if [ "$n" = 1 ]; then
        for case in stopped sleeping other_plan other_version; do one "$n" $case ""; done
        continue
    fi
    one "$n" stopped "rank $odd (process"
    one "$n" sleeping "rank $odd (process"
    one "$n" other_plan "optimizer.lr: rank $odd has 0.5, rank 0 has 0.001"
    one "$n" other_version "version: rank $odd is stowage"
    [ -z "$syncs" ] || syncs "$n"
done
exit $bad
