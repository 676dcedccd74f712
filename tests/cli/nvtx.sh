#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage record` takes NVTX ranges that are named as phases for marks, without a profiler and
# without a GPU. Needs the NVTX headers of a CUDA toolkit.
. "$(dirname "$0")/_lib.sh"
include=
for folder in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda/include /usr/include; do
    [ -e "$folder/nvtx3/nvToolsExt.h" ] && include=$folder && break
done
[ -n "$include" ] && [ -e "$STW_BUILD_DIR/lib/stowage/stowage-nvtx.so" ] || exit 77
command -v "${CC:-cc}" >/dev/null 2>&1 || exit 77

cat >other.c <<'EOC'
#include <nvtx3/nvToolsExt.h>
void other(void) {
    nvtxRangePushA("weight_sync");
    nvtxRangePop();
}
EOC
cat >job.c <<'EOC'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <nvtx3/nvToolsExt.h>
#include <stddef.h>
#include <unistd.h>
/* The layout that stowage-nvtx.so is built with. */
typedef struct ours {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} ours;
_Static_assert(sizeof(ours) == sizeof(nvtxEventAttributes_t), "size");
_Static_assert(offsetof(ours, message_type) == offsetof(nvtxEventAttributes_t, messageType), "type");
_Static_assert(offsetof(ours, message) == offsetof(nvtxEventAttributes_t, message), "message");

int main(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("mine");
    nvtxEventAttributes_t a = {0};
    a.version = NVTX_VERSION;
    a.size = sizeof a;
    if (nvtxRangePushA("load") != 0) return 1;
    usleep(200000);
    if (nvtxRangePop() != 0) return 2;
    nvtxRangePushA("epoch 1");
    nvtxRangePushA("Forward-Backward");
    nvtxRangePushA("layer 3");
    usleep(100000);
    nvtxRangePop();
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = "checkpoint";
    if (nvtxRangePushEx(&a) != 2) return 3;
    usleep(100000);
    nvtxRangePop();
    usleep(100000);
    nvtxRangePop();
    for (int step = 0; step < 2; step++) {
        a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        a.message.registered = nvtxDomainRegisterStringA(domain, "optimizer_step");
        nvtxDomainRangePushEx(domain, &a);
        usleep(100000);
        nvtxDomainRangePop(domain);
    }
    nvtxRangePop();
    for (int i = 0; i < 1000; i++) nvtxRangePushA("rollout"); /* deeper than is kept */
    for (int i = 0; i < 1000; i++) nvtxRangePop();
    if (nvtxRangePop() >= 0) return 4;
    void *library = dlopen("./libother.so", RTLD_NOW); /* has a table of NVTX of its own */
    void (*other)(void) = library != NULL ? (void (*)(void))dlsym(library, "other") : NULL;
    if (other == NULL) return 5;
    other();
    return system("ls -l /proc/$PPID/fd | grep -c marks.csv >files.txt") < 0 ? 6 : 0;
}
EOC
"${CC:-cc}" -std=gnu11 -I"$include" -shared -fPIC -o libother.so other.c || fail "the library does not compile"
"${CC:-cc}" -std=gnu11 -I"$include" -o job job.c -ldl || fail "the program does not compile"
./job || true # without record: NVTX does nothing

env RANK=3 LOCAL_RANK=0 "$STOWAGE" record -q -o run.json --marks marks.csv -- ./job || fail "exit $?"
cut -d, -f2- marks.csv | sed -n '2,12p' >found.txt
cat >wanted.txt <<'EOW'
3,load
3,end
3,forward_backward
3,checkpoint
3,forward_backward
3,end
3,optimizer_step
3,end
3,optimizer_step
3,end
3,rollout
EOW
cmp found.txt wanted.txt || { cat marks.csv >&2; fail "other marks"; }
[ "$(grep -c rollout marks.csv)" = 511 ] || fail "ranges within ranges: $(grep -c rollout marks.csv)"
[ "$(tail -n 2 marks.csv | cut -d, -f2- | tr '\n' ' ')" = "3,weight_sync 3,end " ] || fail "marks of a second library"
[ "$(cat files.txt)" = 1 ] || fail "the file of marks is opened $(cat files.txt) times"
for phase in load forward_backward first_optimizer_step optimizer_step checkpoint; do
    grep -q "\"$phase\"" run.json || fail "$phase is not in the record"
done

# a program that closes what it does not know: its next files get no marks, which go on
cat >closes.c <<'EOC'
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>
int main(void) {
    nvtxRangePushA("load");
    for (int fd = 3; fd < 64; fd++) close(fd);
    for (int fd = 3; fd < 16; fd++) (void)!open("own.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    nvtxRangePop();
    nvtxRangePushA("checkpoint");
    usleep(200000);
    nvtxRangePop();
    return 0;
}
EOC
"${CC:-cc}" -std=gnu11 -I"$include" -o closes closes.c -ldl || fail "the program does not compile"
env RANK=0 LOCAL_RANK=0 "$STOWAGE" record -q -o closes.json --marks closed.csv -- ./closes || fail "exit $?"
[ ! -s own.txt ] || fail "marks were written into a file of the program: $(cat own.txt)"
[ "$(cut -d, -f3 closed.csv | tail -n 4 | tr '\n' ' ')" = "load end checkpoint end " ] || fail "marks: $(cat closed.csv)"

# a profiler that is there keeps its place
env NVTX_INJECTION64_PATH=/of/a/profiler "$STOWAGE" record -q -o other.json -- \
    sh -c 'sleep 0.2; echo "$NVTX_INJECTION64_PATH" >said.txt'
[ "$(cat said.txt)" = /of/a/profiler ] || fail "NVTX_INJECTION64_PATH was replaced"
