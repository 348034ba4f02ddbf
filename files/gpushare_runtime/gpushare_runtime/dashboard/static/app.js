// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The page: which view is shown, and what each row looks like. All that comes from the cluster is put in as text.

import { chart } from "./chart.js";
import { List } from "./list.js";
import {
  GPU, Model, NAMESPACE_SORTS, NODE_SORTS, NODE_STATES, POD, POD_SORTS, POD_STATES, WAITING_STATES,
  age, busy, gib, holders, memory, percent, podMemory, podUnused,
} from "./model.js";
import { gpuPage, namespacePage, nodePage, podPage } from "./pages.js";
import { Server, Unauthorized } from "./stream.js";
import { bar, copyButton, element, fill, keep, link, swatch } from "./dom.js";
import { Verdicts } from "./verdicts.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const NARROW = 720;
const GPU_WIDTH = 180;
const GPU_WIDE = 240;
const MOST_COLOURS = 12;
const LOOKUP_MS = 10_000;
const FIELDS = ["text", "namespace", "model", "state", "sort"];
const filters = { text: "", namespace: "", model: "", state: "", sort: "name" };
let server;
// The rows whose sentence has come are drawn again.
const verdicts = new Verdicts(
  (uid) => server.get(`/api/verdicts/${encodeURIComponent(uid)}`),
  (uid) => {
    view?.list?.forget(uid);
    later([]);
  },
);
let view; // {name, parts, list?, refresh()}
let redraw;

// The token.

function tokenOf(hash) {
  const found = /^#token=([\x21-\x7e]+)$/.exec(hash);
  return found ? decodeURIComponent(found[1]) : "";
}

function start() {
  const given = tokenOf(location.hash);
  if (given) {
    sessionStorage.setItem("token", given);
    // Neither the history nor a screenshot needs it.
    history.replaceState(null, "", "#/nodes");
  }
  // Without a token, too: a proxy in front may have one for this person.
  open(sessionStorage.getItem("token") ?? "");
}

function login(text) {
  $("login-text").textContent = text;
  for (const id of ["sums", "filters", "view", "warnings"]) $(id).hidden = true;
  $("login").hidden = false;
  status("not signed in");
  $("token").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("token", token);
  open(token);
});

async function open(token) {
  $("login").hidden = true;
  status("connecting");
  server = new Server(token);
  try {
    await server.follow(
      {
        whole: (data) => {
          model.replace(data);
          $("title").textContent = data.title;
          document.title = data.title ? `gpushare: ${data.title}` : "gpushare";
          show();
          live();
          if (!performance.getEntriesByName("usable").length) performance.mark("usable");
        },
        change: (data) => {
          const names = model.apply(data);
          later(names);
        },
        status: ({ age }) => (age > 120 ? status(`the API server has been silent for ${Math.round(age)} s`, true) : live()),
        reading: ({ nodes, pods }) => status(`reading the cluster: ${nodes} nodes, ${pods} pods`),
        lost: () => status("connection lost, trying again", true),
      },
      () => model.version,
    );
  } catch (error) {
    if (!(error instanceof Unauthorized)) throw error;
    const had = sessionStorage.getItem("token");
    sessionStorage.removeItem("token");
    const which = error.expected || "the one that the dashboard was started with";
    login(had ? `This token is not valid any more, or never was. Enter ${which}.` : `Enter a token: ${which}. Or open the address that the command printed.`);
  }
}

function live() {
  status(model.head.offline ? "offline: what a file has" : "live");
}

function status(text, lost = false) {
  // Screen readers announce every change.
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").classList.toggle("lost", lost);
}

// Several changes in a moment are drawn once; long lists less often than they change.
const changed = new Set();
function later(names) {
  for (const name of names) changed.add(name);
  redraw ??= setTimeout(() => {
    redraw = undefined;
    refresh(new Set(changed));
    changed.clear();
  }, view?.name === "pods" ? 400 : 50);
}

// What every view has.

function show() {
  for (const id of ["sums", "view"]) $(id).hidden = false;
  route();
}

function refresh(names = null) {
  sums();
  choices();
  view?.refresh(names);
}

function sums() {
  const all = model.head.sums;
  // Who does not see every pod counts those that he sees.
  const pods = all.pods ?? model.pods.length;
  const pending = all.pending ?? model.waiting.size;
  const facts = [
    ["Allocated", `${gib(all.allocated)} of ${gib(all.total)} GiB${all.total ? ` (${percent(all.allocated, all.total)} %)` : ""}`],
    ["Free on usable GPUs", model.head.complete ? `${gib(all.free)} GiB` : "not known"],
    ["Nodes", all.nodes],
    ["GPUs", all.usable === all.gpus ? all.gpus : `${all.usable} usable of ${all.gpus}`],
    ["Pods with GPUs", pods],
    ["Pods waiting", pending],
    ...(all.problems ? [["Problems", all.problems]] : []),
  ];
  fill($("sums"), ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  $("waiting-count").textContent = pending ? `(${pending})` : "";
  fill($("warnings"), ...model.head.warnings.map((text) => element("li", {}, text)));
  $("warnings").hidden = !model.head.warnings.length;
}

// Whether an element was made from other values than these, which it is made from now.
function differs(made, values) {
  const wanted = JSON.stringify(values);
  if (made.dataset.values === wanted) return false;
  made.dataset.values = wanted;
  return true;
}

function options(select, values) {
  if (!differs(select, values)) return;
  const chosen = select.value;
  fill(select, ...Object.entries(values).map(([value, text]) => element("option", { value }, text)));
  select.value = chosen in values ? chosen : Object.keys(values)[0];
}

function choices() {
  const { namespaces, models } = model.terms;
  if (differs($("namespaces"), namespaces)) fill($("namespaces"), ...namespaces.map((value) => element("option", { value })));
  const known = filters.model && !models.includes(filters.model) ? [filters.model, ...models] : models;
  options($("filter-model"), Object.fromEntries([["", "any"], ...known.map((name) => [name, name || "unknown"])]));
}

// Filters.

for (const name of FIELDS) {
  $(`filter-${name}`).addEventListener("input", (event) => {
    filters[name] = event.target.value.trim();
    if (event.target.tagName === "SELECT") filters[name] = event.target.value;
    view?.refresh(null);
  });
}
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => {
  Object.assign(filters, { text: "", namespace: "", model: "", state: "", sort: "name" });
  setTimeout(() => view?.refresh(null));
});
// Where the page is narrow, the filters are behind a button, which says how many are set.
function unfold(open) {
  $("filters").classList.toggle("open", open);
  $("filter-toggle").setAttribute("aria-expanded", String(open));
}
$("filter-toggle").addEventListener("click", () => unfold(!$("filters").classList.contains("open")));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select") && !$("filters").hidden) {
    event.preventDefault();
    unfold(true);
    $("filter-text").focus();
  }
});

// The theme.

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
}
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  theme(next);
});

// Lists.

// GPUs side by side: all in one row, or rows of equal length where that wastes little of the width.
function columns(width, count) {
  const fit = Math.max(1, Math.floor((width - 24) / GPU_WIDTH));
  if (count <= fit) return Math.max(1, count);
  for (let some = fit; some > fit / 2; some--) if (count % some === 0) return some;
  return Math.ceil(count / Math.ceil(count / fit));
}

function models(node) {
  const counts = new Map();
  for (const gpu of node.gpus) counts.set(gpu[GPU.model], (counts.get(gpu[GPU.model]) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} × ${name || "unknown model"}`);
}

function nodeFacts(node) {
  const { total, allocated } = memory(node);
  const usable = node.gpus.filter((gpu) => !/[BC]/.test(gpu[GPU.marks])).length;
  const unknown = node.pods.filter((pod) => pod[POD.gpus] === null).length;
  return [
    `${gib(allocated)} of ${gib(total)} GiB`,
    ...models(node),
    ...(usable < node.gpus.length ? [`${usable} of ${node.gpus.length} GPUs usable`] : []),
    ...(node.cordoned ? ["cordoned"] : []),
    ...(unknown ? [`${unknown} ${unknown === 1 ? "pod" : "pods"} on unknown GPUs`] : []),
    ...(node.error ? [node.error] : []),
    ...(node.problems.length ? [`${node.problems.length} problems`] : []),
  ].join(" · ");
}

// On a phone the name of the GPU needs the room of the unit, which stands in the line above.
function gpuFigures(node, gpu, unit) {
  const load = gpu[GPU.busy] === null ? "" : ` · SM ${busy(gpu[GPU.busy])}`;
  return `${gpu[GPU.allocated]}/${gpu[GPU.units]}${unit || !load ? ` ${node.unit}` : ""}${load}`;
}

function nodeRow(node, width) {
  const on = holders(node);
  const across = columns(width, node.gpus.length);
  const unit = width / across > GPU_WIDE;
  const gpus = element(
    "ul",
    { class: "gpus", role: "list" },
    ...node.gpus.map((gpu) => {
      const marked = /[BC]/.test(gpu[GPU.marks]) ? "bad" : gpu[GPU.marks] ? "warn" : "";
      const state = gpu[GPU.state] === "ok" ? "" : ` ${gpu[GPU.state]}`;
      const label = element(
        "span",
        { class: "label" },
        element("span", {}, link(gpuPath(node.name, gpu[GPU.index]), `GPU ${gpu[GPU.index]}`), element("span", { class: marked }, state)),
        element("span", { class: "figures" }, gpuFigures(node, gpu, unit)),
      );
      return element("li", {}, label, ...bar(node, gpu, on.get(String(gpu[GPU.index])), filters.namespace));
    }),
  );
  gpus.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
  const line = element("div", { class: "line" }, link(`#/node/${encodeURIComponent(node.name)}`, node.name), element("span", {}, nodeFacts(node)));
  return element("li", {}, line, gpus);
}

const nodeHeight = (node, width) => 13 + 24 + Math.ceil(node.gpus.length / columns(width, node.gpus.length)) * 44;

const gpuPath = (node, index) => `#/gpu/${encodeURIComponent(node)}/${index}`;
const podPath = (namespace, name) => `#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

function podGpus(node, pod) {
  const gpus = Object.entries(pod[POD.gpus] ?? {});
  if (pod[POD.gpus] === null) return "GPU unknown";
  return gpus.map(([index, units]) => `GPU ${index}: ${units} ${node.unit ?? "units"}`).join(", ") || "no GPUs";
}

// How busy a pod keeps the SMs, or since when nothing.
function podLoad(pod) {
  const since = pod[POD.idle];
  return since ? element("span", { class: "warn" }, "idle ", element("time", { "data-created": since }, age(since))) : element("span", {}, busy(pod[POD.busy]));
}

function podRow({ node, pod }, width) {
  const name = link(podPath(pod[POD.namespace], pod[POD.name]), `${pod[POD.namespace]}/${pod[POD.name]}`);
  const state = element("span", { class: stateClass(pod[POD.state]) }, pod[POD.state]);
  if (width < NARROW) {
    const at = element("span", {}, `${node.name}: ${podGpus(node, pod)}`);
    const load = pod[POD.idle] || pod[POD.busy] !== null ? [element("span", { class: "nowrap" }, ...(pod[POD.idle] ? [] : ["SM "]), podLoad(pod))] : [];
    return element("li", {}, element("div", { class: "line" }, name, state), element("div", { class: "line" }, at, ...load));
  }
  const mib = podMemory({ node, pod });
  const since = element("time", { "data-created": pod[POD.created] }, age(pod[POD.created]));
  const unused = podUnused({ node, pod });
  const cells = [name, link(`#/node/${encodeURIComponent(node.name)}`, node.name), podGpus(node, pod), mib ? `${gib(mib)} GiB` : "–",
    unused === null ? "–" : `${gib(unused)} GiB`, podLoad(pod), since, state];
  return element("li", { class: "cells" }, ...cells.map((cell) => (cell instanceof Node ? cell : element("span", {}, cell))));
}

const stateClass = (state) => (/GPU (bad|gone)/.test(state) ? "bad" : state === "bound" || state === "whole" ? "" : "warn");

function namespaceRow(one) {
  const name = link(namespacePath(one.name), one.name);
  const share = model.head.sums.total ? ` (${percent(one.mib, model.head.sums.total)} %)` : "";
  const facts = [
    `${gib(one.mib)} GiB${share}`,
    `${one.pods} ${one.pods === 1 ? "pod" : "pods"} with GPUs`,
    ...(one.waiting ? [`${one.waiting} waiting`] : []),
    ...(model.head.uses || one.unknown === one.pods ? [] : [`${gib(one.unused)} GiB unused`]),
  ];
  return element("li", {}, element("div", { class: "line" }, swatch(one.name), name, element("span", {}, facts.join(" · "))));
}

const namespacePath = (name) => `#/namespace/${encodeURIComponent(name)}`;

function waitingRow(pod, width) {
  const name = link(podPath(pod.namespace, pod.name), `${pod.namespace}/${pod.name}`);
  const facts = element("span", { class: pod.invalid ? "bad" : "" }, pod.invalid ? "invalid request" : pod.request);
  const { text, copy } = sentenceOf(pod);
  verdicts.want(pod);
  const reason = element("p", { class: "reason" }, text);
  return element("li", {}, element("div", { class: "line" }, name, facts), element("div", { class: "said" }, reason, ...(copy ? [copyButton(copy)] : [])));
}

// The verdict, and while nobody knows it what the pod's scheduler has said.
function sentenceOf(pod) {
  const found = pod.verdict ? pod : verdicts.known(pod);
  if (found?.verdict) return { text: found.verdict, copy: found.copy };
  return { text: pod.reported ? `its scheduler: ${pod.reported}` : "its scheduler has reported nothing yet", copy: "" };
}

const waitingHeight = (pod, width) => {
  const { text, copy } = sentenceOf(pod);
  return 13 + 24 + Math.max(copy ? 30 : 0, 21 * Math.min(3, Math.ceil((text.length * 8) / Math.max(1, width - (copy ? 104 : 24)))));
};

// The colours of the namespaces that have most, and what the two patterns mean.
function legend() {
  const all = model.terms.byMemory;
  if (!differs($("legend"), all)) return;
  const shown = all.slice(0, MOST_COLOURS).map((name) => element("li", {}, swatch(name), link(namespacePath(name), name)));
  const more = all.length > MOST_COLOURS ? [element("li", {}, `and ${all.length - MOST_COLOURS} more namespaces`)] : [];
  const patterns = [
    ["odd", "in use, no known pod"],
    ["unusable", "takes no new pods"],
  ].map(([kind, text]) => element("li", {}, swatch("", kind), text));
  fill($("legend"), ...shown, ...more, ...patterns);
}

// The columns of the pods, as buttons that sort by them.
function head(kind, width) {
  const wide = width >= NARROW && kind.sorts === POD_SORTS;
  $("view-head").hidden = !wide;
  // A button that is made again has lost the focus.
  if (!wide || !differs($("view-head"), filters.sort)) return;
  const buttons = Object.entries(POD_SORTS).map(([sort, text]) => {
    const made = element("button", { type: "button", "aria-pressed": String(filters.sort === sort) }, text);
    made.addEventListener("click", () => {
      filters.sort = $("filter-sort").value = sort;
      view?.refresh(null);
      $("view-head").querySelector('[aria-pressed="true"]')?.focus();
    });
    return made;
  });
  fill($("view-head"), ...buttons);
}

// Rows stay as long as their pods do not change, and their ages do not. Verdicts are those of a moment.
setInterval(() => {
  if (view?.name === "waiting") for (const { item } of view.list.shown.values()) if (item) verdicts.want(item);
  for (const one of document.querySelectorAll("time[data-created]")) one.textContent = age(Number(one.dataset.created));
}, 10000);

// One object per row as long as its pod does not change, so that its element stays.
const LISTS = {
  nodes: {
    title: "Nodes",
    states: NODE_STATES,
    select: () => model.selectNodes(filters),
    all: () => model.nodes.size,
    sorts: NODE_SORTS,
    render: nodeRow,
    height: nodeHeight,
    key: (node) => node.name,
    empty: "No node has what the filter selects.",
  },
  pods: {
    title: "Pods with GPUs",
    states: POD_STATES,
    select: () => model.selectPods(filters),
    all: () => model.pods.length,
    sorts: POD_SORTS,
    render: podRow,
    height: (_, width) => (width < NARROW ? 62 : 38),
    key: ({ node, key }) => `${node.name}/${key}`,
    empty: "No pod has what the filter selects.",
  },
  namespaces: {
    title: "Namespaces",
    states: { "": "any" },
    select: () => model.selectNamespaces(filters),
    all: () => model.namespaces.size,
    sorts: NAMESPACE_SORTS,
    render: namespaceRow,
    height: () => 38,
    key: (one) => one.name,
    empty: "No namespace has what the filter selects.",
  },
  waiting: {
    title: "Pods that wait for GPUs",
    states: WAITING_STATES,
    select: () => model.selectWaiting(filters),
    all: () => model.waiting.size,
    sorts: { name: "name" },
    render: waitingRow,
    height: waitingHeight,
    key: (pod) => pod.uid,
    empty: "No pod waits that the filter selects.",
  },
};

function listView(name) {
  const kind = LISTS[name];
  filters.state = filters.state in kind.states ? filters.state : "";
  options($("filter-state"), kind.states);
  $("filter-state").value = filters.state;
  $("filter-model").closest("p").hidden = name === "waiting" || name === "namespaces";
  for (const field of ["namespace", "state"]) $(`filter-${field}`).closest("p").hidden = name === "namespaces";
  filters.sort = filters.sort in kind.sorts ? filters.sort : Object.keys(kind.sorts)[0];
  $("sort-field").hidden = Object.keys(kind.sorts).length < 2;
  options($("filter-sort"), kind.sorts);
  $("filter-sort").value = filters.sort;
  $("filters").hidden = $("filter-toggle").hidden = false;
  $("legend").hidden = name !== "nodes";
  $("view-title").textContent = kind.title;
  const list = new List($("view-body"), { label: kind.title, ...kind });
  let drawn = "";
  return {
    name,
    list,
    close: () => list.close(),
    refresh() {
      if (drawn !== filters.namespace) list.shown.forEach((one) => (one.item = null));
      drawn = filters.namespace;
      const set = ["text", "namespace", "model", "state"].filter((field) => filters[field]).length;
      $("filter-toggle").textContent = set ? `Filter (${set})` : "Filter";
      const items = kind.select();
      const all = kind.all();
      $("view-text").textContent = items.length === all ? `${all}` : `${items.length} of ${all}`;
      if (name === "nodes") legend();
      head(kind, $("view-body").clientWidth);
      list.set(items);
    },
  };
}

// Pages of one thing: read again when something about it may have changed, but no more than every two seconds.

// lookup: a further path, of what the API server is asked for only then: read less often.
function pageView(name, title, path, concerns, render, lookup = "") {
  for (const id of ["filters", "filter-toggle", "legend", "view-head"]) $(id).hidden = true;
  $("view-title").textContent = title;
  $("view-text").textContent = "";
  const body = element("div", { class: "page" }, element("p", {}, "Loading"));
  fill($("view-body"), body);
  const abort = new AbortController();
  let timer;
  let at = 0;
  let more = null;
  let moreAt = 0;
  const read = async () => {
    timer = undefined;
    at = Date.now();
    try {
      const data = await server.get(path, abort.signal);
      if (!abort.signal.aborted) keep(body, render(data, more));
      if (!lookup || at - moreAt < LOOKUP_MS || abort.signal.aborted) return;
      moreAt = at;
      more = await server.get(lookup, abort.signal);
      if (!abort.signal.aborted) keep(body, render(data, more));
    } catch (error) {
      if (!abort.signal.aborted) fill(body, element("p", { class: "bad" }, `Cannot be read: ${error.message}`));
    }
  };
  return {
    name,
    close() {
      abort.abort();
      clearTimeout(timer);
      body.remove();
    },
    refresh(names) {
      if (names === null ? at === 0 : concerns(names)) timer ??= setTimeout(read, Math.max(0, at + 2000 - Date.now()));
    },
  };
}

function historyView() {
  return pageView("history", "Allocation over time", "/api/history", () => true, (data) => chart(data, $("view-body").clientWidth));
}

// Which view the address names.

function parse() {
  const [, name, ...rest] = location.hash.split("/");
  try {
    return [name, ...rest.map(decodeURIComponent)];
  } catch {
    return ["nodes"];
  }
}

function route() {
  if (tokenOf(location.hash)) return start();
  if (!model.version || (location.hash && !location.hash.startsWith("#/"))) return undefined;
  const [name, first, second] = parse();
  const same = view?.hash === location.hash;
  if (!same) {
    const moved = view !== undefined;
    view?.close();
    view = undefined;
    if (name === "node" && first) {
      const path = `/api/nodes/${encodeURIComponent(first)}`;
      view = pageView("node", `Node ${first}`, path, (names) => names.has(first), (data) => nodePage(data, model.nodes.get(first)));
    } else if (name === "gpu" && first && second) {
      const path = `/api/nodes/${encodeURIComponent(first)}`;
      const render = (data) => gpuPage(data, model.nodes.get(first), Number(second), model.changesOf(first, Number(second)), $("view-body").clientWidth);
      view = pageView("gpu", `GPU ${second} of ${first}`, path, (names) => names.has(first), render);
    } else if (name === "pod" && first && second) {
      const path = `/api/pods/${encodeURIComponent(first)}/${encodeURIComponent(second)}`;
      view = pageView("pod", `Pod ${first}/${second}`, path, () => true, podPage, `${path}/events`);
    } else if (name === "namespace" && first) {
      const render = (data) => namespacePage(first, data, model);
      view = pageView("namespace", `Namespace ${first}`, `/api/namespaces/${encodeURIComponent(first)}`, () => true, render);
    } else if (name === "history") view = historyView();
    else view = listView(LISTS[name] ? name : "nodes");
    view.hash = location.hash;
    const current = { node: "nodes", gpu: "nodes", pod: "pods", namespace: "namespaces" }[view.name] ?? view.name;
    for (const anchor of document.querySelectorAll("nav a")) {
      if (anchor.getAttribute("href") === `#/${current}`) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
    // A reader hears where he is.
    if (moved) $("view-title").focus();
  }
  return refresh();
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") history.replaceState(null, "", view?.hash || "#/nodes");
  else route();
});
start();
