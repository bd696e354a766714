// The sections without a chart: facts, findings, health, space, and what was merged.

function startFacts() {
  const line = data.timeline;
  const last = line.logical.length - 1;
  const stepRange = last < 0 ? "none yet" : `${line.first[0]} to ${line.last[last]}`;
  byId("store").append(data.store, make("small", {}, `Made ${data.generated.slice(0, 16).replace("T", " ")} by kv-dump ${data.version}; read from tables only, without payload`));
  const fact = (name, value, more) => byId("facts").append(make("div", {}, make("dt", {}, name), make("dd", {}, value), more ? make("small", {}, more) : null));
  fact("Steps", countText(data.steps), stepRange);
  if (last < 0) return;
  fact("Last step", modules.length ? bytesText(modules[0].bytes) : "-", plural(data.tensor_count, "tensor"));
  fact("All steps", bytesText(data.logical_bytes), "as if each were complete");
  fact("Stored", bytesText(data.space.file), `in ${plural(data.space.segment_count, "segment")}`);
  if (data.space.payload > 0) fact("Sharing", `${(data.logical_bytes / data.space.payload).toFixed(data.logical_bytes < 100 * data.space.payload ? 2 : 0)} : 1`, "checkpoints to payload");
}

const icons = { bad: "!", warning: "!", good: "\u2713", info: "i" };
const levelTexts = { bad: "Problem: ", warning: "Attention: ", good: "Good: ", info: "" };

function startFindings() {
  const list = byId("finding-list");
  for (const finding of data.findings) {
    const body = make("div", {}, make("span", { class: "hidden" }, levelTexts[finding.level]), make("strong", {}, finding.title));
    if (finding.text) body.append(make("p", {}, finding.text));
    if (finding.details.length > 0) {
      body.append(make("details", { id: `finding-${finding.topic}` }, make("summary", {}, `List of ${plural(finding.details.length, "item")}`),
        make("ul", {}, ...finding.details.map((detail) => make("li", {}, detail)))));
    }
    if (finding.module) body.append(showModuleButton(finding.module));
    list.append(make("li", { class: finding.level, "data-topic": finding.topic },
      make("span", { class: "icon", "aria-hidden": "true" }, icons[finding.level]), body));
  }
}

function showModuleButton(index) {
  const module = modules[shownFor[index]];
  return make("button", {
    type: "button", class: "more",
    onclick: () => {
      setState({ module: module.children.length ? module.index : module.parent });
      byId("bytes").scrollIntoView();
    },
  }, "Show it in the treemap");
}

function startHealth() {
  const box = byId("problems");
  if (data.problem_count === 0) box.append(make("p", { class: "fine" }, `\u2713 ${findingOf("health")?.title || "No damage was found."} ${findingOf("health")?.text || ""}`));
  else box.append(make("ul", { class: "problems" }, ...data.problems.map((problem) => make("li", {}, problem))));
  const space = data.space;
  if (space.file + space.unused === 0) return;
  const parts = [
    ["fresh", "live", "used by one step", space.live - space.shared],
    ["shared", "both", "used by several steps", space.shared],
    ["dead", "dead", "used by no step, could be freed by kv-admin compact (at most)", Math.max(0, space.payload - space.live)],
    ["other", "other", "headers, footers and digests", Math.max(0, space.file - space.payload)],
  ];
  if (space.unused > 0) parts.push(["dead", "dead", `${plural(space.unused_files, "file")} of deleted or unfinished steps`, space.unused]);
  const bar = make("div", { class: "stack", role: "img", "aria-label": parts.map((part) => `${bytesText(part[3])} ${part[2]}`).join(", ") });
  for (const part of parts) {
    const element = make("span", { class: part[0] });
    element.style.flexGrow = String(part[3]);
    bar.append(element);
  }
  byId("space").append(make("h3", {}, `${bytesText(space.file + space.unused)} in segments`), bar,
    make("ul", { class: "legend" }, ...parts.filter((part) => part[3] > 0).map((part) => make("li", {}, make("span", { class: `swatch ${part[1]}` }), `${bytesText(part[3])} ${part[2]}`))));
  lazyTable(byId("segments-table"), () => makeTable("Segments", [
    { title: "Segment", cell: (s) => s.name },
    { title: "Written by step", cell: (s) => String(s.step) },
    { title: "Rank", cell: (s) => String(s.rank) },
    { title: "File", cell: (s) => bytesText(s.file) },
    { title: "Live", cell: (s) => bytesText(s.live) },
    { title: "Shared", cell: (s) => bytesText(s.shared) },
    { title: "Dead", cell: (s) => bytesText(Math.max(0, s.payload - s.live)) },
  ], space.segments));
}

function startNotes() {
  const notes = [...data.notes];
  if (notes.length === 0) notes.push("Nothing was merged or left out: the page shows every step, module and tensor.");
  notes.push(`${plural(data.chunk_records, "record")} of chunks were read, and no payload.`);
  notes.push("Live and shared bytes are exact as long as later steps use a part of what earlier steps use; kv-dump space --segments is always exact.");
  byId("notes").append(...notes.map((note) => make("li", {}, note)));
}

function startTheme() {
  const button = byId("theme");
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("cairn-theme") || "auto";
  } catch { /* a page that was opened from a file may have no storage */ }
  const apply = () => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    button.textContent = `Theme: ${theme}`;
    redrawAll();
  };
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try {
      localStorage.setItem("cairn-theme", theme);
    } catch { /* the choice lasts as long as the page */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  apply();
}
