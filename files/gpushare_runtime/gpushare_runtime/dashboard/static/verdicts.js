// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The sentences about the pods in sight that wait: read one after the other, and again when they are old. No DOM.

const OLD_MS = 15_000;
const MOST = 1000;

export class Verdicts {
  // read(uid) → {verdict, copy}; arrived(uid): another sentence than before is known.
  constructor(read, arrived) {
    Object.assign(this, { read, arrived });
    this.found = new Map();
    this.wanted = new Set();
    this.reading = false;
  }

  known(pod) {
    return this.found.get(pod.uid);
  }

  want(pod) {
    const found = this.found.get(pod.uid);
    if (pod.verdict || (found && found.of === pod && Date.now() - found.at < OLD_MS)) return;
    this.wanted.add(pod);
    if (!this.reading) this.next();
  }

  async next() {
    this.reading = true;
    for (const pod of this.wanted) {
      this.wanted.delete(pod);
      const before = this.found.get(pod.uid);
      let now = null;
      try {
        now = await this.read(pod.uid);
      } catch {
        // The stream says that the connection is lost, and what was known stays.
      }
      const { verdict, copy } = now ?? before ?? { verdict: "", copy: "" };
      this.found.delete(pod.uid);
      this.found.set(pod.uid, { verdict, copy, of: pod, at: Date.now() });
      if (this.found.size > MOST) this.found.delete(this.found.keys().next().value);
      if (verdict !== (before?.verdict ?? "") || copy !== (before?.copy ?? "")) this.arrived(pod.uid);
    }
    this.reading = false;
  }
}
