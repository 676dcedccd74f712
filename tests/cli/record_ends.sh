#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage record` and how a job ends: signals are the job's, a short job has a record, and a record whose file is refused is
# kept elsewhere. Nothing here waits for a time: jobs and recorder wait for each other.
. "$(dirname "$0")/_lib.sh"
command -v python3 >/dev/null 2>&1 || exit 77
rm -rf temporary
mkdir temporary
export TMPDIR="$PWD/temporary"

# Every signal that ends a process by default: the job gets it, ends as it wants, and its record is there. Each is sent to the
# recorder once the job runs. RTMIN+1 stands for the real-time ones.
cat >signals.py <<'EOF'
import json, os, signal, subprocess, sys
stowage = sys.argv[1]
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM,
           signal.SIGTERM, signal.SIGSTKFLT, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR,
           signal.SIGRTMIN + 1]
# sigwait: the job says which one it got, without a race
waits = """
import os, signal, sys
mine = signal.valid_signals() - {signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, mine)
open("ready", "w").write(str(os.getpid()))
print(int(signal.sigwait(mine)), flush=True)
sys.exit(7)
"""
dies = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
open("ready", "w").write(str(os.getpid()))
signal.pause()
"""
def restore(): # what a shell that starts tests in the background ignores
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
for caught in (True, False):
    for number in numbers:
        for path in ("ready", "run.json"):
            if os.path.exists(path):
                os.remove(path)
        recorder = subprocess.Popen([stowage, "record", "-q", "-o", "run.json", "--", sys.executable, "-c", waits if caught else dies],
                                    stdout=subprocess.PIPE, text=True, preexec_fn=restore)
        while not os.path.exists("ready") or not open("ready").read():
            os.sched_yield()
        recorder.send_signal(number)
        out, _ = recorder.communicate()
        expected = 7 if caught else 128 + number
        assert recorder.returncode == expected, (number, recorder.returncode, expected)
        assert not caught or out == "%d\n" % number, (number, out)
        assert json.load(open("run.json"))["source"] == "external", number
        try:
            os.kill(int(open("ready").read()), 0)
        except ProcessLookupError:
            continue
        raise AssertionError("signal %d orphaned the job" % number)
EOF
python3 signals.py "$STOWAGE" || fail "a signal was not passed on"

# A job gets the mask and the dispositions that the recorder was started with, though the recorder has its own.
cat >dispositions.py <<'EOF'
import signal, subprocess, sys
def begin():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
def lines(command):
    text = subprocess.run(command + ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"], stdout=subprocess.PIPE, text=True,
                          preexec_fn=begin, check=True).stdout
    own = 3 << 31 # signals 32 and 33 are the C library's
    return [hex(int(line.split()[1], 16) & ~own) for line in text.splitlines()]
plain, recorded = lines([]), lines([sys.argv[1], "record", "-q", "-o", "run.json", "--"])
assert plain == recorded and plain, (plain, recorded)
EOF
python3 dispositions.py "$STOWAGE" || fail "the job has other signals than without record"

# nohup: what is ignored stays ignored, for both
cat >ignored.py <<'EOF'
import signal, subprocess, sys
code = """
import os, signal
assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
os.kill(os.getppid(), signal.SIGHUP)
"""
done = subprocess.run([sys.argv[1], "record", "-q", "-o", "run.json", "--", sys.executable, "-c", code],
                      preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
assert done.returncode == 0, done.returncode
EOF
python3 ignored.py "$STOWAGE" || fail "an ignored signal is not ignored"

# A job that catches a signal which the recorder was started to ignore gets it all the same.
cat >catches.py <<'EOF'
import os, signal, subprocess, sys
code = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGQUIT])
signal.signal(signal.SIGINT, signal.SIG_DFL), signal.signal(signal.SIGQUIT, signal.SIG_DFL)
print("ready", flush=True)
sys.exit(40 + signal.sigwait([signal.SIGINT, signal.SIGQUIT]))
"""
for number in (signal.SIGINT, signal.SIGQUIT):
    recorder = subprocess.Popen([sys.argv[1], "record", "-q", "-o", "run.json", "--", sys.executable, "-c", code], stdout=subprocess.PIPE,
                                text=True, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    assert recorder.stdout.readline() == "ready\n"
    recorder.send_signal(number)
    recorder.communicate()
    assert recorder.returncode == 40 + number, (number, recorder.returncode)
EOF
python3 catches.py "$STOWAGE" || fail "a signal that the recorder ignores was not passed on"

# Bytes of a job that failed before a phase was over are lower bounds; of the others they are judged.
planned "$STOWAGE" plan -m GPT-2 -c h200-x1 --set engine=fsdp2 -o early.plan.json >/dev/null
for exit in 0 9; do
    "$STOWAGE" record -q -o early.json -- sh -c "
        printf '1,0,load\n1,0,,allocated,1000\n' >>\"\$STOWAGE_MARKS\"
        printf '2,0,forward_backward\n2,0,,allocated,1000\n' >>\"\$STOWAGE_MARKS\"; exit $exit" 2>early.err || true
    COLUMNS=0 "$STOWAGE" validate -v early.plan.json early.json >early.txt 2>&1 || true
    grep 'GPU allocated' early.txt | grep forward_backward | grep -q "$([ $exit = 0 ] && echo OUTSIDE || echo 'not judged')" ||
        fail "exit $exit: $(cat early.txt)"
    [ $exit = 0 ] || grep -q "the command ended with exit code 9: a lower bound" early.txt || fail "no reason: $(cat early.txt)"
    grep 'GPU allocated' early.txt | grep load | grep -q OUTSIDE || fail "a phase that was over is not judged: $(cat early.txt)"
done

# A job that ends at once has a record and its exit code, sampled or not; validate says if there is nothing to compare.
for _ in 1 2 3 4 5 6 7 8; do
    for job in "exit 0" "exit 7" 'kill -9 $$'; do
        rm -f short.json short.csv
        code=0
        "$STOWAGE" record --every 60s -o short.json --samples short.csv -- sh -c "$job" 2>short.err || code=$?
        case $job in "exit 0") wanted=0 ;; "exit 7") wanted=7 ;; *) wanted=137 ;; esac
        [ "$code" = "$wanted" ] || fail "exit $code, expected $wanted: $(cat short.err)"
        [ "$(member short.json schema)" = stowage.run/1 ] || fail "a short job has no record: $(cat short.err)"
        [ -e short.csv ] || fail "a short job has no file of samples"
        grep -q ',host,' short.csv || grep -q "the record has no bytes" short.err ||
            fail "no word of a record without bytes: $(cat short.err)"
    done
done
"$STOWAGE" record -q -o marks.json -- sh -c 'echo 1,0,load >>"$STOWAGE_MARKS"; echo 2,0,end >>"$STOWAGE_MARKS"'
grep -q '"load": 1' marks.json || fail "marks of a short job are lost: $(cat marks.json)"

# A folder that vanishes: the recording is kept elsewhere, the exit code is the job's, and both are said.
for wanted in 5 0; do
    mkdir gone
    code=0
    "$STOWAGE" record -q -o gone/run.json --samples gone/samples.csv -- sh -c "rm -rf gone; exit $wanted" 2>gone.err || code=$?
    [ "$code" = "$wanted" ] || [ "$wanted $code" = "0 3" ] || fail "exit $code, the job's was $wanted"
    grep -q "the command ended with exit code $wanted after" gone.err || fail "the exit code is not said: $(cat gone.err)"
    for name in run.json samples.csv; do
        kept=$(sed -n "s|.*gone/$name: cannot be written: its folder does not exist; it is kept in ||p" gone.err)
        case $kept in "$TMPDIR"/stowage-record-*) ;; *) fail "not said where $name is: $(cat gone.err)" ;; esac
        [ -s "$kept" ] || fail "$name is not in $kept"
        [ "$name" != run.json ] || [ "$(member "$kept" schema)" = stowage.run/1 ] || fail "what is kept is no record"
    done
    rm -rf temporary/stowage-record-*
done

# The same of a file that cannot be written for another reason: one that became a folder.
code=0
"$STOWAGE" record -q -o became.json -- sh -c "mkdir became.json; exit 4" 2>became.err || code=$?
[ "$code" = 4 ] || fail "exit $code, the job's was 4"
grep -q "it is kept in $TMPDIR" became.err || fail "not kept: $(cat became.err)"
rmdir became.json
rm -rf temporary/stowage-record-*
[ -z "$(ls temporary)" ] || fail "left behind: $(ls temporary)"
