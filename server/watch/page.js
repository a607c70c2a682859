// The page of a run. All data from the server are shown as text, never as markup.
"use strict";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function element(tag, content, className) {
  const made = document.createElement(tag);
  if (content instanceof Node) made.append(content);
  else made.textContent = content ?? "";
  if (className) made.className = className;
  return made;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

const number = (value) => value.toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const clock = (moment) => moment.slice(11, 19);

function drawKey(run) {
  const planned = run.planned_rounds ? ` of ${number(run.planned_rounds)}` : "";
  const entries = [["round", `${number(run.round)}${planned}`]];
  const losses = run.rounds.filter((each) => each.loss !== null);
  if (losses.length) entries.push(["loss", losses.at(-1).loss.toFixed(4)]);
  for (const [name, points] of Object.entries(run.accuracy))
    entries.push([`accuracy, ${name}`, percent(points.at(-1)[1])]);
  if (run.connected !== null) entries.push(["SuperNodes connected", number(run.connected)]);
  entries.push(["reports", number(run.reports)], ["failures", number(run.failures)]);
  if (run.epsilon !== null) entries.push(["ε spent", run.epsilon.toPrecision(3)]);
  entries.push(["received", bytes(run.bytes_up)], ["sent", bytes(run.bytes_down)]);
  byId("key").replaceChildren(...entries.map(([name, value]) => {
    const entry = element("div");
    entry.append(element("dt", name), element("dd", value));
    return entry;
  }));
}

function drawChart(id, curves, format) {
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) {
    byId(id).replaceChildren(element("p", "nothing yet", "note"));
    return;
  }
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => (right > left ? (100 * (value - left)) / (right - left) : 50 + 50 * (value - left));
  const y = (value) => (high > low ? 96 - (92 * (value - low)) / (high - low) : 50);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", curves.map((curve) => `${curve.name}: ${format(curve.points.at(-1)[1])}`).join(", "));
  const add = (d, className) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    path.setAttribute("class", className);
    svg.append(path);
  };
  for (const height of [4, 50, 96]) add(`M0 ${height}H100`, "grid");
  curves.forEach((curve, index) => {
    const drawn = curve.points.length > 1 ? curve.points : [[left - 1, curve.points[0][1]], [right + 1, curve.points[0][1]]];
    add(`M${drawn.map((p) => `${Math.min(100, Math.max(0, x(p[0])))} ${y(p[1])}`).join("L")}`, `line${index % 3}`);
  });
  const legend = element("div", "", "legend");
  curves.forEach((curve, index) => legend.append(element("span", `${curve.name} ${format(curve.points.at(-1)[1])}`, `line${index % 3}`)));
  const ends = element("div", "", "ends");
  ends.append(
    element("span", `round ${number(left)}`),
    element("span", `${format(low)} to ${format(high)}`),
    element("span", `round ${number(right)}`),
  );
  byId(id).replaceChildren(legend, svg, ends);
}

function row(head, cells) {
  const made = element("tr");
  const first = element("th", head);
  first.scope = "row";
  made.append(first);
  for (const [label, value, className] of cells) {
    const cell = element("td", value, className);
    cell.dataset.label = label;
    made.append(cell);
  }
  return made;
}

const STATE_CLASSES = { refused: "bad", resting: "warn", revoked: "quiet" };

function drawClients(run) {
  const counts = {};
  for (const client of run.clients) counts[client.state || "sound"] = (counts[client.state || "sound"] || 0) + 1;
  byId("summary").textContent = Object.entries(counts).map(([state, count]) => `${number(count)} ${state}`).join(", ");
  byId("clients").replaceChildren(...run.clients.map((client) => {
    const head = element("span", client.name);
    if (client.why) head.append(element("span", client.why, "why"));
    const last = client.last_round ? `${number(client.last_round)}, ${clock(client.last_report_time)}` : "none";
    return row(head, [
      ["state", client.state, STATE_CLASSES[client.state]],
      ["link", client.link, client.link === "away" ? "warn" : ""],
      ["last report", last],
      ["reports", number(client.reports)],
      ["failed", number(client.failures)],
      ["up", bytes(client.bytes_up)],
      ["down", bytes(client.bytes_down)],
      ["power and time of a round", client.power],
    ]);
  }));
  byId("more").textContent = run.more_clients ? `and ${number(run.more_clients)} more` : "";
}

function drawRounds(run) {
  byId("rounds").replaceChildren(...run.rounds.slice(-12).reverse().map((each) => {
    const head = element("span", number(each.round));
    if (each.problem) head.append(element("span", each.problem, "why"));
    return row(head, [
      ["ended", clock(each.time)],
      ["loss", each.loss === null ? "none" : each.loss.toFixed(4)],
      ["reports", number(each.reports)],
      ["refused", number(each.refused), each.refused ? "bad" : ""],
      ["absent", number(each.absent), each.absent ? "warn" : ""],
      ["up", bytes(each.bytes_up)],
      ["down", bytes(each.bytes_down)],
    ]);
  }));
}

function drawLog(run) {
  byId("log").replaceChildren(...[...run.messages].reverse().map((message) => {
    const line = element("li", "", { warning: "warn", error: "bad" }[message.level]);
    line.append(element("time", clock(message.time)), message.text);
    return line;
  }));
}

function draw(run) {
  document.title = `${run.name}: round ${run.round}`;
  byId("name").textContent = run.name;
  byId("state").textContent = run.state;
  byId("state").className = run.state;
  byId("waits").textContent = run.waits_for;
  byId("waits").hidden = !run.waits_for;
  byId("digest").textContent = run.digest || "none yet";
  drawKey(run);
  const losses = run.rounds.filter((each) => each.loss !== null).map((each) => [each.round, each.loss]);
  drawChart("loss", losses.length ? [{ name: "loss", points: losses }] : [], (value) => value.toFixed(4));
  const curves = Object.entries(run.accuracy).map(([name, points]) => ({ name, points }));
  drawChart("accuracy", curves, percent);
  drawClients(run);
  drawRounds(run);
  drawLog(run);
}

const events = new EventSource("events");
events.onmessage = (event) => {
  const run = JSON.parse(event.data);
  byId("contact").textContent = run.error ?? "";
  if (!run.error) draw(run);
};
events.onerror = () => { byId("contact").textContent = "no connection to the server; the data below are old"; };
