// Moving about in the block map: steps, requests, zoom; pointer, wheel, keys and buttons; and telling the page.

const DRAG_PIXELS = 4;
const ASK_DELAY_MS = 130;
const FIRST_MARGIN = 200;

Object.assign(BlockView.prototype, {
  // Null: live.
  goTo(step, tell = true) {
    const isLive = step === null || step === undefined;
    const wanted = isLive ? null : Math.max(this.store.num ? this.store.firstStep : 0, step);
    if (wanted === this.step && !isLive) return;
    this.step = wanted;
    if (isLive) this.openLive();
    else { this.closeStream(); this.trouble = ""; this.readStep(wanted); }
    this.readTable();
    if (tell) this.pick({ step: wanted });
    this.showBar();
  },

  stepBy(num) {
    const from = this.step === null ? this.store.step + (num < 0 ? 1 : 0) : this.step;
    this.goTo(Math.max(this.store.firstStep, Math.min(this.store.lastStep, from + num)));
  },

  // To the oldest that is kept, a little after it: while one looks, the oldest go.
  async goFirst() {
    await this.readRange().catch(() => {});
    const { firstStep, lastStep } = this.store;
    this.goTo(Math.min(lastStep, this.data.is_live ? firstStep + FIRST_MARGIN : firstStep));
  },

  toggle() { this.goTo(this.step === null ? this.store.step : null); },

  follow(request, tell = true) {
    this.request = request || null;
    this.setTable(noTable(this.request || ""));
    this.readTable();
    if (tell) this.pick({ request: this.request });
    this.showBar();
  },

  setMode(mode) {
    this.mode = mode;
    this.painter.spoil();
    if (this.loop) this.loop.touch();
    this.pick({ mode });
    this.showBar();
  },

  zoom(factor, x = this.plan.width / 2, y = this.plan.height / 2) {
    this.plan.zoomAt(factor, x, y);
    this.hideTip();
    this.loop.touch();
    this.showBar();
  },

  pan(columns, rows) {
    this.plan.move(this.plan.left + columns, this.plan.top + rows);
    this.loop.touch();
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

  // --- pointing -------------------------------------------------------------------------------------------------

  listenToPointer() {
    const { canvas, plan } = this, strip = this.strip.canvas;
    let drag = null;
    const inMinimap = ({ offsetX, offsetY }) => {
      if (!plan.isZoomed) return false;
      const { x, y, width, height } = minimapOf(plan);
      return offsetX >= x - 3 && offsetX <= x + width + 3 && offsetY >= y - 3 && offsetY <= y + height + 3;
    };
    const toMinimap = (event) => {
      const { x, y, width } = minimapOf(plan), scale = plan.columns / width;
      plan.move((event.offsetX - x) * scale - plan.across / 2, (event.offsetY - y) * scale - plan.down / 2);
      this.loop.touch();
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const isOnMinimap = inMinimap(event);
      drag = { x: event.clientX, y: event.clientY, left: plan.left, top: plan.top, isFar: false, isOnMinimap };
      canvas.setPointerCapture(event.pointerId);
      if (isOnMinimap) toMinimap(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag === null) { this.point(inMinimap(event) ? null : plan.at(event.offsetX, event.offsetY), event); return; }
      if (drag.isOnMinimap) { toMinimap(event); return; }
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
      if (!drag.isFar && Math.hypot(dx, dy) < DRAG_PIXELS) return;
      drag.isFar = true;
      this.hideTip();
      plan.move(drag.left - dx / plan.pitch, drag.top - dy / plan.pitch);
      this.loop.touch();
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = drag !== null && !drag.isFar && !drag.isOnMinimap;
      drag = null;
      if (isClick) this.choose(plan.at(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("dblclick", (event) => this.zoom(2, event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    strip.addEventListener("pointermove", (event) => this.pointAtPlace(event));
    strip.addEventListener("pointerleave", () => this.hideTip());
    strip.addEventListener("click", (event) => {
      const place = this.strip.at(event.offsetX, event.offsetY, this.table.ids.length);
      if (place !== null) { this.cursor = this.table.ids[place]; plan.show(this.cursor); this.loop.touch(); }
    });
  },

  // A page must scroll under the wheel: it zooms with Ctrl, or once the map was clicked; then it moves with Shift.
  wheel(event) {
    const root = this.root.activeElement !== undefined ? this.root : document;
    if (!event.ctrlKey && !event.metaKey && root.activeElement !== this.canvas) return;
    event.preventDefault();
    if (event.shiftKey && !event.ctrlKey) this.pan((event.deltaY || event.deltaX) / this.plan.pitch, 0);
    else this.zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.006), event.offsetX, event.offsetY);
  },

  // Whoever holds a block is followed; of a block that nobody holds, the one who made it, as far as that is known.
  async choose(id) {
    this.cursor = id;
    this.loop.touch();
    if (id === null) return;
    const owner = this.store.nameOf(id) || (await this.detailsOf(id) || {}).made_by;
    if (owner && owner !== this.request) this.follow(owner);
  },

  point(id, place) {
    if (id === null) { this.hideTip(); return; }
    const isOther = id !== this.hovered;
    this.hovered = id;
    this.place = { offsetX: place.offsetX, offsetY: place.offsetY };
    this.tell();
    if (isOther) { this.ask(); this.loop.touch(); }
  },

  // The tip of the block that is pointed at, as it is now.
  tell() {
    if (this.hovered !== null && this.place) this.showTip(blockLines(this.store, this.hovered, this.details), this.place, this.canvas);
  },

  pointAtPlace(event) {
    const place = this.strip.at(event.offsetX, event.offsetY, this.table.ids.length);
    if (place === null) { this.hideTip(); return; }
    this.hovered = this.table.ids[place];
    this.place = null;
    this.showTip(placeLines(this.table, place), event, this.strip.canvas);
    this.loop.touch();
  },

  // Asks what the map does not know, once the pointer rests.
  ask() {
    clearTimeout(this.askTimer);
    const id = this.hovered;
    this.askTimer = setTimeout(async () => {
      const details = await this.detailsOf(id);
      if (this.hovered !== id || details === null) return;
      this.details = details;
      this.tell();
    }, ASK_DELAY_MS);
  },

  // Null where they cannot be had: the tip then says what the map knows.
  async detailsOf(id) {
    const query = { engine: this.data.engine, ...(this.step === null ? {} : { step: this.step }) };
    return observed(`blocks/${id}`, query).catch(() => null);
  },

  showTip(lines, { offsetX, offsetY }, canvas) {
    const { tip } = this;
    tip.textContent = lines.join("\n");
    tip.style.display = "block";
    const left = offsetX + 16 + tip.offsetWidth > canvas.clientWidth ? offsetX - 16 - tip.offsetWidth : offsetX + 16;
    tip.style.left = `${Math.max(0, left)}px`;
    // Above the strip, which it would hide; else beside the pointer.
    const below = canvas.offsetTop + offsetY + 12, most = canvas.offsetTop + canvas.clientHeight - tip.offsetHeight;
    tip.style.top = `${Math.max(0, canvas === this.canvas ? Math.min(below, most) : canvas.offsetTop - tip.offsetHeight - 6)}px`;
  },

  hideTip() {
    clearTimeout(this.askTimer);
    if (this.hovered === null) return;
    this.hovered = null;
    this.tip.style.display = "none";
    this.loop.touch();
  },

  // --- keys and buttons -----------------------------------------------------------------------------------------

  listenToKeys() {
    const ahead = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -this.plan.columns, ArrowDown: () => this.plan.columns };
    this.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        " ": () => this.toggle(),
        ArrowLeft: () => this.stepBy(-1), ArrowRight: () => this.stepBy(1),
        PageUp: () => this.stepBy(-10), PageDown: () => this.stepBy(10),
        Home: () => this.goFirst(), End: () => this.goTo(this.store.lastStep),
        Escape: () => { if (this.step !== null) this.goTo(null); else if (this.request) this.follow(null); else if (this.plan.isZoomed) this.zoom(0); },
        Enter: () => this.choose(this.cursor),
        "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.zoom(0),
        1: () => this.setMode("state"), 2: () => this.setMode("owner"), 3: () => this.setMode("refs"), 4: () => this.setMode("age"),
      };
      const deed = event.shiftKey && ahead[event.key] ? () => this.moveCursor(ahead[event.key]()) : keys[event.key];
      if (!deed) return;
      event.preventDefault();
      deed();
      this.speak();
    });
  },

  moveCursor(by) {
    if (!this.store.num) return;
    const id = this.cursor === null ? 0 : Math.max(0, Math.min(this.store.num - 1, this.cursor + by));
    this.cursor = id;
    this.plan.show(id);
    const { x, y, size } = this.plan.cell(id);
    this.point(id, { offsetX: x + size, offsetY: y + size });
    this.loop.touch();
  },

  listenToBar() {
    const deeds = {
      pause: () => this.toggle(), older: () => this.stepBy(-1), newer: () => this.stepBy(1), unfollow: () => this.follow(null),
      in: () => this.zoom(1.6), out: () => this.zoom(1 / 1.6), whole: () => this.zoom(0),
    };
    this.find(".bar").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.do) deeds[button.dataset.do]();
      if (button.dataset.mode) this.setMode(button.dataset.mode);
    });
    const scrubber = this.find(".scrubber");
    scrubber.addEventListener("input", () => this.goTo(Number(scrubber.value)));
  },
});
