// Requests status.json once a second and displays it. Job data is inserted as text, never as markup: textContent only.
"use strict";

const EVERY_MS = 1000;
const ANSWER_MS = 5000;
const NONE = "–";
const BADGES = { waiting: "wait", initialising: "wait", training: "run", finishing: "run", done: "good", failed: "bad" };
const ROLES = { worker: "", client: "client " };

const at = (id) => document.getElementById(id);
const text = (id, value) => { at(id).textContent = value; };
const show = (id, wanted) => { at(id).hidden = !wanted; };
const known = (value) => value !== null && value !== undefined;
const count = (value) => Math.round(value).toLocaleString("en-US");
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : NONE);
const percent = (value, digits = 2) => `${(100 * value).toFixed(digits)} %`;

function figures(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

function short(value, digits = 3, space = "") { // 12,000 is formatted as 12k
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(digits))}${space}${unit}`;
  }
  const small = value !== 0 && Math.abs(value) < 1e-4;
  return (small ? value.toExponential(0) : String(Number(value.toPrecision(digits)))) + space;
}

const tick = (value) => short(value, 2);

function duration(seconds) {
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const ago = (seconds) => (seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds));

function element(name, content, kind) {
  const made = document.createElement(name);
  if (content !== undefined) made.textContent = content;
  if (kind) made.className = kind;
  return made;
}

function drawn(parent, name, attributes, content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== undefined) made.textContent = content;
  parent.append(made);
  return made;
}

// -- head and numbers -----------------------------------------------------------------------------------------------

function share(s) {
  const batch = s.batch;
  const limits = batch ? [[batch.iteration, batch.iterations], [s.elapsed_s, s.wall_limit_s]]
    : [[s.samples, s.total_samples], [s.elapsed_s, s.wall_limit_s]];
  const found = limits.find(([, whole]) => whole);
  return found ? Math.min(1, found[0] / found[1]) : null;
}

function showHead(s) {
  document.title = `${s.job}: ${s.state}`;
  text("job", s.job);
  text("state", s.state);
  at("state").className = `badge ${BADGES[s.state] || ""}`;
  text("why", s.reason || (s.waiting_for ? `waiting for ${s.waiting_for}` : ""));
  at("why").className = s.state === "failed" ? "bad" : "";
  const done = share(s);
  show("progress", done !== null && (done > 0 || s.state !== "waiting"));
  if (done === null) return;
  at("bar").value = done;
  at("bar").className = BADGES[s.state];
  text("share", percent(done, 0));
  const of = (value, whole, what) => `${count(value)}${whole ? ` of ${count(whole)}` : ""} ${what}`;
  text("done", s.batch ? of(s.batch.iteration, s.batch.iterations, "iterations")
    : s.total_samples ? of(s.samples, s.total_samples, "samples")
      : `${duration(s.elapsed_s)} of ${duration(s.wall_limit_s)}`);
}

// How late pushes are: in lockstep the rounds that they come after the end of theirs.
const lateName = (s) => (s.rounds ? "age, in rounds" : "staleness");

function roundTiles(rounds) {
  if (!rounds) return [];
  const bytes = (value) => (known(value) ? `${short(value, 3, " ")}B` : NONE);
  return [["round", count(rounds.rounds)], ["replicas a round", fixed(rounds.pushes_per_round, 2)],
    ["late pushes", count(rounds.late_pushes)], ["late by, mean", fixed(rounds.late_age, 2)],
    ["sent a sample", bytes(rounds.sent_per_sample)], ["fetched a sample", bytes(rounds.received_per_sample)],
    ["computing", known(rounds.computing) ? percent(rounds.computing, 0) : NONE]];
}

function tableTiles(tables) {
  return (tables || []).flatMap((one) => [[`rows of ${one.name}`, count(one.rows)],
    [`memory of ${one.name}`, `${short(one.bytes, 3, " ")}B`],
    ...(one.cache_reads ? [[`cached of ${one.name}`, percent(one.cache_hits / one.cache_reads, 1)]] : []),
    ...(one.evicted ? [[`evicted of ${one.name}`, count(one.evicted)]] : []),
    ...(one.refused ? [[`${one.name} is full`, `${count(one.refused)} keys refused`]] : [])]);
}

function showNumbers(s) {
  const batch = s.batch;
  const validation = known(s.validation_accuracy) ? percent(s.validation_accuracy) : figures(s.validation_loss);
  const rows = [["loss", figures(batch ? batch.loss : s.loss)], ["validation", validation]];
  if (known(s.test_accuracy) || known(s.test_loss)) {
    rows.push(["test", known(s.test_accuracy) ? percent(s.test_accuracy) : figures(s.test_loss)]);
  }
  rows.push(["samples/s", count(s.samples_per_s)]);
  if (batch) {
    rows.push(["gradient norm", figures(batch.gradient_norm)], ["last step", figures(batch.step)],
      [`pass ${batch.pass}`, `${batch.portions_done} of ${batch.portions}`], ["bundles", count(batch.bundles)],
      ["backups", count(batch.backups_launched)], ["backups won", count(batch.backups_won)]);
  } else {
    rows.push([lateName(s), fixed(s.staleness_mean, 2)], ["epoch", fixed(s.epoch, 2)], ...roundTiles(s.rounds),
      ...tableTiles(s.tables));
  }
  rows.push(["elapsed", duration(s.elapsed_s)]);
  if (known(s.eta_s)) rows.push(["left", duration(s.eta_s)]);
  at("numbers").style.setProperty("--wide", columns(rows.length, 12));
  at("numbers").style.setProperty("--narrow", columns(rows.length, 4));
  at("numbers").replaceChildren(...rows.map(([name, value]) => {
    const row = element("div");
    row.append(element("dt", name), element("dd", value));
    return row;
  }));
}

// Tiles in a row, so that rows of at most so many are about equally long and none is left alone in the last.
function columns(tiles, most) {
  return Math.ceil(tiles / Math.ceil(tiles / most));
}

// -- pictures -------------------------------------------------------------------------------------------------------

const LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 20;

function cleared(id) {
  const svg = at(id);
  svg.replaceChildren();
  const width = svg.clientWidth || 320, height = svg.clientHeight || 176;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return [svg, width, height];
}

function linearTicks(low, high, most = 5) { // step: 1, 2 or 5 times a power of ten
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find((factor) => (high - low) / (power * factor) <= most);
  const ticks = [];
  for (let at = Math.ceil(low / step); at <= Math.floor(high / step); at += 1) ticks.push(at * step);
  return ticks;
}

function logTicks(low, high, most = 5) { // powers of ten, and 2 and 5 times these where there is room
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  for (const factors of [[1, 2, 5], [1]]) {
    const ticks = [];
    for (let power = first; power <= last; power += 1) {
      ticks.push(...factors.map((factor) => Number(`${factor}e${power}`)).filter((at) => at >= low && at <= high));
    }
    if (ticks.length < 2) return linearTicks(low, high, most);
    if (ticks.length <= most) return ticks;
  }
  const apart = Math.ceil((last - first + 1) / most);
  return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index))
    .filter((at, index) => index % apart === 0 && at >= low && at <= high);
}

function showCurve(id, curve, form, logs) {
  const [svg, width, height] = cleared(id);
  const ys = curve.y, xs = curve.x;
  let low = Math.min(...ys), high = Math.max(...ys);
  if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
  const logarithmic = logs && low > 0;
  const scale = logarithmic ? Math.log10 : Number;
  const last = xs[xs.length - 1], first = Math.min(xs[0], 0);
  const x = (value) => LEFT + ((width - LEFT - RIGHT) * (value - first)) / (last - first || 1);
  const y = (value) => TOP + ((height - TOP - BOTTOM) * (scale(high) - scale(value))) / (scale(high) - scale(low));
  for (const value of logarithmic ? logTicks(low, high) : linearTicks(low, high)) {
    drawn(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) });
    drawn(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, form(value));
  }
  drawn(svg, "text", { x: LEFT, y: height - 4 }, short(first));
  drawn(svg, "text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, `${short(last)} ${curve.over}`);
  drawn(svg, "path", { class: "curve", d: xs.map((value, i) => `${i ? "L" : "M"}${x(value).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join("") });
  drawn(svg, "circle", { class: "dot", cx: x(last), cy: y(ys[ys.length - 1]), r: 3 });
  svg.setAttribute("aria-label", `from ${form(ys[0])} to ${form(ys[ys.length - 1])} over ${short(last)} ${curve.over}`);
}

function showStaleness(rows, name, unit) {
  text("late-name", name);
  text("late-unit", unit);
  const [svg, width, height] = cleared("staleness");
  const used = rows.length - [...rows].reverse().findIndex((row) => row.pushes);
  const shown = rows.slice(0, Math.min(rows.length, Math.max(used, 6)));
  const all = rows.reduce((sum, row) => sum + row.pushes, 0), most = Math.max(...shown.map((row) => row.pushes));
  const step = (width - LEFT - RIGHT) / shown.length, floor = height - BOTTOM;
  for (let part = 0; part <= 2; part += 1) {
    const y = TOP + ((floor - TOP) * (2 - part)) / 2;
    drawn(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y });
    drawn(svg, "text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, percent((most * part) / 2 / all, 0));
  }
  shown.forEach((row, index) => {
    const size = ((floor - TOP) * row.pushes) / most, before = index ? shown[index - 1].up_to + 1 : 0;
    const bound = row.up_to === null ? "more" : String(row.up_to);
    const range = row.up_to === null ? `more than ${before - 1}` : before === row.up_to ? bound : `${before} to ${bound}`;
    const bar = drawn(svg, "rect", { class: "bar", x: LEFT + step * index + 2, y: floor - size, width: Math.max(1, step - 4), height: size, rx: 2 });
    drawn(bar, "title", {}, `${name} ${range}: ${count(row.pushes)} of ${count(all)} pushes`);
    drawn(svg, "text", { x: LEFT + step * (index + 0.5), y: height - 4, "text-anchor": "middle" }, bound);
  });
  svg.setAttribute("aria-label", `${count(all)} pushes`);
}

function showCurves(s) {
  const curves = s.curves || {}, accuracy = curves.validation_accuracy;
  const validation = accuracy || curves.validation_loss, pushes = s.staleness.some((row) => row.pushes);
  show("curves", curves.loss || validation || pushes);
  for (const [id, wanted] of [["loss", curves.loss], ["validation", validation], ["staleness", pushes]]) {
    at(id).parentElement.hidden = !wanted;
  }
  if (curves.loss) {
    text("loss-now", figures(curves.loss.y[curves.loss.y.length - 1]));
    showCurve("loss", curves.loss, tick, true);
  }
  if (validation) {
    const form = accuracy ? (value) => percent(value, 1) : tick;
    at("validation").setAttribute("class", "validation");
    text("validation-name", accuracy ? "validation accuracy" : "validation loss");
    text("validation-now", accuracy ? percent(validation.y[validation.y.length - 1]) : figures(validation.y[validation.y.length - 1]));
    showCurve("validation", validation, form, !accuracy);
  }
  if (pushes) showStaleness(s.staleness, s.rounds ? "age" : "staleness", s.rounds ? "rounds" : "versions");
}

// -- members --------------------------------------------------------------------------------------------------------

const MOST_ROWS = 200;
const GONE = ["left", "died"];
const KINDS = { died: "red", training: "", serving: "" };

function row(cells) {
  const made = element("tr");
  made.append(...cells.map(([content, kind]) => element("td", content, kind)));
  return made;
}

function rowsOf(members, cells) {
  const rows = members.slice(0, MOST_ROWS).map((member) => row(cells(member)));
  if (members.length > MOST_ROWS) rows.push(row([[`and ${count(members.length - MOST_ROWS)} more`, "quiet"]]));
  return rows;
}

function stateOf(member) {
  if (member.straggler && !GONE.includes(member.state)) return ["straggling", "amber"];
  return [member.state, KINDS[member.state] ?? "quiet"];
}

function showMembers(s) {
  const shards = s.members.filter((member) => member.role === "ps");
  const workers = s.members.filter((member) => member.role !== "ps");
  workers.sort((a, b) => GONE.includes(a.state) - GONE.includes(b.state) || b.samples_per_s - a.samples_per_s);
  const here = workers.filter((member) => !GONE.includes(member.state)).length;
  show("of-workers", workers.length);
  show("of-shards", shards.length);
  const wanted = known(s.wanted_replicas) && s.wanted_replicas !== here ? `, ${count(s.wanted_replicas)} wanted` : "";
  text("workers-count", `${count(here)}${wanted}`);
  text("shards-count", count(shards.filter((member) => !GONE.includes(member.state) && !member.follows).length));
  at("stale-head").hidden = Boolean(s.batch);
  text("stale-head", s.rounds ? "age" : "staleness");
  at("workers").replaceChildren(...rowsOf(workers, (member) => [
    [`${ROLES[member.role]}${member.id}`], stateOf(member), [member.name, "wide"], [count(member.samples_per_s), "n"],
    [count(member.samples), "n"], ...(s.batch ? [] : [[fixed(member.staleness, 2), "n"]]), [ago(member.last_seen_s), "n quiet"],
  ]));
  at("shards").replaceChildren(...rowsOf(shards, (member) => [
    [`${member.id}`], stateOf(member),
    [member.name, "wide"], [fixed(member.pushes_per_s, 1), "n"], [`${short(member.bytes_per_s, 3, " ")}B/s`, "n"],
    [count(member.segments), "n wide"], [count(member.parameters), "n"], [ago(member.last_seen_s), "n quiet"],
  ]));
}

// -- events ---------------------------------------------------------------------------------------------------------

function showEvents(s) {
  const events = s.events || [];
  show("of-events", events.length);
  at("events").replaceChildren(...[...events].reverse().map((event) => row([
    [new Date(1000 * event.time_s).toLocaleTimeString("en-GB"), "quiet"], [event.text, event.trouble ? "red" : ""],
  ])));
}

// -- polling --------------------------------------------------------------------------------------------------------

let heard = 0;
let latest = null;

function draw(s) {
  showHead(s);
  showNumbers(s);
  showCurves(s);
  showMembers(s);
  showEvents(s);
  text("folder", s.run_folder);
}

function silence(error) {
  const since = heard ? `; these are its figures of ${duration((Date.now() - heard) / 1000)} ago` : "";
  text("silent", `The coordinator does not answer (${error.message})${since}.`);
  show("silent", true);
}

async function ask() {
  try {
    const reply = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!reply.ok) throw new Error((await reply.text()).trim());
    latest = await reply.json();
    heard = Date.now();
    show("silent", false);
    draw(latest);
  } catch (error) {
    silence(error);
  }
  setTimeout(ask, EVERY_MS);
}

addEventListener("resize", () => { if (latest) showCurves(latest); });
ask();
