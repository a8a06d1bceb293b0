// Draws the waterfall: an axis, a bar a sequence, a row a stage of the chosen one; and the strip of steps.

const GUTTER = 190, RIGHT = 12, AXIS = 22, LANE = 24, ROW = 21, GAP = 9, STRIP = 58;
const ALWAYS = ["receive", "tokenize", "submit", "queue", "prefill", "decode", "return", "detokenize", "deliver"];

class Waterfall {
  constructor(root, component) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas.picture");
    this.strip = this.find("canvas.strip");
    this.tip = this.find(".canvas-tip");
    this.view = null;            // [begin, end] in ns when zoomed, null shows the whole
    this.cursor = null;          // {lane, piece} chosen by keys
    this.stepCursor = null;      // a step of the strip
    this.ready = false;
    this.adopt(component);
    this.loop = drawLoop(() => this.draw());
    this.resizing = new ResizeObserver(() => this.loop.touch());
    this.resizing.observe(this.canvas);
    this.listen();
  }

  adopt(component) {
    const { data } = component, chosen = data.lanes[data.chosen];
    const name = data.lanes.map((lane) => lane.name).join() + data.chosen;
    if (name !== this.name) { this.view = this.cursor = this.stepCursor = null; this.name = name; }
    this.component = component;
    this.data = data;
    this.takenAt = performance.now();
    this.chosen = chosen;
    this.stages = Object.keys(data.colours.stage).filter((stage) => chosen.stage_ns[stage] || (chosen.is_live && ALWAYS.includes(stage)));
    this.height = AXIS + data.lanes.length * LANE + GAP + this.stages.length * ROW + 4;
    this.canvas.style.height = `${this.height}px`;
    this.find(".title").textContent = this.stripTitle();
    if (this.loop) this.loop.touch();
  }

  // How much time has passed since the data was taken, for those that live.
  get grown() { return this.data.is_growing ? (performance.now() - this.takenAt) * 1e6 : 0; }

  endOf(lane) { const last = lane.pieces[lane.pieces.length - 1]; return last ? last[2] + (lane.is_live ? this.grown : 0) : 0; }

  piecesOf(lane) {
    return lane.pieces.map(([stage, begin, end, reason, together], place) => {
      const isOpen = lane.is_live && place === lane.pieces.length - 1;
      return { stage, begin, end: isOpen ? end + this.grown : end, reason, together, isOpen };
    });
  }

  get whole() { return Math.max(1, ...this.data.lanes.map((lane) => this.endOf(lane))); }
  get shown() { return this.view || [0, this.whole * (this.chosen.is_live ? 1.04 : 1.003)]; }

  xOf(ns) { const [begin, end] = this.shown; return GUTTER + (ns - begin) / (end - begin) * this.inner; }
  nsAt(x) { const [begin, end] = this.shown; return begin + (x - GUTTER) / this.inner * (end - begin); }

  draw() {
    const { context, width } = fitCanvas(this.canvas, this.height);
    this.inner = Math.max(60, width - GUTTER - RIGHT);
    this.theme = themeOf(this.canvas);
    context.clearRect(0, 0, width, this.height);
    context.textBaseline = "middle";
    context.font = `12px ${this.theme.font}`;
    this.boxes = [];
    this.drawAxis(context);
    this.data.lanes.forEach((lane, place) => this.drawLane(context, lane, place));
    const top = AXIS + this.data.lanes.length * LANE + GAP;
    this.stages.forEach((stage, row) => this.drawStage(context, stage, top + row * ROW));
    this.drawMarks(context);
    this.drawStrip();
    return this.data.is_growing && this.data.lanes.some((lane) => lane.is_live);
  }

  drawAxis(context) {
    const [begin, end] = this.shown, step = niceStep((end - begin) / Math.max(2, this.inner / 110));
    context.textAlign = "center";
    for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
      const x = Math.round(this.xOf(at)) + 0.5;
      context.strokeStyle = this.theme.border;
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, this.height);
      context.stroke();
      context.fillStyle = this.theme.text;
      context.globalAlpha = 0.75;
      context.fillText(at === 0 ? "0" : tickWords(at, step), Math.min(x, GUTTER + this.inner - 14), AXIS / 2 - 1);
      context.globalAlpha = 1;
    }
  }

  label(context, name, figure, y, isStrong) {
    context.fillStyle = this.theme.text;
    context.font = `${isStrong ? "600 " : ""}12px ${this.theme.font}`;
    context.textAlign = "left";
    context.fillText(fitted(context, name, figure.length > 8 ? GUTTER - 100 : GUTTER - 68), 2, y);
    context.font = `12px ${this.theme.font}`;
    context.textAlign = "right";
    context.fillText(figure, GUTTER - 10, y);
    context.textAlign = "left";
  }

  drawLane(context, lane, place) {
    const y = AXIS + place * LANE, isChosen = place === this.data.chosen, many = this.data.lanes.length > 1;
    const name = this.data.is_sibling && many ? `sequence ${lane.sequence}` : many ? lane.label : "all stages";
    this.label(context, name, lengthWords(this.endOf(lane)), y + LANE / 2, isChosen);
    context.globalAlpha = isChosen ? 1 : 0.8;
    for (const piece of this.piecesOf(lane)) this.drawPiece(context, piece, y + 3, LANE - 6, place);
    context.globalAlpha = 1;
    if (isChosen && many) { context.fillStyle = this.theme.accent; context.fillRect(GUTTER - 6, y + 3, 3, LANE - 6); }
  }

  drawStage(context, stage, y) {
    let sum = 0;
    const pieces = this.piecesOf(this.chosen).filter((piece) => piece.stage === stage);
    const open = pieces.find((piece) => piece.isOpen);
    sum = (this.chosen.stage_ns[stage] || 0) + (open ? this.grown : 0);
    const whole = this.endOf(this.chosen);
    const figure = sum ? `${lengthWords(sum)}  ${shareWords(whole ? sum / whole : 0).padStart(6, "\u2007")}` : "–";
    this.label(context, stage, figure, y + ROW / 2, false);
    for (const piece of pieces) this.drawPiece(context, piece, y + 2, ROW - 5, this.data.chosen);
  }

  drawPiece(context, piece, y, height, lane) {
    const left = Math.max(GUTTER, this.xOf(piece.begin)), right = Math.min(GUTTER + this.inner, this.xOf(piece.end));
    if (right < GUTTER || left > GUTTER + this.inner) return;
    const width = Math.max(1.5, right - left), colour = this.data.colours.stage[piece.stage] || this.data.colours.level.unknown;
    context.fillStyle = colour;
    context.fillRect(left, y, width, height);
    if (piece.reason) this.hatch(context, left, y, width, height);
    this.write(context, piece, left, y, width, height);
    const isAt = this.cursor && this.cursor.lane === lane && this.cursor.begin === piece.begin;
    if (isAt) { context.strokeStyle = this.theme.text; context.lineWidth = 2; context.strokeRect(left, y, width, height); context.lineWidth = 1; }
    this.boxes.push({ left, right: left + width, top: y - 2, bottom: y + height + 2, piece, lane });
  }

  hatch(context, left, y, width, height) {
    context.save();
    context.beginPath();
    context.rect(left, y, width, height);
    context.clip();
    context.strokeStyle = this.theme.background;
    context.globalAlpha *= 0.5;
    context.lineWidth = 1.5;
    context.beginPath();
    const first = left - height - (left % 7);
    for (let x = first; x < left + width; x += 7) { context.moveTo(x, y + height); context.lineTo(x + height, y); }
    context.stroke();
    context.restore();
  }

  // The reason of a wait (or the stage) on the bar, where there is room for it.
  write(context, piece, left, y, width, height) {
    const words = piece.reason ? reasonWords(piece.reason) : piece.stage;
    context.font = `600 11px ${this.theme.font}`;
    const needed = context.measureText(words).width;
    if (needed + 12 < width) {
      const colour = this.data.colours.stage[piece.stage] || "#868e96";
      context.fillStyle = colour;
      context.fillRect(left + 3, y + 1, needed + 6, height - 2);
      context.fillStyle = inkOn(colour);
      context.textAlign = "left";
      context.fillText(words, left + 6, y + height / 2 + 0.5);
    }
    context.font = `12px ${this.theme.font}`;
  }

  drawMarks(context) {
    for (const [at, words] of this.data.marks) {
      const x = Math.round(this.xOf(at)) + 0.5;
      if (x < GUTTER || x > GUTTER + this.inner) continue;
      context.strokeStyle = this.theme.text;
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(x, AXIS - 3);
      context.lineTo(x, this.height - 2);
      context.stroke();
      context.setLineDash([]);
      context.font = `11px ${this.theme.font}`;
      const room = context.measureText(words).width + 10, isLeft = x + room > GUTTER + this.inner;
      context.fillStyle = this.theme.background;
      context.fillRect(isLeft ? x - room : x + 1, this.height - 17, room - 1, 15);
      context.fillStyle = this.theme.text;
      context.textAlign = isLeft ? "right" : "left";
      context.fillText(words, isLeft ? x - 5 : x + 5, this.height - 9);
      context.font = `12px ${this.theme.font}`;
    }
  }

  get stepRange() {
    const { runs } = this.data;
    if (!runs.length) return null;
    const last = runs[runs.length - 1];
    return [runs[0][0], last[0] + last[1]];
  }

  stepX(step) { const [first, end] = this.stepRange; return GUTTER + (step - first) / (end - first) * this.inner; }

  drawStrip() {
    const { context, width } = fitCanvas(this.strip, STRIP), { theme, data } = this, range = this.stepRange;
    context.clearRect(0, 0, width, STRIP);
    context.textBaseline = "middle";
    context.font = `12px ${theme.font}`;
    const floor = STRIP - 16, most = Math.max(1, ...data.runs.map((run) => run[2]));
    this.label(context, "tokens a step", range ? `${most} at most` : "–", floor / 2, false);
    context.strokeStyle = theme.border;
    context.strokeRect(GUTTER + 0.5, 0.5, this.inner - 1, floor - 1);
    if (!range) return;
    for (const [first, count, tokens, kind] of data.runs) {
      const left = this.stepX(first), right = this.stepX(first + count), height = Math.max(3, Math.sqrt(tokens / most) * (floor - 4));
      context.fillStyle = data.colours.token[KINDS[kind]];
      context.fillRect(left, floor - height - 1, Math.max(1, right - left), height);
    }
    if (this.stepCursor !== null) {
      context.strokeStyle = theme.text;
      context.strokeRect(this.stepX(this.stepCursor) - 1, 0.5, Math.max(3, this.inner / (range[1] - range[0])), floor - 1);
    }
    context.fillStyle = theme.text;
    context.globalAlpha = 0.75;
    context.fillText(`step ${range[0]}`, GUTTER, STRIP - 7);
    context.textAlign = "right";
    context.fillText(`${range[1] - 1}`, GUTTER + this.inner, STRIP - 7);
    context.globalAlpha = 1;
  }

  stripTitle() {
    const { runs } = this.data;
    if (!runs.length) return "It has not run in a step yet.";
    const num = runs.reduce((sum, run) => sum + run[1], 0), last = runs[runs.length - 1];
    const missing = last[0] + last[1] - runs[0][0] - num;
    return `Its tokens in each step, by number of step (height: square root)${missing ? `; ${missing} steps between ran without it` : ""}`;
  }
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
}

// A tick with as many digits as the distance to the next one needs.
function tickWords(at, step) {
  const [unit, size] = at >= NS_PER_S ? ["s", NS_PER_S] : at >= 1e6 ? ["ms", 1e6] : ["µs", 1e3];
  return `${(at / size).toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / size) - 1e-9))))} ${unit}`;
}

// Black or white, whichever is the easier to read on a colour.
function inkOn(colour) {
  const [red, green, blue] = channelsOf(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#111" : "#fff";
}

function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 1, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
  }
  return text.slice(0, low) + "…";
}
