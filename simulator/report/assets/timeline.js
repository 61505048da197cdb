// The timeline of one run: one canvas with leaders, faults, progress, rows and what is held.

const AXIS_HEIGHT = 20;
const LEADER_HEIGHT = 22;
const INTERRUPTION_HEIGHT = 18;
const FAULT_LINES_MAX = 4;
const LANE_HEIGHT = 16;
const HELD_HEIGHT = 60;
const BARS_ROW_HEIGHT_MIN = 3;
const NAMES_ROW_HEIGHT_MIN = 11;

class Timeline {
  constructor(run, time, onSelect) {
    this.run = run;
    this.view = new View(time);
    this.onSelect = onSelect;
    this.hidden = new Set();
    this.lanes = progressLanes(run);
    this.overview = new Overview(run, time);
    this.canvas = el("canvas", { class: "plot", role: "img", "aria-label": `Timeline of the run. ${run.story.join(" ")}` });
    this.tip = el("div", { class: "tip", hidden: true });
    this.element = el("div", { class: "timeline", tabindex: "0", role: "group",
      "aria-label": "Timeline: arrow keys move, plus and minus zoom, n and p step through what happened, 0 shows the whole run" },
    this.overview.canvas, this.canvas, this.tip);
    time.listeners.push(() => this.schedule());
    this.showRows(new RowSet(run));
  }

  showRows(rows) {
    this.rows = rows;
    this.view.top = 0;
    this.fitted = true;
    this.schedule();
  }

  // Draw before the next frame, once however much changed.
  schedule() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  }

  layout() {
    const width = Math.max(320, this.element.clientWidth);
    const wide = width >= 760;
    const racks = this.rows.racks.length > 1 || Boolean(this.rows.racks[0]?.[0]);
    this.rackWidth = racks && wide ? 72 : 0;
    this.gutter = wide ? 124 + this.rackWidth : 100;
    const faults = this.faultLinesAt(width - this.gutter - 12);
    this.leadersY = AXIS_HEIGHT;
    this.textsY = this.leadersY + LEADER_HEIGHT;
    this.faultsY = this.textsY + INTERRUPTION_HEIGHT;
    this.lanesY = this.faultsY + faults * 15 + 8;
    this.rowsY = this.lanesY + this.lanes.length * LANE_HEIGHT + 10;
    this.faultLines = faults;
    const most = clamp(window.innerHeight * 0.62, 320, 680);
    const natural = clamp(this.rows.slotsMax * 9 + 7, 16, 44);
    this.fitHeight = Math.min(natural, most / Math.max(1, this.rows.length));
    if (this.fitted) this.view.rowHeight = this.fitHeight;
    this.box = { x: this.gutter, y: this.rowsY, width: width - this.gutter - 12,
      height: Math.max(60, Math.min(this.rows.length * natural, most)) };
    if (this.fitted) this.box.height = Math.max(24, Math.round(this.rows.length * this.fitHeight));
    this.view.top = clamp(this.view.top, 0, Math.max(0, this.rows.length - this.box.height / this.view.rowHeight));
    this.heldY = this.rowsY + this.box.height + 14;
    this.width = width;
    this.height = this.heldY + HELD_HEIGHT + 4;
  }

  // As many lines as the texts of faults need while the whole run is visible.
  faultLinesAt(width) {
    if (this.faultsWidth === width) return this.faultLines;
    this.faultsWidth = width;
    const whole = { fromS: 0, spanS: this.view.time.durationS };
    const f = { ctx: this.canvas.getContext("2d"), run: this.run, palette: new Palette(this.element), view: whole, x: this.gutter, width };
    return Math.max(1, ...placedMarks(f, FAULT_LINES_MAX).map((mark) => mark.line + 1));
  }

  draw() {
    if (!this.element.isConnected) return;
    this.layout();
    const palette = new Palette(this.element);
    const ctx = sizedContext(this.canvas, this.width, this.height);
    this.overview.layout(this.box.x, this.box.width, palette);
    const { run, view, box, rows, hidden } = this;
    const f = { ctx, run, view, palette, x: box.x, width: box.width, hits: [] };
    drawAxis(f, 0, this.height);
    drawLeaders(f, this.leadersY, LEADER_HEIGHT);
    drawInterruptionTexts(f, this.textsY);
    drawProgress(f, this.lanesY, this.lanes, LANE_HEIGHT);
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.x, box.y - 1, box.width, box.height + 2);
    ctx.clip();
    if (view.rowHeight < BARS_ROW_HEIGHT_MIN) drawDensity(ctx, run, rows, view, box, palette, hidden);
    else drawBars(ctx, run, rows, view, box, palette, hidden);
    ctx.restore();
    shadeInterruptions(f, this.textsY, this.height - this.textsY);
    if (this.selected) {
      ctx.save();
      ctx.beginPath();
      ctx.rect(box.x, box.y, box.width, box.height);
      ctx.clip();
      drawSelection(ctx, run, rows, view, box, palette, this.selected);
      ctx.restore();
    }
    drawHeld(f, this.heldY, HELD_HEIGHT);
    drawFaults(f, this.faultsY, this.faultLines, this.height);
    this.drawGutter(f);
    this.hits = f.hits;
    this.palette = palette;
  }

  drawGutter(f) {
    const { ctx, palette } = f;
    const { view, box, rows, run } = this;
    clippedTo(ctx, 0, box.y, box.x, box.height, () => {
      rows.racks.forEach(([name, from, until], i) => {
        const y0 = Math.max(box.y, box.y + (from - view.top) * view.rowHeight);
        const y1 = Math.min(box.y + box.height, box.y + (until - view.top) * view.rowHeight);
        if (y1 <= y0) return;
        if (name && this.rackWidth && y1 - y0 >= 9) {
          setFont(f, 11, "600");
          ctx.fillStyle = palette.muted;
          ctx.fillText(fitText(f, name, this.rackWidth - 10), 2, (y0 + y1) / 2);
        }
        if (name && this.rackWidth) {
          ctx.fillStyle = i % 2 ? palette.line : palette.muted;
          ctx.fillRect(this.rackWidth - 5, y0 + 0.5, 2, Math.max(y1 - y0 - 1, 0.5));
        }
      });
      if (view.rowHeight >= NAMES_ROW_HEIGHT_MIN) this.drawNames(f);
      else this.drawCount(f);
    });
    if (!rows.length) {
      setFont(f, 12);
      ctx.fillStyle = palette.muted;
      ctx.fillText("no TaskManager is like that", box.x + 8, box.y + 12);
    }
    this.drawScrollbar(f);
  }

  drawCount(f) {
    const [count, ...noun] = nounText(this.rows.length, "TaskManager").split(" ");
    const y = this.box.y + this.box.height / 2;
    gutterLabel(f, count, y - 7, "600");
    gutterLabel(f, fitText(f, noun.join(" "), this.box.x - this.rackWidth - 10), y + 7, "600");
  }

  drawNames(f) {
    const { view, box, rows, run } = this;
    const first = Math.max(0, Math.floor(view.top));
    const last = Math.min(rows.length, Math.ceil(view.top + box.height / view.rowHeight));
    for (let place = first; place < last; place += 1) {
      const y = box.y + (place - view.top + 0.5) * view.rowHeight;
      gutterLabel(f, fitText(f, run.workers[rows.workers[place]], box.x - this.rackWidth - 10), y);
    }
  }

  drawScrollbar(f) {
    const { view, box, rows } = this;
    const visible = box.height / view.rowHeight / rows.length;
    if (!(visible < 0.999)) return;
    f.ctx.fillStyle = f.palette.line;
    f.ctx.fillRect(box.x + box.width + 3, box.y, 5, box.height);
    f.ctx.fillStyle = f.palette.muted;
    f.ctx.fillRect(box.x + box.width + 3, box.y + (view.top / rows.length) * box.height, 5, Math.max(8, visible * box.height));
  }

  moveRows(by) {
    const before = this.view.top;
    const most = Math.max(0, this.rows.length - this.box.height / this.view.rowHeight);
    this.view.top = clamp(before + by, 0, most);
    this.schedule();
    return this.view.top !== before;
  }

  // Rows `factor` times as high, keeping the row at `y` (of the canvas) in its place.
  zoomRows(factor, y = this.box.y + this.box.height / 2) {
    const place = this.view.top + (y - this.box.y) / this.view.rowHeight;
    this.view.rowHeight = clamp(this.view.rowHeight * factor, this.fitHeight, Math.max(120, this.fitHeight));
    this.fitted = this.view.rowHeight <= this.fitHeight * 1.001;
    this.view.top = Math.max(0, place - (y - this.box.y) / this.view.rowHeight);
    this.schedule();
  }

  // Scroll so that a TaskManager's row is visible, if it is among those shown.
  reveal(row) {
    const place = this.rows.workers.indexOf(row);
    const visible = this.box.height / this.view.rowHeight;
    if (place >= 0 && (place < this.view.top || place + 1 > this.view.top + visible)) {
      this.moveRows(place - visible / 2 - this.view.top);
    }
  }

  timeAt(x) {
    return this.view.fromS + ((x - this.box.x) / this.box.width) * this.view.spanS;
  }

  // What is under a point of the canvas, or null.
  hit(x, y) {
    const { box, view, rows, run } = this;
    const atS = this.timeAt(x);
    const found = this.hits.filter((h) => x >= h.x0 && x <= h.x1 && y >= h.y0 && y <= h.y1).pop();
    if (found) return { ...found, atS };
    if (y < box.y || y >= box.y + box.height || x < 0 || x > box.x + box.width) return null;
    const from = Math.floor(view.top + (y - box.y) / view.rowHeight);
    const until = Math.min(rows.length, Math.max(from + 1, Math.ceil(view.top + (y + 1 - box.y) / view.rowHeight)));
    if (from < 0 || from >= rows.length) return null;
    const shown = rows.workers.slice(from, until);
    if (x < box.x) return shown.length === 1 ? { kind: "worker", row: shown[0] } : null;
    const slack = (view.spanS / box.width) * 2;
    const attempts = shown.flatMap((row) => attemptsAt(run, row, atS, slack, this.hidden));
    if (view.rowHeight < BARS_ROW_HEIGHT_MIN) return { kind: "group", rows: shown, attempts, atS };
    const frame = rowFrame(run, shown[0], box.y + (from - view.top) * view.rowHeight, view.rowHeight);
    const slot = clamp(Math.floor((y - frame.y) / frame.lane), 0, run.columns.slots[shown[0]] - 1);
    const number = attempts.find((i) => run.columns.slot[i] === slot) ?? (frame.lane < 4 ? attempts[0] : undefined);
    return number === undefined ? { kind: "worker", row: shown[0], atS } : { kind: "attempt", number };
  }

  select(hit) {
    this.selected = hit?.kind === "attempt" ? { number: hit.number, same: this.run.sameSubtask(hit.number) } : null;
    this.onSelect(hit);
    this.schedule();
  }

  hover(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const hit = this.hits && this.hit(event.clientX - bounds.left, event.clientY - bounds.top);
    const facts = hit && hitFacts(this.run, hit);
    this.tip.hidden = !facts;
    this.canvas.style.cursor = facts && hit.kind !== "group" ? "pointer" : "grab";
    if (!facts) return;
    this.tip.replaceChildren(...factsElement({ ...facts, facts: facts.facts.slice(0, 6) }, this.palette));
    const area = this.element.getBoundingClientRect();
    const left = event.clientX - area.left + 14;
    this.tip.style.left = `${Math.max(0, left + this.tip.offsetWidth > area.width ? left - this.tip.offsetWidth - 28 : left)}px`;
    this.tip.style.top = `${event.clientY - area.top + 14}px`;
  }
}

function clippedTo(ctx, x, y, width, height, draw) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  draw();
  ctx.restore();
}

function attemptsAt(run, row, atS, slackS, hidden) {
  const { start, end, fate } = run.columns;
  const found = [];
  for (let i = run.rowStarts[row]; i < run.rowStarts[row + 1]; i += 1) {
    if (hidden.has(run.fates[fate[i]])) continue;
    if (run.seconds(start[i]) <= atS + slackS && run.seconds(end[i]) >= atS - slackS) found.push(i);
  }
  // The one that is really there before one that is only near.
  const distance = (i) => Math.max(0, run.seconds(start[i]) - atS, atS - run.seconds(end[i]));
  return found.sort((a, b) => distance(a) - distance(b));
}
