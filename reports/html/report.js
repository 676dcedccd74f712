/* SPDX-License-Identifier: Apache-2.0 */
/* The HTML report: which part stands where. Data is the JSON document of the page (stowage.page/1):
 * of each item its document as --json prints it, what its report says as blocks, and charts. */
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
stowage.data = data;

/* ---- blocks: what the report says ---- */
/* {part: [block, ...]}, and the blocks before any part under "". */
function parts_of(blocks) {
    const parts = {};
    let part = "";
    for (const b of blocks) {
        if (b[0] === "part") part = b[1];
        else (parts[part] ||= []).push(b);
    }
    return parts;
}
function render(blocks, fallback) {
    const out = [];
    let list = null, heading = fallback;
    for (const b of blocks || []) {
        if (b[0] !== "item") list = null;
        if (b[0] === "title" || b[0] === "heading") heading = b[1];
        if (b[0] === "title") out.push(el("h2", null, b[1]));
        else if (b[0] === "heading") out.push(el("h3", null, b[1]));
        else if (b[0] === "line") out.push(el("p", null, b[1]));
        else if (b[0] === "item") {
            if (!list) out.push(list = el("ul"));
            list.append(el("li", null, b[1]));
        } else if (b[0] === "table") {
            if (out.length > 0 && out.at(-1).tagName === "H3") out.pop();
            out.push(table(heading, b[1], b[2]));
        }
    }
    return out;
}
const lines = (blocks, kind = "line") => (blocks || []).filter(b => b[0] === kind).map(b => b[1]);
const tables = blocks => (blocks || []).filter(b => b[0] === "table");

/* ---- a plan ---- */
function meter(used, held, limit) {
    const share = x => Math.max(0, Math.min(100, 100 * x / limit));
    const over = used > limit || held > limit;
    return el("div", { class: "bar", "aria-hidden": "true" }, el("i", { class: used > limit ? "over" : "used", style: `width:${share(used)}%` }),
        held > used ? el("i", { class: over ? "over" : "held", style: `width:${share(held) - share(used)}%` }) : null);
}
function card(label, value, more, extra) {
    return el("div", { class: "card" }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), extra, more ? el("div", { class: "more" }, more) : null);
}
const free = (used, limit) => !known(limit) ? gib(used) + ", no limit" : used > limit ? about(used - limit) + " over" : about(limit - used) + " free";
const most_gpu = f => Math.max(f.gpu_peak_bytes, f.gpu_reserved_bytes || 0);
/* What is left of a GPU: beside what the allocator reserves, unless that is more than there is. */
const gpu_free = f => free(most_gpu(f) > f.gpu_limit_bytes ? f.gpu_peak_bytes : most_gpu(f), f.gpu_limit_bytes);
function cards(f) {
    const out = [];
    const gpu = most_gpu(f), torn = f.gpu_reserved_bytes > f.gpu_limit_bytes && f.gpu_peak_bytes <= f.gpu_limit_bytes;
    out.push(card("GPU memory, fullest GPU", gpu_free(f),
        `${gib(f.gpu_peak_bytes)} allocated${f.gpu_reserved_bytes ? `, ${gib(f.gpu_reserved_bytes)} reserved` : ""} of ${gib(f.gpu_limit_bytes)} (${percent(gpu / f.gpu_limit_bytes)}), in ${words(f.gpu_phase || "")}` + (torn ? `. The allocator would reserve ${gib(f.gpu_reserved_bytes - f.gpu_limit_bytes)} more than there is.` : ""),
        meter(f.gpu_peak_bytes, f.gpu_reserved_bytes, f.gpu_limit_bytes)));
    out.push(card("Host memory, fullest node", known(f.host_limit_bytes) ? free(f.host_peak_bytes, f.host_limit_bytes) : gib(f.host_peak_bytes),
        known(f.host_limit_bytes) ? `${gib(f.host_peak_bytes)} of ${gib(f.host_limit_bytes)} (${percent(f.host_peak_bytes / f.host_limit_bytes)}), in ${words(f.host_phase || "")}` : "no limit",
        known(f.host_limit_bytes) ? meter(f.host_peak_bytes, 0, f.host_limit_bytes) : null));
    if (known(f.iteration_s)) out.push(card("One iteration", seconds(f.iteration_s), known(f.tokens_per_iteration) ? `${number(f.tokens_per_iteration)} tokens on ${number(f.gpus)} GPUs` : ""));
    if (known(f.tokens_per_s)) out.push(card("Tokens per second", number(f.tokens_per_s), `${number(f.tokens_per_s / f.gpus)} per GPU` + (known(f.mfu) ? `; ${number(f.model_flops_per_s_per_gpu / 1e12)} TFLOP/s per GPU, MFU ${percent(f.mfu)}` : "")));
    if (known(f.gpu_hours_per_1e9_tokens)) out.push(card("GPU-hours per 10\u2079 tokens", number(f.gpu_hours_per_1e9_tokens), known(f.usd_per_1e9_tokens) ? `${number(f.usd_per_1e9_tokens)} USD` : "no price given (node.price_per_gpu_hour)"));
    return el("div", { class: "cards" }, out);
}
function section(id, title, ...content) {
    const filled = content.flat().filter(c => c !== null && c !== undefined);
    return filled.length === 0 ? null : el("section", { "aria-labelledby": id }, el("h2", { id }, title), filled);
}
function layers(f, plan) {
    if (f.activations.length === 0) return [];
    const recompute = (plan.run || {}).recompute || {}, cells = [], counts = {};
    let index = 0;
    for (const [group, act, n] of f.activations) {
        counts[act] = (counts[act] || 0) + n;
        for (let i = 0; i < n; i++, index++) cells.push(el("span", { class: act, title: `block ${index}, ${group}: ${act}` }));
    }
    const modules = Array.isArray(recompute.modules) && recompute.modules.length > 0 ? " of " + recompute.modules.join(", ") : "";
    const how = { keep: "kept", offload: "offloaded to the host", recompute: "recomputed, " + ({ full: "the whole block", auto: "the whole block (granularity auto)", block: "the whole block", selective: "modules" + modules }[recompute.granularity] || recompute.granularity || "the whole block") };
    const say = Object.entries(counts).map(([act, n]) => `${n} ${how[act] || act}`).join(", ");
    return [el("div", null, "activations, block by block"), el("div", null, el("div", { class: "blocks", role: "img", "aria-label": `Activations of ${index} blocks: ${say}` }, cells),
        el("ul", { class: "key" }, Object.keys(counts).map(act => el("li", null, el("i", { class: act }), `${counts[act]} ${how[act] || act}`))))];
}
function placement(f, plan) {
    const all = f.state.reduce((sum, s) => sum + s.parameters, 0) || 1, tier = { gpu: "GPU", host: "host", nvme: "NVMe", parked: "parked on the host between uses" };
    const row = part => [el("div", null, { params: "parameters", grads: "gradients", moments: "moments, master" }[part]),
        el("div", { class: "tiers", role: "img", "aria-label": f.state.map(s => `${percent(s.parameters / all)} ${tier[s[part]]}, ${s.update}`).join("; ") },
            f.state.map(s => el("span", { class: "t-" + s[part], style: `flex:${Math.max(s.parameters, all / 200)} 1 0` , title: `${percent(s.parameters / all)}: ${tier[s[part]]}, update ${s.update}` }, `${tier[s[part]]}${f.state.length > 1 ? " " + percent(s.parameters / all) : ""} \u00b7 ${s.update}`)))];
    stowage.charts.push({ type: "placement", source: f });
    return el("figure", { class: "wide" }, el("h3", null, "Where the state of the largest rank is, and how it is updated"), el("div", { class: "map" },
        f.state.length > 0 ? ["params", "grads", "moments"].map(row).flat() : null, layers(f, plan),
        f.roles.map(r => [el("div", null, `${r.role} (${r.kind}, ${r.engine}${r.with ? ", on the nodes of " + r.with : ""})`), el("div", null, `per GPU: ${r.holds}`)]).flat()),
        f.frozen_parameters > 0 ? el("p", { class: "soft" }, `${number(f.frozen_parameters)} parameters are frozen: no gradients, no moments.`) : null);
}
function where_seconds(f) {
    const palette = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933"];
    const spent = f.phases.filter(p => known(p.time_s) && p.passes > 0), out = [];
    if (spent.length > 0) out.push(el("figure", null, el("h3", null, `One iteration${known(f.iteration_s) ? ": " + seconds(f.iteration_s) : ""}`),
        stacked_bar("Seconds of an iteration", spent.map((p, i) => [words(p.phase), p.time_s * p.passes, palette[i % 7], seconds(p.time_s * p.passes) + (p.passes > 1 ? ` = ${p.passes} \u00d7 ${seconds(p.time_s)}` : "")]))));
    const busy = f.phases.filter(p => known(p.time_s) && Object.keys(p.busy_s).length > 0);
    if (busy.length > 0) out.push(el("figure", { class: "wide" }, el("h3", null, "How busy each resource is, by phase"), el("div", { class: "two" }, busy.map(p => {
        const shown = Object.entries(p.busy_s).sort((a, b) => b[1] - a[1]).slice(0, 5);
        stowage.charts.push({ type: "busy", source: p });
        return el("div", null, el("h3", null, `${words(p.phase)} (${seconds(p.whole_s)})`), shown.map(([name, s], i) => el("div", null,
            el("span", { class: i === 0 ? null : "soft" }, `${name}: ${percent(Math.min(1, s / p.whole_s))}${i === 0 ? ", binds" : ""}`), el("div", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width:${Math.min(100, 100 * s / p.whole_s)}%;background:${i === 0 ? "#d55e00" : "#0072b2"}` })))));
    }))));
    return out;
}
function measured(comparison) {
    const judged = comparison.lines.filter(l => known(l.measured) && known(l.predicted) && l.predicted > 0 && l.verdict !== "not_measured");
    const text = (l, v) => l.unit === "s" ? seconds(v) : gib(v);
    if (judged.length === 0) return null;
    const shown = [...judged].sort((a, b) => (b.verdict === "outside") - (a.verdict === "outside")).slice(0, 40);
    stowage.charts.push({ type: "measured", source: judged });
    const most = Math.max(0.12, ...shown.map(l => Math.min(1, Math.abs(l.measured / l.predicted - 1))));
    return el("figure", { class: "wide" }, el("h3", null, "Measured against predicted"), el("p", { class: "soft" }, "Bars: by how much the measured value differs from the predicted one. Left of the middle: less was measured."),
        el("div", { class: "scroll" }, el("table", null, el("thead", null, el("tr", null, ["line", ">predicted", ">measured", ">difference", "", "verdict"].map(h => el("th", { scope: "col", class: h[0] === ">" ? "num" : null }, h.replace(">", ""))))),
            el("tbody", null, shown.map(l => {
                const d = l.measured / l.predicted - 1, half = Math.min(50, 50 * Math.abs(d) / most), colour = l.verdict === "outside" ? "#d55e00" : "#0072b2";
                return el("tr", null, el("td", null, `${words(l.phase)}, ${l.kind} ${l.what}`), el("td", { class: "num" }, text(l, l.predicted)), el("td", { class: "num" }, text(l, l.measured)), el("td", { class: "num" }, (d >= 0 ? "+" : "\u2212") + percent(Math.abs(d))),
                    el("td", { style: "min-width:110px" }, el("div", { class: "bar", "aria-hidden": "true", style: "display:block" }, el("i", { style: `width:${Math.max(1, half)}%;margin-left:${d >= 0 ? 50 : 50 - half}%;background:${colour}` }))), el("td", null, badge(l.verdict)));
            })))), judged.length > shown.length ? el("p", { class: "soft" }, `${judged.length - shown.length} more lines are in the table below.`) : null);
}
const flat = (object, prefix = "") => Object.entries(object || {}).flatMap(([key, value]) => value !== null && typeof value === "object" && (!Array.isArray(value) || typeof value[0] === "object") ? flat(value, prefix + key + ".")
    : [[prefix + key, Array.isArray(value) ? JSON.stringify(value) : String(value)]]);
function made_from(item, id) {
    const plan = item.document.plan, c = plan.cluster || {}, calibration = c.calibration;
    return section(id + "-inputs", "Inputs", el("dl", null, [["plan file", item.name || "none: planned by this command"], ["model", `${item.charts.figures.model}, digest ${(plan.model || {}).digest || "unknown"}`], ["cluster", item.charts.figures.cluster],
        ["rates", calibration && calibration.date ? `measured on ${calibration.date}` : "from data sheets, not measured"], ["solver", plan.solver ? `${plan.solver.name} ${plan.solver.version}` : "none"]].flatMap(([k, v]) => [el("dt", null, k), el("dd", null, v)])),
        el("details", null, el("summary", null, "All settings of the run"), table("run.yaml " + item.name, ["key", "value"], flat(plan.run))),
        el("details", null, el("summary", null, "All settings of the cluster"), table("cluster.yaml " + item.name, ["key", "value"], flat(c))));
}
function plan_body(item, index, alone) {
    const f = item.charts.figures, parts = parts_of(item.blocks), id = "plan" + index, plan = item.document.plan;
    const said = lines(parts.verdict), headline = lines(parts[""])[0] || "";
    const verdict_more = [...lines(parts[""]).slice(1), ...said].filter(l => !/^(GPU|Host) memory: peak/.test(l));
    const facts = el("dl", null, [["engine", f.engine], ["precision", flat((plan.run || {}).precision).map(([k, v]) => `${k} ${v}`).join(", ")], ["tokens", known(f.tokens_per_iteration) ? `${number(f.tokens_per_iteration)} per iteration` : "unknown"],
        ["rates", plan.cluster.calibration && plan.cluster.calibration.date ? `measured on ${plan.cluster.calibration.date}` : "from data sheets, not measured"]].flatMap(([k, v]) => [el("dt", null, k), el("dd", null, v)]));
    const charts = tier => item.charts.memory.filter(m => m.tier === tier).map(m => memory_chart(m, `${m.tier === "gpu" ? "GPU memory" : "Host memory"} of ${m.of}`));
    const measured_part = item.document.comparison ? [measured(item.document.comparison)] : [];
    const bars = render(parts.binds), change = render(parts.change, "Changes");
    const assumptions = render((parts.assumptions || []).filter(b => b[0] !== "heading" || true), "Assumptions");
    return [
        alone ? el("p", { class: "eyebrow" }, `Capacity report: ${f.model} on ${f.cluster}`) : null,
        el(alone ? "h1" : "h2", null, headline), el("p", null, badge(f.verdict)), cards(f), verdict_more.map(l => el("p", null, l)),
        el("div", { class: "two" }, el("div", null, section(id + "-binds", "What binds", bars.length > 0 ? bars : el("p", null, "Nothing is over a limit.")),
            section(id + "-change", "What would change it", change.length > 0 ? change : el("p", null, "The plan names no changes."))),
            section(id + "-assumed", "Assumptions", el("div", { class: "box" }, facts, (parts.assumptions || []).length > 0 ? assumptions.slice(0, assumptions.findIndex(e => e.tagName === "H3") < 0 ? undefined : assumptions.findIndex(e => e.tagName === "H3")) : null,
                el("details", null, el("summary", null, "Model and cluster in words"), assumptions.findIndex(e => e.tagName === "H3") < 0 ? null : assumptions.slice(assumptions.findIndex(e => e.tagName === "H3")))))),
        section(id + "-memory", "Memory over time", el("p", { class: "note" }, "In the order of a first iteration. A phase that an iteration repeats is shown once, with the bytes of a later iteration: forward_backward has the moments that the first optimizer step makes. Kinds of ranks and nodes with nearly the same peaks are shown once."), charts("gpu"), el("div", { class: "hosts" }, charts("host"))),
        section(id + "-placement", "Placement", placement(f, plan)), section(id + "-seconds", "Where the seconds go", f.verdict === "does_not_fit" ? el("p", null, "No times are predicted, because the plan does not fit.") : where_seconds(f), item.charts.streams.length > 0 ? gantt(item.charts.streams) : null),
        item.document.comparison || item.document.run ? section(id + "-measured", "Predicted beside measured", measured_part, render(parts.measured, "Measured")) : null,
        section(id + "-tables", "All figures", el("div", { class: "tools" }, el("span", { class: "soft" }, "Every figure of this plan in one file:"), csv_button("figures of " + (item.name || f.model), () => item.csv)),
            ["memory", "placement", "seconds", "search"].map(p => el("details", null, el("summary", null, { memory: "Memory", placement: "Placement", seconds: "Seconds", search: "How the plan was found" }[p]), render(parts[p], words(p))))),
        made_from(item, id)];
}

/* ---- several plans ---- */
function compare_plans(plans) {
    const fs = plans.map(p => p.charts.figures), rank = { fits: 0, unknown: 1, at_risk: 2, does_not_fit: 3 };
    const fit = fs.filter(f => f.verdict === "fits"), hours = f => f.gpu_hours_per_1e9_tokens, priced = fit.length > 0 && fit.every(f => known(f.usd_per_1e9_tokens));
    const name = f => `${f.model} on ${f.cluster}`;
    const best = fit.filter(f => known(hours(f))).sort((a, b) => priced ? a.usd_per_1e9_tokens - b.usd_per_1e9_tokens : hours(a) - hours(b))[0];
    const models = [...new Set(fs.map(f => f.model))], clusters = [...new Set(fs.map(f => f.cluster))];
    const risky = fs.filter(f => f.verdict === "at_risk").length;
    const sentence = `${fit.length === fs.length ? "All" : fit.length === 0 ? "None" : fit.length} of ${fs.length} plans fit${fit.length === 1 ? "s" : ""}${risky > 0 ? `, ${risky} ${risky === 1 ? "is" : "are"} at risk` : ""}.`;
    const out = [el("p", { class: "eyebrow" }, `Capacity report: ${plans.length} plans${models.length === 1 ? ` of ${models[0]}` : ""}${clusters.length === 1 ? ` on ${clusters[0]}` : ""}`), el("h1", null, sentence)];
    const cheapest = models.map(m => fit.filter(f => f.model === m && known(hours(f))).sort((a, b) => priced ? a.usd_per_1e9_tokens - b.usd_per_1e9_tokens : hours(a) - hours(b))[0]);
    if (best) out.push(el("ul", null, models.map((m, i) => el("li", null, cheapest[i] ? `${m}: cheapest per token on ${cheapest[i].cluster}${plans.filter(p => p.charts.figures.model === m && p.charts.figures.cluster === cheapest[i].cluster).length > 1 ? ` (${plans[fs.indexOf(cheapest[i])].name})` : ""}, ${number(hours(cheapest[i]))} GPU-hours${known(cheapest[i].usd_per_1e9_tokens) ? ` and ${number(cheapest[i].usd_per_1e9_tokens)} USD` : ""} per 10\u2079 tokens, ${gpu_free(cheapest[i])} per GPU.` : `${m}: none of these plans fits without risk and has known seconds.`))));
    if (models.length > 1 && clusters.length > 1) {
        stowage.charts.push({ type: "matrix", source: fs });
        out.push(el("figure", { class: "wide" }, el("h3", null, "Models and clusters"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Models and clusters" }, el("table", { class: "matrix" },
            el("thead", null, el("tr", null, el("th", { scope: "col" }, "model"), clusters.map(c => el("th", { scope: "col" }, c)))),
            el("tbody", null, models.map(m => el("tr", null, el("th", { scope: "row" }, m), clusters.map(c => {
                const found = fs.filter(f => f.model === m && f.cluster === c).sort((a, b) => rank[a.verdict] - rank[b.verdict])[0];
                if (!found) return el("td", { class: "soft" }, "not planned");
                return el("td", { class: found.verdict }, el("b", null, VERDICTS[found.verdict]), gpu_free(found) + " per GPU", el("br"),
                    known(found.iteration_s) ? `${seconds(found.iteration_s)} per iteration` : "", el("br"), known(hours(found)) ? `${number(hours(found))} GPU-hours per 10\u2079 tokens` : "");
            }))))))));
    }
    const columns = [["file", p => el("a", { href: "#item" + data.items.indexOf(p), onclick: () => { document.getElementById("item" + data.items.indexOf(p)).open = true; } }, p.name || "plan")],
        ["model", (p, f) => f.model], ["cluster", (p, f) => f.cluster], ["engine", (p, f) => f.engine], ["verdict", (p, f) => badge(f.verdict)], [">GPUs", (p, f) => String(f.gpus)],
        [">GPU memory", (p, f) => gib(most_gpu(f))], [">of limit", (p, f) => percent(most_gpu(f) / f.gpu_limit_bytes)], [">host memory", (p, f) => gib(f.host_peak_bytes)], [">of its limit", (p, f) => known(f.host_limit_bytes) ? percent(f.host_peak_bytes / f.host_limit_bytes) : ""],
        [">iteration", (p, f) => known(f.iteration_s) ? seconds(f.iteration_s) : ""], [">tokens/s per GPU", (p, f) => known(f.tokens_per_s) ? number(f.tokens_per_s / f.gpus) : ""], [">MFU", (p, f) => percent(f.mfu)],
        [">GPU-hours per 1e9 tokens", (p, f) => known(hours(f)) ? number(hours(f)) : ""], [">USD per 1e9 tokens", (p, f) => known(f.usd_per_1e9_tokens) ? number(f.usd_per_1e9_tokens) : ""]]
        .filter(([head]) => (!["model", "cluster", "engine"].includes(head) || new Set(fs.map(f => f[head])).size > 1) && (!head.startsWith(">USD") || fs.some(f => known(f.usd_per_1e9_tokens))));
    out.push(el("figure", { class: "wide" }, table("Comparison of plans", columns.map(c => c[0]), plans.map((p, i) => columns.map(c => c[1](p, fs[i]))))));
    const runs = plans.map(p => Object.fromEntries(flat(p.document.plan.run))), keys = [...new Set(runs.flatMap(Object.keys))];
    const differing = keys.filter(k => new Set(runs.map(r => r[k] ?? "")).size > 1).map(k => [k, ...runs.map(r => r[k] ?? "")]);
    if (differing.length > 0) out.push(el("figure", { class: "wide" }, table("Settings of the run that differ", ["key", ...plans.map((p, i) => p.name || "plan " + (i + 1))], differing)));
    return out;
}

/* ---- sweep, size, diff, run ---- */
function heat(doc) {
    const axes = doc.vary.filter(a => a.values.length > 1).sort((a, b) => b.values.length - a.values.length);
    if (axes.length < 2) return null;
    let [down, across] = axes.slice(0, 2), metric = "gpu_hours_per_1e9_tokens";
    if (doc.vary.indexOf(down) > doc.vary.indexOf(across)) [down, across] = [across, down];
    const rest = axes.slice(2), fixed = Object.fromEntries(rest.map(a => [a.key, a.values[0]]));
    const metrics = { gpu_hours_per_1e9_tokens: ["GPU-hours per 10\u2079 tokens", number], usd_per_1e9_tokens: ["USD per 10\u2079 tokens", number], tokens_per_s_per_gpu: ["tokens per second and GPU", number], iteration_s: ["seconds per iteration", seconds], gpu_peak_bytes: ["GPU memory peak", gib], host_peak_bytes: ["host memory peak per node", gib] };
    const has = Object.keys(metrics).filter(m => doc.rows.some(r => known(r[m]))), body = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heat map" });
    if (!has.includes(metric)) metric = has[0] || "gpu_peak_bytes";
    function draw() {
        const values = doc.rows.map(r => r[metric]).filter(v => known(v) && v > 0), low = Math.log(Math.min(...values)), high = Math.log(Math.max(...values));
        const cell = (a, b) => {
            const r = doc.rows.find(x => x.settings[down.key] === a && x.settings[across.key] === b && rest.every(k => x.settings[k.key] === fixed[k.key]));
            if (!r) return el("td", { class: "none" }, "not planned");
            const fits = r.verdict === "fits" || r.verdict === "at_risk" || r.verdict === "unknown", v = r[metric];
            return el("td", { class: fits && known(v) ? r.front ? "front" : null : "none", style: fits && known(v) ? "background:" + heat_colour(high > low ? (Math.log(v) - low) / (high - low) : 0.5) : null, title: r.reason || r.binds || "" },
                el("b", null, fits && known(v) ? metrics[metric][1](v) : VERDICTS[r.verdict] || r.verdict), fits ? VERDICTS[r.verdict] : r.gpus ? gib(r.gpu_peak_bytes) : "", el("br"), r.gpus ? `${number(r.gpus)} GPUs` : "");
        };
        body.replaceChildren(el("table", { class: "heat" }, el("thead", null, el("tr", null, el("th", { scope: "col" }, `${down.key} \u2193 ${across.key} \u2192`), across.values.map(v => el("th", { scope: "col" }, v)))),
            el("tbody", null, down.values.map(a => el("tr", null, el("th", { scope: "row" }, a), across.values.map(b => cell(a, b)))))));
    }
    draw();
    stowage.charts.push({ type: "heat", source: doc.rows, draw });
    const choose = (label, values, get, set) => el("label", { class: "soft" }, label + " ", el("select", { onchange: e => { set(e.target.value); draw(); } }, values.map(([v, t]) => el("option", { value: v, selected: v === get() }, t))));
    return el("figure", { class: "wide" }, el("h3", null, "Heat map"), el("div", { class: "tools" }, choose("colour and figure:", has.map(m => [m, metrics[m][0]]), () => metric, v => { metric = v; }),
        rest.map(a => choose(a.key + " =", a.values.map(v => [v, v]), () => fixed[a.key], v => { fixed[a.key] = v; }))), body, el("p", { class: "soft" }, "Stronger colour: a larger figure. Framed: on the Pareto front. Hatched: does not fit, or was not planned."));
}
const settings = r => Object.entries(r.settings).map(([k, v]) => `${k}=${v}`).join(" ");
function sweep_body(item) {
    const doc = item.document, fits = doc.rows.filter(r => r.verdict === "fits" && known(r.gpu_hours_per_1e9_tokens)), priced = fits.length > 0 && fits.every(r => known(r.usd_per_1e9_tokens));
    const cost = r => priced ? r.usd_per_1e9_tokens : r.gpu_hours_per_1e9_tokens, front = fits.filter(r => r.front).sort((a, b) => a.gpus - b.gpus);
    const cheapest = [...fits].sort((a, b) => cost(a) - cost(b) || a.gpus - b.gpus)[0], smallest = [...fits].sort((a, b) => a.gpus - b.gpus || cost(a) - cost(b))[0];
    const n = doc.rows.filter(r => r.verdict === "fits").length, risky = doc.rows.filter(r => r.verdict === "at_risk").length;
    const money = r => `${number(r.gpu_hours_per_1e9_tokens)} GPU-hours${known(r.usd_per_1e9_tokens) ? ` (${number(r.usd_per_1e9_tokens)} USD)` : ""} per 10\u2079 tokens`;
    const parts = parts_of(item.blocks), answer = lines(parts.answer)[0], count = `${n} of ${doc.rows.length} combinations fit${risky > 0 ? `, ${risky} more are at risk` : ""}.` + (smallest ? ` The fewest GPUs are ${number(smallest.gpus)}.` : "");
    const points = fits.filter(r => r.tokens_per_s_per_gpu > 0).map(r => [r.gpus, r.tokens_per_s_per_gpu, `${settings(r)}: ${number(r.gpus)} GPUs, ${number(r.tokens_per_s_per_gpu)} tokens per second and GPU, ${money(r)}, GPU peak ${gib(r.gpu_peak_bytes)}`, r.front]);
    return [el("p", { class: "eyebrow" }, `Sweep: ${doc.arguments.model} on ${doc.arguments.cluster}`),
        el("h1", null, answer || count), answer ? el("p", null, count) : null,
        smallest ? el("div", { class: "cards" }, card("Fewest GPUs", `${number(smallest.gpus)} GPUs`, `${settings(smallest)}; ${money(smallest)}`), card("Cheapest per token", money(cheapest).replace(" per 10\u2079 tokens", ""), `per 10\u2079 tokens; ${settings(cheapest)}; ${number(cheapest.gpus)} GPUs`),
            card("On the Pareto front", String(front.length), "fewest GPUs against tokens per second and GPU")) : null,
        parts.book ? section("book", "What to book", el("figure", { class: "wide" }, render(parts.book, "What to book"))) : null,
        section("map", "All combinations", heat(doc), points.length > 1 ? scatter("GPUs against speed", "GPUs", "tokens per second and GPU", points, ["Pareto front (large points, dashed line)", "other combinations that fit"], true) : null),
        section("rows", "All figures", render((parts.rows || parts[""]).filter(b => b[0] !== "title"), "Sweep"), el("div", { class: "tools" }, csv_button("sweep", () => item.csv)))];
}
function size_body(item) {
    const doc = item.document, title = (item.blocks.find(b => b[0] === "title") || [0, "Sizes"])[1], models = doc.models || [doc];
    const kinds = models.flatMap(m => (m.kinds || []).map(k => ({ ...k, model: m.model })));
    const rows = kinds.flatMap(k => [["smallest", k], ["cheapest", k.cheapest]].filter(([, r]) => r && known(r.gpus) && r.gpus > 0).map(([what, r]) => ({ what, kind: k.kind, model: k.model, ...r, kind_name: k.kind })));
    const points = rows.filter(r => r.tokens_per_s_per_gpu > 0 && r.verdict === "fits").map(r => [r.gpus, r.tokens_per_s_per_gpu, `${r.model} on ${r.kind_name}, ${r.what}: ${number(r.gpus)} GPUs, ${number(r.tokens_per_s_per_gpu)} tokens per second and GPU, ${number(r.gpu_hours_per_1e9_tokens)} GPU-hours per 10\u2079 tokens`, r.what === "cheapest"]);
    const bars = kinds.filter(k => k.cheapest && known(k.cheapest.gpu_hours_per_1e9_tokens)), most = Math.max(...bars.map(k => k.cheapest.gpu_hours_per_1e9_tokens));
    stowage.charts.push({ type: "size", source: kinds });
    return [el("p", { class: "eyebrow" }, "What to buy"), el("h1", null, title), lines(parts_of(item.blocks).answer).map(l => el("p", null, el("strong", null, l))), lines(parts_of(item.blocks)[""]).slice(0, 1).map(l => el("p", null, l)),
        el("div", { class: "cards" }, kinds.filter(k => k.fits).map(k => card(`${k.model} on ${k.kind}`, `${number(k.gpus)} GPU${k.gpus === 1 ? "" : "s"} at least`, (k.cheapest && known(k.cheapest.gpus) ? `cheapest per token: ${number(k.cheapest.gpus)} GPUs, ${number(k.cheapest.gpu_hours_per_1e9_tokens)} GPU-hours` + (known(k.cheapest.usd_per_1e9_tokens) ? `, ${number(k.cheapest.usd_per_1e9_tokens)} USD` : "") + " per 10\u2079 tokens" : "seconds unknown"), el("p", { style: "margin:4px 0" }, badge(k.verdict))))),
        bars.length > 0 ? el("figure", null, el("h3", null, "GPU-hours per 10\u2079 tokens, cheapest count of each kind"), bars.map(k => el("div", null, `${k.model} on ${k.kind}: ${number(k.cheapest.gpu_hours_per_1e9_tokens)}`, el("div", { class: "bar", "aria-hidden": "true" }, el("i", { class: "used", style: `width:${100 * k.cheapest.gpu_hours_per_1e9_tokens / most}%` }))))) : null,
        points.length > 1 ? scatter("GPUs against speed: the smallest and the cheapest", "GPUs", "tokens per second and GPU", points, ["cheapest per token (large points)", "smallest"], false) : null,
        section("rows", "All figures", render(item.blocks.filter(b => b[0] !== "title" && b[0] !== "part"), "Sizes"), el("div", { class: "tools" }, csv_button("sizes", () => item.csv)))];
}
function diff_body(item) {
    const doc = item.document, title = (item.blocks.find(b => b[0] === "title") || [0, "What changed"])[1], first = item.blocks.findIndex(b => b[0] === "table" || b[0] === "heading");
    const totals = doc.bytes.filter(b => b.component === "total"), most = tier => Math.max(1, ...totals.filter(b => b.tier === tier).flatMap(b => [b.before_bytes, b.after_bytes]));
    stowage.charts.push({ type: "diff", source: totals });
    const side = (s, label) => card(label, s.file, `${s.model} on ${s.cluster}; GPU peak ${gib(s.gpu_peak_bytes)}, host ${gib(s.host_peak_bytes)}` + (known(s.iteration_s) ? `, iteration ${seconds(s.iteration_s)}` : ""), el("p", { style: "margin:4px 0" }, badge(s.verdict)));
    const head = lines(item.blocks.slice(0, first < 0 ? undefined : first)).concat(lines(item.blocks.slice(0, first < 0 ? undefined : first), "item"));
    return [el("p", { class: "eyebrow" }, "Difference of two plans"), el("h1", null, title), el("div", { class: "cards" }, side(doc.before, "before"), side(doc.after, "after")), section("changed", "What changed", el("ul", null, head.map(l => el("li", null, l)))),
        totals.length > 0 ? el("figure", null, el("h3", null, "Peak memory by phase, before and after"), totals.map(b => el("div", null, `${words(b.phase)}, ${b.tier}: ${gib(b.before_bytes)} \u2192 ${gib(b.after_bytes)}`,
            el("div", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width:${100 * b.before_bytes / most(b.tier)}%;background:#84909c` })), el("div", { class: "bar", "aria-hidden": "true", style: "margin-top:-4px" }, el("i", { class: "used", style: `width:${100 * b.after_bytes / most(b.tier)}%` })))),
            el("ul", { class: "key" }, el("li", null, swatch("#84909c"), "before"), el("li", null, swatch("#0072b2"), "after"))) : null,
        section("rows", "All figures", render(item.blocks.slice(first < 0 ? item.blocks.length : first), "Difference"), el("div", { class: "tools" }, csv_button("difference", () => item.csv)))];
}
function run_body(item) {
    return [el("p", { class: "eyebrow" }, "Run"), el("h1", null, item.name || "Run"), render(item.blocks, "Run"), el("div", { class: "tools" }, csv_button("run", () => item.csv))];
}
function body_of(item, index, alone) {
    if (item.kind === "plan") return plan_body(item, index, alone);
    return { sweep: sweep_body, size: size_body, diff: diff_body, run: run_body }[item.kind](item, index, alone);
}

/* ---- the page ---- */
const SHORT = { "What binds": "Binds", "What would change it": "Changes", "Memory over time": "Memory", "Where the seconds go": "Seconds", "Predicted beside measured": "Measured", "All figures": "Figures", "How to make this report again": "Again" };
function set_theme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    theme.textContent = dark ? "Light" : "Dark";
    stowage.redraw.forEach(draw => draw());
}
const wants_dark = matchMedia("(prefers-color-scheme: dark)");
const theme = el("button", { type: "button", "aria-label": "Switch between light and dark", onclick: () => set_theme(document.documentElement.dataset.theme !== "dark") }, "Dark");
const main = el("main", { id: "main" });
const plans = data.items.filter(i => i.kind === "plan"), alone = data.items.length === 1;
document.documentElement.dataset.theme = wants_dark.matches ? "dark" : "light";
document.body.append(el("a", { href: "#main", class: "skip" }, "To the report"), el("header", { class: "top" }, el("b", null, "Stowage report"), el("nav", { "aria-label": "Parts of the report" }), theme), main);
if (plans.length > 1) main.append(...compare_plans(plans).filter(x => x));
else if (!alone) main.append(el("h1", null, `${data.items.length} reports`));
data.items.forEach((item, i) => {
    const fill = where => where.append(...body_of(item, i, alone).flat(9).filter(x => x));
    if (alone) { fill(main); return; }
    const f = item.charts && item.charts.figures, holder = el("div");
    const box = el("details", { class: "plan", id: "item" + i }, el("summary", null, f ? [badge(f.verdict), ` ${f.model} on ${f.cluster}`, item.name ? ` (${item.name})` : ""] : `${item.kind}: ${item.name}`), holder);
    const open = () => { if (holder.childElementCount === 0) { const from = stowage.redraw.length; fill(holder); stowage.redraw.slice(from).forEach(draw => draw()); } };
    box.addEventListener("toggle", () => { if (box.open) open(); });
    stowage.opened.push(() => { box.open = true; open(); });
    main.append(box);
});
main.append(section("again", "How to make this report again", el("pre", null, data.command), el("p", { class: "soft" }, `Made by ${data.program}. Charts of memory are drawn with ${data.library}. The page needs no network; its data is the JSON document in its source.`),
    el("div", { class: "tools" }, el("button", { type: "button", onclick: () => download("report.json", JSON.stringify(data, null, 1), "application/json") }, "Download JSON"))));
document.title = (main.querySelector("h1") || {}).textContent || "Stowage report";
const nav = document.querySelector(".top nav");
if (alone) nav.append(...[...main.querySelectorAll("h2[id]")].map(h => el("a", { href: "#" + h.id }, SHORT[h.textContent] || h.textContent)));
set_theme(wants_dark.matches);
wants_dark.addEventListener("change", e => set_theme(e.matches));
let width = innerWidth, timer = 0;
addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; clearTimeout(timer); timer = setTimeout(() => stowage.redraw.forEach(draw => draw()), 80); });
/* On paper: light, everything open, as wide as a page. */
let before = null;
addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.body.style.width = "680px";
    set_theme(false);
});
addEventListener("afterprint", () => { document.body.style.width = ""; set_theme(before === "dark"); });
})();
