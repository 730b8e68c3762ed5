// Shows the events of /events.

import { $, age, bytes, clock, count, dash, draw, element, fill, forgetCharts, link, rate, replace, span } from "./parts.js";
import { drilldowns } from "./drilldown.js";

let source = null;
let newest = null;
let hasMoved = false;
let states = new Map();

const lagTime = (records, seconds, atLeast) => (records ? (atLeast ? "≥ " : "") + span(seconds) : records === 0 ? "0 s" : dash);
// A page's address has a `%` of its own only if somebody has typed it.
const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
const sum = (reasons) => Object.values(reasons).reduce((all, one) => all + one, 0);

function line(query) {
  const tr = element("tr", undefined, { class: query.state });
  const head = element("th", undefined, { scope: "row" });
  head.append(link(query.name, query.id), element("span", query.source, { class: "source" }));
  const state = element("td", undefined, { "data-label": "state" });
  state.append(element("span", query.state, { class: `state ${query.state}` }));
  if (query.error) state.append(element("span", query.error, { class: "why" }));
  tr.append(head, state);
  const cells = {
    "in → processed": query.at ? `${rate(query.input_rate)} → ${rate(query.processing_rate)} /s` : dash,
    "batch duration": query.at ? span(query.milliseconds / 1000) : dash,
    "lag": count(query.lag_records),
    "lag in time": lagTime(query.lag_records, query.lag_seconds, query.lag_at_least),
    "rows written": count(query.written),
    "quarantined": query.written === null && !sum(query.quarantined) ? dash : count(sum(query.quarantined)),
    "late rows": count(query.late_rows),
    "state size": query.state_rows ? `${count(query.state_rows)} rows, ${bytes(query.state_bytes)}` : dash,
    "last write": age(query.committed),
  };
  for (const [label, text] of Object.entries(cells)) tr.append(element("td", text, { "data-label": label }));
  return tr;
}

function tableCell(queryId, table, small) {
  const cell = element("span", link(table.path, "table", queryId, table.id));
  if (small) cell.append(element("span", `${count(small.files)} small files`, { class: "small" }));
  return cell;
}

// The caption says how many rows are not listed.
function list(id, name, rows, found) {
  fill(id, rows);
  $(id).caption.textContent = rows.length < found ? `${name}: ${count(rows.length)} of ${count(found)}, search for others` : name;
}

function showDetails(query, details, small) {
  $("detail-name").textContent = query.name;
  $("detail-facts").textContent =
    `${query.state} · started by ${query.source || "an application"} · batch ${count(query.batch_id)} · ` +
    `${count(query.rows)} records read · ${query.sink}`;
  $("detail-error").hidden = !query.error;
  $("detail-error").replaceChildren(...(query.error ? [element("strong", query.error)] : []));
  if (query.error && query.remedy) $("detail-error").append(element("p", `Try: ${query.remedy}`));
  const points = details.points;
  draw("rates", "records a second", [{ label: "in", values: points.input_rate }, { label: "processed", values: points.processing_rate }], points.at);
  draw("durations", "batch duration in seconds", [{ label: "duration", values: points.milliseconds }], points.at, { divisor: 1000 });
  draw("lag-records", "lag in records", [{ label: "lag", values: points.lag_records }], points.at);
  draw("lag-seconds", "lag in seconds", [{ label: "lag", values: points.lag_seconds }], points.at);
  const phases = Object.entries(details.phases).sort((phase, other) => other[1] - phase[1]);
  fill("phases", phases.map(([name, milliseconds]) => [name, span(milliseconds / 1000)]));
  const hasTopics = details.search !== "" || details.found.topics > 1;
  $("search").hidden = !hasTopics;
  list("topics", "Topics", hasTopics ? details.topics.map((topic) => [
    link(topic.topic, query.id, topic.topic), count(topic.partitions), count(topic.lag_records), lagTime(topic.lag_records, topic.lag_seconds, topic.at_least),
  ]) : [], details.found.topics);
  list("partitions", "Partitions", details.partitions.map((partition) => [
    partition.topic, partition.partition, count(partition.end), count(partition.lag_records), lagTime(partition.lag_records, partition.lag_seconds, partition.at_least),
  ]), details.found.partitions);
  list("tables", "Tables", details.tables.map((table) => [tableCell(query.id, table, small[table.id]), count(table.rows), age(table.committed)]), details.found.tables);
  fill("reasons", Object.entries(query.quarantined).map(([reason, rows]) => [link(reason, "reason", query.id, reason), count(rows)]));
  fill("runs", details.runs.map((run) => [clock(run.began), clock(run.ended), run.error ?? ""]));
}

// The heading of each section, which gets the focus: for the keyboard and for screen readers.
const headings = { overview: "all", detail: "detail-name", table: "table-name", reason: "reason-name", jobs: "jobs-name" };

function show(update) {
  newest = update;
  const chosen = location.hash.slice(1);
  const [id, search = ""] = chosen.split("/").map(decoded);
  const query = update.queries.find((query) => query.id === id);
  const page = update.page?.address === chosen ? update.page : null;
  const section = query ? "detail" : page?.kind ?? "overview";
  for (const name of Object.keys(headings)) $(name).hidden = name !== section;
  $("empty").hidden = update.queries.length > 0;
  $("queries").hidden = update.queries.length === 0;
  if (query && update.details?.id === id && update.details.search === search) showDetails(query, update.details, update.small);
  if (page) drilldowns[page.kind](page);
  if (section === "overview") replace($("queries").tBodies[0], ...update.queries.map(line));
  if (hasMoved) $(headings[section]).focus();
  hasMoved = false;
  const name = section === "overview" ? "" : $(headings[section]).textContent;
  document.title = name ? `${name} – Topiclake` : "Topiclake: streams";
  const changes = update.queries.filter((query) => states.has(query.id) && states.get(query.id) !== query.state);
  if (changes.length) $("news").textContent = changes.map((query) => `${query.name} is ${query.state}`).join(", ");
  states = new Map(update.queries.map((query) => [query.id, query.state]));
}

function connect() {
  newest = null;
  forgetCharts();
  $("searched").value = decoded(location.hash.split("/")[1] ?? "");
  listen();
}

function listen() {
  source?.close();
  source = new EventSource(`events?page=${encodeURIComponent(location.hash.slice(1))}`);
  source.onopen = () => { $("connection").textContent = "live"; $("connection").className = ""; };
  source.onerror = () => {
    $("connection").textContent = "the dashboard does not answer: python -m workbench dashboard";
    $("connection").className = "lost";
    // After some answers a browser stops connecting. Connect again, to find a restarted server.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
  source.onmessage = (event) => show(JSON.parse(event.data));
}

let pause = null;
// A search is part of the address, and starts when the typing pauses.
$("searched").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => {
    const [query] = location.hash.split("/");
    history.replaceState(null, "", $("searched").value ? `${query}/${encodeURIComponent($("searched").value)}` : query);
    listen();
  }, 200);
});
addEventListener("hashchange", () => { hasMoved = true; connect(); });
// The ages grow, also without new events.
setInterval(() => newest && show(newest), 5000);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", connect);
connect();
