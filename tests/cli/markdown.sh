#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Markdown reports: the order of the terminal, pictures beside the file, links that lead to them, equal bytes of equal input,
# and GitHub's renderer where it is installed (cmark-gfm).
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
for seq in 128 256; do
    planned "$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set batch.seq_len=$seq -q -o $seq.json
done
code=0
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set node.gpu.memory=70MiB --set placement.moments=gpu --time-limit 5 -q -o over.json || code=$?
[ $code = 4 ] || fail "a plan that does not fit"
mkdir -p first again
for folder in first again; do
    "$STOWAGE" report 128.json -o "$folder/a report (1).md"
    "$STOWAGE" report 128.json 256.json over.json -o $folder/several.md
done
diff -r first again || fail "equal input, other bytes"

# links: as many as there are pictures, each to a file
[ "$(cat first/*.md | grep -c '^!\[.*\](.*\.svg)$')" = "$(find first -name '*.svg' | wc -l)" ] || fail "pictures without a link"
for file in first/*.md; do
    sed -n 's/^!\[.*\](\([^)]*\))$/\1/p' "$file" >links.txt
    [ -s links.txt ] || fail "$file has no pictures"
    while read -r link; do
        # shellcheck disable=SC2059 # the codes of a URL
        name=$(printf "$(echo "$link" | sed 's/%\([0-9A-F][0-9A-F]\)/\\x\1/g')") 2>/dev/null
        case $name in *\\x*) name=$(echo "$link" | sed 's/%20/ /g;s/%28/(/g;s/%29/)/g') ;; esac # dash has no \x
        [ -s "first/$name" ] || fail "$file: no file $link"
    done <links.txt
done

# the order of the terminal
"$STOWAGE" report 128.json | grep '^[A-Z]' | sed 1d >terminal.txt
grep '^## ' "first/a report (1).md" | sed 's/^## //' >headings.txt
grep -v "Where everything is" terminal.txt | head -n 3 >order.txt
head -n "$(wc -l <order.txt)" headings.txt | cmp - order.txt || fail "another order than on the terminal"
head -n 3 first/several.md | grep -q "2 of 3 plans fit\." || fail "several plans are not compared first"

if command -v cmark-gfm >/dev/null 2>&1; then
    for file in first/*.md; do
        cmark-gfm --validate-utf8 -e table "$file" >shown.html
        [ "$(grep -c '<table>' shown.html)" -ge 5 ] || fail "$file: tables"
        grep -q '^<p>|\|<p>#' shown.html && fail "$file: a table or a heading is a paragraph"
        [ "$(grep -o '<img ' shown.html | wc -l)" = "$(grep -c '^!\[' "$file")" ] || fail "$file: pictures"
    done
fi

# memory over time: phases in the order of the table, in pictures and on pages
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set engine=fsdp2 --set batch.seq_len=1024 -q -o ordered.json || fail "ordered: exit code $?"
for suffix in txt md html; do "$STOWAGE" report --full ordered.json -o ordered.$suffix >/dev/null || fail "ordered.$suffix"; done
python3 - <<'EOP' || fail "memory over time has another order than the table"
import json, re
names = "load forward_backward first_optimizer_step optimizer_step".split()
table = [l.split()[0] for l in open("ordered.txt") if l.split()[:1] and l.split()[0] in names][:4]
drawn = re.findall(r'text-anchor="middle"[^>]*>([a-z_.]+)</text>', open("ordered-memory.svg").read())[:4]
page = open("ordered.html").read()
at = page.index("stowage.page/1")
data = json.loads(page[page.index(">", page.rindex("<script", 0, at)) + 1:page.index("</script>", at)])
assert table == names, table
assert len(drawn) == 4 and all(n.startswith(d.rstrip(".")) for n, d in zip(names, drawn)), drawn
for memory in data["items"][0]["charts"]["memory"]:
    assert [s["phase"] for s in memory["stretches"]] == names, memory["stretches"]
    ends = [s["end_s"] for s in memory["stretches"]]
    assert ends == sorted(ends) and [s["start_s"] for s in memory["stretches"][1:]] == ends[:-1], ends
EOP

echo "markdown: ok"
