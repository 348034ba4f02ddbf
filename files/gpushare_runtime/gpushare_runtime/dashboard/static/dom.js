// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// Elements with text in them, never HTML.

import { GPU } from "./model.js";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(key, value);
  if (name === "option") made.value = attributes.value;
  made.append(...children.map((child) => (child instanceof Node ? child : String(child ?? ""))));
  return made;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children);
}

export function link(href, text) {
  return element("a", { href }, text);
}

// A table that scrolls by itself where the page is narrow. rows: arrays of texts and elements.
export function table(label, headers, rows) {
  const head = element("tr", {}, ...headers.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "table", role: "region", "aria-label": label, tabindex: "0" }, made);
}

export function facts(...pairs) {
  return element("dl", {}, ...pairs.filter(([, value]) => value !== "").flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// A button that copies a text, which it names for those who hear it. Where the browser permits no page to copy, the text is shown,
// selected, for Ctrl-C.
export function copyButton(text) {
  const made = element("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}`, title: text }, "Copy");
  made.dataset.copy = text;
  return made;
}

addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy;
  const said = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(text);
    fill(said, element("span", {}, "Copied: "), element("code", {}, text));
  } catch {
    const field = element("input", { readonly: "readonly", "aria-label": "The text to copy", value: text });
    fill(said, element("span", {}, "This browser lets no page copy here. Press Ctrl-C: "), field);
    field.focus();
    field.select();
    field.addEventListener("blur", () => fill(said), { once: true });
    return;
  }
  clearTimeout(copied);
  copied = setTimeout(() => fill(said), 4000);
});
let copied;

// Instead of the children of a page those that are made anew, if they differ: what has the focus keeps it, what is open stays open.
export function keep(page, children) {
  const made = page.cloneNode(false);
  made.append(...children);
  const open = new Set([...page.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  for (const one of made.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  if (made.isEqualNode(page)) return;
  const had = page.contains(document.activeElement) ? document.activeElement : null;
  const name = (one) => one.getAttribute("aria-label") ?? one.textContent;
  page.replaceChildren(...made.childNodes);
  if (had) [...page.querySelectorAll(had.tagName)].find((one) => name(one) === name(had))?.focus({ preventScroll: true });
}

// Text that is out of the way until somebody wants it.
export function folded(title, ...children) {
  const made = element("details", {}, element("summary", {}, title), ...children);
  made.dataset.key = title;
  return made;
}

// The colour of a namespace: a function of its name alone, so that every page has the same. Hues are those of OKLCH, whose lightness is
// what people see, from olive by green and blue to violet: none is the red of a failure or the amber of a warning. Two tones of each.
const FIRST_HUE = 118;
const HUES = 230;
export function colour(namespace) {
  let hash = 0x811c9dc5; // FNV-1a
  for (let at = 0; at < namespace.length; at++) hash = Math.imul(hash ^ namespace.charCodeAt(at), 0x01000193) >>> 0;
  // The last bits of similar names are similar.
  hash = Math.imul(hash ^ (hash >>> 15), 0x846ca68b) >>> 0;
  hash = (hash ^ (hash >>> 13)) >>> 0;
  return { hue: FIRST_HUE + (hash % HUES), tone: Math.floor(hash / HUES) % 2 };
}

function paint(part, namespace) {
  const { hue, tone } = colour(namespace);
  part.style.setProperty("--hue", hue);
  part.style.setProperty("--tone", tone);
}

// The colour of a namespace, or one of the patterns, as it is in the bars.
export function swatch(namespace, kind = "") {
  const part = element("i", { class: kind === "odd" ? kind : "" });
  if (!kind) paint(part, namespace);
  return element("span", { class: kind === "unusable" ? "bar unusable" : "bar", "aria-hidden": "true" }, ...(kind === "unusable" ? [] : [part]));
}

// The bar of one GPU: a part for each pod, its width is its units; and the used memory below, where it is known.
export function bar(node, gpu, pods = [], namespace = "") {
  const units = gpu[GPU.units] || 1;
  const parts = pods.map((pod) => {
    const part = element("i", { title: `${pod.key}: ${pod.units} ${node.unit ?? "units"}` });
    part.style.width = `${Math.min(100, (100 * pod.units) / units)}%`;
    if (/^(orphaned|record lost|unmanaged)/.test(pod.state)) part.className = "odd";
    else paint(part, pod.namespace);
    if (namespace && !pod.namespace.startsWith(namespace)) part.classList.add("dim");
    return part;
  });
  const said = pods.slice(0, 8).map((pod) => `${pod.key} ${pod.units}`);
  const more = pods.length > 8 ? `, and ${pods.length - 8} more` : "";
  const load = gpu[GPU.busy] === null ? "" : `, SMs busy ${gpu[GPU.busy]} %`;
  const text = `GPU ${gpu[GPU.index]}: ${gpu[GPU.allocated]} of ${gpu[GPU.units]} ${node.unit ?? "units"} allocated, ${gpu[GPU.state]}${load}`;
  const label = said.length ? `${text}; ${said.join(", ")}${more}` : text;
  const unusable = /[BC]/.test(gpu[GPU.marks]) ? "bar unusable" : "bar";
  const found = [element("div", { class: unusable, role: "img", "aria-label": label }, ...parts)];
  if (gpu[GPU.used] !== null) {
    const used = element("div", { class: "used", role: "img", "aria-label": `${gpu[GPU.used]} MiB used`, title: `${gpu[GPU.used]} MiB used` });
    used.style.width = `${Math.min(100, (100 * gpu[GPU.used]) / (units * node.mib || 1))}%`;
    found.push(used);
  }
  return found;
}
