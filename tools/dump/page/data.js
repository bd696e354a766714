// The document of the report (docs/report.md), and the state that the sections share.

let data, modules, shownFor, columnCount, alarms;

function decodeRow(text) {
  const binary = atob(text);
  return Uint8Array.from(binary, (char) => char.charCodeAt(0));
}

// The inverse of the functions in tools/dump/report_page.cc.
const measures = {
  changed: {
    title: "Changed bytes", decode: (level) => (level ? (level - 1) / 254 : 0),
    text: (level) => (level ? `${(100 * ((level - 1) / 254)).toFixed(level === 255 ? 0 : 1)} % of the bytes changed` : "no change"),
    low: "unchanged", high: "100 % of the bytes changed",
  },
  mean_shift: {
    title: "Movement of the mean", decode: (level) => level / 255,
    text: (level) => (level ? `the mean moved by ${numberText(10 ** ((level - 255) / 32))} of the largest magnitude` : "the mean did not move"),
    low: "not moved", high: "moved by the largest magnitude",
  },
  abs_max: {
    title: "Largest magnitude", decode: (level) => level / 255,
    text: (level) => (level === 255 ? "a value is infinite" : level ? `the largest magnitude is about ${numberText(10 ** ((level - 128) / 8))}` : "not recorded, or 0"),
    low: "0", high: "Inf",
  },
  nans: {
    title: "NaN", alarm: true, decode: (level) => (level ? 0.15 + (0.85 * level) / 160 : 0),
    text: (level) => (level ? `about ${countText(2 ** ((level - 1) / 4))} NaN` : "no NaN recorded"),
    low: "none", high: "many",
  },
  infs: {
    title: "Infinities", alarm: true, decode: (level) => (level ? 0.15 + (0.85 * level) / 160 : 0),
    text: (level) => (level ? `about ${countText(2 ** ((level - 1) / 4))} infinities` : "no infinities recorded"),
    low: "none", high: "many",
  },
};

// Makes a document the one that the page shows.
function adopt(document) {
  data = document;
  modules = data.modules;
  if (modules.length === 0) {
    modules.push({ name: "", parent: 0, kind: "module", tensors: 0, bytes: 0, stored: 0, unchanged: 0, changed_at: 0, rows: {} });
  }
  for (const module of modules) {
    module.children = [];
    for (const name of Object.keys(module.rows)) module.rows[name] = decodeRow(module.rows[name]);
  }
  modules.forEach((module, i) => {
    module.index = i;
    if (i > 0) modules[module.parent].children.push(module);
  });
  joinSingleParts();
  columnCount = data.columns.first.length;
  // Steps with a mark in the charts.
  alarms = data.findings.filter((finding) => (finding.topic === "nan" || finding.topic === "inf") &&
    finding.level === "bad").map((finding) => ({ step: finding.step, text: finding.topic === "nan" ? "NaN" : "Inf" }));
}

// A module with one part is shown as this part, with both names.
function joinSingleParts() {
  shownFor = modules.map((_, i) => i);
  for (let i = modules.length - 1; i > 0; --i) {
    const module = modules[i];
    const only = module.children[0];
    if (module.children.length !== 1 || only.kind === "rest") continue;
    only.name = `${module.name}.${only.name}`;
    only.parent = module.parent;
    const siblings = modules[module.parent].children;
    siblings[siblings.indexOf(module)] = only;
    shownFor[i] = shownFor[only.index];
  }
}

const compareNames = new Intl.Collator("en", { numeric: true }).compare;

function moduleName(module) {
  if (module.index === 0) return "all";
  return module.kind === "rest" ? `others (${plural(module.tensors, "tensor")})` : module.name;
}
function modulePath(module) {
  const names = [];
  for (let at = module; at.index !== 0; at = modules[at.parent]) names.unshift(moduleName(at));
  return names.join(".") || "all";
}

// The selection that several sections show: a module and a range of steps, both included.
const state = { module: 0, low: 0, high: Infinity };
const listeners = [];
function onChange(listener) {
  listeners.push(listener);
}
function setState(change) {
  Object.assign(state, change);
  for (const listener of listeners) listener(change);
}

// Screen readers speak the text, unless the page only shows new data.
let isQuiet = false;
const announce = (text) => {
  if (!isQuiet) byId("live").textContent = text;
};

// Positions of the columns that the range of steps contains.
function columnsInRange(first, last) {
  const positions = [];
  for (let i = 0; i < first.length; ++i) {
    if (last[i] >= state.low && first[i] <= state.high) positions.push(i);
  }
  return positions;
}
function stepsText(first, last) {
  return first === last ? `Step ${first}` : `Steps ${first} to ${last}`;
}

// The name of a tensor in requests; null if it is too long.
const keyOf = (tensor) => (tensor.key === undefined ? tensor.fqn : tensor.key);
const findingOf = (topic) => data.findings.find((finding) => finding.topic === topic);
