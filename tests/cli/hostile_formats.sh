#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names with markup, quotes, formulas and 10,000 characters, in every format: each file is still one of its format, texts and
# tables are shortened, JSON has all of it.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
command -v python3 >/dev/null 2>&1 || exit 77
tiny_cluster 2
export COLUMNS=80
bad='<script>alert("1")<|script><img src=x> '\''q'\'' `c` *b* [l](u) &lt; ]]>
=1'
mkdir -p "$bad" out
(cd "$bad" && tiny_model && mv tiny/config.json .)
long=$(awk 'BEGIN { printf "<b>\\\""; for (i = 0; i < 10000; i++) printf "r" }')
sed -e 's/^name: tiny/name: "=<script>\\"q\\" | [l](u)"/' -e 's/name: pretend/name: "@<b>gpu"/' tiny.yaml >bad.yaml
cat >roles.yaml <<END
engine: fsdp2
batch: {seq_len: 256}
roles:
- {name: "$long", kind: rollout, engine: vllm, gpu_memory_utilization: 0.3, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024}
END
awk 'BEGIN { printf "name,shape,dtype,group\n"; for (i = 0; i < 10000; i++) printf "t"; printf ",\"[2048, 4]\",F32,"
    for (i = 0; i < 10000; i++) printf "g"; printf "\n=cmd|<script>,\"[2048, 4]\",F32,@g\n" }' >list.csv

planned "$STOWAGE" plan --model "$bad" --cluster bad.yaml --run roles.yaml -o plan.json >out/plan.txt
planned "$STOWAGE" plan --model "$bad" --cluster bad.yaml --run roles.yaml --set batch.seq_len=128 -q -o other.json
planned "$STOWAGE" plan --model list.csv --cluster bad.yaml -q -o list.json
planned "$STOWAGE" simulate plan.json --trace out/trace.json --snapshot out/plan.pickle >out/simulate.txt
for format in txt md csv json html om; do
    "$STOWAGE" report plan.json -o out/one.$format
    [ $format = json ] || "$STOWAGE" report plan.json list.json -o out/two.$format
    "$STOWAGE" inspect list.csv -o out/list.$format 2>/dev/null || case $format in html | om) ;; *) fail "inspect -o $format" ;; esac
    [ $format = om ] || "$STOWAGE" diff plan.json other.json -o out/diff.$format
    [ $format = om ] || "$STOWAGE" sweep --model "$bad" --cluster bad.yaml --vary nodes=1,2 -q -o out/sweep.$format
done
"$STOWAGE" report plan.json >out/short.txt
"$STOWAGE" report plan.json --full >out/full.txt
"$STOWAGE" report plan.json list.json >out/compared.txt
"$STOWAGE" inspect list.csv >out/inspect.txt
"$STOWAGE" diff plan.json other.json >out/difference.txt
"$STOWAGE" report out/sweep.json >out/swept.txt

cat >check.py <<'P'
import csv, glob, json, pickle, re, shutil, subprocess, xml.etree.ElementTree as xml
def texts():
    for path in glob.glob("out/*.txt"):
        narrow = path.split("/")[1] not in ("one.txt", "two.txt", "diff.txt", "list.txt", "sweep.txt")  # files have no width
        for line in open(path).read().split("\n"):
            words = max((len(w) for w in line.split() if w.strip("-")), default=0)
            # a word of a table has half of the width at most, one of a sentence 160 characters
            assert words <= 160, f"{path}: a word of {words} characters"
            assert not narrow or len(line) <= 80 or words > 40, f"{path}: {line}"
            assert not line.startswith("=1"), f"{path}: a name begins a line"
def tables():
    for path in glob.glob("out/*.csv"):
        rows = list(csv.reader(open(path, newline="")))
        assert len(rows) > 1 and len({len(r) for r in rows}) == 1, path
        for cell in sum(rows, []):
            assert not re.match(r"[=@]|[-+][^0-9]", cell), f"{path}: {cell[:60]}"
def documents():
    for path in glob.glob("out/*.json"):
        json.load(open(path))
    assert "r" * 10000 in open("out/one.json").read(), "JSON has not the whole name"
    assert pickle.load(open("out/plan.pickle", "rb"))
def pages():
    for path in glob.glob("out/*.html"):
        text = open(path).read()
        assert len(re.findall("<script", text)) == 3 and "<img" not in text, path
        json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))
def metrics():
    for path in glob.glob("out/*.om"):
        text = open(path).read()
        assert text.endswith("\n# EOF\n"), path
        for line in text.splitlines():
            assert line.startswith("#") or re.fullmatch(r'[a-z_0-9]+\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+\} \S+', line), line
def pictures():
    found = glob.glob("out/*.svg")
    assert len(found) >= 5, found
    for path in found:
        tags = {element.tag.split("}")[1] for element in xml.parse(path).iter()}
        assert tags <= {"svg", "title", "rect", "path", "text"}, f"{path}: {tags}"
def markdown():
    if shutil.which("cmark-gfm") is None:
        return
    for path in glob.glob("out/*.md"):
        shown = subprocess.run(["cmark-gfm", "--unsafe", "-e", "table", path], capture_output=True, text=True, check=True).stdout
        assert "<script" not in shown and "src=x" not in re.sub("&lt;img src=x", "", shown) and 'href="u"' not in shown, path
        for table in re.findall("<table>.*?</table>", shown, re.S):
            widths = {len(re.findall("<t[hd][ >]", row)) for row in re.findall("<tr>.*?</tr>", table, re.S)}
            assert len(widths) == 1, f"{path}: {widths}"
for check in (texts, tables, documents, pages, metrics, pictures, markdown):
    check()
P
python3 -B check.py || fail "a format"
echo "hostile formats: ok"
