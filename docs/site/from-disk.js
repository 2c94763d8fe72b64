// Browsers start no workers for pages that are opened from disk: there a hidden frame does a worker's work,
// so that the search answers without a server.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage?.({ data: copy }));
      };
      const script = inside.document.createElement("script");
      script.src = new URL(address, document.baseURI);
      script.onload = () => {
        for (const data of this.waiting) inside.onmessage({ data });
        this.waiting = null;
      };
      script.onerror = (error) => this.onerror?.(error);
      inside.document.body.append(script);
    }

    postMessage(data) {
      const copy = structuredClone(data); // neither side changes what the other has
      if (this.waiting) this.waiting.push(copy);
      else setTimeout(() => this.frame.contentWindow?.onmessage({ data: copy }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
