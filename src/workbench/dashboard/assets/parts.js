// The parts of every page. Texts come from records and errors, so they are only set as text, never as HTML.

export const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en-US");
export const dash = "–";
const charts = new Map();

export const count = (value) => (value === null || value === undefined ? dash : number.format(value));
export const rate = (value) => number.format(value < 100 ? Math.round(value * 10) / 10 : Math.round(value));
export const clock = (at) => (at ? new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : dash);

export function span(seconds) {
  if (seconds === null || seconds === undefined) return dash;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function bytes(value) {
  if (value === null || value === undefined) return dash;
  const unit = value < 1e3 ? ["bytes", 1] : value < 1e6 ? ["kB", 1e3] : value < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${number.format(Math.round((value / unit[1]) * 10) / 10)} ${unit[0]}`;
}

export function age(at) {
  const seconds = Date.now() / 1000 - at;
  return !at ? dash : seconds < 1 ? "just now" : `${span(seconds)} ago`;
}

export function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  if (content !== undefined) made.append(content);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export const link = (text, ...address) => element("a", text, { href: `#${address.map(encodeURIComponent).join("/")}` });

// Screen readers do not read unchanged content again, and a focused link keeps the focus.
export function replace(place, ...content) {
  const made = element("div");
  made.append(...content);
  if (place.innerHTML === made.innerHTML) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  place.replaceChildren(...made.childNodes);
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

export function fill(id, rows) {
  const labels = [...$(id).tHead.rows[0].cells].map((cell) => cell.textContent);
  const body = $(id).tBodies[0];
  replace(body, ...rows.map((row) => {
    const tr = element("tr");
    tr.append(...row.map((content, place) => element("td", content, { class: "wide", "data-label": labels[place] })));
    return tr;
  }));
  $(id).hidden = rows.length === 0;
}

const sizeOf = (place) => ({ width: Math.max(200, place.clientWidth), height: 170 });
const resized = new ResizeObserver((seen) => seen.forEach(({ target }) => charts.get(target.id)?.setSize(sizeOf(target))));

// A single batch is a point: without a range uPlot would show years. Versions are no times.
const ranges = { time: (_, low, high) => [Math.min(low, high - 60), high + 1], version: (_, low, high) => [Math.max(0, low - 1), high + 1] };

export function draw(id, title, series, at, { divisor = 1, axis = "time" } = {}) {
  const place = $(id);
  const known = series.some((line) => line.values.some((value) => value !== null));
  place.closest("figure").hidden = !known;
  if (!known) return;
  const data = [at, ...series.map((line) => line.values.map((value) => (value === null ? null : value / divisor)))];
  const last = series.map((line, index) => `${line.label} ${number.format(Math.round((data[index + 1].at(-1) ?? 0) * 10) / 10)}`);
  place.setAttribute("aria-label", `${title}; last: ${last.join(", ")}`);
  const old = charts.get(id);
  if (old && old.series.length === data.length) return old.setData(data);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const lines = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  // Versions are integers.
  const across = axis === "version" ? { ...lines, incrs: [1, 2, 5, 10, 20, 50, 100, 1000, 10000] } : lines;
  place.replaceChildren();
  resized.observe(place);
  charts.set(id, new uPlot({
    ...sizeOf(place),
    cursor: { y: false },
    axes: [across, { ...lines, size: 60 }],
    scales: {
      x: { time: axis === "time", range: ranges[axis] },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    series: [{ label: axis }, ...series.map((line, index) => ({ label: line.label, stroke: colour(index ? "--second" : "--first"), width: 2 }))],
  }, data, place));
}

export function forgetCharts() {
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
}
