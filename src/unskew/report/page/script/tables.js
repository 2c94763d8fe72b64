// The answer, how far a watched run is, and the tables of methods.

function showAnswers() {
  $("title").textContent = data.title;
  document.title = data.title;
  $("answers").className = several() ? "several" : "";
  $("answers").replaceChildren(
    ...data.blocks.map((block) =>
      h(
        "div",
        { class: "block" },
        several() ? h("p", { class: "where" }, block.title) : null,
        h("p", { class: "answer" }, block.sentence),
        h("p", { class: "skew" }, block.skew),
        h("p", { class: "note" }, block.notes.join(" ")),
      ),
    ),
  );
  if (several())
    $("answers").append(
      h("p", { class: "note" }, "These runs were made under different conditions: compare methods within a paragraph, not between them."),
    );
  $("footer").textContent = `unskew ${data.version}, ${data.written}`;
}

function showProgress(gone) {
  $("progress").hidden = !LIVE;
  if (!LIVE) return;
  const { runs, done, total, finished, failed, left, pace, changed } = data.progress;
  let text = "Waiting for the run to begin",
    rest = "";
  if (finished) {
    text = failed
      ? `${failed} of ${plural(data.runs.length, "run")} failed, the others finished`
      : `All ${plural(data.runs.length, "run")} finished`;
    rest = plural(done, "round");
  } else if (data.runs.length) {
    const waiting = data.runs.filter((run) => !run.finished && !run.failed);
    const now = waiting.filter((run) => run.done).pop() || waiting[0] || data.runs.at(-1);
    text = `Round ${now.done} of ${now.total}`;
    rest = left === null ? "the time left is known after the first round" : `about ${duration(left)} left`;
    if (runs > 1) text = `Run ${data.runs.indexOf(now) + 1} of ${runs}, ${runName(now)}: round ${now.done} of ${now.total}`;
  }
  $("progress-text").textContent = text;
  $("progress-left").textContent = rest;
  const bar = $("progress-bar");
  bar.max = Math.max(total, 1);
  if (data.runs.length) bar.value = done;

  const quiet = changed ? Date.now() / 1000 - changed : 0;
  let news = data.trouble || "";
  if (gone) news = "The watch has ended: this is the last it saw.";
  else if (!news && !finished && quiet > Math.max(60, 5 * (pace || 0)))
    news = `No news for ${duration(quiet)}: the run may have been stopped.`;
  if ($("progress-news").textContent !== news) $("progress-news").textContent = news; // said aloud once
}

function showCondition() {
  $("condition-label").hidden = !several();
  fill($("condition"), [["", "all"], ...data.blocks.map((block) => [block.short, block.short])], chosen.condition);
}

// Tables that can be sorted: columns are { key, title, help?, value(row), cell(row), lower?, text? }, where less is
// better with `lower`, and `text` is for words. The first column names the row. `redraw` makes the table anew.

function sortable(name, label, columns, rows, { foot = [], redraw = showWords } = {}) {
  const key = "sort-" + name;
  const colon = chosen[key].lastIndexOf(":"), // a key may have some of its own
    by = chosen[key].slice(0, Math.max(colon, 0)),
    way = chosen[key].slice(colon + 1);
  const column = columns.find((each) => each.key === by);
  const ordered = column ? [...rows].sort((a, b) => compare(column.value(a), column.value(b), way)) : rows;
  const head = columns.map((each) => {
    const first = each.text || each.lower ? "asc" : "desc",
      other = first === "asc" ? "desc" : "asc",
      now = each === column ? way : "";
    const button = h("button", { type: "button", class: "sort", "data-column": each.key }, ...(each.head || [each.title]));
    button.addEventListener("click", () => {
      const next = now === "" ? first : now === first ? other : "";
      const tables = () => [...document.querySelectorAll(`[data-table="${name}"]`)], // one for each condition
        place = tables().indexOf(button.closest("table"));
      change({ [key]: next && `${each.key}:${next}` }, redraw);
      tables()[place]?.querySelector(`[data-column="${CSS.escape(each.key)}"]`)?.focus();
    });
    const sorted = now ? (now === "asc" ? "ascending" : "descending") : "none";
    return h("th", { scope: "col", "aria-sort": sorted }, h("span", { class: "head" }, button, each.help ? helpButton(each.title, each.help) : null));
  });
  return region(
    label,
    h(
      "table",
      { "data-table": name },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, ...ordered.map((row) => h("tr", {}, ...columns.map((each) => each.cell(row))))),
      foot.length ? h("tfoot", {}, ...foot) : null,
    ),
  );
}
function compare(a, b, way) {
  if (!known(a) || !known(b)) return known(b) - known(a); // what is not there comes last, either way
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return way === "asc" ? order : -order;
}
const region = (label, table) =>
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
function cell(text, more = {}) {
  const [middle, spread] = text.split(" ± ");
  return h("td", more, more.class === "best" ? h("strong", {}, middle) : middle, spread ? h("span", { class: "spread" }, ` ± ${spread}`) : null);
}

// What a column means: a button that opens it, for fingers and keys as for a mouse.
function helpButton(name, text) {
  const button = h("button", { type: "button", class: "help", "aria-label": `What is ${name}?`, "aria-expanded": "false" }, "?");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    const opened = $("help").hidden || $("help").dataset.of !== name + text;
    closeHelp();
    if (opened) openHelp(button, name, text);
  });
  return button;
}
let helped = null; // the button whose help is open
function openHelp(button, name, text) {
  const box = $("help");
  helped = button;
  button.setAttribute("aria-expanded", "true");
  box.dataset.of = name + text;
  box.replaceChildren(h("strong", {}, name), ": " + text + (text.endsWith(".") ? "" : "."));
  box.hidden = false;
  box.style.left = "0"; // as wide as it likes to be, wherever it was before
  const at = button.getBoundingClientRect(),
    width = document.documentElement.clientWidth;
  box.style.left = `${window.scrollX + Math.max(8, Math.min(at.left, width - box.offsetWidth - 8))}px`;
  box.style.top = `${window.scrollY + at.bottom + 6}px`;
}
function closeHelp() {
  if (helped) helped.setAttribute("aria-expanded", "false");
  helped = null;
  $("help").hidden = true;
}

// Methods

const nameColumn = () => ({
  key: "method",
  title: "method",
  text: true,
  value: (row) => row.name,
  cell: (row) => h("th", { scope: "row" }, h("span", { class: "named" }, swatch(row.method), h("span", {}, ...breakable(row.name)))),
});
const numberColumn = (head, at) => ({
  ...head,
  value: (row) => row.cells[at]?.[2],
  cell: (row) => {
    const [text, best] = row.cells[at] || ["–", false];
    return cell(text, best ? { class: "best" } : {});
  },
});
function methodTable(block) {
  const alike = (key) => new Set(block.rows.map((row) => row[key])).size === 1; // then said once, above
  const facts = ["seeds", "rounds"].filter((key) => !alike(key));
  const numbers = block.heads.map((head, i) => numberColumn(head, i));
  const against = {
    key: "against",
    title: `${block.compared === "accuracy" ? "" : block.compared + " "}against ${block.reference}`,
    help: `difference of ${block.compared} in points, seed by seed, with its 95 % interval`,
    value: (row) => row.against?.[1],
    cell: (row) => h("td", { class: "spread" }, row.against === null ? "reference" : row.against[0]),
  };
  const fact = (key) => ({
    key,
    title: key,
    value: (row) => parseFloat(row[key]),
    cell: (row) => h("td", {}, String(row[key])),
  });
  const columns = [nameColumn(), ...facts.map(fact), numbers[0], ...(block.reference === null ? [] : [against]), ...numbers.slice(1)];
  const said = [alike("seeds") ? plural(block.rows[0].seeds, "seed") : null, alike("rounds") ? `${block.rows[0].rounds} rounds` : null];
  return [
    several() ? h("h3", {}, block.title) : null,
    h("p", { class: "note" }, said.filter(Boolean).join(", ")),
    sortable("methods", "Comparison of methods", columns, block.rows),
    saveTable("methods" + (block.short && "-" + block.short), () => block.csv),
    h("details", {}, h("summary", {}, "What it took"), costTable(block)),
  ];
}
function costTable(block) {
  const columns = block.costs.map((head, i) => numberColumn(head, block.heads.length + i));
  const seconds = {
    key: "seconds",
    title: "seconds",
    help: "of the whole run with all its stages and tests, without setting up; mean over seeds",
    lower: true,
    value: (row) => row.seconds,
    cell: (row) => h("td", {}, fixed(row.seconds, 1)),
  };
  return sortable("costs", "What it took", [nameColumn(), ...columns, seconds], block.rows);
}
function saveTable(name, content) {
  const button = h("button", { type: "button", "data-save": "csv", "aria-label": "Save the table as CSV" }, "CSV");
  button.addEventListener("click", () => save(fileName(name) + ".csv", content(), "text/csv"));
  return h("p", { class: "saves" }, h("span", { "aria-hidden": "true" }, "Save"), button);
}
// Puts new content in the place of the old, which keeps what was opened and how far it was scrolled.
function refill(place, content) {
  const all = (selector) => [...place.querySelectorAll(selector)];
  const open = all("details").map((each) => each.open),
    scrolled = all(".scroll").map((each) => each.scrollLeft);
  closeHelp();
  place.replaceChildren(...content.flat().filter(Boolean));
  all("details").forEach((each, i) => (each.open = Boolean(open[i])));
  all(".scroll").forEach((each, i) => (each.scrollLeft = scrolled[i] || 0));
}
const chosenBlocks = () => {
  const some = data.blocks.filter((block) => block.short === chosen.condition);
  return some.length ? some : data.blocks;
};
function aboutMarks(rows) {
  const bold = rows.some((row) => row.cells.some(([, best]) => best)),
    star = rows.some((row) => [...row.cells, row.against || [""]].some(([text]) => text.endsWith("*")));
  if (!bold && !star) return "Nothing is bold or has a star: no difference is significant.";
  return [
    bold ? "Bold: above every other method beyond chance; of traffic and cost, in which there is no chance, the least." : "",
    star ? "Star: differs significantly from the reference, after Holm's correction." : "",
  ]
    .filter(Boolean)
    .join(" ");
}
function showTables() {
  refill($("tables"), chosenBlocks().map(methodTable));
  const notes = [...data.notes];
  if (chosenBlocks().some((block) => block.rows.length > 1)) notes.unshift(aboutMarks(chosenBlocks().flatMap((block) => block.rows)));
  const rounds = [...new Set(chosenBlocks().map((block) => block.forest?.round).filter(known))];
  if (rounds.length)
    notes.unshift(`Not all runs have ended: the table and the differences are of round ${rounds.join(" and ")}, the last that all of them have reached.`);
  $("notes").replaceChildren(...notes.map((note) => h("li", {}, note)));
}
