// Randomisation tests of the page's check, by its own random numbers.
"use strict";
const Chance = (() => {
  const RTOL = 1e-12, RESAMPLES = 9999, LISTED = 100000, SIGNS = 20, ORDERS = 8;
  const sum = (values) => values.reduce((a, b) => a + b, 0), mean = (values) => sum(values) / values.length;
  const largest = (values) => values.reduce((a, v) => Math.max(a, Math.abs(v)), 0);

  // sfc32 (Doty-Humphrey), from a seed of its own.
  const stream = (seed) => {
    let a = seed | 0, b = 0x9e3779b9 | 0, c = 0x243f6a88 | 0, d = 1;
    const next = () => {
      const t = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (c << 21) | (c >>> 11);
      c = (c + t) | 0;
      return t >>> 0;
    };
    for (let i = 0; i < 16; i++) next();
    return (n) => Math.floor((next() / 4294967296) * n);
  };

  // A test as its turning points: a relabelling is as extreme as what was seen when the gain is at least its point.
  const test = (points, same, size, slack, exact) => ({
    exact, size, p: (gain) => (same + points.reduce((k, point) => k + (point <= gain + slack), 0)) / size,
  });
  const sampled = (relabel, slack) => {
    const points = [];
    for (let i = 0; i < RESAMPLES; i++) {
      const [excess, changed] = relabel();
      if (changed) points.push(excess / changed);
    }
    return test(points, RESAMPLES - points.length + 1, RESAMPLES + 1, slack, false);
  };
  const tie = (blocks) => RTOL * sum(blocks.map(largest));

  // blocks: of each seed the policy's cost and its draws'.  One value of each seed takes the policy's place.
  const stratified = (blocks, random) => {
    const slack = tie(blocks), size = blocks.reduce((n, block) => n * block.length, 1);
    const near = (excess) => (Math.abs(excess) <= slack ? 0 : excess);
    if (size > LISTED) {
      return sampled(() => {
        let excess = 0, changed = 0;
        for (const block of blocks) {
          const k = random(block.length);
          excess += block[k] - block[0];
          changed += k > 0;
        }
        return [near(excess), changed];
      }, slack);
    }
    let all = [[0, 0]];
    for (const block of blocks) all = all.flatMap(([e, n]) => block.map((v, k) => [e + v - block[0], n + (k > 0)]));
    const moved = all.filter(([, n]) => n).map(([e, n]) => near(e) / n);
    return test(moved, size - moved.length, size, slack, true);
  };

  // gains: by seed.  Every subset of the seeds changes its sign.
  const subsets = (values) => values.reduce((found, v) => [...found, ...found.map(([s, n]) => [s + v, n + 1])], [[0, 0]]);
  const signFlip = (gains, slack, random) => {
    if (gains.length > SIGNS) {
      return sampled(() => {
        let excess = 0, changed = 0;
        for (const gain of gains) if (random(2)) [excess, changed] = [excess + gain, changed + 1];
        return [excess, changed];
      }, slack);
    }
    const half = gains.length >> 1, halves = [subsets(gains.slice(0, half)), subsets(gains.slice(half))], size = 2 ** gains.length;
    return {
      exact: true, size, p: (gain) => {
        const [left, right] = halves.map((part) => Float64Array.from(part, ([s, n]) => s - (gain + slack) * n).sort());
        let count = 0, end = right.length;
        for (const value of left) {
          while (end > 0 && value + right[end - 1] > 0) end -= 1;
          count += end;
        }
        return count / size;  // the empty subset stands for what was seen
      },
    };
  };

  // cost[s][t]: on trace s, of the schedule made on trace t.  Schedules are dealt to the traces in another order.
  const exchange = (cost, random) => {
    const slack = RTOL * sum(cost.map(largest)), size = cost.length;
    const of = (order) => {
      let excess = 0, changed = 0;
      for (let s = 0; s < size; s++) {
        excess += cost[s][order[s]] - cost[s][s];
        changed += order[s] !== s;
      }
      return [excess, changed];
    };
    if (size > ORDERS) {
      return sampled(() => {
        const order = Array.from({ length: size }, (_, k) => k);
        for (let k = size - 1; k > 0; k--) {
          const other = random(k + 1);
          [order[k], order[other]] = [order[other], order[k]];
        }
        return of(order);
      }, slack);
    }
    const orders = (left) => (left.length < 2 ? [left] : left.flatMap((v, k) => orders([...left.slice(0, k), ...left.slice(k + 1)]).map((o) => [v, ...o])));
    const all = orders(Array.from({ length: size }, (_, k) => k)).map(of), moved = all.filter(([, n]) => n).map(([e, n]) => e / n);
    return test(moved, all.length - moved.length, all.length, slack, true);
  };
  const ownTrace = (cost) => {
    const size = cost.length, own = cost.map((row, s) => row[s]);
    const rows = cost.map((row, s) => sum(row) - own[s]), columns = own.map((v, t) => sum(cost.map((row) => row[t])) - v);
    if (size === 2) return rows.map((v, s) => v - own[s]);
    return own.map((v, s) => (rows[s] + columns[s] - sum(rows) / (size - 1)) / (size - 2) - v);
  };
  const loadFlip = (cost, random) => {
    const slack = RTOL * sum(cost.map(largest));
    return signFlip(ownTrace(cost).map((v) => (Math.abs(v) <= slack ? 0 : v)), slack, random);
  };
  const gainsBySeed = (blocks) => blocks.map((block) => {
    const gain = mean(block.slice(1)) - block[0];
    return Math.abs(gain) <= RTOL * largest(block) ? 0 : gain;
  });
  const rank = (block) => block.filter((v) => v <= block[0] + RTOL * largest(block)).length;
  const holm = (ps) => {
    const order = ps.map((p, k) => [p ?? 1, k]).sort((a, b) => a[0] - b[0] || a[1] - b[1]), found = [];
    let most = 0;
    order.forEach(([p, k], i) => { found[k] = Math.min((most = Math.max(most, p * (ps.length - i))), 1); });
    return ps.map((p, k) => (p === null ? null : found[k]));
  };
  // Two p-values of one test, each from random relabellings, differ by no more than this: five standard errors.
  const error = (a, b) => {
    const p = (a + b) / 2;
    return 5 * Math.sqrt((2 * p * (1 - p)) / RESAMPLES) + 2 / RESAMPLES;
  };

  return { error, exchange, gainsBySeed, holm, loadFlip, mean, rank, signFlip, stratified, stream, sum, tie };
})();
