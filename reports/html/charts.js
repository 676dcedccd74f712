/* SPDX-License-Identifier: Apache-2.0 */
/* Charts of the HTML report: elements, formats and drawings. Nothing here knows the order of a page
 * (report.js). Text from files reaches the document by textContent alone. */
"use strict";
const stowage = { charts: [], redraw: [], opened: [] };

/* ---- elements and formats ---- */
function el(name, attributes, ...children) {
    const svg = /^(svg|g|rect|line|path|circle|text|title|polyline)$/.test(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false) continue;
        if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
        else if (key === "style") node.style.cssText = value;
        else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
    return node;
}
const known = x => typeof x === "number" && isFinite(x);
const GIB = 1073741824;
const gib = bytes => known(bytes) ? (bytes / GIB).toFixed(2) + " GiB" : "none";
function number(x) {
    if (!known(x)) return "unknown";
    if (Math.abs(x) >= 100) return Math.round(x).toLocaleString("en-US");
    return String(+x.toPrecision(3));
}
function seconds(s) {
    if (!known(s)) return "unknown";
    if (s >= 7200) return number(s / 3600) + " h";
    if (s >= 120) return number(s / 60) + " min";
    if (s >= 1) return number(s) + " s";
    return s >= 1e-3 ? number(s * 1e3) + " ms" : number(s * 1e6) + " \u00b5s";
}
/* For large print: three digits are enough. */
const about = bytes => bytes >= 100 * GIB ? Math.round(bytes / GIB).toLocaleString("en-US") + " GiB" : gib(bytes);
const percent = x => known(x) ? (100 * x).toFixed(1) + "%" : "";
const words = name => name.replace(/_/g, " ");
const VERDICTS = { fits: "\u2713 fits", at_risk: "! at risk", does_not_fit: "\u2715 does not fit", unknown: "? unknown",
    refused: "\u2715 refused", time_limit: "? time limit", failed: "\u2715 failed", not_planned: "\u2013 not planned",
    within: "\u2713 within", outside: "\u2715 outside", not_judged: "\u2013 not judged", not_measured: "\u2013 not measured" };
const badge = verdict => el("span", { class: "badge " + verdict }, VERDICTS[verdict] || verdict);

/* Okabe and Ito's colours for what is large, muted ones for the rest. The order is that of stacks,
 * from below. */
const COLOURS = { context: "#5f6670", process: "#5f6670", role_process: "#84725e", comm: "#9aa1ab",
    params: "#0072b2", master: "#3d4fb0", grads: "#e69f00", exp_avg: "#009e73", exp_avg_sq: "#7ad3b4",
    activations: "#d55e00", logits: "#cc79a7", unshard: "#f0e442", reduce: "#a6761d", stage: "#8c8cb8",
    kv_cache: "#882255", rollout_weights: "#56b4e9", rollout_work: "#c9a4d8", load_staging: "#b5cf6b",
    page_lock_rounding: "#c7c7c7", page_lock_cache: "#aec7b8", checkpoint_staging: "#dbb98e",
    object_store: "#9c4f4f", data_loaders: "#6d8f5a", slack: "#d8dce2" };
const ORDER = Object.keys(COLOURS);
const by_order = names => [...names].sort((a, b) => (ORDER.indexOf(a) + 99) % 99 - (ORDER.indexOf(b) + 99) % 99);
const swatch = colour => el("i", { style: "background:" + colour, "aria-hidden": "true" });
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* ---- tables ---- */
const UNITS = { B: 1, KiB: 1024, MiB: 1048576, GiB: GIB, TiB: GIB * 1024, ns: 1e-9, us: 1e-6, "\u00b5s": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400 };
function value_of(cell) {
    const m = /^(?:< )?(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([A-Za-z\u00b5]+)?/.exec(cell);
    return m ? parseFloat(m[1].replace(/,/g, "")) * (UNITS[m[2]] || 1) : null;
}
function download(name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
}
const csv_text = c => /^[=@]|^[-+][^0-9]/.test(c) ? "'" + c : c; /* what a spreadsheet would compute */
const csv_cell = c => /[",\n]/.test(c) ? '"' + c.replace(/"/g, '""') + '"' : c;
const to_csv = rows => rows.map(r => r.map(c => csv_cell(csv_text(String(c)))).join(",")).join("\n") + "\n";
const csv_button = (name, text) => el("button", { type: "button", class: "csv", "aria-label": "Download CSV: " + name,
    onclick: () => download(name.replace(/[^A-Za-z0-9]+/g, "-").slice(0, 80) + ".csv", text(), "text/csv") }, "Download CSV");

/* A table that sorts. Heads that begin with ">" are of figures; cells are texts or elements. */
function table(name, heads, rows) {
    const drawn = heads.map((h, c) => h === "" && rows.length > 0 && rows.every(r => !r[c] || /^\[[#.]/.test(r[c])));
    const cell = (r, c) => typeof r[c] === "object" && r[c] !== null ? r[c].textContent : String(r[c] ?? "");
    const body = el("tbody");
    const fill = list => body.replaceChildren(...list.map(r => el("tr", null, heads.map((h, c) => {
        if (drawn[c]) {
            const filled = (r[c].match(/#/g) || []).length * 5;
            return el("td", { "aria-hidden": "true", style: "min-width:90px" }, r[c] ? el("div", { class: "bar" },
                el("i", { class: /OVER/.test(r[c]) ? "over" : "used", style: `width:${filled}%` })) : null);
        }
        const content = typeof r[c] === "object" && r[c] !== null ? r[c] : cell(r, c);
        return el("td", { class: h.startsWith(">") ? "num" : cell(r, c).length > 24 ? "text" : "short" }, content);
    }))));
    const ths = heads.map((h, c) => drawn[c] ? el("td") : el("th", { scope: "col", class: h.startsWith(">") ? "num" : null },
        el("button", { type: "button", onclick: () => sort(c) }, h.replace(/^>/, "") || "of")));
    function sort(c) {
        const down = ths[c].getAttribute("aria-sort") === "ascending";
        ths.forEach(th => th.removeAttribute("aria-sort"));
        ths[c].setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = r => heads[c].startsWith(">") ? value_of(cell(r, c)) : cell(r, c);
        const sorted = [...rows].sort((a, b) => {
            const x = key(a), y = key(b);
            if (x === null || y === null) return (x === null) - (y === null);
            const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
            return down ? -order : order;
        });
        fill(sorted);
    }
    fill(rows);
    const shown = heads.map((h, c) => c).filter(c => !drawn[c]);
    return el("div", null, el("div", { class: "tools" }, el("strong", null, name), csv_button(name,
        () => to_csv([shown.map(c => heads[c].replace(/^>/, "")), ...rows.map(r => shown.map(c => cell(r, c)))]))),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, el("table", null, el("thead", null, el("tr", null, ths)), body)));
}

/* ---- memory over time ---- */
const phase_of = s => words(s.phase) + (s.role !== "trainer" ? " (" + s.role + ")" : "");

/* Times of the buckets: movements of equal width, or seconds. */
function memory_times(m, real) {
    const x = [], spans = memory_spans(m, real);
    for (const [from, to] of spans)
        for (let b = 0; b < m.buckets; b++) x.push(from + b / m.buckets * (to - from));
    x.push(spans.at(-1)[1]);
    return x;
}
/* Movements without seconds take none. */
function memory_spans(m, real) {
    let at = 0;
    return m.stretches.map((s, i) => {
        if (!real) return [i, i + 1];
        const from = at;
        at += known(s.end_s) ? s.end_s - s.start_s : 0;
        return [from, at];
    });
}
function memory_sums(m, names) {
    const n = m.stretches.length * m.buckets, sums = [];
    let below = new Array(n).fill(0);
    for (const name of names) {
        below = below.map((v, i) => v + m.bytes[name][i]);
        sums.push([...below, below[n - 1]]);
    }
    return sums;
}
/* The JSON has [COUNT, BYTES, COUNT, BYTES, ...]. */
function expanded(m) {
    const bytes = {};
    for (const [name, runs] of Object.entries(m.bytes)) {
        bytes[name] = [];
        for (let i = 0; i < runs.length; i += 2) for (let n = 0; n < runs[i]; n++) bytes[name].push(runs[i + 1]);
    }
    return { ...m, bytes };
}
function memory_chart(stated, title) {
    const m = expanded(stated);
    const names = by_order(Object.keys(m.bytes)), n = m.stretches.length * m.buckets;
    const sums = memory_sums(m, names), totals = sums.at(-1);
    const timed = m.stretches.some(s => known(s.end_s));
    const limit = Math.min(...m.limits.map(l => l.bytes));
    const peaks = m.stretches.map((s, i) => {
        let at = i * m.buckets;
        for (let b = at; b < (i + 1) * m.buckets; b++) if (totals[b] > totals[at]) at = b;
        return at;
    });
    const top = peaks.reduce((a, b) => totals[b] > totals[a] ? b : a, peaks[0]);
    const top_phase = phase_of(m.stretches[Math.floor(top / m.buckets)]);
    const where = el("div", { class: "chart" }), tip = el("div", { class: "tip", hidden: true });
    const live = el("p", { class: "soft", "aria-live": "polite", style: "min-height:1.5em;margin:2px 0" });
    let real = false, whole = !isFinite(limit) || totals[top] > 0.2 * limit, plot = null;

    const text_at = i => {
        const s = m.stretches[Math.min(m.stretches.length - 1, Math.floor(i / m.buckets))];
        const at = known(s.start_s) && known(s.end_s) ? ", " + seconds(s.start_s + (i % m.buckets) / m.buckets * (s.end_s - s.start_s)) : "";
        return phase_of(s) + at + ": " + gib(totals[i]) + (isFinite(limit) ? ", " + (totals[i] > limit ? gib(totals[i] - limit) + " over the limit" : gib(limit - totals[i]) + " free") : "");
    };
    const show_tip = u => {
        const i = u.cursor.idx;
        tip.hidden = i === null || i === undefined || i >= n;
        if (tip.hidden) return;
        const parts = names.filter(c => m.bytes[c][i] > 0).sort((a, b) => m.bytes[b][i] - m.bytes[a][i]).slice(0, 12);
        tip.replaceChildren(el("strong", null, text_at(i)), el("table", null, parts.map(c => el("tr", null,
            el("td", null, el("span", { class: "swatch", style: "background:" + COLOURS[c] }), words(c)), el("td", { class: "num" }, gib(m.bytes[c][i]))))));
        const left = u.cursor.left + u.over.offsetLeft, wide = where.clientWidth;
        tip.style.whiteSpace = wide < 500 ? "normal" : "nowrap";
        tip.style.left = Math.max(0, left + 14 + tip.offsetWidth > wide ? Math.min(left - 14 - tip.offsetWidth, wide - tip.offsetWidth) : left + 14) + "px";
        tip.style.top = "34px";
    };
    const draw_marks = u => {
        const c = u.ctx, ratio = devicePixelRatio || 1, { left, top: up, width, height } = u.bbox;
        c.save();
        c.beginPath();
        c.rect(left, up - 24 * ratio, width, height + 24 * ratio);
        c.clip();
        c.font = `${12 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
        const spans = memory_spans(m, real);
        m.stretches.forEach((s, i) => {
            const from = u.valToPos(spans[i][0], "x", true), to = u.valToPos(spans[i][1], "x", true);
            c.strokeStyle = css("--strong");
            c.lineWidth = ratio;
            c.setLineDash([]);
            c.beginPath(); c.moveTo(from, up - 20 * ratio); c.lineTo(from, up + height); c.stroke();
            const label = `${i + 1} ${phase_of(s)}`, short = String(i + 1), room = Math.min(to, left + width) - Math.max(from, left) - 8 * ratio;
            const text = c.measureText(label).width <= room ? label : c.measureText(short).width <= room ? short : "";
            c.fillStyle = css("--text");
            c.textAlign = "left";
            c.fillText(text, Math.max(from, left) + 4 * ratio, up - 7 * ratio);
            if (!known(s.reserved_bytes) || !(to > from)) return;
            const y = u.valToPos(s.reserved_bytes, "y", true);
            c.setLineDash([2 * ratio, 3 * ratio]);
            c.lineWidth = 2 * ratio;
            c.strokeStyle = css("--text");
            c.beginPath(); c.moveTo(from, y); c.lineTo(to, y); c.stroke();
        });
        c.setLineDash([8 * ratio, 4 * ratio]);
        let last = Infinity;
        [...m.limits].sort((a, b) => a.bytes - b.bytes).forEach(l => {
            const y = u.valToPos(l.bytes, "y", true);
            if (y < up) return;
            c.strokeStyle = css("--bad");
            c.lineWidth = 2 * ratio;
            c.beginPath(); c.moveTo(left, y); c.lineTo(left + width, y); c.stroke();
            const label = `${l.name}: ${gib(l.bytes)}`, size = c.measureText(label).width;
            const at = Math.min(y + 15 * ratio, last - 15 * ratio);
            last = at;
            c.fillStyle = css("--card");
            c.fillRect(left + width - size - 10 * ratio, at - 12 * ratio, size + 8 * ratio, 15 * ratio);
            c.fillStyle = css("--bad");
            c.textAlign = "right";
            c.fillText(label, left + width - 6 * ratio, at);
        });
        c.restore();
    };
    const draw = () => {
        if (plot) plot.destroy();
        const highest = Math.max(totals[top], ...m.stretches.map(s => s.reserved_bytes || 0));
        const most = 1.08 * (whole ? Math.max(highest, ...m.limits.filter(l => l.bytes <= 3 * Math.max(limit, highest)).map(l => l.bytes)) : highest);
        const series = names.map((c, i) => ({ label: c, fill: COLOURS[c], stroke: css("--card"), width: 1,
            paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } })).reverse();
        plot = new uPlot({
            width: Math.max(260, where.clientWidth), height: where.clientWidth < 500 ? 280 : 330, padding: [24, 8, 0, 0],
            cursor: { drag: { x: true, y: false }, points: { show: false }, y: false }, legend: { show: false },
            scales: { x: { time: false }, y: { range: [0, most || 1] } },
            axes: [{ stroke: css("--text"), grid: { show: false }, ticks: { stroke: css("--line") }, font: "12px system-ui, sans-serif",
                values: (u, ticks) => real ? ticks.map(seconds) : [], splits: real ? undefined : () => [], size: real ? 34 : 6 },
            { stroke: css("--text"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") }, font: "12px system-ui, sans-serif", size: 66,
                splits: (u, i, low, high) => { const steps = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], step = (steps.find(s => high / GIB / s <= 7) || 4096) * GIB, out = []; for (let v = Math.ceil(low / step) * step; v <= high; v += step) out.push(v); return out; },
                values: (u, ticks) => ticks.map(t => t / GIB + " GiB") }],
            series: [{ label: "time" }, ...series], hooks: { draw: [draw_marks], setCursor: [show_tip] },
        }, [memory_times(m, real), ...[...sums].reverse()], where);
        chart.plot = plot;
    };
    const keys = event => {
        const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: m.buckets, PageUp: -m.buckets }[event.key];
        if (!step) return;
        event.preventDefault();
        const i = Math.max(0, Math.min(n - 1, (plot.cursor.idx ?? (step > 0 ? -1 : n)) + step));
        plot.setCursor({ left: plot.valToPos(plot.data[0][i], "x"), top: 20 });
        live.textContent = text_at(i);
    };
    const toggle = (label, get, set) => {
        const button = el("button", { type: "button", "aria-pressed": String(get()), onclick: () => { set(!get()); button.setAttribute("aria-pressed", String(get())); draw(); } }, label);
        return button;
    };
    Object.assign(where, { tabIndex: 0 });
    where.setAttribute("role", "img");
    where.setAttribute("aria-label", `${title}. Highest ${gib(totals[top])} in ${top_phase}` + m.limits.map(l => `, ${l.name} ${gib(l.bytes)}`).join("") + ". Arrow keys read values; a table follows.");
    where.addEventListener("keydown", keys);
    where.append(tip);
    const chart = { type: "memory", source: stated, names, draw, plot: null };
    stowage.charts.push(chart);
    stowage.redraw.push(() => where.clientWidth > 0 && draw());
    const rows = m.stretches.map((s, i) => [`${i + 1} ${phase_of(s)}`, known(s.end_s) ? seconds(s.end_s - s.start_s) : "not predicted", gib(totals[peaks[i]]),
        known(s.reserved_bytes) ? gib(s.reserved_bytes) : "", ...names.map(c => m.bytes[c][peaks[i]] > 0 ? gib(m.bytes[c][peaks[i]]) : "")]);
    const reserved = Math.max(0, ...m.stretches.map(s => s.reserved_bytes || 0));
    const over = m.limits.filter(l => l.bytes > 3 * totals[top]);
    return el("figure", null, el("h3", null, title), el("p", { class: "soft" },
        `Highest: ${gib(totals[top])} in ${top_phase}` + (reserved > totals[top] ? ` (with what the allocator reserves ${gib(reserved)}, ${gib(Math.abs(limit - reserved))} ${reserved > limit ? "over" : "below"} the limit).` : isFinite(limit) ? totals[top] > limit ? `, ${gib(totals[top] - limit)} over the limit.` : `; ${gib(limit - totals[top])} below the limit.` : ".") +
        (m.peak_bytes > totals[top] ? ` The plan counts ${gib(m.peak_bytes)}: its ranks' highest moments of a phase, as if they were one moment.` : "") +
        (m.tier === "host" && over.length > 0 ? " " + over.map(l => `The ${l.name} is ${gib(l.bytes)}`).join("; ") + "." : "")),
        el("div", { class: "tools" }, timed ? toggle("Time to scale", () => real, v => { real = v; }) : null,
            toggle("Show up to the limits", () => whole, v => { whole = v; }),
            el("button", { type: "button", onclick: draw }, "Whole time"), el("span", { class: "soft" }, "Drag to zoom.")), where, live,
        el("ul", { class: "key" }, [...names].reverse().map(c => el("li", null, swatch(COLOURS[c] || "#888"), words(c))),
            m.stretches.some(s => known(s.reserved_bytes)) ? el("li", null, el("span", { style: "letter-spacing:1px", "aria-hidden": "true" }, "\u2508\u2508 "), "reserved by the allocator") : null),
        el("p", { class: "soft" }, m.stretches.map((s, i) => `${i + 1} ${phase_of(s)}: ${known(s.end_s) ? seconds(s.end_s - s.start_s) : "seconds not predicted"}`).join(" \u00b7 ")),
        el("details", null, el("summary", null, "The chart as a table: what is held at the highest moment of each phase"),
            table(title, ["phase", ">seconds", ">highest", ">reserved", ...names.map(c => ">" + words(c))], rows)));
}

/* ---- streams ---- */
const STREAM_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];
function gantt(streams) {
    const where = el("div", { class: "chart" }), tip = el("div", { class: "tip", hidden: true }), live = el("p", { class: "soft", "aria-live": "polite", style: "min-height:1.5em;margin:2px 0" });
    let at = Math.max(0, streams.findIndex(s => s.phase === "forward_backward")), from = 0, to = streams[at].seconds;
    const chart = { type: "streams", source: streams, get phase() { return at; }, get range() { return [from, to]; }, draw };
    function draw() {
        const s = streams[at], lanes = Object.entries(s.streams), wide = Math.max(260, where.clientWidth), label = wide < 500 ? 62 : 90, row = 30;
        const height = lanes.length * row + 30, x = t => label + (t - from) / (to - from) * (wide - label - 6);
        const svg = el("svg", { viewBox: `0 0 ${wide} ${height}`, height, "aria-hidden": "true" });
        const ticks = wide < 500 ? 3 : 6;
        for (let i = 0; i <= ticks; i++) {
            const t = from + i / ticks * (to - from);
            svg.append(el("line", { x1: x(t), x2: x(t), y1: 0, y2: height - 24, stroke: css("--line") }),
                el("text", { x: x(t), y: height - 8, "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle", class: "soft" }, seconds(t)));
        }
        lanes.forEach(([name, slices], i) => {
            svg.append(el("text", { x: 0, y: i * row + 20 }, name));
            for (let k = 0; k < slices.length; k += 5) {
                const [start, end, what, n, busy] = [slices[k] / 1e9, slices[k + 1] / 1e9, slices[k + 2], slices[k + 3], slices[k + 4] / 1e9];
                if (end < from || start > to) continue;
                const a = Math.max(x(start), label), b = Math.min(x(end), wide - 6), width = Math.max(b - a, 0.6);
                const rect = el("rect", { x: a, y: i * row + 5, width, height: row - 9, fill: STREAM_COLOURS[i % 8], "fill-opacity": n > 1 ? 0.3 + 0.6 * Math.min(1, busy / (end - start)) : 0.95 });
                const said = `${name}: ${what}${n > 1 ? ` and ${n - 1} more operations, busy ${percent(busy / (end - start))}` : ""}, ${seconds(start)} to ${seconds(end)} (${seconds(end - start)})`;
                rect.addEventListener("pointermove", event => {
                    tip.hidden = false;
                    tip.textContent = said;
                    tip.style.whiteSpace = "normal";
                    const box = where.getBoundingClientRect();
                    tip.style.left = Math.min(event.clientX - box.left + 12, box.width - Math.min(340, tip.offsetWidth)) + "px";
                    tip.style.top = event.clientY - box.top + 16 + "px";
                });
                rect.addEventListener("pointerleave", () => { tip.hidden = true; });
                svg.append(rect);
                if (width > what.length * 7.5) svg.append(el("text", { x: a + 4, y: i * row + 20, style: "fill:#000;pointer-events:none;font-size:12px" }, what));
            }
        });
        where.replaceChildren(svg, tip);
    }
    function zoom(factor, middle) {
        const centre = middle ?? (from + to) / 2, all = streams[at].seconds, span = Math.min(all, Math.max(all / 1e5, (to - from) * factor));
        from = Math.max(0, Math.min(all - span, centre - (centre - from) / (to - from) * span));
        to = from + span;
        draw();
        live.textContent = `${words(streams[at].phase)}, ${seconds(from)} to ${seconds(to)}`;
    }
    const move = share => { const by = share * (to - from), all = streams[at].seconds, d = Math.max(-from, Math.min(all - to, by)); from += d; to += d; zoom(1); };
    where.tabIndex = 0;
    where.setAttribute("role", "img");
    where.setAttribute("aria-label", "Operations by stream: " + streams.map(s => `${words(s.phase)} ${seconds(s.seconds)} on ${Object.keys(s.streams).join(", ")}`).join("; ") + ". Plus and minus zoom, arrow keys move.");
    where.addEventListener("keydown", event => {
        const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "0": () => zoom(1e9) }[event.key];
        if (act) { event.preventDefault(); act(); }
    });
    where.addEventListener("wheel", event => {
        if (!event.ctrlKey && document.activeElement !== where) return;
        event.preventDefault();
        const box = where.getBoundingClientRect(), label = box.width < 500 ? 62 : 90;
        zoom(event.deltaY > 0 ? 1.25 : 0.8, from + Math.max(0, (event.clientX - box.left - label) / (box.width - label - 6)) * (to - from));
    }, { passive: false });
    let grabbed = null;
    where.addEventListener("pointerdown", event => { grabbed = event.clientX; });
    where.addEventListener("pointermove", event => {
        if (grabbed === null || event.buttons === 0) { grabbed = null; return; }
        move((grabbed - event.clientX) / Math.max(1, where.clientWidth));
        grabbed = event.clientX;
    });
    stowage.charts.push(chart);
    stowage.redraw.push(() => where.clientWidth > 0 && draw());
    const select = el("select", { "aria-label": "Phase", onchange: () => { at = +select.value; from = 0; to = streams[at].seconds; draw(); } },
        streams.map((s, i) => el("option", { value: i, selected: i === at }, `${phase_of(s)} (${seconds(s.seconds)})`)));
    const button = (label, text, act) => el("button", { type: "button", "aria-label": label, onclick: act }, text);
    return el("figure", null, el("h3", null, "Streams of the largest rank"), el("div", { class: "tools" }, select, button("Zoom in", "+", () => zoom(0.5)), button("Zoom out", "\u2212", () => zoom(2)),
        button("Earlier", "\u2190", () => move(-0.2)), button("Later", "\u2192", () => move(0.2)), button("All", "All", () => zoom(1e9)), el("span", { class: "soft" }, "Wheel zooms when the chart has the focus; drag moves.")), where, live,
        el("p", { class: "soft" }, "One pass of the phase. Pale slices stand for many short operations; the paler, the more gaps. stowage simulate --trace has every operation."));
}

/* ---- bars, scatter, heat map ---- */
/* Parts of a whole, as one bar: [[NAME, VALUE, COLOUR, TEXT], ...]. */
function stacked_bar(title, parts) {
    const all = parts.reduce((sum, p) => sum + p[1], 0);
    stowage.charts.push({ type: "bar", source: parts });
    return el("div", { role: "img", "aria-label": title + ": " + parts.map(p => `${p[0]} ${p[3]}`).join(", ") },
        el("div", { class: "bar", style: "height:26px" }, parts.map(p => el("i", { style: `width:${100 * p[1] / all}%;background:${p[2]}`, title: `${p[0]}: ${p[3]}` }))),
        el("ul", { class: "key" }, parts.map(p => el("li", null, swatch(p[2]), `${p[0]}: ${p[3]} (${percent(p[1] / all)})`))));
}
/* Points [X, Y, TEXT, stressed]; X and Y on logarithmic scales. `kinds`: what stressed points and the
 * others are. A line joins the stressed ones where they are a front. */
function scatter(title, x_name, y_name, points, kinds, is_front) {
    const where = el("div", { class: "chart" }), tip = el("div", { class: "tip", hidden: true });
    function draw() {
        const wide = Math.max(280, where.clientWidth), high = 300, left = 62, bottom = 44;
        const range = i => { const v = points.map(p => p[i]), a = Math.min(...v), b = Math.max(...v); return a === b ? [a / 1.5, b * 1.5] : [a * (a / b) ** 0.08, b * (b / a) ** 0.08]; };
        const [x0, x1] = range(0), [y0, y1] = range(1);
        const x = v => left + Math.log(v / x0) / Math.log(x1 / x0) * (wide - left - 12), y = v => high - bottom - Math.log(v / y0) / Math.log(y1 / y0) * (high - bottom - 12);
        const svg = el("svg", { viewBox: `0 0 ${wide} ${high}`, height: high });
        [...new Set(points.map(p => p[0]))].sort((a, b) => a - b).forEach((v, i, all) => {
            svg.append(el("line", { x1: x(v), x2: x(v), y1: 8, y2: high - bottom, stroke: css("--line") }));
            if (all.length < wide / 60 || i % 2 === 0) svg.append(el("text", { x: x(v), y: high - bottom + 17, "text-anchor": "middle", class: "soft" }, number(v)));
        });
        for (let i = 0; i <= 4; i++) {
            const v = y0 * (y1 / y0) ** (i / 4);
            svg.append(el("line", { x1: left, x2: wide - 12, y1: y(v), y2: y(v), stroke: css("--line") }), el("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", class: "soft" }, number(v)));
        }
        svg.append(el("text", { x: (wide + left) / 2, y: high - 6, "text-anchor": "middle" }, x_name), el("text", { x: 0, y: 0, transform: `translate(13 ${(high - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y_name));
        const front = points.filter(p => p[3]).sort((a, b) => a[0] - b[0]);
        if (is_front) svg.append(el("polyline", { points: front.map(p => x(p[0]) + "," + y(p[1])).join(" "), fill: "none", stroke: css("--text"), "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
        for (const p of points) {
            const dot = el("circle", { cx: x(p[0]), cy: y(p[1]), r: p[3] ? 7 : 5, fill: p[3] ? "#d55e00" : "#0072b2", stroke: css("--card"), "stroke-width": 1.5, tabindex: 0, role: "img", "aria-label": p[2] });
            const show = () => { tip.hidden = false; tip.textContent = p[2]; tip.style.whiteSpace = "normal"; tip.style.left = Math.max(0, Math.min(x(p[0]) + 12, wide - 260)) + "px"; tip.style.top = y(p[1]) + 12 + "px"; };
            for (const kind of ["pointerenter", "focus"]) dot.addEventListener(kind, show);
            for (const kind of ["pointerleave", "blur"]) dot.addEventListener(kind, () => { tip.hidden = true; });
            svg.append(dot);
        }
        where.replaceChildren(svg, tip);
    }
    stowage.charts.push({ type: "scatter", source: points, draw });
    stowage.redraw.push(() => where.clientWidth > 0 && draw());
    return el("figure", null, el("h3", null, title), where, el("ul", { class: "key" }, el("li", null, swatch("#d55e00"), kinds[0]), el("li", null, swatch("#0072b2"), kinds[1])));
}
/* One hue from pale to strong: dark text stays readable on all of it. */
const heat_colour = share => `hsl(205 70% ${92 - 37 * share}%)`;
