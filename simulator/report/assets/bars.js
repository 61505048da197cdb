// Rows of at least 3 pixels: every attempt a bar in the lane of its slot, and below them a strip:
// thin while the process lived, thick in the colour of the leader it was registered with.

function drawBars(ctx, run, rows, view, box, palette, hidden) {
  const first = Math.max(0, Math.floor(view.top));
  const last = Math.min(rows.length, Math.ceil(view.top + box.height / view.rowHeight));
  const scale = { perTick: (run.tick_s / view.spanS) * box.width, zero: box.x - (view.fromS / view.spanS) * box.width, end: box.x + box.width };
  for (let place = first; place < last; place += 1) {
    const row = rows.workers[place];
    const y = box.y + (place - view.top) * view.rowHeight;
    const frame = rowFrame(run, row, y, view.rowHeight);
    drawRowGround(ctx, run, row, frame, scale, box, palette);
    drawRowAttempts(ctx, run, row, frame, scale, box, palette, hidden);
  }
}

// Where the parts of a row are: lanes of slots, then the strip.
function rowFrame(run, row, y, rowHeight) {
  const strip = rowHeight >= 14 ? 4 : rowHeight >= 8 ? 2 : 0;
  const gap = rowHeight >= 14 ? 3 : rowHeight >= 6 ? 1 : 0;
  const lanes = rowHeight - strip - gap;
  return { y, height: rowHeight - gap, lanes, lane: lanes / Math.max(1, run.columns.slots[row]), strip };
}

function tickX(ticks, scale) {
  return ticks === NEVER ? scale.end : scale.zero + ticks * scale.perTick;
}

function drawRowGround(ctx, run, row, frame, scale, box, palette) {
  const c = run.columns;
  ctx.fillStyle = palette.hatch(ctx, palette.bg, palette.dead, "back");
  ctx.fillRect(box.x, frame.y, box.width, frame.height);
  for (let i = run.lifeStarts[row]; i < run.lifeStarts[row + 1]; i += 1) {
    const [x0, x1] = visible(tickX(c.life_from[i], scale), tickX(c.life_until[i], scale), box);
    if (x1 <= x0) continue;
    ctx.fillStyle = palette.apart;
    ctx.fillRect(x0, frame.y, x1 - x0, frame.height);
    ctx.fillStyle = palette.muted;
    if (frame.strip) ctx.fillRect(x0, frame.y + frame.lanes + frame.strip - 1, x1 - x0, 1);
  }
  for (let i = run.linkStarts[row]; i < run.linkStarts[row + 1]; i += 1) {
    const [x0, x1] = visible(tickX(c.link_from[i], scale), tickX(c.link_until[i], scale), box);
    if (x1 <= x0) continue;
    ctx.fillStyle = palette.row;
    ctx.fillRect(x0, frame.y, x1 - x0, frame.lanes);
    ctx.fillStyle = palette.epoch(c.link_epoch[i]);
    if (frame.strip) ctx.fillRect(x0, frame.y + frame.lanes, x1 - x0, frame.strip);
  }
}

function visible(x0, x1, box) {
  return [Math.max(x0, box.x), Math.min(x1, box.x + box.width)];
}

function drawRowAttempts(ctx, run, row, frame, scale, box, palette, hidden) {
  const c = run.columns;
  const lane = frame.lane;
  let drawnTo = -1;
  let drawnSlot = -1;
  for (let i = run.rowStarts[row]; i < run.rowStarts[row + 1]; i += 1) {
    const fate = run.fates[c.fate[i]];
    if (hidden.has(fate)) continue;
    const [x0, x1] = visible(tickX(c.start[i], scale), tickX(c.end[i], scale), box);
    if (x1 < box.x || x0 > box.x + box.width || x1 < x0) continue;
    // Common attempts on pixels that are full already add nothing.
    if (fate === "kept" && c.slot[i] === drawnSlot && x1 < drawnTo + 0.5) continue;
    const width = Math.max(x1 - x0 - (x1 - x0 > 4 ? 1 : 0), fate === "kept" ? 0.75 : 2);
    const y = frame.y + c.slot[i] * lane;
    const height = Math.max(lane - (lane > 4 ? 1 : 0), 0.75);
    paintBar(ctx, palette, fate, x0, y, width, height);
    if (width > 44 && height >= 10) labelBar(ctx, run, i, palette, x0, y, width, height);
    drawnTo = x0 + width;
    drawnSlot = c.slot[i];
  }
}

function labelBar(ctx, run, i, palette, x, y, width, height) {
  const text = `${run.vertices[run.columns.vertex[i]][2]} ${run.columns.subtask[i]}`;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width - 3, height);
  ctx.clip();
  ctx.font = `10px ${palette.font}`;
  ctx.textBaseline = "middle";
  ctx.fillStyle = palette.ink;
  ctx.fillText(text, x + 4, y + height / 2 + 0.5);
  ctx.restore();
}

// Frames around all attempts of one subtask, joined by a line.
function drawSelection(ctx, run, rows, view, box, palette, selected) {
  const places = new Map(rows.workers.map((row, place) => [row, place]));
  const scale = { perTick: (run.tick_s / view.spanS) * box.width, zero: box.x - (view.fromS / view.spanS) * box.width, end: box.x + box.width };
  ctx.strokeStyle = palette.select;
  let before = null;
  for (const i of selected.same) {
    const place = places.get(run.columns.row[i]);
    if (place === undefined) continue;
    const frame = rowFrame(run, run.columns.row[i], box.y + (place - view.top) * view.rowHeight, view.rowHeight);
    const x0 = tickX(run.columns.start[i], scale);
    const x1 = Math.max(tickX(run.columns.end[i], scale), x0 + 3);
    const y = frame.y + run.columns.slot[i] * frame.lane;
    const height = Math.max(frame.lane, 3);
    ctx.lineWidth = i === selected.number ? 2.5 : 1.5;
    ctx.setLineDash([]);
    ctx.strokeRect(x0 - 1, y - 1, x1 - x0 + 2, height + 1);
    if (before) {
      ctx.lineWidth = 1.25;
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(before[0], before[1]);
      ctx.lineTo(x0 - 1, y + height / 2);
      ctx.stroke();
      ctx.setLineDash([]);
    }
    before = [x1 + 1, y + height / 2];
  }
}
