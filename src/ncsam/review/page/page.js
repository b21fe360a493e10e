"use strict";
// The review page. Whatever comes from data is put in as text (textContent), never as markup.

const byId = (id) => document.getElementById(id);
const PAGE_SIZE = 24;
const CHOICES = { accept: "accepted", keep: "kept", other: "other class", unsure: "unsure", drop: "left out" };

let classes = [];
let view = null;
let items = [];
let current = 0; // position in items
let total = 0;
let before = 0; // samples of the view that come before items[0]
let waiting = Promise.resolve(); // actions are done one after the other, so that no key is lost

// --- talking to the server

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server is not responding. Run `ncsam review` again and open the address it prints: " +
      "all decisions so far are saved.");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function inTurn(action) {
  waiting = waiting.then(action).then(() => { byId("alert").hidden = true; }, (error) => {
    byId("alert").textContent = error.message;
    byId("alert").hidden = false;
  });
  return waiting;
}

// --- elements

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function named(item) {
  return /^\d+$/.test(item.name) ? `sample ${item.name}` : item.name; // a number alone says little
}

function percent(p) {
  return `${Math.round(100 * p)} %`;
}

function chart(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const least = Math.min(0, ...values), most = Math.max(0, ...values), span = most - least || 1;
  svg.setAttribute("viewBox", `0 0 ${values.length} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${values.length} values from ${least} to ${most}`);
  values.forEach((value, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    bar.setAttribute("x", i);
    bar.setAttribute("width", 0.9);
    bar.setAttribute("y", 100 * (most - Math.max(0, value)) / span);
    bar.setAttribute("height", Math.max(0.5, 100 * Math.abs(value) / span));
    svg.append(bar);
  });
  return svg;
}

function namedValues(item) {
  const table = element("table", "values");
  item.names.forEach((name, i) => {
    const row = element("tr");
    const head = element("th", "", name);
    head.scope = "row";
    row.append(head, element("td", "", String(item.values[i])));
    table.append(row);
  });
  if (item.length > item.names.length) {
    const row = element("tr");
    row.append(element("td", "", `and ${item.length - item.names.length} more`));
    table.append(row);
  }
  return table;
}

function sight(item, size) {
  const box = element("div", "sight");
  if (item.kind === "image") {
    const image = element("img");
    image.alt = named(item);
    image.addEventListener("load", () => {
      if (Math.max(image.naturalWidth, image.naturalHeight) <= 16) image.classList.add("tiny");
    });
    image.addEventListener("error", () => image.replaceWith(element("p", "quiet", "This image cannot be shown.")));
    image.src = `image/${size}/${item.index}`;
    box.append(image);
  } else if (item.kind === "text") {
    box.append(element("pre", "", item.text));
  } else if (item.kind === "row") {
    box.append(namedValues(item));
  } else {
    box.append(chart(item.values));
  }
  return box;
}

function card(item, position) {
  const made = element("article", "card");
  made.tabIndex = position === current ? 0 : -1;
  made.dataset.index = item.index;
  made.setAttribute("aria-label",
    `${named(item)}: given label ${classes[item.given_label]}, suggested ${classes[item.suggested_label]}`);
  if (position === current) made.setAttribute("aria-current", "true");
  made.append(sight(item, view.layout === "one" ? "large" : "small"));
  const labels = element("dl", "labels");
  labels.append(element("dt", "", "given label"), element("dd", "given_label", classes[item.given_label]));
  labels.append(element("dt", "", "suggested"), element("dd", "suggested_label", classes[item.suggested_label]));
  made.append(labels);
  if (item.p_wrong !== null) {
    made.append(element("p", "chance",
      `label wrong: ${percent(item.p_wrong)}, suggestion correct: ${percent(item.p_suggested)}`));
  }
  made.append(element("p", "name", named(item)));
  for (const found of item.findings) made.append(element("p", "finding", found));
  for (const said of item.decisions) {
    const label = said.choice === "other" ? `: ${classes[said.label]}` : "";
    made.append(element("p", "said", `${said.reviewer}: ${CHOICES[said.choice]}${label}`));
  }
  made.addEventListener("click", () => inTurn(() => goTo(position)));
  return made;
}

// --- showing

function show(focus = true) {
  document.body.className = view.layout;
  byId("layout").firstChild.textContent = view.layout === "one" ? "Grid " : "One at a time ";
  const list = byId("cards");
  list.replaceChildren();
  const shown = view.layout === "one" ? items.slice(current, current + 1) : items;
  shown.forEach((item) => {
    const entry = element("li");
    entry.append(card(item, items.indexOf(item)));
    list.append(entry);
  });
  byId("where").textContent = items.length
    ? `${(before + current + 1).toLocaleString("en")} of ${total.toLocaleString("en")} in this view`
    : "Nothing left in this view. Choose another view above, or run `ncsam clean` to write the new labels.";
  byId("neighbors").replaceChildren();
  for (const id of ["accept", "keep", "other", "unsure", "drop"]) byId(id).disabled = !items.length;
  if (focus) (list.querySelector('[aria-current="true"]') || byId("main")).focus({ preventScroll: false });
  if (view.layout === "one" && items.length) {
    showNeighbors(items[current]);
    items.slice(current + 1, current + 4).forEach((item) => {
      if (item.kind === "image") new Image().src = `image/large/${item.index}`;
    });
  }
}

async function showNeighbors(item) {
  let found;
  try {
    found = await ask(`api/neighbors/${item.index}`);
  } catch {
    return; // decisions do not depend on the comparison
  }
  if (items[current] !== item) return; // the reviewer has moved on
  const section = byId("neighbors");
  section.replaceChildren();
  for (const name of ["given_label", "suggested_label"]) {
    if (name === "suggested_label" && found.suggested_label.label === found.given_label.label) continue;
    section.append(element("h2", "", `Typical samples labeled ${classes[found[name].label]}`));
    const list = element("ul");
    for (const neighbor of found[name].items) {
      const entry = element("li", "card");
      entry.append(sight(neighbor, "small"), element("p", "name", named(neighbor).split("/").pop()));
      list.append(entry);
    }
    section.append(list);
  }
}

function showState(state) {
  const done = state.progress;
  byId("bar").max = done.total || 1;
  byId("bar").value = done.decided;
  byId("bar").textContent = `${done.decided} of ${done.total}`;
  byId("progress").textContent = done.sentence;
  byId("expected").textContent = done.expected;
}

function showFilters() {
  for (const name of ["order", "status", "search", "finding", "reviewer"]) byId(name).value = view[name];
  for (const name of ["given_label", "suggested_label"]) byId(name).value = view[name] === null ? "" : String(view[name]);
  const both = view.given_label !== null && view.suggested_label !== null;
  byId("pair").value = both ? `${view.given_label},${view.suggested_label}` : "";
}

// --- moving

async function load(place, last = false) {
  view.place = place;
  const found = await ask("api/items", { ...view, limit: PAGE_SIZE });
  items = found.items;
  total = found.total;
  before = found.before;
  current = last ? Math.max(0, items.length - 1) : 0;
  show();
}

async function goTo(position) {
  if (position >= items.length) {
    const end = items.length ? items[items.length - 1].place + 1 : 0;
    await load(end);
    return;
  }
  if (position < 0) {
    if (!items.length) return;
    const found = await ask("api/items", { ...view, place: items[0].place, limit: PAGE_SIZE, back: true });
    if (!found.items.length) return;
    items = found.items;
    total = found.total;
    before = found.before;
    position = items.length - 1;
  }
  current = position;
  view.place = items[current].place;
  show();
  await ask("api/view", view);
}

// --- deciding

async function decide(choice, label) {
  const item = items[current];
  if (!item) return;
  const body = { index: item.index, choice, reviewer: view.reviewer };
  if (label !== undefined) body.label = label;
  const answer = await ask("api/decide", body);
  items[current] = answer.item;
  showState(answer);
  await goTo(current + 1);
}

async function undo() {
  const answer = await ask("api/undo", { reviewer: view.reviewer });
  showState(answer);
  if (answer.item === null) return;
  const known = items.findIndex((item) => item.index === answer.item.index);
  if (known >= 0) {
    items[known] = answer.item;
    await goTo(known);
  } else {
    await load(answer.item.place);
  }
}

function chooseClass() {
  if (!items[current]) return;
  byId("class-search").value = "";
  listClasses();
  byId("classes").showModal();
  byId("class-search").focus();
}

function listClasses() {
  const wanted = byId("class-search").value.toLowerCase();
  const list = byId("class-list");
  list.replaceChildren();
  classes.forEach((name, number) => {
    if (!name.toLowerCase().includes(wanted)) return;
    const button = element("button", "", name);
    button.type = "button";
    button.dataset.label = number;
    button.addEventListener("click", () => pickClass(number));
    const entry = element("li");
    entry.append(button);
    list.append(entry);
  });
}

function pickClass(number) {
  byId("classes").close();
  inTurn(() => {
    const item = items[current];
    const choice = number === item.given_label ? "keep" : number === item.suggested_label ? "accept" : "other";
    return decide(choice, number);
  });
}

// --- keys and buttons

function columns() {
  const cards = [...document.querySelectorAll("#cards > li")];
  if (!cards.length) return 1;
  return cards.filter((each) => each.offsetTop === cards[0].offsetTop).length;
}

const KEYS = {
  a: () => inTurn(() => decide("accept")),
  k: () => inTurn(() => decide("keep")),
  u: () => inTurn(() => decide("unsure")),
  d: () => inTurn(() => decide("drop")),
  o: () => inTurn(chooseClass),
  z: () => inTurn(undo),
  g: () => inTurn(switchLayout),
  ArrowRight: () => inTurn(() => goTo(current + 1)),
  ArrowLeft: () => inTurn(() => goTo(current - 1)),
  ArrowDown: () => inTurn(() => goTo(view.layout === "grid" ? Math.min(current + columns(), items.length) : current + 1)),
  ArrowUp: () => inTurn(() => goTo(view.layout === "grid" ? Math.max(current - columns(), -1) : current - 1)),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  const undoes = event.key === "z" && (event.ctrlKey || event.metaKey) && !event.altKey;
  if (typing || (!undoes && (event.ctrlKey || event.metaKey || event.altKey))) return;
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});

async function switchLayout() {
  view.layout = view.layout === "one" ? "grid" : "one";
  show();
  await ask("api/view", view);
}

function filterBy(changes) {
  inTurn(async () => {
    Object.assign(view, changes);
    showFilters();
    await load(0);
  });
}

function optionsOf(select, entries) {
  for (const [value, text] of entries) {
    const option = element("option", "", text);
    option.value = value;
    select.append(option);
  }
}

function listen() {
  const buttons = { accept: "a", keep: "k", other: "o", unsure: "u", drop: "d", undo: "z", layout: "g", next: "ArrowRight", previous: "ArrowLeft" };
  for (const [id, key] of Object.entries(buttons)) byId(id).addEventListener("click", KEYS[key]);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["order", "status", "finding"]) {
    byId(name).addEventListener("change", () => filterBy({ [name]: byId(name).value }));
  }
  for (const name of ["given_label", "suggested_label"]) {
    byId(name).addEventListener("change", () => filterBy({ [name]: byId(name).value === "" ? null : Number(byId(name).value) }));
  }
  byId("pair").addEventListener("change", () => {
    const [given_label, suggested_label] = byId("pair").value === "" ? [null, null] : byId("pair").value.split(",").map(Number);
    filterBy({ given_label, suggested_label });
  });
  byId("search").addEventListener("change", () => filterBy({ search: byId("search").value }));
  byId("reviewer").addEventListener("change", () => {
    if (byId("reviewer").value.trim()) filterBy({ reviewer: byId("reviewer").value.trim() });
    else byId("reviewer").value = view.reviewer;
  });
  byId("class-search").addEventListener("input", listClasses);
  byId("class-search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const first = document.querySelector("#class-list button");
    if (first) first.click();
  });
  byId("classes-close").addEventListener("click", () => byId("classes").close());
  byId("classes").addEventListener("close", () => {
    const here = document.querySelector('#cards [aria-current="true"]');
    if (here) here.focus();
  });
}

inTurn(async () => {
  const found = await ask("api/start");
  classes = found.classes;
  view = found.view;
  byId("run").textContent = found.run;
  byId("filters").hidden = found.purpose === "model-selection"; // the server decides what is asked
  document.title = `Review of ${found.run}`;
  const named = classes.map((name, number) => [String(number), name]);
  optionsOf(byId("given_label"), named);
  optionsOf(byId("suggested_label"), named);
  optionsOf(byId("pair"), found.pairs.map((pair) => [
    `${pair.given_label},${pair.suggested_label}`,
    `${classes[pair.suggested_label]} labeled ${classes[pair.given_label]} (${pair.count.toLocaleString("en")})`,
  ]));
  byId("audited").hidden = !found.findings.length;
  optionsOf(byId("finding"), found.findings.map(([name, title, count]) => [name, `${title} (${count.toLocaleString("en")})`]));
  showFilters();
  showState(found);
  listen();
  await load(view.place);
  document.body.dataset.ready = "true";
});
