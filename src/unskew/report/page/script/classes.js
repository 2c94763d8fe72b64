// Classes: each by each method, and what is taken for what.

function showClasses() {
  const blocks = chosenBlocks().filter((block) => block.classes);
  $("classes").hidden = $("classes-link").hidden = !blocks.length;
  if (!blocks.length) return;
  const condition = fill($("class-condition"), blocks.map((each) => [each.short, each.short]), chosen["class-condition"]);
  const block = blocks.find((each) => each.short === condition);
  $("class-condition").parentElement.hidden = blocks.length < 2;
  const rows = block.rows.filter((row) => block.classes.rows[row.name]),
    compared = rows.length > 1 && rows.some((row) => row.name === block.reference),
    how = fill($("class-how"), [["mean", "accuracy"], ...(compared ? [["difference", `difference from ${block.reference}`]] : [])], chosen.class),
    classes = data.federations[data.runs.find((run) => run.method === rows[0].method).federation].classes;
  const values = (name) => block.classes.rows[name].map((each) => (each ? each[0] : null));
  const base = how === "difference" ? values(block.reference) : null;
  const table = rows.filter((row) => !base || row.name !== block.reference);
  const z = table.map((row) => values(row.name).map((value, c) => (!known(value) || (base && !known(base[c])) ? null : 100 * (base ? value - base[c] : value))));
  const most = base ? Math.max(10, ...z.flat().map((value) => Math.abs(value ?? 0))) : 100,
    low = base ? -most : 0,
    colours = base ? diverging() : scale("--low");
  const left = 16 + 7 * Math.max(...table.map((row) => Math.min(row.name.length, 22))),
    width = wide("class-map") - left - 70,
    { room, axis } = classTicks(classes, width);
  const seeds = new Set(Object.values(block.classes.seeds));
  $("class-lede").textContent =
    block.classes.round === null ? "The final models on the test set." : "On the test set, the models of a round that all runs have reached.";
  $("class-caption").textContent =
    `${base ? `Accuracy of each class minus that of ${block.reference}, in points` : "Accuracy of each class, %"}: ` +
    (seeds.size === 1 ? ([...seeds][0] === 1 ? "one seed" : `mean over ${[...seeds][0]} seeds`) : "mean over each method's seeds") +
    (block.classes.round === null ? "" : `, after round ${block.classes.round}, the last that all runs have reached`) +
    (several() ? ` (${block.short})` : "");
  const write = (value) => (base ? (fixed(Math.abs(value), 0) === "0" ? "0" : (value > 0 ? "+" : "−") + fixed(Math.abs(value), 0)) : fixed(value, 0));
  draw(
    "class-map",
    [
      {
        type: "heatmap",
        z,
        zmin: low,
        zmax: most,
        colorscale: colours,
        xgap: classes.length <= 40 ? 1 : 0,
        ygap: 1,
        hoverongaps: false,
        customdata: table.map((row, i) =>
          classes.map((name, c) => {
            const own = block.classes.rows[row.name][c];
            return `${plain(row.name)}, ${plain(name)}: ${own ? own[1] : "–"}\u00a0%${base && known(z[i][c]) ? ` (${points(z[i][c] / 100)} points)` : ""}`;
          }),
        ),
        hovertemplate: "%{customdata}<extra></extra>",
        colorbar: colourBar(base ? { ticksuffix: "" } : {}),
      },
      ...(width / classes.length >= 28 ? cellText(z, low, most, colours, write) : []),
    ],
    {
      height: table.length * 28 + room + 12,
      margin: { l: left, r: 8, t: 8, b: room },
      hovermode: "closest",
      xaxis: { ...axis, range: [-0.5, classes.length - 0.5] },
      yaxis: {
        range: [table.length - 0.5, -0.5],
        tickvals: table.map((_, i) => i),
        ticktext: table.map((row) => tick(row.name, 22)),
        showgrid: false,
        ticks: "",
      },
    },
    `${$("class-caption").textContent}: ` + table.map((row, i) => `${row.name} ${classes.map((name, c) => `${name} ${known(z[i][c]) ? write(z[i][c]) : "–"}`).join(", ")}`).join("; "),
    {
      name: "classes-by-method",
      title: $("class-caption").textContent,
      head: ["method", "class", "accuracy, mean over seeds", "mean ± std, %", "seeds"],
      rows: rows.flatMap((row) => classes.map((name, c) => [row.name, name, ...(block.classes.rows[row.name][c] || [null, null]), block.classes.seeds[row.name]])),
    },
  );
}

// Of the samples of a class, the share answered with each class, in percent: the mean over runs.
function shares(runs) {
  const each = runs.map(({ confusion }) =>
    confusion.map((row) => {
      const all = row.reduce((a, b) => a + b, 0);
      return row.map((n) => (all ? n / all : null));
    }),
  );
  return each[0].map((row, i) => row.map((_, j) => (each.every((one) => known(one[i][j])) ? mean(each.map((one) => one[i][j])) : null)));
}
function showConfusion() {
  const { method, runs, seed } = pickRun("confusion-method", "confusion-seed", ["confusion", "confusion-seed"], { all: true });
  if (method === undefined) return;
  const block = blockOf(method),
    others = block.rows.filter((row) => row.method !== method),
    first = others.filter((row) => row.name === block.reference);
  const minus = fill(
    $("against"),
    [["", "nothing"], ...[...first, ...others.filter((row) => !first.includes(row))].map((row) => [row.name, row.name + (first.includes(row) ? " (reference)" : "")])],
    chosen.against,
  );
  const other = others.find((row) => row.name === minus);
  const mine = runs.filter((run) => run.confusion);
  const theirs = other ? runsOf(other.method).filter((run) => run.confusion && mine.some((own) => own.seed === run.seed)) : [];
  const own = other ? mine.filter((run) => theirs.some((each) => each.seed === run.seed)) : mine;
  $("matrix-figure").hidden = !own.length;
  const lacks = !mine.length
    ? runs.some((run) => run.finished)
      ? "Too many classes for this page: unskew figure confusion draws them."
      : "It is written when the run ends."
    : other && !own.length
      ? `${minus} has none of the same seed.`
      : own.length < runs.length
        ? `Of ${own.length} of ${runs.length} seeds: the others have not ended${other ? " or are not of both" : ""}.`
        : "";
  $("confusion-note").textContent = lacks;
  if (!own.length) return;
  const names = data.federations[own[0].federation].classes,
    C = names.length;
  const share = shares(own),
    base = other ? shares(theirs) : null;
  const z = share.map((row, i) => row.map((value, j) => (!known(value) || (base && !known(base[i][j])) ? null : 100 * (base ? value - base[i][j] : value))));
  const most = base ? Math.max(10, ...z.flat().map((value) => Math.abs(value ?? 0))) : 100,
    low = base ? -most : 0,
    colours = base ? diverging() : scale("--low");
  const width = $("matrix-figure").parentElement.clientWidth,
    left = 32 + 7 * Math.max(...names.map((name) => Math.min(name.length, 14))),
    bar = 66,
    side = Math.min(width - left - bar, 560, 100 * C),
    { axis } = classTicks(names, side);
  const of = seed === "" || own.length > 1 ? (own.length === 1 ? `seed ${own[0].seed}` : `mean over ${own.length} seeds`) : `seed ${seed}`;
  const label = `${title(method)}${other ? ` minus ${title(other.method)}` : ""}, ${of}`;
  $("matrix-caption").textContent = label + (other ? ": points" : "");
  const write = (value) =>
    fixed(Math.abs(value), 0) === "0" ? "" : base ? (value > 0 ? "+" : "−") + fixed(Math.abs(value), 0) : fixed(value, 0);
  const counted = own.length === 1 && !base;
  draw(
    "matrix",
    [
      {
        type: "heatmap",
        z,
        zmin: low,
        zmax: most,
        colorscale: colours,
        xgap: C <= 40 ? 1 : 0,
        ygap: C <= 40 ? 1 : 0,
        customdata: z.map((row, i) =>
          row.map((value, j) => {
            const said = `${plain(names[i])} answered ${plain(names[j])}: `;
            if (!known(value)) return said + "not tested";
            if (base) return `${said}${percent(share[i][j])}\u00a0% against ${percent(base[i][j])}\u00a0% (${points(value / 100)} points)`;
            const all = counted ? own[0].confusion[i].reduce((a, b) => a + b, 0) : 0;
            return said + (counted ? `${number(own[0].confusion[i][j])} of ${number(all)} (${percent(share[i][j])}\u00a0%)` : `${percent(share[i][j])}\u00a0%`);
          }),
        ),
        hovertemplate: "%{customdata}<extra></extra>",
        colorbar: colourBar({ x: 1.01, len: 1, lenmode: "fraction", ...(base ? { ticksuffix: "" } : {}) }),
      },
      ...(side / C >= 28 ? cellText(z, low, most, colours, write) : []),
    ],
    {
      width: left + side + bar,
      height: 8 + side + left,
      margin: { l: left, r: bar, t: 8, b: left, autoexpand: false },
      hovermode: "closest",
      xaxis: { ...axis, title: "answered", tickangle: left > 60 ? -60 : 0, range: [-0.5, C - 0.5] },
      yaxis: { ...axis, title: "class", tickangle: 0, range: [C - 0.5, -0.5] },
    },
    `Confusion matrix of ${label}: ` +
      names
        .map((name, i) => `${name} ${!known(z[i][i]) ? "not tested" : base ? `${points(z[i][i] / 100)} points right` : fixed(z[i][i], 0) + " % right"}`)
        .join(", "),
    {
      name: `confusion-${label}`,
      title: `Class (row) answered (column): ${$("matrix-caption").textContent}`,
      head: ["class", ...names],
      rows: z.map((row, i) => [names[i], ...row.map((value) => (known(value) ? value / 100 : null))]),
    },
  );
}
