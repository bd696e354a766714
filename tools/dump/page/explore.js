// Search for keys, and one key: values, distribution and history at any step.

function startSearch() {
  const input = byId("search");
  const list = byId("results");
  const latest = makeLatest();
  let keys = [], chosen = -1, timer = 0;
  let opensFirst = false;  // Enter was pressed before the answer
  const close = () => {
    clearTimeout(timer);
    latest.cancel();
    keys = [];
    opensFirst = false;
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    chosen = -1;
  };
  const choose = (i) => {
    chosen = i;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === i)));
    list.children[i]?.scrollIntoView({ block: "nearest" });
    if (i >= 0) input.setAttribute("aria-activedescendant", `result-${i}`);
  };
  const open = (i) => {
    const { key } = keys[i];
    close();
    showKey(key);
  };
  const fill = (answer) => {
    keys = answer.keys;
    list.replaceChildren(...keys.map((key, i) => make("li", { role: "option", id: `result-${i}`, "aria-selected": "false", onpointerdown: (event) => event.preventDefault(), onclick: () => open(i) },
      make("span", { class: "mono" }, breakable(key.fqn)),
      make("small", {}, key.kind === "tensor" ? `${key.dtype} ${key.shape}, ${bytesText(key.bytes)}` : "value"))));
    const rest = answer.matches - keys.length;
    const note = keys.length === 0 ? `No key of step ${answer.step} contains these words.` : rest > 0 ? `${countText(rest)} more; add a word to see fewer.` : "";
    if (note) list.append(make("li", { class: "empty", "aria-disabled": "true", role: "option" }, note));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    chosen = -1;
    announce(plural(answer.matches, "key"));
    if (opensFirst && keys.length) open(0);
  };
  const fail = (message) => {
    list.replaceChildren(make("li", { class: "empty", role: "option", "aria-disabled": "true" }, message));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    announce(message);
  };
  const search = () => {
    clearTimeout(timer);
    if (input.value.trim() === "") return close();
    latest(() => ask("keys", { query: input.value }), fill, fail);
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    latest.cancel();
    keys = [];  // they are of other words
    opensFirst = false;
    timer = setTimeout(search, 120);
  });
  input.addEventListener("focus", () => { if (list.hidden && input.value) search(); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move && keys.length) choose(chosen < 0 ? (move > 0 ? 0 : keys.length - 1) : (chosen + move + keys.length) % keys.length);
    else if (event.key === "Enter" && keys.length) open(Math.max(0, chosen));
    else if (event.key === "Enter" && input.value.trim()) {
      search();
      opensFirst = true;
    }
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}

// The key is in the address of the page, so that it can be linked to and the browser goes back.
function showKey(key) {
  const hash = `#key=${encodeURIComponent(key)}`;
  if (location.hash === hash) dispatchEvent(new Event("hashchange"));
  else location.hash = hash;
}

function startKey() {
  const latest = makeLatest();
  const step = byId("key-step"), slice = byId("key-slice");
  let key = null;
  const load = (all) => {
    if (key === null) return;
    const parameters = { key };
    if (step.value.trim()) parameters.step = step.value.trim();
    if (slice.value.trim()) parameters.slice = slice.value.trim();
    if (all) parameters.all = 1;
    byId("key-content").setAttribute("aria-busy", "true");
    const finish = (...children) => {
      byId("key-content").removeAttribute("aria-busy");
      byId("key-content").replaceChildren(...children);
      charts = charts.filter((chart) => chart.canvas.isConnected);
      redrawAll();
    };
    latest(() => ask("key", parameters), (answer) => {
      byId("key-name").replaceChildren(breakable(answer.fqn));
      byId("key-slice-box").hidden = answer.kind !== "tensor";
      finish(...(answer.kind === "tensor" ? tensorView(answer, () => load(true)) : valueView(answer)), historyView(key));
      announce(`${answer.fqn} at step ${answer.step}`);
    }, (message, error) => {
      if (error.key) byId("key-name").replaceChildren(breakable(error.key));
      finish(make("p", { class: "error", role: "alert" }, message));
    });
  };
  const follow = () => {
    if (!location.hash.startsWith("#key=")) return;
    try {
      key = decodeURIComponent(location.hash.slice(5));
    } catch {
      return;  // not an address of this page
    }
    slice.value = "";
    byId("key-name").replaceChildren("\u2026");  // the server escapes the name
    byId("key-form").hidden = false;
    byId("key-hint").hidden = true;
    load(false);
    byId("key").scrollIntoView();
    byId("key-title").focus({ preventScroll: true });
  };
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    load(false);
  });
  addEventListener("hashchange", follow);
  follow();
}

function factList(facts) {
  return make("dl", { class: "facts" }, ...facts.filter(([, value]) => value !== undefined).map(([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value), more ? make("small", {}, more) : null)));
}

function tensorView(answer, readAll) {
  const facts = [["Step", String(answer.step)], ["Dtype", answer.dtype], ["Shape", answer.shape],
    ["Size", bytesText(answer.bytes), answer.alias_of ? `shares ${answer.alias_of}` : plural(answer.chunks, "chunk")]];
  const statistics = answer.statistics;
  if (statistics) {
    for (const name of ["min", "mean", "max", "std"]) facts.push([name[0].toUpperCase() + name.slice(1), numberText(asNumber(statistics[name]))]);
    for (const [title, name] of [["Zeros", "zeros"], ["NaN", "nan"], ["Inf", "inf"]]) {
      facts.push([title, countText(statistics[name]), statistics[name] ? shareText(statistics[name], statistics.count) : undefined]);
    }
  }
  const result = [factList(facts)];
  if (!statistics) result.push(make("p", { class: "hint" }, "The tensor repeats what is stored to a much larger size, so there are no statistics."));
  else if (answer.read_elements < answer.elements) {
    result.push(make("p", { class: "hint" }, `From a sample of ${countText(answer.read_elements)} of ${countText(answer.elements)} elements, at equal distances. `,
      make("button", { type: "button", onclick: (event) => {
      event.target.disabled = true;
      event.target.textContent = "Reading\u2026";
      readAll();
    } }, "Read all")));
  }
  if (answer.histogram) result.push(...histogramView(answer.histogram, statistics));
  result.push(make("h3", {}, "Values"), make("div", { class: "scroll", role: "region", "aria-label": "Values", tabindex: "0" }, make("pre", {}, answer.text)));
  return result;
}

function valueView(answer) {
  return [factList([["Step", String(answer.step)], ["Type", answer.type]]), make("h3", {}, "Value"),
    make("div", { class: "scroll", role: "region", "aria-label": "Value", tabindex: "0" }, make("pre", { class: "wrapped" }, answer.text)),
    answer.truncated ? make("p", { class: "hint" }, "The value is longer; kv-dump show prints all of it.") : null].filter(Boolean);
}

function histogramView(histogram, statistics) {
  const { counts } = histogram;
  const low = asNumber(histogram.low), width = asNumber(histogram.width);
  const start = (i) => low + i * width;
  const largest = Math.max(Math.abs(low), Math.abs(start(counts.length)));
  const digits = width > 0 ? Math.min(17, Math.max(4, Math.ceil(Math.log10(largest / width)) + 2)) : 6;
  const edgeText = (i) => numberText(start(i), digits);
  const rangeText = (i) => (width === 0 ? edgeText(0) : `${edgeText(i)} to ${edgeText(i + 1)}`);
  const plot = make("div", { class: "plot" });
  const paint = (context, canvasWidth, height) => {
    const labels = counts.map((_, i) => edgeText(i));
    const area = paintAxes(context, canvasWidth, height, { values: ticks(0, Math.max(...counts), 3), text: countText, steps: labels });
    counts.forEach((count, i) => {
      const x = Math.round(area.x(i) - area.slot / 2);
      const top = count ? Math.min(area.bottom - 1, area.y(count)) : area.bottom;
      context.fillStyle = color(i === chart.position ? "text" : "fresh");
      context.fillRect(x, top, Math.max(1, Math.round(area.x(i) + area.slot / 2) - x - (area.slot > 4 ? 1 : 0)), area.bottom - top);
    });
    return area;
  };
  const total = statistics.count - statistics.nan - statistics.inf;
  const chart = new Chart(plot, "Number of values in each range. The arrow keys move.", paint, {
    count: () => counts.length,
    describe: (i) => ({ title: rangeText(i), lines: [`${plural(counts[i], "value")}, ${shareText(counts[i], total)}`], x: chart.area.x(i), y: 30 }),
  });
  const table = make("details", {}, make("summary", {}, "Table of the distribution"));
  lazyTable(table, () => makeTable("Distribution", [
    { title: "Range", cell: rangeText }, { title: "Values", cell: (i) => countText(counts[i]) }, { title: "Share", cell: (i) => shareText(counts[i], total) },
  ], counts.map((_, i) => i)));
  return [make("h3", {}, "Distribution"), plot, table];
}

// The steps at which the key changed; asked for when it is opened.
function historyView(key) {
  const details = make("details", {}, make("summary", {}, "Steps at which it changed"));
  lazyTable(details, () => {
    const box = make("div", { "aria-live": "polite" }, make("p", { class: "hint" }, "Reading\u2026"));
    ask("history", { key }).then((answer) => {
      const at = (step) => make("button", { type: "button", onclick: () => {
        byId("key-step").value = step;
        byId("key-form").requestSubmit();
        byId("key").scrollIntoView();
      } }, String(step));
      box.replaceChildren(makeTable("Versions", [
        { title: "Step", cell: (v) => at(v.step) },
        { title: "Change", left: true, cell: (v) => v.change },
        { title: "Changed", cell: (v) => (v.kind === "tensor" ? bytesText(v.changed_bytes) : "-") },
        { title: "Of", cell: (v) => (v.kind === "tensor" ? bytesText(v.total_bytes) : "-") },
        { title: "Detail", left: true, cell: (v) => v.detail },
      ], answer.versions, 25), answer.count > answer.versions.length ? make("p", { class: "hint" }, `The last ${countText(answer.versions.length)} of ${countText(answer.count)}.`) : "");
    }, (error) => box.replaceChildren(make("p", { class: "error", role: "alert" }, error.message)));
    return box;
  });
  return details;
}
