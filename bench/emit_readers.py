#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Emitted files as other programs read them: random plans of every framework that --emit knows, over
files with hostile values in keys that no plan changes. Scripts run under bash with stubs in place of
programs, with and without what users set where a script starts: every command gets the same arguments,
but for the changes that are named. YAML is read by PyYAML (and by ruamel.yaml where it is installed), JSON by Python. Every
value that was not to be changed is equal before and after, with its type; a changed one has the value
that the output names; every line of the file without a change is still there.
usage: emit_readers.py STOWAGE COUNT [SEED [FOLDER]]   exit 1: some file differs"""
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    yaml = None
try:
    import ruamel.yaml as ruamel
except ImportError:
    ruamel = None

# ---- hostile values ----
# Of YAML: as they stand after "key:", with N in place of the indent of the next line.
YAML = ['"1e5"', "'0o17'", "yes", "no", "on", "off", "~", "null", "", "2020-01-01", "1_000", "0x1F", "0o17", "017", "12:30:45",
        "1e5", "1.0e+5", "-0", "+1", ".5", "1.", "'it''s'", '"a \\"quoted\\" \\\\ back"', '"tab\\tnew\\nline \\u00e9 \\U0001F600"',
        "é ü 漢字 😀", "a#b", "'a # b'", '"a: b"', "a:b", "-x", "'- x'", "'[a'", "'{b'", "'@x'", "'%x'", "'`x`'", "'&x'", "'*x'", "'!x'",
        "$HOME/x", "'$(date)'", "${oc.env:HOME}", "x" * 3000, '"' + "y " * 800 + '"', "plain words   with blanks", "' lead and trail '",
        "|NYou are \"it\": # no commentN  deeper $HOMENN tail", ">NfoldedNlinesNNhere", "|-Nno line end", "|+NkeptN", ">-NaN bNc",
        '"a\\N  b"', "'two\\N\\N  lines'", "[1, \"2\", {a: b}, [x]]", "{a: 1, \"b c\": yes}", "[]", "{}", "[a, 'b', \"c\"]", "true", "False", "NULL",
        "N- aN- b: 1N  c: \"2\"", "\"\"", "''", "1.5e-3", "\"null\"", "'~'", "\"true\"", "0", "00", "1e-05", "\"\\x41\\/\\e\""]
YAML_COMMENTS = ["", "", "  # a comment", " # it's \"quoted\"", "  #\ttab", "   ", "  # $HOME: `x`"]
JSON_VALUES = ['"1e5"', '"\\u00e9 \\ud83d\\ude00 \\" \\\\ \\/ \\n\\t"', "null", "true", "1e5", "-0", "1.50", '""', '"a: b # c"', "[]", "{}",
               '[1, "2", {"a": null}]', '{"x y": [1.0, 2]}', '"${HOME}"', '"' + "z" * 3000 + '"', '"yes"', '"~"', "0.1e-7", '"[a, b]"']
WORDS = ["'$HOME/x'", '"$HOME/x"', "$HOME/x", '"run-$(date +%Y)"', "`echo a`", "'a  b'", '"a  b"', "a\\ b", "\\$x", "it\\'s", "'it'\\''s'",
         '"a \\"q\\" \\$5"', "$'a\\tb\\'c'", "a#b", "'# no comment'", '"é 漢字"', '"${UNSET_NAME:-d e}"', '"$1"', '"x$2"', "'*.bin'", "'a;b|c&d'",
         "'{a,b}'", "1e5", "0o17", "''", '"a\nb"', "'" + "w" * 3000 + "'", "'[\"x\",\"y\"]'", "a=b", "'~'", '"${0##*/}"', "--", "%d", "'\\n'"]


def hostile_yaml(rnd, indent):
    text = rnd.choice(YAML)
    pad = "\n" + " " * (indent + 2)
    block = text[:1] in "|>N"
    text = re.sub(r"N(?=[A-Za-z\-\"' N\\]|$|\b)", pad, text) if block or "\\N" in text else text
    text = text.replace("\\" + pad, pad) if "'two" in text else text
    return text + ("" if block else rnd.choice(YAML_COMMENTS))


# ---- files ----
def members(rnd, indent, prefix):
    """Lines of keys that no framework knows."""
    out = []
    for i in range(rnd.randint(0, 4)):
        key = rnd.choice([f"{prefix}{i}", f'"{prefix} {i}"', f"'{prefix}{i}.x'", f"{prefix}{i}_note"])
        out.append(" " * indent + f"{key}: {hostile_yaml(rnd, indent)}".rstrip("\0"))
        if rnd.random() < 0.3:
            out.append(" " * indent + "# about " + prefix)
        if rnd.random() < 0.2:
            out.append("")
    return out


def yaml_lines(rnd, tree, indent=0):
    out = []
    for key, value in tree.items():
        if rnd.random() < 0.2:
            out.append(" " * indent + f"# {key} # is next")
        if not isinstance(value, dict):
            out.append(" " * indent + f"{key}:{' ' * rnd.randint(1, 3)}{value}" + rnd.choice(YAML_COMMENTS))
        elif rnd.random() < 0.3 and all(not isinstance(v, dict) for v in value.values()):
            out.append(" " * indent + f"{key}: {{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}")
        else:
            out.append(" " * indent + f"{key}:" + rnd.choice(YAML_COMMENTS))
            step = rnd.choice([2, 2, 4])
            out += yaml_lines(rnd, value, indent + step) + members(rnd, indent + step, "own")
    return out


def yaml_text(rnd, tree):
    lines = members(rnd, 0, "top") + yaml_lines(rnd, tree) + members(rnd, 0, "end")
    kind = rnd.random()
    if kind < 0.02:
        lines.append("dup: 1\ndup: 2")
    elif kind < 0.04:
        lines.append("anchor: &a 1\nalias: *a")
    elif kind < 0.06:
        lines += ["---", "second: 1"]
    elif kind < 0.1:
        lines.insert(0, "---")
    end = "\r\n" if rnd.random() < 0.1 else "\n"
    text = "\n".join(lines).replace("\n", end)
    return text + ("" if rnd.random() < 0.1 else end)


def json_text(rnd, tree, depth=1):
    flat = rnd.random() < 0.3
    items = [(json.dumps(k), json_text(rnd, v, depth + 1) if isinstance(v, dict) else v) for k, v in tree.items()]
    for i in range(rnd.randint(0, 4)):
        name = rnd.choice([f"own{depth}{i}", f"a \"q\" {depth}{i}", f"\u00e9.{depth}{i}", f"tab\t{depth}{i}"])
        items.insert(rnd.randint(0, len(items)), (json.dumps(name), rnd.choice(JSON_VALUES)))
    colon = rnd.choice([": ", ":", " : "])
    if flat:
        return "{" + rnd.choice([", ", ","]).join(k + colon + v for k, v in items) + "}"
    pad = rnd.choice(["  ", "\t", "    "])
    return "{\n" + ",\n".join(pad * depth + k + colon + v for k, v in items) + "\n" + pad * (depth - 1) + "}"


def script_text(rnd, framework, assignments, arguments, command):
    """assignments: lines; arguments: words of the command, each with its value."""
    hydra = framework == "verl"
    before = ["mkdir -p logs  # here", "cd . || exit 1", "set -x", "umask 022", "trap 'echo bye' EXIT", "echo \"start $1\"",
              "if [ -d /nowhere ]; then echo there; fi", "# --tensor-model-parallel-size 7 is for others", "cat <<'END'\n--lr 5 \"\nEND",
              "unused() { echo never; }", "python3 convert.py --lr 5 --tensor-model-parallel-size 1 --num-layers 3 trainer.nnodes=4", "export OWN_TEXT='a  b'", "export OWN_NAME=\"$1 x\"", "ulimit -c 0",
              f"echo 'was: {command} {arguments[0]} {arguments[-1]}'", f"echo {rnd.choice(arguments)} | cat"]
    lines = [rnd.choice(["#!/bin/bash", "#!/usr/bin/env bash", "# launch"])]
    lines += ["EXTRA=${EXTRA:-}", "HOOK=${HOOK:-}"] + rnd.sample(before, rnd.randint(0, 5)) + assignments
    rnd.shuffle(arguments)
    for i, argument in enumerate(arguments):  # parts of values that are set where the script starts
        if rnd.random() < 0.1 and re.search(r"(batch-size|batch_size|_per_gpu)[ =]\d+$", argument):
            arguments[i] = argument + "$HOOK" if rnd.random() < 0.5 else re.sub(r"\d+$", lambda m: "${MBS:-" + m.group() + "}", argument)
    cut, shared = rnd.randint(0, len(arguments)), None
    if rnd.random() < 0.5 and cut > 1:
        lines += ["ARGS=("] + ["    " + a + rnd.choice(["", "", "  # one"]) for a in arguments[:cut]] + [")"]
        shared = '"${ARGS[@]}"'
    elif rnd.random() < 0.3 and cut > 1 and not any(c in "".join(arguments[:cut]) for c in "'\"\\$`*{ \t~#|" if c != " "):
        lines += ["TEXT=\"" + rnd.choice([" ", "\n  ", " \\\n "]).join(arguments[:cut]) + '"']
        shared = "$TEXT"
    if shared is not None:
        arguments = [shared] + arguments[cut:]
        other = rnd.choice(["", "", f"python3 tools/check_data.py {shared}   # must pass first", f"python3 tools/warm.py --own 1 {shared} --last 2", f"echo {shared}"])
        lines += [other] if other else []
    for hook in rnd.sample(["$EXTRA", "${EXTRA:-}", "${OWN_MORE_ARGS:-}"], rnd.choice([0, 0, 1, 2])):
        arguments.insert(rnd.randint(1, len(arguments)), hook)
    if rnd.random() < 0.3 and "=" not in command.split()[0]:
        lines.append(f'LAUNCH="{command}"')
        command = "$LAUNCH"
    prefixes = ["", "", "OWN_MORE=1 ", "exec "]
    joined = rnd.choice(prefixes) + command
    for a in arguments:
        joined += rnd.choice([" ", " \\\n    ", " \\\n"]) + a
    if joined.startswith("exec ") and framework == "ms-swift":
        joined = joined.replace("exec NPROC_PER_NODE=8", "exec env NPROC_PER_NODE=8")
    passed = ['"$@"', '"$@" ${EXTRA:-}'] if framework != "ms-swift" else [""]
    joined += rnd.choice(["", "", " " + rnd.choice(passed), " 2>&1 | cat", " > out.log", " \\\n"])
    last = ["echo done", "# the end", "wait", "python3 export.py --save x --bf16 --use-distributed-optimizer data.own=1", f'echo "was {lines[-1] if "LAUNCH" in lines[-1] else "x"} run"'.replace('""', '"').replace('="', "=").replace('" run', " run")]
    return "\n".join(lines + [joined] + rnd.sample(last, rnd.randint(0, 2))) + "\n"


def words(rnd, flags, form):
    return [form % (flag, rnd.choice(WORDS)) for flag in rnd.sample(flags, rnd.randint(0, len(flags)))]


def some(rnd, knobs):
    out = []
    for key, values in rnd.sample(list(knobs.items()), rnd.randint(0, min(3, len(knobs)))):
        out += rnd.choice(values).split("; ") if key == "" else [f"{key}={rnd.choice(values)}"]
    return out


def elsewhere(rnd):
    """On another machine a launch is another one: the command is written anew."""
    return ["nodes=2"] if rnd.random() < 0.15 else []


FSDP = {"recompute.granularity": ["full", "none"], "optimizer.clip_norm": ["1", "0.25", "none"]}
BATCH = {"batch.micro_batch": ["1", "2"], "batch.grad_accumulation": ["1", "2", "4"]}
MCORE = {"parallel.tp": ["1", "2", "4"], "parallel.cp": ["1", "2"], "recompute.granularity": ["none", "selective", "full"],
         "megatron.cross_entropy_fusion": ["true", "false"], "megatron.distributed_optimizer": ["true", "false"],
         "optimizer.clip_norm": ["1", "none"], "batch.micro_batch": ["1", "2"]}
SIZES = ["--num-layers 8", "--hidden-size 512", "--num-attention-heads 8", "--seq-length 1024", "--max-position-embeddings 4096", "--bf16",
         "--micro-batch-size 2", "--global-batch-size 64", "--use-distributed-optimizer", "--swiglu"]


def areal(rnd):
    tree = {"allocation_mode": "sglang:d4t2+fsdp:d8", "cluster": {"n_nodes": "2", "n_gpus_per_node": "8"},
            "gconfig": {"n_samples": "4", "max_new_tokens": "512"}, "train_dataset": {"batch_size": "64", "max_length": "512", "path": "x"},
            "sglang": {"mem_fraction_static": "0.7", "context_length": "4096"},
            "actor": {"path": "Qwen/Qwen3-0.6B", "dtype": "bfloat16", "mb_spec": {"max_tokens_per_mb": "4096"},
                      "optimizer": {"type": "adam", "lr": "1e-5"}, "kl_ctl": "0.0"}}
    knobs = {**FSDP, "roles.0.parallel.tp": ["1", "2", "4"], "roles.0.gpu_memory_utilization": ["0.6", "0.8"], "load.method":
             ["all_ranks_gpu", "rank0_broadcast"]}
    return "yaml", yaml_text(rnd, tree), ["nodes=2"] + some(rnd, knobs)


def llamafactory(rnd):
    tree = {"model_name_or_path": "Qwen/Qwen3-0.6B", "stage": "sft", "finetuning_type": "full", "bf16": "true", "cutoff_len": "1024",
            "deepspeed": "examples/deepspeed/ds_z3_config.json", "dataset": "x", "per_device_train_batch_size": "1",
            "gradient_accumulation_steps": "2"}
    return "yaml", yaml_text(rnd, tree), some(rnd, {**FSDP, **BATCH, "attention": ["sdpa", "eager"]})


def deepspeed(rnd):
    tree = {"zero_optimization": {"stage": rnd.choice(["2", "3"]), "reduce_bucket_size": "5e7", "offload_optimizer": {"device": '"none"'}},
            "bf16": {"enabled": "true"}, "train_micro_batch_size_per_gpu": rnd.choice(["1", '"auto"']), "steps_per_print": "1e1"}
    knobs = {**BATCH, "deepspeed.zero_stage": ["1", "2", "3"], "deepspeed.offload_optimizer": ["none", "cpu"],
             "optimizer.clip_norm": ["none", "0.5"], "deepspeed.reduce_bucket": ["1000000", "40000000"]}
    return "json", json_text(rnd, tree), ["batch.seq_len=1024", "recompute.granularity=full"] + some(rnd, knobs)


def verl_tree(rnd):
    tree = {"data": {"max_prompt_length": "512", "max_response_length": "512"}, "algorithm": {"adv_estimator": "grpo"},
            "actor_rollout_ref": {"model": {"path": "Qwen/Qwen3-0.6B"}, "rollout": {"name": "vllm", "n": "8"},
                                  "actor": {"strategy": "fsdp2", "ppo_micro_batch_size_per_gpu": "4", "ppo_mini_batch_size": "64"}},
            "trainer": {"n_gpus_per_node": "8", "nnodes": "1"}}
    return "yaml", yaml_text(rnd, tree), some(rnd, {**FSDP, "park.params": ["none", "host"], "roles.0.parallel.tp": ["1", "2"]})


def megatron_tree(rnd):
    tree = {"ENV_VARS": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "MODEL_ARGS":
            {a.split()[0]: (a.split() + ["true"])[1] for a in SIZES}}
    return "yaml", yaml_text(rnd, tree), some(rnd, MCORE)


def megatron(rnd):
    own = ["--save", "--load", "--tensorboard-dir", "--wandb-exp-name", "--vocab-file", "--merge-file", "--data-path", "--wandb-project"]
    assignments = ["TP=2", "OUT=\"$1\""] if rnd.random() < 0.5 else []
    arguments = list(SIZES) + words(rnd, own, rnd.choice(["%s %s", "%s %s", "%s=%s"]))
    if assignments:
        arguments += ["--tensor-model-parallel-size $TP", '--split "$OUT"']
    gpus = rnd.choice(["--nproc_per_node 8", "--nproc-per-node=8 --nnodes 1", "--nproc_per_node ${GPUS:-8}", "--nproc_per_node 4", "--nproc_per_node=4 --nnodes=1"])
    return "script", script_text(rnd, "megatron", assignments, arguments, f"torchrun {gpus} pretrain_gpt.py"), elsewhere(rnd) + some(rnd, MCORE)


def ms_swift(rnd):
    own = ["--dataset", "--output_dir", "--run_name", "--system", "--logging_dir"]
    arguments = ["--model Qwen/Qwen3-0.6B", "--torch_dtype bfloat16", "--deepspeed zero3", "--max_length 1024",
                 "--per_device_train_batch_size 2", "--tuner_type full"] + words(rnd, own, "%s %s")
    return "script", script_text(rnd, "ms-swift", [], arguments, "NPROC_PER_NODE=8 swift sft"), elsewhere(rnd) + some(
        rnd, {**FSDP, **BATCH, "attention": ["sdpa", "flash"]})


def verl(rnd):
    actor = "actor_rollout_ref.actor."
    own = ["trainer.project_name", "trainer.experiment_name", "data.train_files", "data.val_files", "+trainer.own", "trainer.default_local_dir"]
    arguments = ["data.max_prompt_length=512", "data.max_response_length=512", "algorithm.adv_estimator=grpo",
                 "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B", "actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8",
                 "trainer.nnodes=1", f"'{actor}strategy=fsdp2'", f"{actor}ppo_micro_batch_size_per_gpu=4", f"{actor}ppo_mini_batch_size=64",
                 "actor_rollout_ref.rollout.n=8"] + words(rnd, own, "%s=%s")
    knobs = {**FSDP, "park.params": ["none", "host"], "roles.0.parallel.tp": ["1", "2"], "fsdp.reshard_after_forward": ["true", "false"]}
    return "script", script_text(rnd, "verl", [], arguments, "python3 -m verl.trainer.main_ppo"), some(rnd, knobs)


KINDS = [("areal", areal), ("llamafactory", llamafactory), ("deepspeed", deepspeed), ("verl", verl_tree), ("megatron", megatron_tree),
         ("megatron", megatron), ("ms-swift", ms_swift), ("verl", verl)]


# ---- readers ----
class Differs(Exception):
    pass


def leaves(tree, path=""):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, tree


def same(a, b):
    return type(a) is type(b) and (a == b or a != a) and str(a) == str(b)


def says(value, text):
    """Is this the value that the output names?"""
    if isinstance(value, list):
        return [str(v) for v in value] == re.split(r"[ ,]+", text.strip("[] "))
    if isinstance(value, bool) or value is None:
        return text == {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (int, float)):
        return float(text) == value
    return value == text


def compare_trees(before, after, changes, plain):
    """plain: names lose dashes and underscores, as those of arguments."""
    def named(path):
        return path.split(".")[-1].lstrip("-").replace("_", "-") if plain and path.startswith("MODEL_ARGS") else path
    old, new = dict(leaves(before)), dict(leaves(after))
    for path, value in old.items():
        name = named(path)
        if name not in changes:
            if path not in new or not same(value, new[path]):
                raise Differs(f"{path}: {value!r} became {new.get(path)!r}")
        elif changes[name] is None and path in new:
            raise Differs(f"{path} is still there")
    for path, value in new.items():
        name = named(path)
        if path not in old and name not in changes and value != {}:
            raise Differs(f"{path} is new and not named")
        if changes.get(name) is not None and not says(value, changes[name]):
            raise Differs(f"{path} is {value!r}, the output says {changes[name]!r}")
    for name, value in changes.items():
        if value is not None and name not in {named(p) for p in new}:
            raise Differs(f"{name} {value} is named and not there")


def compare_lines(before, after, changes):
    """Lines without a changed key are there, in their order; something may be added to one."""
    names = [name.split(".")[-1].replace("_", "-") for name in changes]
    lines, place = after.splitlines(), 0
    for line in before.splitlines():
        if any(name in line.replace("_", "-") for name in names):
            continue
        wanted = line.strip().rstrip("," if names else "").rstrip("}" if names else "")
        for at in range(place, len(lines)):
            found = iter(lines[at])
            if lines[at] == line or names and all(c in found for c in wanted):
                place = at + (lines[at] == line)
                break
        else:
            raise Differs(f"the line is gone: {line!r}")


def read_json(text):
    def once(pairs):
        if len({k for k, _ in pairs}) != len(pairs):
            raise Differs("a key twice")
        return dict(pairs)
    return json.loads(text, object_pairs_hook=once)


def yaml_readers():
    if yaml is not None:
        yield "PyYAML", yaml.safe_load
    if ruamel is not None:
        yield "ruamel.yaml", lambda text: ruamel.YAML(typ="safe", pure=True).load(text)


STUB = """#!/bin/bash
{ printf '%s\\0' "$PWD" "${0##*/}" "$@"; printf 'END\\0'; env -0 | grep -z -E '^(OWN_|CUDA_|PYTORCH_|NNODES|NPROC)' | sort -z; printf 'NEXT\\0'; } >>"$ARGUMENTS"
"""
LAUNCHED = re.compile(r"pretrain_gpt\.py|verl\.trainer\.main_ppo|^sft$")
# What users set where a script starts: hooks of the scripts below, as arguments, parts of values, or values.
HOOKS = {"dashed": [{}, {"EXTRA": "--own-flag 7 --lr 9", "HOOK": "0", "NAME_HOOK": "x", "GPUS": "8", "OWN_LIST": "a b", "MBS": "2"}, {"EXTRA": "--tensor-model-parallel-size 1"}],
         "hydra": [{}, {"EXTRA": "trainer.own_hook=7 +data.more=9", "HOOK": "0", "NAME_HOOK": "x", "MBS": "4"}, {"EXTRA": "trainer.nnodes=1"}]}


def run_script(folder, path, hooks, arguments):
    """Commands that were started, [name, arguments...] each; the environment of the one that trains; the text that is printed."""
    out = os.path.join(folder, "arguments")
    if os.path.exists(out):
        os.remove(out)
    env = {"PATH": os.path.join(folder, "bin") + ":/usr/bin:/bin", "HOME": "/home/some one", "ARGUMENTS": out, "LC_ALL": "C.UTF-8", **hooks}
    run = subprocess.run(["bash", path] + arguments, cwd=folder, env=env, capture_output=True, timeout=20)
    if not os.path.exists(out):
        raise Differs(f"{path} starts nothing: {run.stderr[-300:]!r}")
    with open(out, "rb") as file:
        words = file.read().decode("utf-8", "surrogateescape").split("\0")[:-1]
    commands, launch_env, launch = [], [], None
    while words:
        end, following = words.index("END"), words.index("NEXT")
        commands.append(words[:end])
        if any(LAUNCHED.search(w) for w in words[1:end]):
            launch, launch_env = len(commands) - 1, sorted(words[end + 1:following])
        words = words[following + 1:]
    if launch is None:
        raise Differs(f"{path} trains nothing: {run.stderr[-300:]!r}")
    return commands, launch, launch_env, run.stdout.decode("utf-8", "surrogateescape").splitlines()


def name_of(word, hydra):
    if hydra:
        return word.split("=")[0].lstrip("+-") if "=" in word else None
    return word[2:].split("=")[0].replace("_", "-") if re.match(r"^--[A-Za-z]", word) else None


def explained(old, new, stated, hydra, adds):
    """Does `new` follow from `old` by the changes that the output names? Those of the script's own arguments are part of both."""
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = old[i] if i < len(old) else None, new[j] if j < len(new) else None
        before, after = stated.get(name_of(a, hydra) if a else None, (None, None))
        same_name = a is not None and b is not None and name_of(a, hydra) == name_of(b, hydra)
        if before is not None and after is not None and same_name and ("=" in a) == ("=" in b):
            values = (a.split("=", 1)[1:], b.split("=", 1)[1:], 1) if "=" in a else (
                old[i + 1:i + 1 + len(before.split())], new[j + 1:j + 1 + len(after.split())], 1 + len(before.split()))
            was, now = " ".join(values[0]), " ".join(values[1])
            own_end = was[len(before):] if was.startswith(before) else ""
            if now == after + own_end or now == after and not was.startswith(before):
                i, j = i + values[2], j + (1 if "=" in a else 1 + len(after.split()))
                continue
        switch, made = "true", stated.get(name_of(b, hydra) if b else None, ("", None))
        if a == b and not (adds and made[0] is None and made[1] != switch and old[i + 1:i + 2] != new[j + 1:j + 2]):
            i, j = i + 1, j + 1
            continue
        if a is not None and before is not None and after is None:
            i += 1 if "=" in a or before == switch else 1 + len(before.split())
            continue
        if adds and b is not None and made[0] is None and made[1] is not None:
            value = b.split("=", 1)[1] if "=" in b else " ".join(new[j + 1:j + 1 + len(made[1].split())])
            if value == made[1] or made[1] == switch:
                j += 1 if "=" in b or made[1] == switch else 1 + len(made[1].split())
                continue
        return False
    return True


def grouped(arguments, hydra):
    """Arguments by name; those of the launcher stay in their order."""
    groups, launch, name = collections.OrderedDict(), [], None
    for word in arguments:
        if hydra and re.match(r"^[+~]*[A-Za-z_][\w.@/-]*=", word):
            name = word.split("=")[0].lstrip("+")
            groups[name] = [word.split("=", 1)[1]]
        elif not hydra and re.match(r"^--[A-Za-z]", word):
            name = word[2:].split("=")[0].replace("_", "-")
            groups[name] = [word.split("=", 1)[1]] if "=" in word else []
        elif name is None or hydra:
            launch.append(word)
        else:
            groups[name].append(word)
    return launch, groups


def compare_anew(old, new, changes, hydra, framework):
    """A command that is written anew: arguments may have another order."""
    at = next((i for i, w in enumerate(old) if w.endswith(".py")), 1) + 1
    new_at = next((i for i, w in enumerate(new) if w.endswith(".py")), 1) + 1
    _, old_groups = grouped(old[at:], hydra)
    _, new_groups = grouped(new[new_at:], hydra)
    for groups in (old_groups, new_groups):  # the script's own arguments, which may now stand behind another one
        for values in groups.values():
            if values[-2:] == ["out dir", "tok x"]:
                del values[-2:]
    for name in set(old_groups) | set(new_groups):
        if name not in changes and old_groups.get(name) != new_groups.get(name):
            raise Differs(f"{name}: {old_groups.get(name)} became {new_groups.get(name)}")
    for name, value in changes.items():
        if name in ("nproc_per_node", "nnodes"):
            continue
        switch = framework == "megatron" and value in ("true", "false")
        expected = {"true": [], "false": None}[value] if switch else None if value is None else [value]
        found = new_groups.get(name)
        if found != expected and (found is None or expected is None or " ".join(found) != " ".join(expected)):
            raise Differs(f"{name} is {found}, the output says {value!r}")


def compare_scripts(framework, folder, before, after, notes):
    hydra, anew = framework == "verl", "is written anew" in notes
    changes, stated = changes_of(notes), stated_of(notes, not hydra, framework == "megatron")
    for hooks in HOOKS["hydra" if hydra else "dashed"]:
        for arguments in (["out dir", "tok x"], []):
            try:
                old, at, old_env, old_out = run_script(folder, before, hooks, arguments)
            except Differs:  # it ends without arguments
                continue
            new, new_at, new_env, new_out = run_script(folder, after, hooks, arguments)
            if anew:
                if not hooks.get("EXTRA"):
                    compare_anew(old[at], new[new_at], changes, hydra, framework)
                hook = "\0".join(hooks.get("EXTRA", "").split())
                if hook in "\0".join(old[at]) and hook not in "\0".join(new[new_at]):
                    raise Differs(f"the hook {hook!r} is lost")
                continue
            if len(old) != len(new) or at != new_at:
                raise Differs(f"{len(old)} commands became {len(new)}")
            for i, (a, b) in enumerate(zip(old, new)):
                if not explained(a, b, stated, hydra, i == at):
                    raise Differs(f"command {i}: {a} became {b}")
            if "CUDA_DEVICE_MAX_CONNECTIONS=1 is exported" in notes:
                new_env = [e for e in new_env if not e.startswith("CUDA_DEVICE_MAX")]
            if old_env != new_env:
                raise Differs(f"environment: {set(old_env) ^ set(new_env)}")
            if len(old_out) != len(new_out) or not all(explained(a.split(), b.split(), stated, hydra, False) for a, b in zip(old_out, new_out)):
                raise Differs(f"it prints other text: {old_out[-5:]} {new_out[-5:]}")


# ---- rounds ----
def changes_of(notes):
    """Of "- name value" and "+ name value"; values may go on in further lines."""
    out = {}
    for line in notes.splitlines():
        match = re.match(r"^([-+]) (?:--)?(\S+) ?(.*)$", line)
        if match is None:
            continue
        sign, name, value = match.groups()
        if sign == "+":
            out[name] = value
        else:
            out.setdefault(name, None)
    return out


def stated_of(notes, dashed, switches):
    """name: (before, after); None: it is not there."""
    out = {}
    for line in notes.splitlines():
        match = re.match(r"^([-+]) (?:--)?(\S+) ?(.*)$", line)
        if match is None:
            continue
        sign, name, value = match.groups()
        name = name.replace("_", "-") if dashed else name
        if switches and value == "false":
            value = None
        was = out.get(name, (None, None))
        out[name] = (value, was[1]) if sign == "-" else (was[0], value)
    return out


def one_round(stowage, rnd, folder, count):
    framework, make = rnd.choice([k for k in KINDS if os.environ.get("STW_EMIT_KINDS", "") in k[1].__name__])
    form, text, settings = make(rnd)
    if form == "yaml" and yaml is None:
        return
    suffix = {"yaml": "yaml", "json": "json", "script": "sh"}[form]
    before, after = os.path.join(folder, "before", f"file.{suffix}"), os.path.join(folder, "after", f"file.{suffix}")
    with open(before, "w", newline="", encoding="utf-8") as file:
        file.write(text)
    for old in os.listdir(os.path.dirname(after)):
        os.remove(os.path.join(folder, "after", old))
    valid = form != "yaml"
    for _, load in yaml_readers() if form == "yaml" else ():
        try:
            valid = isinstance(load(text), dict)
        except Exception:  # no YAML for that reader: ours has to refuse it, or keep it
            valid = False
            break
    command = [stowage, "plan", "--from", f"{framework}:{before}", "--cluster", "h100-80g-x8", "-q", "--emit", f"{framework}:{after}"]
    if framework == "deepspeed":
        command += ["--model", "Qwen3-0.6B"]
    for setting in settings:
        command += ["--set", setting]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "0"}, timeout=300)
    key = f"{framework} {form}"
    if not os.path.exists(after):
        if run.returncode not in (2, 3, 7):
            raise Differs(f"exit {run.returncode}: {run.stderr[-400:]}")
        count[key, "refused"] += 1
        if os.environ.get("STW_EMIT_VERBOSE"):
            print("refused:", key, run.stderr.strip().splitlines()[-1][:300])
        return
    notes = run.stdout
    changes = changes_of(notes)
    with open(after, newline="", encoding="utf-8") as file:
        written = file.read()
    if form == "script":
        compare_scripts(framework, folder, before, after, notes)
        if "is written anew" in notes:
            count[key, "command anew"] += 1
            return
    elif form == "json":
        compare_trees(read_json(text), read_json(written), changes, False)
    elif valid:
        for _, load in yaml_readers():
            compare_trees(load(text), load(written), changes, framework == "megatron")
    else:
        count[key, "not for others"] += 1
    if not changes and "is exported" not in notes and written != text:
        raise Differs("nothing changed, and other bytes")
    compare_lines(text, written, changes)
    count[key, "changed" if changes else "unchanged"] += 1


def main():
    stowage, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    folder = sys.argv[4] if len(sys.argv) > 4 else tempfile.mkdtemp(prefix="emit-readers-")
    for name in ("bin", "before", "after"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    for name in ("torchrun", "python3", "python", "swift", "megatron"):
        path = os.path.join(folder, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(STUB)
        os.chmod(path, 0o755)
    count, bad = collections.Counter(), 0
    for i in range(rounds):
        rnd = random.Random(seed * 1000003 + i)
        try:
            one_round(stowage, rnd, folder, count)
        except Exception as why:  # of a reader, too
            bad += 1
            print(f"round {i} of seed {seed}: {' '.join(str(why).split())}")
            for side in ("before", "after"):
                shutil.copytree(os.path.join(folder, side), os.path.join(folder, f"bad-{i}", side), dirs_exist_ok=True)
    for key in sorted({k for k, _ in count}):
        print(key + ": " + ", ".join(f"{n} {what}" for (k, what), n in sorted(count.items()) if k == key))
    print(f"{sum(count.values())} files, {bad} differ; readers: bash, json" + "".join(", " + name for name, _ in yaml_readers()))
    if len(sys.argv) <= 4 and bad == 0:
        shutil.rmtree(folder)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
