// What every canvas shares: its stream from the Observer, a clock that rests while nobody looks, sharp pixels.
// Nothing from outside is ever put into HTML: texts go through textContent or fillText.

const OBSERVER = "/observer/inspect/";
const SILENT_MS = 4000;
const MAX_BACK_OFF_MS = 10000;
const FRAME_MS = 1000 / 30;

// Where the Observer is asked; of several servers the one that the page's address names.
function observerAddress(path, query) {
  const asked = new URLSearchParams(query), server = new URLSearchParams(location.search).get("server");
  if (server) asked.set("server", server);
  return OBSERVER + path + "?" + asked;
}

// Listens to an event stream while the page is visible; comes again after a loss, later each time.
// on: {eventName: (content) => …}; onState(word, level) tells of the connection itself.
function openStream(path, query, on, onState) {
  let source = null, timer = null, backOff = 1000, heardAt = 0, closed = false;
  const address = () => observerAddress(path, typeof query === "function" ? query() : query);
  const stop = () => { if (source) { source.close(); source = null; } clearTimeout(timer); timer = null; };
  const again = () => {
    stop();
    if (closed || document.hidden) return;
    timer = setTimeout(start, backOff);
    backOff = Math.min(MAX_BACK_OFF_MS, backOff * 1.6);
  };
  const start = () => {
    stop();
    if (closed || document.hidden) return;
    source = new EventSource(address());
    heardAt = performance.now();
    source.onopen = () => { backOff = 1000; heardAt = performance.now(); };
    source.onerror = () => { onState("no stream: the server does not answer", "bad"); again(); };
    for (const name of Object.keys(on)) {
      source.addEventListener(name, (event) => { heardAt = performance.now(); on[name](JSON.parse(event.data)); });
    }
  };
  const watch = setInterval(() => {
    if (source && !document.hidden && performance.now() - heardAt > SILENT_MS) {
      onState(`nothing heard for ${Math.round((performance.now() - heardAt) / 1000)} s`, "warning");
    }
  }, 1000);
  const onVisible = () => { if (document.hidden) { stop(); onState("resting", ""); } else start(); };
  document.addEventListener("visibilitychange", onVisible);
  start();
  return {
    // Asks anew, with the query as it is now.
    reopen() { backOff = 1000; start(); },
    close() { closed = true; stop(); clearInterval(watch); document.removeEventListener("visibilitychange", onVisible); },
  };
}

// Calls draw(now) at most 30 times a second, only when `touch()` was called since or draw returned true (moving).
function drawLoop(draw) {
  let dirty = true, handle = 0, last = 0, closed = false;
  const tick = (now) => {
    if (closed) return;
    handle = requestAnimationFrame(tick);
    // A screen's frames do not come to the millisecond: without the slack every second one would be missed.
    if (!dirty || now - last < FRAME_MS - 4) return;
    last = now;
    dirty = draw(now) === true;
  };
  handle = requestAnimationFrame(tick);
  return { touch() { dirty = true; }, close() { closed = true; cancelAnimationFrame(handle); } };
}

// Makes the canvas as sharp as the screen; returns its context, in CSS pixels, and the size.
function fitCanvas(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = Math.max(1, canvas.clientWidth);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

// The theme's colours as the page has them now (they change with light and dark).
function themeOf(element) {
  const style = getComputedStyle(element);
  const read = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return {
    text: read("--st-text-color", "#1c2330"), background: read("--st-background-color", "#ffffff"),
    faint: read("--st-secondary-background-color", "#f5f6f8"), border: read("--st-border-color", "#dde1e8"),
    accent: read("--st-primary-color", "#3b6fd4"),
    font: read("--st-font", "system-ui, sans-serif"),
  };
}

// Bytes of a base64 text.
function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

// Which of `count` colours a request has, by its name: the same in every canvas and in every connection.
function hueOf(name, count) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < name.length; at++) hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % count;
}

// [red, green, blue] of #rgb, #rrggbb or rgb(…).
function channelsOf(colour) {
  const short = /^#([0-9a-f])([0-9a-f])([0-9a-f])$/i.exec(colour);
  if (short) return short.slice(1).map((digit) => parseInt(digit + digit, 16));
  const long = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})/i.exec(colour);
  if (long) return long.slice(1).map((pair) => parseInt(pair, 16));
  const numbers = (colour.match(/[\d.]+/g) || [128, 128, 128]).map(Number);
  return [numbers[0], numbers[1], numbers[2]];
}

// What lies `share` of the way from one colour to the other, as channels.
function mixed(from, to, share) {
  return from.map((channel, at) => Math.round(channel + (to[at] - channel) * share));
}
