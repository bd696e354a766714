// The differences between two steps.

function startCompare() {
  const latest = makeLatest();
  const content = byId("compare-content");
  byId("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const step = (id) => byId(id).value.trim() || byId(id).placeholder;
    const parameters = { a: step("compare-a"), b: step("compare-b"), query: byId("compare-filter").value };
    content.setAttribute("aria-busy", "true");
    const finish = (...children) => {
      content.removeAttribute("aria-busy");
      content.replaceChildren(...children);
    };
    latest(() => ask("diff", parameters), (answer) => {
      finish(...diffView(answer));
      announce(content.querySelector("p").textContent);
    }, (message) => finish(make("p", { class: "error", role: "alert" }, message)));
  });
}

function diffView(answer) {
  const summary = `Step ${answer.a} to ${answer.b}: ${countText(answer.added)} added, ${countText(answer.removed)} removed, ` +
    `${countText(answer.changed)} changed (${bytesText(answer.changed_bytes)})` +
    (answer.unchanged === null ? "." : `, ${countText(answer.unchanged)} unchanged.`);
  const total = answer.added + answer.removed + answer.changed;
  if (total === 0) return [make("p", {}, summary)];
  const result = [make("p", {}, summary), makeTable("Differences", [
    { title: "Key", cell: (row) => keyLink(row.key, row.fqn) },
    { title: "Change", left: true, cell: (row) => row.change },
    { title: "Bytes", cell: (row) => (row.kind === "tensor" ? bytesText(row.changed_bytes) : "value") },
    { title: "Of", cell: (row) => (row.kind === "tensor" ? bytesText(row.total_bytes) : "-") },
    { title: "Values", left: true, cell: (row) => valuesCell(answer, row) },
    { title: "Detail", left: true, cell: (row) => row.detail },
  ], answer.changes, 50)];
  if (answer.changes.length < total) result.push(make("p", { class: "hint" }, `The ${countText(answer.changes.length)} with the most changed bytes of ${countText(total)}.`));
  return result;
}

// A button that reads both tensors, and is replaced by what differs.
function valuesCell(answer, row) {
  if (row.kind !== "tensor" || row.change !== "changed" || row.detail) return "";
  const box = make("span", { "aria-live": "polite" });
  const button = make("button", { type: "button", "aria-label": `Compare the values of ${row.fqn}` }, "Compare");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Reading\u2026";
    try {
      const found = await ask("difference", { key: row.key, a: answer.a, b: answer.b });
      const words = [`${shareText(found.differing_elements, found.elements)} of the elements differ`];
      if (found.largest_absolute_difference !== undefined) words.push(`by up to ${numberText(found.largest_absolute_difference)}`);
      if (found.not_comparable_elements) words.push(`${countText(found.not_comparable_elements)} NaN or Inf`);
      box.replaceChildren(words.join(", "));
    } catch (error) {
      box.replaceChildren(make("span", { class: "error" }, error.message));
    }
  });
  box.append(button);
  return box;
}
