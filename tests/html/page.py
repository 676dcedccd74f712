# SPDX-License-Identifier: Apache-2.0
"""HTML reports in a headless Chromium: what is drawn is what the data says, in both widths and both themes, and nothing
in a name is code. Usage: page.py STOWAGE SOURCES; exit 77 without a Chromium."""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402

STOWAGE, SOURCES = sys.argv[1:3]
# Every text against what is behind it, by WCAG 2.2: contrast of at least 4.5 (3 for large print).
CONTRAST = """(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const at = walk.currentNode.parentElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
    if (!walk.currentNode.textContent.trim() || box.width === 0 || box.left < -500 || style.visibility === 'hidden' || /script|style|noscript/i.test(at.tagName)) continue;
    let behind = null;
    for (let e = at; e && !behind; e = e.parentElement) {
      const s = getComputedStyle(e), c = parse(s.backgroundColor);
      if (s.backgroundImage !== 'none' && !at.closest('.heat, .tiers')) { behind = null; break; }
      if (c[3] > 0.99) behind = c;
    }
    if (!behind) continue;
    const front = parse(at instanceof SVGElement ? style.fill : style.color), a = light(front.slice(0, 3)), b = light(behind.slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(style.fontSize) >= 24;
    if (at.tagName.toLowerCase() === 'text' && at.parentElement.querySelector('rect') && style.pointerEvents === 'none') continue;
    if (ratio < (large ? 3 : 4.5)) bad.push(at.tagName + '.' + (at.className.baseVal ?? at.className) + ' ' + ratio.toFixed(2) + ' ' + at.textContent.slice(0, 40));
  }
  return bad;
})()"""


def need(truth, what):
    if not truth:
        print("FAILED:", what)
        sys.exit(1)


def stowage(*arguments, codes=(0,)):
    done = subprocess.run([STOWAGE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    need(done.returncode in codes, f"stowage {arguments}: {done.returncode} {done.stderr}")


def data_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return json.loads(text.split('id="data">', 1)[1].split("</script>", 1)[0])


def look(page, path, what):
    """Both widths, both themes: nothing wrong in the console, nothing wider than the page, contrast."""
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        page.size(width, 900, dark)
        page.open(path)
        page.run("stowage.opened.slice(0, 2).forEach(open => open())")
        where = f"{what}, {width} pixels, {'dark' if dark else 'light'}"
        need(page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light"), where + ": theme")
        need(page.run("document.documentElement.scrollWidth") <= width, where + ": wider than the page")
        bad = page.run(CONTRAST)
        need(not bad, f"{where}: contrast {bad[:5]}")
        unnamed = page.run("[...document.querySelectorAll('button, select, a, [role=img], [role=region]')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).length")
        need(unnamed == 0, f"{where}: {unnamed} elements without a name")
        need(not page.problems, f"{where}: {page.problems[:3]}")
    page.size(1280, 900)
    page.open(path)


def memory_charts(page, items):
    """What uPlot has is what the JSON has; the peak is the simulated one."""
    page.run("stowage.opened.forEach(open => open())")
    charts = page.run("""new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => stowage.charts.filter(c => c.type === 'memory').map(c => { const p = c.plot, canvas = p.ctx.canvas;
        const pixels = p.ctx.getImageData(p.bbox.left + 2, p.bbox.top + p.bbox.height - 4, p.bbox.width - 4, 1).data, seen = new Set();
        for (let i = 0; i < pixels.length; i += 4) seen.add(pixels.slice(i, i + 3).join());
        return { names: c.names, data: p.data.map(d => [...d]), drawn: canvas.width > 0 && !(seen.size === 1 && seen.has('0,0,0')) }; }))""")
    expected = [m for item in items for m in item["charts"]["memory"]]
    need(len(charts) == len(expected) > 0, f"{len(charts)} charts of memory, expected {len(expected)}")
    for got, m in zip(charts, expected):
        need(got["drawn"], f"{m['of']}: nothing is drawn")
        need(sorted(got["names"]) == sorted(m["bytes"]), m["of"] + ": components")
        n = len(m["stretches"]) * m["buckets"]
        sums = [0] * n
        for name, drawn in zip(got["names"], reversed(got["data"][1:])):
            runs = m["bytes"][name]
            values = [v for count, v in zip(runs[::2], runs[1::2]) for _ in range(count)]
            sums = [a + b for a, b in zip(sums, values, strict=True)]
            need(drawn[:n] == sums, f"{m['of']}: {name} differs from the JSON")
        need(max(sums) <= m["peak_bytes"], m["of"] + ": above the peak")
        need(m["tier"] == "host" or max(sums) == m["peak_bytes"], m["of"] + ": the peak is lost")


def interact(page, items):
    """Hover, keys, zoom, sort, download, theme, print."""
    page.run("document.querySelector('.uplot .u-over').scrollIntoView({block: 'center'})")
    box = page.run("(() => { const r = document.querySelector('.uplot .u-over').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()")
    page.move(box[0] + box[2] * 0.6, box[1] + box[3] / 2)
    need("GiB" in page.run("[...document.querySelectorAll('.chart .tip')].filter(t => !t.hidden).map(t => t.textContent).join()"), "hover shows no bytes")
    page.run("document.querySelector('.chart[role=img]').focus()")
    page.key("ArrowRight")
    need("GiB" in page.run("document.querySelector('[aria-live]').textContent"), "keys read no bytes")
    before = page.run("(() => { const p = stowage.charts.find(c => c.type === 'memory').plot; return [p.scales.x.min, p.scales.x.max]; })()")
    for kind, at in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0] + box[2] * at, y=box[1] + 60, button="left", buttons=1, clickCount=1)
    time.sleep(0.3)
    after = page.run("(() => { const p = stowage.charts.find(c => c.type === 'memory').plot; return [p.scales.x.min, p.scales.x.max]; })()")
    need(after[1] - after[0] < 0.5 * (before[1] - before[0]), f"drag does not zoom: {before} {after}")
    page.run("document.querySelector('button[aria-label=\"Zoom in\"]').click()")
    need(page.run("(() => { const c = stowage.charts.find(c => c.type === 'streams'); return Math.abs((c.range[1] - c.range[0]) / c.source[c.phase].seconds - 0.5) < 0.01; })()"), "streams do not zoom")
    slices = page.run("(() => { const c = stowage.charts.find(c => c.type === 'streams'); document.querySelector('button[aria-label=\"All\"]').click(); return document.querySelectorAll('.chart rect').length; })()")
    need(slices == page.run("(() => { const c = stowage.charts.find(c => c.type === 'streams'); return Object.values(c.source[c.phase].streams).reduce((n, s) => n + s.length / 5, 0); })()"), f"{slices} slices are drawn")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    order = """(() => { const t = [...document.querySelectorAll('table')].find(t => /peak/.test(t.tHead?.textContent) && t.tHead.textContent.includes('limit')), c = [...t.tHead.rows[0].cells].findIndex(h => h.textContent === 'peak');
        t.tHead.rows[0].cells[c].querySelector('button').click(); return [t.tHead.rows[0].cells[c].getAttribute('aria-sort'), [...t.tBodies[0].rows].map(r => parseFloat(r.cells[c].textContent.replace('< ', '')))]; })()"""
    for direction in ("ascending", "descending"):
        said, values = page.run(order)
        need(said == direction and values == sorted(values, reverse=direction == "descending") and len(values) > 1, f"sort {said} {values}")
    page.run("window.saved = []; URL.createObjectURL = b => { window.saved.push(b.text()); return '#'; }; HTMLAnchorElement.prototype.click = () => {};")
    page.run("[...document.querySelectorAll('button.csv')].find(b => b.getAttribute('aria-label').includes('figures of')).click()")
    need(page.run("window.saved[0]") == items[0]["csv"], "the CSV differs")
    page.run("document.querySelector('.top button').click()")
    need(page.run("document.documentElement.dataset.theme") == "dark", "the button does not switch the theme")
    for name, width, height in (("a4.pdf", 8.27, 11.69), ("letter.pdf", 8.5, 11)):
        page.pdf(name, width, height)
        with open(name, "rb") as file:
            need(file.read(5) == b"%PDF-", name)
    need(page.run("document.documentElement.dataset.theme") == "dark", "printing changes the theme")
    need(not page.problems, str(page.problems[:3]))


def make_plans():
    base = ["--cluster", "2 x h100-80g-x8", "--set", "engine=fsdp2", "--time-limit", "5", "-q"]
    stowage("plan", "--model", "Qwen3-8B", *base, "-o", "a.json", codes=(0, 9))
    stowage("plan", "--model", "Qwen3-8B", "--cluster", "1 x h200-x8", *base[2:], "-o", "b.json", codes=(0, 9))
    stowage("plan", "--model", "Qwen3-32B", "--cluster", "h100-80g-x8:1", *base[2:], "-o", "c.json", codes=(4,))
    stowage("plan", "--model", "Qwen3-8B", "--cluster", "h200-x8", "--run", SOURCES + "/models/examples/rl-qwen3-8b-hybrid.yaml", "-q", "-o", "rl.json", codes=(0, 9))


def hostile(page):
    """A model, a file and a cluster whose names are code."""
    name = "<script>window.hacked=1</script>\"'&amp;\n<img src=x onerror=window.hacked=1>"
    folder = name.replace("/", "\u2215")
    os.makedirs(folder, exist_ok=True)
    with open(SOURCES + "/models/zoo/Qwen3-8B.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(folder + "/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    stowage("plan", "--model", folder + "/config.json", "--cluster", "h100-80g-x8", "--set", "engine=fsdp2", "--time-limit", "5", "-q", "-o", folder + ".json", codes=(0, 9))
    stowage("report", folder + ".json", "a.json", "-o", "hostile.html")
    with open("hostile.html", encoding="utf-8") as file:
        text = file.read()
    need(text.count("<script") == 3 and "<img" not in text.split("<script>")[0], "a name became an element")
    page.open("hostile.html")
    page.run("stowage.opened.forEach(open => open())")
    need(page.run("window.hacked === undefined && document.querySelectorAll('img').length === 0"), "a name was executed")
    need("<script>window.hacked" in page.run("document.body.innerText"), "the name is not shown")
    need(not page.problems, str(page.problems[:3]))


def main():
    path = browser.find()
    if path is None:
        print("no Chromium")
        return 77
    make_plans()
    stowage("report", "a.json", "-o", "one.html")
    stowage("report", "a.json", "-o", "again.html")
    with open("one.html", "rb") as one, open("again.html", "rb") as again:
        need(one.read().replace(b"one.html", b"again.html") == again.read(), "equal input, other bytes")
    document = subprocess.run([STOWAGE, "report", "a.json", "--json"], stdout=subprocess.PIPE, check=True).stdout
    need(data_of("one.html")["items"][0]["document"] == json.loads(document), "the document is not that of --json")
    stowage("report", "a.json", "b.json", "c.json", "rl.json", "-o", "several.html")
    stowage("sweep", "--model", "Qwen3-8B", "--cluster", "h200-x8", "--vary", "nodes=1,2", "--vary", "batch.seq_len=4096,8192,1048576", "--time-limit", "5", "-q", "-o", "sweep.html")
    stowage("size", "--model", "Qwen3-8B", "--gpus", "h100-80g=2.99,h200=3.5", "--time-limit", "5", "-q", "-o", "size.html", codes=(0, 4, 5, 9))
    stowage("diff", "a.json", "b.json", "-q", "-o", "diff.html")
    page = browser.Browser(path)
    try:
        for name in ("one", "several", "sweep", "size", "diff"):
            look(page, name + ".html", name)
        for name in ("one", "several"):
            page.open(name + ".html")
            memory_charts(page, data_of(name + ".html")["items"])
        page.open("one.html")
        interact(page, data_of("one.html")["items"])
        page.open("sweep.html")
        cells = page.run("[...document.querySelectorAll('.heat tbody td b')].map(b => b.textContent)")
        rows = data_of("sweep.html")["items"][0]["document"]["rows"]
        need(len(cells) == len(rows) and sum(c[0].isdigit() for c in cells) == sum(r["gpu_hours_per_1e9_tokens"] is not None and r["verdict"] in ("fits", "at_risk") for r in rows), f"heat map {cells}")
        hostile(page)
        stowage("plan", "--model", "Llama-3.1-70B", "--cluster", "1024 x h200-x8", "--set", "engine=megatron", "--set", "parallel.pp=8", "--set", "parallel.tp=4", "--time-limit", "10", "-q", "-o", "large.json", codes=(0, 4, 9))
        stowage("report", "large.json", "-o", "large.html")
        need(os.path.getsize("large.html") < 5e6, "1,024 nodes: more than 5 MB")
        page.open("large.html")
        took = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
        need(took < 2000, f"1,024 nodes: opened in {took} ms")
        print(f"1,024 nodes: {os.path.getsize('large.html')} bytes, opened in {took:.0f} ms")
    finally:
        page.close()
    return 0


sys.exit(main())
