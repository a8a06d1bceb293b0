// Moving about in the step stream: choosing a step, following a request, panning, zooming; and telling the page.

const MIN_SPAN_MS = 40, MIN_MOST_MS = 30000;
const MIN_SPAN_STEPS = 8;
const PICK_DELAY_MS = 220;

Object.assign(StepStream.prototype, {
  select(n, tell = true) {
    const isGone = n === null || n === undefined;
    this.selected = isGone ? null : n;
    if (isGone) this.isLive = true;
    else { this.isLive = false; this.reveal(); }
    this.hideTip();
    if (tell) this.pick({ step: this.selected });
    this.changed();
  },

  // Moves the view so that the chosen step is in it.
  reveal() {
    const { ring } = this, index = ring.indexOf(this.selected);
    if (index < 0) { this.toReveal = true; return; }
    this.toReveal = false;
    const step = ring.steps[index], span = this.span[this.axis];
    const [begin, end] = this.axis === "step" ? [ring.numEvicted + index, ring.numEvicted + index + 1] : [step.begin, step.end];
    const right = this.right[this.axis];
    if (begin < right - 0.95 * span || end > right - 0.02 * span) this.right[this.axis] = Math.min(begin + 0.7 * span, Math.max(this.liveEdge(), end + 0.1 * span));
  },

  stepBy(num) {
    const { ring } = this;
    if (!ring.length) return;
    const index = this.selected === null ? -1 : ring.indexOf(this.selected);
    const from = index >= 0 ? index + num : this.newestShown();
    this.select(ring.steps[Math.max(0, Math.min(ring.length - 1, from))].n);
  },

  newestShown() { return Math.max(0, Math.min(this.ring.length, this.range()[1]) - 1); },

  toggle() {
    if (!this.isLive) this.select(null);
    else if (this.ring.length) this.select(this.ring.steps[this.newestShown()].n);
  },

  follow(request, tell = false) {
    this.request = request || null;
    this.styleNew(true);
    if (tell) this.pick({ request: this.request });
    this.changed();
  },

  pan(by) { this.moveTo(this.right[this.axis] + by); },

  moveTo(right) {
    const span = this.span[this.axis], edge = this.liveEdge();
    this.right[this.axis] = Math.max(this.oldestEdge() + 0.2 * span, Math.min(edge, right));
    if (this.right[this.axis] < edge) this.isLive = false;
    else if (this.selected === null) this.isLive = true;
    this.changed();
  },

  zoom(factor, share = 1) {
    const kept = 1.05 * (this.liveEdge() - this.oldestEdge());
    const [least, floor] = this.axis === "step" ? [MIN_SPAN_STEPS, 10 * MIN_SPAN_STEPS] : [MIN_SPAN_MS, MIN_MOST_MS];
    const most = Math.max(floor, kept);
    const before = this.span[this.axis], after = Math.max(least, Math.min(most, before * factor));
    this.span[this.axis] = after;
    if (!this.isLive) this.right[this.axis] += (1 - share) * (after - before);
    this.changed();
  },

  setAxis(axis) {
    if (axis === this.axis) return;
    const { ring } = this, [from, to] = this.range();
    this.axis = axis;
    if (!this.isLive && to > from) this.right[axis] = axis === "step" ? ring.numEvicted + to : ring.steps[to - 1].end;
    if (this.selected !== null) this.reveal();
    this.stepMap.drawnAt = -1e9;
    this.changed();
  },

  changed() {
    if (this.loop) this.loop.touch();
    this.showBar();
  },

  // Tells the page, once the hand rests.
  pick(values) {
    this.toPick = { ...this.toPick, ...values };
    clearTimeout(this.pickTimer);
    this.pickTimer = setTimeout(() => {
      this.pickTimer = null;
      this.pickedAt = performance.now();
      this.expected = "step" in this.toPick ? this.toPick.step : this.data.step;
      this.component.setTriggerValue("pick", this.toPick);
      this.toPick = {};
    }, PICK_DELAY_MS);
  },
});
