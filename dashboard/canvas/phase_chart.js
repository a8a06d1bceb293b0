// Stacked columns: a step each, a colour a phase, milliseconds upwards. Redrawn when the page has new figures.

const CHART_HEIGHT = 190, LEFT = 46, BOTTOM = 18, TOP = 8;

class PhaseChart {
  constructor(element) {
    this.box = element.querySelector(".canvas-box");
    this.canvas = element.querySelector("canvas");
    this.tip = element.querySelector(".canvas-tip");
    this.loop = drawLoop(() => this.draw());
    this.resized = new ResizeObserver(() => this.loop.touch());
    this.resized.observe(this.canvas);
    this.canvas.addEventListener("mouseleave", () => { this.tip.style.display = "none"; });
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
  }

  show(data) {
    this.data = data;
    this.names = Object.keys(data.phases);
    this.sums = data.steps.map((_, at) => this.names.reduce((sum, name) => sum + data.phases[name][at], 0));
    const last = this.sums.length - 1;
    this.canvas.setAttribute("aria-label", last < 0 ? "No steps yet" :
      `Phases of ${this.sums.length} steps; the last, step ${data.steps[last]}, took ${this.sums[last].toFixed(1)} ms`);
    this.loop.touch();
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas, CHART_HEIGHT), theme = themeOf(this.box);
    context.clearRect(0, 0, width, height);
    if (!this.data) return false;
    const sorted = [...this.sums].sort((one, other) => one - other);
    // The very slowest are cut, so that one of them does not flatten all others; the tip tells their length.
    const most = Math.max(1e-6, 1.15 * (sorted[Math.floor(0.98 * (sorted.length - 1))] || 1));
    this.paintScale(context, theme, width, height, most);
    const step = (width - LEFT) / Math.max(60, this.sums.length), room = height - TOP - BOTTOM;
    this.step = step;
    this.sums.forEach((sum, at) => {
      let y = height - BOTTOM;
      for (const name of this.names) {
        const part = Math.min(y - TOP, room * this.data.phases[name][at] / most);
        context.fillStyle = this.data.colours.phase[name];
        context.fillRect(LEFT + at * step, y - part, Math.max(0.6, step - 0.6), part);
        y -= part;
      }
      if (sum > most) { context.fillStyle = this.data.colours.level.bad; context.fillRect(LEFT + at * step, TOP - 3, Math.max(1, step - 0.6), 3); }
    });
    return false;
  }

  paintScale(context, theme, width, height, most) {
    context.font = "11px " + getComputedStyle(this.box).fontFamily;
    context.textAlign = "right"; context.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      const y = height - BOTTOM - share * (height - TOP - BOTTOM) / 1.15;
      context.fillStyle = theme.border; context.fillRect(LEFT, y, width - LEFT, 1);
      context.fillStyle = theme.text; context.fillText(`${(share * most / 1.15).toPrecision(3)} ms`, LEFT - 5, y);
    }
    if (!this.sums.length) return;
    context.textBaseline = "bottom"; context.textAlign = "left";
    context.fillText(`step ${this.data.steps[0]}`, LEFT, height - 1);
    context.textAlign = "right";
    context.fillText(`${this.data.steps[this.data.steps.length - 1]}`, LEFT + this.sums.length * (width - LEFT) / Math.max(60, this.sums.length), height - 1);
  }

  point(event) {
    if (!this.data) return;
    const box = this.canvas.getBoundingClientRect(), at = Math.floor((event.clientX - box.left - LEFT) / this.step);
    const isThere = at >= 0 && at < this.sums.length;
    this.tip.style.display = isThere ? "block" : "none";
    if (!isThere) return;
    const parts = this.names.filter((name) => this.data.phases[name][at] > 0).map((name) => `${name} ${this.data.phases[name][at].toFixed(3)} ms`);
    this.tip.textContent = [`step ${this.data.steps[at]}: ${this.sums[at].toFixed(2)} ms`, ...parts].join("\n");
    this.tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 200)}px`;
    this.tip.style.top = `${event.clientY - box.top + 10}px`;
  }

  close() { this.loop.close(); this.resized.disconnect(); }
}

export default function (component) {
  const { data, parentElement } = component;
  if (!parentElement.__phases) parentElement.__phases = new PhaseChart(parentElement);
  parentElement.__phases.show(data);
  return () => { if (parentElement.__phases) { parentElement.__phases.close(); parentElement.__phases = null; } };
}
