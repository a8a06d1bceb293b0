// Paints the blocks: one pixel a block into a small image, which is then enlarged as it is; only what changed anew.

const GRID_FROM = 5;
const LINE_FROM = 4;
const MINIMAP_WIDTH = 150;

class BlockPainter {
  constructor() { this.small = document.createElement("canvas"); this.whole = true; this.cells = null; }

  // Everything has to be painted anew.
  spoil() { this.whole = true; }

  // Brings the small image up to date. `ids` are blocks that changed.
  refresh(view, now) {
    const { store, plan, ink, mode } = view, { columns, rows } = plan, lit = view.litBlocks();
    if (this.small.width !== columns || this.small.height !== rows || this.cells === null) {
      this.small.width = columns; this.small.height = rows;
      this.context = this.small.getContext("2d");
      this.image = this.context.createImageData(columns, rows);
      this.cells = new Uint32Array(this.image.data.buffer);
      this.whole = true;
    }
    let first = Infinity, last = -1;
    const paint = (id) => {
      const kind = store.flashKind[id], pixel = ink.pixel(store, id, mode, lit === null || kind || lit[id] ? 0 : 1);
      this.cells[id] = kind ? ink.flashed(pixel, kind, now - store.flashAt[id]) : pixel;
      const row = Math.floor(id / columns);
      if (row < first) first = row;
      if (row > last) last = row;
    };
    if (this.whole) {
      this.cells.fill(0);
      for (let id = 0; id < store.num; id++) paint(id);
    }
    for (const id of store.flashing) {
      if (now - store.flashAt[id] >= FLASH_MS) { store.flashing.delete(id); store.flashKind[id] = 0; }
      paint(id);
    }
    this.whole = false;
    if (last >= 0) this.context.putImageData(this.image, 0, 0, 0, first, columns, last - first + 1);
    return store.flashing.size > 0;
  }

  // The small image through the window, with gaps between large cells.
  show(context, view) {
    const { plan, theme } = view, { width, height, pitch, left, top } = plan;
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    if (!view.store.num) return;
    context.imageSmoothingEnabled = false;
    const across = Math.min(plan.columns - left, plan.across), down = Math.min(plan.rows - top, height / pitch);
    context.drawImage(this.small, left, top, across, down, 0, 0, across * pitch, down * pitch);
    if (pitch >= GRID_FROM) this.grid(context, plan, theme);
  }

  grid(context, { left, top, pitch, width, height, columns, rows }, theme) {
    const line = pitch >= 18 ? 2 : 1, right = Math.min(width, (columns - left) * pitch), bottom = Math.min(height, (rows - top) * pitch);
    context.fillStyle = theme.background;
    context.beginPath();
    for (let column = Math.ceil(left); column <= Math.min(columns, left + width / pitch); column++) context.rect(Math.round((column - left) * pitch) - line / 2, 0, line, bottom);
    for (let row = Math.ceil(top); row <= Math.min(rows, top + height / pitch); row++) context.rect(0, Math.round((row - top) * pitch) - line / 2, right, line);
    context.fill();
  }

  // Outlines of the followed request's blocks, and the way from one to the next.
  outline(context, view, table) {
    const { plan, theme } = view;
    if (!table.length) return;
    const colour = theme.text;
    if (plan.pitch >= LINE_FROM) {
      context.strokeStyle = colour;
      context.globalAlpha = 0.35;
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.beginPath();
      table.forEach((id, place) => {
        const { x, y, size } = plan.cell(id);
        if (place) context.lineTo(x + size / 2, y + size / 2); else context.moveTo(x + size / 2, y + size / 2);
      });
      context.stroke();
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour;
    context.lineWidth = plan.pitch >= 12 ? 2 : 1;
    context.beginPath();
    for (const id of table) {
      const { x, y, size } = plan.cell(id), edge = Math.max(size, 3);
      context.rect(x + 0.5, y + 0.5, edge - 1, edge - 1);
    }
    context.stroke();
    if (plan.pitch >= 22) this.places(context, view, table);
  }

  // Each block's place in the table, where there is room to read it.
  places(context, { plan, theme }, table) {
    context.font = `600 ${Math.min(13, plan.pitch * 0.42)}px ${theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = theme.background;
    context.fillStyle = theme.text;
    table.forEach((id, place) => {
      const { x, y, size } = plan.cell(id);
      context.strokeText(String(place + 1), x + size / 2, y + size / 2);
      context.fillText(String(place + 1), x + size / 2, y + size / 2);
    });
  }

  mark(context, view, id, colour) {
    const { x, y, size } = view.plan.cell(id), edge = Math.max(size, 5), shift = (edge - size) / 2;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(x - shift, y - shift, edge, edge);
  }

  // The whole map small in a corner, with the window in it.
  minimap(context, view) {
    const { plan, theme } = view;
    if (!plan.isZoomed) return;
    const { x, y, width, height } = minimapOf(plan);
    context.globalAlpha = 0.94;
    context.fillStyle = theme.background;
    context.fillRect(x - 3, y - 3, width + 6, height + 6);
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = true;
    context.drawImage(this.small, x, y, width, height);
    context.strokeStyle = theme.border;
    context.lineWidth = 1;
    context.strokeRect(x - 3.5, y - 3.5, width + 7, height + 7);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    const scale = width / plan.columns;
    context.strokeRect(x + plan.left * scale, y + plan.top * scale, Math.max(3, plan.across * scale), Math.max(3, plan.down * scale));
  }
}

// Where the small map stands.
function minimapOf({ width, height, columns, rows }) {
  const wide = Math.min(MINIMAP_WIDTH, width / 4), high = Math.max(6, wide * rows / columns);
  return { x: width - wide - 9, y: height - high - 9, width: wide, height: high };
}
