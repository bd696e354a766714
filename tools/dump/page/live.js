// The live view (kv-dump serve): asks the server, and follows a running job.

const kPollMilliseconds = 2000;

// Returns the document at `path`. Errors have the message of the server.
async function ask(path, parameters = {}) {
  let response, document;
  try {
    response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`);
    document = await response.json();
  } catch {
    throw new Error("Not connected: start kv-dump serve again");
  }
  if (document.error) throw Object.assign(new Error(document.error.message), { key: document.error.key });
  return document;
}

// Calls `use` with the result of the last call only, so that an older answer replaces no newer one.
// After cancel(), no result is used.
function makeLatest() {
  let last = 0;
  const latest = async (ask, use, fail) => {
    const mine = ++last;
    try {
      const result = await ask();
      if (mine === last) use(result);
    } catch (error) {
      if (mine === last) fail(error.message, error);
    }
  };
  latest.cancel = () => { ++last; };
  return latest;
}

// A key of the store: a link in the live view, and text in a report.
function keyLink(key, name) {
  if (!data.live || key === null) return breakable(name);
  return make("a", { href: `#key=${encodeURIComponent(key)}` }, breakable(name));
}

function ageText(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

function startLive() {
  for (const element of document.querySelectorAll("[data-live]")) element.hidden = false;
  startSearch();
  startKey();
  startCompare();
  const status = byId("status");
  const button = byId("follow");
  let isFollowing = true;
  const showState = (answer) => {
    status.className = isFollowing ? "status on" : "status";
    status.textContent = answer.latest ? `Step ${answer.latest.step}, saved ${ageText(answer.now - answer.latest.saved)}` : "No steps yet";
  };
  const poll = async () => {
    if (!isFollowing || document.hidden) return;
    try {
      const answer = await ask("state");
      showState(answer);
      if (answer.version === data.live.version) return;
      const report = await ask("report");
      if (isFollowing && report.live.version !== data.live.version) {
        rebuild(report);
        refreshSteps();
      }
    } catch (error) {
      status.className = "status off";
      status.textContent = error.message;
    }
  };
  const run = async () => {
    await poll();
    setTimeout(run, kPollMilliseconds);
  };
  button.addEventListener("click", () => {
    isFollowing = !isFollowing;
    button.textContent = isFollowing ? "Pause" : "Follow";
    status.className = isFollowing ? "status on" : "status";
    announce(isFollowing ? "The page follows the store" : "The page does not change any more");
    poll();
  });
  document.addEventListener("visibilitychange", poll);
  refreshSteps();
  run();
}

// The steps that can be chosen, and the tags.
const knownSteps = { steps: [], tags: [] };
function refreshSteps() {
  ask("steps").then((answer) => {
    Object.assign(knownSteps, answer);
    const tagOf = new Map(answer.tags.map((tag) => [tag.step, tag.tag]));
    byId("known-steps").replaceChildren(...answer.steps.slice(-2000).reverse().map((step) => make("option", { value: step }, tagOf.get(step) ?? "")));
    byId("compare-a").placeholder = String(answer.steps.at(-2) ?? "");
    byId("compare-b").placeholder = byId("key-step").placeholder = String(answer.steps.at(-1) ?? "");
  }, () => { /* the status shows that there is no connection */ });
}
