// What a person has chosen, by name: it outlives new data, and stands in the address, so that a copied link opens the
// same view. `#section?key=value&...`: only what is not as at first.

const FIRST = {
  condition: "",
  metric: "", // accuracy, or where there are sites their mean
  x: "round",
  smooth: "1",
  seeds: "band",
  class: "mean",
  "class-condition": "",
  method: "",
  seed: "",
  client: "", // until one is picked, the first of whom something can be told
  round: "",
  confusion: "",
  "confusion-seed": "",
  against: "",
  site: "",
  "site-seed": "",
  "site-measure": "accuracy",
  setup: "",
  "setup-seed": "",
  "sort-forest": "",
  "sort-methods": "",
  "sort-costs": "",
  "sort-sites": "",
  "sort-side": "",
};
const chosen = { ...FIRST, section: "", hidden: new Set() };

function readAddress() {
  const [section, query = ""] = location.hash.slice(1).split("?");
  const asked = new URLSearchParams(query);
  chosen.section = section;
  for (const key of Object.keys(FIRST)) chosen[key] = asked.get(key) ?? FIRST[key];
  chosen.hidden = new Set(asked.getAll("hide"));
}
function address() {
  const told = new URLSearchParams();
  for (const [key, first] of Object.entries(FIRST)) if (chosen[key] !== first) told.set(key, chosen[key]);
  for (const name of chosen.hidden) told.append("hide", name);
  const query = told.toString();
  return "#" + chosen.section + (query ? "?" + query : "");
}
// Choices change the entry of the history, sections make one: Back leads to the section before, not through clients.
function writeAddress(how = "replaceState") {
  try {
    history[how](null, "", address());
  } catch {
    // A browser that allows no more of it shows the same.
  }
}
function change(changes, redraw) {
  Object.assign(chosen, changes);
  writeAddress();
  redraw();
}
function goTo(section) {
  chosen.section = section;
  writeAddress("pushState");
  $(section).scrollIntoView();
}

// Lists to choose from

function fill(select, options, value) {
  // options: [value, text, group?]; the same ones stay in place, and open. Returns what is chosen.
  const key = JSON.stringify(options);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    const groups = new Map([[undefined, select]]);
    select.replaceChildren();
    for (const [name, text, group] of options) {
      if (!groups.has(group)) {
        groups.set(group, h("optgroup", { label: group }));
        select.append(groups.get(group));
      }
      groups.get(group).append(h("option", { value: name }, text));
    }
  }
  const found = options.find(([name]) => name === String(value)) || options[0] || ["", ""];
  select.value = found[0];
  let told = select.nextElementSibling; // on paper a list is the text of what is chosen
  if (!told || !told.classList.contains("told")) select.after((told = h("span", { class: "told" })));
  told.textContent = found[1];
  return found[0];
}
function onChoice(id, key, redraw) {
  $(id).addEventListener("change", (event) => change({ [key]: event.target.value }, redraw));
}

// The run that a part of the page shows: its method and its seed. With `all` the seeds may be taken together.
function pickRun(methodList, seedList, keys, { among = () => true, all = false } = {}) {
  const methods = data.methods.map((_, method) => method).filter((m) => chosenBlocks().includes(blockOf(m)) && runsOf(m).some(among));
  const name = fill(
    $(methodList),
    methods.map((m) => [title(m), title(m), several() ? blockOf(m).title : undefined]),
    chosen[keys[0]],
  );
  const method = methods.find((m) => title(m) === name);
  const runs = method === undefined ? [] : runsOf(method).filter(among);
  const together = all && runs.length > 1 ? [["", `mean over ${runs.length} seeds`]] : [];
  const seed = fill($(seedList), [...together, ...runs.map((run) => [String(run.seed), `${together.length ? "seed " : ""}${run.seed}`])], chosen[keys[1]]);
  return { method, runs: seed === "" ? runs : runs.filter((run) => String(run.seed) === seed), seed };
}
