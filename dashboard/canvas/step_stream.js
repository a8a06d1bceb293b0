// What hands do to the step stream: pointer, wheel, keys and buttons; and what it says in return.

const DRAG_PIXELS = 4;

Object.assign(StepStream.prototype, {
  // The column and the request's cell at a place of the canvas (CSS pixels), null where there is none.
  hit(x, y) {
    const { picture } = this, ratio = picture.ratio, at = (x - GUTTER) * ratio;
    let low = 0, high = picture.numColumns;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (picture.columns[middle].end <= at) low = middle + 1; else high = middle;
    }
    const column = low < picture.numColumns ? picture.columns[low] : null;
    if (x < GUTTER || column === null || column.begin > at + 1.5) return null;
    return { column, cell: this.cellAt(column.step, y * ratio) };
  },

  cellAt(step, y) {
    const { top, bottom } = this.picture.panes.tokens;
    if (y < top || y >= bottom) return null;
    const height = this.height(bottom - top), wanted = bottom - y;
    let sum = 0;
    for (let row = 0; row < step.num; row++) {
      const word = step.rows[2 * row + 1], tokens = word & TOKEN_MASK;
      sum += tokens;
      if (height(sum) >= wanted) return this.cellOf(step, row, word >>> TOKEN_BITS, tokens);
    }
    for (const [row, tokens] of step.cached || []) {
      sum += tokens;
      if (height(sum) >= wanted) return this.cellOf(step, row, CACHED, tokens);
    }
    return null;
  },

  cellOf(step, row, kind, tokens) { return { name: this.ring.nameById.get(step.rows[2 * row]), kind, tokens }; },

  listenToPointer() {
    const { canvas, map } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.clientX, right: this.right[this.axis], isFar: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag === null) { this.point(event); return; }
      const far = event.clientX - drag.x;
      if (!drag.isFar && Math.abs(far) < DRAG_PIXELS) return;
      drag.isFar = true;
      this.hideTip();
      this.moveTo(drag.right - far * this.span[this.axis] / Math.max(1, canvas.clientWidth - GUTTER));
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = drag !== null && !drag.isFar;
      drag = null;
      if (isClick) this.click(event);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    const scrub = (event) => {
      const [oldest, edge] = this.extent(), share = (event.offsetX - GUTTER) / Math.max(1, map.clientWidth - GUTTER);
      this.moveTo(oldest + share * (edge - oldest) + this.span[this.axis] / 2);
    };
    map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); scrub(event); });
    map.addEventListener("pointermove", (event) => { if (event.buttons & 1) scrub(event); });
  },

  // A page must scroll under the wheel: it zooms with Ctrl, or once the picture was clicked.
  wheel(event) {
    const isAcross = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const root = this.root.activeElement !== undefined ? this.root : document;
    if (!isAcross && !event.ctrlKey && !event.metaKey && root.activeElement !== this.canvas) return;
    event.preventDefault();
    const width = Math.max(1, this.canvas.clientWidth - GUTTER);
    if (isAcross) this.pan((event.deltaX || event.deltaY) * this.span[this.axis] / width);
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), Math.max(0, Math.min(1, (event.offsetX - GUTTER) / width)));
  },

  click(event) {
    const found = this.hit(event.offsetX, event.offsetY);
    if (found === null) return;
    if (found.cell && found.cell.name) this.follow(found.cell.name, true);
    if (!(event.shiftKey && found.cell)) this.select(found.column.step.n);
  },

  point(event) {
    const found = this.hit(event.offsetX, event.offsetY);
    if (found === null) { this.pointAtOpen(event); return; }
    const { column, cell } = found;
    this.hovered = column;
    const lines = stepLines(column.step, this.engine, this.data.words, (ms) => ms + (this.wallOffset ?? 0), cell && cellWords(cell.name, cell.kind, cell.tokens));
    if (column.count > 1) lines.unshift(`${column.count} steps on this pixel; the fullest:`);
    this.showTip(lines, event);
  },

  // Beside the steps that ended there may be one that has not.
  pointAtOpen(event) {
    this.hideTip();
    const open = this.openStep(), at = this.openAt;
    if (open !== null && at && event.offsetX >= at[0] && event.offsetX <= at[1]) this.showTip(openLines(open, (ms) => ms + (this.wallOffset ?? 0)), event);
  },

  showTip(lines, event) {
    const { tip, canvas } = this;
    tip.textContent = lines.join("\n");
    tip.style.display = "block";
    const left = event.offsetX + 16 + tip.offsetWidth > canvas.clientWidth ? event.offsetX - 16 - tip.offsetWidth : event.offsetX + 16;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${canvas.offsetTop + Math.min(event.offsetY + 12, Math.max(0, PICTURE_HEIGHT - tip.offsetHeight))}px`;
    this.loop.touch();
  },

  hideTip() {
    if (this.hovered) this.loop.touch();
    this.hovered = null;
    this.tip.style.display = "none";
  },

  listenToKeys() {
    this.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const span = this.span[this.axis], { ring } = this;
      const keys = {
        " ": () => this.toggle(),
        ArrowLeft: () => this.stepBy(event.shiftKey ? -10 : -1),
        ArrowRight: () => this.stepBy(event.shiftKey ? 10 : 1),
        PageUp: () => this.pan(-0.8 * span),
        PageDown: () => this.pan(0.8 * span),
        Home: () => { if (ring.length) this.select(ring.first.n); },
        End: () => { if (ring.length) this.select(ring.last.n); },
        Escape: () => { if (!this.isLive) this.select(null); else if (this.request) this.follow(null, true); },
        "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      this.hideTip();
      keys[event.key]();
      this.speak();
    });
  },

  listenToButtons() {
    const deeds = {
      pause: () => this.toggle(), older: () => this.stepBy(-1), newer: () => this.stepBy(1),
      in: () => this.zoom(0.6), out: () => this.zoom(1 / 0.6), unfollow: () => this.follow(null, true),
    };
    this.root.querySelector(".bar").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.do) deeds[button.dataset.do]();
      if (button.dataset.axis) this.setAxis(button.dataset.axis);
      if (button.dataset.scale) { this.scale = button.dataset.scale; this.changed(); }
    });
  },

  // --- what it says --------------------------------------------------------------------------------------------

  showBar() {
    const pause = this.find("[data-do=pause]");
    pause.textContent = this.isLive ? "Pause" : this.engine.is_live ? "Go live" : "To its end";
    pause.setAttribute("aria-pressed", String(!this.isLive));
    for (const button of this.root.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === this.axis));
    for (const button of this.root.querySelectorAll("[data-scale]")) button.setAttribute("aria-pressed", String(button.dataset.scale === this.scale));
    const chip = this.find("[data-do=unfollow]");
    chip.hidden = !this.request;
    chip.textContent = this.request ? `following ${shortName(this.request)} ×` : "";
    const span = this.span[this.axis];
    this.find(".span").textContent = this.axis === "step" ? count(Math.round(span), "step") : lengthWords(span);
    this.find(".said").textContent = this.position();
  },

  // Which part of the run is shown.
  position() {
    const { ring } = this;
    const lost = this.numLost ? ` · ${count(this.numLost, "step")} lost on the way here` : "";
    const density = this.most > 1 ? ` · up to ${this.most} steps a pixel, the fullest is drawn` : "";
    if (this.isLive && this.troubleLevel === "bad" && this.trouble && this.heardAt) {
      return `as it was ${lengthWords(performance.now() - this.heardAt)} ago${lost}`;
    }
    if (this.isLive) return `${this.engine.is_live ? "follows what happens" : "its last steps"}${density}${lost}`;
    if (this.selected === null) {
      const back = Math.max(0, this.liveEdge() - this.right[this.axis]);
      return `looks back ${this.axis === "step" ? count(Math.round(back), "step") : lengthWords(back)}${density}${lost}`;
    }
    const index = ring.indexOf(this.selected);
    if (index < 0) return `step ${this.selected} is not among those drawn here${lost}`;
    return `paused at step ${this.selected}, ${count(ring.length - 1 - index, "step")} came after it${lost}`;
  },

  showState() {
    const pill = this.find(".canvas-state"), [words, level] = this.stateWords();
    if (pill.textContent !== words) pill.textContent = words;
    pill.dataset.level = level;
  },

  stateWords() {
    if (this.trouble) return [this.trouble, this.troubleLevel];
    const { word, age, at } = this.health;
    const since = age === null ? null : age * 1000 + (performance.now() - at);
    if (word === "dead") return [`the engine is dead${since === null ? "" : `; its last step ended ${lengthWords(since)} ago`}`, "bad"];
    const open = this.openStep();
    if (open !== null && open.isStill) return [`stands still for ${spanWords(open.took)}${open.n === null ? "" : ` in step ${open.n}`}`, "bad"];
    if (word === "stalled") return [`the engine stands still${since === null ? "" : ` since ${lengthWords(since)}`}`, "bad"];
    if (!this.engine.is_live) return ["recording", ""];
    if (word === "ended") return ["the engine has ended", "warning"];
    if (since === null) return ["no step yet", ""];
    if (open !== null) return [openWords(open), ""];
    return since > 1500 ? [`no step for ${since < 60000 ? `${Math.round(since / 1000)} s` : lengthWords(since)}`, ""] : ["live", "good"];
  },

  speak() {
    if (this.toReveal) this.reveal();
    this.showState();
    this.showBar();
    const { ring } = this, index = this.selected === null ? ring.length - 1 : ring.indexOf(this.selected);
    const step = index >= 0 ? ring.steps[index] : null;
    const open = this.openStep(), now = open === null ? "" : ` ${openLines(open, (ms) => ms + (this.wallOffset ?? 0)).join(". ")}.`;
    const what = step ? stepLines(step, this.engine, this.data.words, (ms) => ms + (this.wallOffset ?? 0), null).join(". ") : open === null ? "No step yet" : "No step has ended yet";
    const words = `Step stream of engine ${this.data.engine}: ${this.stateWords()[0]}, ${this.position()}.${now} ${what}.`;
    // Where nothing moves the picture is not drawn anew, and yet its words must go on.
    if (open !== null && this.loop) this.loop.touch();
    if (words !== this.spoken) { this.spoken = words; this.canvas.setAttribute("aria-label", words); }
  },
});

export default function (component) {
  const root = component.parentElement, box = root.querySelector(".canvas-box");
  if (box.stream) box.stream.adopt(component);
  else box.stream = new StepStream(root, component);
  box.stream.speak();
  return () => { if (box.stream) { box.stream.close(); box.stream = null; } };
}
