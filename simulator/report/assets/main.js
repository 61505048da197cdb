// Puts the page together. The address keeps what is shown: #run=1&beside=2&from=3.5&until=9&theme=dark

const index = JSON.parse(document.getElementById("report-index").textContent).map((run, number) => ({ ...run, number }));
const shown = { timelines: [], time: null };

function addressed() {
  return new URLSearchParams(location.hash.slice(1));
}

function keepAddress(changes) {
  const parameters = addressed();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) parameters.delete(name);
    else parameters.set(name, value);
  }
  history.replaceState(null, "", `#${parameters}`);
}

function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  redraw();
}

function redraw() {
  for (const timeline of shown.timelines) timeline.schedule();
}

function themeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  return el("button", { type: "button", onclick: () => {
    const theme = dark() ? "light" : "dark";
    keepAddress({ theme });
    showTheme(theme);
  } }, "light / dark");
}

function picker(label, value, withNone, onPick) {
  const options = index.filter((run) => run.drawn).map((run) =>
    el("option", { value: run.number, selected: run.number === value }, `${run.number + 1}: ${runName(run)}${run.findings ? " ✖" : ""}`));
  if (withNone) options.unshift(el("option", { value: "", selected: value === null }, "nothing"));
  return el("label", { class: "picker" }, `${label} `, el("select", { onchange: (event) => onPick(event.target.value === "" ? null : Number(event.target.value)) }, options));
}

async function showRuns(number, beside) {
  const holder = document.getElementById("runs");
  const numbers = beside === null ? [number] : [number, beside];
  const runs = await Promise.all(numbers.map(readRun));
  const time = new TimeWindow(Math.max(...runs.map((run) => run.durationS)));
  const parts = runs.map((run, i) => timelineSection(run, time));
  shown.timelines = parts.map((part) => part.timeline);
  const pickers = index.length > 1
    ? el("div", { class: "pickers" }, picker("Shown:", number, false, (picked) => pick(picked, beside)), picker("Beside it:", beside, true, (picked) => pick(number, picked)))
    : null;
  const summaries = numbers.map((each) => index[each]);
  const named = (i) => (runs.length > 1 ? el("h3", { class: "whose" }, runName(summaries[i])) : null);
  holder.replaceChildren(...[pickers,
    el("div", { class: "pair" }, runs.map((run, i) => runHead(run, summaries[i]))),
    ...parts.flatMap((part, i) => [named(i), part.section]),
    ...runs.flatMap((run, i) => [named(i), recoverySection(run), tablesSection(run)])].filter(Boolean));
  for (const row of document.querySelectorAll("tr[data-run]")) row.classList.toggle("shown", numbers.includes(Number(row.dataset.run)));
  const address = addressed();
  if (address.has("from") && address.has("until")) time.show(Number(address.get("from")), Number(address.get("until")));
  time.listeners.push(() => keepAddress({ from: time.fromS.toFixed(3), until: time.untilS.toFixed(3) }));
  for (const timeline of shown.timelines) timeline.draw();
}

function runHead(run, summary) {
  return el("div", { class: "run" }, runHeader(summary), findingsBox(run), measureTiles(summary));
}

async function pick(number, beside = null) {
  keepAddress({ run: number, beside, from: null, until: null });
  await showRuns(number, beside);
}

function whole(name) {
  const value = addressed().get(name);
  const number = value === null ? NaN : Number(value);
  return index[number]?.drawn ? number : null;
}

async function main() {
  showTheme(addressed().get("theme"));
  document.getElementById("page-title").textContent = "Holdover · what the failure cost";
  document.getElementById("page-tools").append(themeButton(), el("button", { type: "button", onclick: () => print() }, "print"));
  const page = document.getElementById("page");
  if (index.length > 1) page.append(comparisonSection(index, (number) => pick(number).then(() => document.getElementById("runs").scrollIntoView())));
  page.append(el("div", { id: "runs" }));
  await showRuns(whole("run") ?? (index.find((run) => run.findings) ?? index.find((run) => run.drawn)).number, whole("beside"));
  new ResizeObserver(redraw).observe(page);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => shown.timelines.forEach((timeline) => timeline.draw()));
  document.documentElement.dataset.state = "ready";
  document.documentElement.dataset.readyMs = String(Math.round(performance.now()));
}

function showTrouble(error) {
  const box = document.getElementById("trouble");
  box.hidden = false;
  box.textContent = `This report could not be drawn: ${error?.message ?? error}. A browser of 2023 or newer is needed.`;
  document.documentElement.dataset.state = "failed";
}

addEventListener("error", (event) => showTrouble(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => showTrouble(event.reason));
main();
