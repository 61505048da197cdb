// What is drawn above and below the rows: time, leaders, faults, jobs, and what is held.
// `f` is one drawing: ctx, run, view, palette, x and width of the plot, and `hits` for the pointer.

const VERTEX_LANES_MAX = 12;

function timeX(f, seconds) {
  return f.x + ((seconds - f.view.fromS) / f.view.spanS) * f.width;
}

function setFont(f, size, weight = "") {
  f.ctx.font = `${weight} ${size}px ${f.palette.font}`;
  f.ctx.textBaseline = "middle";
  f.ctx.textAlign = "left";
}

function gutterLabel(f, text, y, weight = "") {
  setFont(f, 11, weight);
  f.ctx.fillStyle = f.palette.muted;
  f.ctx.textAlign = "right";
  f.ctx.fillText(text, f.x - 8, y);
  f.ctx.textAlign = "left";
}

function clipped(f, y, height, draw) {
  f.ctx.save();
  f.ctx.beginPath();
  f.ctx.rect(f.x, y, f.width, height);
  f.ctx.clip();
  draw();
  f.ctx.restore();
}

function drawAxis(f, y, bottom) {
  const { ctx, palette, view } = f;
  const step = timeStep(view.spanS, f.width / 90);
  setFont(f, 11);
  ctx.textAlign = "center";
  for (let s = Math.ceil(view.fromS / step) * step; s <= view.fromS + view.spanS + 1e-9; s += step) {
    const x = timeX(f, s);
    ctx.fillStyle = palette.line;
    ctx.fillRect(Math.round(x), y + 16, 1, bottom - y - 16);
    ctx.fillStyle = palette.muted;
    if (x < f.x + f.width - 12) ctx.fillText(axisText(s, step, view.fromS + view.spanS), x, y + 8);
  }
  ctx.textAlign = "left";
}

function axisText(seconds, step, lastS) {
  if (lastS >= 600 && step >= 1) return momentText(seconds, Infinity).replace(/\.0$/, "");
  return `${step >= 1 ? Math.round(seconds) : seconds.toFixed(clamp(Math.ceil(-Math.log10(step)), 1, 4))} s`;
}

function drawLeaders(f, y, height) {
  const { ctx, palette, run } = f;
  gutterLabel(f, "leader", y + height / 2, "600");
  clipped(f, y, height, () => {
    run.epochs.forEach(([epoch, name, fromS, readyS, untilS], i) => {
      const next = run.epochs[i + 1];
      const endS = untilS ?? (next ? next[2] : run.durationS);
      const [x0, x1] = [timeX(f, fromS), timeX(f, endS)];
      ctx.fillStyle = palette.epoch(epoch);
      ctx.fillRect(x0, y, x1 - x0, height);
      if (readyS !== null && readyS > fromS) {
        ctx.fillStyle = palette.hatch(ctx, palette.epoch(epoch), palette.bg, "dots");
        ctx.fillRect(x0, y, timeX(f, readyS) - x0, height);
      }
      f.hits.push({ x0, x1, y0: y, y1: y + height, kind: "epoch", index: i });
    });
    for (const [kind, fromS, untilS] of run.interruptions()) {
      const [x0, x1] = [timeX(f, fromS), timeX(f, untilS)];
      ctx.fillStyle = palette.hatch(ctx, palette.bg, palette[kind], kind === "waiting" ? "hatch" : "cross");
      ctx.fillRect(x0, y, Math.max(x1 - x0, 1.5), height);
      f.hits.push({ x0, x1, y0: y, y1: y + height, kind: "interruption", what: kind, fromS, untilS });
    }
    labelLeaders(f, y, height);
  });
}

function labelLeaders(f, y, height) {
  const { ctx, palette, run } = f;
  setFont(f, 11, "600");
  for (const [i, [epoch, name, fromS, readyS, untilS, waits]] of run.epochs.entries()) {
    const endS = untilS ?? run.epochs[i + 1]?.[2] ?? run.durationS;
    const clearS = Math.max(fromS, readyS ?? fromS, ...waits.map((wait) => wait[2] ?? run.durationS));
    const x0 = Math.max(timeX(f, clearS), f.x);
    const x1 = Math.min(timeX(f, endS), f.x + f.width);
    for (const text of [`${name} · epoch ${epoch}`, `epoch ${epoch}`, `${epoch}`]) {
      if (ctx.measureText(text).width + 12 > x1 - x0) continue;
      ctx.fillStyle = palette.bg;
      ctx.fillText(text, x0 + 6, y + height / 2 + 0.5);
      break;
    }
  }
}

// Texts under the leaders' band: how long there was no leader, how long it waited.
function drawInterruptionTexts(f, y) {
  const { ctx, palette, run } = f;
  setFont(f, 11, "600");
  let freeX = f.x;
  for (const [kind, fromS, untilS] of run.interruptions()) {
    const middle = (timeX(f, fromS) + timeX(f, untilS)) / 2;
    if (timeX(f, untilS) < f.x || timeX(f, fromS) > f.x + f.width) continue;
    // What is too short to be seen at this scale is not labelled; pointing at it still tells.
    if (timeX(f, untilS) - timeX(f, fromS) < 2) continue;
    const text = `${kind === "waiting" ? "waits for workers" : "no leader"} ${secondsText(untilS - fromS)}`;
    const width = ctx.measureText(text).width;
    const wish = kind === "waiting" ? timeX(f, fromS) : middle - width / 2;
    const x = clamp(Math.max(wish, freeX), f.x, f.x + f.width - width);
    if (x < freeX) continue;
    ctx.fillStyle = palette[kind];
    ctx.fillText(text, x, y + 8);
    freeX = x + width + 12;
  }
}

function shadeInterruptions(f, y, height) {
  clipped(f, y, height, () => {
    for (const [kind, fromS, untilS] of f.run.interruptions()) {
      const [x0, x1] = [timeX(f, fromS), timeX(f, untilS)];
      f.ctx.globalAlpha = 0.13;
      f.ctx.fillStyle = f.palette[kind];
      f.ctx.fillRect(x0, y, x1 - x0, height);
      f.ctx.globalAlpha = 1;
    }
  });
}

function faultText([kind, , , victims, detail]) {
  const who = victims.length > 2 ? `${countText(victims.length)} processes` : victims.join(", ");
  return `${kind}${who ? ` ${who}` : ""}${detail ? ` (${detail})` : ""}`;
}

// Faults and findings that are visible, by time, each with the line on which its text has room;
// -1 where there is none.
function placedMarks(f, lines) {
  const { ctx, run } = f;
  const marks = run.faults.map((fault, i) => ({ atS: fault[1], untilS: fault[2], text: faultText(fault), kind: "fault", index: i }));
  run.findings.forEach(([name, atS], i) => marks.push({ atS, untilS: null, text: name, kind: "finding", index: i }));
  marks.sort((a, b) => a.atS - b.atS);
  const freeX = Array(lines).fill(-Infinity);
  const placed = [];
  for (const mark of marks) {
    const x = timeX(f, mark.atS);
    const endX = mark.untilS === null ? x : timeX(f, mark.untilS);
    if (endX < f.x || x > f.x + f.width) continue;
    setFont(f, 11, mark.kind === "finding" ? "700" : "");
    const width = ctx.measureText(mark.text).width + 12;
    const flipped = x + width > f.x + f.width + 40;
    const start = flipped ? x - width : Math.max(x, f.x);
    const line = freeX.findIndex((free) => start >= free);
    if (line >= 0) freeX[line] = Math.max(flipped ? x + 8 : start + width + 6, endX);
    placed.push({ ...mark, x, endX, width, flipped, start, line });
  }
  return placed;
}

function drawFaults(f, y, lines, bottom) {
  const { ctx, palette, run } = f;
  gutterLabel(f, run.findings.length ? "faults, findings" : "faults", y + 8, "600");
  for (const mark of placedMarks(f, lines)) {
    const colour = mark.kind === "finding" ? palette.fate.failed : palette.fault;
    const at = y + (mark.line < 0 ? lines - 1 : mark.line) * 15;
    faultMark(f, mark, mark.x, at, bottom, colour, mark.endX);
    if (mark.line < 0) continue;
    setFont(f, 11, mark.kind === "finding" ? "700" : "");
    ctx.fillStyle = colour;
    ctx.textAlign = mark.flipped ? "right" : "left";
    ctx.fillText(mark.text, mark.flipped ? mark.x - 8 : mark.start + 8, at + 8);
    ctx.textAlign = "left";
    f.hits.push({ x0: mark.start - 4, x1: mark.start + mark.width, y0: at, y1: at + 15, kind: mark.kind, index: mark.index });
  }
}

function faultMark(f, mark, x, at, bottom, colour, endX) {
  const { ctx } = f;
  if (x >= f.x && x <= f.x + f.width) {
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 3]);
    ctx.beginPath();
    ctx.moveTo(Math.round(x) + 0.5, at + 12);
    ctx.lineTo(Math.round(x) + 0.5, bottom);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    if (mark.kind === "finding") ctx.arc(x, at + 8, 4.5, 0, 7);
    else ctx.moveTo(x - 5, at + 3), ctx.lineTo(x + 5, at + 3), ctx.lineTo(x, at + 12);
    ctx.fill();
    f.hits.push({ x0: x - 6, x1: x + 6, y0: at, y1: at + 15, kind: mark.kind, index: mark.index });
  }
  if (endX > x + 2) {
    const x0 = Math.max(x, f.x);
    const x1 = Math.min(endX, f.x + f.width);
    ctx.fillStyle = colour;
    ctx.fillRect(x0, at + 14, x1 - x0, 1.5);
    if (endX <= f.x + f.width) ctx.fillRect(endX - 1, at + 10, 1.5, 5);
  }
}

// Lanes for vertices while they are few, else for jobs: what fraction has finished for good.
function progressLanes(run) {
  const perVertex = run.vertices.length <= VERTEX_LANES_MAX;
  const named = perVertex ? run.vertices.map((v) => v[2]) : run.jobs.slice(0, VERTEX_LANES_MAX).map((job) => job.name);
  const laneOf = run.vertices.map((v, i) => (perVertex ? i : run.jobs.findIndex((job) => job.id === v[0])));
  const lanes = named.map((name) => ({ name, ends: [], fromS: Infinity, total: 0 }));
  run.vertices.forEach((v, i) => {
    if (lanes[laneOf[i]]) lanes[laneOf[i]].total += v[3];
  });
  const { vertex, fate, end, start } = run.columns;
  for (let i = 0; i < run.attemptCount; i += 1) {
    const lane = lanes[laneOf[vertex[i]]];
    if (!lane) continue;
    lane.fromS = Math.min(lane.fromS, start[i] * run.tick_s);
    if (["kept", "repeated"].includes(run.fates[fate[i]])) lane.ends.push(end[i]);
  }
  for (const lane of lanes) {
    lane.ends = Float64Array.from(lane.ends).sort();
    lane.total = Math.max(lane.total, lane.ends.length, 1);
  }
  return lanes;
}

function drawProgress(f, y, lanes, height) {
  const { ctx, palette, run } = f;
  lanes.forEach((lane, i) => {
    const top = y + i * height;
    gutterLabel(f, fitText(f, lane.name, f.x - 14), top + height / 2);
    f.hits.push({ x0: f.x, x1: f.x + f.width, y0: top, y1: top + height, kind: "lane", lane });
    if (!lane.ends.length) return;
    clipped(f, top, height, () => {
      const fromX = timeX(f, lane.fromS);
      const untilX = timeX(f, lane.ends[lane.ends.length - 1] * run.tick_s);
      ctx.fillStyle = palette.line;
      ctx.fillRect(fromX, top + height - 2, untilX - fromX, 1);
      ctx.fillStyle = palette.fate.kept;
      for (let x = Math.max(f.x, Math.floor(fromX)); x < Math.min(f.x + f.width, untilX + 2); x += 2) {
        const ticks = (f.view.fromS + ((x - f.x) / f.width) * f.view.spanS) / run.tick_s;
        const part = (countUpTo(lane.ends, ticks) / lane.total) * (height - 3);
        ctx.fillRect(x, top + height - 1 - part, 2, part);
      }
    });
  });
}

function fitText(f, text, width) {
  setFont(f, 11);
  if (f.ctx.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && f.ctx.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
}

function countUpTo(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
