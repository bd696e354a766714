// Canvases with the resolution of the screen, the colors of the style, and a cursor that both the
// pointer and the arrow keys move.

const probe = make("span", { hidden: true });
document.body.append(probe);
function color(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

let charts = [];
const redrawAll = () => charts.forEach((chart) => chart.draw());

const tooltip = byId("tooltip");
function showTooltip(x, y, title, lines) {
  tooltip.replaceChildren(make("b", {}, title), ...lines.map((line) => make("span", {}, line)));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8));
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${Math.max(8, top)}px`;
}
function hideTooltip() {
  tooltip.hidden = true;
}
addEventListener("scroll", hideTooltip, { passive: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});

// A chart in `parent`. `paint(context, width, height)` draws, and returns the area for the data
// (paintAxes). `cursor` has: count(); describe(position), which returns {title, lines, x, y}; and
// optionally enter(position), key(event), and, if positions are not one line of slots, at(x, y), which
// returns a position or -1, and move(position, key), which returns the next position.
class Chart {
  constructor(parent, label, paint, cursor) {
    this.label = label;
    this.paint = paint;
    this.cursor = cursor;
    this.position = -1;
    this.area = null;
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": label });
    parent.append(this.canvas);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("focus", () => {
      if (this.canvas.matches(":focus-visible")) this.moveTo(Math.max(0, this.position), true);
    });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.canvas.addEventListener("click", (event) => {
      this.point(event);
      if (this.position >= 0 && this.cursor.enter) this.cursor.enter(this.position);
    });
    charts.push(this);
  }
  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0 || height === 0) return;
    const scale = Math.min(3, devicePixelRatio || 1);
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "12px system-ui, sans-serif";
    this.area = this.paint(context, width, height);
  }
  // The position of a place on the canvas; -1: none.
  at(x, y) {
    if (!this.area || this.cursor.count() === 0) return -1;
    if (this.cursor.at) return this.cursor.at(x, y);
    return Math.max(0, Math.min(this.cursor.count() - 1, Math.floor((x - this.area.left) / this.area.slot)));
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const position = this.at(event.clientX - box.left, event.clientY - box.top);
    if (position < 0) return this.leave();
    this.position = position;
    this.draw();
    const about = this.cursor.describe(position);
    showTooltip(event.clientX, event.clientY, about.title, about.lines);
  }
  leave() {
    if (document.activeElement !== this.canvas) this.position = -1;
    hideTooltip();
    this.draw();
  }
  moveTo(position, isSpoken) {
    if (this.cursor.count() === 0) return;
    this.position = Math.max(0, Math.min(this.cursor.count() - 1, position));
    this.draw();
    const about = this.cursor.describe(this.position);
    const box = this.canvas.getBoundingClientRect();
    showTooltip(box.left + about.x, box.top + about.y, about.title, about.lines);
    if (isSpoken) announce([about.title, ...about.lines].join(", "));
  }
  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.cursor.key && this.cursor.key(event)) return event.preventDefault();
    if (event.key === "Enter" && this.position >= 0 && this.cursor.enter) return this.cursor.enter(this.position);
    const position = Math.max(0, this.position);
    const next = this.cursor.move ? this.cursor.move(position, event.key) : moveInLine(position, event.key, this.cursor.count());
    if (next === undefined) return;
    event.preventDefault();
    this.moveTo(next, true);
  }
}

// Moves in one dimension.
function moveInLine(position, key, count) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageUp: -10, PageDown: 10 };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  return key in moves ? position + moves[key] : undefined;
}

// Draws horizontal lines with labels, and labels of the steps. Returns the area for the data.
function paintAxes(context, width, height, axis) {
  const labels = axis.values.map((value) => axis.text(value));
  const left = Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))) + 10;
  const area = { left, top: axis.top || 10, right: width - 4, bottom: height - 22 };
  const most = Math.max(...axis.values), least = Math.min(...axis.values);
  area.y = (value) => area.bottom - ((value - least) / (most - least || 1)) * (area.bottom - area.top);
  context.textBaseline = "middle";
  axis.values.forEach((value, i) => {
    const y = Math.round(area.y(value)) + 0.5;
    context.fillStyle = color("grid");
    context.fillRect(left, y - 0.5, area.right - left, 1);
    context.fillStyle = color("muted");
    context.textAlign = "right";
    context.fillText(labels[i], left - 8, y);
  });
  const count = axis.steps.length;
  area.slot = (area.right - left) / Math.max(1, count);
  area.x = (i) => left + (i + 0.5) * area.slot;
  paintStepLabels(context, area, axis.steps, height - 9);
  return area;
}

function paintStepLabels(context, area, steps, y) {
  context.fillStyle = color("muted");
  context.textBaseline = "middle";
  let end = -Infinity;
  const widest = context.measureText(String(steps[steps.length - 1])).width + 24;
  const stride = Math.max(1, Math.ceil(widest / area.slot));
  for (let i = 0; i < steps.length; i += stride) {
    const text = String(steps[i]);
    const half = context.measureText(text).width / 2;
    const x = Math.max(area.left + half, Math.min(area.right - half, area.x(i)));
    if (x - half < end) continue;
    context.textAlign = "center";
    context.fillText(text, x, y);
    end = x + half + 8;
  }
}

// Vertical lines at the steps where NaN or infinities began.
function paintAlarms(context, area, first, last) {
  for (const alarm of alarms) {
    const i = last.findIndex((step) => step >= alarm.step);
    if (i < 0 || (i === 0 && first[0] > alarm.step)) continue;
    const x = Math.round(area.x(i) - area.slot / 2) + 0.5;
    context.fillStyle = color("bad");
    context.fillRect(x - 0.5, area.top, 1.5, area.bottom - area.top);
    const isRight = x + 34 > area.right;
    context.textAlign = isRight ? "right" : "left";
    context.textBaseline = "top";
    context.font = "600 11px system-ui, sans-serif";
    context.strokeStyle = color("surface");  // the text may be over bars
    context.lineWidth = 3;
    context.strokeText(alarm.text, isRight ? x - 4 : x + 4, area.top);
    context.fillText(alarm.text, isRight ? x - 4 : x + 4, area.top);
    context.font = "12px system-ui, sans-serif";
  }
}
