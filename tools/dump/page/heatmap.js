// The changes: the parts of a module by steps.

const kRowHeight = 22;
const kRowsShown = 40;
const kRowsDivided = 24;

// Colors by level, 0 to 255.
function heatColors(measure) {
  const names = measure.alarm ? ["heat-0", "alarm-1", "alarm-2", "alarm-3"] : ["heat-0", "heat-1", "heat-2", "heat-3"];
  const stops = names.map((name) => color(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  const mix = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
  return Array.from({ length: 256 }, (_, level) => {
    const value = measure.decode(level);
    if (level === 0) return `rgb(${stops[0]})`;
    return `rgb(${value < 0.6 ? mix(stops[1], stops[2], value / 0.6) : mix(stops[2], stops[3], (value - 0.6) / 0.4)})`;
  });
}

// The parts of a module that are rows: its children, of which the largest are divided further as
// long as there are few rows.
function rowsOf(scope) {
  let rows = scope.children.length ? [...scope.children] : [scope];
  for (;;) {
    // Numbered siblings, such as layers, are divided together.
    const groupOf = (m) => (/^\d/.test(m.name) ? `of ${m.parent}` : String(m.index));
    const divisible = rows.filter((m) => m.children.length);
    const groups = [...new Set(divisible.map(groupOf))].map((name) => divisible.filter((m) => groupOf(m) === name));
    const added = (group) => group.reduce((sum, m) => sum + m.children.length - 1, 0);
    const bytes = (group) => group.reduce((sum, m) => sum + m.bytes, 0);
    const fitting = groups.filter((group) => group[0] !== scope && rows.length + added(group) <= kRowsDivided);
    if (fitting.length === 0) break;
    const largest = fitting.reduce((a, b) => (bytes(b) > bytes(a) ? b : a));
    rows = rows.filter((m) => !largest.includes(m)).concat(...largest.map((m) => m.children));
  }
  const isRest = (m) => (m.kind === "rest" ? 1 : 0);
  return rows.sort((a, b) => (a.parent === b.parent ? isRest(a) - isRest(b) : 0) || compareNames(modulePath(a), modulePath(b)));
}

// The path of a row below the module that is shown.
function rowName(module, scope) {
  const path = modulePath(module);
  return scope.index !== 0 && module !== scope ? path.slice(modulePath(scope).length + 1) : path;
}

let showsAllRows = false;  // for the shown module

function startHeatmap() {
  const kHeatTop = alarms.length ? 14 : 0;  // for the labels of marks
  const box = byId("heatmap");
  const select = byId("measure");
  const names = Object.keys(measures).filter((name) => name === "changed" || modules[0].rows[name]);
  for (const name of names) select.append(make("option", { value: name }, measures[name].title));
  const rowNames = make("ul", { class: "names" });
  const plot = make("div");
  const more = make("button", { type: "button", class: "more", hidden: true });
  box.append(make("div", { class: "heat" }, rowNames, plot), more);
  let rows = [], shown = [];
  const measure = () => measures[select.value];
  const level = (row, i) => rows[row].rows[select.value]?.[i] || 0;
  const paint = (context, width) => {
    const area = { left: 0, top: 0, right: width, bottom: kHeatTop + rows.length * kRowHeight, slot: width / Math.max(1, shown.length) };
    area.x = (i) => (i + 0.5) * area.slot;
    const colors = heatColors(measure());
    const pixels = Math.max(1, Math.round(width));
    rows.forEach((_, row) => {
      const y = kHeatTop + row * kRowHeight;
      if (shown.length <= pixels) {
        shown.forEach((i, position) => {
          context.fillStyle = colors[level(row, i)];
          const x = Math.round(position * area.slot);
          const w = Math.round((position + 1) * area.slot) - x;
          context.fillRect(x, y + 1, area.slot > 4 ? w - 1 : w, kRowHeight - 2);
        });
        return;
      }
      for (let x = 0; x < pixels; ++x) {
        let largest = 0;
        for (let p = Math.floor((x * shown.length) / pixels); p < ((x + 1) * shown.length) / pixels; ++p) largest = Math.max(largest, level(row, shown[p]));
        context.fillStyle = colors[largest];
        context.fillRect(x, y + 1, 1.3, kRowHeight - 2);
      }
    });
    paintStepLabels(context, area, shown.map((i) => data.columns.last[i]), area.bottom + 12);
    paintAlarms(context, area, shown.map((i) => data.columns.first[i]), shown.map((i) => data.columns.last[i]));
    if (chart.position >= 0) {
      const [row, position] = [Math.floor(chart.position / shown.length), chart.position % shown.length];
      context.strokeStyle = color("text");
      context.lineWidth = 2;
      context.strokeRect(position * area.slot, kHeatTop + row * kRowHeight + 1, Math.max(3, area.slot), kRowHeight - 2);
    }
    return area;
  };
  const describe = (at) => {
    const [row, position] = [Math.floor(at / shown.length), at % shown.length];
    const i = shown[position];
    const steps = stepsText(data.columns.first[i], data.columns.last[i]);
    const lines = [modulePath(rows[row]), i === 0 && select.value === "changed" && level(row, i) > 0 ? "first examined step: all bytes are new" : measure().text(level(row, i))];
    if (data.columns.examined[i] > 1) lines.push(`the largest value of ${plural(data.columns.examined[i], "examined step")}`);
    else if (data.columns.total[i] > 1) lines.push(`since the examined step ${data.columns.last[i - 1]}`);
    return { title: steps, lines, x: chart.area.x(position), y: kHeatTop + row * kRowHeight + 10 };
  };
  const enter = (at) => {
    const module = rows[Math.floor(at / shown.length)];
    if (module.children.length) setState({ module: module.index });
  };
  const move = (at, key) => {
    const width = shown.length;
    const next = { ArrowUp: at - width, ArrowDown: at + width }[key];
    if (next !== undefined) return next < 0 || next >= width * rows.length ? at : next;
    const start = at - (at % width);
    const inRow = moveInLine(at - start, key, width);
    return inRow === undefined ? undefined : start + Math.max(0, Math.min(width - 1, inRow));
  };
  const chart = new Chart(plot, "Changes by module and step. The arrow keys move, Enter opens a module, Backspace goes back.", paint, {
    count: () => rows.length * shown.length, describe, enter, move,
    at: (x, y) => {
      const row = Math.max(0, Math.floor((y - kHeatTop) / kRowHeight));
      if (row >= rows.length) return -1;
      return row * shown.length + Math.max(0, Math.min(shown.length - 1, Math.floor(x / chart.area.slot)));
    },
    key: (event) => {
      if (event.key !== "Backspace" || state.module === 0) return false;
      setState({ module: modules[state.module].parent });
      return true;
    },
  });
  const refreshTable = lazyTable(byId("changes-table"), () => changesTable(rows, shown, select.value));
  const refresh = () => {
    const scope = modules[state.module];
    const all = rowsOf(scope);
    const limit = showsAllRows ? Infinity : kRowsShown;
    rows = all.slice(0, limit);
    shown = columnsInRange(data.columns.first, data.columns.last);
    chart.position = -1;
    more.hidden = all.length <= limit;
    more.textContent = `Show all ${all.length} parts`;
    buildCrumbs(byId("changes-crumbs"));
    rowNames.replaceChildren(...rows.map((module) => {
      const name = make("bdi", { dir: "ltr" }, rowName(module, scope));
      const open = () => setState({ module: module.index });
      return make("li", { title: modulePath(module) }, module.children.length && module !== scope
        ? make("button", { type: "button", "aria-label": `open ${modulePath(module)}`, onclick: open }, name) : name);
    }));
    plot.style.height = `${kHeatTop + rows.length * kRowHeight + 24}px`;
    rowNames.style.paddingTop = `${kHeatTop}px`;
    const scale = byId("heatmap-scale");
    scale.className = measure().alarm ? "scale alarm" : "scale";
    scale.replaceChildren(measure().low, make("span", { class: "bar", "aria-hidden": "true" }), measure().high);
    chart.draw();
    refreshTable();
  };
  more.addEventListener("click", () => { showsAllRows = true; refresh(); });
  select.addEventListener("change", refresh);
  onChange((change) => {
    if (change.module !== undefined) showsAllRows = false;
    refresh();
  });
  byId("changes-hint").textContent = columnCount === 0 ? "The store has no steps." :
    "Each row is a part of the module, each column a step, compared with the step before. Select a row to open it.";
  refresh();
}

function changesTable(rows, shown, name) {
  const columns = [{ title: "Step", cell: (i) => stepsText(data.columns.first[i], data.columns.last[i]) }];
  for (const module of rows.slice(0, 30)) {
    columns.push({ title: rowName(module, modules[state.module]), cell: (i) => measures[name].text(module.rows[name]?.[i] || 0) });
  }
  return makeTable(`${measures[name].title} by step`, columns, shown);
}
