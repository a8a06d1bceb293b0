// Where each block stands: rows of cells that fill the width, seen through a window that zooms and moves.

const MAX_CELL = 96;

class BlockPlan {
  constructor() { this.num = 0; this.zoom = 1; this.left = 0; this.top = 0; this.columns = 1; this.rows = 1; this.unit = 1; }

  // Lays out so many blocks in so many CSS pixels; true where that changed which block stands where.
  fit(num, width, height) {
    if (num === this.num && width === this.width && height === this.height) return false;
    const before = this.columns;
    Object.assign(this, { num, width, height });
    let columns = Math.max(1, Math.ceil(Math.sqrt(num * width / height)));
    while (columns > 1 && Math.ceil(num / columns) * (width / columns) > height) columns++;
    this.columns = Math.max(1, columns);
    this.rows = Math.max(1, Math.ceil(num / this.columns));
    this.unit = width / this.columns;
    this.move(this.left, this.top);
    return before !== this.columns || this.image === undefined;
  }

  get pitch() { return this.unit * this.zoom; }
  get maxZoom() { return Math.max(1, MAX_CELL / this.unit); }
  get isZoomed() { return this.zoom > 1.001; }
  // How many columns and rows are seen.
  get across() { return this.width / this.pitch; }
  get down() { return Math.min(this.rows, this.height / this.pitch); }

  move(left, top) {
    this.left = Math.max(0, Math.min(this.columns - this.across, left));
    this.top = Math.max(0, Math.min(this.rows - this.down, top));
  }

  // Zooms so that what is at this place stays there.
  zoomAt(factor, x, y) {
    const column = this.left + x / this.pitch, row = this.top + y / this.pitch;
    this.zoom = Math.max(1, Math.min(this.maxZoom, this.zoom * factor));
    this.move(column - x / this.pitch, row - y / this.pitch);
  }

  show(id) {
    const column = id % this.columns, row = Math.floor(id / this.columns);
    if (column < this.left || column + 1 > this.left + this.across) this.left = column + 0.5 - this.across / 2;
    if (row < this.top || row + 1 > this.top + this.down) this.top = row + 0.5 - this.down / 2;
    this.move(this.left, this.top);
  }

  // The block at a place, null where there is none.
  at(x, y) {
    const column = Math.floor(this.left + x / this.pitch), row = Math.floor(this.top + y / this.pitch);
    if (column < 0 || column >= this.columns || row < 0 || y < 0) return null;
    const id = row * this.columns + column;
    return id < this.num ? id : null;
  }

  // Top left corner of a block and its size.
  cell(id) {
    const x = (id % this.columns - this.left) * this.pitch, y = (Math.floor(id / this.columns) - this.top) * this.pitch;
    return { x, y, size: this.pitch };
  }
}
