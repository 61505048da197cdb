// Elements and texts. Everything that comes from a run enters the page as text, never as markup.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function table(caption, columns, rows) {
  const head = columns.map((name) => el("th", { scope: "col" }, name));
  const body = rows.map((row) =>
    el("tr", {}, row.map((cell) => el("td", { class: isNumber(cell) ? "number" : String(cell).length < 16 ? "short" : null },
      cell instanceof Node ? cell : isNumber(cell) ? countText(cell) : String(cell)))));
  return el("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

function isNumber(value) {
  return typeof value === "number";
}

function countText(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Math.round(value * 1000) / 1000);
}

function nounText(count, noun) {
  return `${countText(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// A moment of the run, exact enough for the time that is visible.
function momentText(seconds, visibleS) {
  const digits = visibleS > 60 ? 1 : visibleS > 5 ? 2 : 3;
  if (seconds < 600 && visibleS !== Infinity) return `${seconds.toFixed(digits)} s`;
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  const rest = (seconds % 60).toFixed(digits).padStart(digits + 3, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) {
    bytes /= 1024;
    i += 1;
  }
  return `${i === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

// Even steps of 1, 2 or 5 times a power of ten, counted in `unit`: at most `countMax` in a span.
function niceStep(span, countMax, unit = 1) {
  const rough = span / unit / Math.max(1, countMax);
  const power = 10 ** Math.floor(Math.log10(rough));
  return unit * [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
}

// Even steps of a time axis: 1, 2 or 5 of a unit below a minute, then as clocks divide.
function timeStep(spanS, countMax) {
  const rough = spanS / Math.max(1, countMax);
  const clock = [10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  if (rough <= 5) return niceStep(spanS, countMax);
  return clock.find((step) => step >= rough) ?? niceStep(spanS, countMax, 86400);
}

// The largest unit in which values up to `most` are read.
function unitOf(text, most) {
  if (text === bytesText) return 1024 ** Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024));
  if (text === secondsText) return most >= 7200 ? 3600 : most >= 100 ? 60 : 1;
  return 1;
}
