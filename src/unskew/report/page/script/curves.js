// Round by round.

const AXES = {
  round: ["rounds", "round", ""],
  traffic: ["traffic", "traffic so far, MB", " MB"],
  cost: ["cost", "cost so far, U (rounds of FedAvg)", " U"],
  time: ["time", "time so far, seconds", " s"],
};
const SMOOTH = [1, 3, 5, 10, 20];

function measures() {
  // what the runs have: [key, title, group]
  const has = data.measures.filter(({ key }) => data.runs.some((run) => key in run.series));
  const names = [...new Set(data.federations.flatMap((federation) => federation.classes))];
  const domains = [...new Set(data.runs.flatMap((run) => Object.keys(run.domains)))];
  const sites = [...new Set(data.runs.flatMap((run) => Object.keys(run.by_site)))];
  return [
    ...(has.length ? has : data.measures.slice(0, 1)).map(({ key, title, group }) => [key, title, group]),
    ...names.map((name) => ["class:" + name, name, "One class"]),
    ...domains.map((name) => ["domain:" + name, name, "One domain"]),
    ...sites.map((name) => ["site:" + name, name, "One site"]),
  ];
}
const measureOf = (metric) =>
  data.measures.find(({ key }) => key === metric) || { percent: true, least: 0, most: 1 };

// Of one run: [{ round, x, y }], smoothed over the last tested rounds.
function series(run, metric, axis, smooth) {
  const colon = metric.indexOf(":"),
    name = metric.slice(colon + 1);
  const [kind, values] =
    colon < 0
      ? run.series[metric] || ["tested", []]
      : metric.startsWith("class:")
        ? ["by_class", run.by_class[data.federations[run.federation].classes.indexOf(name)] || []]
        : metric.startsWith("site:")
          ? ["by_site", run.by_site[name] || []]
          : ["tested", run.domains[name] || []];
  const all = values.map((y, i) => ({ round: run.rounds[kind][i], y })).filter(({ y }) => known(y));
  return all
    .map(({ round, y }, i) => ({
      round,
      x: axis === "round" ? round : run.spent[axis]?.[run.rounds.all.indexOf(round)],
      y: smooth === 1 ? y : mean(all.slice(Math.max(0, i + 1 - smooth), i + 1).map((point) => point.y)),
    }))
    .filter(({ x }) => known(x));
}
// By round: the mean over the seeds that have it, their spread, and how many they are.
function overSeeds(runs, ...how) {
  const each = runs.map((run) => series(run, ...how)).filter((points) => points.length);
  const by = new Map();
  for (const point of each.flat()) by.set(point.round, [...(by.get(point.round) || []), point]);
  return [...by.entries()]
    .sort((a, b) => a[0] - b[0])
    .map(([round, points]) => {
      const y = mean(points.map((point) => point.y));
      return {
        round,
        x: mean(points.map((point) => point.x)),
        y,
        std: deviation(points.map((point) => point.y), y),
        n: points.length,
        of: each.length,
      };
    });
}
// Rows and columns for so many panels: as few empty places as can be.
function panelGrid(count) {
  if (narrow()) return [count, 1];
  if (count === 1) return [1, 1];
  const columns = [4, 3, 2].filter((each) => each <= count);
  const best = columns.reduce((a, b) => (voids(count, b) < voids(count, a) ? b : a));
  return [Math.ceil(count / best), best];
}
const voids = (count, columns) => Math.ceil(count / columns) * columns - count;

function showCurves() {
  const first = data.blocks.some((block) => block.sites) ? "site-mean" : "accuracy";
  const metric = fill($("metric"), measures(), chosen.metric || first);
  const offered = Object.keys(AXES).filter((axis) => axis === "round" || data.runs.some((run) => run.spent[axis]?.length));
  const axis = fill($("x-axis"), offered.map((each) => [each, AXES[each][0]]), chosen.x);
  const smooth = Number(fill($("smooth"), SMOOTH.map((n) => [String(n), n === 1 ? "none" : `mean of ${n} tested rounds`]), chosen.smooth));
  const seeds = fill($("seeds"), [["band", "mean and spread"], ["lines", "each seed"]], chosen.seeds);
  const measure = measureOf(metric),
    factor = measure.percent ? 100 : 1,
    unit = measure.percent ? "\u00a0%" : "",
    write = (value) => (measure.percent ? percent(value) : fixed(value, 3));
  const text = measures().find(([key]) => key === metric)[1];
  const blocks = chosenBlocks(),
    [rows, columns] = panelGrid(blocks.length);
  const traces = [],
    table = [],
    ended = new Map(), // what is left of how many seeds: the methods of which that is so
    wholeOnly = [],
    beside = [];
  let clipped = false;
  const legends = new Set();
  blocks.forEach((block, panel) => {
    const place = panel ? String(panel + 1) : "";
    block.rows.forEach(({ method, name }) => {
      if (chosen.hidden.has(name)) return;
      const runs = runsOf(method),
        where = blocks.length > 1 ? `${block.short}, ` : "";
      const base = (width) => ({
        type: "scatter",
        name: plain(brief(name, 40)),
        meta: name,
        legendgroup: name,
        xaxis: "x" + place,
        yaxis: "y" + place,
        line: { color: colour(method), dash: dashOf(method, width).map((part) => part + "px").join(",") || "solid", width },
        marker: { color: colour(method), symbol: look(method).symbol, size: 7, maxdisplayed: 9 },
      });
      const legend = () => {
        const first = !legends.has(name);
        legends.add(name);
        return first;
      };
      const at = (point) => (axis === "round" ? "" : `, round ${point.round}, ${short(point.x)}${AXES[axis][2]}`);
      if (runs.some((run) => axis === "cost" && run.spent.cost && !known(run.spent.cost[0]) && run.done > 1)) wholeOnly.push(where + name);
      const more = runs.map((run) => run.spent.beside[axis] || 0).filter((value) => value > 0);
      if (more.length) beside.push(`${where}${name} ${short(mean(more))}${AXES[axis][2]}`);
      if (seeds === "lines") {
        for (const run of runs) {
          const points = series(run, metric, axis, smooth);
          for (const { round, x, y } of points) table.push([block.title, name, run.seed, round, x, y, null, 1]);
          traces.push({
            ...base(1.5),
            mode: "lines+markers",
            showlegend: legend(),
            x: points.map((point) => point.x),
            y: points.map((point) => factor * point.y),
            text: points.map((point) => `${plain(brief(name, 40))}, seed ${run.seed}${at(point)}: ${write(point.y)}${unit}`),
            hovertemplate: "%{text}<extra></extra>",
          });
        }
        return;
      }
      const points = overSeeds(runs, metric, axis, smooth);
      for (const { round, x, y, std, n } of points) table.push([block.title, name, null, round, x, y, std, n]);
      const banded = points.filter((point) => point.std !== null);
      const cut = (value) => {
        const inside = Math.min(known(measure.most) ? measure.most : Infinity, Math.max(measure.least, value));
        if (inside !== value) clipped = true;
        return factor * inside;
      };
      if (banded.length)
        traces.push({
          ...base(0),
          mode: "lines",
          showlegend: false,
          hoverinfo: "skip",
          fill: "toself",
          line: { width: 0 },
          fillcolor: tint(colour(method), 0.14),
          x: [...banded.map((p) => p.x), ...banded.map((p) => p.x).reverse()],
          y: [...banded.map((p) => cut(p.y + p.std)), ...banded.map((p) => cut(p.y - p.std)).reverse()],
        });
      // Where a seed leaves off the mean jumps: from there it is drawn faint, and said of how many seeds it is.
      const last = points.findLastIndex((point) => point.n === point.of);
      const leaves = points.filter((point, i) => i > 0 && point.n < points[i - 1].n).map((point) => `${point.n} from round ${point.round}`);
      if (leaves.length) {
        const how = `of ${points[0].of} seeds ${leaves.join(", ")}`;
        ended.set(how, [...(ended.get(how) || []), where + name]);
      }
      for (const [part, opacity] of [
        [points.slice(0, last + 1), 1],
        [points.slice(Math.max(last, 0)), 0.45],
      ]) {
        if (!part.length || (opacity < 1 && part.length < 2 && last >= 0)) continue;
        traces.push({
          ...base(2.2),
          mode: "lines+markers",
          opacity,
          showlegend: opacity === 1 && legend(),
          x: part.map((point) => point.x),
          y: part.map((point) => factor * point.y),
          text: part.map(
            (p) =>
              `${plain(brief(name, 40))}${at(p)}: ${write(p.y)}${p.std === null ? "" : " ± " + write(p.std)}${unit}${p.n < p.of ? ` (${p.n} of ${p.of} seeds)` : ""}`,
          ),
          hovertemplate: "%{text}<extra></extra>",
        });
      }
    });
  });
  const lines = traces.filter((trace) => trace.hoverinfo !== "skip");
  const ySpan = traces.flatMap((trace) => trace.y);
  const top = Math.max(...ySpan),
    low = Math.min(0, ...ySpan);
  const layout = {
    height: blocks.length === 1 ? (narrow() ? 320 : 430) : 40 + rows * (narrow() ? 250 : 290),
    margin: { l: 48, r: 12, t: blocks.length > 1 ? 34 : 12, b: 44 },
    hovermode: lines.length <= 12 && axis === "round" ? "x unified" : "closest",
    annotations: [],
  };
  const smoothed = smooth > 1 ? `, mean of ${smooth} tested rounds` : "";
  const range = [0, 1.015 * Math.max(axis === "round" ? 1 : 0, ...lines.flatMap((trace) => trace.x))];
  if (!(range[1] > 0)) range[1] = 1;
  const few = lines.every((trace) => trace.x.length < 6);
  blocks.forEach((block, panel) => {
    const place = panel ? String(panel + 1) : "",
      row = Math.floor(panel / columns),
      column = panel % columns,
      gapX = columns > 1 ? (columns > 2 ? 0.045 : 0.035) : 0,
      gapY = rows > 1 ? 80 / (layout.height - 78) : 0;
    const w = (1 - gapX * (columns - 1)) / columns,
      t = (1 - gapY * (rows - 1)) / rows;
    const x0 = column * (w + gapX),
      y1 = 1 - row * (t + gapY);
    layout["xaxis" + place] = {
      title: row === rows - 1 || panel + columns >= blocks.length ? AXES[axis][1] : "",
      range,
      domain: [x0, x0 + w],
      anchor: "y" + place,
      ...(axis === "round" ? { tickformat: ",d", ...(few ? { dtick: 1 } : {}) } : {}),
    };
    layout["yaxis" + place] = {
      title: column === 0 ? plain(text) + unit + smoothed : "",
      domain: [Math.max(0, y1 - t), y1],
      anchor: "x" + place,
      // The same in all panels, and from 0 so that a difference looks as large as it is.
      range: [low - (low < 0 ? 0.04 * (top - low) : 0), Number.isFinite(top) ? top + 0.04 * (top - low || 1) : 1],
    };
    if (blocks.length > 1)
      layout.annotations.push(panelTitle(plain(brief(block.short, 60)), x0, y1, "--ink"));
  });
  const names = [...new Set(lines.map((trace) => trace.meta))];
  const what = text + smoothed;
  $("curve-caption").textContent =
    `${what[0].toUpperCase()}${what.slice(1)}, by ${AXES[axis][0]}` + (several() && blocks.length === 1 ? ` (${blocks[0].short})` : "");
  draw("curve", traces, layout, `${what} by ${AXES[axis][0]} of ${names.length ? names.join(", ") : "no method"}`, {
    name: `curve-${metric}`,
    title: $("curve-caption").textContent,
    head: ["condition", "method", "seed", "round", axis === "round" ? "x" : `${axis} so far`, metric + smoothed, "std over seeds", "seeds"],
    rows: table,
  });
  const notes = [];
  if (!lines.some((trace) => trace.x.length))
    notes.push(blocks.every((block) => block.rows.every(({ name }) => chosen.hidden.has(name))) ? "No method is chosen." : "No tested round yet.");
  if (smooth > 1) notes.push(`Every point is the mean of the last ${smooth} tested rounds of a seed, of fewer at the start.`);
  if (seeds === "band" && traces.length > lines.length)
    notes.push(`The band is one standard deviation over seeds to either side${clipped ? ", cut where no value can be" : ""}.`);
  if (ended.size) {
    const each = [...ended].map(([how, names]) => `${how} (${names.length > 5 ? `${names.length} methods` : names.join(", ")})`);
    notes.push(`Faint: seeds that have ended or not come so far are no longer in the mean, ${each.join("; ")}.`);
  }
  if (axis !== "round" && seeds === "band") notes.push(`A point stands at the mean of its seeds' ${AXES[axis][0]} so far.`);
  if (beside.length) notes.push(`What was done beside the rounds, such as training experts, counts before the first: ${beside.join("; ")}.`);
  if (axis === "time" && data.runs.some((run) => run.finished)) notes.push("Time has the tests in it, and for methods in several stages what came before the first round.");
  if (wholeOnly.length) notes.push(`Rounds of ${wholeOnly.join(", ")} differ in cost, and only the whole is recorded: one point at the end.`);
  const missing = axis === "cost" ? data.methods.filter((each, method) => !runsOf(method).some((run) => run.spent.cost)).map((each) => each.title) : [];
  if (missing.length) notes.push(`The cost of ${missing.join(", ")} is not recorded${data.runs.every((run) => run.finished) ? "" : ", or not before a run has ended"}.`);
  if (metric.startsWith("class:") && data.runs.some((run) => run.rounds.by_class.length < run.rounds.tested.length))
    notes.push("To keep the page small, classes are shown in some of the rounds.");
  if (metric.startsWith("site:") && data.runs.some((run) => run.rounds.by_site.length < run.rounds.tested.length))
    notes.push("To keep the page small, sites are shown in some of the rounds.");
  if (metric === "worst-site") notes.push("Which site is the worst may change from round to round.");
  if (metric === "drift") notes.push("Σ‖moves‖² / ‖Σ moves‖²: the higher, the more the clients pull apart.");
  if (metric === "worst") notes.push("Which class is the worst may change from round to round.");
  $("curve-note").textContent = notes.join(" ");
}

// The methods, which are also the legend: a method looks the same under all conditions.
const methodNames = () => [...new Set(chosenBlocks().flatMap((block) => block.rows.map((row) => row.name)))];
function showChips() {
  const names = methodNames(),
    key = JSON.stringify([names, [...chosen.hidden]]);
  if ($("chips").dataset.key === key) return;
  $("chips").dataset.key = key;
  $("chips").replaceChildren(
    ...names.map((name) => {
      const box = h("input", { type: "checkbox" });
      box.checked = !chosen.hidden.has(name);
      box.addEventListener("change", () => {
        chosen.hidden[box.checked ? "delete" : "add"](name);
        $("chips").dataset.key = JSON.stringify([names, [...chosen.hidden]]);
        box.parentElement.classList.toggle("off", !box.checked);
        change({}, showCurves);
      });
      const method = data.methods.findIndex((each) => each.name === name);
      return h("label", box.checked ? {} : { class: "off" }, box, swatch(method), h("span", {}, ...breakable(name)));
    }),
  );
}
function showOnly(all) {
  change({ hidden: new Set(all ? [] : methodNames()) }, () => {
    showChips();
    showCurves();
  });
}
