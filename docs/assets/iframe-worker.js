// Pages that are opened from a folder may start no web worker, and the search runs in one. A hidden
// frame takes its place: it loads the worker's script, and messages pass between the two windows.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>window.postMessage = (data) => parent.postMessage(data, '*')</script>" +
        `<script src="${url}"></script>`;
      this.loaded = new Promise((resolve) => (frame.onload = () => resolve(frame.contentWindow)));
      addEventListener("message", (event) => {
        if (event.source === frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      window.postMessage.call(await this.loaded, data, "*");
    }
  };
}
