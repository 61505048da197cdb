// The partitions that all workers hold, as an area, and their bytes, as a line.

function drawHeld(f, y, height) {
  const { ctx, palette, run } = f;
  const c = run.columns;
  gutterLabel(f, "held", y + 8, "600");
  ctx.fillStyle = palette.line;
  ctx.fillRect(f.x, y + height, f.width, 1);
  if (!c.held_at.length) {
    setFont(f, 11);
    ctx.fillStyle = palette.muted;
    ctx.fillText("not recorded", f.x + 8, y + height / 2);
    return;
  }
  const partitionsMax = Math.max(1, ...c.held_partitions);
  const bytesMax = Math.max(1, ...c.held_bytes);
  clipped(f, y - 2, height + 2, () => {
    heldPath(f, y, height, c.held_partitions, partitionsMax);
    ctx.lineTo(timeX(f, run.durationS), y + height);
    ctx.lineTo(timeX(f, c.held_at[0] * run.tick_s), y + height);
    ctx.fillStyle = palette.held;
    ctx.fill();
    heldPath(f, y, height, c.held_bytes, bytesMax);
    ctx.strokeStyle = palette.heldline;
    ctx.lineWidth = 1.5;
    ctx.setLineDash([5, 3]);
    ctx.stroke();
    ctx.setLineDash([]);
  });
  gutterLabel(f, fitText(f, `▇ ${countText(partitionsMax)} partitions`, f.x - 10), y + 24);
  gutterLabel(f, fitText(f, `┅ ${bytesText(bytesMax)}`, f.x - 10), y + 40);
  f.hits.push({ x0: f.x, x1: f.x + f.width, y0: y, y1: y + height, kind: "held" });
}

function heldPath(f, y, height, values, most) {
  const { ctx, run } = f;
  const at = run.columns.held_at;
  const level = (value) => y + height - (value / most) * (height - 2);
  ctx.beginPath();
  ctx.moveTo(timeX(f, at[0] * run.tick_s), level(values[0]));
  for (let i = 1; i < at.length; i += 1) {
    const x = timeX(f, at[i] * run.tick_s);
    ctx.lineTo(x, level(values[i - 1]));
    ctx.lineTo(x, level(values[i]));
  }
  ctx.lineTo(timeX(f, run.durationS), level(values[values.length - 1]));
}

function heldAt(run, seconds) {
  const i = countUpTo(run.columns.held_at, seconds / run.tick_s) - 1;
  return i < 0 ? null : { partitions: run.columns.held_partitions[i], bytes: run.columns.held_bytes[i] };
}
