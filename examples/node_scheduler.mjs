// A scheduler in JavaScript: merge when the last ten seconds were quieter than the average so far.
// Run it with: protocol certify "cmd:node examples/node_scheduler.mjs"
// Messages are JSON lines (docs/schedulers.md).  Anything for the log goes to stderr, never to stdout.
import { createInterface } from "node:readline";

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const sum = (values) => values.reduce((total, value) => total + value, 0);
const arrivals = []; // requests in each full second; every message brings the new ones only

createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "start") {
    say({ type: "ready", version: 1 });
  } else if (message.type === "observe") {
    arrivals.push(...message.arrivals_per_s);
    const recent = sum(arrivals.slice(-10)) / 10;
    say({ id: message.id, merge: recent < sum(arrivals) / arrivals.length });
  } else if (message.type === "stop") {
    process.exit(0);
  }
});
