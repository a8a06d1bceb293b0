// Draws steps into the pixels of a picture: the batch against its budget, the phases, the queues and the KV blocks.
// Pixels are written one by one: a picture costs as many writes as it has pixels, however many requests there are.

const LIT_BIT = 32;
const STYLE_MASK = (1 << 20) - 1;
const NUM_KINDS = 4;
const CACHED = 3;

// Heights of the parts of the picture in CSS pixels, top to bottom.
const PANES = [["tokens", 224], ["gap", 8], ["busy", 9], ["gap", 3], ["phases", 66], ["gap", 10],
  ["running", 26], ["gap", 6], ["waiting", 26], ["gap", 6], ["kv", 32]];
const PICTURE_HEIGHT = PANES.reduce((sum, pane) => sum + pane[1], 0);

// Top and bottom of each pane at this sharpness.
function panesAt(ratio) {
  const found = {};
  let top = 0;
  for (const [name, height] of PANES) {
    if (name !== "gap") found[name] = { top: Math.round(top * ratio), bottom: Math.round((top + height) * ratio) };
    top += height;
  }
  return found;
}

const packed = (channels, alpha = 255) => ((alpha << 24) | (channels[2] << 16) | (channels[1] << 8) | channels[0]) >>> 0;

// All colours as pixels: [lit or dimmed][kind][hue].
function inkOf(colours, theme) {
  const page = channelsOf(theme.background), orange = channelsOf(colours.token.recompute);
  const num = colours.request.length, isDark = page[0] + page[1] + page[2] < 384, ink = { num, fill: new Uint32Array(2 * NUM_KINDS * num), stripe: packed(orange) };
  colours.request.forEach((hex, hue) => {
    const pure = channelsOf(hex);
    const kinds = [pure, mixed(pure, page, isDark ? 0.26 : 0.42), pure, mixed(pure, page, 0.3)];
    kinds.forEach((colour, kind) => {
      ink.fill[kind * num + hue] = packed(mixed(colour, page, 0.84));
      ink.fill[(NUM_KINDS + kind) * num + hue] = packed(colour);
    });
  });
  ink.dimStripe = packed(mixed(orange, page, 0.7));
  ink.nameless = packed(mixed(channelsOf("#868e96"), page, 0.3));
  ink.phases = PHASES.map((name) => packed(channelsOf(colours.phase[name])));
  ink.running = packed(channelsOf(colours.stage.decode));
  ink.waiting = packed(channelsOf(colours.stage.queue));
  ink.active = packed(channelsOf(colours.block.active));
  ink.cached = packed(mixed(channelsOf(colours.block.cached), page, 0.2));
  ink.free = packed(mixed(channelsOf("#868e96"), page, 0.8));
  ink.cut = packed(channelsOf(theme.text));
  return ink;
}

class StepPicture {
  constructor() {
    this.style = new Uint8Array(STYLE_MASK + 1);
    this.columns = [];
    this.numColumns = 0;
    this.first = 0;
    this.heights = new Uint16Array(0);
  }

  // Makes room for a picture of so many pixels.
  fit(context, width, height, ratio) {
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.key = "";
    }
    this.width = width;
    this.ratio = ratio;
    this.panes = panesAt(ratio);
  }

  // Keeps what is drawn already, moved to where it is now, and says from which column on to draw.
  // `key` has all that a column's looks depend on; `left` is the world's pixel at the left edge.
  keep(key, left) {
    const { pixels, width } = this, shift = left - this.left;
    const from = this.lastBegin - shift;
    const isKept = key === this.key && shift >= 0 && from > 0;
    this.key = key;
    this.left = left;
    this.first = 0;
    if (isKept) {
      if (shift) pixels.copyWithin(0, shift);
      const clean = Math.min(width, from);
      for (let end = width; end <= pixels.length; end += width) pixels.fill(0, end - width + clean, end);
      while (this.first < this.numColumns && this.columns[this.first].end <= clean) this.first++;
    } else pixels.fill(0);
    // The last one may yet grow, or be joined by others on its pixel.
    this.lastBegin = this.numColumns ? this.columns[this.numColumns - 1].begin : 0;
    return isKept;
  }

  // Where so many tokens end, in pixels above the ground, looked up rather than computed.
  scaleTo(height, room, most) {
    const num = Math.min(1 << 17, Math.ceil(most) + 2);
    if (this.heights.length !== num) this.heights = new Uint16Array(num);
    for (let tokens = 0; tokens < num; tokens++) this.heights[tokens] = Math.min(room, Math.round(height(tokens)));
  }

  // Where each step stands: `place(step, index)` puts its first and last pixel into [0] and [1] of the pair.
  // Of several steps on one pixel the fullest is drawn. Returns the most steps that fell on one.
  layOut(steps, from, to, place) {
    const pair = [0, 0];
    let num = 0, most = 1, last = null;
    for (let index = from; index < to; index++) {
      const step = steps[index];
      place(step, index, pair);
      const begin = Math.max(0, pair[0]), end = Math.min(this.width, Math.max(pair[1], pair[0] + 1));
      if (end <= begin) continue;
      if (last !== null && begin < last.end && end - begin === 1 && last.end - last.begin === 1) {
        last.count++;
        if (last.count > most) most = last.count;
        last.numLost += step.numLostBefore;
        last.isMarked = last.isMarked || step.numPreempted > 0;
        if (step.error && !last.step.error || step.total > last.step.total && !last.step.error) last.step = step;
        continue;
      }
      last = this.columns[num] || (this.columns[num] = {});
      last.step = step; last.begin = begin; last.end = end; last.count = 1; last.index = index;
      last.numLost = step.numLostBefore; last.isMarked = step.numPreempted > 0;
      num++;
    }
    this.numColumns = num;
    return most;
  }

  rect(x0, x1, y0, y1, colour) {
    const { pixels, width } = this;
    for (let y = y0; y < y1; y++) {
      for (let pixel = y * width + x0, last = y * width + x1; pixel < last; pixel++) pixels[pixel] = colour;
    }
  }

  // Each column's requests one upon the other, as high as `scaleTo` says.
  drawTokens(ink) {
    const { top, bottom } = this.panes.tokens, { ratio, style, heights, pixels, width } = this, room = bottom - top;
    const gap = Math.max(1, Math.round(ratio)), wide = 6 * ratio, beyond = heights.length - 1, { num } = ink;
    const shift = this.left;
    for (let at = this.first; at < this.numColumns; at++) {
      const { step, begin, end } = this.columns[at], rows = step.rows;
      const right = end - begin >= wide ? end - gap : end;
      let sum = 0, low = 0;
      for (let row = 0; row < step.num; row++) {
        const word = rows[2 * row + 1];
        sum += word & TOKEN_MASK;
        const high = sum > beyond ? room : heights[sum];
        if (high <= low) continue;
        const id = rows[2 * row], look = style[id & STYLE_MASK], kind = word >>> TOKEN_BITS;
        const y0 = bottom - high + (high - low >= 6 * ratio ? gap : 0), y1 = bottom - low;
        low = high;
        if (kind > 1) { this.striped(ink, look, kind, begin, right, y0, y1, shift); continue; }
        const colour = id === 0 ? ink.nameless : ink.fill[(look & LIT_BIT ? NUM_KINDS + kind : kind) * num + (look & (LIT_BIT - 1))];
        for (let y = y0; y < y1; y++) {
          for (let pixel = y * width + begin, last = y * width + right; pixel < last; pixel++) pixels[pixel] = colour;
        }
      }
      if (step.cached === null) continue;
      for (const [row, tokens] of step.cached) {
        sum += tokens;
        const high = sum > beyond ? room : heights[sum];
        if (high > low) this.striped(ink, style[rows[2 * row] & STYLE_MASK], CACHED, begin, right, bottom - high, bottom - low, shift);
        low = Math.max(low, high);
      }
    }
  }

  striped(ink, look, kind, x0, x1, y0, y1, shift) {
    const lit = look & LIT_BIT, colour = ink.fill[(lit ? NUM_KINDS + kind : kind) * ink.num + (look & (LIT_BIT - 1))];
    // Stripes stand in the world, not on the screen, so that they do not crawl while it scrolls.
    const unit = Math.max(1, Math.round(this.ratio)), period = (kind === CACHED ? 4 : 8) * unit;
    const thin = kind === CACHED ? unit : 4 * unit, { pixels, width } = this;
    const other = kind === CACHED ? 0 : lit ? ink.stripe : ink.dimStripe;
    for (let y = y0; y < y1; y++) {
      for (let x = x0; x < x1; x++) {
        const phase = (x + shift + y) % period;
        pixels[y * width + x] = (phase < 0 ? phase + period : phase) < thin ? colour : other;
      }
    }
  }

  // How long each step took, by phase; what is longer than `most` ms is cut, with a mark at the top.
  drawPhases(ink, most) {
    const { top, bottom } = this.panes.phases, room = bottom - top, gap = Math.max(1, Math.round(this.ratio));
    for (let at = this.first; at < this.numColumns; at++) {
      const { step, begin, end } = this.columns[at];
      const right = end - begin >= 6 * this.ratio ? end - gap : end;
      let sum = 0, low = 0;
      for (let phase = 0; phase < PHASES.length; phase++) {
        if (!step.phases[phase]) continue;
        sum += step.phases[phase];
        const high = Math.min(room, Math.round(room * sum / most));
        if (high > low) this.rect(begin, right, bottom - high, bottom - low, ink.phases[phase]);
        low = high;
      }
      if (sum > most) this.rect(begin, right, top, top + 2 * gap, ink.cut);
    }
  }

  // The strip of what the engine did at each moment; in step mode of each step's own length.
  drawBusy(ink, placeMs) {
    const { top, bottom } = this.panes.busy;
    for (let at = this.first; at < this.numColumns; at++) {
      const { step, begin, end } = this.columns[at];
      for (const [phase, from, to] of step.spans) {
        const x0 = Math.max(begin, Math.min(end, placeMs(step, from, begin, end)));
        const x1 = Math.max(x0, Math.min(end, placeMs(step, to, begin, end)));
        if (x1 > x0) this.rect(x0, x1, top, bottom, ink.phases[phase]);
        // Of a step narrower than a pixel the phase that took most stands for all.
        else if (end - begin === 1 && to - from > 0.5 * (step.end - step.begin)) this.rect(begin, end, top, bottom, ink.phases[phase]);
      }
    }
  }

  drawLevel(pane, colour, most, value) {
    const { top, bottom } = this.panes[pane], room = bottom - top;
    for (let at = this.first; at < this.numColumns; at++) {
      const { step, begin, end } = this.columns[at], number = value(step);
      if (number <= 0) continue;
      const high = Math.max(1, Math.min(room, Math.round(room * number / most)));
      this.rect(begin, end, bottom - high, bottom, colour);
    }
  }

  drawBlocks(ink) {
    const { top, bottom } = this.panes.kv, room = bottom - top;
    for (let at = this.first; at < this.numColumns; at++) {
      const { step, begin, end } = this.columns[at];
      const all = step.numActive + step.numCachedBlocks + step.numFree;
      if (!all) continue;
      const active = Math.round(room * step.numActive / all), held = Math.round(room * (step.numActive + step.numCachedBlocks) / all);
      this.rect(begin, end, bottom - active, bottom, ink.active);
      this.rect(begin, end, bottom - held, bottom - active, ink.cached);
      this.rect(begin, end, top, bottom - held, ink.free);
    }
  }

  put(context, left, top) { context.putImageData(this.image, left, top); }
}
