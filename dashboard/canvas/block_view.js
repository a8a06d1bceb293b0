// The block map: all KV blocks of an engine, live or as they were after a step. Its page is told what was picked.

const MAP_HEIGHT = 400;
const PICK_DELAY_MS = 220;
const EXPECT_MS = 4000;
const TABLE_EVERY_MS = 1000;
const AGE_EVERY_MS = 400;
const QUIET_MS = 1500;

class BlockView {
  constructor(root, component) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas.picture");
    this.tip = this.find(".canvas-tip");
    this.store = new BlockStore();
    this.plan = new BlockPlan();
    this.painter = new BlockPainter();
    this.strip = new BlockStrip(this.find("canvas.strip"));
    this.table = noTable("");
    this.hovered = null;
    this.details = null;
    this.cursor = null;
    this.step = null;
    this.trouble = "connecting";
    this.troubleLevel = "";
    this.pickedAt = -EXPECT_MS;
    this.changedAt = 0;
    this.agedAt = 0;
    this.frames = { num: 0, sum: 0, most: 0 };
    this.mode = "state";
    this.isOnScreen = true;
    this.adopt(component);
    this.loop = drawLoop((now) => this.draw(now));
    this.listenToPointer();
    this.listenToKeys();
    this.listenToBar();
    this.sizes = new ResizeObserver(() => this.loop.touch());
    this.sizes.observe(this.canvas);
    this.sights = new IntersectionObserver((entries) => {
      this.isOnScreen = entries[entries.length - 1].isIntersecting;
      this.loop.touch();
    });
    this.sights.observe(this.canvas);
    this.words = setInterval(() => { this.speak(); if (this.step === null && this.place) this.ask(); }, 1000);
    this.tables = setInterval(() => { if (this.step === null && !document.hidden) this.readTable(); }, TABLE_EVERY_MS);
  }

  close() {
    this.closeStream();
    this.loop.close();
    this.sizes.disconnect();
    this.sights.disconnect();
    clearInterval(this.words);
    clearInterval(this.tables);
    clearTimeout(this.pickTimer);
    clearTimeout(this.askTimer);
  }

  // The page was run again: take over what is new in its data. What was picked here and is still on its way stays.
  adopt(component) {
    this.component = component;
    const data = component.data, before = this.data || {};
    this.data = data;
    this.theme = themeOf(this.root.host || this.root);
    this.ink = new BlockInk(data.colours, this.theme);
    this.ink.name(this.store.names);
    this.painter.spoil();
    const isMine = this.pickTimer || performance.now() - this.pickedAt < EXPECT_MS && data.step !== this.expected;
    // It has arrived: what comes now is somebody else's choice.
    if (!isMine) this.pickedAt = -EXPECT_MS;
    if (before.engine !== data.engine || before.server !== data.server) {
      this.store.clear();
      this.step = undefined;
    }
    if (before.mode !== data.mode) this.mode = data.mode;
    if (this.step === undefined || (data.step !== this.step && !isMine)) this.goTo(data.step, false);
    if (before.request !== data.request && !isMine) this.follow(data.request, false);
    if (this.loop) this.loop.touch();
    this.showBar();
  }

  // --- what is told ---------------------------------------------------------------------------------------------

  openLive() {
    this.closeStream();
    this.trouble = "connecting";
    this.stream = openStream("streams/blocks", { engine: this.data.engine }, {
      map: (map) => { this.onMap(map); },
      changes: (changes) => {
        this.store.apply(changes, performance.now());
        this.ink.name(Object.entries(changes.names));
        this.heard();
      },
      state: ({ state }) => { this.health = state; this.trouble = ""; this.showState(); },
    }, (word, level) => { this.trouble = word; this.troubleLevel = level; this.showState(); });
  }

  closeStream() {
    if (this.stream) this.stream.close();
    this.stream = null;
  }

  onMap(map) {
    this.store.replace(map, performance.now());
    this.ink.name(this.store.names);
    this.painter.spoil();
    this.heard();
  }

  heard() {
    this.trouble = "";
    this.changedAt = performance.now();
    if (this.loop) this.loop.touch();
    this.showState();
    this.showScrubber();
    this.tell();
  }

  // Null: live. The last asked for wins.
  async readStep(step) {
    const asked = this.asked = {};
    try {
      const map = await observed("blocks/map", { engine: this.data.engine, step });
      if (asked !== this.asked || this.step !== step) return;
      this.onMap(map);
    } catch (error) {
      if (asked !== this.asked || this.step !== step) return;
      // Nothing is shown rather than another step.
      this.store.clear();
      this.painter.spoil();
      this.loop.touch();
      this.trouble = error.message;
      this.troubleLevel = "warning";
      this.showState();
      await this.readRange().catch(() => {});
    }
  }

  // Which steps are kept as of now.
  async readRange() {
    const { first_step: first, last_step: last } = await observed("blocks/map", { engine: this.data.engine });
    this.store.firstStep = first;
    this.store.lastStep = last;
    this.showScrubber();
  }

  async readTable() {
    const name = this.request;
    if (!name) return;
    try {
      const step = this.step;
      const found = await observed(`requests/${encodeURIComponent(name)}/cache`, step === null ? {} : { step });
      if (name !== this.request || step !== this.step) return;
      this.setTable(tableOf(name, found, this.data));
    } catch (error) {
      this.setTable(noTable(name, error.message));
    }
  }

  setTable(table) {
    const isSame = table.ids.length === this.table.ids.length && table.ids.every((id, at) => id === this.table.ids[at]);
    this.table = table;
    if (!isSame) { this.lit = undefined; this.painter.spoil(); }
    if (this.loop) this.loop.touch();
  }

  // 1 for each block that is looked at; null: all are.
  litBlocks() {
    if (!this.table.ids.length) return null;
    if (this.lit === undefined || this.lit.length !== this.store.num) {
      this.lit = new Uint8Array(this.store.num);
      for (const id of this.table.ids) this.lit[id] = 1;
    }
    return this.lit;
  }

  emptyStripWords() {
    if (!this.request) return "No request is followed.";
    return this.table.trouble || `${shortName(this.request)} holds no blocks${this.step === null ? " now" : ` after step ${this.step}`}.`;
  }

  // --- drawing --------------------------------------------------------------------------------------------------

  draw(now) {
    if (!this.isOnScreen || !this.canvas.clientWidth) return false;
    const begun = performance.now(), { context, width, height } = fitCanvas(this.canvas, MAP_HEIGHT);
    if (this.plan.fit(this.store.num, width, height)) this.painter.spoil();
    if (this.mode === "age" && now - this.agedAt > AGE_EVERY_MS) { this.agedAt = now; this.painter.spoil(); }
    const isMoving = this.painter.refresh(this, performance.now());
    this.painter.show(context, this);
    this.painter.outline(context, this, this.table.ids);
    if (this.cursor !== null) this.painter.mark(context, this, this.cursor, this.theme.accent);
    if (this.hovered !== null && this.hovered !== this.cursor) this.painter.mark(context, this, this.hovered, this.theme.accent);
    this.painter.minimap(context, this);
    this.strip.draw(this);
    const took = performance.now() - begun, { frames } = this;
    frames.num += 1; frames.sum += took; frames.most = Math.max(frames.most, took);
    return isMoving;
  }
}

// JSON of the Observer; throws with its own words where it refuses.
async function observed(path, query) {
  const reply = await fetch(observerAddress(path, query), { signal: AbortSignal.timeout(5000) });
  const content = await reply.json();
  if (!reply.ok) throw new Error(content.error ? content.error.message : `the Observer answers ${reply.status}`);
  return content;
}

function noTable(name, trouble = "") {
  return { name, ids: [], refs: [], hashes: [], others: [], sharers: [], makers: [], numHits: 0, fill: 1, isHeld: false, trouble };
}

// The newest sequence of a name that has blocks of this engine.
function tableOf(name, found, { engine, block_size: blockSize }) {
  const row = found.sequences.find((each) => each.block_ids && each.block_ids.length && each.engine === engine) || found.sequences[0];
  if (!row || !row.block_ids || !row.block_ids.length || row.engine !== engine) return noTable(name);
  const last = row.num_tokens === null || !blockSize ? 1 : (row.num_tokens - (row.block_ids.length - 1) * blockSize) / blockSize;
  return {
    name: row.request_id, ids: row.block_ids, refs: row.num_refs || [], hashes: row.hashes || [], others: row.others || row.block_ids.map(() => []),
    sharers: row.sharers || [], makers: row.prefix ? row.prefix.makers : [], numHits: row.prefix ? row.prefix.num_hit_blocks : 0,
    fill: Math.max(0, Math.min(1, last)), isHeld: row.is_held !== false, trouble: "",
  };
}
