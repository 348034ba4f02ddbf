// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// A list of any length, of which only the rows in sight are in the document. Arrow keys, Home, End and Page move through all of it.

const BEYOND = 300; // pixels above and below that are kept ready

export class List {
  // render(item) → element with one link; height(item, width) → pixels; key(item) → unlike that of every other item.
  constructor(parent, { label, render, height, key, empty }) {
    Object.assign(this, { render, height, key });
    this.items = [];
    this.offsets = [0];
    this.shown = new Map();
    this.current = "";
    this.root = document.createElement("div");
    this.root.className = "scroller";
    this.canvas = document.createElement("ul");
    this.canvas.className = "canvas";
    this.canvas.setAttribute("role", "list");
    this.canvas.setAttribute("aria-label", label);
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    this.empty.textContent = empty;
    this.root.append(this.canvas, this.empty);
    parent.append(this.root);
    this.root.addEventListener("scroll", () => this.later());
    this.root.addEventListener("keydown", (event) => this.move(event));
    this.root.addEventListener("focusin", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(row.dataset.key);
    });
    this.watch = new ResizeObserver(() => {
      if (this.root.clientWidth !== this.width) this.measure();
      this.draw();
    });
    this.watch.observe(this.root);
  }

  close() {
    this.watch.disconnect();
    this.root.remove();
  }

  set(items) {
    this.items = items;
    this.at = new Map(items.map((item, index) => [this.key(item), index]));
    if (!this.at.has(this.current)) this.current = items.length ? this.key(items[0]) : "";
    this.empty.hidden = items.length > 0;
    this.measure();
    this.draw();
  }

  // The item of that key looks different now.
  forget(key) {
    const shown = this.shown.get(key);
    if (shown) shown.item = null;
  }

  measure() {
    this.width = this.root.clientWidth;
    let sum = 0;
    this.offsets = [0];
    for (const item of this.items) this.offsets.push((sum += this.height(item, this.width)));
    this.canvas.style.height = `${sum}px`;
  }

  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  // The index of the item at a height.
  find(y) {
    let low = 0;
    let high = this.items.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  draw() {
    const top = this.root.scrollTop;
    const first = this.items.length ? this.find(top - BEYOND) : 0;
    const last = this.items.length ? this.find(top + this.root.clientHeight + BEYOND) : -1;
    const wanted = new Map();
    for (let index = first; index <= last; index++) wanted.set(this.key(this.items[index]), index);
    // The row with the focus stays, so that the focus does.
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.closest(".row")?.dataset.key : undefined;
    if (focused !== undefined && this.at?.has(focused)) wanted.set(focused, this.at.get(focused));
    for (const [key, { element }] of this.shown) {
      if (!wanted.has(key)) {
        element.remove();
        this.shown.delete(key);
      }
    }
    let previous = null;
    for (const [key, index] of [...wanted].sort((a, b) => a[1] - b[1])) {
      const item = this.items[index];
      let shown = this.shown.get(key);
      if (!shown || shown.item !== item || shown.width !== this.width) {
        const element = this.render(item, this.width);
        element.classList.add("row");
        element.dataset.key = key;
        if (shown) {
          const had = shown.element.contains(document.activeElement) && document.activeElement.tagName;
          shown.element.replaceWith(element);
          if (had) (element.querySelector(had) ?? element.querySelector("a"))?.focus({ preventScroll: true });
        }
        shown = { element, item, width: this.width };
        this.shown.set(key, shown);
      }
      const { element } = shown;
      element.setAttribute("aria-setsize", this.items.length);
      element.setAttribute("aria-posinset", index + 1);
      element.style.transform = `translateY(${this.offsets[index]}px)`;
      element.style.height = `${this.offsets[index + 1] - this.offsets[index]}px`;
      for (const link of element.querySelectorAll("a, button")) link.tabIndex = key === this.current ? 0 : -1;
      // In the order of the list, which is that of screen readers.
      const next = previous ? previous.nextSibling : this.canvas.firstChild;
      if (next !== element) this.canvas.insertBefore(element, next);
      previous = element;
    }
    // Of a list whose current row is out of sight the first one in sight takes the Tab key.
    if (this.items.length && !wanted.has(this.current)) {
      const [key] = [...wanted].find(([, index]) => this.offsets[index] >= top) ?? [...wanted][0];
      this.select(key);
    }
  }

  select(key) {
    if (this.current === key) return;
    for (const [one, { element }] of this.shown) {
      if (one === this.current || one === key) for (const link of element.querySelectorAll("a, button")) link.tabIndex = one === key ? 0 : -1;
    }
    this.current = key;
  }

  move(event) {
    if (!this.items.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = this.at.get(this.current) ?? 0;
    const page = () => Math.max(1, this.find(this.offsets[index] + this.root.clientHeight) - index);
    const steps = { ArrowDown: () => 1, ArrowUp: () => -1, PageDown: page, PageUp: () => -page(), Home: () => -index, End: () => Infinity };
    const step = steps[event.key]?.();
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.min(this.items.length - 1, Math.max(0, index + step));
    this.select(this.key(this.items[next]));
    const top = this.offsets[next];
    const bottom = this.offsets[next + 1];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + this.root.clientHeight) this.root.scrollTop = bottom - this.root.clientHeight;
    this.draw();
    this.shown.get(this.current)?.element.querySelector("a")?.focus({ preventScroll: true });
  }
}
