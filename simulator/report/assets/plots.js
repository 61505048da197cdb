// Small plots of what was measured, in SVG: a point for each run, a line through the medians.
// Worlds and second options differ in shape and colour.

const SERIES_MARKS = ["circle", "square", "triangle", "diamond", "ring", "bar"];

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function measurePlot(measure, groups, series, valueOf) {
  const [key, name, text] = measure;
  const [width, height, left, right, top, bottom] = [330, 190, 58, 12, 12, 34];
  const all = groups.flatMap((group) => series.flatMap((line) => valueOf(group, line, key)));
  const most = Math.max(...all, 0) || 1;
  const x = (i, s) => left + ((i + 0.5 + (s - (series.length - 1) / 2) * 0.16) / groups.length) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot-small", role: "img", "aria-label": plotText(measure, groups, series, valueOf) });
  const fine = niceStep(most, 4, unitOf(text, most));
  const step = text === countText ? Math.max(1, fine) : fine;
  for (let value = 0; value <= most * 1.001; value += step) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
      svg("text", { x: left - 6, y: y(value) + 3.5, "text-anchor": "end" }, value ? text(value).replace(/\.0 /, " ") : "0"));
  }
  const every = Math.ceil(groups.length / 6);
  groups.forEach((group, i) => {
    if (i % every === 0) picture.append(svg("text", { x: x(i, (series.length - 1) / 2), y: height - bottom + 15, "text-anchor": "middle" }, clippedText(group, 16)));
  });
  series.forEach((line, s) => {
    const points = [];
    groups.forEach((group, i) => {
      const values = valueOf(group, line, key);
      for (const value of values) picture.append(svg("path", { d: markPath(s, x(i, s), y(value), 3), class: `mark series-${s % 6}` }));
      if (values.length) points.push([x(i, s), y(median(values))]);
    });
    if (points.length > 1) picture.append(svg("polyline", { points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" "), class: `median series-${s % 6}` }));
    for (const [px, py] of points) picture.append(svg("line", { x1: px - 7, x2: px + 7, y1: py, y2: py, class: `level series-${s % 6}` }));
  });
  return el("figure", { class: "small" }, el("figcaption", {}, name), picture);
}

function plotText(measure, groups, series, valueOf) {
  const told = groups.flatMap((group) => series.map((line) => {
    const values = valueOf(group, line, measure[0]);
    return values.length ? `${group}${line ? `, ${line}` : ""}: ${measure[2](median(values))}` : null;
  })).filter(Boolean);
  return `${measure[1]}, medians: ${told.slice(0, 40).join("; ")}`;
}

function clippedText(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function markPath(series, x, y, r) {
  switch (SERIES_MARKS[series % 6]) {
    case "square": return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case "triangle": return `M${x} ${y - r * 1.2}l${r * 1.2} ${r * 2.2}h${-r * 2.4}z`;
    case "diamond": return `M${x} ${y - r * 1.4}l${r * 1.4} ${r * 1.4}l${-r * 1.4} ${r * 1.4}l${-r * 1.4} ${-r * 1.4}z`;
    case "bar": return `M${x - r * 1.4} ${y - 1}h${r * 2.8}v2h${-r * 2.8}z`;
    default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }
}

function seriesLegend(title, series) {
  if (series.length < 2) return null;
  return el("p", { class: "series-legend" }, `${title}: `, series.map((line, s) => {
    const mark = svg("svg", { viewBox: "0 0 12 12", width: "12", height: "12", "aria-hidden": "true" }, svg("path", { d: markPath(s, 6, 6, 4), class: `mark series-${s % 6}` }));
    return el("span", {}, mark, line);
  }));
}
