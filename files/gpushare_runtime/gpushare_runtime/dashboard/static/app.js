// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The page: which view is shown, and what each row looks like. All that comes from the cluster is put in as text.

import { chart } from "./chart.js";
import { List } from "./list.js";
import { GPU, Model, NODE_STATES, POD, POD_STATES, SORTS, WAITING_STATES, gib, holders, memory } from "./model.js";
import { nodePage, podPage } from "./pages.js";
import { Server, Unauthorized } from "./stream.js";
import { bar, element, fill, link } from "./dom.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const NARROW = 600;
const GPU_WIDTH = 230;
const FIELDS = ["text", "namespace", "model", "state", "sort"];
const filters = { text: "", namespace: "", model: "", state: "", sort: "name" };
let server;
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
  const token = sessionStorage.getItem("token");
  if (token) open(token);
  else login("The dashboard was started with a token. Enter it here, or open the address that the command printed.");
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
          document.title = data.title ? `GPU memory: ${data.title}` : "GPU memory";
          show();
          status("live");
          if (!performance.getEntriesByName("usable").length) performance.mark("usable");
        },
        change: (data) => {
          const names = model.apply(data);
          later(names);
        },
        status: ({ age }) => status(age > 120 ? `the API server has been silent for ${Math.round(age)} s` : "live", age > 120),
        reading: ({ nodes, pods }) => status(`reading the cluster: ${nodes} nodes, ${pods} pods`),
        lost: () => status("connection lost, trying again", true),
      },
      () => model.version,
    );
  } catch (error) {
    if (!(error instanceof Unauthorized)) throw error;
    sessionStorage.removeItem("token");
    login("This token is not valid any more, or never was. Enter the one that the dashboard was started with.");
  }
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
  const facts = [
    ["Allocated", `${gib(all.allocated)} of ${gib(all.total)} GiB${all.total ? ` (${Math.round((100 * all.allocated) / all.total)} %)` : ""}`],
    ["Free on usable GPUs", model.head.complete ? `${gib(all.free)} GiB` : "not known"],
    ["Nodes", all.nodes],
    ["Gpus", all.usable === all.gpus ? all.gpus : `${all.usable} usable of ${all.gpus}`],
    ["Pods with GPUs", all.pods],
    ["Pods waiting", all.pending],
    ...(all.problems ? [["Problems", all.problems]] : []),
  ];
  fill($("sums"), ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  $("waiting-count").textContent = all.pending ? `(${all.pending})` : "";
  fill($("warnings"), ...model.head.warnings.map((text) => element("li", {}, text)));
  $("warnings").hidden = !model.head.warnings.length;
}

function options(select, values) {
  const wanted = JSON.stringify(values);
  if (select.dataset.values === wanted) return;
  const chosen = select.value;
  select.dataset.values = wanted;
  fill(select, ...Object.entries(values).map(([value, text]) => element("option", { value }, text)));
  select.value = chosen in values ? chosen : Object.keys(values)[0];
}

function choices() {
  const { namespaces, models } = model.terms;
  const wanted = JSON.stringify(namespaces);
  if ($("namespaces").dataset.values !== wanted) {
    $("namespaces").dataset.values = wanted;
    fill($("namespaces"), ...namespaces.map((value) => element("option", { value })));
  }
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
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select") && !$("filters").hidden) {
    event.preventDefault();
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

const columns = (width) => Math.max(1, Math.floor((width - 24) / GPU_WIDTH));

function nodeFacts(node) {
  const { total, allocated } = memory(node);
  const usable = node.gpus.filter((gpu) => !/[BC]/.test(gpu[GPU.marks])).length;
  const unknown = node.pods.filter((pod) => pod[POD.gpus] === null).length;
  return [
    `${gib(allocated)} of ${gib(total)} GiB`,
    ...(usable < node.gpus.length ? [`${usable} of ${node.gpus.length} GPUs usable`] : []),
    ...(node.cordoned ? ["cordoned"] : []),
    ...(unknown ? [`${unknown} ${unknown === 1 ? "pod" : "pods"} on unknown GPUs`] : []),
    ...(node.error ? [node.error] : []),
    ...(node.problems.length ? [`${node.problems.length} problems`] : []),
  ].join(" · ");
}

function nodeRow(node, width) {
  const on = holders(node);
  const gpus = element(
    "ul",
    { class: "gpus", role: "list" },
    ...node.gpus.map((gpu) => {
      const marked = /[BC]/.test(gpu[GPU.marks]) ? "bad" : gpu[GPU.marks] ? "warn" : "";
      const state = gpu[GPU.state] === "ok" ? "" : ` ${gpu[GPU.state]}`;
      const label = element(
        "span",
        { class: "label" },
        element("span", {}, `GPU ${gpu[GPU.index]}`, element("span", { class: marked }, state)),
        element("span", {}, `${gpu[GPU.allocated]}/${gpu[GPU.units]} ${node.unit}`),
      );
      return element("li", {}, label, ...bar(node, gpu, on.get(String(gpu[GPU.index])), filters.namespace));
    }),
  );
  gpus.style.gridTemplateColumns = `repeat(${columns(width)}, minmax(0, 1fr))`;
  const line = element("div", { class: "line" }, link(`#/node/${encodeURIComponent(node.name)}`, node.name), element("span", {}, nodeFacts(node)));
  return element("li", {}, line, gpus);
}

const nodeHeight = (node, width) => 13 + 24 + Math.ceil(node.gpus.length / columns(width)) * 44;

const podPath = (namespace, name) => `#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

function podGpus(node, pod) {
  const gpus = Object.entries(pod[POD.gpus] ?? {});
  if (pod[POD.gpus] === null) return "GPU unknown";
  return gpus.map(([index, units]) => `${units} ${node.unit ?? "units"} of GPU ${index}`).join(", ") || "no GPUs";
}

function podRow({ node, pod }, width) {
  const name = link(podPath(pod[POD.namespace], pod[POD.name]), `${pod[POD.namespace]}/${pod[POD.name]}`);
  const state = element("span", { class: pod[POD.state] === "bound" || pod[POD.state] === "whole" ? "" : "warn" }, pod[POD.state]);
  const at = element("span", {}, `${node.name}: ${podGpus(node, pod)}`);
  if (width < NARROW) return element("li", {}, element("div", { class: "line" }, name, state), element("div", { class: "line" }, at));
  return element("li", {}, element("div", { class: "line" }, name, at, state));
}

function waitingRow(pod, width) {
  const name = link(podPath(pod.namespace, pod.name), `${pod.namespace}/${pod.name}`);
  const facts = element("span", { class: pod.invalid ? "bad" : "" }, pod.invalid ? "invalid request" : pod.request);
  const reason = pod.reason || "kube-scheduler has reported nothing yet";
  return element("li", {}, element("div", { class: "line" }, name, facts), element("p", { class: "reason" }, reason));
}

// One object per row as long as its pod does not change, so that its element stays.
const LISTS = {
  nodes: {
    title: "Nodes",
    states: NODE_STATES,
    select: () => model.selectNodes(filters),
    all: () => model.nodes.size,
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
    render: podRow,
    height: (_, width) => (width < NARROW ? 62 : 38),
    key: ({ node, key }) => `${node.name}/${key}`,
    empty: "No pod has what the filter selects.",
  },
  waiting: {
    title: "Pods that wait for GPUs",
    states: WAITING_STATES,
    select: () => model.selectWaiting(filters),
    all: () => model.waiting.size,
    render: waitingRow,
    height: () => 104,
    key: (pod) => pod.uid,
    empty: "No pod waits that the filter selects.",
  },
};

function listView(name) {
  const kind = LISTS[name];
  filters.state = filters.state in kind.states ? filters.state : "";
  options($("filter-state"), kind.states);
  $("filter-state").value = filters.state;
  $("filter-model").closest("p").hidden = name === "waiting";
  $("sort-field").hidden = name !== "nodes";
  options($("filter-sort"), SORTS);
  $("filters").hidden = false;
  $("view-title").textContent = kind.title;
  const list = new List($("view-body"), { label: kind.title, ...kind });
  let drawn = "";
  return {
    name,
    close: () => list.close(),
    refresh() {
      if (drawn !== filters.namespace) list.shown.forEach((one) => (one.item = null));
      drawn = filters.namespace;
      const items = kind.select();
      const all = kind.all();
      $("view-text").textContent = items.length === all ? `${all}` : `${items.length} of ${all}`;
      list.set(items);
    },
  };
}

// Pages of one thing: read again when something about it may have changed, but no more than every two seconds.

function pageView(name, title, path, concerns, render) {
  $("filters").hidden = true;
  $("view-title").textContent = title;
  $("view-text").textContent = "";
  const body = element("div", { class: "page" }, element("p", {}, "Loading"));
  fill($("view-body"), body);
  const abort = new AbortController();
  let timer;
  let at = 0;
  const read = async () => {
    timer = undefined;
    at = Date.now();
    try {
      const data = await server.get(path, abort.signal);
      if (!abort.signal.aborted) fill(body, ...render(data));
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
    } else if (name === "pod" && first && second) {
      const path = `/api/pods/${encodeURIComponent(first)}/${encodeURIComponent(second)}`;
      view = pageView("pod", `Pod ${first}/${second}`, path, () => true, podPage);
    } else if (name === "history") view = historyView();
    else view = listView(LISTS[name] ? name : "nodes");
    view.hash = location.hash;
    const current = { node: "nodes", pod: "pods" }[view.name] ?? view.name;
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
