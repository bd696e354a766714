// Builds the page, and builds it again with a new document.

const parts = [...document.querySelectorAll(".part-of-report")];
const emptyParts = parts.map((part) => part.cloneNode(true));

function build() {
  document.title = `${data.store} \u2013 Cairn report`;
  startFacts();
  startFindings();
  startTreemap();
  startTimeline();
  startHeatmap();
  startTensors();
  startHealth();
  startNotes();
}

// The path of an element from the nearest ancestor with an id, which finds its successor; of a link,
// also where it leads.
function placeOf(element) {
  const link = element.getAttribute("href");
  const path = [];
  for (let at = element; at && at !== document.body; at = at.parentElement) {
    if (at.id) return { id: at.id, path, link };
    path.unshift([...at.parentElement.children].indexOf(at));
  }
  return null;
}
function elementAt(place) {
  if (!place) return null;
  const links = place.link ? [...byId(place.id).querySelectorAll("a")] : [];
  return links.find((one) => one.getAttribute("href") === place.link) ??
    place.path.reduce((at, i) => at?.children[i], byId(place.id));
}

// The choices of a person in the report: values of controls, open tables, the module, the focus.
function takeView() {
  const inParts = (selector) => parts.flatMap((part) => [...part.querySelectorAll(selector)]);
  const focused = document.activeElement;
  return {
    module: modulePath(modules[state.module]),
    texts: inParts("select[id]").filter((one) => one.selectedIndex >= 0).map((one) => [one.id, one.selectedOptions[0].textContent]),
    filter: byId("filter").value,
    caret: byId("filter").selectionStart,
    sideways: inParts(".scroll").filter((one) => one.scrollLeft > 0).map((one) => [one.getAttribute("aria-label"), one.scrollLeft]),
    showsAllRows,
    open: inParts("details[open][id]").map((one) => one.id),
    positions: charts.map((chart) => [chart.label, chart.position]),
    focus: parts.some((part) => part.contains(focused)) ? placeOf(focused) : null,
    isVisible: focused.matches(":focus-visible"),
    scroll: [scrollX, scrollY],
  };
}

function restoreView(view) {
  const module = modules.find((one) => shownFor[one.index] === one.index && modulePath(one) === view.module);
  if (module && module.index !== 0) setState({ module: module.index });
  if (view.showsAllRows && module) {
    showsAllRows = true;
    setState({});
  }
  for (const [id, text] of view.texts) {
    const option = [...byId(id).options].find((one) => one.textContent === text);
    if (!option || option.selected) continue;
    option.selected = true;
    byId(id).dispatchEvent(new Event("change"));
  }
  if (view.filter) {
    byId("filter").value = view.filter;
    byId("filter").dispatchEvent(new Event("input"));
    byId("filter").setSelectionRange(view.caret, view.caret);
  }
  for (const id of view.open) byId(id).open = true;
  for (const chart of charts) {
    const before = view.positions.find(([label]) => label === chart.label);
    if (before) chart.position = Math.min(before[1], chart.cursor.count() - 1);
  }
  elementAt(view.focus)?.focus({ preventScroll: true, focusVisible: view.isVisible });
  for (const [label, left] of view.sideways) {
    const box = [...document.querySelectorAll(".part-of-report .scroll")].find((one) => one.getAttribute("aria-label") === label);
    if (box) box.scrollLeft = left;
  }
  scrollTo(...view.scroll);
}

function rebuild(document) {
  const view = takeView();
  isQuiet = true;
  adopt(document);
  state.module = 0;
  showsAllRows = false;
  listeners.length = 0;
  parts.forEach((part, i) => {
    const fresh = emptyParts[i].cloneNode(true);
    part.replaceWith(fresh);
    parts[i] = fresh;
  });
  charts = charts.filter((chart) => chart.canvas.isConnected);
  build();
  restoreView(view);
  hideTooltip();
  isQuiet = false;
}

adopt(JSON.parse(byId("data").textContent));
build();
startTheme();
if (data.live) startLive();
document.documentElement.setAttribute("data-ready", "");
