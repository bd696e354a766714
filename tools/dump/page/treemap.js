// Where the bytes are: rectangles whose areas are the sizes of the parts of a module.

let sizeName = "bytes";
const sizeOf = (module) => module[sizeName];

// Squarified treemap (Bruls, Huizing, van Wijk 2000): returns [{item, x, y, w, h}].
function squarify(items, size, box) {
  const rest = items.filter((item) => size(item) > 0).sort((a, b) => size(b) - size(a));
  const total = rest.reduce((sum, item) => sum + size(item), 0);
  const result = [];
  let { x, y, w, h } = box;
  let scale = (w * h) / (total || 1);
  while (rest.length > 0) {
    const side = Math.min(w, h);
    const row = [];
    let sum = 0, worst = Infinity;
    while (rest.length > 0) {
      const largest = size(row[0] || rest[0]) * scale;
      const least = size(rest[0]) * scale;
      const area = (sum + size(rest[0])) * scale;
      const ratio = Math.max((side * side * largest) / (area * area), (area * area) / (side * side * least));
      if (ratio > worst) break;
      worst = ratio;
      sum += size(rest[0]);
      row.push(rest.shift());
    }
    const thickness = side > 0 ? (sum * scale) / side : 0;
    let at = 0;
    for (const item of row) {
      const length = (size(item) * scale) / (thickness || 1);
      result.push(w >= h ? { item, x, y: y + at, w: thickness, h: length } : { item, x: x + at, y, w: length, h: thickness });
      at += length;
    }
    if (w >= h) { x += thickness; w -= thickness; } else { y += thickness; h -= thickness; }
  }
  return result;
}

function moduleLines(module) {
  const whole = sizeOf(modules[0]);
  const lines = [
    `${bytesText(module.bytes)} logical, ${bytesText(module.stored)} stored`,
    `${shareText(sizeOf(module), whole)} of the step`,
  ];
  if (module.kind !== "tensor") lines.push(plural(module.tensors, "tensor"));
  if (module.changed_at) lines.push(`last changed at step ${module.changed_at}`);
  if (data.phase && module.bytes > 0) {
    lines.push(module.unchanged === module.bytes ? `unchanged since step ${data.phase.reference_step}`
      : `${shareText(module.unchanged, module.bytes)} unchanged since step ${data.phase.reference_step}`);
  }
  return lines;
}

function placeAt(element, box) {
  for (const [name, value] of [["left", box.x], ["top", box.y], ["width", box.w], ["height", box.h]]) {
    element.style[name] = `${value}px`;
  }
}

// Shows the parts of a cell that are large enough to be seen.
function addParts(cell, module, box) {
  for (const part of squarify(module.children, sizeOf, box)) {
    if (part.w < 3 || part.h < 3) continue;
    const hasName = part.w > 44 && part.h > 17;
    const element = make("span", { class: "part", "aria-hidden": "true" }, hasName ? moduleName(part.item) : "");
    placeAt(element, part);
    cell.append(element);
    const top = hasName ? 17 : 3;
    if (part.w > 40 && part.h > top + 24) {
      addParts(cell, part.item, { x: part.x + 3, y: part.y + top, w: part.w - 7, h: part.h - top - 4 });
    }
  }
}

function treemapCell(box, hue, open) {
  const module = box.item;
  const lines = moduleLines(module);
  const cell = make("button", {
    type: "button", tabindex: "-1", class: `cell ${module.kind === "rest" ? "hr" : "h" + (hue % 6)}`,
    "aria-label": `${moduleName(module)}: ${lines.join(", ")}${module.children.length ? "; opens" : ""}`,
  });
  placeAt(cell, box);
  const isLarge = box.w > 44 && box.h > 22;
  if (isLarge) cell.append(make("span", { class: "name" }, moduleName(module)));
  if (isLarge && box.h > 42) cell.append(make("span", { class: "size" }, bytesText(sizeOf(module))));
  if (box.w > 90 && box.h > 86) addParts(cell, module, { x: 5, y: 42, w: box.w - 12, h: box.h - 49 });
  const show = () => {
    const place = cell.getBoundingClientRect();
    showTooltip(place.left + Math.min(place.width / 2, 60), place.top + Math.min(place.height / 2, 30), moduleName(module), lines);
  };
  cell.addEventListener("pointermove", (event) => showTooltip(event.clientX, event.clientY, moduleName(module), lines));
  cell.addEventListener("pointerleave", hideTooltip);
  cell.addEventListener("focus", () => { if (cell.matches(":focus-visible")) show(); });
  cell.addEventListener("blur", hideTooltip);
  cell.addEventListener("click", () => open(module));
  return cell;
}

// The cell that an arrow key leads to: the nearest one in this direction.
function neighbor(boxes, from, key) {
  const center = (box) => ({ x: box.x + box.w / 2, y: box.y + box.h / 2 });
  const start = center(boxes[from]);
  let best = -1, least = Infinity;
  boxes.forEach((box, i) => {
    const c = center(box);
    const dx = c.x - start.x, dy = c.y - start.y;
    const along = { ArrowRight: dx, ArrowLeft: -dx, ArrowDown: dy, ArrowUp: -dy }[key];
    const across = key === "ArrowRight" || key === "ArrowLeft" ? Math.abs(dy) : Math.abs(dx);
    if (i === from || along <= 1) return;
    const distance = along + 2.5 * across;
    if (distance < least) { least = distance; best = i; }
  });
  return best;
}

function buildCrumbs(nav) {
  const path = [];
  for (let at = modules[state.module]; ; at = modules[at.parent]) {
    path.unshift(at);
    if (at.index === 0) break;
  }
  nav.replaceChildren();
  path.forEach((module, i) => {
    if (i > 0) nav.append(make("i", { "aria-hidden": "true" }, "/"));
    nav.append(i === path.length - 1 ? make("span", { "aria-current": "true" }, moduleName(module))
      : make("button", { type: "button", onclick: () => setState({ module: module.index }) }, moduleName(module)));
  });
}

function startTreemap() {
  const container = byId("treemap");
  let boxes = [], cells = [], width = 0;
  const open = (module) => {
    const tensor = data.live && data.tensors.find((one) => shownFor[one.module] === module.index);
    if (module.children.length > 0) setState({ module: module.index, focus: "treemap" });
    else if (tensor && keyOf(tensor) !== null) showKey(keyOf(tensor));
  };
  const select = (i) => {
    cells.forEach((cell, j) => { cell.tabIndex = j === i ? 0 : -1; });
    cells[i].focus({ focusVisible: true });
  };
  const refreshTable = lazyTable(byId("bytes-table"), () => bytesTable());
  const draw = () => {
    width = container.clientWidth;
    const scope = modules[state.module];
    buildCrumbs(byId("bytes-crumbs"));
    boxes = squarify(scope.children.length ? scope.children : [scope], sizeOf, { x: 0, y: 0, w: width, h: container.clientHeight });
    const order = [...scope.children].sort((a, b) => compareNames(a.name, b.name));
    cells = boxes.map((box) => treemapCell(box, Math.max(0, order.indexOf(box.item)), open));
    container.replaceChildren(...cells);
    if (cells.length === 0) container.append(make("p", { class: "empty" }, "There are no tensors."));
    else cells[0].tabIndex = 0;
    hideTooltip();
    refreshTable();
  };
  container.addEventListener("keydown", (event) => {
    const from = cells.indexOf(document.activeElement);
    if (from < 0) return;
    if (event.key === "Backspace" || event.key === "Escape") {
      if (state.module === 0) return;
      const left = state.module;
      setState({ module: modules[left].parent, focus: "treemap" });
      const back = boxes.findIndex((box) => box.item.index === left);
      select(Math.max(0, back));
      return event.preventDefault();
    }
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const next = neighbor(boxes, from, event.key);
    if (next >= 0) select(next);
  });
  onChange((change) => {
    if (change.module === undefined) return;
    draw();
    if (change.focus === "treemap" && cells.length) select(0);
  });
  new ResizeObserver(() => { if (container.isConnected && container.clientWidth !== width) draw(); }).observe(container);
  const choice = byId("measure-of-bytes");
  for (const [value, text] of [["bytes", "Logical bytes"], ["stored", "Stored bytes"]]) {
    choice.append(make("label", {}, make("input", {
      type: "radio", name: "size", value, checked: value === sizeName,
      onchange: () => { sizeName = value; draw(); },
    }), text));
  }
  const last = data.columns.last[columnCount - 1];
  byId("bytes-hint").textContent = last === undefined ? "The store has no steps." :
    `Parts of step ${last} by size. Select a part to open it; the arrow keys move, Enter opens, and Backspace goes back.`;
  draw();
}

function bytesTable() {
  const scope = modules[state.module];
  const rows = [...scope.children].sort((a, b) => sizeOf(b) - sizeOf(a));
  const whole = sizeOf(modules[0]);
  return makeTable(`Parts of ${modulePath(scope)}`, [
    { title: "Part", cell: (m) => moduleName(m) },
    { title: "Logical", cell: (m) => bytesText(m.bytes) },
    { title: "Stored", cell: (m) => bytesText(m.stored) },
    { title: "Share", cell: (m) => shareText(sizeOf(m), whole) },
    { title: "Tensors", cell: (m) => countText(m.tensors) },
    { title: "Unchanged", cell: (m) => shareText(m.unchanged, m.bytes) },
    { title: "Last changed", cell: (m) => (m.changed_at ? `step ${m.changed_at}` : "-") },
  ], rows);
}
