// Steps in words, for the tip beside the pointer and for those who do not see the picture.

const count = (num, noun) => `${num.toLocaleString("en").replaceAll(",", "\u202f")} ${noun}${num === 1 ? "" : "s"}`;

// A length of time with three digits: 2.31 s, 940 ms, 87 µs.
function lengthWords(ms) {
  if (ms >= 120000) return `${Math.floor(ms / 60000)} min ${String(Math.floor(ms % 60000 / 1000)).padStart(2, "0")} s`;
  for (const [unit, size] of [["s", 1000], ["ms", 1], ["µs", 0.001]]) {
    if (ms >= size) { const number = ms / size; return `${number.toFixed(number >= 100 ? 0 : number >= 10 ? 1 : 2)} ${unit}`; }
  }
  return "<1 µs";
}

// Time of day at this moment, with as many digits of a second as `step` (ms between two of them) needs.
function clockWords(wall, step = 1000) {
  const date = new Date(wall), two = (number) => String(number).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return step >= 1000 ? text : `${text}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, step >= 100 ? 1 : step >= 10 ? 2 : 3)}`;
}

// The kinds of a step's tokens: 500 prefill, 12 decode.
function kindWords(step) {
  const parts = KINDS.map((kind, at) => [step.kinds[at], kind]).filter(([num]) => num).map(([num, kind]) => `${count(num, kind + " token")}`);
  if (step.numCached) parts.push(`${count(step.numCached, "token")} found in the prefix cache`);
  return parts.join(", ");
}

// A request's name, short enough to be read beside others.
const shortName = (name) => name.length > 20 ? `${name.slice(0, 12)}…${name.slice(-4)}` : name;

function batchWords(step, engine) {
  if (!step.num) return "it ran nobody";
  const budget = engine.max_num_batched_tokens, of = budget ? ` of ${budget}` : "";
  return `${count(step.num, "request")}, ${step.total}${of} tokens`;
}

// Everything about a step, a line for each thing. `say` has the words for limits and reasons.
function stepLines(step, engine, say, wallAt, cell) {
  const lines = [`Step ${step.n} · ${clockWords(wallAt(step.begin), 1)} · ${lengthWords(step.end - step.begin)}`];
  if (cell) lines.push(`▸ ${cell}`);
  lines.push(batchWords(step, engine));
  if (step.num) lines.push(kindWords(step));
  const took = PHASES.map((name, at) => [name, step.phases[at]]).filter(([, ms]) => ms > 0.0005);
  if (took.length) lines.push(took.map(([name, ms]) => `${name} ${lengthWords(ms)}`).join(" · "));
  if (step.floorRatio) lines.push(`${step.floorRatio.toFixed(2)} times the least such work ever took`);
  lines.push(`${step.numRunning} running, ${step.numWaiting} waiting` + (step.headReason ? `: ${say.reason[step.headReason] || step.headReason}` : ""));
  lines.push(`limit: ${say.limit[step.limit] || step.limit}`);
  lines.push(`KV blocks: ${step.numActive} active, ${step.numCachedBlocks} cached, ${step.numFree} free`);
  if (step.numPreempted) lines.push(`${count(step.numPreempted, "request")} preempted`);
  if (step.numLostBefore) lines.push(`${count(step.numLostBefore, "step")} before it were lost`);
  if (step.error) lines.push(`failed: ${step.error}`);
  return lines;
}

// The request under the pointer.
function cellWords(name, kind, tokens) {
  const what = kind === CACHED ? "found in the prefix cache" : KINDS[kind];
  return `${name ? shortName(name) : "a request whose name is not known"}: ${count(tokens, "token")} ${what}`;
}

// A length of time that grows while it is read.
const spanWords = (ms) => ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : lengthWords(ms);

// A step that has not ended, or none where the engine stands still between two.
function openWords(open) {
  if (open.n === null) return `no step for ${spanWords(open.took)}: the engine stands still`;
  return open.isStill ? `step ${open.n} has not answered for ${spanWords(open.took)}: stands still` : `step ${open.n} under way for ${spanWords(open.took)}`;
}

const levelWords = (open) => `${open.numRunning} running, ${open.numWaiting} waiting`;

// Everything about it, a line for each thing.
function openLines(open, wallAt) {
  const first = openWords(open);
  return [
    `${first[0].toUpperCase()}${first.slice(1)}`, `since ${clockWords(wallAt(open.begin), 1)}`,
    ...(open.n === null ? [] : [`${count(open.num, "request")} in it`]), levelWords(open),
    `KV blocks: ${open.numActive} active, ${open.numCachedBlocks} cached, ${open.numFree} free`,
  ];
}
