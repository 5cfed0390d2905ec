// The page's check of the run's folder: what it counts again from the raw files, against what the certificate states.
"use strict";
const RunCheck = (() => {
  const { CERTIFICATE, RAW, canonical, digest, plain, written } = RunFolder;
  const POLICY = "policy", NO_SYNC = "no-sync", UNIFORM = "uniform", OPTIMUM = "optimum", CROSSED = "crossed";
  const OWN = ["schema", "schema_version", "claims", "verdict", "tier", "sentence", "replays", "files", "pages"];
  const NAMES = { passed: "PASS", failed: "FAIL", undecidable: "INCONCLUSIVE" };
  const { mean, sum } = Chance, NS = 1e9, BUSY_WITHIN_S = 0.1;
  const shown = (v) => v.toFixed(2).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
  const finite = (v) => (Number.isFinite(v) ? v : null);
  const show = (v) => (typeof v === "number" ? String(Number(v.toPrecision(10))) : JSON.stringify(v));
  // Sums are taken in another order here: equal means to nine digits.
  const same = (a, b) => (typeof a === "number" && typeof b === "number" ? Math.abs(a - b) <= 1e-9 * Math.max(1e-3, Math.abs(a), Math.abs(b))
    : Array.isArray(a) && Array.isArray(b) ? a.length === b.length && a.every((v, i) => same(v, b[i])) : a === b);

  // Where found values are not those stated; keys that nothing was found for are left alone.
  const compare = (stated, found, where) => Object.entries(found).filter(([key, value]) => !same(stated?.[key], value))
    .map(([key, value]) => `${where}.${key}: stated ${show(stated?.[key] ?? null)}, recomputed ${show(value)}`);
  // Where two JSON values, with numbers as they are written, differ at all.
  const unlike = (a, b, where) => {
    if (a && b && typeof a === "object" && typeof b === "object" && Array.isArray(a) === Array.isArray(b)) {
      return [...new Set([...Object.keys(a), ...Object.keys(b)])].flatMap((key) => unlike(a[key], b[key], where ? `${where}.${key}` : key));
    }
    return a === b ? [] : [`${where}: stated ${show(plain(a ?? null))}, in ${RAW}asked.json ${show(plain(b ?? null))}`];
  };

  // Files -----------------------------------------------------------------------------------------------------------
  const checkFiles = async (files, stated, tell) => {
    const found = [], listed = stated.files ?? {};
    const present = [...files.keys()].filter((name) => name.startsWith(RAW)).map((name) => name.slice(RAW.length));
    for (const name of [...new Set([...Object.keys(listed), ...present, "asked.json"])].sort()) {
      await tell(name);
      if (!(name in listed)) found.push(`${RAW}${name}: not named by the certificate`);
      else if (!files.has(RAW + name)) found.push(`${RAW}${name}: missing`);
      else if (digest(files.get(RAW + name)) !== listed[name]) found.push(`${RAW}${name}: its SHA-256 is not the one in the certificate`);
    }
    return found;
  };
  const checkAsked = (tagged, asked) => {
    const head = Object.fromEntries(Object.entries(tagged).filter(([key]) => !OWN.includes(key)));
    head.regimes = tagged.regimes.map((regime) => Object.fromEntries(Object.entries(regime).filter(([key]) => key !== "seeds")));
    return unlike(head, asked, "");
  };

  // Budgets ---------------------------------------------------------------------------------------------------------
  const onServer = (c) => c.settings.back_end && c.settings.back_end !== "simulated";
  const inside = (r, horizon) => {
    const parts = r.ran.map(([a, b]) => Math.min(Math.max(b, 0), horizon) - Math.min(Math.max(a, 0), horizon)).filter((ns) => ns > 0);
    return { merges: parts.length, busy_s: sum(parts) / NS };
  };
  const judged = (seed) => {
    const found = new Map();
    for (const r of seed.replays) if (!r.invalid && !found.has(`${r.arm} ${r.draw}`)) found.set(`${r.arm} ${r.draw}`, r);
    return found;
  };
  const replaysOf = (seed, arm) => [...judged(seed).values()].filter((r) => r.arm === arm).sort((a, b) => a.draw - b.draw);
  // Merges and busy seconds of every schedule of an arm: those that ran, or in simulation those that were placed.
  const budgets = (seed, arm, regime, server) => {
    const { merge_ns, horizon_ns } = regime.corridor;
    if (server) return replaysOf(seed, arm).map((r) => inside(r, horizon_ns));
    return (seed.arms[arm]?.gaps ?? []).map((gaps) => {
      const ends = endsOf(gaps, regime.corridor), merges = ends.filter((end) => end <= horizon_ns && end >= merge_ns).length;
      return { merges, busy_s: (merges * merge_ns) / NS };
    });
  };
  const endsOf = (gaps, { decision_steps, step_ns, merge_ns }) => {
    let at = 0;
    return gaps.map((gap) => (at += gap * decision_steps * step_ns + merge_ns));
  };
  const outside = (gaps, corridor) => {
    const { h_min, h_max, decision_steps, step_ns, merge_ns, horizon_ns } = corridor;
    const most = Math.floor(h_max / decision_steps), ends = endsOf(gaps, corridor), end = ends.at(-1) ?? 0;
    const bad = gaps.findIndex((gap) => gap < Math.ceil(h_min / decision_steps) || gap > most);
    if (bad >= 0) return `merge ${bad + 1} starts ${gaps[bad] * decision_steps} inner steps after the one before it`;
    if (end > horizon_ns) return "the last merge ends past the horizon";
    return end + most * decision_steps * step_ns + merge_ns <= horizon_ns ? "nothing merges after the last merge though H_max forces one" : null;
  };
  // The seeds that compare placements: on a server, those with every replay and equal budgets.
  const compared = (c, regime, seeds) => {
    if (!onServer(c)) return seeds;
    return seeds.filter((seed) => {
      const found = judged(seed), wanted = [`${POLICY} 0`];
      for (let k = 0; k < (c.settings.idle ?? 1); k++) wanted.push(`${NO_SYNC} ${k}`);
      for (let k = 0; k < c.settings.draws; k++) wanted.push(`${UNIFORM} ${k}`);
      if (!wanted.every((name) => found.has(name))) return false;
      const [own] = budgets(seed, POLICY, regime, true);
      return own.merges > 0 && budgets(seed, UNIFORM, regime, true).slice(0, c.settings.draws)
        .every((b) => b.merges === own.merges && Math.abs(b.busy_s - own.busy_s) <= own.merges * BUSY_WITHIN_S);
    });
  };
  const stated = (claim, gate, check) => claim.gates.find((g) => g.gate === gate)?.checks.find((one) => one.name === check);
  const checkBudget = (c, regime, seeds, claims, where) => {
    const found = [], server = onServer(c), { merge_ns, horizon_ns, step_ns } = regime.corridor;
    seeds.forEach((seed, k) => {
      const own = budgets(seed, POLICY, regime, server)[0], merges = server ? own?.merges ?? 0 : seed.arms[POLICY]?.gaps[0]?.length ?? 0;
      found.push(...compare(regime.seeds[k], {
        seed: seed.seed, trace_digest: seed.digest, requests: seed.n_requests, prompt_tokens: seed.prompt_tokens, output_tokens: seed.output_tokens,
        forced: seed.forced, asked: seed.asked, merges, busy_s: server && own ? own.busy_s : (merges * merge_ns) / NS,
        inner_steps: Math.floor((horizon_ns - merges * merge_ns) / step_ns),
      }, `${where}.seeds[${k}]`));
    });
    if (regime.seeds.length !== seeds.length) found.push(`${where}.seeds: stated ${regime.seeds.length}, recomputed ${seeds.length}`);
    if (server) return found;
    const realised = seeds.map((seed) => seed.arms[POLICY]?.gaps[0]?.length ?? 0);
    const unequal = seeds.findIndex((seed, k) => budgets(seed, UNIFORM, regime, false).some((b) => b.merges !== realised[k]));
    const off = seeds.findIndex((seed) => seed.violation || outside(seed.arms[POLICY]?.gaps[0] ?? [], regime.corridor));
    for (const claim of claims) {
      const budget = stated(claim, "G0", "budget"), corridor = stated(claim, "G0", "corridor");
      if (unequal >= 0 && budget?.status === "passed") found.push(`${regime.name}, seed ${seeds[unequal].seed}: a draw with other merges than the policy's ${realised[unequal]}, where the certificate says that budgets are equal`);
      if (budget?.status === "passed") found.push(...compare(budget.details, { realised, busy_s: (sum(realised) * merge_ns) / NS }, `${regime.name}, budget`));
      if (off >= 0 && corridor?.status === "passed") found.push(`${regime.name}, seed ${seeds[off].seed}: ${seeds[off].violation ?? outside(seeds[off].arms[POLICY].gaps[0], regime.corridor)}`);
      if (corridor?.status === "passed") found.push(...compare(corridor.details, { merges: sum(realised), forced: sum(seeds.map((s) => s.forced)) }, `${regime.name}, corridor`));
    }
    for (const seed of seeds) {
      const draw = (seed.arms[UNIFORM]?.gaps ?? []).findIndex((gaps) => outside(gaps, regime.corridor));
      if (draw >= 0 && off < 0) found.push(`${regime.name}, seed ${seed.seed}, draw ${draw}: ${outside(seed.arms[UNIFORM].gaps[draw], regime.corridor)}`);
    }
    return found;
  };
  // Stored prices of the policy and of no merge are the violations of their rows.
  const checkRows = (regime, seeds) => seeds.flatMap((seed) => [POLICY, NO_SYNC].flatMap((arm) => {
    const rows = seed.rows[arm], price = seed.arms[arm]?.costs[0];
    if (!rows) return seed.replays.length ? [] : [`${regime.name}, seed ${seed.seed}: no rows of ${arm}`];
    if (rows.n !== seed.n_requests) return [`${regime.name}, seed ${seed.seed}: ${rows.n} rows of ${arm} for ${seed.n_requests} requests`];
    return price && !same(price, rows.missed) ? [`${regime.name}, seed ${seed.seed}: violations of ${arm} stated ${show(price)}, counted ${show(rows.missed)}`] : [];
  }));

  // Gains -----------------------------------------------------------------------------------------------------------
  const interpolated = (x, points) => {
    const k = points.findIndex(([place]) => place >= x);
    if (k < 0) return points.at(-1)[1];
    if (k === 0 || points[k][0] === x) return points[k][1];
    const [[x0, y0], [x1, y1]] = [points[k - 1], points[k]];
    return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
  };
  const priced = (seed, arm, index) => {
    const idle = seed.arms[NO_SYNC]?.costs[0]?.[index];
    return (seed.arms[arm]?.costs ?? []).map((cost) => (100 * (cost[index] - idle)) / seed.n_requests);
  };
  const idleOf = (c, seed, index, r = null) => {
    if (!onServer(c)) return seed.arms[NO_SYNC]?.costs[0]?.[index] ?? NaN;
    const idle = replaysOf(seed, NO_SYNC).map((i) => [i.position, i.missed[index]]).sort((a, b) => a[0] - b[0]);
    return c.settings.back_end === "live" && r ? interpolated(r.position, idle) : mean(idle.map(([, count]) => count));
  };
  const excess = (c, seed, arm, index) => (onServer(c)
    ? replaysOf(seed, arm).map((r) => (100 * (r.missed[index] - idleOf(c, seed, index, r))) / seed.n_requests) : priced(seed, arm, index));
  // [s][t]: on trace s, the schedule made on trace t, at the merges of trace s's own.
  const exchanged = (seeds, index) => {
    const every = Math.max(...seeds.map((s) => s.seed)) + 1;
    return seeds.map((seed) => {
      const costs = priced(seed, CROSSED, index), lengths = (seed.arms[CROSSED]?.gaps ?? []).map((gaps) => gaps.length);
      return seeds.map((other) => (costs.length < every ? NaN : (costs[other.seed] / lengths[other.seed]) * lengths[seed.seed]));
    });
  };
  const offDiagonal = (cost) => cost.map((row, s) => (sum(row) - row[s]) / (row.length - 1));
  const measured = (c, regime, seeds, index) => {
    const blocks = seeds.map((seed) => [excess(c, seed, POLICY, index)[0], ...excess(c, seed, UNIFORM, index)]);
    const known = seeds.length > 0 && blocks.every((block) => block.length > 1 && block.every(Number.isFinite));
    // Merges that are not all alike are exchanged by their busy time, which is not counted here.
    const unequal = new Set(regime.peer?.bandwidth).size > 1 || seeds.some((s) => s.arms[CROSSED]?.unlike || s.arms[CROSSED]?.mixed);
    const left = c.settings.back_end === "live" || seeds.length < 2 || unequal;
    const cost = left ? null : exchanged(seeds, index);
    return { blocks, known, cost: cost?.flat().every(Number.isFinite) ? cost : null };
  };
  // Real gains less what the simulator says is special about the replayed seeds; slopes do not see their own seed.
  const predicted = (seeds, further, index, blocks) => {
    const simulated = seeds.map((s) => [POLICY, UNIFORM].flatMap((arm) => priced(s, arm, index)));
    const gain = (b) => mean(b.slice(1)) - b[0], centred = (b) => b.slice(1).map((v) => (Math.abs(v - mean(b.slice(1))) <= 1e-12 * Math.max(...b.slice(1).map(Math.abs)) ? 0 : v - mean(b.slice(1)))), dot = (a, b) => sum(a.map((v, k) => v * b[k]));
    const seen = blocks.map(centred), said = simulated.map(centred), products = seen.map((v, s) => dot(v, said[s])), squares = said.map((v) => dot(v, v));
    const slopes = seeds.map((_, s) => (sum(squares) - squares[s] > 0 ? (sum(products) - products[s]) / (sum(squares) - squares[s]) : 0));
    const elsewhere = mean(further.map((s) => gain([POLICY, UNIFORM].flatMap((arm) => priced(s, arm, index))))), gains = blocks.map(gain);
    const adjusted = gains.map((v, s) => v - slopes[s] * (gain(simulated[s]) - elsewhere)), spread = (v) => sum(v.map((x) => (x - mean(v)) ** 2));
    const scale = Math.sqrt(sum(seen.map((v) => dot(v, v))) * sum(squares));
    return { estimate: mean(adjusted), part: {
      further: further.length, simulated_gain_pp: mean(simulated.map(gain)), further_gain_pp: elsewhere, correlation: scale > 0 ? sum(products) / scale : null,
      slope: mean(slopes), noise_left: spread(gains) > 0 ? spread(adjusted) / spread(gains) : null, plain_gain_pp: mean(gains),
    } };
  };
  const numbers = (c, regime, seeds, index, { blocks, known, cost }) => {
    const server = onServer(c), requests = seeds.map((s) => s.n_requests), idle = seeds.map((s) => (100 * idleOf(c, s, index)) / s.n_requests);
    if (!known) return { gain_pp: null, policy_excess_pp: null, control_excess_pp: null, per_seed: [] };
    const own = blocks.map((b) => b[0]), drawn = blocks.map((b) => mean(b.slice(1))), gains = drawn.map((v, k) => v - own[k]);
    const merges = seeds.map((s) => (server ? budgets(s, POLICY, regime, true)[0].merges : s.arms[POLICY].gaps[0].length));
    const best = seeds.map((s) => (server ? NaN : priced(s, OPTIMUM, index)[index] ?? NaN));
    const optimum = finite(mean(drawn.map((v, k) => v - best[k]))), perMerge = (v) => (sum(merges) ? sum(v.map((x, k) => x * requests[k])) / 100 / sum(merges) : null);
    const worst = Chance.gainsBySeed(blocks).reduce((least, v, k, all) => (v < all[least] ? k : least), 0);
    const saved = (mean(gains.map((v, k) => (v * requests[k]) / 100)) * 600) / (regime.corridor.horizon_ns / NS) / regime.islands;
    return {
      gain_pp: mean(gains), policy_excess_pp: mean(own), control_excess_pp: mean(drawn), no_sync_violation_pct: mean(idle),
      policy_violations_per_merge: perMerge(own), control_violations_per_merge: perMerge(drawn), optimum_gain_pp: optimum,
      gain_captured: optimum ? finite(mean(gains) / optimum) : null, requests_saved_per_sidecar_per_10_min: finite(saved),
      worst_seed: seeds[worst].seed, worst_seed_gain_pp: gains[worst], n_seeds: seeds.length, n_draws: Math.min(...blocks.map((b) => b.length - 1)),
      ...(cost ? { load_gain_pp: mean(offDiagonal(cost).map((v, s) => v - cost[s][s])) } : {}),
      per_seed: seeds.map((s, k) => ({
        seed: s.seed, merges: merges[k], policy: own[k], draw_mean: drawn[k], rank: Chance.rank(blocks[k]), of: blocks[k].length, no_sync_pct: idle[k], optimum: finite(best[k]),
        draw_sd: blocks[k].length > 2 ? Math.sqrt(sum(blocks[k].slice(1).map((v) => (v - drawn[k]) ** 2)) / (blocks[k].length - 2)) : 0,
      })),
    };
  };
  const checkGains = (c, claim, regime, seeds, index, found, where, further) => {
    const e = claim.envelope, now = numbers(c, regime, seeds, index, found), { per_seed, ...values } = now, wrong = [];
    if (e.predicted && found.known) {
      const { estimate, part } = predicted(seeds, further, index, found.blocks);
      now.gain_pp = values.gain_pp = estimate;
      wrong.push(...compare(e.predicted, part, `${where}.predicted`));
    }
    if (!e.tests.length) delete values.load_gain_pp;  // undecidable: the load's gain is not stated
    wrong.push(...compare(e, values, where));
    if (e.per_seed.length !== per_seed.length) wrong.push(`${where}.per_seed: stated ${e.per_seed.length} seeds, recomputed ${per_seed.length}`);
    per_seed.forEach((row, k) => wrong.push(...compare(e.per_seed[k], row, `${where}.per_seed[${k}]`)));
    const controls = { [UNIFORM]: now.gain_pp, "unrelated-trace": now.load_gain_pp };
    if (found.cost) controls.placebo = mean(offDiagonal(found.cost).map((v, s) => mean(found.blocks[s].slice(1)) - v));
    for (const control of e.controls) {
      if (!found.cost && ["unrelated-trace", "placebo"].includes(control.name)) continue;
      const kept = seeds.map((s) => [excess(c, s, POLICY, index)[0], ...excess(c, s, control.name, index)]).filter((block) => block.length > 1 && block.every(Number.isFinite));
      const gain = controls[control.name] ?? (kept.length ? mean(kept.map((b) => mean(b.slice(1)) - b[0])) : null);
      if (control.gain_pp !== null && !same(control.gain_pp, gain)) wrong.push(`${where}, control ${control.name}: stated ${show(control.gain_pp)} pp, recomputed ${show(gain)}`);
    }
    return [wrong, now];
  };

  // p-values --------------------------------------------------------------------------------------------------------
  const TESTS = {
    "stratified randomisation": ({ blocks }, random) => Chance.stratified(blocks, random),
    "paired sign flip": ({ blocks }, random) => Chance.signFlip(Chance.gainsBySeed(blocks), Chance.tie(blocks), random),
    "exchange between traces": ({ cost }, random) => (cost ? Chance.exchange(cost, random) : null),
    "paired sign flip of the load gain": ({ cost }, random) => (cost ? Chance.loadFlip(cost, random) : null),
  };
  const checkTests = (claim, found, where, k) => {
    const wrong = [], said = [], left = [];
    for (const [i, t] of claim.envelope.tests.entries()) {
      const again = found.known ? TESTS[t.name]?.(found, Chance.stream(20261130 + 97 * k + i)) : null;
      if (!again) {
        left.push(t.name);
        continue;
      }
      for (const [key, gain] of [["p", claim.envelope.min_effect_pp], ["p_at_zero", 0]]) {
        const p = again.p(gain), most = again.exact ? 1e-9 : Chance.error(p, t[key] ?? 2);
        if (!(Math.abs(p - t[key]) <= most)) wrong.push(`${where}.tests[${i}].${key}: stated ${show(t[key])}, recomputed ${show(p)}${again.exact ? "" : ", beyond Monte Carlo error"}`);
      }
      said.push(`${t.name} ${show(Number(again.p(claim.envelope.min_effect_pp).toPrecision(3)))} (stated ${show(Number(t.p.toPrecision(3)))}${again.exact ? ", exact" : ""})`);
    }
    const ps = claim.envelope.tests.map((t) => t.p), { p, p_sequential: early, decided_by: by } = claim.envelope;
    if (ps.length && early === null && p !== Math.max(...ps)) wrong.push(`${where}.p: stated ${show(p)}, the largest of its tests is ${show(Math.max(...ps))}`);
    if (ps.length && !claim.envelope.tests.some((t) => t.name === by && t.p === Math.max(...ps))) wrong.push(`${where}.decided_by: stated ${show(by)}, which has not the largest p`);
    return [wrong, said, left];
  };

  // Verdicts --------------------------------------------------------------------------------------------------------
  const worstOf = (statuses) => (statuses.includes("failed") ? "failed" : statuses.length && statuses.every((s) => s === "passed") ? "passed" : "undecidable");
  const checkVerdicts = (c) => {
    const found = [], server = onServer(c), adjusted = Chance.holm(c.claims.map((claim) => claim.envelope.p));
    c.claims.forEach((claim, k) => {
      const where = `claims[${k}]`, status = Object.fromEntries(claim.gates.map((g) => [g.gate, g.status]));
      for (const g of claim.gates) found.push(...compare(g, { status: worstOf(g.checks.map((one) => one.status)) }, `${where}, ${g.gate}`));
      const deciding = worstOf(claim.gates.filter((g) => server || g.gate !== "G1").map((g) => g.status));
      const tier = status.G0 === "failed" ? 0 : server ? (c.settings.back_end === "real" ? 3 : 4) : deciding === "passed" && ["G1", "G2", "G4"].every((g) => status[g] === "passed") ? 2 : 1;
      found.push(...compare(claim, { verdict: NAMES[deciding] }, where), ...compare(claim.tier, { number: tier }, `${where}.tier`));
      found.push(...compare(claim.envelope, { p_holm: adjusted[k], min_effect_pp: c.settings.min_effect_pp }, `${where}.envelope`));
      const placement = stated(claim, "G3", "placement");
      if (placement && placement.status === "passed" && !(adjusted[k] <= c.settings.alpha)) found.push(`${where}, G3: passed, though Holm p is ${show(adjusted[k])}`);
      if (placement && placement.statistic !== null) found.push(...compare(placement, { statistic: adjusted[k], threshold: c.settings.alpha }, `${where}, G3`));
    });
    const verdicts = c.claims.map((claim) => claim.verdict), broken = c.claims.filter((claim) => claim.tier.number === 0);
    const verdict = broken.length ? "FAIL" : verdicts.includes("PASS") ? "PASS" : verdicts.includes("INCONCLUSIVE") ? "INCONCLUSIVE" : "FAIL";
    const passed = c.claims.filter((claim) => claim.verdict === "PASS"), tiers = (broken.length ? broken : passed.length ? passed : c.claims).map((claim) => claim.tier.number);
    return [...found, ...compare(c, { verdict }, "certificate"), ...compare(c.tier, { number: Math.max(...tiers) }, "tier")];
  };
  const checkReplays = (c, worlds) => {
    const all = [...worlds.values()].flat().flatMap((seed) => seed.replays.map((r) => ({ ...r, seed: seed.seed })));
    return all.flatMap((r) => {
      const row = (c.replays ?? []).find((one) => one.seed === r.seed && one.arm === r.arm && one.draw === r.draw && one.attempt === r.attempt && one.position === r.position);
      if (!row) return [`replays: nothing stated of seed ${r.seed}, ${r.arm} ${r.draw}, attempt ${r.attempt}`];
      const wrong = (row.invalid !== null) !== r.invalid ? [`replays, seed ${r.seed}, ${r.arm} ${r.draw}: stated ${row.invalid ?? "valid"}, found ${r.invalid ? "invalid" : "valid"}`] : [];
      return [...wrong, ...compare(row, { requests: r.requests, served: r.served, merges: r.ran.length, busy_s: sum(r.ran.map(([a, b]) => b - a)) / NS }, `replays, seed ${r.seed}, ${r.arm} ${r.draw}`)];
    });
  };

  // What is left to trust, in the words of `protocol verify`.
  const notShown = (c, left, peers) => {
    const lines = [];
    if (onServer(c)) lines.push(`that ${c.server?.name ?? "a server"} served these rows: what happened cannot happen again`);
    else lines.push("that this scheduler took these decisions, in a second run and in altered futures too: protocol verify . --rerun SCHEDULER shows it");
    if (c.settings.back_end !== "live") lines.push("that loads, draws and prices follow from root, regime and the sidecar's model: protocol verify . makes them again");
    lines.push("intervals, lower bounds, detectable gains and power curves, and the checks of gates beside budget, corridor and placement: protocol verify . recomputes them");
    if (left.length) lines.push(`tests that this page does not make again: ${[...new Set(left)].join(", ")}`);
    if (peers.length) lines.push(`budgets and corridor where islands merge as peers, or merges are not all alike, and of the latter the load's part of the gain: ${peers.join(", ")}`);
    for (const name of new Set(c.regimes.map((r) => r.sidecar.calibration?.name).filter(Boolean))) lines.push(`that a server showed the rows of calibration ${name}`);
    if (c.preregistration) lines.push(`that registration ${c.preregistration.slice(0, 16)} was written before: compare with the file itself`);
    if (c.settings.root === "fresh") lines.push("that its nonce was drawn once");
    lines.push("who made it: this page checks no signature");
    lines.push("the code of this page itself: whoever edits a page can edit what it says; draw it again with protocol report");
    return lines;
  };

  // files: Map of name within the run's folder to bytes.  page: what this page says of its certificate.
  const check = async (files, page = null, tell = async () => {}) => {
    const differs = [], agrees = [], skipped = [];
    const take = (lines, otherwise) => (lines.length ? differs.push(...lines) : agrees.push(otherwise));
    const result = (left) => ({ differs, agrees, skipped: left });
    if (!files.has(CERTIFICATE)) return { differs: [`${CERTIFICATE}: missing; drop the folder that holds it`], agrees, skipped: [] };
    let certificate, tagged, text;
    try {
      ({ tagged, text } = written(files.get(CERTIFICATE)));
      certificate = plain(tagged);
    } catch (error) {
      return { differs: [`${CERTIFICATE}: cannot be read (${error.message})`], agrees, skipped: [] };
    }
    if (certificate.schema !== "diloco-protocol/certificate" || certificate.schema_version !== 2) {
      return { differs: [`${CERTIFICATE}: schema ${show(certificate.schema ?? null)}, version ${show(certificate.schema_version ?? null)}; this page checks version 2: protocol verify . reads older ones`], agrees, skipped: [] };
    }
    try {
      take(text === `${canonical(tagged)}\n` ? [] : [`${CERTIFICATE}: not in canonical form; it was edited after it was written`], `${CERTIFICATE}: in canonical form`);
      if (page) take(ofPage(certificate, page), "this page: verdict, sentence, gains and digests are those of this certificate");
      take(await checkFiles(files, certificate, tell), `${Object.keys(certificate.files ?? {}).length} raw files: the SHA-256 of each`);
      const asked = files.get(`${RAW}asked.json`);
      if (asked) take(checkAsked(tagged, written(asked).tagged), "what was asked: as raw/asked.json has it");
      const worlds = await RunFolder.worlds(files, certificate.regimes, tell);
      const { left, peers } = await checkClaims(certificate, worlds, take, tell);
      if (onServer(certificate)) take(checkReplays(certificate, worlds), `${certificate.replays.length} replays on the server: their requests, merges and busy seconds, and which of them count`);
      take(checkVerdicts(certificate), "Holm's correction, gates, tiers and the verdict: they follow from each other");
      skipped.push(...notShown(certificate, left, peers));
    } catch (error) {
      differs.push(error.message.startsWith(RAW) ? error.message : `${CERTIFICATE} or ${RAW}: cannot be judged (${error.message})`);
    }
    return result(skipped);
  };
  const ofPage = (c, page) => {
    const wrong = [];
    if (c.verdict !== page.verdict || c.sentence !== page.sentence) wrong.push("this page: verdict or sentence are not this certificate's; it is the page of another run, or was edited");
    if (JSON.stringify(Object.entries(c.files ?? {}).sort()) !== JSON.stringify(Object.entries(page.files).sort())) wrong.push("this page: lists other digests than this certificate");
    if (c.claims.length !== page.claims.length) wrong.push(`this page: shows ${page.claims.length} claims, the certificate states ${c.claims.length}`);
    page.claims.forEach((claim, k) => {
      const envelope = c.claims[k]?.envelope ?? {}, shared = Object.entries(claim).filter(([key]) => key.endsWith("_pp") && key in envelope);
      for (const [key, value] of shared) if (!same(envelope[key], value)) wrong.push(`this page, claim ${k + 1}, ${key}: shows ${show(value)}, the certificate states ${show(envelope[key])}`);
    });
    return wrong;
  };
  const checkClaims = async (c, worlds, take, tell) => {
    const left = [], peers = [];
    let at = 0;
    for (const [i, regime] of c.regimes.entries()) {
      const every = worlds.get(regime.name), seeds = every.filter((s) => s.seed < regime.n_seeds), further = every.slice(seeds.length);
      const kept = compared(c, regime, seeds), claims = c.claims.slice(at, at + regime.slos.length);
      if (regime.peer || seeds.some((seed) => Object.values(seed.arms).some((arm) => arm.unlike))) peers.push(regime.name);
      else take(checkBudget(c, regime, seeds, claims, `regimes[${i}]`), `${regime.name}: merges, busy seconds and load of ${seeds.length} seeds, and the budgets of their draws`);
      if (!onServer(c)) take(checkRows(regime, seeds), `${regime.name}: violations of the policy and without merges, counted in their rows`);
      for (const [index, claim] of claims.entries()) {
        const k = at + index, name = `${claim.regime}, ${claim.slo}`, found = measured(c, regime, kept, index);
        await tell(name);
        if (claim.regime !== regime.name || claim.slo !== regime.slos[index]) take([`claims[${k}]: ${name}; expected ${regime.name}, ${regime.slos[index]}`], "");
        const [wrong, now] = checkGains(c, claim, regime, kept, index, found, `claims[${k}].envelope`, further);
        const load = now.load_gain_pp === undefined ? "" : `, ${shown(now.load_gain_pp)} pp from following the load`;
        take(wrong, `${name}: ${now.gain_pp === null ? "no gain is known" : `gain ${shown(now.gain_pp)} pp over chance${load}`}, every seed's costs, rank and optimum`);
        const [off, said, unknown] = checkTests(claim, found, `claims[${k}].envelope`, k);
        left.push(...unknown);
        take(off, said.length ? `${name}: p by this page's own random numbers: ${said.join(", ")}` : `${name}: no p-value is stated`);
      }
      at += regime.slos.length;
    }
    if (at !== c.claims.length) take([`claims: stated ${c.claims.length}, asked for ${at}`], "");
    return { left, peers };
  };

  return { check };
})();
