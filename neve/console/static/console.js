"use strict";
// The console's own script: age of the data, times in the viewer's zone, plots. Everything else is
// in the pages that the server renders; htmx swaps their live part.

// ----------------------------------------------------------------------------- Age of the data

{
  const STALE_S = 15;
  const AGAIN_MS = 5000;
  const age = document.getElementById("age");
  const text = document.getElementById("age-text");
  const live = document.getElementById("live");
  let heardMs = performance.now();
  let ahead = 0; // Seconds by which the server's figures were old when they came.
  let lost = false;

  const show = () => {
    if (!age) return;
    const seconds = Math.round(ahead + (performance.now() - heardMs) / 1000);
    const state = lost || seconds > STALE_S ? "lost" : "fresh";
    const shown = seconds < 2 ? "just now" : seconds < 120 ? `${seconds} s old` : `${Math.floor(seconds / 60)} min old`;
    const words = state === "lost" ? `Connection lost. Figures are ${shown}.` : `Live, ${shown}`;
    // A screen reader speaks changes of the state, not every second.
    age.setAttribute("aria-live", age.dataset.state === state ? "off" : "polite");
    age.dataset.state = state;
    if (text.textContent !== words) text.textContent = words;
  };

  if (live) {
    live.addEventListener("beat", (event) => {
      const beat = JSON.parse(event.detail.data);
      heardMs = performance.now();
      ahead = beat.age_s;
      lost = false;
      show();
    });
    // The session ended, or was revoked: the sign-in page says so.
    live.addEventListener("signed-out", () => location.reload());
    live.addEventListener("htmx:sse:error", (event) => {
      if (event.detail.status === 401) location.reload();
      lost = true;
      show();
    });
    live.addEventListener("htmx:sse:close", () => {
      lost = true;
      show();
    });
    // The first connection: htmx takes any other answer than a stream for the part itself, and
    // makes no second one.
    const again = () => {
      lost = true;
      show();
      setTimeout(() => htmx.ajax("GET", live.getAttribute("hx-sse:connect"), { source: live }), AGAIN_MS);
    };
    live.addEventListener("htmx:before:response", (event) => {
      const { status } = event.detail.ctx.response;
      if (event.target !== live || status < 400) return;
      event.preventDefault();
      if (status === 401) location.reload();
      else again();
    });
    live.addEventListener("htmx:error", (event) => {
      if (event.target === live) again();
    });
    show();
    setInterval(show, 1000);
  }
}

// ------------------------------------------------------------------------ Times in the own zone

{
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const localize = (root) => {
    for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.valueOf())) time.dataset.local = zone.format(at);
    }
  };
  const offset = -new Date().getTimezoneOffset();
  const note = document.getElementById("zone");
  if (note && offset !== 0) {
    const hours = `${String(Math.floor(Math.abs(offset) / 60)).padStart(2, "0")}:${String(Math.abs(offset) % 60).padStart(2, "0")}`;
    note.textContent = `; your zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}, is UTC${offset < 0 ? "−" : "+"}${hours}: point at a time to see it`;
  }
  localize(document);
  document.addEventListener("htmx:after:swap", () => localize(document));
}

// --------------------------------------------------------------------------------------- Plots

{
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const bytes = (value) => {
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
  };
  const seconds = (value) =>
    value < 1 ? `${Math.round(value * 1000)} ms` : value < 120 ? `${+value.toFixed(1)} s` : value < 7200 ? `${Math.round(value / 60)} m` : `${+(value / 3600).toFixed(1)} h`;
  const WRITE = {
    bytes,
    "bytes/s": (value) => `${bytes(value)}/s`,
    share: (value) => `${Math.round(value * 100)} %`,
    seconds,
    "": (value) => Number(value.toPrecision(6)).toLocaleString("en"),
  };
  // Steps of an axis of sizes: powers of two, so that labels are round.
  const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);
  const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);
  const STEPS = { bytes: BINARY, "bytes/s": BINARY, "": WHOLE };
  const dark = matchMedia("(prefers-color-scheme: dark)");

  class NevePlot extends HTMLElement {
    static observedAttributes = ["data"];

    connectedCallback() {
      if (!this.shadowRoot) {
        const root = this.attachShadow({ mode: "open" });
        const style = document.createElement("link");
        style.rel = "stylesheet";
        style.href = document.body.dataset.plotCss;
        this.box = document.createElement("div");
        root.append(style, this.box);
        this.sized = new ResizeObserver(() => this.resize());
        this.redraw = () => this.draw(true);
      }
      this.sized.observe(this);
      dark.addEventListener("change", this.redraw);
      this.draw(true);
    }

    disconnectedCallback() {
      this.sized.disconnect();
      dark.removeEventListener("change", this.redraw);
    }

    attributeChangedCallback() {
      if (this.shadowRoot) this.draw(false);
    }

    resize() {
      if (this.plot && this.clientWidth) this.plot.setSize(this.size(this.plot.series.length - 1));
    }

    size(lines) {
      const legend = lines > 1 ? 34 : 0;
      return { width: Math.max(this.clientWidth, 120), height: Math.max(this.clientHeight - legend, 90) };
    }

    draw(anew) {
      const data = JSON.parse(this.getAttribute("data") || "null");
      if (!data) return;
      const { start, step, count } = data.x;
      const times = Array.isArray(data.x) ? data.x : Array.from({ length: count }, (_, at) => start + at * step);
      const columns = [times, ...data.series.map((line) => line.y)];
      const shape = JSON.stringify([data.unit, data.series.map((line) => line.label)]);
      if (this.plot && !anew && shape === this.shape) {
        this.plot.setData(columns);
        return;
      }
      this.shape = shape;
      this.plot?.destroy();
      const options = this.options(data);
      this.box.style.color = "var(--quiet)"; // It was a probe for the colours of the lines.
      this.plot = new uPlot(options, columns, this.box);
      const legend = this.box.querySelector(".u-legend");
      if (legend) legend.style.fontSize = "12px";
    }

    options(data) {
      // A canvas does not know `light-dark()`, so the browser works the colour out.
      const color = (name) => {
        this.box.style.color = `var(${name})`;
        return getComputedStyle(this.box).color;
      };
      const write = WRITE[data.unit] ?? WRITE[""];
      const axis = { stroke: color("--quiet"), font: "11px system-ui", grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
      return {
        ...this.size(data.series.length),
        padding: [8, 8, 0, 0],
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        legend: { show: data.series.length > 1 },
        cursor: { y: false, points: { size: 6 } },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? high * 1.1 : 1] } },
        axes: [
          { ...axis, size: 28, space: 70, values: [[86400, "{MM}-{DD}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: 68, space: 28, ...(STEPS[data.unit] ? { incrs: STEPS[data.unit] } : {}), values: (_, ticks) => ticks.map(write) },
        ],
        series: [
          { value: (_, at) => (at == null ? "–" : `${new Date(at * 1000).toISOString().slice(11, 19)} UTC`) },
          ...data.series.map((line, number) => ({
            label: line.label,
            stroke: color(`--line-${(number % 6) + 1}`),
            fill: data.series.length === 1 ? color("--line-fill") : undefined,
            width: 1.5,
            points: { show: line.y.filter((value) => value != null).length < 3 },
            spanGaps: false,
            value: (_, value) => (value == null ? "–" : write(value)),
          })),
        ],
      };
    }
  }
  customElements.define("neve-plot", NevePlot);
}
