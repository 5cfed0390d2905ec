// A run's folder as the page's check reads it: bytes by name, and from its Parquet files every seed's schedules and counts.
"use strict";
const RunFolder = (() => {
  const CERTIFICATE = "certificate.json", RAW = "raw/", WITHIN_NS = 50e6, SENT_WITHIN_NS = 5e6, SENT_SHARE = 0.99;
  const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  const digest = (bytes) => hex(Parquet.sha256(bytes));

  // JSON with numbers as they are written: the certificate tells 1 from 1.0.
  const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|NaN|-?Infinity/g, TAG = "\u0000";
  const written = (bytes) => {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    const tagged = text.replace(TOKEN, (t) => (t[0] === '"' ? t : `"\\u0000${t}"`));
    return { text, tagged: JSON.parse(tagged) };
  };
  const plain = (value) => {
    if (typeof value === "string") return value[0] === TAG ? Number(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(plain);
    return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v)])) : value;
  };
  // A number as Python writes it.
  const number = (token) => {
    if (/^-?(0|[1-9]\d*)$/.test(token)) return token;
    const value = Number(token);
    if (!Number.isFinite(value)) return "not a number";
    const [digits, power] = value.toExponential().split("e");
    if (value && (power < -4 || power >= 16)) return `${digits}e${power[0]}${power.slice(1).padStart(2, "0")}`;
    const fixed = Object.is(value, -0) ? "-0" : String(value);
    return /[.]/.test(fixed) ? fixed : `${fixed}.0`;
  };
  const points = (text) => Array.from(text, (c) => c.codePointAt(0));
  const inOrder = (a, b) => {
    const [x, y] = [points(a), points(b)], at = x.findIndex((c, i) => c !== y[i]);
    return at < 0 ? x.length - y.length : (x[at] ?? -1) - (y[at] ?? -1);
  };
  const canonical = (value, indent = "\n") => {
    if (typeof value === "string") return value[0] === TAG ? number(value.slice(1)) : JSON.stringify(value);
    if (value === null || typeof value !== "object") return String(value);
    const inner = `${indent}  `, list = Array.isArray(value);
    const parts = list ? value.map((v) => canonical(v, inner))
      : Object.keys(value).sort(inOrder).map((k) => `${JSON.stringify(k)}: ${canonical(value[k], inner)}`);
    if (!parts.length) return list ? "[]" : "{}";
    return `${list ? "[" : "{"}${inner}${parts.join(`,${inner}`)}${indent}${list ? "]" : "}"}`;
  };

  // Columns of a Parquet file by name; whole numbers as numbers.
  const table = async (files, name, columns, mayLack = []) => {
    const bytes = files.get(RAW + name);
    if (!bytes) throw new Error(`${RAW}${name}: missing`);
    const file = bytes.slice().buffer;
    try {
      const metadata = Parquet.parquetMetadata(file), n = Number(metadata.num_rows);
      const there = new Set(metadata.schema.map((e) => e.name));
      columns = columns.filter((column) => there.has(column) || !mayLack.includes(column));
      for (const column of columns) if (!there.has(column)) throw new Error(`no column ${column}`);
      const found = Object.fromEntries(columns.map((c) => [c, null]));
      await Parquet.parquetRead({
        file, metadata, columns, compressors: { ZSTD: (input, size) => Parquet.decompress(input, new Uint8Array(size)) },
        onChunk: ({ columnName, columnData, rowStart }) => {
          const whole = ArrayBuffer.isView(columnData), into = (found[columnName] ??= whole ? new Float64Array(n) : new Array(n));
          for (let i = 0; i < columnData.length; i++) into[rowStart + i] = typeof columnData[i] === "bigint" ? Number(columnData[i]) : columnData[i];
        },
      });
      for (const column of columns) {
        const values = (found[column] ??= new Array(n));
        for (let i = 0; i < n && Array.isArray(values); i++) {
          if (values[i] === undefined || values[i] === null) {
            if (!mayLack.includes(column)) throw new Error(`an empty cell in ${column}`);
          } else if (typeof values[i] === "object") {
            // Of a list of lists only how long each is.
            values[i] = Array.from(values[i], (v) => (typeof v === "object" ? v.length : Number(v)));
          }
        }
      }
      return { n, ...found };
    } catch (error) {
      throw new Error(`${RAW}${name}: cannot be read (${error.message})`);
    }
  };

  // Requests that miss a limit --------------------------------------------------------------------------------------
  const UNIT_NS = { s: 1e9, ms: 1e6, us: 1e3 };
  const limits = (slo) => Object.fromEntries(slo.split(",").map((term) => {
    const [, metric, value, unit] = /^\s*([a-z0-9]+)\s*<=\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*$/.exec(term);
    return [metric, Math.round(Number(value) * UNIT_NS[unit])];
  }));
  const READ = { e2e: ["e2e_ns"], ttft: ["ttft_ns"], tpot: ["e2e_ns", "ttft_ns", "output_tokens"], itl: ["max_itl_ns"] };
  const columnsOf = (slos) => [...new Set(["outcome", ...Object.values(slos).flat().flatMap((slo) => Object.keys(slo).flatMap((metric) => READ[metric]))])];
  const misses = (rows, i, slo) => {
    if (rows.outcome[i] !== 0) return true;
    const { e2e, ttft, tpot, itl } = slo, late = (metric, limit) => metric[i] < 0 || metric[i] > limit;
    if (e2e !== undefined && rows.e2e_ns[i] > e2e) return true;
    if (ttft !== undefined && late(rows.ttft_ns, ttft)) return true;
    if (tpot !== undefined) {
      const gaps = rows.output_tokens[i] - 1, first = rows.ttft_ns[i];
      if (first < 0 || (gaps > 0 && rows.e2e_ns[i] - first > tpot * gaps)) return true;
    }
    return itl !== undefined && late(rows.max_itl_ns, itl);
  };
  // Missed requests of rows a to b, a count for each limit.
  const counted = (rows, a, b, slos) => slos.map((slo) => {
    let missed = 0;
    for (let i = a; i < b; i++) missed += misses(rows, i, slo);
    return missed;
  });

  // Every seed ------------------------------------------------------------------------------------------------------
  const stretches = (rows, keys) => {
    const found = [];
    for (let a = 0, b = 1; b <= rows.n; b++) {
      if (b < rows.n && keys.every((k) => rows[k][b] === rows[k][a])) continue;
      found.push([a, b]);
      a = b;
    }
    return found;
  };
  // The seeds of every regime: {seed, requests, ..., arms: {arm: {gaps, costs}}, rows: {arm: counts}, replays}.
  const worlds = async (files, regimes, tell) => {
    const slos = Object.fromEntries(regimes.map((r) => [r.name, r.slos.map(limits)]));
    const whole = ["n_requests", "prompt_tokens", "output_tokens", "forced"];
    await tell("seeds");
    const seeds = await table(files, "seeds.parquet", ["regime", "seed", "trace_digest", "corridor_violation", ...whole], ["corridor_violation"]);
    const found = new Map(regimes.map((r) => [r.name, []])), byKey = new Map();
    for (let i = 0; i < seeds.n; i++) {
      const one = { seed: seeds.seed[i], digest: seeds.trace_digest[i], violation: seeds.corridor_violation[i] ?? null, arms: {}, rows: {}, replays: [], asked: 0 };
      for (const name of whole) one[name] = seeds[name][i];
      if (!found.has(seeds.regime[i])) throw new Error(`${RAW}seeds.parquet: regime ${seeds.regime[i]}, which nobody asked for`);
      found.get(seeds.regime[i]).push(one);
      byKey.set(`${seeds.regime[i]}\n${seeds.seed[i]}`, one);
    }
    for (const list of found.values()) list.sort((a, b) => a.seed - b.seed);
    const of = (rows, i) => {
      const one = byKey.get(`${rows.regime[i]}\n${rows.seed[i]}`);
      if (!one) throw new Error(`${RAW}: rows of ${rows.regime[i]}, seed ${rows.seed[i]}, which is not among the seeds`);
      return one;
    };
    if (files.has(`${RAW}decisions.parquet`)) {
      const rows = await table(files, "decisions.parquet", ["regime", "seed"]);
      for (let i = 0; i < rows.n; i++) of(rows, i).asked += 1;
    }
    if (files.has(`${RAW}placements.parquet`)) {
      await tell("placements");
      // Merges that are not all alike have columns of their own.
      const rows = await table(files, "placements.parquet", ["regime", "seed", "arm", "gaps", "violations", "next_ns", "groups"], ["next_ns", "groups"]);
      for (const [a, b] of stretches(rows, ["regime", "seed", "arm"])) {
        const mixed = new Set(rows.groups?.slice(a, b).flat()).size > 1;
        of(rows, a).arms[rows.arm[a]] = { gaps: rows.gaps.slice(a, b), costs: rows.violations.slice(a, b), unlike: Boolean(rows.next_ns?.[a]), mixed };
      }
    }
    if (files.has(`${RAW}requests.parquet`)) {
      await tell("requests");
      const rows = await table(files, "requests.parquet", ["regime", "seed", "arm", ...columnsOf(slos)]);
      for (const [a, b] of stretches(rows, ["regime", "seed", "arm"])) of(rows, a).rows[rows.arm[a]] = { n: b - a, missed: counted(rows, a, b, slos[rows.regime[a]]) };
    }
    if (files.has(`${RAW}replays.parquet`)) await replays(files, slos, of, tell);
    return found;
  };

  // Attempts on a real server ---------------------------------------------------------------------------------------
  const pairs = (flat) => Array.from({ length: flat.length / 2 }, (_, k) => [flat[2 * k], flat[2 * k + 1]]);
  const invalid = (r) => {
    if (r.sent < SENT_SHARE) return true;
    if (r.ran.length !== r.planned.length) return true;
    return r.ran.some(([a, b], k) => Math.abs(a - r.planned[k][0]) > WITHIN_NS || b - r.planned[k][1] > WITHIN_NS
      || (b - r.planned[k][1] < -WITHIN_NS && !r.mayEndEarly));
  };
  const replays = async (files, slos, of, tell) => {
    await tell("replays");
    const about = await table(files, "replays.parquet", ["regime", "seed", "arm", "draw", "position", "attempt", "may_end_early", "requests", "planned_ns", "ran_ns"]);
    const rows = await table(files, "served.parquet", ["replay", "arrival_ns", "sent_ns", ...columnsOf(slos)]);
    const asked = files.has(`${RAW}answers.parquet`) ? await table(files, "answers.parquet", ["replay", "said"], ["said"]) : { n: 0 };
    let a = 0;
    for (let k = 0; k < about.n; k++) {
      const b = a + about.requests[k];
      for (let i = a; i < b; i++) if (rows.replay[i] !== k) throw new Error(`${RAW}served.parquet: not the rows that replays.parquet says, in its order`);
      let sent = 0, served = 0;
      for (let i = a; i < b; i++) {
        sent += rows.sent_ns[i] >= 0 && rows.sent_ns[i] - rows.arrival_ns[i] <= SENT_WITHIN_NS;
        served += rows.outcome[i] === 0;
      }
      const one = of(about, k);
      const r = { arm: about.arm[k], draw: about.draw[k], position: about.position[k], attempt: about.attempt[k], mayEndEarly: about.may_end_early[k],
        requests: b - a, served, sent: b > a ? sent / (b - a) : 1, planned: pairs(about.planned_ns[k]), ran: pairs(about.ran_ns[k]), missed: counted(rows, a, b, slos[about.regime[k]]) };
      one.replays.push({ ...r, invalid: invalid(r), index: k });
      for (let i = 0; i < asked.n; i++) one.asked += asked.replay[i] === k && typeof asked.said[i] === "boolean";
      a = b;
    }
    if (a !== rows.n) throw new Error(`${RAW}served.parquet: ${rows.n} rows; expected ${a}, as replays.parquet says`);
  };

  return { CERTIFICATE, RAW, canonical, counted, digest, limits, plain, worlds, written };
})();
