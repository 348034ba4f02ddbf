// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The page of one node, and that of one pod.

import { CARD, holders } from "./model.js";
import { bar, element, facts, link, table } from "./dom.js";

const podLink = (namespace, name) => link(`#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, `${namespace}/${name}`);
const nodeLink = (name) => link(`#/node/${encodeURIComponent(name)}`, name);
const gone = (what) => [element("p", {}, `There is no such ${what} any more, or it has no shared cards.`)];

// data: a node of docs/reference/ledger-v1.schema.json; row: the same in the list.
export function nodePage(data, row) {
  if (!data || !row) return gone("node");
  const on = holders(row);
  const byIndex = new Map(row.cards.map((card) => [card[CARD.index], card]));
  const cards = data.cards.flatMap((card) => {
    const known = byIndex.get(card.index);
    if (!known) return [];
    const bars = element("div", {}, ...bar(row, known, on.get(String(card.index))));
    return [[card.index, card.model, bars, `${known[CARD.allocated]}/${card.units}`, card.free ?? "?", known[CARD.state], card.pci, card.uuid]];
  });
  const pods = data.pods.map((pod) => [
    podLink(pod.namespace, pod.name),
    pod.by_card ? Object.entries(pod.by_card).map(([index, units]) => `GPU ${index}: ${units}`).join(", ") : "card unknown",
    pod.state,
    pod.priority,
  ]);
  const held = data.held.map((one) => [one.pod, one.card, one.units, one.why]);
  const problems = [...(data.error ? [data.error] : []), ...data.problems];
  return [
    facts(["Unit", data.unit ?? "not known"], ["Placement", data.placement], ["Strategy", data.strategy], ["Isolation", data.isolation],
      ["Node", row.cordoned ? "cordoned with kubectl cordon" : "takes new pods"]),
    ...(problems.length ? [element("h3", {}, "Problems"), element("ul", {}, ...problems.map((text) => element("li", {}, text)))] : []),
    element("h3", {}, "Cards"),
    table("Cards", ["GPU", "Model", "Pods", "Allocated", "Free", "State", "PCI", "UUID"], cards),
    element("h3", {}, "Pods"),
    pods.length ? table("Pods", ["Pod", "Units", "State", "Priority"], pods) : element("p", {}, "None."),
    ...(held.length ? [element("h3", {}, "Reported by the node only"), table("Reported by the node only", ["Pod", "Card", "Units", "Why"], held)] : []),
  ];
}

// data: {pods: […]} of /api/pods.
export function podPage(data) {
  if (!data?.pods.length) return gone("pod");
  return data.pods.flatMap((pod) => (pod.kind === "bound" ? bound(pod) : waiting(pod)));
}

function bound(pod) {
  const cards = (pod.cards ?? []).map((card) => [card.index, `${card.units} of ${card.of ?? "?"}`, card.model, card.uuid]);
  return [
    facts(["State", pod.state], ["Node", nodeLink(pod.node)], ["Request", pod.request], ["Unit", pod.unit ?? ""], ["Priority", pod.priority ?? ""], ["UID", pod.uid]),
    element("h3", {}, "Cards"),
    cards.length ? table("Cards", ["GPU", "Units", "Model", "UUID"], cards) : element("p", {}, "Its card is not known."),
  ];
}

function waiting(pod) {
  if (pod.kind === "invalid") {
    return [facts(["State", "invalid request"], ["UID", pod.uid]), element("h3", {}, "What is wrong"), element("p", { class: "bad" }, pod.reason)];
  }
  const rows = pod.nodes.map((node) => [
    nodeLink(node.name),
    element("span", { class: node.fits ? "good" : "bad" }, node.fits ? `yes, GPU ${node.cards.join(", ")}` : "no"),
    `${node.reason}${node.cures.length ? `; it fits if you ${node.cures.join(", or ")}` : ""}`,
  ]);
  const more = pod.all_nodes - rows.length;
  return [
    facts(["State", "pending"], ["Request", pod.request], ["Priority", pod.priority], ["UID", pod.uid],
      ["Why it waits", pod.reason || "kube-scheduler has reported nothing yet"]),
    element("h3", {}, `Cards have room on ${pod.fitting_nodes} of ${pod.all_nodes} nodes`),
    element("p", {}, pod.note),
    table("Nodes", ["Node", "Fits", "Reason"], rows),
    ...(more > 0 ? [element("p", {}, `And ${more} more nodes.`)] : []),
  ];
}
