// The pages of one table, of one reason of a quarantine, and of the jobs.

import { $, age, bytes, clock, count, dash, draw, element, fill, link, replace } from "./parts.js";

const code = (text) => element("code", text);
const command = (text) => element("pre", code(text));
const way = (id, page) => replace($(id), link(page.name, page.query));

function facts(id, pairs) {
  replace($(id), ...Object.entries(pairs).map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
}

function problem(id, ...reads) {
  const lines = reads.filter((read) => read?.problem).flatMap((read) => [element("strong", read.problem), element("p", read.remedy && `Try: ${read.remedy}`)]);
  $(id).hidden = lines.length === 0;
  replace($(id), ...lines);
}

function showTable(page) {
  const { table, read } = page;
  way("table-query", page);
  replace($("table-name"), table.path);
  problem("table-problem", read);
  $("table-waits").hidden = Boolean(read);
  $("table-read").hidden = !read || Boolean(read.problem);
  if ($("table-read").hidden) return;
  const newest = read.versions[0];
  facts("table-facts", {
    "version": count(read.version),
    "files": count(read.files),
    "size": bytes(read.bytes),
    "average file": read.files ? bytes(read.bytes / read.files) : dash,
    "rows": read.rows === null ? dash : (read.rows_at_most ? "≤ " : "") + count(read.rows),
    "newest commit": newest ? `${age(newest.at)}, by ${newest.who || "an unknown writer"}` : dash,
  });
  showSmall(read);
  draw("files", "files by version", [{ label: "files", values: read.points.files }], read.points.version, { axis: "version" });
  fill("versions", read.versions.map((version) => [
    count(version.version), clock(version.at), version.operation, count(version.added), count(version.removed), count(version.rows), bytes(version.bytes), version.who,
  ]));
}

function showSmall({ small, optimize }) {
  $("table-small").hidden = !small;
  if (!small) return;
  const text = `${count(small.files)} small files, ${bytes(small.bytes / small.files)} on average: each read opens all of them.`;
  replace($("table-small"), element("strong", text), element("p", "Merge them, in a notebook:"), command(optimize));
}

function showReason(page) {
  way("reason-query", page);
  replace($("reason-name"), page.reason);
  replace($("reason-meaning"), element("p", page.meaning), element("p", page.remedy));
  facts("reason-facts", {
    "records": count(page.rows),
    "first": page.is_older ? (page.first ? `before ${clock(page.first)}` : dash) : clock(page.first),
    "last": clock(page.last),
  });
  draw("course", "records in quarantine by batch", [{ label: "records", values: page.points.rows }], page.points.at);
  problem("reason-problem", ...page.tables.map((table) => table.read));
  $("reason-waits").hidden = page.tables.every((table) => table.read);
  const known = page.tables.filter((table) => table.read?.records);
  fill("counted", known.flatMap((table) => table.read.partitions ?? []).map((partition) => [partition.topic, count(partition.partition), count(partition.records)]));
  const records = known.flatMap((table) => table.read.records).sort((record, other) => other.at - record.at).slice(0, 20);
  fill("records", records.map((record) => [
    record.topic, `${record.partition} / ${record.offset}`, clock(record.timestamp), record.is_replayed ? "replayed" : "waits", record.detail ?? "", start(record.key), start(record.value),
  ]));
  $("reason-part").hidden = known.every((table) => table.read.is_all);
  fill("quarantines", page.tables.map((table) => [link(table.path, "table", page.query, table.id), count(table.rows)]));
  replace($("reason-commands"), ...page.tables.flatMap((table) => table.commands.map(command)));
}

// The first bytes, as text and as hex.
function start(first) {
  if (!first) return "null";
  const shown = element("span", code(first.text));
  const more = first.hex.length < 2 * first.length ? "… " : " ";
  shown.append(element("span", `0x${first.hex}${more}(${count(first.length)} bytes)`, { class: "source" }));
  return shown;
}

function showJobs({ read }) {
  problem("jobs-problem", read);
  $("jobs-waits").hidden = Boolean(read);
  fill("jobs-listed", (read?.jobs ?? []).map((job) => [job.key, job.description]));
  fill("jobs-runs", (read?.runs ?? []).map((run) => [
    run.id, run.job, clock(run.began), run.trigger, element("span", run.state, { title: run.reason }), run.duration, attempts(run),
  ]));
}

function attempts(run) {
  const shown = element("span");
  for (const { task, number, state, is_saved } of run.attempts) {
    const text = `${task}${number > 1 ? ` #${number}` : ""} (${state})`;
    shown.append(is_saved ? element("a", text, { href: `jobs/${run.id}/${task}/${number}` }) : text, " ");
  }
  return shown;
}

export const drilldowns = { table: showTable, reason: showReason, jobs: showJobs };
