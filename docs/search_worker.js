// Searches on pages that were opened from a folder, where browsers refuse to start workers:
// the worker's script runs in a hidden frame instead. The theme's `offline` plugin needs it.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #inside;
    #ready;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const page = frame.contentDocument;
      page.open();
      page.write("<!doctype html><html><body></body></html>");
      page.close();
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = page.createElement("script");
          script.onload = resolve;
          script.onerror = reject;
          script.src = new URL(source, location.href).href;
          page.body.append(script);
        });
      this.#inside = frame.contentWindow;
      this.#inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.#inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.#ready = load(url);
    }

    postMessage(data) {
      this.#ready.then(() => {
        this.#inside.dispatchEvent(new this.#inside.MessageEvent("message", { data }));
      });
    }
  };
}
