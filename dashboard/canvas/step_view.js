// The step stream: one column a step, live, paused or scrubbed back. Its page is told what was picked.

const DEFAULT_SPAN_MS = 12000;
const DEFAULT_SPAN_STEPS = 150;
const EXPECT_MS = 4000;
const SILENT_LIMIT_MS = 2500;
const SCALES_EVERY_MS = 250;

class StepStream {
  constructor(root, component) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas.picture");
    this.map = this.find("canvas.map");
    this.tip = this.find(".canvas-tip");
    this.ring = new StepRing();
    this.picture = new StepPicture();
    this.stepMap = new StepMap();
    this.axis = "time";
    this.scale = "root";
    this.span = { time: DEFAULT_SPAN_MS, step: DEFAULT_SPAN_STEPS };
    this.right = { time: 0, step: 0 };
    this.isLive = true;
    this.selected = null;
    this.request = null;
    this.engine = { max_num_batched_tokens: 0, max_num_seqs: 0, num_blocks: 0, is_live: true };
    this.scales = { tokens: 1, phases: 10, running: 1, waiting: 1, blocks: 1 };
    this.health = { word: "", age: null, at: 0 };
    this.underWay = null;
    this.trouble = "connecting";
    this.troubleLevel = "";
    this.pid = null;
    this.lag = 250;
    this.heardAt = 0;
    this.numLost = 0;
    this.frames = { num: 0, sum: 0, most: 0 };
    this.isOnScreen = true;
    this.adopt(component);
    this.loop = drawLoop((now) => this.draw(now));
    this.listenToPointer();
    this.listenToKeys();
    this.listenToButtons();
    this.sizes = new ResizeObserver(() => this.loop.touch());
    this.sizes.observe(this.canvas);
    this.sights = new IntersectionObserver((entries) => {
      this.isOnScreen = entries[entries.length - 1].isIntersecting;
      this.loop.touch();
    });
    this.sights.observe(this.canvas);
    this.words = setInterval(() => this.speak(), 1000);
  }

  close() {
    this.stream.close();
    this.loop.close();
    this.sizes.disconnect();
    this.sights.disconnect();
    clearInterval(this.words);
    clearTimeout(this.pickTimer);
  }

  // The page was run again: take over what is new in its data. What was picked here and is still on its way stays.
  adopt(component) {
    this.component = component;
    const data = component.data;
    const isOther = this.data === undefined || this.data.engine !== data.engine || this.data.server !== data.server;
    const before = this.data || {};
    this.data = data;
    this.theme = themeOf(this.root.host || this.root);
    this.ink = inkOf(data.colours, this.theme);
    this.looks = (this.looks || 0) + 1;
    if (isOther) this.connect();
    const isMine = this.pickTimer || (performance.now() - (this.pickedAt ?? -1e9) < EXPECT_MS && data.step !== this.expected);
    // What was picked has come back: from here on the page has the say again.
    if (!isMine) this.pickedAt = -1e9;
    // It has arrived: what comes now is somebody else's choice, as of the button that goes on live.
    if (!isMine) this.pickedAt = undefined;
    if (!isMine && (isOther || data.step !== before.step)) this.select(data.step, false);
    if (isOther || data.request !== before.request) this.follow(data.request);
    if (this.loop) this.loop.touch();
  }

  connect() {
    if (this.stream) this.stream.close();
    this.ring.clear();
    this.underWay = null;
    this.pid = null;
    this.stream = openStream("streams/steps", () => this.query(), {
      hello: (hello) => this.onHello(hello),
      steps: (content) => this.onSteps(content),
      gone: ({ num_gone }) => this.onLost(num_gone),
      state: (state) => this.onState(state),
    }, (word, level) => { this.trouble = word; this.troubleLevel = level; this.showState(); });
  }

  query() {
    // A few again, since one may have closed after a later one.
    this.askedSince = this.ring.length ? Math.max(0, this.ring.last.n - 8) : 0;
    return { engine: this.data.engine, since: this.askedSince };
  }

  heard() {
    this.heardAt = performance.now();
    this.trouble = "";
    this.loop.touch();
    this.showState();
  }

  onHello(hello) {
    this.ring.forgetNames();
    if (this.pid !== null && hello.pid !== this.pid) {
      this.ring.clear();
      this.underWay = null;
      this.pid = hello.pid;
      if (this.askedSince > 0) { this.stream.reopen(); return; }
    }
    this.pid = hello.pid;
    this.engine = hello;
    this.offset = this.ring.ms(hello.clock.monotonic_at) - performance.now();
    this.wallOffset = hello.clock.wall_at / 1e6 - this.ring.ms(hello.clock.monotonic_at);
    this.heard();
  }

  onSteps(content) {
    const { ring } = this;
    ring.name(content.names);
    this.styleNew();
    this.onLost(content.num_skipped);
    for (const row of content.steps) ring.add(row);
    if (content.steps.length && this.engine.is_live) {
      const late = this.serverNow() - ring.last.end;
      if (late < 3000) this.lag = Math.max(120, Math.min(1500, Math.max(late, this.lag * 0.985)));
    }
    this.heard();
  }

  onLost(num) {
    if (num > 0 && this.ring.length) this.numLost += num;
    this.ring.lost(num);
  }

  // Hue and light of the requests that were named since.
  styleNew(isAll = false) {
    const { ring, picture } = this, num = this.ink.num;
    for (let id = isAll ? 1 : this.styledTo || 1; id < ring.nextId; id++) {
      const name = ring.nameById.get(id);
      if (name === undefined) continue;
      picture.style[id & STYLE_MASK] = hueOf(name, num) | (this.isLit(name) ? LIT_BIT : 0);
    }
    this.styledTo = ring.nextId;
    if (isAll) this.looks++;
  }

  isLit(name) {
    return !this.request || name === this.request || name.startsWith(`${this.request}-`);
  }

  // --- what is shown -------------------------------------------------------------------------------------------

  serverNow() { return performance.now() + (this.offset ?? 0); }

  get isMoving() { return this.engine.is_live && !["dead", "ended"].includes(this.health.word); }

  // Where the live edge is: a little behind now, so that what comes late is there before it is shown.
  liveEdge() {
    const { ring } = this;
    if (this.axis === "step") return ring.numEvicted + ring.length + (this.openStep() === null ? 0 : 1);
    const last = ring.length ? ring.last.end : 0;
    if (!this.isMoving) return last + 0.02 * this.span.time;
    return Math.max(last, this.heardNow() - this.lag);
  }

  oldestEdge() {
    const { ring } = this;
    return this.axis === "step" ? ring.numEvicted : ring.length ? ring.first.begin : 0;
  }

  settle() {
    const edge = this.liveEdge();
    if (!this.isLive) return false;
    const before = this.right[this.axis];
    if (this.axis === "time") { this.right.time = edge; return this.isMoving && this.ring.length > 0 && edge - this.ring.last.end < this.span.time; }
    const far = edge - before;
    this.right.step = Math.abs(far) > this.span.step || Math.abs(far) < 0.05 ? edge : before + far * 0.25;
    return this.right.step !== edge;
  }

  // Puts a step's pixels into `pair`; they are cut where the next begins.
  placer(width) {
    const { ring } = this, steps = ring.steps, span = this.span[this.axis], per = width / span;
    const left = Math.round((this.right[this.axis] - span) * per);
    if (this.axis === "step") {
      const place = (step, index, pair) => {
        pair[0] = Math.floor((ring.numEvicted + index) * per) - left;
        pair[1] = Math.floor((ring.numEvicted + index + 1) * per) - left;
      };
      return { place, per, left };
    }
    const place = (step, index, pair) => {
      // What is between two steps and less than a pixel is not idle that anybody could see.
      const next = steps[index + 1], end = next && (next.begin - step.end) * per < 1 ? next.begin : step.end;
      pair[0] = Math.floor(step.begin * per) - left;
      pair[1] = Math.floor(end * per) - left;
    };
    return { place, per, left };
  }

  // The part of the ring that may be seen.
  range() {
    const { ring } = this, right = this.right[this.axis], left = right - this.span[this.axis];
    if (this.axis === "step") {
      const from = Math.floor(left) - ring.numEvicted - 1, to = Math.ceil(right) - ring.numEvicted + 1;
      return [Math.max(0, from), Math.max(0, Math.min(ring.length, to))];
    }
    return [Math.max(0, ring.indexAt(left) - 1), Math.min(ring.length, ring.indexAt(right) + 2)];
  }

  height(room) {
    const most = this.scales.tokens;
    return this.scale === "root" ? (tokens) => room * Math.sqrt(tokens / most) : (tokens) => room * tokens / most;
  }

  measure(now) {
    const { picture, scales, engine } = this, key = `${this.axis}${this.scale}${this.span[this.axis]}`;
    if (now - (this.measuredAt ?? -1e9) < SCALES_EVERY_MS && key === this.measuredKey) return;
    this.measuredAt = now;
    this.measuredKey = key;
    let tokens = 1, waiting = 1, running = 1;
    const took = [];
    for (let at = 0; at < picture.numColumns; at++) {
      const step = picture.columns[at].step;
      tokens = Math.max(tokens, step.total + step.numCached);
      waiting = Math.max(waiting, step.numWaiting);
      running = Math.max(running, step.numRunning);
      if (step.num) took.push(step.end - step.begin);
    }
    const open = this.openStep();
    if (open !== null) { waiting = Math.max(waiting, open.numWaiting); running = Math.max(running, open.numRunning); }
    took.sort((a, b) => a - b);
    const typical = took.length ? took[Math.floor(0.97 * (took.length - 1))] : 10;
    const budget = engine.max_num_batched_tokens;
    scales.isByBudget = this.scale !== "fit" && budget > 0;
    scales.tokens = scales.isByBudget ? budget * 1.18 : steady(this.scale === "fit" ? scales.tokens : 0, tokens);
    scales.phases = steady(scales.phases, typical * 1.1);
    scales.running = engine.max_num_seqs || steady(scales.running, running);
    scales.waiting = steady(scales.waiting, waiting);
    scales.blocks = engine.num_blocks || scales.blocks;
  }

  draw(now) {
    if (!this.isOnScreen || document.hidden) return false;
    const began = performance.now();
    const { context, width, height } = fitCanvas(this.canvas, PICTURE_HEIGHT + AXIS);
    const ratio = window.devicePixelRatio || 1;
    const isMoving = this.settle();
    const wide = Math.max(1, Math.round((width - GUTTER) * ratio));
    this.picture.fit(context, wide, Math.round(PICTURE_HEIGHT * ratio), ratio);
    this.view = this.placer(wide);
    const [from, to] = this.range();
    this.most = this.picture.layOut(this.ring.steps, from, to, this.view.place);
    this.measure(now);
    this.drawPicture();
    context.clearRect(0, 0, width, height);
    this.picture.put(context, Math.round(GUTTER * ratio), 0);
    this.drawFrame(new StepFrame(context, this.theme, this.data.colours, width), ratio);
    this.drawMap(now);
    this.note(performance.now() - began);
    return isMoving;
  }

  drawPicture() {
    const { picture, ink, view, scales } = this, { top, bottom } = picture.panes.tokens;
    const levels = [scales.tokens, scales.phases, scales.running, scales.waiting];
    const key = [this.axis, this.scale, view.per, this.looks, this.ring.numLate, picture.ratio, ...levels].join();
    if (key !== picture.key) picture.scaleTo(this.height(bottom - top), bottom - top, scales.tokens);
    picture.keep(key, view.left);
    picture.drawTokens(ink);
    picture.drawPhases(ink, this.scales.phases);
    const placeMs = this.axis === "time"
      ? (step, at) => Math.floor(at * view.per) - view.left
      : (step, at, begin, end) => begin + Math.floor((end - begin) * (at - step.begin) / Math.max(1e-6, step.end - step.begin));
    picture.drawBusy(ink, placeMs);
    picture.drawLevel("running", ink.running, this.scales.running, (step) => step.numRunning);
    picture.drawLevel("waiting", ink.waiting, this.scales.waiting, (step) => step.numWaiting);
    picture.drawBlocks(ink);
  }

  drawFrame(frame, ratio) {
    const { picture, ring, scales, engine } = this, budget = engine.max_num_batched_tokens;
    frame.gutter(scales);
    const [top, bottom] = frame.tops.tokens, up = this.height(bottom - top)(budget);
    for (let at = 0; at < picture.numColumns; at++) {
      const { numLost, begin } = picture.columns[at];
      if (numLost) frame.gap(GUTTER + (at ? picture.columns[at - 1].end : begin) / ratio, GUTTER + begin / ratio, numLost);
    }
    const open = this.openStep();
    this.drawOpen(frame, open, ratio);
    if (budget && up <= bottom - top) frame.budget(budget, bottom - up);
    frame.marks(picture.columns, picture.numColumns, ratio);
    frame.ticks(this.axisMarks(frame.width - GUTTER));
    if (this.hovered) frame.hover(GUTTER + this.hovered.begin / ratio, GUTTER + this.hovered.end / ratio);
    const index = this.selected === null ? -1 : ring.indexOf(this.selected);
    if (index >= 0) {
      const pair = [0, 0];
      this.view.place(ring.steps[index], index, pair);
      if (pair[1] >= 0 && pair[0] <= picture.width) frame.chosen(GUTTER + pair[0] / ratio, GUTTER + Math.max(pair[1], pair[0] + 1) / ratio, this.selected);
    }
    if (open !== null) return;
    if (!ring.length) frame.say("No step yet", "A column appears here for each step, as soon as a request runs.");
    else if (!picture.numColumns && this.isLive) {
      const ago = lengthWords(Math.max(0, this.right.time - ring.last.end));
      frame.say("No step in this time", `The last one, ${ring.last.n}, ended ${ago} ago. Where the engine runs nobody it is white.`);
    }
  }

  axisMarks(width) {
    const span = this.span[this.axis], right = this.right[this.axis], left = right - span, marks = [], { ring } = this;
    if (this.axis === "step") {
      const every = Math.max(1, roundUp(span * 70 / width));
      for (let index = Math.max(0, Math.floor(left) - ring.numEvicted); index < ring.length && index + ring.numEvicted < right; index++) {
        const n = ring.steps[index].n;
        if (n % every === 0) marks.push([GUTTER + (index + ring.numEvicted + 0.5 - left) * width / span, `${n}`]);
      }
      return marks;
    }
    const every = TIME_TICKS.find((each) => each * width / span >= 84) || 600000, wall = this.wallOffset ?? 0;
    for (let at = Math.ceil((left + wall) / every) * every; at < right + wall; at += every) {
      marks.push([GUTTER + (at - wall - left) * width / span, clockWords(at, every)]);
    }
    return marks;
  }

  drawMap(now) {
    const { ring } = this, width = this.map.clientWidth - GUTTER;
    const [oldest, edge] = this.extent(), per = width / Math.max(1e-6, edge - oldest);
    const place = this.axis === "step"
      ? (step, index) => GUTTER + (ring.numEvicted + index - oldest) * per
      : (step) => GUTTER + (step.begin - oldest) * per;
    const right = this.right[this.axis], shown = [right - this.span[this.axis], right].map((at) => GUTTER + (at - oldest) * per);
    this.stepMap.draw(this.map, ring, place, shown, this.data.colours, this.theme, now);
  }

  extent() {
    const edge = Math.max(this.liveEdge(), this.right[this.axis]), oldest = this.oldestEdge();
    return [Math.min(oldest, edge - this.span[this.axis]), edge];
  }

  // How long frames took, for whoever measures: root.querySelector(".canvas-box").frames.
  note(took) {
    const { frames } = this;
    frames.num++;
    frames.sum += took;
    frames.most = Math.max(frames.most, took);
  }
}
