// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The pages of one node, one GPU and one pod.

import { GPU, POD, age, busy, gib, holders, isIdle, percent, podMemory, podUnused } from "./model.js";
import { gpuChart } from "./chart.js";
import { bar, copyButton, element, facts, folded, link, table } from "./dom.js";

const podLink = (namespace, name) => link(`#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, `${namespace}/${name}`);
const nodeLink = (name) => link(`#/node/${encodeURIComponent(name)}`, name);
const namespaceLink = (name) => link(`#/namespace/${encodeURIComponent(name)}`, name);
// Nothing is free of a GPU that takes no pods, and nobody knows it where only some pods could be read.
const free = (gpu) => (/[BC]/.test(gpu[GPU.marks]) ? "–" : (gpu[GPU.free] ?? "?"));
const nowrap = (text) => element("span", { class: "nowrap" }, text);
const state = (gpu) => element("span", { class: gpu[GPU.marks].includes("B") ? "bad nowrap" : "nowrap" }, gpu[GPU.state]);
const stateOf = (pod) => element("span", { class: /GPU (bad|gone)/.test(pod) ? "bad nowrap" : "nowrap" }, pod);
// Unix time since when a pod has kept nothing busy, 0 if it has not, or nobody knows.
const idleFor = (since) => (since ? element("time", { "data-created": since }, age(since)) : "–");
const gone = (what) => [element("p", {}, `There is no such ${what} any more, or it has no shared GPUs.`)];

// data: a node of docs/reference/ledger-v1.schema.json; row: the same in the list.
export function nodePage(data, row) {
  if (!data || !row) return gone("node");
  const on = holders(row);
  const byIndex = new Map(row.gpus.map((gpu) => [gpu[GPU.index], gpu]));
  const gpus = data.gpus.flatMap((gpu) => {
    const known = byIndex.get(gpu.index);
    if (!known) return [];
    const bars = element("div", {}, ...bar(row, known, on.get(String(gpu.index))));
    return [[gpu.index, state(known), bars, `${known[GPU.allocated]}/${gpu.units}`, free(known), busy(known[GPU.busy]), nowrap(gpu.model), nowrap(gpu.pci), nowrap(gpu.uuid)]];
  });
  const states = new Map(row.pods.map((pod) => [`${pod[POD.namespace]}/${pod[POD.name]}`, pod[POD.state]]));
  const pods = data.pods.map((pod) => [
    podLink(pod.namespace, pod.name),
    pod.by_gpu ? Object.entries(pod.by_gpu).map(([index, units]) => `GPU ${index}: ${units}`).join(", ") : "GPU unknown",
    stateOf(states.get(`${pod.namespace}/${pod.name}`) ?? pod.state),
    pod.priority,
  ]);
  const held = data.held.map((one) => [one.pod, one.gpu, one.units, one.why]);
  const problems = [...(data.error ? [data.error] : []), ...data.problems];
  return [
    facts(["Unit", data.unit ?? "not known"], ["Placement", data.placement], ["Strategy", data.strategy], ["Isolation", data.isolation],
      ["Node", row.cordoned ? "cordoned with kubectl cordon" : "takes new pods"]),
    ...(problems.length ? [element("h3", {}, "Problems"), element("ul", {}, ...problems.map((text) => element("li", {}, text)))] : []),
    element("h3", {}, "GPUs"),
    table("GPUs", ["GPU", "State", "Pods", "Allocated", "Free", "SMs busy", "Model", "PCI", "UUID"], gpus),
    element("h3", {}, "Pods"),
    pods.length ? table("Pods", ["Pod", "Units", "State", "Priority"], pods) : element("p", {}, "None."),
    ...(held.length ? [element("h3", {}, "Reported by the node only"), table("Reported by the node only", ["Pod", "GPU", "Units", "Why"], held)] : []),
  ];
}

// data, row: as for a node; changes: of this GPU since the page was opened.
export function gpuPage(data, row, index, changes, width) {
  const gpu = data?.gpus.find((one) => one.index === index);
  const known = row?.gpus.find((one) => one[GPU.index] === index);
  if (!gpu || !known) return gone("GPU");
  const on = holders(row).get(String(index)) ?? [];
  const pods = on.map((pod) => [podLink(pod.namespace, pod.key.slice(pod.namespace.length + 1)), `${pod.units} ${row.unit ?? "units"}`, busy(pod.busy), idleFor(pod.idle), stateOf(pod.state)]);
  const columns = { time: [], total: [], allocated: [] };
  for (const one of changes) {
    columns.time.push(one.time);
    columns.total.push(one.units);
    columns.allocated.push(one.allocated);
  }
  return [
    facts(["Node", nodeLink(row.name)], ["State", state(known)], ["Model", gpu.model], ["Allocated", `${known[GPU.allocated]} of ${gpu.units} ${row.unit ?? "units"}`],
      ["In use", known[GPU.used] === null ? "" : `${gib(known[GPU.used])} GiB`], ["SMs busy", known[GPU.busy] === null ? "" : busy(known[GPU.busy])], ["UUID", gpu.uuid], ["PCI", gpu.pci]),
    element("div", {}, ...bar(row, known, on)),
    element("h3", {}, "Pods"),
    pods.length ? table("Pods", ["Pod", "Memory", "SMs busy", "Nothing busy for", "State"], pods) : element("p", {}, "None."),
    element("h3", {}, "Since this page was opened"),
    ...gpuChart(columns, width, row.unit ?? "units"),
  ];
}

// data: {pods: […]} of /api/pods; events: {events, problem}, null before they were read.
export function podPage(data, events) {
  const shown = data?.pods.length ? data.pods.flatMap((pod) => (pod.kind === "bound" ? bound(pod) : waiting(pod))) : gone("pod");
  return [...shown, ...(events ? eventsOf(events) : [])];
}

function eventsOf({ events, problem }) {
  const rows = events.map((event) => [
    element("time", event.time ? { "data-created": event.time } : {}, age(event.time)),
    element("span", { class: event.type === "Normal" ? "" : "warn" }, event.reason),
    event.count > 1 ? `${event.message} (${event.count} times)` : event.message,
    event.source,
  ]);
  const none = problem ? `Not known: ${problem}.` : "None. Kubernetes keeps them for an hour.";
  return [element("h3", {}, "Events"), rows.length ? table("Events", ["Age", "Reason", "Message", "From"], rows) : element("p", {}, none)];
}

const RESOURCES = { "aliyun.com/gpu-mem": "units of memory", "aliyun.com/gpu-count": "whole GPUs", "aliyun.com/gpu-core.percentage": "% of compute" };
const MOST_PODS = 500;

// data: {quotas, problem} of /api/namespaces.
export function namespacePage(name, data, model) {
  const pods = model.pods.filter(({ pod }) => pod[POD.namespace] === name);
  const waits = [...model.waiting.values()].filter((pod) => pod.namespace === name);
  const sums = model.namespaces.get(name) ?? { mib: 0, unused: 0, unknown: 0 };
  const total = model.head.sums.total;
  const known = pods.length - sums.unknown;
  const quotas = (data?.quotas ?? []).map((one) => [one.quota, RESOURCES[one.resource] ?? one.resource, one.used, one.hard, Math.max(0, one.hard - one.used)]);
  const none = data?.problem ? `Not known: ${data.problem}.` : "No ResourceQuota of this namespace limits GPUs.";
  const idle = pods.filter(isIdle);
  const row = (one) => [
    link(`#/pod/${encodeURIComponent(name)}/${encodeURIComponent(one.pod[POD.name])}`, one.pod[POD.name]),
    nodeLink(one.node.name),
    `${gib(podMemory(one))} GiB`,
    one.pod[POD.used] === null ? "–" : `${gib(one.pod[POD.used])} GiB`,
    busy(one.pod[POD.busy]),
    idleFor(one.pod[POD.idle]),
    element("time", { "data-created": one.pod[POD.created] }, age(one.pod[POD.created])),
    stateOf(one.pod[POD.state]),
  ];
  const list = (label, some) => {
    const shown = [...some].sort((a, b) => (podUnused(b) ?? -1) - (podUnused(a) ?? -1) || podMemory(b) - podMemory(a)).slice(0, MOST_PODS);
    const more = some.length > shown.length ? [element("p", {}, `And ${some.length - shown.length} more.`)] : [];
    return [table(label, ["Pod", "Node", "Allocated", "In use", "SMs busy", "Nothing busy for", "Age", "State"], shown.map(row)), ...more];
  };
  return [
    facts(["Allocated", `${gib(sums.mib)} GiB${total ? ` (${percent(sums.mib, total)} % of all)` : ""}`], ["Pods with GPUs", pods.length], ["Pods waiting", waits.length],
      ["Unused", known ? `${gib(sums.unused)} GiB` : "not known"]),
    element("h3", {}, "Quota"),
    quotas.length ? table("Quota", ["ResourceQuota", "Of", "Used", "Limit", "Left"], quotas) : element("p", {}, none),
    element("h3", {}, "Idle: keeps nothing busy, or uses less than a tenth of its memory"),
    ...(idle.length ? list("Idle", idle) : [element("p", {}, idleWords(model.head.uses, pods.length, known))]),
    ...(idle.length && known < pods.length ? [element("p", {}, `Of ${pods.length - known} more pods the memory in use is not known.`)] : []),
    ...(waits.length ? [element("h3", {}, "Waiting"), table("Waiting", ["Pod", "Request"], waits.slice(0, MOST_PODS).map((pod) => [podLink(name, pod.name), pod.invalid ? "invalid request" : pod.request]))] : []),
    element("h3", {}, "Pods"),
    ...(pods.length ? list("Pods", pods) : [element("p", {}, "None has GPUs.")]),
  ];
}

function idleWords(uses, pods, known) {
  if (!pods) return "No pod has GPUs.";
  if (uses === "off") return "Not known: no node publishes it, and the dashboard was started without --prometheus URL.";
  if (uses) return `Not known: ${uses}.`;
  if (!known) return "Not known: nobody has the memory in use of these pods. Do their nodes publish it, or does Prometheus scrape the device plugins?";
  return known < pods ? `None of the ${known} pods whose memory in use is known, of ${pods}.` : "None: each pod keeps something busy, and uses a tenth of its memory or more.";
}

function bound(pod) {
  const gpus = (pod.gpus ?? []).map((gpu) => [gpu.index, nowrap(gpu.state), `${gpu.units} of ${gpu.of ?? "?"}`, nowrap(gpu.model), nowrap(gpu.uuid)]);
  return [
    facts(["State", stateOf(pod.state)], ["Namespace", namespaceLink(pod.namespace)], ["Node", nodeLink(pod.node)], ["Request", pod.request], ["Unit", pod.unit ?? ""], ["Priority", pod.priority ?? ""],
      ["In use", pod.used === null ? "" : `${gib(pod.used)} GiB`], ["SMs busy", pod.busy === null ? "" : busy(pod.busy)], ["Nothing busy for", pod.idle ? idleFor(pod.idle) : ""], ["UID", pod.uid]),
    element("h3", {}, "GPUs"),
    gpus.length ? table("GPUs", ["GPU", "State", "Units", "Model", "UUID"], gpus) : element("p", {}, "Its GPU is not known."),
  ];
}

function waiting(pod) {
  if (pod.kind === "invalid") {
    return [element("p", { class: "verdict bad" }, pod.reason), facts(["State", "invalid request"], ["UID", pod.uid])];
  }
  const own = facts(["State", "pending"], ["Namespace", namespaceLink(pod.namespace)], ["Request", pod.request], ["Priority", pod.priority], ["UID", pod.uid]);
  const words = folded(`${pod.who}'s own words`, element("p", {}, pod.reported || "It has reported nothing yet."));
  const verdict = pod.verdict ? [element("p", { class: "verdict" }, pod.verdict, ...(pod.copy ? [" ", copyButton(pod.copy)] : []))] : [];
  if (!pod.judged) {
    const known = "Which nodes have room is not known here: that takes the rights to list nodes and the pods of all namespaces.";
    return [...verdict, element("p", {}, known), own, words];
  }
  const rows = pod.nodes.map((node) => [
    nodeLink(node.name),
    element("span", { class: node.fits ? "good" : "bad" }, node.fits ? `yes, GPU ${node.gpus.join(", ")}` : "no"),
    reasonOf(node),
  ]);
  const more = pod.all_nodes - rows.length;
  return [
    ...verdict,
    own,
    words,
    element("h3", {}, `GPUs have room on ${pod.fitting_nodes} of ${pod.all_nodes} nodes`),
    element("p", {}, pod.note),
    table("Nodes", ["Node", "Fits", "Reason"], rows),
    ...(more > 0 ? [element("p", {}, `And ${more} more nodes.`)] : []),
  ];
}

// Why not on a node, and below it what would help, each with what to copy.
function reasonOf(node) {
  const cures = node.cures.map((cure) => element("li", {}, `it fits if you ${cure.text}`, ...(cure.copy ? [" ", copyButton(cure.copy)] : [])));
  const text = [node.reason, node.kept].filter(Boolean).join("; ");
  return element("div", {}, text, ...(cures.length ? [element("ul", { class: "cures" }, ...cures)] : []));
}
