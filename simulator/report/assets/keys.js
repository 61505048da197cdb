// Mouse, touch and keys for a timeline. Plain scrolling stays the page's, unless rows are hidden.

function listenToPointer(timeline) {
  const { canvas, view } = timeline;
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, fromS: view.fromS, untilS: view.time.untilS, top: view.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return timeline.hover(event);
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return undefined;
    drag.moved = true;
    timeline.tip.hidden = true;
    const byS = (-dx / timeline.box.width) * (drag.untilS - drag.fromS);
    view.time.show(drag.fromS + byS, drag.untilS + byS);
    timeline.moveRows(drag.top - dy / view.rowHeight - view.top);
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const bounds = canvas.getBoundingClientRect();
      timeline.select(timeline.hit(event.clientX - bounds.left, event.clientY - bounds.top));
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { timeline.tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => view.time.zoom(2.5, timeline.timeAt(event.clientX - canvas.getBoundingClientRect().left)));
  canvas.addEventListener("wheel", (event) => wheel(timeline, event), { passive: false });
}

function wheel(timeline, event) {
  const bounds = timeline.canvas.getBoundingClientRect();
  const { view, box } = timeline;
  const y = event.clientY - bounds.top;
  if (event.ctrlKey || event.metaKey) view.time.zoom(Math.exp(-event.deltaY / 300), timeline.timeAt(event.clientX - bounds.left));
  else if (event.altKey) timeline.zoomRows(Math.exp(-event.deltaY / 300), y);
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.time.move(((event.deltaX || event.deltaY) / box.width) * view.spanS);
  else if (!(y > box.y && y < box.y + box.height && timeline.moveRows(event.deltaY / view.rowHeight))) return;
  event.preventDefault();
}

// The moments worth a look, in time: faults, findings, waits, and attempts that were not kept.
function notableHits(run) {
  const hits = run.faults.map((fault, index) => [fault[1], { kind: "fault", index }]);
  run.findings.forEach((finding, index) => hits.push([finding[1], { kind: "finding", index }]));
  run.epochs.forEach((epoch, index) => hits.push([epoch[2], { kind: "epoch", index }]));
  for (const [what, fromS, untilS] of run.interruptions()) hits.push([fromS, { kind: "interruption", what, fromS, untilS }]);
  const { fate, start } = run.columns;
  const common = ["kept", "repeated", "running"].map((name) => run.fates.indexOf(name));
  let attempts = 0;
  for (let number = 0; number < run.attemptCount && attempts < 2000; number += 1) {
    if (common.includes(fate[number])) continue;
    hits.push([run.seconds(start[number]), { kind: "attempt", number }]);
    attempts += 1;
  }
  return hits.sort((a, b) => a[0] - b[0]);
}

function listenToKeys(timeline) {
  const notable = notableHits(timeline.run);
  let at = -1;
  const step = (by) => {
    if (!notable.length) return;
    at = (at + by + notable.length) % notable.length;
    const [atS, hit] = notable[at];
    const { time } = timeline.view;
    if (atS < time.fromS || atS > time.untilS) time.show(atS - time.spanS / 2, atS + time.spanS / 2);
    if (hit.kind === "attempt") timeline.reveal(timeline.run.columns.row[hit.number]);
    timeline.select(hit);
  };
  const { time } = timeline.view;
  const middle = () => (time.fromS + time.untilS) / 2;
  const page = () => timeline.box.height / timeline.view.rowHeight / 4;
  const actions = {
    ArrowLeft: () => time.move(-time.spanS / 8),
    ArrowRight: () => time.move(time.spanS / 8),
    ArrowUp: () => timeline.moveRows(-page()),
    ArrowDown: () => timeline.moveRows(page()),
    "+": () => time.zoom(1.5, middle()),
    "=": () => time.zoom(1.5, middle()),
    "-": () => time.zoom(1 / 1.5, middle()),
    "]": () => timeline.zoomRows(1.5),
    "[": () => timeline.zoomRows(1 / 1.5),
    0: () => showWhole(timeline),
    Home: () => showWhole(timeline),
    n: () => step(1),
    p: () => step(-1),
    Escape: () => timeline.select(null),
  };
  timeline.element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    // Up and down scroll the page while all rows are visible.
    if (event.key.startsWith("Arrow") && timeline.fitted && /Up|Down/.test(event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });
}

function showWhole(timeline) {
  timeline.fitted = true;
  timeline.view.top = 0;
  timeline.view.time.show(0, timeline.view.time.durationS);
}
