// Several runs: what was measured in each, and against the options that were varied.

const RUNS_LISTED_MAX = 1000;

function comparisonSection(index, pick) {
  return el("section", { class: "comparison" }, el("h2", {}, `${nounText(index.length, "run")}${tallyText(index)}`), plotsBox(index), summaryTable(index, pick));
}

function tallyText(index) {
  const bad = index.filter((run) => run.findings).length;
  return bad ? `, ${bad} with findings` : ", no findings";
}

// What runs differ by: options first, then scenario and world.
function differences(index) {
  const options = [...new Set(index.flatMap((run) => Object.keys(run.options)))];
  const facets = options.map((name) => ({ name: shortOption(name), valueOf: (run) => run.options[name] ?? "–" }));
  facets.push({ name: "scenario", valueOf: scenarioName }, { name: "world", valueOf: (run) => run.world });
  return facets.filter((facet) => new Set(index.map(facet.valueOf)).size > 1)
    .map((facet) => ({ ...facet, values: [...new Set(index.map(facet.valueOf))] }));
}

function plotsBox(index) {
  const facets = differences(index);
  const byGroup = facets[0] ?? { name: "scenario", valueOf: scenarioName, values: [scenarioName(index[0])] };
  const rest = facets.slice(1);
  const lineOf = (run) => rest.map((facet) => facet.valueOf(run)).join(", ");
  const series = [...new Set(index.map(lineOf))];
  const valueOf = (group, line, key) =>
    index.filter((run) => byGroup.valueOf(run) === group && lineOf(run) === line && run.measures[key] !== null).map((run) => run.measures[key]);
  const plots = MEASURES.filter(([key]) => index.some((run) => run.measures[key]))
    .map((measure) => measurePlot(measure, byGroup.values, series, valueOf));
  return el("div", {}, facets.length ? el("p", { class: "hint" }, `Against ${byGroup.name}; a mark for each run, a line for medians.`) : null,
    seriesLegend(rest.map((facet) => facet.name).join(", "), series), el("div", { class: "plots" }, plots));
}

function summaryTable(index, pick) {
  const columns = ["run", ...differences(index).map((facet) => facet.name), "seed", "outcome", ...MEASURES.map((measure) => measure[1])];
  const facets = differences(index);
  const keys = [(run) => run.number, ...facets.map((facet) => facet.valueOf), (run) => run.seed, (run) => -run.findings,
    ...MEASURES.map(([key]) => (run) => run.measures[key] ?? -1)];
  const body = el("tbody");
  const fill = (runs) => body.replaceChildren(...runs.slice(0, RUNS_LISTED_MAX).map((run) => summaryRow(run, facets, pick)));
  let sorted = { by: null, down: false };
  const heads = columns.map((name, i) => el("th", { scope: "col" }, el("button", { type: "button", class: "sort", onclick: () => {
    sorted = { by: i, down: sorted.by === i && !sorted.down };
    const order = sorted.down ? -1 : 1;
    fill([...index].sort((a, b) => order * compare(keys[i](a), keys[i](b))));
    heads.forEach((head, j) => head.setAttribute("aria-sort", j === i ? (sorted.down ? "descending" : "ascending") : "none"));
  } }, name)));
  fill([...index].sort((a, b) => b.findings - a.findings || a.number - b.number));
  return el("div", { class: "table-box tall", tabindex: "0", role: "region", "aria-label": "All runs" },
    el("table", { class: "runs" }, el("thead", {}, el("tr", {}, heads)), body));
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function summaryRow(run, facets, pick) {
  const open = run.drawn
    ? el("button", { type: "button", class: "pick", "data-run": run.number, onclick: () => pick(run.number) }, `show ${run.number + 1}`)
    : el("span", { title: "The report would be too large with every timeline" }, `${run.number + 1}`);
  return el("tr", { class: run.findings ? "bad" : null, "data-run": run.number }, el("td", {}, open), facets.map((facet) => el("td", {}, facet.valueOf(run))),
    el("td", { class: "number" }, String(run.seed)), el("td", {}, `${run.findings ? "✖ " : ""}${run.outcome}`),
    MEASURES.map((measure) => el("td", { class: "number" }, measureText(measure, run.measures))));
}
