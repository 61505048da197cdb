// What the pointer, or the keyboard, is on: its facts, in pairs of name and text.

function hitFacts(run, hit) {
  switch (hit.kind) {
    case "attempt": return attemptFacts(run, hit.number);
    case "group": return groupFacts(run, hit);
    case "worker": return workerFacts(run, hit.row, hit.atS);
    case "epoch": return epochFacts(run, run.epochs[hit.index]);
    case "interruption": return { title: hit.what === "waiting" ? "RECONCILING: waits for previous workers" : "No leader",
      facts: [["from", secondsText(hit.fromS)], ["until", secondsText(hit.untilS)], ["took", secondsText(hit.untilS - hit.fromS)]] };
    case "fault": return faultFacts(run.faults[hit.index]);
    case "finding": return { title: `Finding: ${run.findings[hit.index][0]}`,
      facts: [["at", secondsText(run.findings[hit.index][1])], ["what", run.findings[hit.index][2]]] };
    case "lane": return { title: hit.lane.name, facts: [["finished by now", nounText(countUpTo(hit.lane.ends, hit.atS / run.tick_s), "subtask")],
      ["in all", countText(hit.lane.total)]] };
    case "held": return heldFacts(run, hit.atS);
    default: return null;
  }
}

function attemptFacts(run, number) {
  const a = run.attempt(number);
  const facts = [
    ["fate", FATE_TEXT[a.fate]],
    ["where", `${a.worker}, slot ${a.slot}${a.rack ? `, ${a.rack}` : ""}`],
    ["ran", `${momentText(a.fromS, 1)} to ${a.open ? "the end of the run" : momentText(a.untilS, 1)} (${secondsText(a.untilS - a.fromS)})`],
    ["attempt", `${a.attempt}, deployed by epoch ${a.epoch}`],
  ];
  if (a.bytes) facts.push(["output", bytesText(a.bytes)]);
  const why = attemptReason(run, a);
  if (why) facts.push(["why", why]);
  const others = run.sameSubtask(number).filter((i) => i !== number).map((i) => run.attempt(i));
  for (const other of others.slice(0, 4)) {
    facts.push([`attempt ${other.attempt}`, `${FATE_TEXT[other.fate]}, on ${other.worker}, ${momentText(other.fromS, 100)} to ${momentText(other.untilS, 100)}`]);
  }
  facts.push(["key", `${a.jobId}/${a.vertexId}/${a.subtask}/${a.attempt}@${a.epoch}`]);
  return { title: `${a.vertexName}, subtask ${a.subtask}${a.parallelism ? ` of ${countText(a.parallelism)}` : ""}`, facts, fate: a.fate };
}

// As far as the record tells: what ended shortly before it, or what came of it.
function attemptReason(run, a) {
  const endedWith = run.epochs.find(([epoch, , , , untilS]) => epoch === a.epoch && untilS !== null && untilS <= a.untilS + 0.001);
  const fault = run.faults.filter(([, atS, , victims]) => atS <= a.untilS + 0.001 && atS > a.fromS - 60 && victims.includes(a.worker)).pop();
  if (a.fate === "lost") return fault ? `${fault[0]} of its worker at ${momentText(fault[1], 100)}` : "its process or its TaskManager ended";
  if (a.fate === "canceled" || a.fate === "failed") {
    if (endedWith) return `the leader that deployed it (${endedWith[1]}, epoch ${endedWith[0]}) was lost at ${momentText(endedWith[4], 100)}, ${secondsText(a.untilS - endedWith[4])} before`;
    return fault ? `${fault[0]} at ${momentText(fault[1], 100)}` : null;
  }
  if (a.fate !== "rerun") return null;
  const reasons = resetReasons(run, a);
  if (reasons.length) return `its result was not used: ${reasons.join("; ")}`;
  return fault ? `its result was gone: ${fault[0]} of its worker at ${momentText(fault[1], 100)}` : "its result was not used";
}

function resetReasons(run, a) {
  const job = run.jobs.find((each) => each.id === a.jobId);
  const found = [];
  for (const report of job?.recoveries ?? []) {
    const vertex = (report.vertices ?? []).find((each) => each.vertex_id === a.vertexId);
    for (const reset of vertex?.resets ?? []) {
      found.push(`${resetText(reset.reason)} (${nounText(reset.subtasks ?? 0, "subtask")} of this vertex, epoch ${report.leader_epoch})`);
    }
  }
  return found;
}

function groupFacts(run, hit) {
  const counts = run.fates.map(() => 0);
  for (const i of hit.attempts) counts[run.columns.fate[i]] += 1;
  const facts = run.fates.map((fate, i) => [FATE_TEXT[fate], counts[i]]).filter(([, count]) => count)
    .map(([text, count]) => [text, nounText(count, "attempt")]);
  const first = run.workers[hit.rows[0]];
  const last = run.workers[hit.rows[hit.rows.length - 1]];
  const rack = run.racks[run.worker_racks[hit.rows[0]]];
  facts.unshift(["at", momentText(hit.atS, run.durationS)]);
  if (rack) facts.unshift(["rack", rack]);
  return { title: first === last ? first : `${first} … ${last} (${countText(hit.rows.length)})`, facts };
}

function workerFacts(run, row, atS) {
  const c = run.columns;
  const facts = [["slots", countText(c.slots[row])]];
  if (run.racks[run.worker_racks[row]]) facts.push(["rack", run.racks[run.worker_racks[row]]]);
  const span = (from, until) => `${momentText(run.seconds(from), 100)} to ${until === NEVER ? "the end" : momentText(run.seconds(until), 100)}`;
  for (let i = run.lifeStarts[row]; i < Math.min(run.lifeStarts[row + 1], run.lifeStarts[row] + 4); i += 1) {
    facts.push(["process ran", span(c.life_from[i], c.life_until[i])]);
  }
  for (let i = run.linkStarts[row]; i < Math.min(run.linkStarts[row + 1], run.linkStarts[row] + 5); i += 1) {
    facts.push([`with epoch ${c.link_epoch[i]}`, span(c.link_from[i], c.link_until[i])]);
  }
  if (atS !== undefined) facts.push(["here", `nothing ran at ${momentText(atS, run.durationS)}`]);
  return { title: run.workers[row], facts };
}

function epochFacts(run, [epoch, name, fromS, readyS, untilS, waits]) {
  const facts = [["led from", momentText(fromS, 10)], ["until", untilS === null ? "the end of the run" : momentText(untilS, 10)]];
  if (readyS !== null) facts.push(["ready after", secondsText(readyS - fromS)]);
  for (const [jobId, start, until] of waits.slice(0, 4)) {
    facts.push(["waited", `${secondsText((until ?? run.durationS) - start)} for the workers of ${run.jobNames.get(jobId) ?? jobId}`]);
  }
  return { title: `${name}, leader epoch ${epoch}`, facts };
}

function faultFacts([kind, atS, untilS, victims, detail]) {
  const shown = victims.slice(0, 12).join(", ");
  const facts = [["at", momentText(atS, 10)], ["victims", victims.length > 12 ? `${shown} and ${countText(victims.length - 12)} more` : shown || "–"]];
  if (untilS !== null) facts.push(["healed at", momentText(untilS, 10)]);
  if (detail) facts.push(["detail", detail]);
  return { title: `Fault: ${kind}`, facts };
}

function heldFacts(run, atS) {
  const held = heldAt(run, atS);
  return held && { title: "Held by all TaskManagers", facts: [["at", momentText(atS, run.durationS)],
    ["partitions", countText(held.partitions)], ["bytes", bytesText(held.bytes)]] };
}

function factsElement({ title, facts, fate }, palette) {
  const list = el("dl", {}, facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  return [el("h4", {}, fate ? fateSwatch(fate, palette) : null, title), list];
}
