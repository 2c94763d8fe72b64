// All of it: the page is filled from the JSON in it, and again whenever a watched run has news or the address changes.
// All text goes through textContent, or through plain() on its way to Plotly, which reads a little HTML: names of runs
// are not ours.

const POLL = 2000; // milliseconds

function showSetup() {
  const run = pickRun("setup-method", "setup-seed", ["setup", "setup-seed"]).runs[0];
  if (!run) return;
  $("setup-path").textContent =
    run.path +
    (run.finished
      ? run.done < run.asked
        ? ` (stopped early, after ${run.done} of ${run.asked} rounds)`
        : ""
      : ` (${run.failed ? "failed" : "ended or under way"} at round ${run.done} of ${run.total})`);
  if ($("experiment").textContent !== run.experiment) $("experiment").textContent = run.experiment;
  const text = (value) =>
    value === null
      ? "–"
      : Array.isArray(value)
        ? value.join(" ")
        : typeof value === "object"
          ? Object.entries(value)
              .map(([k, v]) => `${k} ${v}`)
              .join(", ")
          : String(value);
  $("environment").replaceChildren(
    ...Object.entries(run.environment)
      .filter(([key]) => key !== "changed") // which is in the method's name
      .flatMap(([key, value]) => [h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, text(value))]),
  );
}

function showWords() {
  showAnswers();
  showProgress(false);
  $("main").hidden = !data.runs.length;
  if (!data.runs.length) return;
  showCondition();
  showForestWords();
  showTables();
  showSiteTables();
  showChips();
  showSetup();
}
function showCharts() {
  if (!data.runs.length) return;
  showForests();
  showCurves();
  showSites();
  showClasses();
  showClients();
  showConfusion();
}
function showAll() {
  showWords();
  showCharts();
}
function listen() {
  onChoice("condition", "condition", showAll);
  onChoice("metric", "metric", showCurves);
  onChoice("x-axis", "x", showCurves);
  onChoice("smooth", "smooth", showCurves);
  onChoice("seeds", "seeds", showCurves);
  onChoice("class-how", "class", showClasses);
  onChoice("class-condition", "class-condition", showClasses);
  onChoice("method", "method", showClients);
  onChoice("seed", "seed", showClients);
  onChoice("client", "client", showClients);
  onChoice("round", "round", showClients);
  onChoice("site-measure", "site-measure", () => {
    showSiteTables();
    showSites();
  });
  onChoice("site-method", "site", showSites);
  onChoice("site-seed", "site-seed", showSites);
  onChoice("confusion-method", "confusion", showConfusion);
  onChoice("confusion-seed", "confusion-seed", showConfusion);
  onChoice("against", "against", showConfusion);
  onChoice("setup-method", "setup", showSetup);
  onChoice("setup-seed", "setup-seed", showSetup);
  $("all").addEventListener("click", () => showOnly(true));
  $("none").addEventListener("click", () => showOnly(false));
  $("previous").addEventListener("click", () => chooseClient(Number($("client").value) - 1));
  $("next").addEventListener("click", () => chooseClient(Number($("client").value) + 1));
  $("save-experiment").addEventListener("click", () => {
    const run = pickRun("setup-method", "setup-seed", ["setup", "setup-seed"]).runs[0];
    save(fileName(`${runName(run)}.toml`), run.experiment, "application/toml");
  });
  for (const link of document.querySelectorAll("nav a, a.skip"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      goTo(link.getAttribute("href").slice(1));
    });
  window.addEventListener("popstate", () => {
    readAddress();
    showAll();
    $(chosen.section)?.scrollIntoView({ behavior: "instant" });
  });
  document.addEventListener("click", (event) => $("help").contains(event.target) || closeHelp());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !helped) return;
    const button = helped;
    closeHelp();
    button.focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
  // On paper: light, as wide as a page, everything open.
  const paper = (on) => () => {
    document.documentElement.classList.toggle("printing", on);
    for (const each of document.querySelectorAll("details"))
      if (on) [each.dataset.was, each.open] = [each.open, true];
      else each.open = each.dataset.was === "true";
    showCharts();
  };
  window.addEventListener("beforeprint", paper(true));
  window.addEventListener("afterprint", paper(false));
  let width = window.innerWidth,
    timer = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar comes and goes
    width = window.innerWidth;
    closeHelp();
    clearTimeout(timer);
    timer = setTimeout(showCharts, 200);
  });
}
async function poll() {
  try {
    const answer = await fetch("data.json?seen=" + encodeURIComponent(data.revision), { cache: "no-store" });
    if (answer.status === 200) {
      data = await answer.json();
      showAll();
    } else showProgress(!answer.ok);
  } catch {
    showProgress(true);
  }
  setTimeout(poll, POLL);
}

readAddress();
showWords(); // at once; Plotly, further down the page, takes its time
document.addEventListener("DOMContentLoaded", () => {
  showCharts();
  listen();
  $(chosen.section)?.scrollIntoView({ behavior: "instant" });
  if (LIVE) setTimeout(poll, POLL);
});
