// Colours come from page.css, so that they follow the theme; patterns tell fates apart without colour.

const FATE_TEXT = {
  kept: "kept",
  repeated: "kept, a later attempt",
  rerun: "finished, ran again",
  canceled: "canceled",
  lost: "lost with its worker",
  failed: "failed",
  running: "still running",
};
const PATTERN_OF = { repeated: "edge", rerun: "hatch", canceled: "dots", lost: "back", failed: "cross", running: "none" };
const NAMES = ["ink", "muted", "line", "bg", "panel", "row", "apart", "dead", "leaderless", "waiting", "fault", "held", "heldline",
  "epoch0", "epoch1", "epoch2", "select"];

class Palette {
  constructor(element) {
    const style = getComputedStyle(element);
    for (const name of NAMES) this[name] = style.getPropertyValue(`--${name}`).trim();
    this.fate = {};
    for (const fate of Object.keys(FATE_TEXT)) this.fate[fate] = style.getPropertyValue(`--fate-${fate}`).trim();
    this.font = style.fontFamily;
    this.patterns = new Map();
  }

  rgb(colour) {
    const value = Number.parseInt(colour.slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }

  epoch(number) {
    return this[`epoch${number % 3}`];
  }

  // A fill with the fate's colour and pattern.
  fill(ctx, fate) {
    const pattern = PATTERN_OF[fate];
    if (!pattern || pattern === "edge" || pattern === "none") return this.fate[fate];
    return this.hatch(ctx, this.fate[fate], this.bg, pattern);
  }

  hatch(ctx, base, mark, pattern) {
    const key = `${base} ${mark} ${pattern}`;
    if (!this.patterns.has(key)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 12;
      drawTile(tile.getContext("2d"), base, mark, pattern);
      const made = ctx.createPattern(tile, "repeat");
      made.setTransform(new DOMMatrix([0.5, 0, 0, 0.5, 0, 0]));
      this.patterns.set(key, made);
    }
    return this.patterns.get(key);
  }
}

function drawTile(ctx, base, mark, pattern) {
  if (base !== "none") {
    ctx.fillStyle = base;
    ctx.fillRect(0, 0, 12, 12);
  }
  ctx.strokeStyle = ctx.fillStyle = mark;
  ctx.lineWidth = 2.4;
  const lines = { hatch: [[-6, 6, 6, -6], [-2, 14, 14, -2], [6, 18, 18, 6]], back: [[-6, 6, 6, 18], [-2, -2, 14, 14], [6, -6, 18, 6]] };
  lines.cross = [[0, 0, 12, 12], [0, 12, 12, 0]];
  for (const [x0, y0, x1, y1] of lines[pattern] ?? []) {
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
    ctx.stroke();
  }
  if (pattern === "dots") {
    ctx.fillRect(1, 1, 3, 3);
    ctx.fillRect(7, 7, 3, 3);
  }
}

// A small picture of a fate for legends.
function fateSwatch(fate, palette) {
  const scale = 2;
  const canvas = el("canvas", { width: 22 * scale, height: 12 * scale, class: "swatch", "aria-hidden": "true" });
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  paintBar(ctx, palette, fate, 0, 0, 22, 12);
  return canvas;
}

// One attempt as a bar.
function paintBar(ctx, palette, fate, x, y, width, height) {
  const patterned = width >= 5 && height >= 4;
  if (fate === "running") {
    ctx.strokeStyle = palette.fate.running;
    ctx.lineWidth = 1;
    ctx.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1, 0.5), Math.max(height - 1, 0.5));
    return;
  }
  ctx.fillStyle = patterned ? palette.fill(ctx, fate) : palette.fate[fate];
  ctx.fillRect(x, y, width, height);
  if (fate === "repeated" && patterned) {
    ctx.fillStyle = palette.ink;
    ctx.fillRect(x, y, 1.5, height);
  }
}
