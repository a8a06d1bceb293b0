// A block's colour, in each way of colouring, as a packed pixel; and how light falls on it when it has changed.

const MODES = ["state", "owner", "refs", "age"];
const REFS_STOPS = ["#7db4f5", "#3b82f6", "#7048d8", "#c2255c", "#8a1538"];
const AGE_STOPS = ["#f08c00", "#c49a1a", "#6f9f6a", "#5b8fb0", "#868e96"];
const MAX_AGE_POWER = 12;

const OWNER_MASK = 0xffff;

// Each table has two pixels an entry: as it is, and dim where others are looked at.
class BlockInk {
  constructor(colours, theme) {
    const page = this.page = channelsOf(theme.background), text = channelsOf(theme.text), grey = channelsOf("#868e96");
    const cached = channelsOf(colours.block.cached);
    this.requests = colours.request.map(channelsOf);
    this.cached = mixed(page, cached, 0.72);
    this.states = this.table([mixed(page, grey, 0.2), this.cached, channelsOf(colours.block.active)]);
    this.quiet = this.table([mixed(page, grey, 0.12), mixed(page, cached, 0.34)]);
    this.refs = this.table(REFS_STOPS.map(channelsOf));
    const stops = AGE_STOPS.map(channelsOf);
    this.ages = this.table(Array.from({ length: MAX_AGE_POWER + 1 }, (_, power) => along(stops, power / MAX_AGE_POWER)));
    this.hues = this.table(this.requests);
    this.owners = new Uint8Array(OWNER_MASK + 1);
    this.flashes = [null, text, page, channelsOf("#ffb000")];
  }

  table(colours) {
    return Uint32Array.from(colours.flatMap((colour) => [packed(colour), packed(mixed(colour, this.page, 0.72))]));
  }

  // Holders have been named: [number, name] each.
  name(holders) {
    const num = this.requests.length;
    for (const [number, name] of holders) this.owners[number & OWNER_MASK] = hueOf(name, num);
  }

  // The pixel of a block; `dim` is 1 where others are looked at, else 0.
  pixel(store, id, mode, dim) {
    const state = store.states[id];
    if (mode === "state") return this.states[2 * state + dim];
    if (mode === "age") return this.age(store, id, dim);
    if (state !== ACTIVE) return this.quiet[2 * state + dim];
    if (mode === "refs") return this.refs[2 * Math.min(REFS_STOPS.length - 1, 32 - Math.clz32(Math.max(0, store.refs[id] - 1))) + dim];
    const owner = store.owners[id];
    return owner ? this.hues[2 * this.owners[owner & OWNER_MASK] + dim] : this.states[2 * ACTIVE + dim];
  }

  age(store, id, dim) {
    const changed = store.changed[id];
    if (!changed) return this.quiet[dim];
    return this.ages[2 * Math.min(MAX_AGE_POWER, 31 - Math.clz32(Math.max(0, store.step - changed) + 1)) + dim];
  }

  // What a block that changed so long ago looks like.
  flashed(pixel, kind, sinceMs) {
    const share = 1 - sinceMs / FLASH_MS;
    if (share <= 0) return pixel;
    return packed(mixed([pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255], this.flashes[kind], 0.85 * share * share));
  }
}

// The colour `share` of the way along several.
function along(stops, share) {
  const at = Math.min(stops.length - 1.0001, share * (stops.length - 1)), begin = Math.floor(at);
  return mixed(stops[begin], stops[begin + 1], at - begin);
}

function packed(colour) { return ((255 << 24) | (colour[2] << 16) | (colour[1] << 8) | colour[0]) >>> 0; }
