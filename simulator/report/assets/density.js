// Rows thinner than 3 pixels: per point, how much of the slots each fate took.
// One attempt adds two numbers at each end, so that 200,000 of them cost milliseconds.

const CELL_WIDTH = 2;
// Below this share of one slot a sum is rounding error.
const SHARE_MIN = 0.02;

class Planes {
  constructor(count, columns, lines) {
    this.columns = columns;
    this.stride = columns + 2;
    this.values = Array.from({ length: count }, () => new Float32Array(this.stride * lines));
  }

  // Add a span from `a` to `b`, in cells, to a line.
  add(plane, line, a, b) {
    a = Math.max(a, 0);
    b = Math.min(b, this.columns);
    if (b <= a) return;
    const values = this.values[plane];
    const base = line * this.stride;
    const i = Math.floor(a);
    const j = Math.min(Math.floor(b), this.columns - 1);
    if (i === j) {
      values[base + i] += b - a;
      values[base + i + 1] -= b - a;
      return;
    }
    values[base + i] += i + 1 - a;
    values[base + i + 1] += a - i;
    values[base + j] += b - j - 1;
    values[base + j + 1] -= b - j;
  }

  sum() {
    for (const values of this.values) {
      for (let at = 0; at < values.length; at += this.stride) {
        for (let i = at + 1; i < at + this.columns; i += 1) values[i] += values[i - 1];
      }
    }
  }
}

function drawDensity(ctx, run, rows, view, box, palette, hidden) {
  const columns = Math.max(1, Math.floor(box.width / CELL_WIDTH));
  const first = Math.max(0, Math.floor(view.top));
  const last = Math.min(rows.length, Math.ceil(view.top + box.height / view.rowHeight));
  // A line for each row, or for each pixel where rows are thinner than that.
  const lineHeight = Math.max(1, view.rowHeight);
  const lines = view.rowHeight >= 1 ? Math.max(1, last - first) : Math.max(1, Math.floor(box.height));
  const lineOf = view.rowHeight >= 1 ? (place) => place - first : (place) => Math.floor((place - view.top) * view.rowHeight);
  const alive = run.fates.length;
  const linked = alive + 1;
  const planes = new Planes(run.fates.length + 2, columns, lines);
  const capacity = new Float32Array(lines);
  const perTick = (run.tick_s / view.spanS) * columns;
  const offset = (view.fromS / view.spanS) * columns;
  const cell = (ticks) => (ticks === NEVER ? columns + 1 : ticks * perTick - offset);
  const c = run.columns;
  const rare = run.fates.map((fate) => !["kept", "repeated", "running"].includes(fate));
  for (let place = first; place < last; place += 1) {
    const row = rows.workers[place];
    const line = lineOf(place);
    if (line < 0 || line >= lines) continue;
    const slots = c.slots[row];
    capacity[line] += slots;
    for (let i = run.lifeStarts[row]; i < run.lifeStarts[row + 1]; i += 1) {
      for (let s = 0; s < slots; s += 1) planes.add(alive, line, cell(c.life_from[i]), cell(c.life_until[i]));
    }
    for (let i = run.linkStarts[row]; i < run.linkStarts[row + 1]; i += 1) {
      for (let s = 0; s < slots; s += 1) planes.add(linked, line, cell(c.link_from[i]), cell(c.link_until[i]));
    }
    for (let i = run.rowStarts[row]; i < run.rowStarts[row + 1]; i += 1) {
      const fate = c.fate[i];
      if (hidden.has(run.fates[fate])) continue;
      const a = cell(c.start[i]);
      const b = cell(c.end[i]);
      planes.add(fate, line, a, rare[fate] ? Math.max(b, a + 1) : b);
    }
  }
  planes.sum();
  const picture = densityPicture(run, planes, capacity, palette);
  ctx.imageSmoothingEnabled = false;
  const y = view.rowHeight >= 1 ? box.y + (first - view.top) * view.rowHeight : box.y;
  ctx.drawImage(picture, box.x, y, columns * CELL_WIDTH, lines * lineHeight);
}

// How strongly a share of the slots colours a point: what is rare must not fade away.
const BOOST = {
  kept: (part) => part,
  repeated: (part) => Math.sqrt(part),
  running: (part) => part,
  canceled: (part) => Math.sqrt(part) * 0.7,
  rerun: (part) => Math.max(0.3, Math.sqrt(part)),
  lost: (part) => Math.max(0.3, Math.sqrt(part)),
  failed: (part) => Math.max(0.35, Math.sqrt(part)),
};

function densityPicture(run, planes, capacity, palette) {
  const lines = capacity.length;
  const image = new ImageData(planes.columns, lines);
  const pixels = image.data;
  const [dead, apart, row] = [palette.dead, palette.apart, palette.row].map((colour) => palette.rgb(colour));
  const colours = run.fates.map((fate) => palette.rgb(palette.fate[fate]));
  const order = Object.entries(BOOST).map(([fate, boost]) => [run.fates.indexOf(fate), boost]);
  const alive = planes.values[run.fates.length];
  const linked = planes.values[run.fates.length + 1];
  const rgb = [0, 0, 0];
  for (let line = 0; line < lines; line += 1) {
    if (!capacity[line]) continue;
    for (let x = 0; x < planes.columns; x += 1) {
      const at = line * planes.stride + x;
      const up = clamp(alive[at] / capacity[line], 0, 1);
      const on = clamp(linked[at] / capacity[line], 0, up);
      for (let k = 0; k < 3; k += 1) rgb[k] = dead[k] * (1 - up) + apart[k] * (up - on) + row[k] * on;
      for (const [fate, boost] of order) {
        const share = planes.values[fate][at];
        if (share < SHARE_MIN) continue;
        const weight = boost(Math.min(1, share / capacity[line]));
        for (let k = 0; k < 3; k += 1) rgb[k] += (colours[fate][k] - rgb[k]) * weight;
      }
      const pixel = (line * planes.columns + x) * 4;
      pixels[pixel] = rgb[0];
      pixels[pixel + 1] = rgb[1];
      pixels[pixel + 2] = rgb[2];
      pixels[pixel + 3] = 255;
    }
  }
  const picture = new OffscreenCanvas(planes.columns, lines);
  picture.getContext("2d").putImageData(image, 0, 0);
  return picture;
}
