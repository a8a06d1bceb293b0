// What hands do to the waterfall: pointer, wheel, keys and buttons; and what it says in return.

const DRAG_PIXELS = 4;

Object.assign(Waterfall.prototype, {
  listen() {
    this.listenToPicture();
    this.listenToStrip();
    for (const button of this.root.querySelectorAll("[data-do]")) {
      const act = { in: () => this.zoom(0.5), out: () => this.zoom(2), whole: () => this.showWhole() }[button.dataset.do];
      button.addEventListener("click", act);
    }
  },

  listenToPicture() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.clientX, shown: this.shown, isFar: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag === null) { this.point(event); return; }
      const far = event.clientX - drag.x;
      if (!drag.isFar && Math.abs(far) < DRAG_PIXELS) return;
      drag.isFar = true;
      this.hideTip();
      const [begin, end] = drag.shown;
      if (this.view !== null) this.look(begin - far / this.inner * (end - begin), end - begin);
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = drag !== null && !drag.isFar;
      drag = null;
      if (isClick) this.click(event);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.nsAt(event.offsetX)));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event, this.pictureKeys()));
    canvas.addEventListener("blur", () => { this.cursor = null; this.hideTip(); this.loop.touch(); });
  },

  listenToStrip() {
    const { strip } = this;
    strip.addEventListener("pointermove", (event) => {
      const step = this.stepAt(event.offsetX);
      if (step === null) { this.hideTip(); return; }
      this.showTip([...runLines(this.runOf(step), step), "click: open this step"], event.offsetX, strip.offsetTop - 8, true);
    });
    strip.addEventListener("pointerleave", () => this.hideTip());
    strip.addEventListener("click", (event) => { const step = this.stepAt(event.offsetX); if (step !== null) this.pick({ step }); });
    strip.addEventListener("keydown", (event) => this.key(event, this.stripKeys()));
    strip.addEventListener("blur", () => { this.stepCursor = null; this.hideTip(); this.loop.touch(); });
  },

  pick(what) { this.component.setTriggerValue("pick", what); },

  key(event, keys) {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    this.loop.touch();
    this.speak();
  },

  pictureKeys() {
    return {
      ArrowRight: () => this.go(1), ArrowLeft: () => this.go(-1), ArrowUp: () => this.change(-1), ArrowDown: () => this.change(1),
      Home: () => this.go(-Infinity), End: () => this.go(Infinity), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
      "-": () => this.zoom(2), "0": () => this.showWhole(), Escape: () => { this.cursor = null; this.hideTip(); },
      Enter: () => { if (this.cursor) this.pickLane(this.cursor.lane); },
    };
  },

  stripKeys() {
    const move = (far) => {
      const steps = this.data.runs;
      if (!steps.length) return;
      const [first, end] = this.stepRange, at = this.stepCursor === null ? (far > 0 ? first : end - 1) : this.stepCursor + far;
      this.stepCursor = this.nearestStep(Math.max(first, Math.min(end - 1, at)), far);
      this.showTip([...runLines(this.runOf(this.stepCursor), this.stepCursor), "Enter: open this step"], this.stepX(this.stepCursor), this.strip.offsetTop - 8, true);
    };
    return {
      ArrowRight: () => move(1), ArrowLeft: () => move(-1), PageDown: () => move(50), PageUp: () => move(-50),
      Home: () => move(-Infinity), End: () => move(Infinity), Escape: () => { this.stepCursor = null; this.hideTip(); },
      Enter: () => { if (this.stepCursor !== null) this.pick({ step: this.stepCursor }); },
    };
  },

  // The next or last piece of the lane that the keys are in.
  go(far) {
    const lane = this.cursor ? this.cursor.lane : this.data.chosen, pieces = this.piecesOf(this.data.lanes[lane]);
    if (!pieces.length) return;
    const now = this.cursor ? pieces.findIndex((piece) => piece.begin === this.cursor.begin) : far > 0 ? -1 : pieces.length;
    this.put(lane, pieces[Math.max(0, Math.min(pieces.length - 1, now + far))]);
  },

  change(far) {
    const last = this.data.lanes.length - 1, from = this.cursor ? this.cursor.lane : this.data.chosen;
    const lane = Math.max(0, Math.min(last, from + far)), at = this.cursor ? this.cursor.begin : 0;
    const pieces = this.piecesOf(this.data.lanes[lane]);
    this.put(lane, pieces.find((piece) => piece.end > at) || pieces[pieces.length - 1]);
  },

  put(lane, piece) {
    if (!piece) return;
    this.cursor = { lane, begin: piece.begin };
    const [begin, end] = this.shown, length = end - begin;
    if (piece.end < begin || piece.begin > end) this.look(piece.begin - length / 4, length);
    this.showTip(pieceLines(piece, this.endOf(this.data.lanes[lane]), this.data.words), this.xOf(piece.begin), AXIS + (lane + 1) * LANE);
  },

  look(begin, length) {
    const end = this.whole * 1.02, shown = Math.min(length, end);
    const from = Math.max(0, Math.min(end - shown, begin));
    this.view = [from, from + shown];
    this.loop.touch();
    this.speak();
  },

  zoom(factor, around) {
    const [begin, end] = this.shown, length = Math.max(1000, (end - begin) * factor);
    if (length >= this.whole) { this.showWhole(); return; }
    const centre = around ?? (this.cursor ? this.cursor.begin : (begin + end) / 2), share = Math.max(0, Math.min(1, (centre - begin) / (end - begin)));
    this.look(centre - share * length, length);
  },

  showWhole() { this.view = null; this.loop.touch(); this.speak(); },

  wheel(event) {
    const focused = (this.root.activeElement !== undefined ? this.root : document).activeElement === this.canvas;
    if (!event.ctrlKey && !event.metaKey && !focused) return;
    event.preventDefault();
    const [begin, end] = this.shown;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) this.look(begin + (event.deltaX || event.deltaY) / this.inner * (end - begin), end - begin);
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), this.nsAt(event.offsetX));
  },

  // The box under the pointer; of small ones the nearest within reach.
  hit(x, y) {
    const near = (this.boxes || []).filter((box) => y >= box.top && y <= box.bottom && x >= box.left - 3 && x <= box.right + 3);
    return near.sort((a, b) => Math.abs(x - (a.left + a.right) / 2) - Math.abs(x - (b.left + b.right) / 2)).find((box) => x >= box.left && x <= box.right) || near[0] || null;
  },

  point(event) {
    const box = this.hit(event.offsetX, event.offsetY);
    if (box === null) { this.hideTip(); return; }
    const lane = this.data.lanes[box.lane], lines = pieceLines(box.piece, this.endOf(lane), this.data.words);
    this.showTip(this.data.lanes.length > 1 ? [lane.label, ...lines] : lines, event.offsetX, event.offsetY + 12);
  },

  click(event) {
    const lane = Math.floor((event.offsetY - AXIS) / LANE);
    if (lane >= 0 && lane < this.data.lanes.length) this.pickLane(lane);
  },

  pickLane(lane) {
    if (lane !== this.data.chosen && this.data.is_sibling) this.pick({ sequence: this.data.lanes[lane].sequence });
  },

  runOf(step) { return this.data.runs.find(([first, count]) => step >= first && step < first + count) || null; },

  nearestStep(step, far) {
    if (this.runOf(step)) return step;
    const after = this.data.runs.find(([first]) => first > step), before = [...this.data.runs].reverse().find(([first]) => first < step);
    if (far > 0 && after) return after[0];
    return before ? before[0] + before[1] - 1 : after[0];
  },

  stepAt(x) {
    const range = this.stepRange;
    if (!range || x < GUTTER || x > GUTTER + this.inner) return null;
    const reach = Math.ceil(2 * (range[1] - range[0]) / this.inner), at = Math.floor(range[0] + (x - GUTTER) / this.inner * (range[1] - range[0]));
    const step = Math.min(range[1] - 1, at);
    for (let far = 0; far <= reach; far++) for (const each of [step - far, step + far]) if (this.runOf(each)) return each;
    return null;
  },

  showTip(lines, x, y, isAbove = false) {
    const { tip, canvas } = this;
    tip.textContent = lines.join("\n");
    tip.style.display = "block";
    tip.style.left = `${Math.max(0, x + 14 + tip.offsetWidth > canvas.clientWidth ? x - 14 - tip.offsetWidth : x + 14)}px`;
    tip.style.top = `${isAbove ? y - tip.offsetHeight : canvas.offsetTop + y}px`;
  },

  hideTip() { this.tip.style.display = "none"; },

  speak() {
    const { data } = this, [begin, end] = this.shown;
    const seen = this.view === null ? "whole" : `${lengthWords(begin)} to ${lengthWords(end)}`;
    if (this.find(".said").textContent !== seen) this.find(".said").textContent = seen;
    const lanes = data.lanes.map((lane) => laneWords(lane, lane.pieces.length ? lane.pieces[lane.pieces.length - 1][2] : 0)).join(". ");
    const tip = this.tip.style.display === "block" ? ` ${this.tip.textContent.replaceAll("\n", ", ")}.` : "";
    const words = `Waterfall of stages. ${lanes}.${tip}`;
    if (words !== this.spoken) { this.spoken = words; this.canvas.setAttribute("aria-label", words); }
    const strip = `${this.find(".title").textContent}.${this.stepCursor === null ? "" : tip}`;
    if (strip !== this.spokenStrip) { this.spokenStrip = strip; this.strip.setAttribute("aria-label", strip); }
  },

  close() { this.loop.close(); this.resizing.disconnect(); },
});
