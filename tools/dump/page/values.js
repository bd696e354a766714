// The statistics that saves recorded: a table of tensors, and the range of one over the steps.

// A line from the smallest to the largest value with the mean, on a scale that ends at the largest
// magnitude.
function rangeGlyph(tensor) {
  const { min, max, mean } = tensor;
  const limit = Math.max(Math.abs(min), Math.abs(max));
  if (!Number.isFinite(limit) || limit === 0) return "";
  const at = (value) => 50 + (50 * value) / limit;
  const glyph = make("span", { class: "range", "aria-hidden": "true" }, make("u"), make("b"), make("i"));
  glyph.children[1].style.left = `${at(min)}%`;
  glyph.children[1].style.width = `${Math.max(0, at(max) - at(min))}%`;
  if (Number.isFinite(mean)) glyph.children[2].style.left = `calc(${Math.max(0, Math.min(100, at(mean)))}% - 1px)`;
  else glyph.children[2].hidden = true;
  return glyph;
}

const tensorColumns = [
  { name: "fqn", title: "Tensor", cell: (t) => keyLink(keyOf(t), t.fqn) },
  { name: "dtype", title: "Dtype", left: true, cell: (t) => t.dtype },
  { name: "shape", title: "Shape", left: true, cell: (t) => t.shape },
  { name: "bytes", title: "Size", cell: (t) => bytesText(t.bytes) },
  { name: "range", title: "Range", left: true, fixed: true, needsValues: true, cell: rangeGlyph },
  { name: "min", title: "Min", needsValues: true, cell: (t) => numberText(t.min) },
  { name: "mean", title: "Mean", needsValues: true, cell: (t) => numberText(t.mean) },
  { name: "max", title: "Max", needsValues: true, cell: (t) => numberText(t.max) },
  { name: "zeros", title: "Zeros", needsValues: true, cell: (t) => (t.count ? shareText(t.zeros, t.count) : "-") },
  { name: "nans", title: "NaN", needsValues: true, cell: (t) => (t.nans === undefined ? "-" : countText(t.nans)), mark: (t) => t.nans > 0 },
  { name: "infs", title: "Inf", needsValues: true, cell: (t) => (t.infs === undefined ? "-" : countText(t.infs)), mark: (t) => t.infs > 0 },
  { name: "changed_at", title: "Last changed", cell: (t) => `step ${t.changed_at}` },
];

// The order of the table, which remains if the data changes.
let sortName = null, descending = false;

function startTensors() {
  for (const tensor of data.tensors) {
    for (const name of ["min", "max", "mean"]) tensor[name] = asNumber(tensor[name]);
  }
  const hasValues = data.tensors.some((tensor) => tensor.count !== undefined);
  const box = byId("tensors");
  const draw = () => {
    const filter = byId("filter").value.toLowerCase();
    const rows = data.tensors.filter((tensor) => tensor.fqn.toLowerCase().includes(filter));
    if (sortName !== null) {
      const key = (t) => (t[sortName] === undefined || Number.isNaN(t[sortName]) ? -Infinity : t[sortName]);
      rows.sort((a, b) => (typeof a[sortName] === "string" ? compareNames(a[sortName], b[sortName]) : key(a) - key(b)) * (descending ? -1 : 1));
    }
    const columns = tensorColumns.filter((column) => hasValues || !column.needsValues).map((column) => ({
      ...column,
      sorted: column.name === sortName ? (descending ? "descending" : "ascending") : undefined,
      head: column.fixed ? column.title : make("button", { type: "button", onclick: () => sortBy(column) },
        `${column.title}${column.name === sortName ? (descending ? " \u2193" : " \u2191") : ""}`),
    }));
    box.replaceChildren(rows.length ? makeTable("Tensors of the last step", columns, rows, 25)
      : make("p", { class: "empty" }, data.tensors.length ? "No tensor has such a name." : "There are no tensors."));
  };
  const sortBy = (column) => {
    descending = column.name === sortName ? !descending : column.name !== "fqn";
    sortName = column.name;
    draw();
    [...box.querySelectorAll("thead button")].find((button) => button.textContent.startsWith(column.title))?.focus();
  };
  byId("filter").addEventListener("input", () => {
    draw();
    announce(plural(data.tensors.filter((t) => t.fqn.toLowerCase().includes(byId("filter").value.toLowerCase())).length, "tensor"));
  });
  byId("values-hint").textContent = !hasValues ? "No statistics were recorded; save with SaveTuning(statistics=True) to see ranges, NaN and infinities."
    : `Statistics that the saves recorded, of ${data.tensors.length < data.tensor_count ? "the most important tensors" : "the tensors"} of the last step. The bar of a range ends at the largest magnitude, its line is the mean.`;
  draw();
  startSeries();
}

function startSeries() {
  const series = data.series.filter((one) => one.steps.length > 1);
  if (series.length === 0) return;
  byId("series-box").hidden = false;
  for (const one of series) for (const name of ["min", "max", "mean"]) one[name] = one[name].map(asNumber);
  const select = byId("series");
  const isBad = (one) => [...one.min, ...one.max, ...one.mean].some((value) => !Number.isFinite(value));
  series.forEach((one, i) => select.append(make("option", { value: i }, one.fqn + (isBad(one) ? " (NaN or Inf)" : ""))));
  const first = data.tensors.find((t) => series.some((one) => one.fqn === t.fqn));
  select.value = Math.max(0, series.findIndex((one) => one.fqn === first?.fqn));
  const chosen = () => series[select.value];
  const paint = (context, width, height) => {
    const one = chosen();
    const finite = [...one.min, ...one.max].filter(Number.isFinite);
    const values = ticks(Math.min(0, ...finite), Math.max(0, ...finite), 4);
    const area = paintAxes(context, width, height, { values, text: numberText, steps: one.steps });
    context.fillStyle = color("shared");
    one.steps.forEach((_, i) => {
      if (!Number.isFinite(one.min[i]) || !Number.isFinite(one.max[i])) return;
      const x = Math.round(area.x(i) - area.slot / 2);
      context.fillRect(x, area.y(one.max[i]), Math.round(area.x(i) + area.slot / 2) - x, Math.max(1, area.y(one.min[i]) - area.y(one.max[i])));
    });
    paintLine(context, area, one.mean, color("fresh"));
    paintAlarms(context, area, one.steps, one.steps);
    if (chart.position >= 0) paintPoint(context, area, chart.position, one.mean[chart.position]);
    return area;
  };
  const chart = new Chart(byId("series-plot"), "Smallest, mean and largest value of the tensor at each step. The arrow keys move.", paint, {
    count: () => chosen().steps.length,
    describe: (i) => ({
      title: `Step ${chosen().steps[i]}`, x: chart.area.x(i), y: 30,
      lines: [`max ${numberText(chosen().max[i])}`, `mean ${numberText(chosen().mean[i])}`, `min ${numberText(chosen().min[i])}`],
    }),
  });
  const refreshTable = lazyTable(byId("series-table"), () => makeTable("Values of the tensor", [
    { title: "Step", cell: (i) => String(chosen().steps[i]) },
    ...["min", "mean", "max"].map((name) => ({ title: name, cell: (i) => numberText(chosen()[name][i]) })),
  ], chosen().steps.map((_, i) => i)));
  select.addEventListener("change", () => { chart.position = -1; chart.draw(); refreshTable(); });
}
