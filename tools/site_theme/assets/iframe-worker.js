/* A worker in a hidden frame, for pages from the file system: browsers start no worker there, and the search is one.
   The theme would load the like from another host; it leaves that to us as this file has the name that it looks for. */
(() => {
  "use strict";
  if (location.protocol !== "file:") return;

  const load = (into, url) =>
    new Promise((done, failed) => {
      const script = into.document.createElement("script");
      script.src = url;
      script.onload = () => done();
      script.onerror = () => failed(new Error(`${url} could not be loaded`));
      into.document.body.appendChild(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.tell(new MessageEvent("message", { data }), this.onmessage);
      inside.importScripts = async (...urls) => {
        for (const each of urls) await load(inside, new URL(each, url).href);
      };
      this.ready = load(inside, url).catch((error) =>
        this.tell(new ErrorEvent("error", { error, message: error.message }), this.onerror),
      );
    }

    tell(event, handler) {
      if (handler) handler.call(this, event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      this.ready.then(() => {
        if (this.frame.isConnected) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
