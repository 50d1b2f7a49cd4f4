// Browsers start no worker from file://. There, a hidden frame runs the site's search instead.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = () => reject(new Error("cannot load " + source));
        inside.document.body.append(script);
      });
      inside.importScripts = async (...sources) => { for (const source of sources) await load(source); };
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.frame = frame;
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
