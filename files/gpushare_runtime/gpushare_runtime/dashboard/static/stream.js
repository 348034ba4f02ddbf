// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
// The server's data: requests with the token, and the stream of differences, which comes back after every interruption.

const SILENT_MS = 35_000;
const LONGEST_MS = 15_000;

// expected: which token the server takes, in its words.
export class Unauthorized extends Error {
  constructor(text = "") {
    super(text);
    this.expected = /; expected (.{1,200})/.exec(text)?.[1] ?? "";
  }
}

export class Server {
  constructor(token) {
    this.token = token;
  }

  // JSON of a path; null where the server has none.
  async get(path, signal) {
    const response = await this._fetch(path, signal);
    return response.status === 404 ? null : response.json();
  }

  async _fetch(path, signal) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    const response = await fetch(path, { headers, signal, cache: "no-store" });
    if (response.status === 401) throw new Unauthorized(await response.text());
    if (!response.ok && response.status !== 404) throw new Error((await response.text()).slice(0, 300));
    return response;
  }

  // on.whole(data), on.change(data), on.status(data), on.reading(data), on.lost(error); ends with Unauthorized.
  async follow(on, version) {
    let wait = 500;
    let current = false;
    for (;;) {
      try {
        if (!current) {
          let whole = await this.get("/api/state");
          while (!whole.synced) {
            on.reading(whole);
            await sleep(500);
            whole = await this.get("/api/state");
          }
          on.whole(whole);
          current = true;
        }
        current = await this._events({ ...on, status: (data) => ((wait = 500), on.status(data)) }, version());
      } catch (error) {
        if (error instanceof Unauthorized) throw error;
        on.lost(error);
        await sleep(wait + Math.random() * 500);
        wait = Math.min(LONGEST_MS, wait * 2);
      }
    }
  }

  // false if the server no longer has the differences since that version, so that the whole is needed. Throws when the stream ends.
  async _events(on, version) {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENT_MS);
    try {
      const response = await this._fetch(`/api/events?since=${encodeURIComponent(version)}`, abort.signal);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the server ended the connection");
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENT_MS);
        if (!value.includes("\n")) {
          // In the middle of a long line.
          rest += value;
          continue;
        }
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
          if (fields.event === "reset") return false;
          on[fields.event]?.(JSON.parse(fields.data));
        }
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
