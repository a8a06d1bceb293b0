// The followed request's block table as a strip, in order: found in the cache, shared, full, partly filled.

const STRIP_HEIGHT = 58;
const MIN_STRIP_CELL = 4;

class BlockStrip {
  constructor(canvas) { this.canvas = canvas; this.cells = null; }

  layout(num, width) {
    let size = Math.min(26, STRIP_HEIGHT - 4);
    while (size > MIN_STRIP_CELL && Math.floor(width / size) * Math.floor(STRIP_HEIGHT / size) < num) size -= 1;
    return { size, columns: Math.max(1, Math.floor(width / size)), rows: Math.max(1, Math.floor(STRIP_HEIGHT / size)) };
  }

  draw(view) {
    if (!this.canvas.clientWidth) return;
    const { context, width, height } = fitCanvas(this.canvas, STRIP_HEIGHT), { theme, table } = view;
    context.clearRect(0, 0, width, height);
    const ids = table.ids;
    this.cells = ids.length ? this.layout(ids.length, width) : null;
    if (this.cells === null) return;
    const { cells } = this, shown = Math.min(ids.length, cells.columns * cells.rows);
    for (let place = 0; place < shown; place++) {
      const x = (place % cells.columns) * cells.size, y = Math.floor(place / cells.columns) * cells.size;
      this.cell(context, view, place, { x, y, size: cells.size - (cells.size > 6 ? 2 : 1) });
    }
    if (view.hovered !== null) {
      const place = ids.indexOf(view.hovered);
      if (place >= 0 && place < shown) {
        context.strokeStyle = theme.accent;
        context.lineWidth = 2;
        context.strokeRect((place % cells.columns) * cells.size, Math.floor(place / cells.columns) * cells.size, cells.size - 1, cells.size - 1);
      }
    }
  }

  cell(context, { ink, table, theme }, place, { x, y, size }) {
    const isHit = place < table.numHits, isShared = table.isHeld && table.refs[place] > 1, isPartly = place === table.ids.length - 1 && table.fill < 1;
    const own = table.isHeld ? ink.requests[hueOf(table.name, ink.requests.length)] : ink.cached;
    const css = (colour) => `rgb(${colour.join(",")})`;
    context.fillStyle = css(mixed(ink.page, own, isPartly ? 0.18 : isHit ? 0.45 : 1));
    context.fillRect(x, y, size, size);
    if (isPartly) { context.fillStyle = css(own); context.fillRect(x, y + size * (1 - table.fill), size, size * table.fill); }
    if (isHit && size >= 8) hatch(context, x, y, size, css(own));
    if (isShared) { context.fillStyle = "#ffb000"; context.fillRect(x, y, size, Math.max(2, size * 0.2)); }
    if (isShared && size >= 22) {
      context.fillStyle = theme.text;
      context.font = `600 10px ${theme.font}`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.strokeStyle = theme.background;
      context.lineWidth = 2.5;
      context.strokeText(`×${table.refs[place]}`, x + size / 2, y + size * 0.62);
      context.fillText(`×${table.refs[place]}`, x + size / 2, y + size * 0.62);
    }
  }

  // The place in the table that is pointed at, null where there is none.
  at(x, y, num) {
    if (this.cells === null) return null;
    const column = Math.floor(x / this.cells.size), row = Math.floor(y / this.cells.size);
    const place = row * this.cells.columns + column;
    return column < this.cells.columns && place < num ? place : null;
  }
}

function hatch(context, x, y, size, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -size; at < size; at += 5) { context.moveTo(x + at, y + size); context.lineTo(x + at + size, y); }
  context.stroke();
  context.restore();
}
