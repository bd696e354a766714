// Quantities in words, and elements. Text from the store is only ever assigned to textContent.

const byId = (id) => document.getElementById(id);

// make("td", {class: "left"}, "text", element, ...)
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function bytesText(bytes) {
  if (bytes < 1024) return `${Math.round(bytes)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = -1;
  while (bytes >= 1023.5 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes >= 99.95 ? Math.round(bytes) : bytes.toFixed(bytes >= 9.995 ? 1 : 2)} ${units[unit]}`;
}

const countText = (count) => Math.round(count).toLocaleString("en-US");

function plural(count, one, many) {
  return `${countText(count)} ${count === 1 ? one : many || one + "s"}`;
}

// Exactly 0 % and 100 % only if the share is.
function shareText(part, whole) {
  if (whole <= 0) return "-";
  const share = (100 * part) / whole;
  if (part > 0 && share < 0.1) return "<0.1 %";
  if (part < whole && share > 99.9) return ">99.9 %";
  return `${share.toFixed(share === 0 || share === 100 ? 0 : 1)} %`;
}

// Floats that JSON does not have are strings.
function asNumber(value) {
  if (value === null || value === undefined) return undefined;
  if (typeof value === "number") return value;
  return { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity }[value];
}

function numberText(value, digits = 4) {
  if (value === undefined) return "-";
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "Inf");
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(Math.max(2, digits - 2)).replace("e+", "e");
}

function timeText(seconds) {
  if (!seconds) return "-";
  const time = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ` +
    `${two(time.getHours())}:${two(time.getMinutes())}`;
}

// About `count` round numbers, of which the first is at most `least` and the last at least `most`; in
// units of powers of `base` if there is one.
function ticks(least, most, count, base = Infinity) {
  let unit = 1;
  while ((most - least) / unit >= base) unit *= base;
  const rough = (most - least || Math.abs(most) || 1) / unit / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power * unit;
  const result = [];
  for (let i = Math.floor(least / step + 1e-9); result.length < 20; ++i) {
    result.push(i * step);
    if (i * step >= most - step * 1e-9 && result.length > 1) break;
  }
  return result;
}

// A name that may be broken after its dots.
function breakable(name) {
  const parts = name.split(".");
  const fragment = document.createDocumentFragment();
  parts.forEach((part, i) => {
    if (i > 0) fragment.append(".", make("wbr"));
    fragment.append(part);
  });
  return fragment;
}

// Tables that show more than their first portion, by their caption.
const shownRows = new Map();

// A table with a caption for screen readers. Columns: {title, left, cell(row), sort}. Rows are added
// in portions.
function makeTable(caption, columns, rows, portion = 100) {
  const body = make("tbody");
  const table = make("table", {}, make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...columns.map((column) =>
      make("th", { scope: "col", class: column.left && "left", "aria-sort": column.sorted }, column.head || column.title)))), body);
  const box = make("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, table);
  const more = make("button", { type: "button", class: "more" });
  let shown = 0;
  const add = () => {
    for (const row of rows.slice(shown, shown + portion)) {
      body.append(make("tr", {}, ...columns.map((column, i) => {
        const content = column.cell(row);
        const name = column.mark && column.mark(row) ? "bad" : column.left ? "left" : undefined;
        return i === 0 ? make("th", { scope: "row", class: "mono" }, content) : make("td", { class: name }, content);
      })));
    }
    shown = Math.min(rows.length, shown + portion);
    more.hidden = shown === rows.length;
    more.textContent = `Show ${Math.min(portion, rows.length - shown)} more of ${countText(rows.length)}`;
  };
  more.addEventListener("click", () => {
    add();
    shownRows.set(caption, shown);
  });
  add();
  while (shown < Math.min(rows.length, shownRows.get(caption) || 0)) add();
  return make("div", {}, box, more);
}

// Fills a details element when it is opened, and again with the function that is returned while it is
// open.
function lazyTable(details, build) {
  const refresh = () => {
    while (details.children.length > 1) details.lastChild.remove();
    if (details.open) details.append(build());
  };
  details.addEventListener("toggle", refresh);
  return refresh;
}
