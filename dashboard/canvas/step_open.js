// The step that has not ended: how long it has been under way, and how it is drawn from its begin up to now.

const LONG_MS = 1000;
const HATCH_PIXELS = 9;

Object.assign(StepStream.prototype, {
  // The stream's `state`: how the engine is, and which step it is in.
  onState(state) {
    this.health = { word: state.state, age: state.age_seconds, at: performance.now() };
    const step = state.under_way;
    this.underWay = step ? {
      n: step.step, begin: this.ring.ms(step.begun_at), num: step.num_requests, numRunning: step.num_running, numWaiting: step.num_waiting,
      numActive: step.num_active, numCachedBlocks: step.num_cached, numFree: step.num_free,
    } : null;
    this.heard();
  },

  // The moment up to which the engine's state is known.
  heardNow() { return Math.min(this.serverNow(), this.heardAt + (this.offset ?? 0) + SILENT_LIMIT_MS); },

  // What goes on for longer than a step that ends soon; null where there is no such thing.
  // An engine that stands still between two steps has no step: `n` is null, and the levels are those of the last.
  openStep() {
    if (!this.isMoving) return null;
    const { last } = this.ring, isStill = this.health.word === "stalled";
    const isOver = this.underWay !== null && last !== undefined && last.n >= this.underWay.n;
    let step = isOver ? null : this.underWay;
    if (step === null && isStill && last !== undefined) step = { ...last, n: null, begin: last.end };
    const took = step === null ? 0 : this.heardNow() - step.begin;
    return took >= LONG_MS ? { ...step, took, isStill } : null;
  },

  // Draws it; where it stands is kept for the pointer.
  drawOpen(frame, open, ratio) {
    this.openAt = null;
    if (open === null) return;
    const { ring, scales } = this, span = this.span[this.axis], left = this.right[this.axis] - span;
    const [from, to] = this.axis === "step" ? [ring.numEvicted + ring.length, ring.numEvicted + ring.length + 1] : [open.begin, this.liveEdge()];
    const place = (at) => Math.max(GUTTER, Math.min(frame.width, GUTTER + (at - left) * (frame.width - GUTTER) / span));
    const [x0, x1] = [place(from), place(to)];
    if (x1 - x0 < 1) return;
    this.openAt = [x0, x1];
    frame.openColumn(x0, x1, open, scales, this.view.left / ratio);
  },
});

Object.assign(StepFrame.prototype, {
  // Hatched in a colour; stripes stand in the world, not on the screen, so that they do not crawl while it scrolls.
  hatch([x0, x1], [y0, y1], colour, [fill, stripe], shift) {
    const { context } = this, height = y1 - y0;
    if (height <= 0) return;
    context.save();
    context.beginPath();
    context.rect(x0, y0, x1 - x0, height);
    context.clip();
    context.fillStyle = context.strokeStyle = colour;
    context.globalAlpha = fill;
    context.fillRect(x0, y0, x1 - x0, height);
    context.globalAlpha = stripe;
    context.lineWidth = 1.5;
    context.beginPath();
    const first = x0 - height - (((x0 - height + shift - y1) % HATCH_PIXELS) + HATCH_PIXELS) % HATCH_PIXELS;
    for (let x = first; x < x1; x += HATCH_PIXELS) { context.moveTo(x, y1); context.lineTo(x + height, y0); }
    context.stroke();
    context.restore();
  },

  // A column without an end: no tokens are known to be done, and the levels go on as they were.
  openColumn(x0, x1, open, scales, shift) {
    const { tops, colours } = this, across = [x0, x1];
    const [colour, ink] = open.isStill ? [colours.level.bad, [0.16, 0.6]] : [colours.phase.unknown, [0.08, 0.35]];
    this.hatch(across, [tops.tokens[0], tops.phases[1]], colour, ink, shift);
    this.hatch(across, tops.busy, open.isStill ? colours.stage.stalled : colour, [0.75, 0], shift);
    const level = (pane, hue, from, to, shades = [0.35, 0.75]) => {
      const [top, bottom] = tops[pane], room = bottom - top, least = to > from ? 1 : 0;
      this.hatch(across, [bottom - Math.max(least, room * Math.min(1, to)), bottom - room * Math.min(1, from)], hue, shades, shift);
    };
    level("running", colours.stage.decode, 0, open.numRunning / scales.running);
    level("waiting", colours.stage.queue, 0, open.numWaiting / scales.waiting);
    const active = open.numActive, held = active + open.numCachedBlocks, all = held + open.numFree;
    if (all) {
      level("kv", colours.block.active, 0, active / all);
      level("kv", colours.block.cached, active / all, held / all);
      level("kv", colours.phase.unknown, held / all, 1, [0.14, 0.3]);
    }
    this.openLabel(x0, x1, open, open.isStill ? colours.level.bad : this.theme.text);
  },

  openLabel(x0, x1, open, colour) {
    const { context, theme } = this, lines = [openWords(open), levelWords(open)];
    const fonts = [`600 13px ${theme.font}`, `12px ${theme.font}`];
    const widths = lines.map((line, at) => { context.font = fonts[at]; return context.measureText(line).width; });
    const half = Math.max(...widths) / 2 + 10, middle = Math.max(GUTTER + half, Math.min(this.width - half, (x0 + x1) / 2));
    const top = this.tops.tokens[0] + 74;
    context.fillStyle = theme.background;
    context.strokeStyle = colour;
    context.beginPath();
    context.roundRect(middle - half, top, 2 * half, 44, 5);
    context.globalAlpha = 0.94;
    context.fill();
    context.globalAlpha = open.isStill ? 1 : 0.4;
    context.stroke();
    lines.forEach((line, at) => { context.font = fonts[at]; this.label(line, middle, top + 14 + 17 * at, "center", colour, at ? 0.85 : 1); });
    context.font = `11px ${theme.font}`;
  },
});
