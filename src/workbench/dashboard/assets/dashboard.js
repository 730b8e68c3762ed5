// Shows what /events tells. Texts come from records and errors, so they are only ever set as text.

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en-US");
const dash = "–";
const charts = new Map();
let source = null;
let newest = null;
let states = new Map();

const count = (value) => (value === null || value === undefined ? dash : number.format(value));
const rate = (value) => number.format(value < 100 ? Math.round(value * 10) / 10 : Math.round(value));
const clock = (at) => (at ? new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : dash);

function span(seconds) {
  if (seconds === null || seconds === undefined) return dash;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

function bytes(value) {
  if (!value) return "";
  const unit = value < 1e6 ? ["kB", 1e3] : value < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${number.format(Math.round((value / unit[1]) * 10) / 10)} ${unit[0]}`;
}

const age = (at) => (at ? `${span(Math.max(0, Date.now() / 1000 - at))} ago` : dash);
const lagTime = (one, seconds, atLeast) => (one ? (atLeast ? "≥ " : "") + span(seconds) : one === 0 ? "0 s" : dash);
const sum = (reasons) => Object.values(reasons).reduce((all, one) => all + one, 0);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function fill(id, rows) {
  const cells = (row) => row.map((text) => element("td", text, { class: "wide" }));
  const body = $(id).tBodies[0];
  body.replaceChildren(...rows.map((row) => { const tr = element("tr"); tr.append(...cells(row)); return tr; }));
  $(id).hidden = rows.length === 0;
}

function line(query) {
  const tr = element("tr", undefined, { class: query.state });
  const head = element("th", undefined, { scope: "row" });
  head.append(element("a", query.name, { href: `#${query.id}` }), element("span", query.source, { class: "source" }));
  const state = element("td", undefined, { "data-label": "state" });
  state.append(element("span", query.state, { class: `state ${query.state}` }));
  if (query.error) state.append(element("span", query.error, { class: "why" }));
  tr.append(head, state);
  const cells = {
    "in → processed": query.at ? `${rate(query.input_rate)} → ${rate(query.processing_rate)} /s` : dash,
    "batch took": query.at ? span(query.milliseconds / 1000) : dash,
    "lag": count(query.lag_records),
    "lag in time": lagTime(query.lag_records, query.lag_seconds, query.lag_at_least),
    "rows written": count(query.written),
    "quarantined": query.written === null && !sum(query.quarantined) ? dash : count(sum(query.quarantined)),
    "late rows": count(query.late_rows),
    "state size": query.state_rows ? `${count(query.state_rows)} rows, ${bytes(query.state_bytes)}` : dash,
    "table is from": age(Math.max(0, ...query.tables.filter((one) => !one.is_quarantine).map((one) => one.committed))),
  };
  for (const [label, text] of Object.entries(cells)) tr.append(element("td", text, { "data-label": label }));
  return tr;
}

const sizeOf = (place) => ({ width: Math.max(200, place.clientWidth), height: 170 });
const resized = new ResizeObserver((seen) => seen.forEach(({ target }) => charts.get(target.id)?.setSize(sizeOf(target))));

function draw(id, title, series, at, divisor = 1) {
  const place = $(id);
  const known = series.some((one) => one.values.some((value) => value !== null));
  place.closest("figure").hidden = !known;
  if (!known) return;
  const data = [at, ...series.map((one) => one.values.map((value) => (value === null ? null : value / divisor)))];
  const last = series.map((one, index) => `${one.label} ${number.format(Math.round((data[index + 1].at(-1) ?? 0) * 10) / 10)}`);
  place.setAttribute("aria-label", `${title}; last: ${last.join(", ")}`);
  const old = charts.get(id);
  if (old && old.series.length === data.length) return old.setData(data);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  place.replaceChildren();
  resized.observe(place);
  charts.set(id, new uPlot({
    ...sizeOf(place),
    cursor: { y: false },
    axes: [axis, { ...axis, size: 60 }],
    scales: {
      // One batch is a point, and no reason to show years.
      x: { range: (_, low, high) => [Math.min(low, high - 60), high + 1] },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    series: [{}, ...series.map((one, index) => ({ label: one.label, stroke: colour(index ? "--second" : "--first"), width: 2 }))],
  }, data, place));
}

function showDetails(query, details) {
  $("detail-name").textContent = query.name;
  $("detail-facts").textContent =
    `${query.state} · started by ${query.source || "an application"} · batch ${count(query.batch_id)} · ` +
    `${count(query.rows)} records read · ${query.sink}`;
  $("detail-error").hidden = !query.error;
  $("detail-error").replaceChildren(...(query.error ? [element("strong", query.error)] : []));
  if (query.error && query.remedy) $("detail-error").append(element("p", `Try: ${query.remedy}`));
  const points = details.points;
  draw("rates", "records a second", [{ label: "in", values: points.input_rate }, { label: "processed", values: points.processing_rate }], points.at);
  draw("durations", "batch duration in seconds", [{ label: "took", values: points.milliseconds }], points.at, 1000);
  draw("lag-records", "lag in records", [{ label: "lag", values: points.lag_records }], points.at);
  draw("lag-seconds", "lag in seconds", [{ label: "lag", values: points.lag_seconds }], points.at);
  const phases = Object.entries(details.phases).sort((one, other) => other[1] - one[1]);
  fill("phases", phases.map(([name, took]) => [name, span(took / 1000)]));
  fill("partitions", details.partitions.map((one) => [
    one.topic, one.partition, count(one.end), count(one.lag_records), lagTime(one.lag_records, one.lag_seconds, one.at_least),
  ]));
  fill("tables", query.tables.map((one) => [one.path, count(one.rows), age(one.committed)]));
  fill("reasons", Object.entries(query.quarantined).map(([reason, rows]) => [reason, count(rows)]));
  fill("runs", details.runs.map((one) => [clock(one.began), clock(one.ended), one.error ?? ""]));
}

function show(told) {
  newest = told;
  const chosen = location.hash.slice(1);
  const query = told.queries.find((one) => one.id === chosen);
  $("overview").hidden = Boolean(query);
  $("detail").hidden = !query;
  $("empty").hidden = told.queries.length > 0;
  $("queries").hidden = told.queries.length === 0;
  if (query && told.details && told.details.id === chosen) showDetails(query, told.details);
  if (!query) replaceLines(told.queries);
  const news = told.queries.filter((one) => states.has(one.id) && states.get(one.id) !== one.state);
  if (news.length) $("news").textContent = news.map((one) => `${one.name} is ${one.state}`).join(", ");
  states = new Map(told.queries.map((one) => [one.id, one.state]));
}

function replaceLines(queries) {
  // Who stands on a link with the keyboard goes on standing there.
  const focused = document.activeElement?.getAttribute("href");
  $("queries").tBodies[0].replaceChildren(...queries.map(line));
  if (focused) $("queries").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function connect() {
  source?.close();
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  source = new EventSource(`events?query=${encodeURIComponent(location.hash.slice(1))}`);
  source.onopen = () => { $("connection").textContent = "live"; $("connection").className = ""; };
  source.onerror = () => {
    $("connection").textContent = "the dashboard does not answer: python -m workbench dashboard";
    $("connection").className = "lost";
    // A browser gives up after some answers; a server that is started again is found all the same.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
  source.onmessage = (event) => show(JSON.parse(event.data));
}

addEventListener("hashchange", connect);
// Ages grow while nothing else changes.
setInterval(() => newest && show(newest), 5000);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", connect);
connect();
