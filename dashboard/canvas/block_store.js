// The blocks as they are told: four flat arrays, the holders' names, and which blocks have just changed.

const FREE = 0, CACHED = 1, ACTIVE = 2;
const STATE_WORDS = ["free", "cached", "active"];
const TAKEN = 1, GIVEN_BACK = 2, SHARED = 3;
const FLASH_MS = 900;

class BlockStore {
  constructor() { this.clear(); }

  clear() {
    this.num = 0;
    this.step = 0;
    this.firstStep = 0;
    this.lastStep = 0;
    this.pid = null;
    this.isExact = true;
    this.levels = { num_active: 0, num_cached: 0, num_free: 0 };
    this.names = new Map();
    this.flashing = new Set();
    this.allocate(0);
  }

  allocate(num) {
    this.num = num;
    this.states = new Uint8Array(num);
    this.refs = new Uint8Array(num);
    this.owners = new Uint32Array(num);
    this.changed = new Uint32Array(num);
    this.flashAt = new Float64Array(num);
    this.flashKind = new Uint8Array(num);
    this.flashing.clear();
  }

  // A whole map; it replaces everything. What differs from the one before has just changed.
  replace(map, now) {
    const before = map.pid === this.pid && map.num_blocks === this.num ? this : null;
    const { states, refs, owners, names } = this;
    if (before === null) this.allocate(map.num_blocks);
    this.states = bytesOf(map.states);
    this.refs = bytesOf(map.refs);
    this.owners = numbersOf(map.owners);
    this.changed = numbersOf(map.changed_step);
    this.names = new Map(Object.entries(map.names).map(([number, name]) => [Number(number), name]));
    this.take(map);
    this.pid = map.pid;
    this.firstStep = map.first_step;
    this.lastStep = map.last_step;
    if (before === null) return;
    for (let id = 0; id < this.num; id++) {
      // Numbers of owners are another map's; only names tell whether one is the same.
      const isOther = states[id] !== this.states[id] || refs[id] !== this.refs[id] || (this.owners[id] && names.get(owners[id]) !== this.nameOf(id));
      if (isOther) this.flash(id, refs[id], now, this.refs[id], this.states[id]);
    }
  }

  // What changed since; the ids that did.
  apply(changes, now) {
    for (const number in changes.names) this.names.set(Number(number), changes.names[number]);
    const { ids } = changes;
    for (let at = 0; at < ids.length; at++) {
      const id = ids[at];
      if (id >= this.num) continue;
      this.flash(id, this.refs[id], now, changes.refs[at], changes.states[at]);
      this.states[id] = changes.states[at];
      this.refs[id] = changes.refs[at];
      this.owners[id] = changes.owners[at];
      this.changed[id] = changes.step;
    }
    this.take(changes);
    if (this.names.size > 4 * this.num + 4096) this.forgetNames();
    return ids;
  }

  take(told) {
    this.step = told.step;
    this.lastStep = Math.max(this.lastStep, told.step);
    this.isExact = told.is_exact;
    this.levels = told.levels;
  }

  // Names of nobody who holds a block now are not kept for ever.
  forgetNames() {
    const held = new Set(this.owners);
    for (const number of this.names.keys()) if (!held.has(number)) this.names.delete(number);
  }

  flash(id, refs, now, newRefs, newState) {
    this.flashAt[id] = now;
    this.flashKind[id] = newRefs > 1 && newRefs > refs ? SHARED : newState === ACTIVE ? TAKEN : GIVEN_BACK;
    this.flashing.add(id);
  }

  nameOf(id) { return this.names.get(this.owners[id]) || ""; }
}

// Little-endian 32-bit numbers of a base64 text.
function numbersOf(text) {
  const bytes = bytesOf(text);
  return new Uint32Array(bytes.buffer, 0, bytes.length >> 2);
}
