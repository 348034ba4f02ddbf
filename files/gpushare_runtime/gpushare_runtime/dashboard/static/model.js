// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// What the page knows of the cluster: the whole of a version, and the differences since. No DOM.

const order = new Intl.Collator("en", { numeric: true });
const before = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export const GPU = { index: 0, model: 1, units: 2, allocated: 3, free: 4, used: 5, marks: 6, state: 7, busy: 8 };
export const POD = { namespace: 0, name: 1, state: 2, gpus: 3, created: 4, used: 5, busy: 6, idle: 7 };
export const NODE_STATES = {
  "": "any",
  room: "has free memory",
  full: "no free memory",
  bad: "bad GPU",
  cordoned: "cordoned node or GPU",
  whole: "whole GPU",
  orphaned: "orphaned units",
  problem: "problems",
};
export const POD_STATES = {
  "": "any",
  bound: "bound",
  whole: "whole GPU",
  terminating: "terminating",
  orphaned: "orphaned",
  "record lost": "record lost",
  unmanaged: "unmanaged",
  unknown: "GPU unknown",
};
export const WAITING_STATES = { "": "any", pending: "pending", invalid: "invalid request" };
export const NODE_SORTS = { name: "name", free: "most free memory", allocated: "most allocated memory" };
export const POD_SORTS = { name: "Pod", node: "Node", gpu: "GPU", memory: "Memory", unused: "Unused", busy: "SMs busy", age: "Age", state: "State" };
export const NAMESPACE_SORTS = { memory: "most memory", unused: "most unused memory", waiting: "most waiting pods", name: "name" };
const MOST_CHANGES = 200; // of one GPU

export class Model {
  constructor() {
    this.clear();
  }

  clear() {
    this.version = "";
    this.head = { sums: {}, warnings: [], complete: true, knows_nodes: true };
    this.nodes = new Map();
    this.waiting = new Map();
    this._sorted = null;
    this._pods = null;
    this._terms = null;
    this._namespaces = null;
    this._changes = new Map();
  }

  // The whole of a version.
  replace(whole) {
    const changes = this._changes;
    this.clear();
    this._changes = changes;
    this._take(whole);
  }

  // The differences of the next version; the names of the nodes that differ.
  apply(difference) {
    for (const name of difference.gone) this.nodes.delete(name);
    for (const uid of difference.done) this.waiting.delete(uid);
    this._take(difference);
    return new Set([...difference.gone, ...difference.nodes.map((node) => node.name)]);
  }

  _take({ nodes, waiting, gone, done, ...head }) {
    for (const node of nodes) {
      this._note(this.nodes.get(node.name), node);
      this.nodes.set(node.name, node);
    }
    for (const pod of waiting) this.waiting.set(pod.uid, pod);
    this.head = head;
    this.version = head.version;
    if (nodes.length || gone?.length) this._sorted = this._pods = this._terms = null;
    this._namespaces = null;
  }

  // What a GPU had when it changed, since the page was opened: [{time, units, allocated}], time in Unix seconds.
  changesOf(name, index) {
    const gpu = this.nodes.get(name)?.gpus.find((one) => one[GPU.index] === index);
    const now = gpu ? [{ time: Math.floor(Date.now() / 1000), units: gpu[GPU.units], allocated: gpu[GPU.allocated] }] : [];
    return [...(this._changes.get(`${name}/${index}`) ?? []), ...now];
  }

  _note(before, node) {
    const time = Math.floor(Date.now() / 1000);
    const had = new Map((before?.gpus ?? []).map((gpu) => [gpu[GPU.index], gpu]));
    for (const gpu of node.gpus) {
      const old = had.get(gpu[GPU.index]);
      if (!old || old[GPU.allocated] === gpu[GPU.allocated]) continue;
      const key = `${node.name}/${gpu[GPU.index]}`;
      const kept = this._changes.get(key) ?? [];
      for (const one of [old, gpu]) kept.push({ time, units: one[GPU.units], allocated: one[GPU.allocated] });
      this._changes.set(key, kept.slice(-MOST_CHANGES));
    }
  }

  get sorted() {
    this._sorted ??= [...this.nodes.values()].sort((a, b) => order.compare(a.name, b.name));
    return this._sorted;
  }

  // [node, pod] of every pod with something of a GPU, by namespace and name.
  get pods() {
    this._pods ??= this.sorted
      .flatMap((node) => node.pods.map((pod) => ({ node, pod, key: `${pod[POD.namespace]}/${pod[POD.name]}` })))
      .sort((a, b) => before(a.key, b.key));
    return this._pods;
  }

  // The namespaces and models that there are to choose from; and the namespaces that have GPUs, those with most memory first.
  get terms() {
    if (!this._terms) {
      const memories = new Map();
      const models = new Set();
      for (const node of this.nodes.values()) {
        for (const pod of node.pods) memories.set(pod[POD.namespace], (memories.get(pod[POD.namespace]) ?? 0) + podMemory({ node, pod }));
        for (const gpu of node.gpus) models.add(gpu[GPU.model]);
      }
      const byMemory = [...memories].sort((a, b) => b[1] - a[1] || before(a[0], b[0])).map(([name]) => name);
      this._terms = { byMemory, models: [...models].sort(before) };
    }
    const namespaces = new Set(this._terms.byMemory);
    for (const pod of this.waiting.values()) namespaces.add(pod.namespace);
    return { ...this._terms, namespaces: [...namespaces].sort(before) };
  }

  // {name, pods, waiting, mib, unused, unknown} of each namespace by name. unused: MiB that its pods have and do not use, as far as that
  // is known; unknown: pods of which it is not.
  get namespaces() {
    if (this._namespaces) return this._namespaces;
    const found = new Map();
    const of = (name) => {
      if (!found.has(name)) found.set(name, { name, pods: 0, waiting: 0, mib: 0, unused: 0, unknown: 0 });
      return found.get(name);
    };
    for (const one of this.pods) {
      const sums = of(one.pod[POD.namespace]);
      const unused = podUnused(one);
      sums.pods += 1;
      sums.mib += podMemory(one);
      sums.unused += unused ?? 0;
      sums.unknown += unused === null;
    }
    for (const pod of this.waiting.values()) of(pod.namespace).waiting += 1;
    this._namespaces = found;
    return found;
  }

  selectNamespaces({ text, sort }) {
    const found = [...this.namespaces.values()].filter(({ name }) => !text || name.includes(text)).sort((a, b) => before(a.name, b.name));
    const by = { memory: "mib", unused: "unused", waiting: "waiting" }[sort];
    return by ? found.sort((a, b) => b[by] - a[by]) : found;
  }

  _ofNamespace(wanted) {
    if (!wanted) return () => true;
    const exact = this.terms.namespaces.includes(wanted);
    return (namespace) => (exact ? namespace === wanted : namespace.startsWith(wanted));
  }

  selectNodes({ text, namespace, model, state, sort }) {
    const ofNamespace = this._ofNamespace(namespace);
    const found = this.sorted.filter(
      (node) =>
        (!text || node.name.includes(text)) &&
        (!namespace || node.pods.some((pod) => ofNamespace(pod[POD.namespace]))) &&
        (!model || node.gpus.some((gpu) => gpu[GPU.model] === model)) &&
        (!state || nodeHas(node, state)),
    );
    if (sort === "free" || sort === "allocated") {
      const sums = new Map(found.map((node) => [node, memory(node)[sort]]));
      found.sort((a, b) => sums.get(b) - sums.get(a));
    }
    return found;
  }

  selectPods({ text, namespace, model, state, sort }) {
    const ofNamespace = this._ofNamespace(namespace);
    const found = this.pods.filter(
      ({ node, pod }) =>
        (!text || pod[POD.name].includes(text) || node.name.includes(text)) &&
        ofNamespace(pod[POD.namespace]) &&
        (!state || (state === "unknown" ? pod[POD.gpus] === null : pod[POD.state].split(",")[0] === state)) &&
        (!model || node.gpus.some((gpu) => gpu[GPU.model] === model && pod[POD.gpus]?.[gpu[GPU.index]] !== undefined)),
    );
    const by = POD_ORDER[sort];
    return by ? found.sort(by) : found;
  }

  selectWaiting({ text, namespace, state }) {
    const ofNamespace = this._ofNamespace(namespace);
    return [...this.waiting.values()]
      .filter(
        (pod) =>
          (!text || pod.name.includes(text)) && ofNamespace(pod.namespace) && (!state || pod.invalid === (state === "invalid")),
      )
      .sort((a, b) => before(a.namespace, b.namespace) || before(a.name, b.name));
  }
}

function nodeHas(node, state) {
  const marked = (mark) => node.gpus.some((gpu) => gpu[GPU.marks].includes(mark));
  switch (state) {
    case "room":
      return !node.cordoned && node.gpus.some((gpu) => gpu[GPU.free] > 0);
    case "full":
      return node.gpus.length > 0 && !node.gpus.some((gpu) => gpu[GPU.free] > 0);
    case "bad":
      return marked("B");
    case "cordoned":
      return node.cordoned || marked("C");
    case "whole":
      return marked("W");
    case "orphaned":
      return marked("O");
    default:
      return Boolean(node.problems.length || node.error);
  }
}

// Of one node, in MiB.
export function memory(node) {
  const sums = { total: 0, allocated: 0, free: 0 };
  for (const gpu of node.gpus) {
    sums.total += gpu[GPU.units] * node.mib;
    sums.allocated += gpu[GPU.allocated] * node.mib;
    sums.free += (gpu[GPU.free] ?? 0) * node.mib;
  }
  return sums;
}

// What a pod has of a node's GPUs, in MiB; 0 where the GPU is not known.
export function podMemory({ node, pod }) {
  return Object.values(pod[POD.gpus] ?? {}).reduce((sum, units) => sum + units, 0) * node.mib;
}

// MiB that a pod has and does not use; null where its use is not known.
export function podUnused({ node, pod }) {
  return pod[POD.used] === null || pod[POD.gpus] === null ? null : Math.max(0, podMemory({ node, pod }) - pod[POD.used]);
}

// Who keeps nothing busy, or uses next to nothing of the memory.
export const isIdle = (one) => one.pod[POD.idle] > 0 || (podUnused(one) !== null && podMemory(one) > 0 && one.pod[POD.used] * 10 < podMemory(one));

// Those at rest for longest first, then those that do least; last those of which it is not known.
const byLoad = ({ pod: a }, { pod: b }) => (a[POD.idle] || Infinity) - (b[POD.idle] || Infinity) || (a[POD.busy] ?? Infinity) - (b[POD.busy] ?? Infinity);

const firstGpu = ({ pod }) => Number(Object.keys(pod[POD.gpus] ?? {})[0] ?? -1);
const byNode = (a, b) => order.compare(a.node.name, b.node.name);
// Equal ones stay in the order of their names.
const POD_ORDER = {
  node: byNode,
  gpu: (a, b) => byNode(a, b) || firstGpu(a) - firstGpu(b),
  memory: (a, b) => podMemory(b) - podMemory(a),
  unused: (a, b) => (podUnused(b) ?? -1) - (podUnused(a) ?? -1),
  busy: byLoad,
  age: (a, b) => b.pod[POD.created] - a.pod[POD.created],
  state: (a, b) => before(a.pod[POD.state], b.pod[POD.state]),
};

// The pods of each GPU: [{key, namespace, state, units}] by index.
export function holders(node) {
  const found = new Map(node.gpus.map((gpu) => [String(gpu[GPU.index]), []]));
  for (const pod of node.pods) {
    for (const [index, units] of Object.entries(pod[POD.gpus] ?? {})) {
      found.get(index)?.push({ key: `${pod[POD.namespace]}/${pod[POD.name]}`, namespace: pod[POD.namespace], state: pod[POD.state], units, busy: pod[POD.busy], idle: pod[POD.idle] });
    }
  }
  return found;
}

// As kubectl has it for most ages; now: Unix time.
export function age(created, now = Date.now() / 1000) {
  if (!created) return "–";
  const seconds = Math.max(0, Math.floor(now - created));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)}${unit}`;
  return `${seconds}s`;
}

// As the command line has it: never more than there is.
export function gib(mib) {
  return `${Math.floor((mib / 1024) * 100) / 100}`;
}

// Percent of the SMs of one GPU.
export const busy = (value) => (value === null || value === undefined ? "–" : `${value} %`);

export const percent = (part, all) => Math.floor((100 * part) / all);
