// What the block map says: its bar, its state, its legend, and itself in words.

Object.assign(BlockView.prototype, {
  showBar() {
    const pause = this.find("[data-do=pause]");
    pause.textContent = this.step === null ? "Pause" : "Go live";
    pause.setAttribute("aria-pressed", String(this.step !== null));
    for (const button of this.root.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", String(button.dataset.mode === this.mode));
    for (const each of this.root.querySelectorAll("[data-legend]")) each.hidden = each.dataset.legend !== this.mode;
    const chip = this.find("[data-do=unfollow]");
    chip.hidden = !this.request;
    chip.textContent = this.request ? `following ${shortName(this.request)} ×` : "";
    this.find(".table").hidden = !this.request;
    this.find("[data-do=whole]").disabled = this.find("[data-do=out]").disabled = !this.plan.isZoomed;
    this.showScrubber();
    this.showState();
  },

  showScrubber() {
    const scrubber = this.find(".scrubber"), { firstStep, lastStep, step } = this.store;
    scrubber.min = firstStep;
    scrubber.max = Math.max(firstStep, lastStep);
    scrubber.value = this.step === null ? scrubber.max : this.step;
    scrubber.setAttribute("aria-valuetext", this.step === null ? "live" : `step ${this.step}`);
    const words = this.step === null ? `live, step ${step}` : `after step ${this.step}`;
    this.find(".at").textContent = words;
    this.find(".range").textContent = `steps ${firstStep} to ${lastStep} are kept`;
  },

  showState() {
    const pill = this.find(".canvas-state"), [words, level] = this.stateWords();
    if (pill.textContent !== words) pill.textContent = words;
    pill.dataset.level = level;
  },

  stateWords() {
    if (this.trouble) return [this.trouble, this.troubleLevel];
    const inexact = this.store.isExact ? "" : "; records were lost, it is being mended";
    if (this.step !== null) return [`paused at step ${this.step}${inexact}`, "warning"];
    if (!this.data.is_live) return [`recording${inexact}`, ""];
    if (this.health === "dead") return ["the engine is dead: what it held in its last step", "bad"];
    if (this.health === "ended") return ["the engine has ended: what it held in its last step", "warning"];
    if (this.health === "stalled") return ["the engine stands still", "bad"];
    const quiet = performance.now() - this.changedAt;
    if (inexact) return [`not exact${inexact}`, "warning"];
    return quiet > QUIET_MS ? [`nothing has changed for ${Math.round(quiet / 1000)} s`, ""] : ["live", "good"];
  },

  speak() {
    this.showState();
    const { store, plan } = this, cursor = this.cursor === null || this.cursor >= store.num ? "" : ` ${blockLines(store, this.cursor, this.details).join(", ")}.`;
    const zoom = plan.isZoomed ? `, ${Math.round(plan.zoom * 10) / 10} times enlarged` : "";
    const words = `Map of ${count(store.num, "KV block")} of engine ${this.data.engine}, ${this.stateWords()[0]}: ${levelWords(store.levels)}, ` +
      `coloured by ${this.mode}${zoom}.${this.request ? ` Following ${this.request}, which holds ${count(this.table.ids.length, "block")}.` : ""}${cursor}`;
    if (words !== this.spoken) { this.spoken = words; this.canvas.setAttribute("aria-label", words); }
    const strip = this.table.ids.length ? this.tableWords() : this.emptyStripWords();
    this.strip.canvas.setAttribute("aria-label", strip);
    this.find(".said").textContent = strip;
  },

  tableWords() {
    const { name, ids, isHeld, numHits, refs } = this.table;
    const whose = isHeld ? `Block table of ${name}` : `Blocks that ${name} held at its end`;
    const numShared = isHeld ? refs.filter((num) => num > 1).length : 0;
    return `${whose}, in order: ${count(ids.length, "block")}, ${numHits} found in the prefix cache (hatched), ${numShared} shared (yellow).`;
  },
});

export default function (component) {
  const root = component.parentElement, box = root.querySelector(".canvas-box");
  if (box.map) box.map.adopt(component);
  else box.map = new BlockView(root, component);
  box.map.speak();
  return () => { if (box.map) { box.map.close(); box.map = null; } };
}
