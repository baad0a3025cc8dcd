// Charts of what goes on while a page is open: a number every few seconds, the last minutes of them as a line.
"use strict";

(() => {
  const EVERY_MS = 2000;
  const SLOWEST_MS = 16000;
  const POINTS_MAX = 150;
  const POINTS_MIN = 20; // so many fill the width
  const NAMED_MAX = 5;
  const [WIDTH, HEIGHT] = [600, 120];
  const NS = "http://www.w3.org/2000/svg";
  const count = (number) => Number(number.toFixed(number < 10 ? 1 : 0)).toLocaleString("en");

  const chart = (figure) => {
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    const line = svg.appendChild(document.createElementNS(NS, "polyline"));
    const caption = figure.querySelector("figcaption");
    // There from the start, so that nothing moves away from under a pointer when the first number comes.
    caption.textContent = `${figure.dataset.words}: not known yet`;
    svg.setAttribute("aria-label", caption.textContent);
    figure.append(svg);
    const points = [];
    let last = null;
    let silent = [];
    let unknown = 0;
    let wait = EVERY_MS;

    const draw = (isTold) => {
      const highest = Math.max(1, ...points);
      const step = WIDTH / Math.max(POINTS_MIN, points.length - 1);
      if (points.length) line.setAttribute("points", points.map((value, n) => `${(n * step).toFixed(1)},${(HEIGHT - 2 - value / highest * (HEIGHT - 8)).toFixed(1)}`).join(" "));
      const more = silent.length > NAMED_MAX ? ` and ${silent.length - NAMED_MAX} more` : "";
      const named = `${silent.slice(0, NAMED_MAX).join(", ")}${more}`;
      const without = silent.length ? `; without what is on ${silent.length > 1 ? "nodes" : "node"} ${named}, not answering` : "";
      const besides = unknown ? `; without ${unknown} ${unknown > 1 ? "partitions" : "partition"} that nobody tells of now` : "";
      let told = points.length ? "not known now" : "not known yet";
      if (points.length && isTold) told = `${count(points[points.length - 1])}; the most of the last ${Math.round(points.length * EVERY_MS / 1000)} s: ${count(Math.max(...points))}`;
      caption.textContent = `${figure.dataset.words}: ${told}${without}${besides}`;
      svg.setAttribute("aria-label", caption.textContent);
    };

    const take = (found) => {
      silent = found.silent || [];
      unknown = found.unknown || 0;
      let isTold = true;
      if (figure.dataset.kind === "rate") {
        // A partition more or less, another node that does not answer, and a topic that was made anew, are no rate.
        if (last && found.time > last.time && found.of === last.of && String(found.silent) === String(last.silent)) points.push(Math.max(0, found.value - last.value) * 1000 / (found.time - last.time));
        last = found;
      } else if (figure.dataset.field === undefined) {
        isTold = found.of > 0 || !(silent.length || unknown);
        if (isTold) points.push(found.value);
      } else if (found[figure.dataset.field] !== undefined) {
        points.push(found[figure.dataset.field]);
      } else {
        isTold = false; // the first look has nothing to be compared with, and nothing is told where no node answers
      }
      if (points.length > POINTS_MAX) points.shift();
      draw(isTold);
    };

    const ask = async () => {
      try {
        if (document.visibilityState === "visible") {
          const answer = await fetch(figure.dataset.url, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(15000) });
          if (!answer.ok) throw new Error(await answer.text());
          take(await answer.json());
          wait = EVERY_MS;
        } else {
          last = null; // what came meanwhile is no rate of now
        }
      } catch (error) {
        caption.textContent = `${figure.dataset.words}: not told. ${error.message}`;
        wait = Math.min(wait * 2, SLOWEST_MS);
      }
      setTimeout(ask, wait);
    };
    ask();
  };

  document.querySelectorAll("figure[data-url]").forEach(chart);
})();
