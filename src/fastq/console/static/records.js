// The records' page: a search or a tail is a stream of events; what arrives is put in as text, never as markup.
"use strict";

(() => {
  const ROWS_MAX = 1000;
  const form = document.getElementById("records");
  const body = document.getElementById("rows");
  const told = document.getElementById("told");
  const progress = document.getElementById("progress");
  const stop = document.getElementById("stop");
  const tail = document.getElementById("tail");
  let source = null;

  const query = () => {
    const values = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...values]) if (value === "") values.delete(name);
    return values;
  };

  const end = (text) => {
    if (source) source.close();
    source = null;
    stop.disabled = true;
    if (text) told.textContent = text;
  };

  const cell = (row, text, name) => {
    const td = row.insertCell();
    td.textContent = text;
    if (name) td.className = name;
    return td;
  };

  const field = (row, found) => {
    const td = row.insertCell();
    if (found.kind === "null") {
      td.append(Object.assign(document.createElement("em"), { textContent: "null" }));
      return;
    }
    const line = found.text.replace(/\s+/g, " ");
    if (line.length > 120 || (found.text.includes("\n") && found.kind !== "json")) {
      const more = document.createElement("details");
      const pre = Object.assign(document.createElement("pre"), { textContent: found.text, className: "wrap" });
      const cut = line.length > 100 ? line.slice(0, 100) + " …" : line;
      more.append(Object.assign(document.createElement("summary"), { textContent: cut, className: "mono" }), pre);
      td.append(more);
    } else {
      td.append(Object.assign(document.createElement("span"), { textContent: line, className: "mono" }));
    }
    const note = [["text", "json"].includes(found.kind) ? "" : found.kind, found.note].filter(Boolean).join(", ");
    if (note) td.append(" ", Object.assign(document.createElement("small"), { textContent: note }));
  };

  const show = (record, first) => {
    const row = body.insertRow(first ? 0 : -1);
    cell(row, record.partition, "n");
    cell(row, record.offset.toLocaleString("en"), "n");
    cell(row, record.time < 0 ? "–" : new Date(record.time).toISOString().replace("T", " ").replace("Z", ""));
    field(row, record.key);
    field(row, record.value);
    const headers = row.insertCell();
    for (const [name, value] of record.headers) {
      const line = document.createElement("div");
      line.textContent = name + " = " + (value.kind === "null" ? "null" : value.text.slice(0, 200));
      line.className = "mono";
      headers.append(line);
    }
    const more = row.insertCell();
    if (form.dataset.produce) {
      const link = document.createElement("a");
      link.href = form.dataset.produce + "?partition=" + record.partition + "&offset=" + record.offset;
      link.textContent = "edit and send";
      more.append(link);
    }
  };

  // An EventSource does not tell why it was refused: the page asks once more, and shows the sentence.
  const refused = async (url) => {
    try {
      const answer = await fetch(url, { headers: { accept: "text/event-stream" }, signal: AbortSignal.timeout(10000) });
      if (!answer.ok && !source) told.textContent = "Refused: " + (await answer.text());
      else if (answer.body) await answer.body.cancel();
    } catch { /* what is told already holds */ }
  };

  const begin = (kind) => {
    end();
    body.replaceChildren();
    progress.value = 0;
    const values = query();
    history.replaceState(null, "", "?" + values);
    told.textContent = "Asking …";
    stop.disabled = false;
    const url = form.dataset.url + "/" + kind + "?" + values;
    const opened = (source = new EventSource(url));
    let begun = false;
    opened.onopen = () => (begun = true);
    opened.addEventListener("failed", (event) => end("Failed: " + JSON.parse(event.data).text));
    opened.onerror = () => {
      end("The stream broke off: the console does not answer, or the network does not. Try again.");
      if (!begun) refused(url);
    };
    return opened;
  };

  const count = (number) => Number(number).toLocaleString("en");

  const search = () => {
    const stream = begin("scan");
    const newestFirst = form.elements.from.value === "latest";
    let last = null;
    const tell = (found) => {
      last = found;
      progress.max = Math.max(1, found.total);
      progress.value = found.ended && found.done >= found.total ? progress.max : found.done;
      told.textContent = count(found.found) + " found in " + count(found.scanned) + " records looked at, of up to " +
        count(found.total) + ", in " + found.seconds + " s" + (found.ended ? ": " + found.ended : " …");
    };
    stream.addEventListener("rows", (event) => JSON.parse(event.data).forEach((record) => show(record, newestFirst)));
    stream.addEventListener("progress", (event) => tell(JSON.parse(event.data)));
    stream.addEventListener("done", (event) => { tell(JSON.parse(event.data)); end(); });
    stop.onclick = () => end((last ? told.textContent : "") + " Stopped.");
  };

  const follow = () => {
    const stream = begin("tail");
    stream.addEventListener("tail", (event) => {
      const found = JSON.parse(event.data);
      for (const record of found.rows) show(record, true);
      while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
      told.textContent = (found.ready ? "Following: " : "Beginning: ") + count(found.seen) + " records came, " + count(found.matched) + " fit, " +
        (found.left_out ? count(found.left_out) + " of them were left out, as the page could not keep up" : "none was left out") +
        (found.behind ? ", " + count(found.behind) + " are still to be read" : "") +
        (found.gone ? ", " + count(found.gone) + " offsets were deleted before they were read" : "") + "." +
        (found.trouble ? " What comes now may not be heard of: " + found.trouble : "");
    });
    stream.addEventListener("done", (event) => end(JSON.parse(event.data).ended));
    stop.onclick = () => end(told.textContent + " Stopped.");
  };

  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  tail.addEventListener("click", follow);
  for (const button of document.querySelectorAll(".download")) {
    button.addEventListener("click", () => {
      const values = query();
      values.delete("limit");
      values.set("format", button.dataset.format);
      location.assign(form.dataset.url + "/download?" + values);
    });
  }
  const copy = document.getElementById("copy");
  if (copy) copy.addEventListener("click", () => location.assign(copy.dataset.url + "?" + query()));
  window.addEventListener("pagehide", () => end());
  search();
})();
