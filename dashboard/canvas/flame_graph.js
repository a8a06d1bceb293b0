// A flame graph (icicle: callers above) of collapsed stacks, `role;thread;frame;… count` a line: of all samples, or
// of what ran, by microseconds of CPU time.
// A click makes a frame the whole width, Esc or the button brings everything back, arrows walk it.

const ROW = 19, MAX_LINES = 20000, MAX_DEPTH = 120, MIN_PIXELS = 0.7;

class Frame {
  constructor(name, parent) {
    this.name = name; this.parent = parent; this.depth = parent ? parent.depth + 1 : 0;
    this.total = 0; this.self = 0; this.children = new Map(); this.begin = 0;
  }
}

// The tree of all stacks; children in order of their size.
function treeOf(text) {
  const root = new Frame("all processes", null);
  for (const line of text.split("\n").slice(0, MAX_LINES)) {
    const cut = line.lastIndexOf(" "), count = Number(line.slice(cut + 1));
    if (cut < 1 || !Number.isFinite(count)) continue;
    let frame = root;
    root.total += count;
    for (const name of line.slice(0, cut).split(";").slice(0, MAX_DEPTH)) {
      let next = frame.children.get(name);
      if (!next) { next = new Frame(name, frame); frame.children.set(name, next); }
      next.total += count;
      frame = next;
    }
    frame.self += count;
  }
  place(root);
  return root;
}

function place(frame) {
  frame.children = [...frame.children.values()].sort((one, other) => other.total - one.total);
  let begin = frame.begin;
  for (const child of frame.children) { child.begin = begin; begin += child.total; place(child); }
}

// How much that is, in words: of what ran counts are microseconds of CPU time.
function amountOf(what, count) {
  if (what !== "ran") return `${count} sample${count === 1 ? "" : "s"}`;
  return count >= 1e6 ? `${(count / 1e6).toFixed(2)} s of CPU` : `${(count / 1e3).toFixed(1)} ms of CPU`;
}

class FlameGraph {
  constructor(element, data) {
    this.box = element.querySelector(".canvas-box");
    this.canvas = element.querySelector("canvas");
    this.tip = element.querySelector(".canvas-tip");
    this.found = element.querySelector(".found");
    this.switch = element.querySelector(".what");
    this.colours = data.colours;
    this.root = this.top = this.chosen = null;
    this.wanted = "";
    this.wantsAll = false;
    this.turn = 0;
    this.boxes = [];
    this.loop = drawLoop(() => this.draw());
    this.resized = new ResizeObserver(() => this.loop.touch());
    this.resized.observe(this.canvas);
    this.listen(element);
    this.show(data.paths);
  }

  // Another profile; what ran is looked at until somebody wants to see all.
  show(paths) {
    this.paths = paths;
    this.switch.hidden = !paths.ran;
    this.load(paths.ran && !this.wantsAll ? "ran" : "all");
  }

  async load(what) {
    const path = this.paths[what], turn = this.turn += 1;
    this.what = what;
    for (const button of this.switch.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.what === what));
    this.say("reading the stacks");
    let root = null, trouble = "";
    try {
      const reply = await fetch(OBSERVER + path);
      if (!reply.ok) throw new Error(`status ${reply.status}`);
      root = treeOf(await reply.text());
      if (!root.total) trouble = what === "ran" ? "nothing ran meanwhile" : "there are no samples";
    } catch (error) {
      trouble = `the stacks cannot be read: ${error.message}`;
    }
    if (turn !== this.turn) return;  // meanwhile another was asked for, or the same once more
    this.root = this.top = this.chosen = trouble ? null : root;
    this.say(trouble);
    if (this.wanted && !trouble) this.find(this.wanted);
    this.loop.touch();
  }

  say(words) { this.found.textContent = words; }

  draw() {
    const depth = this.root ? this.depthOf(this.top) : 1;
    const { context, width, height } = fitCanvas(this.canvas, Math.max(2, depth) * ROW + 2);
    const theme = themeOf(this.box);
    context.clearRect(0, 0, width, height);
    this.boxes = [];
    if (!this.root) return false;
    context.font = "11.5px " + getComputedStyle(this.box).fontFamily;
    context.textBaseline = "middle";
    const scale = width / this.top.total;
    const above = [];
    for (let frame = this.top.parent; frame; frame = frame.parent) above.unshift(frame);
    above.forEach((frame, row) => this.paint(context, theme, frame, 0, row * ROW, width, 0.55));
    this.paintAll(context, theme, this.top, above.length, scale);
    return false;
  }

  paintAll(context, theme, frame, row, scale) {
    const x = (frame.begin - this.top.begin) * scale, width = frame.total * scale;
    if (width < MIN_PIXELS) return;
    this.paint(context, theme, frame, x, row * ROW, width, 1);
    for (const child of frame.children) this.paintAll(context, theme, child, row + 1, scale);
  }

  paint(context, theme, frame, x, y, width, strength) {
    const isWanted = this.wanted && frame.name.toLowerCase().includes(this.wanted);
    context.globalAlpha = this.wanted && !isWanted ? 0.25 * strength : strength;
    context.fillStyle = isWanted ? this.colours.level.warning : this.hueOf(frame);
    context.fillRect(x, y, Math.max(0.5, width - 0.6), ROW - 1);
    context.globalAlpha = 1;
    if (frame === this.chosen && document.activeElement) {
      context.strokeStyle = theme.text; context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, y + 0.75, Math.max(1, width - 2), ROW - 2.5);
    }
    if (width > 34) {
      context.save();
      context.beginPath(); context.rect(x, y, width - 4, ROW); context.clip();
      context.fillStyle = "#fff";
      context.fillText(frame.name, x + 4, y + ROW / 2);
      context.restore();
    }
    this.boxes.push({ x, y, width, frame });
  }

  // A colour by the file that a frame is in, so that one module looks alike everywhere.
  hueOf(frame) {
    const file = (frame.name.match(/\(([^:)]*)/) || [frame.name, frame.name])[1];
    let sum = 7;
    for (let at = 0; at < file.length; at++) sum = (sum * 31 + file.charCodeAt(at)) >>> 0;
    const hues = this.colours.request;
    return hues[sum % hues.length];
  }

  depthOf(frame) {
    const below = (each) => 1 + each.children.reduce((most, child) => Math.max(most, below(child)), 0);
    return frame.depth + below(frame);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return this.boxes.find((each) => x >= each.x && x < each.x + each.width && y >= each.y && y < each.y + ROW);
  }

  words(frame) {
    const share = (part) => `${(100 * part / this.root.total).toFixed(1)} %`;
    const much = (part) => amountOf(this.what, part);
    return `${frame.name}\n${much(frame.total)}, ${share(frame.total)} of all; in it itself ${much(frame.self)}, ${share(frame.self)}`;
  }

  choose(frame) {
    this.chosen = frame;
    this.canvas.setAttribute("aria-label", "Flame graph: " + this.words(frame).replace("\n", ", "));
    this.loop.touch();
  }

  zoom(frame) { this.top = frame; this.choose(frame); }

  find(text) {
    this.wanted = text.trim().toLowerCase();
    let samples = 0;
    const walk = (frame, isIn) => {
      const isWanted = frame.name.toLowerCase().includes(this.wanted);
      if (isWanted && !isIn) samples += frame.total;
      frame.children.forEach((child) => walk(child, isIn || isWanted));
    };
    if (this.wanted && this.root) walk(this.root, false);
    this.say(this.wanted && this.root ? `${(100 * samples / this.root.total).toFixed(1)} % of the ${this.what === "ran" ? "CPU time" : "samples"}` : "");
    this.loop.touch();
  }

  key(event) {
    const { chosen } = this;
    if (!chosen) return;
    const siblings = chosen.parent ? chosen.parent.children : [chosen], place = siblings.indexOf(chosen);
    const moves = {
      ArrowDown: chosen.children[0], ArrowUp: chosen.parent,
      ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1], Home: this.root,
    };
    if (event.key === "Enter" || event.key === " ") this.zoom(chosen);
    else if (event.key === "Escape") this.zoom(this.root);
    else if (event.key in moves) { if (moves[event.key]) this.choose(moves[event.key]); } else return;
    event.preventDefault();
  }

  listen(element) {
    this.canvas.addEventListener("click", (event) => { const hit = this.at(event); if (hit) this.zoom(hit.frame); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.style.display = "none"; });
    this.canvas.addEventListener("mousemove", (event) => {
      const hit = this.at(event);
      this.tip.style.display = hit ? "block" : "none";
      if (!hit) return;
      this.tip.textContent = this.words(hit.frame);
      const box = this.box.getBoundingClientRect();
      this.tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 350)}px`;
      this.tip.style.top = `${event.clientY - box.top + 14}px`;
    });
    for (const button of this.switch.querySelectorAll("button"))
      button.addEventListener("click", () => {
        this.wantsAll = button.dataset.what === "all";
        this.load(button.dataset.what);
      });
    element.querySelector("[data-do=whole]").addEventListener("click", () => { if (this.root) this.zoom(this.root); });
    element.querySelector("[data-find]").addEventListener("input", (event) => this.find(event.target.value));
  }

  close() { this.loop.close(); this.resized.disconnect(); }
}

export default function (component) {
  const { data, parentElement } = component;
  const before = parentElement.__flame;
  if (!before) parentElement.__flame = new FlameGraph(parentElement, data);
  else if (before.paths.all !== data.paths.all || before.paths.ran !== data.paths.ran) before.show(data.paths);
  return () => { if (parentElement.__flame) { parentElement.__flame.close(); parentElement.__flame = null; } };
}
