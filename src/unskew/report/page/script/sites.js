// Sites: the model on each one's own test samples.

function siteTable(block) {
  const { methods, rows, spread, total } = block.sites;
  const measure = chosen["site-measure"] === "macro" ? "macro" : "accuracy";
  const count = (value) => h("td", {}, value === null ? "–" : number(value));
  const list = (names) =>
    names.length <= 6 ? names.join(", ") : `${names.slice(0, 5).join(", ")} and ${names.length - 5} more`;
  const of = (name) => block.rows.find((row) => row.name === name).method;
  const columns = [
    { key: "site", title: "site", text: true, value: (row) => row.name, cell: (row) => h("th", { scope: "row" }, row.name) },
    { key: "train", title: "train", help: "its training samples", value: (row) => row.train, cell: (row) => count(row.train) },
    { key: "test", title: "test", help: "its test samples", value: (row) => row.test, cell: (row) => count(row.test) },
    ...methods.map((name, at) => ({
      key: "method:" + name,
      title: name,
      head: [h("span", { class: "named" }, swatch(of(name)), h("span", {}, ...breakable(name)))],
      value: (row) => row[measure][at]?.[0],
      cell: (row) => cell(row[measure][at]?.[1] || "–"),
    })),
    {
      key: "lacks",
      title: "lacks",
      help: "classes of which the site has no training sample",
      value: (row) => row.lacks.length,
      cell: (row) => h("td", { class: "lacks" }, row.train === 0 ? "did not train" : list(row.lacks)),
    },
  ];
  const foot = (measure === "accuracy" ? spread : []).map((row) =>
    h("tr", {}, h("th", { scope: "row" }, row.name), h("td", {}), h("td", {}), ...row.cells.map((each) => cell(each?.[1] || "–")), h("td", {})),
  );
  const head = ["site", "train", "test", ...methods.flatMap((name) => [`${name} mean`, `${name} mean ± std, %`]), "lacks"];
  return [
    several() ? h("h3", {}, block.title) : null,
    rows.length < total
      ? h("p", { class: "note" }, `The ${rows.length} of ${number(total)} sites with the lowest accuracy.`)
      : null,
    sortable("sites", "Accuracy at each site", columns, rows, { foot }),
    saveTable("sites" + (block.short && "-" + block.short), () =>
      csv(head, rows.map((row) => [row.name, row.train, row.test, ...row[measure].flatMap((each) => each || [null, null]), row.lacks.join(" ")])),
    ),
  ];
}
function heldThere(site, c) {
  if (!site.train) return "";
  return `, ${site.train[c] ? plural(site.train[c], "training sample") : "vacant in training"}`;
}

function showSiteTables() {
  const some = data.blocks.some((block) => block.sites);
  $("sites").hidden = $("sites-link").hidden = !some;
  if (!some) return;
  if ($("sites").nextElementSibling !== $("methods")) {
    // Where there are sites, how each of them fares is the first question.
    $("methods").before($("sites"));
    $("methods-link").before($("sites-link"));
  }
  fill($("site-measure"), [["accuracy", "accuracy"], ["macro", "mean over classes"]], chosen["site-measure"]);
  refill($("site-tables"), chosenBlocks().filter((block) => block.sites).map(siteTable));
}
function showSites() {
  if ($("sites").hidden) return;
  const { runs } = pickRun("site-method", "site-seed", ["site", "site-seed"], {
    among: (run) => Boolean(blockOf(run.method).sites),
  });
  const run = runs[0];
  $("site-figures").hidden = !run;
  if (!run) return;
  const block = blockOf(run.method),
    { rows, methods } = block.sites,
    measure = chosen["site-measure"] === "macro" ? "macro" : "accuracy";
  const S = rows.length,
    row = Math.max(S <= 12 ? 34 : S <= 24 ? 24 : 18, S <= 12 ? 9 * methods.length : 0),
    long = Math.max(...rows.map((each) => Math.min(each.name.length, 18))),
    left = 16 + 7 * long;
  const axis = {
    range: [S - 0.4, -0.6],
    tickvals: rows.map((_, i) => i),
    ticktext: rows.map((each) => tick(each.name, 18)),
    ticks: "",
  };
  const of = methods.map((name) => block.rows.find((each) => each.name === name).method);
  const what = measure === "accuracy" ? "accuracy %" : "mean class accuracy %";
  const found = rows.map((each) => each[measure].map((one) => (one ? 100 * one[0] : null)));
  const legendRows = Math.ceil((methods.length * 130) / Math.max(200, wide("site-dots", 500) - left)),
    above = 14 + 20 * legendRows;
  const values = found.flat().filter(known),
    low = values.length ? Math.max(0, 10 * Math.floor((Math.min(...values) - 1) / 10)) : 0,
    high = values.length ? Math.min(100, 10 * Math.ceil((Math.max(...values) + 1) / 10)) : 100,
    edge = 0.03 * (high - low);
  $("site-dots-caption").textContent = `Each site, by method: ${what}, mean over seeds` + (several() ? ` (${block.short})` : "");
  draw(
    "site-dots",
    [
      {
        type: "scatter",
        mode: "lines",
        hoverinfo: "skip",
        showlegend: false,
        line: { color: css("--line"), width: 1 },
        x: found.flatMap((values) => {
          const there = values.filter(known);
          return there.length ? [Math.min(...there), Math.max(...there), null] : [null];
        }),
        y: found.flatMap((values, i) => (values.some(known) ? [i, i, null] : [null])),
      },
      ...methods.map((name, at) => ({
        type: "scatter",
        mode: "markers",
        name: plain(brief(name, 24)),
        x: found.map((values) => values[at]),
        y: rows.map((_, i) => i + (0.7 * (at + 0.5)) / methods.length - 0.35), // side by side: many are equal
        marker: {
          size: methods.length <= 4 ? 9 : 7,
          color: colour(of[at]),
          symbol: look(of[at]).symbol,
          line: { color: css("--paper"), width: 1 },
        },
        text: rows.map((each) => `${plain(each.name)}, ${plain(brief(name, 40))}: ${each[measure][at]?.[1] || "–"}\u00a0%`),
        hovertemplate: "%{text}<extra></extra>",
      })),
    ],
    {
      height: S * row + 50 + above,
      margin: { l: left, r: 14, t: above, b: 50 },
      hovermode: "closest",
      showlegend: true,
      legend: legendAbove(),
      xaxis: { title: what, range: [low - edge, high + edge], nticks: 6 },
      yaxis: { ...axis, showgrid: true },
    },
    `${what} at each site: ${rows.map((each) => `${each.name} ${methods.map((name, at) => `${name} ${each[measure][at]?.[1] || "–"}`).join(", ")}`).join("; ")}`,
    {
      name: "sites-by-method",
      title: $("site-dots-caption").textContent,
      head: ["site", "method", measure, "mean ± std, %"],
      rows: rows.flatMap((each) => methods.map((name, at) => [each.name, name, ...(each[measure][at] || [null, null])])),
    },
  );
  $("site-classes-figure").hidden = !run.sites;
  $("site-note").textContent = run.sites
    ? "A cell without colour has no test sample of the class at the site; a ring marks a class that the site lacks in training."
    : run.finished
      ? "Too many sites and classes for this page: sites.jsonl and summary.json have them."
      : "Classes at each site are written when the run ends.";
  if (!run.sites) return;
  const names = data.federations[run.federation].classes,
    C = names.length,
    there = new Map(run.sites.map((each) => [each.name, each])),
    sites = rows.map((each) => there.get(each.name) || null);
  const width = wide("site-classes", 500) - left - 70,
    cellWidth = Math.max(4, width / C),
    { room: needed, axis: classAxis } = classTicks(names, width),
    room = Math.max(needed, 50); // as much as the picture beside it
  const vacant = sites.flatMap((site, i) => (site?.train ? site.train.flatMap((n, c) => (n ? [] : [[c, i]])) : []));
  const z = sites.map((site) => names.map((_, c) => (site && known(site.accuracy[c]) ? 100 * site.accuracy[c] : null)));
  $("site-classes-caption").textContent = `Each class at each site: ${runName(run)}`;
  draw(
    "site-classes",
    [
      {
        type: "heatmap",
        z,
        zmin: 0,
        zmax: 100,
        colorscale: scale("--low"),
        xgap: C <= 40 ? 1 : 0,
        ygap: 1,
        hoverongaps: true,
        customdata: sites.map((site, i) =>
          names.map((name, c) =>
            site
              ? `${plain(rows[i].name)}, ${plain(name)}: ${percent(site.accuracy[c])}\u00a0% of ${plural(site.test[c], "test sample")}${heldThere(site, c)}`
              : plain(rows[i].name),
          ),
        ),
        hovertemplate: "%{customdata}<extra></extra>",
        colorbar: colourBar(),
      },
      ...(cellWidth >= 34 ? cellText(z, 0, 100, scale("--low"), (value) => fixed(value, 0)) : []),
      {
        type: "scatter",
        mode: "markers",
        hoverinfo: "skip",
        x: vacant.map(([c]) => c),
        y: vacant.map(([, i]) => i),
        marker: { symbol: "circle-open", size: Math.max(5, Math.min(26, cellWidth - 6, row - 6)), color: css("--pick"), line: { width: 2 } },
      },
    ],
    {
      height: S * row + above + room,
      margin: { l: left, r: 8, t: above, b: room },
      hovermode: "closest",
      xaxis: { ...classAxis, range: [-0.5, C - 0.5] },
      yaxis: { ...axis, range: [S - 0.5, -0.5], showgrid: false },
    },
    `Accuracy of each class at each site of ${runName(run)}: ${sites.map((site, i) => `${rows[i].name} ${names.map((name, c) => `${name} ${site ? percent(site.accuracy[c]) : "–"}`).join(", ")}`).join("; ")}`,
    {
      name: `site-classes-${runName(run)}`,
      title: $("site-classes-caption").textContent,
      head: ["site", "class", "accuracy", "test samples", "training samples"],
      rows: sites.flatMap((site, i) => (site ? names.map((name, c) => [rows[i].name, name, site.accuracy[c], site.test[c], site.train ? site.train[c] : null]) : [])),
    },
  );
}
