// The steps: bytes that each has, new ones and shared ones, with tags and metrics.

function startTimeline() {
  const line = data.timeline;
  const count = line.first.length;
  let shown = [];  // positions of columns
  let drag = null;
  const tagsOf = (i) => data.tags.filter((tag) => tag.step >= line.first[i] && tag.step <= line.last[i]).map((tag) => tag.tag);
  const describe = (position) => {
    const i = shown[position];
    const mean = line.steps[i] > 1 ? "on average " : "";
    const lines = [
      `${mean}${bytesText(line.logical[i])} in the step`,
      `${mean}${bytesText(line.written[i])} new, ${bytesText(line.shared[i])} shared`,
      `saved ${timeText(line.saved[i])}`,
    ];
    if (tagsOf(i).length) lines.push(`tags: ${tagsOf(i).join(", ")}`);
    for (const metric of data.metrics.slice(0, 4)) {
      const value = asNumber(metric.values[i]);
      if (value !== undefined) lines.push(`${metric.name}: ${numberText(value)}`);
    }
    return { title: stepsText(line.first[i], line.last[i]), lines, x: chart.area.x(position), y: chart.area.top + 20 };
  };
  const paint = (context, width, height) => {
    const values = ticks(0, Math.max(1, ...shown.map((i) => Math.max(line.logical[i], line.written[i]))), 4, 1024);
    const area = paintAxes(context, width, height, { values, text: bytesText, steps: shown.map((i) => line.last[i]), top: 24 });
    const gap = area.slot >= 4 ? 1 : 0;
    shown.forEach((i, position) => {
      // Whole pixels, because the edges of neighbors would be visible as stripes.
      const x = Math.round(area.left + position * area.slot);
      const w = Math.max(1, Math.round(area.left + (position + 1) * area.slot) - x - gap);
      const fresh = area.y(line.written[i]), top = area.y(Math.max(line.logical[i], line.written[i]));
      context.fillStyle = color("shared");
      context.fillRect(x, top, w, fresh - top);
      context.fillStyle = color("fresh");
      context.fillRect(x, fresh, w, area.bottom - fresh);
    });
    paintTags(context, area);
    paintAlarms(context, area, shown.map((i) => line.first[i]), shown.map((i) => line.last[i]));
    paintSelection(context, area);
    return area;
  };
  const paintTags = (context, area) => {
    let end = -Infinity;
    context.textBaseline = "middle";
    shown.forEach((i, position) => {
      const tags = tagsOf(i);
      if (!tags.length) return;
      const x = area.x(position);
      context.fillStyle = color("text");
      context.beginPath();
      context.moveTo(x - 4, 16);
      context.lineTo(x + 4, 16);
      context.lineTo(x, 22);
      context.fill();
      const text = tags.join(", ").slice(0, 24);
      const half = context.measureText(text).width / 2;
      const at = Math.max(area.left + half, Math.min(area.right - half, x));
      if (at - half < end) return;
      context.textAlign = "center";
      context.fillText(text, at, 8);
      end = at + half + 8;
    });
  };
  const paintSelection = (context, area) => {
    context.strokeStyle = color("text");
    context.lineWidth = 1.5;
    if (chart.position >= 0 && chart.position < shown.length) {
      context.strokeRect(area.left + chart.position * area.slot, area.top, Math.max(2, area.slot), area.bottom - area.top);
    }
    if (!drag || drag.from === drag.to) return;
    const [a, b] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    context.globalAlpha = 0.15;
    context.fillStyle = color("accent");
    context.fillRect(area.left + a * area.slot, area.top, (b - a + 1) * area.slot, area.bottom - area.top);
    context.globalAlpha = 1;
  };
  const setRange = (a, b) => setState({ low: line.first[shown[a]], high: line.last[shown[b]] });
  const zoom = (factor) => {
    const middle = chart.position >= 0 ? shown[chart.position] : Math.round((shown[0] + shown[shown.length - 1]) / 2);
    const size = Math.max(4, Math.round(shown.length * factor));
    const low = Math.max(0, Math.min(count - size, middle - Math.floor(size / 2)));
    const high = Math.min(count - 1, low + size - 1);
    if (low === 0 && high === count - 1) setState({ low: 0, high: Infinity });
    else setState({ low: line.first[low], high: line.last[high] });
  };
  const zoomAll = () => setState({ low: 0, high: Infinity });
  const key = (event) => {
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") zoomAll();
    else return false;
    return true;
  };
  const chart = new Chart(byId("timeline"), "Bytes of each step. The arrow keys move, plus and minus zoom, 0 shows all.", paint, {
    count: () => shown.length, describe, key,
  });
  const canvas = chart.canvas;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;
    const i = chart.at(event.offsetX);
    drag = { from: i, to: i };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => { if (drag) { drag.to = chart.at(event.offsetX); chart.draw(); } });
  canvas.addEventListener("pointerup", () => {
    const done = drag;
    drag = null;
    if (done && Math.abs(done.to - done.from) >= 2) setRange(Math.min(done.from, done.to), Math.max(done.from, done.to));
  });
  const metricChart = startMetrics(() => shown);
  const refreshTable = lazyTable(byId("steps-table"), () => stepsTable(shown, tagsOf));
  const refresh = () => {
    shown = columnsInRange(line.first, line.last);
    chart.position = Math.min(chart.position, shown.length - 1);
    byId("zoom-in").disabled = shown.length <= 4;
    byId("zoom-out").disabled = byId("zoom-all").disabled = shown.length === count;
    chart.draw();
    if (metricChart) metricChart.draw();
    refreshTable();
  };
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", zoomAll);
  byId("steps-legend").append(
    make("li", {}, make("span", { class: "swatch fresh" }), "new bytes, written by the step"),
    make("li", {}, make("span", { class: "swatch shared" }), "bytes shared with earlier steps"));
  for (const alarm of alarms) byId("steps-legend").append(make("li", {}, make("span", { class: "swatch alarm" }), `${alarm.text} began at step ${alarm.step}`));
  byId("steps-hint").textContent = count === 0 ? "The store has no steps."
    : "Each bar is a step with all of its bytes. Drag over bars to zoom; the range applies to the changes below, too.";
  onChange((change) => { if (change.low !== undefined) refresh(); });
  refresh();
}

function stepsTable(shown, tagsOf) {
  const line = data.timeline;
  const columns = [
    { title: "Step", cell: (i) => (line.first[i] === line.last[i] ? String(line.first[i]) : `${line.first[i]} to ${line.last[i]}`) },
    { title: "Saved", cell: (i) => timeText(line.saved[i]) },
    { title: "Bytes", cell: (i) => bytesText(line.logical[i]) },
    { title: "New", cell: (i) => bytesText(line.written[i]) },
    { title: "Shared", cell: (i) => bytesText(line.shared[i]) },
  ];
  if (data.tags.length) columns.push({ title: "Tags", left: true, cell: (i) => tagsOf(i).join(", ") });
  for (const metric of data.metrics) columns.push({ title: metric.name, cell: (i) => numberText(asNumber(metric.values[i])) });
  return makeTable("Steps", columns, shown);
}

// The chart of one metric; null if there are none.
function startMetrics(shownSteps) {
  if (data.metrics.length === 0) return null;
  byId("metric-box").hidden = false;
  const select = byId("metric");
  data.metrics.forEach((metric, i) => select.append(make("option", { value: i }, metric.name)));
  const metric = () => data.metrics[select.value];
  const values = () => shownSteps().map((i) => asNumber(metric().values[i]));
  const paint = (context, width, height) => {
    const shown = shownSteps();
    const finite = values().filter(Number.isFinite);
    const axis = finite.length ? ticks(Math.min(...finite), Math.max(...finite), 4) : [0, 1];
    const area = paintAxes(context, width, height, { values: axis, text: numberText, steps: shown.map((i) => data.timeline.last[i]) });
    paintLine(context, area, values(), color("fresh"));
    paintAlarms(context, area, shown.map((i) => data.timeline.first[i]), shown.map((i) => data.timeline.last[i]));
    if (chart.position >= 0) paintPoint(context, area, chart.position, values()[chart.position]);
    return area;
  };
  const chart = new Chart(byId("metric-plot"), "The metric at each step. The arrow keys move.", paint, {
    count: () => shownSteps().length,
    describe: (position) => {
      const i = shownSteps()[position];
      return { title: stepsText(data.timeline.first[i], data.timeline.last[i]), lines: [`${metric().name}: ${numberText(values()[position])}`], x: chart.area.x(position), y: 30 };
    },
  });
  select.addEventListener("change", () => chart.draw());
  return chart;
}

function paintLine(context, area, values, style) {
  context.strokeStyle = style;
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.beginPath();
  let isDown = false;
  const known = values.filter(Number.isFinite).length;
  values.forEach((value, i) => {
    if (value === undefined && known > 1) return;  // steps without the metric are skipped
    if (!Number.isFinite(value)) { isDown = false; return; }
    if (isDown) context.lineTo(area.x(i), area.y(value));
    else context.moveTo(area.x(i), area.y(value));
    isDown = true;
  });
  context.stroke();
  if (known <= 60) values.forEach((value, i) => { if (Number.isFinite(value)) paintPoint(context, area, i, value, 2, style); });
}

function paintPoint(context, area, i, value, radius = 4, style = color("text")) {
  if (!Number.isFinite(value)) return;
  context.fillStyle = style;
  context.beginPath();
  context.arc(area.x(i), area.y(value), radius, 0, 2 * Math.PI);
  context.fill();
}
