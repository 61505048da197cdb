// One run: what happened in words, its measures, its timeline with controls, and its tables.

const MEASURES = [
  ["recovery_s", "recovery time", secondsText, "from the death of a leader to the first deployment under the next"],
  ["finish_s", "time to finish", secondsText, "from submission to the job's end, the longest"],
  ["work_rerun_s", "work spent in vain", secondsText, "task seconds of attempts whose result was not used"],
  ["subtasks_rerun", "subtasks run again", countText, "of which more than one attempt began"],
  ["finished_rerun", "finished work redone", countText, "subtasks that had finished and ran again"],
  ["partitions_held_max", "partitions held", countText, "by all TaskManagers, at most"],
  ["bytes_retained_max", "bytes retained", bytesText, "by all TaskManagers, at most"],
];

function measureText([key, , text], measures) {
  return measures[key] === null || measures[key] === undefined ? "–" : text(measures[key]);
}

// A scenario is named by its file; the line that runs it again has the whole path.
function scenarioName(summary) {
  return summary.scenario.split("/").pop().replace(/\.ya?ml$/, "");
}

function runName(summary) {
  const options = Object.entries(summary.options).map(([name, value]) => `${shortOption(name)}=${value}`);
  return [scenarioName(summary), summary.world, `seed ${summary.seed}`, ...options].join(" · ");
}

// The last words of an option's key are enough where all are listed in full elsewhere.
function shortOption(name) {
  return name.split(".").slice(-3).join(".");
}

function runHeader(summary) {
  const bad = summary.findings > 0 || !["finished"].includes(summary.outcome);
  const badge = el("span", { class: `badge ${summary.findings ? "bad" : bad ? "odd" : "good"}` },
    `${summary.findings ? "✖" : bad ? "◆" : "✔"} ${summary.outcome}`);
  const world = el("span", { class: "badge plain" }, summary.world === "real" ? "real cluster" : "simulated");
  const options = Object.entries(summary.options).map(([name, value]) => el("code", { class: "option" }, `${name} = ${value}`));
  return [
    el("div", { class: "run-line" }, el("h2", {}, scenarioName(summary)), world, el("span", { class: "badge plain" }, `seed ${summary.seed}`), badge),
    options.length ? el("p", { class: "options" }, options) : null,
    el("div", { class: "story" }, summary.story.map((sentence, i) => el("p", { class: i === 0 ? "lead" : null }, sentence))),
    reproduceBox(summary.line),
  ];
}

function reproduceBox(line) {
  const code = el("code", {}, line);
  const button = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = "copied";
    } catch (refused) {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  } }, "copy");
  return el("p", { class: "reproduce" }, el("span", {}, "run it again:"), code, button);
}

function findingsBox(run) {
  if (!run.findings.length) return null;
  const rows = run.findings.slice(0, 200).map(([name, atS, text]) => [name, momentText(atS, 10), text]);
  return el("section", { class: "findings", role: "alert" }, el("h3", {}, `✖ ${nounText(run.findings.length, "finding")}: an invariant did not hold`),
    table("Findings", ["invariant", "at", "what was seen"], rows));
}

function measureTiles(summary) {
  return el("dl", { class: "tiles" }, MEASURES.map((measure) =>
    el("div", { class: "tile", title: measure[3] }, el("dt", {}, measure[1]), el("dd", {}, measureText(measure, summary.measures)))));
}

function legend(run, timeline) {
  const palette = new Palette(document.documentElement);
  const buttons = run.fates.map((fate, i) => {
    if (!run.fateCounts[i]) return null;
    const button = el("button", { type: "button", class: "fate", "aria-pressed": "true", title: "show or hide", onclick: () => {
      if (!timeline.hidden.delete(fate)) timeline.hidden.add(fate);
      button.setAttribute("aria-pressed", String(!timeline.hidden.has(fate)));
      timeline.schedule();
    } }, fateSwatch(fate, palette), FATE_TEXT[fate], el("b", {}, countText(run.fateCounts[i])));
    return button;
  });
  return el("div", { class: "legend", role: "group", "aria-label": "Fates of attempts" }, buttons);
}

function rowControls(run, timeline) {
  const show = () => timeline.showRows(new RowSet(run, filter.value, search.value));
  const filter = el("select", { "aria-label": "Which TaskManagers", onchange: show },
    Object.entries(ROW_FILTERS).map(([value, text]) => el("option", { value }, text)));
  const search = el("input", { type: "search", placeholder: "name or rack", "aria-label": "Name or rack of TaskManagers", oninput: show });
  const { time } = timeline.view;
  const middle = () => (time.fromS + time.untilS) / 2;
  const button = (text, label, action) => el("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  return el("div", { class: "controls" }, el("label", {}, "rows ", filter), search,
    el("span", { class: "buttons" }, button("−", "Show more time (-)", () => time.zoom(1 / 1.5, middle())), button("+", "Show less time (+)", () => time.zoom(1.5, middle())),
      button("rows −", "Lower rows ([)", () => timeline.zoomRows(1 / 1.5)), button("rows +", "Higher rows (])", () => timeline.zoomRows(1.5)),
      button("whole run", "Show the whole run (0)", () => showWhole(timeline))));
}

function strips(run) {
  const sample = (name, text) => el("span", { class: `key ${name}` }, text);
  return el("p", { class: "keys" }, sample("linked", "registered with a leader"), sample("apart", "alive, without a leader"),
    sample("dead", "process not running"), sample("waiting", "waits for workers"), sample("leaderless", "no leader"),
    el("span", { class: "hint" }, "Drag to move, Ctrl + wheel to zoom, Alt + wheel for the rows’ height, n and p to step through what happened."));
}

function timelineSection(run, time) {
  const details = el("div", { class: "details", "aria-live": "polite" }, el("p", { class: "hint" }, "Click an attempt, a fault or a leader for details."));
  const timeline = new Timeline(run, time, (hit) => {
    const facts = hit && hitFacts(run, hit);
    details.replaceChildren(...(facts ? factsElement(facts, timeline.palette) : [el("p", { class: "hint" }, "Click an attempt, a fault or a leader for details.")]));
  });
  listenToPointer(timeline);
  listenToKeys(timeline);
  const section = el("section", { class: "timeline-section" }, legend(run, timeline), rowControls(run, timeline), timeline.element, strips(run), details);
  return { section, timeline };
}

// The same facts as text, for those who cannot see the drawing, and for searching.
function tablesSection(run) {
  const faults = run.faults.map((fault) => [fault[0], momentText(fault[1], 10), fault[2] === null ? "–" : momentText(fault[2], 10),
    fault[3].length > 8 ? `${countText(fault[3].length)} processes` : fault[3].join(", "), fault[4]]);
  const epochs = run.epochs.map(([epoch, name, fromS, readyS, untilS, waits]) => [epoch, name, momentText(fromS, 10), readyS === null ? "–" : secondsText(readyS - fromS),
    waits.length ? secondsText(Math.max(...waits.map((wait) => (wait[2] ?? run.durationS) - wait[1]))) : "–", untilS === null ? "–" : momentText(untilS, 10)]);
  return el("section", { class: "tables" }, el("div", { class: "columns" },
    faults.length ? table("Faults", ["kind", "at", "healed", "victims", "detail"], faults) : null,
    epochs.length ? table("Leaders", ["epoch", "JobManager", "from", "ready after", "longest wait", "until"], epochs) : null),
  notKeptTable(run),
  el("p", { class: "fine" }, `${nounText(run.attemptCount, "attempt")} on ${nounText(run.workers.length, "TaskManager")} in ${secondsText(run.durationS)}; `
    + `${run.digest ? `trace ${run.digest}, ${nounText(run.events, "event")}, ` : ""}${secondsText(run.wall_s)} of real time.`));
}

function notKeptTable(run) {
  const common = ["kept", "repeated", "running"].map((fate) => run.fates.indexOf(fate));
  const numbers = [];
  let count = 0;
  for (let i = 0; i < run.attemptCount; i += 1) {
    if (common.includes(run.columns.fate[i])) continue;
    count += 1;
    if (numbers.length < 200) numbers.push(i);
  }
  if (!count) return null;
  const rows = numbers.map((i) => {
    const a = run.attempt(i);
    return [`${a.vertexName} ${a.subtask}`, a.attempt, FATE_TEXT[a.fate], a.worker, momentText(a.fromS, 10), secondsText(a.untilS - a.fromS), attemptReason(run, a) ?? ""];
  });
  const title = count > numbers.length ? `Attempts that were not kept (the first ${numbers.length} of ${countText(count)})` : `Attempts that were not kept (${countText(count)})`;
  return el("details", {}, el("summary", {}, title), table("Attempts that were not kept", ["subtask", "attempt", "fate", "worker", "from", "ran", "why"], rows));
}
