// The steps that the page keeps: at most MAX_STEPS, oldest first, times in ms since the first moment heard of.
// Requests have a number of the page's own, since those of the stream are good for one connection only.

const MAX_STEPS = 20000;
const TOKEN_BITS = 28;
const TOKEN_MASK = (1 << TOKEN_BITS) - 1;
const KINDS = ["prefill", "decode", "recompute"];
const PHASES = ["schedule", "ipc", "prepare", "forward", "sample", "update", "unknown"];

class StepRing {
  constructor(maxSteps = MAX_STEPS) {
    this.maxSteps = maxSteps;
    this.clear();
  }

  // Forgets the steps and all that was said of the engine.
  clear() {
    this.steps = [];
    this.numEvicted = 0;
    this.base = null;
    this.numLost = 0;
    this.forgetNames();
    this.idByName = new Map();
    this.nameById = new Map();
    this.nextId = 1;
    this.sweepAt = 2 * this.maxSteps;
    // Steps that came after a later one, and clearings: what was drawn before them is no longer right.
    this.numLate = (this.numLate || 0) + 1;
  }

  // The numbers of a new connection mean other requests.
  forgetNames() { this.idByNumber = new Map(); }

  get length() { return this.steps.length; }
  get first() { return this.steps[0]; }
  get last() { return this.steps[this.steps.length - 1]; }

  // Milliseconds since the first moment heard of; null stays null.
  ms(at) {
    if (at === null || at === undefined) return null;
    if (this.base === null) this.base = at;
    return (at - this.base) / 1e6;
  }

  name(names) {
    for (const number of Object.keys(names)) {
      const name = names[number];
      let id = this.idByName.get(name);
      if (id === undefined) {
        id = this.nextId++;
        this.idByName.set(name, id);
        this.nameById.set(id, name);
      }
      this.idByNumber.set(+number, id);
    }
  }

  // Steps were lost before whatever comes next; unless nothing came yet, when they are only older than asked for.
  lost(num) { if (num > 0 && this.steps.length) this.numLost += num; }

  add(row) {
    const step = this.read(row), steps = this.steps;
    let at = steps.length;
    while (at && steps[at - 1].n >= step.n) at--;
    if (at < steps.length && steps[at].n === step.n) {
      step.numLostBefore = steps[at].numLostBefore;
      this.numLate++;
      steps[at] = step;
    } else {
      if (at === steps.length) { step.numLostBefore = this.numLost; this.numLost = 0; } else this.numLate++;
      steps.splice(at, 0, step);
    }
    this.evict();
  }

  evict() {
    // In portions, since each costs a move of all that stay.
    if (this.steps.length <= this.maxSteps + 512) return;
    const num = this.steps.length - this.maxSteps;
    this.steps.splice(0, num);
    this.numEvicted += num;
    if (this.numEvicted >= this.sweepAt) { this.sweepAt = this.numEvicted + this.maxSteps / 4; this.sweep(); }
  }

  // Names that no step has any more go.
  sweep() {
    const used = new Set(this.idByNumber.values());
    for (const step of this.steps) for (let at = 0; at < step.rows.length; at += 2) used.add(step.rows[at]);
    for (const [id, name] of this.nameById) {
      if (!used.has(id)) { this.nameById.delete(id); this.idByName.delete(name); }
    }
  }

  read(row) {
    const flat = row[19], num = flat.length / 4, rows = new Uint32Array(2 * num);
    const kinds = [0, 0, 0];
    let total = 0, numCached = 0, cached = null;
    for (let at = 0; at < num; at++) {
      const kind = flat[4 * at + 1], tokens = flat[4 * at + 2], found = flat[4 * at + 3];
      rows[2 * at] = this.idByNumber.get(flat[4 * at]) || 0;
      rows[2 * at + 1] = (kind << TOKEN_BITS) | Math.min(tokens, TOKEN_MASK);
      kinds[kind] += tokens;
      total += tokens;
      if (found) { (cached = cached || []).push([at, found]); numCached += found; }
    }
    const step = {
      n: row[0], begin: this.ms(row[1]), planned: this.ms(row[2]), sampled: this.ms(row[4]), updated: this.ms(row[5]),
      numRunning: row[6], numWaiting: row[7], headReason: row[8], limit: row[9],
      numActive: row[10], numCachedBlocks: row[11], numFree: row[12], numPreempted: row[13], floorRatio: row[14],
      prepared: this.ms(row[15]), forwarded: this.ms(row[16]), sampleBegun: this.ms(row[17]), error: row[18],
      received: this.ms(row[20]), workerSampled: this.ms(row[21]),
      rows, num, total, kinds, cached, numCached, numLostBefore: 0, phases: null, spans: null,
    };
    step.end = step.updated ?? step.sampled ?? this.ms(row[3]) ?? step.planned;
    spansOf(step);
    return step;
  }

  // Index of the first step that ends after this moment.
  indexAt(ms) {
    const steps = this.steps;
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].end <= ms) low = middle + 1; else high = middle;
    }
    return low;
  }

  // Index of the step with this number, -1 if it is not here.
  indexOf(n) {
    const steps = this.steps;
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].n < n) low = middle + 1; else high = middle;
    }
    return low < steps.length && steps[low].n === n ? low : -1;
  }
}

// Cuts a step into its phases: `spans` [index of the phase, begin, end] in time, `phases` ms by phase.
// What lies between two of them, and what nobody recorded, is unknown.
function spansOf(step) {
  const spans = [], sums = new Float64Array(PHASES.length);
  let until = step.begin;
  const span = (phase, end) => {
    if (end === null || end <= until) return;
    spans.push([phase, until, end]);
    sums[phase] += end - until;
    until = end;
  };
  span(0, step.planned);
  if (step.updated !== null) {
    const unknown = 6;
    span(1, step.received);
    span(step.prepared === null ? unknown : 2, step.prepared);
    span(step.forwarded === null ? unknown : 3, step.forwarded);
    span(unknown, step.sampleBegun);
    span(step.sampleBegun === null ? unknown : 4, step.workerSampled ?? step.sampled);
    span(step.workerSampled === null ? unknown : 1, step.sampled);
    span(5, step.updated);
  }
  step.spans = spans;
  step.phases = sums;
}
