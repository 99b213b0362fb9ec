// Copies fixes and zooms into the run. Nothing is loaded, sent or stored.
"use strict";

function addCopyButtons() {
  for (const code of document.querySelectorAll(".fix pre, .fix p code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "press Ctrl+C";
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
    code.after(button);
  }
}

function formatSeconds(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 120) return `${Number(seconds.toPrecision(4))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${(seconds % 60).toFixed(0)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// The steps of a rank: `starts` in seconds after the begin of the run, `phases` in seconds.
function decodeSteps(canvas, names) {
  const bytes = Uint8Array.from(atob(canvas.dataset.steps), (letter) => letter.charCodeAt(0));
  const count = bytes.length / (12 + 4 * names.length);
  const starts = new Float64Array(bytes.buffer, 0, count);
  const phases = new Float32Array(bytes.buffer, 8 * count, count * names.length);
  const numbers = new Int32Array(bytes.buffer, (8 + 4 * names.length) * count, count);
  const ends = starts.map((start, i) => {
    let end = start;
    for (let k = 0; k < names.length; k += 1) end += phases[i * names.length + k];
    return end;
  });
  return { starts, ends, phases, numbers };
}

// The colours are those of the style, which differ in the dark.
function readColours(run, names) {
  const svg = run.appendChild(run.querySelector("svg").cloneNode(false));
  svg.setAttribute("class", "swatch");
  const colours = names.map((name) => {
    const rect = svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    rect.setAttribute("class", name);
    return getComputedStyle(rect).fill;
  });
  svg.remove();
  return colours;
}

// Steps narrower than a pixel share it: the one that took longest shows.
function drawSteps(canvas, steps, names, colours, from, to) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  const brush = canvas.getContext("2d");
  const scale = canvas.width / (to - from);
  const longest = new Map();
  for (let i = 0; i < steps.starts.length; i += 1) {
    if (steps.ends[i] < from || steps.starts[i] > to) continue;
    const left = (steps.starts[i] - from) * scale;
    const width = (steps.ends[i] - steps.starts[i]) * scale;
    if (width >= 2) {
      drawStep(brush, canvas.height, steps, i, names, colours, left, width - Math.min(1, width / 4));
      continue;
    }
    const column = Math.floor(left);
    const other = longest.get(column);
    const took = steps.ends[i] - steps.starts[i];
    if (other === undefined || took > steps.ends[other] - steps.starts[other]) longest.set(column, i);
  }
  for (const [column, i] of longest) stackStep(brush, canvas.height, steps, i, names, colours, column);
}

function drawStep(brush, height, steps, i, names, colours, left, width) {
  const took = steps.ends[i] - steps.starts[i];
  for (let k = 0; k < names.length; k += 1) {
    const wide = took > 0 ? (steps.phases[i * names.length + k] / took) * width : 0;
    brush.fillStyle = colours[k];
    brush.fillRect(left, 0, wide, height);
    left += wide;
  }
}

function stackStep(brush, height, steps, i, names, colours, column) {
  const took = steps.ends[i] - steps.starts[i];
  let top = 0;
  for (let k = 0; k < names.length; k += 1) {
    const high = took > 0 ? (steps.phases[i * names.length + k] / took) * height : 0;
    brush.fillStyle = colours[k];
    brush.fillRect(column, top, 1, high);
    top += high;
  }
}

function describeStep(steps, names, at) {
  for (let i = 0; i < steps.starts.length; i += 1) {
    if (steps.starts[i] > at || steps.ends[i] < at) continue;
    const parts = names
      .map((name, k) => [name, steps.phases[i * names.length + k]])
      .filter(([, took]) => took > 0)
      .map(([name, took]) => `${name} ${formatSeconds(took)}`);
    return `step ${steps.numbers[i]}, ${formatSeconds(steps.ends[i] - steps.starts[i])}: ${parts.join(", ")}`;
  }
  return "no step was timed here";
}

function makeZoomable(run) {
  const whole = Number(run.dataset.seconds);
  const names = run.dataset.phases.split(" ");
  const lanes = [...run.querySelectorAll("canvas")].map((canvas) => ({
    canvas, steps: decodeSteps(canvas, names),
  }));
  const graphs = [...run.querySelectorAll("svg.graph")].map((svg) => ({
    svg, box: svg.viewBox.baseVal, width: svg.viewBox.baseVal.width,
  }));
  const ticks = [...run.querySelectorAll(".ticks span")];
  const reading = run.querySelector(".reading");
  const plots = [...lanes.map((lane) => lane.canvas), ...graphs.map((graph) => graph.svg)];
  const start = Number(run.dataset.start), zero = Number(run.dataset.zero);
  let from = 0, to = whole, pressed = null;

  // Since the job's start, or by the clock (UTC) where that was long before.
  function formatMoment(at, span) {
    if (!zero) return new Date((start + at) * 1000).toISOString().slice(11, span < 10 ? 23 : 19);
    const digits = 10 ** (2 - Math.floor(Math.log10(span)));
    return `+${formatSeconds(Math.round((start - zero + at) * digits) / digits)}`;
  }

  function draw() {
    const colours = readColours(run, names);
    for (const { canvas, steps } of lanes) drawSteps(canvas, steps, names, colours, from, to);
    for (const { box, width } of graphs) {
      box.x = (from / whole) * width;
      box.width = ((to - from) / whole) * width;
    }
    ticks.forEach((tick, i) => {
      const at = from + ((to - from) * i) / (ticks.length - 1);
      tick.textContent = formatMoment(at, to - from);
    });
  }

  function show(newFrom, newTo) {
    const span = Math.min(whole, Math.max(whole / 1e5, newTo - newFrom));
    from = Math.min(Math.max(0, newFrom), whole - span);
    to = from + span;
    draw();
  }

  function timeAt(event, plot) {
    const box = plot.getBoundingClientRect();
    return from + ((event.clientX - box.left) / box.width) * (to - from);
  }

  for (const plot of plots) {
    plot.addEventListener("pointerdown", (event) => { pressed = timeAt(event, plot); });
    plot.addEventListener("pointerup", (event) => {
      const released = timeAt(event, plot);
      const moved = Math.abs(released - pressed) > (to - from) / 100;
      if (pressed !== null && moved) show(Math.min(pressed, released), Math.max(pressed, released));
      pressed = null;
    });
    plot.addEventListener("dblclick", () => show(0, whole));
  }
  for (const { canvas, steps } of lanes) {
    canvas.addEventListener("pointermove", (event) => {
      const at = timeAt(event, canvas);
      const step = describeStep(steps, names, at);
      reading.textContent = `${canvas.dataset.name} at ${formatMoment(at, to - from)}: ${step}`;
    });
  }
  const middle = () => (from + to) / 2;
  const moves = {
    in: () => show(middle() - (to - from) / 4, middle() + (to - from) / 4),
    out: () => show(middle() - (to - from), middle() + (to - from)),
    earlier: () => show(from - (to - from) / 2, to - (to - from) / 2),
    later: () => show(from + (to - from) / 2, to + (to - from) / 2),
    whole: () => show(0, whole),
  };
  for (const button of run.querySelectorAll("button[data-move]")) {
    button.addEventListener("click", () => moves[button.dataset.move]());
  }
  run.classList.add("alive");
  new ResizeObserver(draw).observe(run);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}

addCopyButtons();
document.querySelectorAll(".run").forEach(makeZoomable);
