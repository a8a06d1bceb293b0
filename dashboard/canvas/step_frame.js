// What stands around and over the picture: scales, axis, budget, marks, gaps, the chosen step, the map of all steps.

const GUTTER = 74;
const AXIS = 20;
const MAP_HEIGHT = 30;
const MARK_ROOM = 7;
const TIME_TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000];

// The next of 1, 2, 5, 10, 20, … that is not below.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= value * 0.999);
}

// A scale that does not tremble: it changes only when values no longer fit, or use less than half of it.
function steady(before, value) {
  const wanted = roundUp(value);
  return before && value <= before && value > before / 2.1 ? before : wanted;
}

const compact = (num) => num >= 10000 ? `${Math.round(num / 1000)}k` : num >= 1 || num === 0 ? `${Math.round(num * 10) / 10}` : `${num}`;

class StepFrame {
  constructor(context, theme, colours, width) {
    Object.assign(this, { context, theme, colours, width });
    this.tops = {};
    let top = 0;
    for (const [name, height] of PANES) {
      if (name !== "gap") this.tops[name] = [top, top + height];
      top += height;
    }
  }

  label(text, x, y, align = "left", colour = null, alpha = 0.72) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour || this.theme.text;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(text, x, y);
    context.globalAlpha = 1;
  }

  // Names and highest values of the panes, at the left.
  gutter(scales) {
    const { context, theme } = this;
    context.font = `11px ${theme.font}`;
    const rows = [["tokens", "tokens", compact(scales.tokens)], ["phases", "time taken", lengthWords(scales.phases)],
      ["running", "running", compact(scales.running)], ["waiting", "waiting", compact(scales.waiting)], ["kv", "KV blocks", compact(scales.blocks)]];
    for (const [pane, name, most] of rows) {
      const [top, bottom] = this.tops[pane];
      this.label(name, 0, pane === "tokens" || pane === "phases" ? (top + bottom) / 2 : bottom - 7);
      if (pane !== "tokens" || !scales.isByBudget) this.label(most, GUTTER - 6, top + 6, "right");
      context.fillStyle = theme.border;
      context.fillRect(GUTTER - 2, bottom, this.width - GUTTER + 2, 1);
    }
    this.label("0", GUTTER - 6, this.tops.tokens[1] - 5, "right");
  }

  // The line that no step's computed tokens go over, with its number.
  budget(tokens, y) {
    const { context, theme } = this;
    context.strokeStyle = theme.text;
    context.globalAlpha = 0.75;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(GUTTER, Math.round(y) + 0.5);
    context.lineTo(this.width, Math.round(y) + 0.5);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
    this.label(`budget ${compact(tokens)}`, GUTTER - 6, y, "right", null, 1);
  }

  ticks(marks) {
    const { context, theme } = this;
    context.fillStyle = theme.border;
    for (const [x] of marks) context.fillRect(Math.round(x), PICTURE_HEIGHT + 1, 1, 5);
    let free = GUTTER;
    for (const [x, text] of marks) {
      const half = context.measureText(text).width / 2;
      if (x - half < free || x + half > this.width) continue;
      this.label(text, x, PICTURE_HEIGHT + 12, "center");
      free = x + half + 10;
    }
  }

  // Steps that nobody heard of: a gap is drawn as a gap.
  gap(x0, x1, num) {
    const { context, theme } = this, left = Math.min(x0, x1 - 6), words = `${num} lost`;
    context.save();
    context.beginPath();
    context.rect(left, 0, x1 - left, PICTURE_HEIGHT);
    context.clip();
    context.fillStyle = theme.background;
    context.fillRect(left, 0, x1 - left, PICTURE_HEIGHT);
    context.strokeStyle = this.colours.level.warning;
    context.globalAlpha = 0.7;
    context.beginPath();
    for (let x = left - PICTURE_HEIGHT; x < x1; x += 9) { context.moveTo(x, PICTURE_HEIGHT); context.lineTo(x + PICTURE_HEIGHT, 0); }
    context.stroke();
    context.restore();
    const room = context.measureText(words).width + 6;
    if (room > x1 - left) return;
    context.fillStyle = theme.background;
    context.fillRect(left, 30, room, 14);
    this.label(words, left + 3, 37, "left", this.colours.level.warning, 1);
  }

  // Preemptions hang from the top; a step that failed has a red line through all panes.
  marks(columns, num, ratio) {
    const { context, colours } = this;
    let marked = -MARK_ROOM, failed = -MARK_ROOM;
    for (let at = 0; at < num; at++) {
      const column = columns[at], x = GUTTER + (column.begin + column.end) / 2 / ratio;
      if (column.step.error && x - failed >= MARK_ROOM) {
        failed = x;
        context.fillStyle = colours.level.bad;
        context.fillRect(x - 1, 0, 2, PICTURE_HEIGHT);
        context.fillRect(x - 5, 0, 10, 10);
        this.label("×", x, 5.5, "center", "#ffffff", 1);
      }
      if (column.isMarked && x - marked >= MARK_ROOM) {
        marked = x;
        context.fillStyle = colours.stage.preempted;
        context.beginPath();
        context.moveTo(x - 4, 0); context.lineTo(x + 4, 0); context.lineTo(x, 7);
        context.fill();
      }
    }
  }

  // A step that is looked at.
  chosen(x0, x1, n) {
    const { context, theme } = this, left = Math.floor(x0) - 1.5, width = Math.max(3, Math.ceil(x1 - x0) + 3);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(left, 1, width, PICTURE_HEIGHT);
    context.lineWidth = 1;
    const words = `step ${n}`, half = context.measureText(words).width / 2 + 6;
    const middle = Math.min(this.width - half, Math.max(GUTTER + half, left + width / 2));
    context.fillStyle = theme.accent;
    context.beginPath();
    context.roundRect(middle - half, PICTURE_HEIGHT + 3, 2 * half, 16, 4);
    context.fill();
    this.label(words, middle, PICTURE_HEIGHT + 11.5, "center", "#ffffff", 1);
  }

  hover(x0, x1) {
    this.context.fillStyle = this.theme.text;
    this.context.globalAlpha = 0.1;
    this.context.fillRect(x0, 0, Math.max(1, x1 - x0), PICTURE_HEIGHT);
    this.context.globalAlpha = 1;
  }

  say(title, words) {
    const middle = (GUTTER + this.width) / 2, [top, bottom] = this.tops.tokens;
    this.context.font = `600 15px ${this.theme.font}`;
    this.label(title, middle, (top + bottom) / 2 - 10, "center", null, 0.85);
    this.context.font = `12px ${this.theme.font}`;
    this.label(words, middle, (top + bottom) / 2 + 12, "center");
  }
}

// All kept steps, small: how full each was, where something failed, and which part is shown.
class StepMap {
  constructor() { this.drawnAt = -1e9; this.layer = document.createElement("canvas"); }

  draw(canvas, ring, place, shown, colours, theme, now) {
    const { context, width } = fitCanvas(canvas, MAP_HEIGHT);
    if (now - this.drawnAt > 500 || this.layer.width !== canvas.width || this.theme !== theme.background) {
      this.drawnAt = now;
      this.theme = theme.background;
      this.layer.width = canvas.width; this.layer.height = canvas.height;
      const ink = this.layer.getContext("2d");
      ink.setTransform(canvas.width / width, 0, 0, canvas.width / width, 0, 0);
      this.paint(ink, ring, place, width, colours, theme);
    }
    context.clearRect(0, 0, width, MAP_HEIGHT);
    context.drawImage(this.layer, 0, 0, width, MAP_HEIGHT);
    const [left, right] = shown.map((x) => Math.max(GUTTER, Math.min(width, x)));
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.2;
    context.fillRect(left, 0, Math.max(3, right - left), MAP_HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = theme.accent;
    context.strokeRect(left + 0.5, 0.5, Math.max(3, right - left) - 1, MAP_HEIGHT - 1);
  }

  paint(ink, ring, place, width, colours, theme) {
    const num = Math.max(1, Math.floor(width)), most = new Float32Array(num), flags = new Uint8Array(num);
    let top = 1;
    ring.steps.forEach((step, index) => {
      const x = Math.max(0, Math.min(num - 1, Math.floor(place(step, index))));
      most[x] = Math.max(most[x], step.total);
      top = Math.max(top, step.total);
      flags[x] |= (step.error ? 1 : 0) | (step.numPreempted ? 2 : 0) | (step.numLostBefore ? 4 : 0);
    });
    ink.clearRect(0, 0, width, MAP_HEIGHT);
    ink.fillStyle = theme.faint;
    ink.fillRect(GUTTER, 0, width - GUTTER, MAP_HEIGHT);
    for (let x = GUTTER; x < num; x++) {
      if (!most[x] && !flags[x]) continue;
      const height = (MAP_HEIGHT - 6) * Math.sqrt(most[x] / top);
      ink.fillStyle = colours.phase.unknown;
      ink.fillRect(x, MAP_HEIGHT - height, 1, height);
      if (!flags[x]) continue;
      ink.fillStyle = flags[x] & 1 ? colours.level.bad : flags[x] & 2 ? colours.stage.preempted : colours.level.warning;
      ink.fillRect(x, 0, 1, 4);
    }
    ink.font = `11px ${theme.font}`;
    ink.fillStyle = theme.text;
    ink.globalAlpha = 0.72;
    ink.textBaseline = "middle";
    ink.fillText("all kept", 0, MAP_HEIGHT / 2);
    ink.globalAlpha = 1;
  }
}
