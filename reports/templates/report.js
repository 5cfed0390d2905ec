// The page's charts, drawn by Observable Plot from the numbers stored in the page; no request leaves the page.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const INK = "var(--ink)", MUTED = "var(--muted)", RULE = "var(--rule)", PAPER = "var(--paper)";
  const DRAWS = "var(--draws)", POLICY = "var(--policy)", OPTIMUM = "var(--optimum)";
  const known = (v) => typeof v === "number" && isFinite(v);
  const fixed = (v, n = 2) => (known(v) ? v.toFixed(n).replace(/^-(?=[0.]*$)/, "").replace("-", "−") : "–");
  const signed = (v) => (known(v) && Number(v.toFixed(2)) > 0 ? "+" : "") + fixed(v);
  const limits = (v) => (v ? `[${fixed(v[0])}, ${fixed(v[1])}]` : "no interval");
  const pValue = (v) => (!known(v) ? "–" : v < 0.001 ? "< 0.001" : v < 0.1 ? v.toFixed(4) : v.toFixed(3));
  const short = (text, n) =>
    text.length <= n ? text : text.slice(0, Math.ceil((n - 1) * 0.67)) + "…" + text.slice(text.length - Math.floor((n - 1) * 0.33));
  const span = (values) => d3.extent(values.filter(known));
  const spread = ([low, high]) => [low - 0.04 * (high - low || 1), high + 0.06 * (high - low || 1)];

  // Round values of a logarithmic axis, some four to eight of them, however little or much it spans.
  const steps = (low, high) => {
    const of = (digits) => d3.range(-3, 9).flatMap((k) => digits.map((d) => d * 10 ** k)).filter((v) => v >= low * 0.999 && v <= high * 1.001);
    return [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]].map(of).find((found) => found.length >= 4) ?? d3.ticks(low, high, 5);
  };

  // A chart is a plot and the points that can be read from it: {x, y} in data units, and the text of each.
  const panel = (label, options, points) => {
    const svg = Plot.plot({ style: { fontSize: "12px", background: "none", overflow: "visible" }, ...options });
    const place = (axis, v) => svg.scale(axis).apply(v);
    return { label, svg, points: points.map((p) => ({ text: p.text, x: place("x", p.x), y: place("y", p.y) })) };
  };
  // Rows of bars or points, each named above itself, so that no name needs a margin.
  const rowNames = (rows, width, x) => [
    Plot.text(rows, { x, y: (r) => r.y - 0.42, text: (r) => short(r.name, Math.floor(width / 7.5)), textAnchor: "start",
      fill: INK, stroke: PAPER, strokeWidth: 4, paintOrder: "stroke", fontWeight: (r) => (r.head ? 600 : 400) }),
  ];

  const draw = {
    forest(_, width) {
      const narrow = width < 480; // the mark alone: the table below has the word
      const rows = [], order = data.claims.map((c, i) => ({ ...c, index: i + 1 }))
        .sort((a, b) => b.tier - a.tier || (b.gain_pp ?? -Infinity) - (a.gain_pp ?? -Infinity));
      let y = 0, tier = null;
      for (const c of order) {
        if (c.tier !== tier) rows.push({ y: (y += 1), name: `Tier ${c.tier}, ${c.tier_name}`, head: true });
        tier = c.tier;
        rows.push({ y: (y += 1), name: `${c.regime}, ${c.slo}`, claim: c });
      }
      const claims = rows.filter((r) => r.claim);
      const domain = spread(span([0, ...claims.flatMap(({ claim: c }) =>
        [c.gain_pp, c.load_gain_pp, c.min_effect_pp, ...(c.interval_pp ?? []), ...(c.load_interval_pp ?? [])])]));
      const sides = [["gain_pp", "interval_pp", -0.06, POLICY, "circle", "over chance"],
        ["load_gain_pp", "load_interval_pp", 0.22, DRAWS, "diamond", "from following the load"]];
      const points = claims.flatMap((r) => sides.filter(([key]) => known(r.claim[key])).map(([key, ends, dy, , , what]) => ({
        x: r.claim[key], y: r.y + dy,
        text: `${r.claim.regime}, ${r.claim.slo}: ${signed(r.claim[key])} pp ${what}, ${data.level} interval ${limits(r.claim[ends])}; ${r.claim.verdict}`,
      })));
      return [panel("Gains of every claim", {
        width, height: 46 + 46 * y, marginLeft: 10, marginRight: 10, marginBottom: 34, marginTop: 6,
        x: { domain, label: "gain in pp, to the right is better", labelAnchor: "center" }, y: { domain: [y + 0.5, 0.3], axis: null },
        // Lines only beside the points: across a whole row they would run through its name.
        marks: [Plot.gridX({ stroke: RULE, strokeOpacity: 1 }), Plot.ruleX(claims, { x: 0, y1: (r) => r.y - 0.2, y2: (r) => r.y + 0.42, stroke: INK }),
          Plot.ruleX(claims, { x: (r) => r.claim.min_effect_pp, y1: (r) => r.y - 0.2, y2: (r) => r.y + 0.42, stroke: MUTED, strokeDasharray: "4,3" }),
          ...rowNames(rows, width - (narrow ? 24 : 130), domain[0]),
          Plot.text(claims, { x: domain[1], y: (r) => r.y - 0.42, textAnchor: "end", fill: MUTED, stroke: PAPER, strokeWidth: 4,
            text: (r) => ({ PASS: "✓", FAIL: "✗", INCONCLUSIVE: "?" }[r.claim.verdict] + (narrow ? "" : ` ${r.claim.verdict}`)) }),
          ...sides.flatMap(([key, ends, dy, colour, symbol]) => [
            Plot.ruleY(claims.filter((r) => r.claim[ends]?.every(known)), { y: (r) => r.y + dy, x1: (r) => r.claim[ends][0], x2: (r) => r.claim[ends][1], stroke: colour, strokeWidth: 2 }),
            Plot.dot(claims.filter((r) => known(r.claim[key])), { y: (r) => r.y + dy, x: (r) => r.claim[key], r: 5, symbol, stroke: colour, strokeWidth: 2,
              fill: (r) => (r.claim.verdict === "PASS" ? colour : PAPER) })])],
      }, points)];
    },

    source(c, width) {
      const rows = [["over chance", c.gain_pp, c.interval_pp, POLICY], ["from following the load", c.load_gain_pp, c.load_interval_pp, DRAWS],
        ["without looking: a clock, regular gaps", c.placebo_pp, null, MUTED], ["the offline optimum's, the ceiling", c.optimum_gain_pp, null, OPTIMUM]]
        .filter((r) => known(r[1])).map(([name, gain, ends, colour], i) => ({ name: `${name} ${signed(gain)}`, gain, ends, colour, y: i + 1, what: name }));
      const domain = spread(span([0, ...rows.flatMap((r) => [r.gain, ...(r.ends ?? [])])]));
      return [panel("Where the gain comes from", {
        width, height: 40 + 40 * rows.length, marginLeft: 10, marginRight: 10, marginTop: 4, marginBottom: 34,
        x: { domain, label: "gain in pp", labelAnchor: "center", ticks: Math.min(8, width / 50) }, y: { domain: [rows.length + 0.5, 0.3], axis: null },
        marks: [Plot.gridX({ stroke: RULE, strokeOpacity: 1 }), ...rowNames(rows, width, domain[0]),
          Plot.rect(rows, { x1: 0, x2: "gain", y1: (r) => r.y - 0.2, y2: (r) => r.y + 0.25, fill: "colour", fillOpacity: 0.75 }),
          Plot.ruleY(rows.filter((r) => r.ends?.every(known)), { y: (r) => r.y + 0.02, x1: (r) => r.ends[0], x2: (r) => r.ends[1], stroke: INK, strokeWidth: 1.5 }),
          Plot.ruleX([0], { stroke: INK })],
      }, rows.map((r) => ({ x: r.gain, y: r.y, text: `${signed(r.gain)} pp ${r.what}${r.ends ? `, ${data.level} interval ${limits(r.ends)}` : ""}` })))];
    },

    floors(c, width) {
      const tests = [...c.tests, { name: "largest of all, Holm", p: c.p_holm, p_at_zero: null, smallest_p: c.attainable_p }];
      const rows = tests.map((t, i) => ({ ...t, y: i + 1 }));
      const least = d3.min(rows.flatMap((r) => [r.p, r.p_at_zero, r.smallest_p]).filter(known)) ?? 0.01;
      const domain = [10 ** Math.floor(Math.log10(least)), 1.3];
      const points = rows.flatMap((r) => [["smallest_p", "the smallest possible"], ["p_at_zero", "against no gain"], ["p", "at the minimum effect"]]
        .filter(([key]) => known(r[key])).map(([key, what]) => ({ x: r[key], y: r.y, text: `${r.name}: p ${pValue(r[key])} ${what}` })));
      return [panel("p-values against their floors", {
        width, height: 40 + 34 * rows.length, marginLeft: 18, marginRight: 14, marginTop: 4, marginBottom: 34,
        x: { type: "log", domain, label: `p; dashed: level ${data.alpha}`, labelAnchor: "center", ticks: 4, tickFormat: (v) => (v >= 0.01 ? String(v) : v.toExponential(0).replace("e-", "e−")) },
        y: { domain: [rows.length + 0.5, 0.3], axis: null },
        marks: [Plot.gridX({ stroke: RULE, strokeOpacity: 1, ticks: 4 }), Plot.ruleX([data.alpha], { stroke: MUTED, strokeDasharray: "4,3" }), ...rowNames(rows, width, domain[0]),
          Plot.ruleY(rows.filter((r) => known(r.smallest_p)), { y: "y", x1: "smallest_p", x2: 1, stroke: RULE, strokeWidth: 2 }),
          Plot.ruleX(rows.filter((r) => known(r.smallest_p)), { x: "smallest_p", y1: (r) => r.y - 0.18, y2: (r) => r.y + 0.18, stroke: INK, strokeWidth: 2 }),
          Plot.dot(rows.filter((r) => known(r.p_at_zero)), { x: "p_at_zero", y: "y", r: 4.5, stroke: DRAWS, strokeWidth: 1.5, fill: PAPER }),
          Plot.dot(rows.filter((r) => known(r.p)), { x: "p", y: "y", r: 4.5, fill: POLICY })],
      }, points)];
    },

    power(c, width) {
      const curve = (c.power_curve ?? []).map(([gain, power]) => ({ gain, power }));
      const domain = spread(span([0, c.gain_pp, c.min_effect_pp, ...curve.map((d) => d.gain)]));
      const seen = known(c.gain_pp) ? [c.gain_pp] : [], left = c.gain_pp > (domain[0] + domain[1]) / 2;
      return [panel("Power by true gain", {
        width, height: 190, marginLeft: 40, marginRight: 12, marginTop: 22, marginBottom: 34,
        x: { domain, label: "true gain in pp", labelAnchor: "center", ticks: Math.min(8, width / 50) },
        y: { domain: [0, 1], label: "share of such runs that pass", ticks: [0, 0.5, 0.9, 1], tickFormat: (v) => String(v) },
        marks: [Plot.gridY({ stroke: RULE, strokeOpacity: 1, ticks: [0, 0.5, 0.9, 1] }), Plot.ruleX([c.min_effect_pp], { stroke: MUTED, strokeDasharray: "4,3" }),
          Plot.line(curve, { x: "gain", y: "power", stroke: DRAWS, strokeWidth: 2 }), Plot.dot(curve, { x: "gain", y: "power", r: 2.5, fill: DRAWS }),
          Plot.ruleX(seen, { stroke: POLICY, strokeWidth: 2 }),
          Plot.text(seen, { x: (v) => v, y: 0.07, dx: left ? -6 : 6, text: (v) => `this run, ${signed(v)}`, fill: POLICY, stroke: PAPER, strokeWidth: 4, textAnchor: left ? "end" : "start" })],
      }, curve.map((d) => ({ x: d.gain, y: d.power, text: `a gain of ${fixed(d.gain)} pp is found by ${Math.round(100 * d.power)} % of such runs` })))];
    },

    envelope(c, width) {
      const rows = c.seeds.map((s, i) => ({ ...s, i }));
      const drawn = rows.filter((r) => r.draws);
      const band = (low, high, opacity) => Plot.rect(drawn, { x1: (r) => r.i - 0.36, x2: (r) => r.i + 0.36, y1: (r) => r.draws[low], y2: (r) => r.draws[high], fill: DRAWS, fillOpacity: opacity });
      const domain = spread(span([0, ...rows.flatMap((r) => [r.policy, r.optimum, r.draw_mean, ...(r.draws ?? [])])]));
      const step = Math.ceil(rows.length / Math.max(4, width / 32));
      return [panel("Envelope by seed", {
        width, height: 270, marginLeft: 44, marginRight: 8, marginTop: 22, marginBottom: 36,
        x: { domain: [-0.7, rows.length - 0.3], label: "seed, each with its own trace", labelAnchor: "center", ticks: rows.filter((r) => r.i % step === 0).map((r) => r.i), tickFormat: (i) => String(rows[i]?.seed ?? ""), tickSize: 0 },
        y: { domain, label: "sync-excess violations in pp, lower is better" },
        marks: [Plot.gridY({ stroke: RULE, strokeOpacity: 1 }), band(0, 6, 0.18), band(1, 5, 0.3), band(2, 4, 0.55), Plot.ruleY([0], { stroke: INK }),
          Plot.ruleY(drawn, { x1: (r) => r.i - 0.36, x2: (r) => r.i + 0.36, y: (r) => r.draws[3], stroke: DRAWS, strokeWidth: 1.5 }),
          Plot.ruleY(rows.filter((r) => known(r.optimum)), { x1: (r) => r.i - 0.3, x2: (r) => r.i + 0.3, y: "optimum", stroke: OPTIMUM, strokeWidth: 3 }),
          Plot.dot(rows, { x: "i", y: "policy", r: 5, fill: POLICY, stroke: PAPER })],
      }, rows.map((r) => ({ x: r.i, y: r.policy, text: `seed ${r.seed}: scheduler ${fixed(r.policy)} pp, mean of draws ${fixed(r.draw_mean)}, optimum ${fixed(r.optimum)}, rank ${r.rank} of ${r.of}` })))];
    },

    timeline(c, width, seed) {
      const world = data.regimes[c.key], line = world.seeds.find((s) => s.seed === seed);
      const missed = c.missed[seed], step = line.bin_s, at = line.arrivals.map((_, k) => (k + 0.5) * step);
      const bins = line.arrivals.map((n, k) => ({ k, t: at[k], a: k * step, b: (k + 1) * step, arrivals: n / step, missed: missed[k] / step, flight: line.in_flight[k] }));
      const end = Math.max(world.horizon_s, bins.length * step);
      const x = { domain: [0, end], label: null }, base = { width, marginLeft: 44, marginRight: 16 };
      const lanes = [["policy", "scheduler", POLICY], ["optimum", "optimum", OPTIMUM], ["uniform", "one draw", DRAWS]]
        .flatMap(([arm, name, colour], lane) => line.merges[arm].map(([a, b]) => ({ a, b, name, colour, lane: lane + 1 })));
      const shade = Plot.rect(line.merges.policy, { x1: (m) => m[0], x2: (m) => m[1], fill: POLICY, fillOpacity: 0.12 });
      const edge = Plot.ruleX(world.horizon_s < end ? [world.horizon_s] : [], { stroke: MUTED, strokeDasharray: "4,3" });
      const names = ["scheduler", "optimum", "one draw"].map((name, lane) => ({ name: lanes.some((m) => m.name === name) ? name : `${name}: none`, y: lane + 1 }));
      return [
        panel("Arrivals and violations", { ...base, height: 120, marginTop: 22, marginBottom: 20, x, y: { label: `requests/s, of these violations` , ticks: 4 },
          marks: [Plot.gridY({ stroke: RULE, strokeOpacity: 1, ticks: 4 }), shade, Plot.rect(bins, { x1: "a", x2: "b", y1: 0, y2: "arrivals", fill: MUTED, fillOpacity: 0.5 }),
            Plot.rect(bins, { x1: "a", x2: "b", y1: 0, y2: "missed", fill: POLICY }), Plot.ruleY([0], { stroke: INK }), edge] },
        bins.map((d) => ({ x: d.t, y: d.arrivals, text: `${fixed(d.a, 1)} to ${fixed(d.b, 1)} s: ${line.arrivals[d.k]} requests, ${missed[d.k]} violations` }))),
        panel("Requests in flight", { ...base, height: 100, marginTop: 22, marginBottom: 20, x, y: { label: "in flight, under the scheduler's merges", ticks: 4, domain: [0, Math.max(1, ...line.in_flight)] },
          marks: [Plot.gridY({ stroke: RULE, strokeOpacity: 1, ticks: 4 }), shade, Plot.areaY(bins, { x: "t", y: "flight", fill: INK, fillOpacity: 0.15, curve: "step" }), Plot.lineY(bins, { x: "t", y: "flight", stroke: INK, curve: "step" }), edge] },
        bins.map((d) => ({ x: d.t, y: d.flight, text: `${fixed(d.t, 1)} s: ${d.flight} in flight` }))),
        panel("Merges", { ...base, height: 138, marginTop: 6, marginBottom: 34, x: { ...x, label: "time in s", labelAnchor: "center" }, y: { domain: [3.5, 0.35], axis: null },
          marks: [edge, ...rowNames(names, width, 0), Plot.rect(lanes, { x1: "a", x2: "b", y1: (m) => m.lane - 0.16, y2: (m) => m.lane + 0.3, fill: "colour" })] },
        lanes.map((m) => ({ x: (m.a + m.b) / 2, y: m.lane, text: `${m.name}: merge from ${fixed(m.a, 1)} to ${fixed(m.b, 1)} s` }))),
      ];
    },

    transfer(t, width) {
      const looks = { real: ["measured", POLICY, null], simulated: ["simulated", DRAWS, "5,3"] };
      const points = Object.entries(t.sides).flatMap(([side, cells]) => cells.flatMap((cell, k) => [50, 95]
        .filter((q) => known(cell[`p${q}_ms`])).map((q) => ({ side, q, t: t.at_s[k], ms: cell[`p${q}_ms`], n: cell.n })))).sort((a, b) => a.t - b.t);
      const of = (side, q) => points.filter((p) => p.side === side && p.q === q);
      const ticks = steps(...span(points.map((p) => p.ms)));
      return [panel(`Latency around merges, ${t.name}`, {
        width, height: 250, marginLeft: 52, marginRight: 8, marginTop: 22, marginBottom: 36,
        x: { label: "arrival, s since a merge began", labelAnchor: "center" }, y: { type: "log", label: "end-to-end latency in ms: p95 (thick), p50", ticks, tickFormat: (v) => String(v) },
        marks: [Plot.gridY({ stroke: RULE, strokeOpacity: 1, ticks }), points.length ? Plot.rect([0], { x1: 0, x2: t.merge_s, y1: d3.min(points, (p) => p.ms), y2: d3.max(points, (p) => p.ms), fill: MUTED, fillOpacity: 0.15 }) : null,
          ...Object.keys(t.sides).flatMap((side) => [[50, 1.3], [95, 2.6]].map(([q, strokeWidth]) => Plot.line(of(side, q), { x: "t", y: "ms", stroke: looks[side][1], strokeDasharray: looks[side][2], strokeWidth })))],
      }, points.map((p) => ({ x: p.t, y: p.ms, text: `${fixed(p.t, 1)} s, ${looks[p.side][0]}: p${p.q} ${fixed(p.ms, 0)} ms of ${p.n} requests` })))];
    },
  };

  // Reading values: the nearest point under the pointer, or one after another by the arrow keys.
  const mount = (box, { label, svg, points }) => {
    const frame = document.createElement("div"), tip = document.createElement("output"), ring = document.createElement("span");
    let at = -1;
    frame.className = "plot"; tip.className = "tip"; ring.className = "ring"; tip.hidden = ring.hidden = true;
    frame.tabIndex = 0; frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", `${label}; the arrow keys read its ${points.length} values`);
    svg.setAttribute("aria-hidden", "true");
    const show = (k) => {
      at = k;
      tip.hidden = ring.hidden = k < 0;
      if (k < 0) return;
      const { x, y, text } = points[k], room = frame.clientWidth;
      tip.textContent = text;
      ring.style.left = `${x}px`; ring.style.top = `${y}px`;
      tip.style.left = `${Math.max(0, Math.min(x - tip.offsetWidth / 2, room - tip.offsetWidth))}px`;
      tip.style.top = y - tip.offsetHeight - 12 < 0 ? `${y + 14}px` : `${y - tip.offsetHeight - 12}px`;
    };
    frame.addEventListener("pointermove", (event) => {
      const from = frame.getBoundingClientRect(), px = event.clientX - from.left, py = event.clientY - from.top;
      show(d3.leastIndex(points, (a, b) => Math.hypot(a.x - px, (a.y - py) / 2) - Math.hypot(b.x - px, (b.y - py) / 2)) ?? -1);
    });
    frame.addEventListener("pointerleave", () => show(-1));
    frame.addEventListener("blur", () => show(-1));
    frame.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: points.length - 1 }[event.key];
      if (event.key === "Escape") show(-1);
      if (to === undefined || !points.length) return;
      event.preventDefault();
      show(Math.max(0, Math.min(to, points.length - 1)));
    });
    frame.append(svg, ring, tip);
    box.append(frame);
  };

  const subject = (figure) => (figure.dataset.claim !== undefined ? data.claims[figure.dataset.claim]
    : figure.dataset.transfer !== undefined ? data.transfers[figure.dataset.transfer] : null);
  const paint = (figure) => {
    for (const box of figure.querySelectorAll("[data-chart]")) {
      const width = Math.floor(box.clientWidth), seed = Number(figure.querySelector("select")?.value);
      if (width < 50 || (box.dataset.drawn === `${width} ${seed}`)) continue;
      box.replaceChildren();
      for (const one of draw[box.dataset.chart](subject(figure), width, seed)) mount(box, one);
      box.dataset.drawn = `${width} ${seed}`;
    }
  };
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => paint(target)));
  document.documentElement.classList.add("live");
  for (const figure of document.querySelectorAll("figure.chart")) {
    for (const picker of figure.querySelectorAll("select")) {
      for (const [word, by] of [["Previous", -1], ["Next", 1]]) {
        const button = document.createElement("button");
        button.type = "button"; button.textContent = word;
        button.addEventListener("click", () => {
          picker.selectedIndex = (picker.selectedIndex + by + picker.length) % picker.length;
          paint(figure);
        });
        picker.parentNode.append(button);
      }
      picker.addEventListener("change", () => paint(figure));
    }
    watch.observe(figure);
  }
  const asked = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target?.querySelector?.(":scope > details")?.setAttribute("open", "");
    target?.scrollIntoView?.();
  };
  // On paper nothing unfolds: the gates of the sections that are open are printed, where these are few.
  addEventListener("beforeprint", () => {
    if (document.querySelectorAll(".claim > details[open]").length > 2) return;
    for (const one of document.querySelectorAll(".claim > details[open] .printed:not([open])")) { one.open = true; one.dataset.closed = ""; }
  });
  addEventListener("afterprint", () => {
    for (const one of document.querySelectorAll(".printed[data-closed]")) { one.open = false; delete one.dataset.closed; }
  });
  addEventListener("hashchange", asked);
  asked();
})();
