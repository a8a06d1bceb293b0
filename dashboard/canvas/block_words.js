// Blocks in words, for the tip beside the pointer and for those who do not see the picture.

const count = (num, noun) => `${num.toLocaleString("en").replaceAll(",", "\u202f")} ${noun}${num === 1 ? "" : "s"}`;
const shortName = (name) => name.length > 20 ? `${name.slice(0, 12)}…${name.slice(-4)}` : name;

// What the map itself knows of a block, and what was asked for of it (null while that is on its way).
function blockLines(store, id, details) {
  const state = STATE_WORDS[store.states[id]], refs = store.refs[id];
  const lines = [`Block ${id}: ${state}${refs ? `, ${count(refs, "reference")}` : ""}`];
  const owner = store.nameOf(id);
  if (owner) lines.push(`first holder ${shortName(owner)}`);
  const changed = store.changed[id];
  const age = Math.max(0, store.step - changed);
  lines.push(!changed ? "not changed in the steps that are kept" : `changed at step ${changed}, ${age ? `${count(age, "step")} ago` : "the newest"}`);
  return details && details.block_id === id ? lines.concat(detailLines(details, owner)) : lines;
}

function detailLines(details, owner) {
  const lines = details.holders.slice(0, 4).map(({ request_id: name, place }) => `${name === owner ? "there" : `in ${shortName(name)}`} it is block ${place + 1}`);
  if (details.num_holders > 4) lines.push(`and ${count(details.num_holders - 4, "more holder")}`);
  if (details.hash) lines.push(`hash ${details.hash}${details.made_by ? `, made by ${shortName(details.made_by)} in step ${details.made_step}` : ""}`);
  else if (details.state === "active") lines.push("no hash: not full yet, or the same is in the cache already");
  return lines;
}

// A place of the followed request's table.
function placeLines(table, place) {
  const others = table.others[place].map((each) => shortName(table.sharers[each]));
  const isLast = place === table.ids.length - 1;
  const lines = [`Block ${place + 1} of ${table.ids.length}: number ${table.ids[place]}`];
  lines.push(place < table.numHits ? `found in the prefix cache${makerOf(table, place)}` : "computed by itself");
  if (table.isHeld && table.refs[place] > 1) lines.push(`${count(table.refs[place], "reference")}: shared with ${others.join(", ")}${table.refs[place] - 1 > others.length ? " and others" : ""}`);
  if (isLast && table.fill < 1) lines.push(`${Math.round(100 * table.fill)} % filled`);
  if (table.hashes[place]) lines.push(`hash ${table.hashes[place]}`);
  return lines;
}

function makerOf(table, place) {
  const maker = table.makers.find(({ first_block: first, num_blocks: num }) => place >= first && place < first + num);
  return maker && maker.request_id ? `, made by ${shortName(maker.request_id)}` : "";
}

function levelWords({ num_active: active, num_cached: cached, num_free: free }) {
  return `${count(active, "active block")}, ${cached} cached, ${free} free`;
}
