// Recovery reports: what a failover cost a job, in the words of the JobManager itself.
// A report is the JSON form of the message RecoveryReport; numbers of 64 bits are strings there.

const LISTED_MAX = 40;

function number64(value) {
  return Number(value ?? 0);
}

function resetText(reason) {
  return String(reason ?? "unknown").replace(/^RESET_REASON_/, "").replaceAll("_", " ").toLowerCase();
}

function returnText(kind) {
  return String(kind ?? "unspecified").replace(/^WORKER_RETURN_KIND_/, "").replaceAll("_", " ").toLowerCase();
}

function recoverySection(run) {
  const blocks = run.jobs.flatMap((job) => job.recoveries.map((report) => recoveryBlock(run, job, report)));
  if (!blocks.length) return null;
  return el("section", {}, el("h3", {}, "Recovery reports"), blocks);
}

function recoveryBlock(run, job, report) {
  const notes = [];
  if (report.restarted_reason) notes.push(`The job started from its beginning: ${report.restarted_reason}`);
  if (report.early_end) notes.push("The wait ended early: nothing more was awaited.");
  if (!report.complete) notes.push("This recovery did not complete.");
  notes.push(...(report.log_findings ?? []));
  return el("article", { class: "recovery" },
    el("h4", {}, `${job.name}: recovered by leader epoch ${number64(report.leader_epoch)}`),
    el("p", { class: "facts-line" }, recoveryLine(report)),
    phaseBar(report),
    notes.length ? el("ul", {}, notes.map((note) => el("li", {}, note))) : null,
    el("div", { class: "columns" }, vertexTable(report), workerTable(report)));
}

function recoveryLine(report) {
  const first = number64(report.first_deployment_ms);
  return [
    `${nounText(number64(report.events_replayed), "event")} replayed`,
    `${bytesText(number64(report.bytes_kept))} kept`,
    first > 0 ? `first deployment ${secondsText(first / 1000)} after the process started` : "nothing was deployed",
  ].join(" · ");
}

// The steps side by side, as long as they took; short ones keep a visible width.
function phaseBar(report) {
  const phases = (report.phases ?? []).map((phase) => [phase.name, number64(phase.duration_ms)]);
  if (!phases.length) return null;
  const total = phases.reduce((sum, phase) => sum + phase[1], 0);
  const parts = phases.map(([name, ms]) =>
    el("li", { class: `phase phase-${name}`, style: `flex-grow:${Math.max(ms, 1)}`, title: `${name}: ${secondsText(ms / 1000)}` },
      el("b", {}, name), el("span", {}, secondsText(ms / 1000))));
  return el("ol", { class: "phases", "aria-label": `Steps of the recovery, ${secondsText(total / 1000)} in all` }, parts);
}

function vertexTable(report) {
  const vertices = report.vertices ?? [];
  if (!vertices.length) return null;
  const rows = vertices.map((v) => {
    const resets = (v.resets ?? []).map((reset) => `${countText(reset.subtasks ?? 0)}: ${resetText(reset.reason)}`);
    return [v.name || v.vertex_id, v.kept ?? 0, v.adopted ?? 0, resets.join("; ") || "none", v.unfinished ?? 0];
  });
  return table("What became of the subtasks", ["vertex", "kept", "of these adopted", "reset, and why", "unfinished"], rows);
}

function workerTable(report) {
  const workers = report.workers ?? [];
  const kinds = new Map();
  for (const worker of workers) {
    const kind = returnText(worker.kind);
    const entry = kinds.get(kind) ?? { count: 0, lastMs: -1, offered: 0, accepted: 0, names: [] };
    entry.count += 1;
    entry.lastMs = Math.max(entry.lastMs, number64(worker.after_ms ?? 0));
    entry.offered += worker.partitions_offered ?? 0;
    entry.accepted += worker.partitions_accepted ?? 0;
    entry.names.push(worker.worker_id);
    kinds.set(kind, entry);
  }
  const rows = [...kinds].map(([kind, entry]) => [kind, entry.count, entry.lastMs < 0 ? "–" : secondsText(entry.lastMs / 1000),
    entry.offered, entry.accepted, namesCell(entry.names)]);
  if (!rows.length) return null;
  return table("Previous workers", ["came back", "workers", "last after", "partitions offered", "accepted", "which"], rows);
}

function namesCell(names) {
  if (names.length <= 3) return names.join(", ");
  const more = names.length > LISTED_MAX ? ` and ${countText(names.length - LISTED_MAX)} more` : "";
  return el("details", {}, el("summary", {}, nounText(names.length, "worker")), names.slice(0, LISTED_MAX).join(", ") + more);
}
