// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The allocation over time as a picture, and the same in words and numbers.

import { element, table } from "./dom.js";

const HEIGHT = 220;
const LEFT = 56;
const RIGHT = 12;
const BOTTOM = 22;
const TOP = 24;
const ROWS = 12;

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const round = (number) => Math.floor(number * 100) / 100;

// data: columns of equal length, as /api/history sends them.
export function chart(data, width) {
  const problem = data.problem ? [element("p", { class: "warn" }, `${data.problem}. The page shows what it has seen itself.`)] : [];
  if (!data.time.length) return [...problem, element("p", {}, "Nothing was recorded yet.")];
  const scale = data.unit === "MiB" ? 1 / 1024 : 1;
  const unit = data.unit === "MiB" ? "GiB" : data.unit;
  const totals = data.total.map((value) => value * scale);
  const taken = data.allocated.map((value) => value * scale);
  const last = data.time.length - 1;
  const source = data.source === "Prometheus" ? "From Prometheus." : "Since the dashboard was started, at most twelve hours.";
  const words =
    `${round(taken[last])} of ${round(totals[last])} ${unit} are allocated now; at most ${round(Math.max(...taken))}, ` +
    `at least ${round(Math.min(...taken))} since ${clock(data.time[0])}. ${data.pending[last]} pods wait now, at most ${Math.max(...data.pending)}.`;
  // Where nothing tells how busy GPUs are, there is nothing to draw.
  const known = data.time.map((_, at) => at).filter((at) => data.busy[at] !== null);
  const busy = known.map((at) => data.busy[at]);
  const loads = `The SMs of all GPUs are busy for ${busy[busy.length - 1]} % of the time, at most ${Math.max(...busy)} %.`;
  const step = Math.max(1, Math.ceil(data.time.length / ROWS));
  const picked = data.time.map((_, at) => at).filter((at) => (last - at) % step === 0);
  const rows = picked.map((at) => [clock(data.time[at]), round(taken[at]), round(totals[at]), data.pending[at], data.busy[at] ?? "–"]);
  return [
    ...problem,
    element("p", {}, `${words} ${source}`),
    legend(["area", "allocated"], ["limit", "all GPUs"]),
    picture(data.time, taken, totals, width, unit, `Allocated memory, and all memory. ${words}`),
    element("h3", {}, "Pods that wait"),
    picture(data.time, null, data.pending, width, "pods", `Pods that wait. ${words}`),
    ...(known.length
      ? [element("h3", {}, "SMs busy"), element("p", {}, loads), picture(known.map((at) => data.time[at]), null, busy, width, "%", loads)]
      : []),
    element("h3", {}, "In numbers"),
    table("In numbers", ["Time", `Allocated (${unit})`, `All (${unit})`, "Pods waiting", "SMs busy (%)"], rows),
  ];
}

// data: columns of equal length: times in Unix seconds, units of the GPU, and those that were allocated.
export function gpuChart(data, width, unit) {
  const last = data.time.length - 1;
  const words = `${data.allocated[last]} of ${data.total[last]} ${unit} are allocated now, at most ${Math.max(...data.allocated)} since ${clock(data.time[0])}.`;
  return [element("p", {}, words), legend(["area", "allocated"], ["limit", "the whole GPU"]), picture(data.time, data.allocated, data.total, width, unit, `Allocated memory of the GPU. ${words}`)];
}

// What the marks of a picture mean: [class, words] of each.
function legend(...entries) {
  const sample = (kind) => (kind === "area" ? svg("rect", { class: kind, x: 0, y: 0, width: 18, height: 10 }) : svg("line", { class: kind, x1: 0, x2: 18, y1: 5, y2: 5 }));
  const drawn = ([kind, words]) => element("li", {}, svg("svg", { class: "chart sample", width: 18, height: 10, "aria-hidden": "true" }, sample(kind)), words);
  return element("ul", { class: "legend", "aria-label": "Marks" }, ...entries.map(drawn));
}

function picture(times, areas, lines, width, unit, label) {
  if (times.length === 1) {
    // A point has no width.
    return picture([times[0], times[0] + 1], areas && [...areas, ...areas], [...lines, ...lines], width, unit, label);
  }
  const from = times[0];
  const span = Math.max(1, times[times.length - 1] - from);
  // A scale that ends at the largest value would show any load as a full one.
  const most = unit === "%" ? 100 : Math.max(1, ...lines, ...(areas ?? []));
  const x = (time) => LEFT + ((time - from) / span) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const at = (values) => values.map((value, index) => `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`);
  // There is no half of a pod.
  const parts = [0, 0.5, 1].filter((part) => unit !== "pods" || Number.isInteger(part * most));
  const grid = parts.flatMap((part) => {
    const text = svg("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" });
    text.textContent = round(part * most);
    return [svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(part * most), y2: y(part * most) }), text];
  });
  const ends = [["start", 0], ...(span > 60 ? [["end", times.length - 1]] : [])].map(([anchor, index]) => {
    const text = svg("text", { x: x(times[index]), y: HEIGHT - 6, "text-anchor": anchor });
    text.textContent = clock(times[index]);
    return text;
  });
  const axis = svg("text", { class: "unit", x: LEFT - 6, y: 12, "text-anchor": "end" });
  axis.textContent = unit;
  const marks = [svg("polyline", { class: areas ? "limit" : "count", points: at(lines).join(" ") })];
  if (areas) {
    const points = [`${LEFT},${y(0)}`, ...at(areas), `${x(times[times.length - 1]).toFixed(1)},${y(0)}`];
    marks.unshift(svg("polygon", { class: "area", points: points.join(" ") }));
  }
  const made = svg("svg", { class: "chart", role: "img", "aria-label": label, viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT }, axis, ...grid, ...marks, ...ends);
  return made;
}
