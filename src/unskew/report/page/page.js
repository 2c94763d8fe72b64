"use strict";
// Fills the page from the JSON in it, and again whenever a watched run has news. All text goes through textContent,
// or through plain() on its way to Plotly, which reads a little HTML: names of runs are not ours.
(() => {
  const GROUPS = ["majority", "minority", "vacant"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
  const COLOURS = 8;
  const POLL = 2000; // milliseconds
  const $ = (id) => document.getElementById(id);
  let data = JSON.parse($("data").textContent);
  const LIVE = "revision" in data; // served by a watch

  // What a person has chosen, by name: it outlives new data.
  const chosen = {
    metric: "accuracy",
    seeds: "band",
    hidden: new Set(),
    run: null,
    client: 0,
    picked: false, // until then the client is the first of whom something can be told
    round: null,
    confusion: null,
    site: null,
    siteMeasure: "accuracy",
    setup: null,
  };

  // Small things

  function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes))
      if (value !== null && value !== undefined) element.setAttribute(key, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const brief = (name, most = 20) =>
    name.length <= most ? name : name.slice(0, most - 8) + "…" + name.slice(-7);
  const tick = (name, most) => plain(brief(name, most));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const legendAbove = () => ({
    orientation: "h",
    x: 0,
    y: 1,
    yanchor: "bottom",
    xanchor: "left",
    font: { size: 12, color: css("--muted") },
    itemclick: false,
    itemdoubleclick: false,
  });
  const colour = (method) => css("--c" + (method % COLOURS));
  const dash = (method) => DASHES[(method + Math.floor(method / COLOURS)) % DASHES.length];
  const narrow = () => window.innerWidth < 600;
  const number = (value) => value.toLocaleString("en");
  const percent = (value) => (value === null || value === undefined ? "–" : (value / 100).toFixed(1)); // from whole hundredths
  const points = (value) =>
    (Math.abs(value) < 5 ? "±" : value > 0 ? "+" : "−") + (Math.abs(value) / 100).toFixed(1);
  const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;
  const runName = (run) => `${data.methods[run.method]} · seed ${run.seed}`;

  function duration(seconds) {
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
  }
  function fill(select, options, value) {
    // options: [value, text, group?]; the same ones stay in place, and open
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
    select.value = options.some(([name]) => name === String(value))
      ? String(value)
      : options.length
        ? options[0][0]
        : "";
    return select.value;
  }
  const pick = (path) => data.runs.find((run) => run.path === path) || data.runs[0];

  function swatch(method) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg"),
      line = document.createElementNS(ns, "line");
    for (const [key, value] of [
      ["width", 26],
      ["height", 10],
      ["class", "swatch"],
      ["aria-hidden", "true"],
    ])
      svg.setAttribute(key, value);
    for (const [key, value] of [
      ["x1", 0],
      ["x2", 26],
      ["y1", 5],
      ["y2", 5],
      ["stroke-width", 2.5],
      ["stroke", `var(--c${method % COLOURS})`],
      ["stroke-dasharray", STROKES[dash(method)]],
    ])
      line.setAttribute(key, value);
    svg.append(line);
    return svg;
  }

  // Charts

  function draw(id, traces, layout, label) {
    const ink = css("--ink"),
      muted = css("--muted"),
      grid = css("--grid"),
      paper = css("--paper");
    const axis = {
      gridcolor: grid,
      linecolor: css("--line"),
      zeroline: false,
      tickfont: { color: muted, size: 12 },
      title: { font: { color: muted, size: 13 } },
      fixedrange: true,
    };
    for (const name of Object.keys(layout))
      if (/^[xy]axis/.test(name)) {
        const own = layout[name];
        layout[name] = {
          ...axis,
          ...own,
          title: own.title ? { ...axis.title, text: own.title, standoff: 8 } : undefined,
        };
      }
    const whole = {
      font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 13 },
      paper_bgcolor: paper,
      plot_bgcolor: paper,
      showlegend: false,
      dragmode: false,
      uirevision: id,
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: ink, size: 13 } },
      ...layout,
    };
    $(id).setAttribute("aria-label", label);
    return Plotly.react(id, traces, whole, { displayModeBar: false, responsive: true, doubleClick: false });
  }
  const scale = (low) => [
    [0, css(low)],
    [1, css("--high")],
  ];

  // The answer, and how far a watched run is

  function showAnswers() {
    $("title").textContent = data.title;
    document.title = data.title;
    const several = data.blocks.length > 1;
    $("answers").className = several ? "several" : "";
    $("answers").replaceChildren(
      ...data.blocks.map((block) =>
        h(
          "div",
          { class: "block" },
          several ? h("p", { class: "where" }, block.title) : null,
          h("p", { class: "answer" }, block.sentence),
          h("p", { class: "note" }, block.notes.join(" ")),
        ),
      ),
    );
    if (several)
      $("answers").append(
        h(
          "p",
          { class: "note" },
          "These runs were made under different conditions: compare methods within a paragraph, not between them.",
        ),
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
      if (runs > 1)
        text = `Run ${data.runs.indexOf(now) + 1} of ${runs}, ${runName(now)}: round ${now.done} of ${now.total}`;
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

  // Methods

  function showTables() {
    const all = (selector) => [...$("tables").querySelectorAll(selector)];
    const open = all("details").map((each) => each.open),
      scrolled = all(".scroll").map((each) => each.scrollLeft);
    $("tables").replaceChildren(
      ...data.blocks.flatMap((block) => {
        const versus = block.reference !== null;
        const alike = (key) => new Set(block.rows.map((row) => row[key])).size === 1; // then said once, above
        const facts = ["seeds", "rounds"].filter((key) => !alike(key));
        const [last, ...others] = block.heads,
          title = (each) => h("th", { scope: "col", title: each.help }, each.title);
        const head = h(
          "tr",
          {},
          ...["method", ...facts].map((text) => h("th", { scope: "col" }, text)),
          title(last),
          versus
            ? title({
                title: `against ${block.reference}`,
                help: "difference of accuracy in points, seed by seed, with its 95 % interval",
              })
            : null,
          ...others.map(title),
        );
        const cellOf = ([text, best]) => {
          const [mean, spread] = text.split(" ± ");
          return h(
            "td",
            best ? { class: "best", title: "highest in this column" } : {},
            best ? h("strong", {}, mean) : mean,
            spread ? h("span", { class: "spread" }, ` ± ${spread}`) : null,
          );
        };
        const rows = block.rows.map((row) => {
          const [first, ...rest] = block.heads.map((_, i) => cellOf(row.cells[i] || ["–", false]));
          return h(
            "tr",
            {},
            h("th", { scope: "row" }, swatch(row.method), row.name),
            ...facts.map((key) => h("td", {}, String(row[key]))),
            first,
            versus ? h("td", { class: "spread" }, row.against === null ? "reference" : row.against) : null,
            ...rest,
          );
        });
        return [
          data.blocks.length > 1 ? h("h3", {}, block.title) : null,
          h(
            "p",
            { class: "note" },
            [
              alike("seeds") ? plural(block.rows[0].seeds, "seed") : null,
              alike("rounds") ? `${block.rows[0].rounds} rounds` : null,
            ]
              .filter(Boolean)
              .join(", "),
          ),
          region("Comparison of methods", h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows))),
          h("details", {}, h("summary", {}, "What it took"), costs(block)),
        ].filter(Boolean);
      }),
    );
    all("details").forEach((each, i) => {
      each.open = Boolean(open[i]);
    });
    all(".scroll").forEach((each, i) => {
      each.scrollLeft = scrolled[i] || 0;
    });
    const marked = data.blocks.some((block) => block.rows.some((row) => row.cells.some(([, best]) => best)));
    const comparing = data.blocks.some((block) => block.rows.length > 1);
    const notes = [...data.notes];
    if (marked)
      notes.unshift(
        "The highest mean of a column is marked; whether it is higher beyond chance, the interval of the difference tells.",
      );
    else if (comparing) notes.unshift("None is marked as best where methods differ in seeds or rounds.");
    $("notes").replaceChildren(...notes.map((note) => h("li", {}, note)));
  }
  const region = (label, table) =>
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);

  function costs(block) {
    const skip = block.heads.length,
      title = (each) => h("th", { scope: "col", title: each.help }, each.title);
    return region(
      "What it took",
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "method"),
            ...block.costs.map(title),
            title({ title: "seconds", help: "of all rounds, without setting up" }),
          ),
        ),
        h(
          "tbody",
          {},
          ...block.rows.map((row) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, row.name),
              ...block.costs.map((_, i) => h("td", {}, (row.cells[skip + i] || ["–"])[0])),
              h("td", {}, row.seconds < 100 ? row.seconds.toFixed(1) : number(Math.round(row.seconds))),
            ),
          ),
        ),
      ),
    );
  }

  // Curves

  function measures() {
    // what the runs have: [key, title, group]
    const known = data.measures.filter(({ key }) => data.runs.some((run) => key in run.series));
    const names = [...new Set(data.federations.flatMap((federation) => federation.classes))];
    const domains = [...new Set(data.runs.flatMap((run) => Object.keys(run.domains)))];
    const sites = [...new Set(data.runs.flatMap((run) => Object.keys(run.by_site)))];
    return [
      ...(known.length ? known : data.measures.slice(0, 1)).map(({ key, title, group }) => [
        key,
        title,
        group,
      ]),
      ...names.map((name) => ["class:" + name, name, "One class"]),
      ...domains.map((name) => ["domain:" + name, name, "One domain"]),
      ...sites.map((name) => ["site:" + name, name, "One site"]),
    ];
  }
  const inPercent = (metric) =>
    (data.measures.find(({ key }) => key === metric) || { percent: true }).percent;
  function series(run, metric) {
    // [round, value] pairs
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
    const unit = inPercent(metric) ? 100 : 1;
    return values
      .map((value, i) => [run.rounds[kind][i], value])
      .filter(([, value]) => value !== null)
      .map(([round, value]) => [round, value / unit]);
  }
  function overSeeds(runs, metric) {
    // by round: values over seeds, and whether a seed is missing
    const by = new Map();
    const each = runs.map((run) => series(run, metric)).filter((pairs) => pairs.length);
    for (const pairs of each)
      for (const [round, value] of pairs) by.set(round, [...(by.get(round) || []), value]);
    return [...by.entries()]
      .sort((a, b) => a[0] - b[0])
      .map(([round, values]) => {
        const mean = values.reduce((a, b) => a + b, 0) / values.length;
        const std =
          values.length < 2
            ? null
            : Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (values.length - 1));
        return { round, mean, std, n: values.length, whole: values.length === each.length, of: each.length };
      });
  }
  const tint = (hex, alpha) => {
    const v = parseInt(hex.slice(1), 16);
    return `rgba(${v >> 16},${(v >> 8) & 255},${v & 255},${alpha})`;
  };

  function showCurves() {
    chosen.metric = fill($("metric"), measures(), chosen.metric);
    const metric = chosen.metric,
      unit = inPercent(metric) ? " %" : "",
      digits = inPercent(metric) ? 1 : 3;
    const text = measures().find(([key]) => key === metric)[1];
    const traces = [];
    data.methods.forEach((name, method) => {
      if (chosen.hidden.has(name)) return;
      const runs = data.runs.filter((run) => run.method === method),
        line = { color: colour(method), dash: dash(method), width: 2.2 };
      const mode = (points) => (points.length < 2 ? "lines+markers" : "lines"); // a lone point has no line
      if (chosen.seeds === "lines") {
        for (const run of runs) {
          const pairs = series(run, metric);
          traces.push({
            type: "scatter",
            mode: mode(pairs),
            name: plain(name),
            meta: name,
            x: pairs.map((p) => p[0]),
            y: pairs.map((p) => p[1]),
            line: { ...line, width: 1.5 },
            text: pairs.map(
              (p) => `${plain(brief(name, 40))}, seed ${run.seed}: ${p[1].toFixed(digits)}${unit}`,
            ),
            hovertemplate: "%{text}<extra></extra>",
          });
        }
        return;
      }
      const points = overSeeds(runs, metric),
        banded = points.filter((p) => p.std !== null);
      if (banded.length)
        traces.push({
          type: "scatter",
          mode: "lines",
          name: plain(name),
          meta: name,
          hoverinfo: "skip",
          fill: "toself",
          line: { width: 0 },
          fillcolor: tint(colour(method), 0.14),
          x: [...banded.map((p) => p.round), ...banded.map((p) => p.round).reverse()],
          y: [...banded.map((p) => p.mean + p.std), ...banded.map((p) => p.mean - p.std).reverse()],
        });
      const last = points.findLastIndex((p) => p.whole); // where a seed leaves off the mean jumps: that part is drawn faint
      for (const [part, opacity] of [
        [points.slice(0, last + 1), 1],
        [points.slice(Math.max(last, 0)), 0.45],
      ]) {
        if (!part.length || (opacity < 1 && part.length < 2 && last >= 0)) continue;
        traces.push({
          type: "scatter",
          mode: mode(points),
          name: plain(name),
          meta: name,
          opacity,
          x: part.map((p) => p.round),
          y: part.map((p) => p.mean),
          line,
          text: part.map(
            (p) =>
              `${plain(brief(name, 40))}: ${p.mean.toFixed(digits)}${p.std === null ? "" : " ± " + p.std.toFixed(digits)}${unit}${p.n < p.of ? ` (${p.n} of ${p.of} seeds)` : ""}`,
          ),
          hovertemplate: "%{text}<extra></extra>",
        });
      }
    });
    const shown = traces.filter((trace) => trace.hoverinfo !== "skip");
    draw(
      "curve",
      traces,
      {
        height: narrow() ? 320 : 430,
        margin: { l: 48, r: 12, t: 12, b: 44 },
        hovermode: shown.length <= 12 ? "x unified" : "closest",
        xaxis: {
          title: "round",
          range: [0, 1.01 * Math.max(1, ...shown.flatMap((trace) => trace.x))],
          tickformat: ",d",
          ...(shown.every((trace) => trace.x.length < 6) ? { dtick: 1 } : {}),
        },
        yaxis: { title: plain(text) + unit, rangemode: "tozero" },
      },
      `${text} over rounds of ${shown.length ? [...new Set(shown.map((trace) => trace.meta))].join(", ") : "no method"}`,
    );
    const notes = [];
    if (!shown.some((trace) => trace.x.length))
      notes.push(
        data.methods.every((name) => chosen.hidden.has(name))
          ? "No method is chosen."
          : "No tested round yet.",
      );
    if (chosen.seeds === "band" && traces.length > shown.length)
      notes.push("The band is one standard deviation to either side.");
    if (shown.some((trace) => trace.opacity < 1))
      notes.push("Faint: rounds that not all seeds have reached.");
    if (
      metric.startsWith("class:") &&
      data.runs.some((run) => run.rounds.by_class.length < run.rounds.tested.length)
    )
      notes.push("To keep the page small, classes are shown in some of the rounds.");
    if (
      metric.startsWith("site:") &&
      data.runs.some((run) => run.rounds.by_site.length < run.rounds.tested.length)
    )
      notes.push("To keep the page small, sites are shown in some of the rounds.");
    if (metric === "worst-site") notes.push("Which site is the worst may change from round to round.");
    if (metric === "drift")
      notes.push("Σ‖moves‖² / ‖Σ moves‖²: the higher, the more the clients pull apart.");
    if (metric === "worst") notes.push("Which class is the worst may change from round to round.");
    $("curve-note").textContent = notes.join(" ");
  }

  function showChips() {
    const key = JSON.stringify(data.methods);
    if ($("chips").dataset.key === key) return;
    $("chips").dataset.key = key;
    $("chips").replaceChildren(
      ...data.methods.map((name, method) => {
        const box = h("input", { type: "checkbox" });
        box.checked = !chosen.hidden.has(name);
        box.addEventListener("change", () => {
          chosen.hidden[box.checked ? "delete" : "add"](name);
          showCurves();
        });
        return h("label", {}, box, swatch(method), name);
      }),
    );
  }
  function showOnly(all) {
    chosen.hidden = new Set(all ? [] : data.methods);
    for (const box of $("chips").querySelectorAll("input")) box.checked = all;
    showCurves();
  }

  // Sites

  function siteTable(block) {
    const { methods, rows, spread, total } = block.sites;
    const head = (text) => h("th", { scope: "col" }, text);
    const cell = (found) => {
      if (!found) return h("td", {}, "–");
      const [mean, deviation] = found[1].split(" ± ");
      return h("td", {}, mean, deviation ? h("span", { class: "spread" }, ` ± ${deviation}`) : null);
    };
    const count = (value) => h("td", {}, value === null ? "–" : number(value));
    const list = (names) =>
      names.length <= 6 ? names.join(", ") : `${names.slice(0, 5).join(", ")} and ${names.length - 5} more`;
    const swatches = block.rows.map((row) => [row.name, row.method]);
    const titles = methods.map((name) =>
      h(
        "th",
        { scope: "col" },
        ...swatches.filter(([of]) => of === name).map(([, method]) => swatch(method)),
        name,
      ),
    );
    return [
      data.blocks.length > 1 ? h("h3", {}, block.title) : null,
      rows.length < total
        ? h("p", { class: "note" }, `The ${rows.length} of ${number(total)} sites with the lowest accuracy.`)
        : null,
      region(
        "Accuracy at each site",
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, head("site"), head("train"), head("test"), ...titles, head("lacks"))),
          h(
            "tbody",
            {},
            ...rows.map((row) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, row.name),
                count(row.train),
                count(row.test),
                ...row[chosen.siteMeasure].map(cell),
                h("td", { class: "lacks" }, row.train === 0 ? "did not train" : list(row.lacks)),
              ),
            ),
          ),
          h(
            "tfoot",
            {},
            ...(chosen.siteMeasure === "accuracy" ? spread : []).map((row) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, row.name),
                h("td", {}),
                h("td", {}),
                ...row.cells.map(cell),
                h("td", {}),
              ),
            ),
          ),
        ),
      ),
    ].filter(Boolean);
  }
  const blockOf = (run) =>
    data.blocks.find((block) => block.rows.some((row) => row.method === run.method)) || data.blocks[0];

  function showSiteTables() {
    const some = data.blocks.some((block) => block.sites);
    $("sites").hidden = $("sites-link").hidden = !some;
    if (some)
      $("site-tables").replaceChildren(
        ...data.blocks.filter((block) => block.sites).flatMap((block) => siteTable(block)),
      );
  }
  function showSites() {
    const runs = data.runs.filter((run) => blockOf(run).sites);
    if (!runs.length) return;
    chosen.site = fill(
      $("site-run"),
      runs.map((run) => [run.path, runName(run)]),
      chosen.site,
    );
    const run = runs.find((each) => each.path === chosen.site) || runs[0],
      block = blockOf(run),
      { rows, methods } = block.sites;
    const S = rows.length,
      row = S <= 12 ? 34 : S <= 24 ? 24 : 18,
      long = Math.max(...rows.map((each) => Math.min(each.name.length, 18))),
      left = 16 + 7 * long;
    const axis = {
      range: [S - 0.4, -0.6],
      tickvals: rows.map((_, i) => i),
      ticktext: rows.map((each) => tick(each.name, 18)),
      ticks: "",
    };
    const symbols = ["circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon"];
    const coloured = methods.map((name) => block.rows.find((each) => each.name === name).method);
    const measured = (each) => each[chosen.siteMeasure],
      title = chosen.siteMeasure === "accuracy" ? "accuracy %" : "mean class accuracy %";
    const found = rows.map((each) => measured(each).map((cell) => (cell ? cell[0] / 100 : null)));
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
            const known = values.filter((value) => value !== null);
            return known.length ? [Math.min(...known), Math.max(...known), null] : [null];
          }),
          y: found.flatMap((values, i) => (values.some((value) => value !== null) ? [i, i, null] : [null])),
        },
        ...methods.map((name, at) => ({
          type: "scatter",
          mode: "markers",
          name: plain(brief(name, 24)),
          x: found.map((values) => values[at]),
          y: rows.map((_, i) => i + (0.6 * (at + 0.5)) / methods.length - 0.3), // side by side: many are equal
          marker: {
            size: methods.length <= 4 ? 9 : 6,
            color: colour(coloured[at]),
            symbol: symbols[at % symbols.length],
            line: { color: css("--paper"), width: 1 },
          },
          text: rows.map(
            (each) => `${plain(each.name)}, ${plain(brief(name, 40))}: ${measured(each)[at] ? measured(each)[at][1] : "–"} %`,
          ),
          hovertemplate: "%{text}<extra></extra>",
        })),
      ],
      {
        height: S * row + 84,
        margin: { l: left, r: 14, t: 34, b: 44 },
        hovermode: "closest",
        showlegend: true,
        legend: legendAbove(),
        xaxis: { title, range: [-3, 103], tickvals: [0, 25, 50, 75, 100] },
        yaxis: { ...axis, showgrid: true },
      },
      `${title} at each site: ${rows.map((each) => `${each.name} ${methods.map((name, at) => `${name} ${percent(measured(each)[at] && measured(each)[at][0])}`).join(", ")}`).join("; ")}`,
    );
    const names = data.federations[run.federation].classes,
      C = names.length;
    const known = new Map((run.sites || []).map((each) => [each.name, each])),
      shown = rows.map((each) => known.get(each.name) || null);
    $("site-classes-figure").hidden = !run.sites;
    $("site-note").textContent = run.sites
      ? "A cell without colour has no test sample of the class at the site; a ring marks a class that the site lacks in training."
      : run.finished
        ? "Too many sites and classes for this page: sites.jsonl and summary.json have them."
        : "Classes at each site are written when the run ends.";
    if (!run.sites) return;
    const width = $("site-classes").clientWidth || 500,
      cell = Math.max(4, (width - left - 70) / C),
      step = Math.max(1, Math.ceil(15 / cell)),
      wide = Math.max(...names.map((name) => Math.min(name.length, 14))),
      tilted = wide * 7 > cell * step,
      ticks = names.map((_, c) => c).filter((c) => c % step === 0);
    const vacant = shown.flatMap((site, i) =>
      site ? site.train.map((n, c) => (n ? null : [c, i])).filter(Boolean) : [],
    );
    draw(
      "site-classes",
      [
        {
          type: "heatmap",
          z: shown.map((site) => names.map((_, c) => (site && site.accuracy[c] !== null ? site.accuracy[c] / 100 : null))),
          zmin: 0,
          zmax: 100,
          colorscale: scale("--low"),
          xgap: C <= 40 ? 1 : 0,
          ygap: 1,
          hoverongaps: true,
          text: shown.map((site) =>
            names.map((_, c) =>
              site && site.accuracy[c] !== null && cell >= 34 ? (site.accuracy[c] / 100).toFixed(0) : "",
            ),
          ),
          texttemplate: cell >= 34 ? "%{text}" : undefined,
          textfont: { size: 12 },
          customdata: shown.map((site, i) =>
            names.map((name, c) =>
              site
                ? `${plain(rows[i].name)}, ${plain(name)}: ${percent(site.accuracy[c])} % of ${plural(site.test[c], "test sample")}, ${site.train[c] ? plural(site.train[c], "training sample") : "vacant in training"}`
                : plain(rows[i].name),
            ),
          ),
          hovertemplate: "%{customdata}<extra></extra>",
          colorbar: {
            thickness: 10,
            outlinewidth: 0,
            ticksuffix: " %",
            tickfont: { color: css("--muted"), size: 11 },
          },
        },
        {
          type: "scatter",
          mode: "markers",
          hoverinfo: "skip",
          x: vacant.map(([c]) => c),
          y: vacant.map(([, i]) => i),
          marker: { symbol: "circle-open", size: Math.max(5, Math.min(12, cell / 2)), color: css("--c1"), line: { width: 2 } },
        },
      ],
      {
        height: S * row + 40 + (tilted ? 24 + 6.2 * wide : 34),
        margin: { l: left, r: 8, t: 34, b: tilted ? 24 + 6.2 * wide : 34 },
        hovermode: "closest",
        xaxis: {
          range: [-0.5, C - 0.5],
          tickvals: ticks,
          ticktext: ticks.map((c) => tick(names[c], 14)),
          tickangle: tilted ? -60 : 0,
          showgrid: false,
          ticks: "",
        },
        yaxis: { ...axis, range: [S - 0.5, -0.5], showgrid: false },
      },
      `Accuracy of each class at each site of ${runName(run)}: ${shown.map((site, i) => `${rows[i].name} ${names.map((name, c) => `${name} ${site ? percent(site.accuracy[c]) : "–"}`).join(", ")}`).join("; ")}`,
    );
  }

  // Clients

  const clientName = (federation, client) => federation.names[client] || `client ${client}`;
  function clientText(federation, client) {
    const size = federation.counts[client].reduce((a, b) => a + b, 0),
      vacant = [...federation.groups[client]].filter((g) => g === "2").length;
    return `${federation.names[client] || client}: ${plural(size, "sample")}, ${vacant} of ${federation.classes.length} classes vacant`;
  }
  function showClients() {
    const runs = data.runs;
    chosen.run = fill(
      $("run"),
      runs.map((run) => [run.path, runName(run)]),
      chosen.run,
    );
    const run = pick(chosen.run),
      federation = data.federations[run.federation];
    const clients = federation.counts.map((_, client) => [String(client), clientText(federation, client)]);
    if (!chosen.picked) chosen.client = run.probes.at(-1)?.clients[0] || 0;
    chosen.client = Number(fill($("client"), clients, chosen.client));
    const N = clients.length,
      C = federation.classes.length,
      rows = N <= 24 ? 22 : N <= 60 ? 12 : Math.max(Math.min(3, 3000 / N), 620 / N);
    const long = Math.max(...federation.classes.map((name) => Math.min(name.length, 14)));
    const tilted = long * 7 > (($("partition").clientWidth || 800) - 90) / C;
    const most = federation.counts.reduce((largest, row) => Math.max(largest, ...row), 1);
    const step = Math.max(
      1,
      Math.ceil(C / Math.max(1, (($("partition").clientWidth || 800) - 90) / (tilted ? 15 : 8 * long))),
    );
    const called = Math.max(0, ...federation.names.map((name) => Math.min(name.length, 18))), // characters, 0 for numbers
      apart = Math.max(1, Math.ceil(16 / rows));
    const shownClasses = federation.classes.map((_, c) => c).filter((c) => c % step === 0);
    const marks = [1, 10, 100, 1000, 10000, 100000, 1000000].filter((mark) => mark <= most);
    draw(
      "partition",
      [
        {
          type: "heatmap",
          z: federation.counts.map((row) => row.map((n) => (n ? Math.log10(n) : null))),
          zmin: 0,
          zmax: Math.max(Math.log10(most), 0.3),
          colorscale: scale("--few"),
          xgap: C <= 40 ? 1 : 0,
          ygap: rows >= 8 ? 1 : 0,
          text: federation.counts.map((row, client) =>
            row.map(
              (n, c) =>
                `${plain(clientName(federation, client))}, ${plain(federation.classes[c])}: ${plural(n, "sample")} (${GROUPS[federation.groups[client][c]]})`,
            ),
          ),
          hovertemplate: "%{text}<extra></extra>",
          colorbar: {
            tickvals: marks.map(Math.log10),
            ticktext: marks.map(number),
            thickness: 10,
            outlinewidth: 0,
            len: 1,
            ypad: 0,
            title: { text: "samples", side: "right", font: { color: css("--muted"), size: 12 } },
            tickfont: { color: css("--muted"), size: 11 },
          },
        },
      ],
      {
        height: N * rows + (tilted ? 24 + 6.2 * long : 34) + 46,
        margin: { l: called ? 16 + 7 * called : 52, r: 8, t: 8, b: tilted ? 24 + 6.2 * long : 34 },
        hovermode: "closest",
        xaxis: {
          tickvals: shownClasses,
          ticktext: shownClasses.map((c) => tick(federation.classes[c], 14)),
          tickangle: tilted ? -60 : 0,
          showgrid: false,
          ticks: "",
        },
        yaxis: {
          autorange: "reversed",
          showgrid: false,
          ticks: "",
          ...(called
            ? {
                tickvals: federation.names.map((_, k) => k).filter((k) => k % apart === 0),
                ticktext: federation.names.filter((_, k) => k % apart === 0).map((name) => tick(name, 18)),
              }
            : {
                title: "client",
                tickformat: "d",
                nticks: Math.max(2, Math.floor((N * rows) / 22)),
                ...(N <= 24 ? { dtick: 1 } : {}),
              }),
        },
        shapes: [
          {
            type: "rect",
            x0: -0.5,
            x1: C - 0.5,
            y0: chosen.client - 0.5,
            y1: chosen.client + 0.5,
            line: { color: css("--c1"), width: 2 },
            layer: "above",
          },
        ],
      },
      `Samples of ${C} classes at ${plural(N, "client")}; ${clientName(federation, chosen.client)} is chosen`,
    );
    if (!$("partition").dataset.clickable) {
      $("partition").dataset.clickable = "true";
      $("partition").on("plotly_click", (event) => choose(Math.round(event.points[0].y)));
    }
    showClient(run, federation);
  }

  function showClient(run, federation) {
    const client = chosen.client,
      counts = federation.counts[client],
      kinds = [...federation.groups[client]].map(Number);
    const of = (group) => kinds.map((kind, c) => (kind === group ? c : -1)).filter((c) => c >= 0);
    const total = counts.reduce((a, b) => a + b, 0);
    $("client-title").textContent = federation.names[client] || `Client ${client}`;
    $("client-text").textContent =
      `${plural(total, "sample")} of ${plural(counts.filter(Boolean).length, "class", "classes")}; ${of(2).length} of ${counts.length} classes are vacant.`;
    const found = run.probes.filter((probe) => probe.clients.includes(client));
    $("round-control").hidden = !found.length;
    const probe = found.find((each) => String(each.round) === chosen.round) || found[found.length - 1];
    const own = probe && told(probe, client);
    if (own)
      fill(
        $("round"),
        found.map((each) => [String(each.round), String(each.round)]),
        probe.round,
      );
    $("probe-note").textContent = own
      ? run.probes.length < run.rounds.probed.length
        ? "To keep the page small, single clients are shown for some of the probed rounds."
        : ""
      : missing(run, client);
    $("groups").replaceChildren(
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...["its classes", ...(own ? ["received", "updated", "change", "averaged"] : [])].map((text) =>
              h("th", { scope: "col" }, text),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          ...GROUPS.map((name, group) => {
            const stages = own && own.groups[group],
              change = stages ? stages[1] - stages[0] : null;
            const cells = own
              ? [
                  percent(stages && stages[0]),
                  percent(stages && stages[1]),
                  change === null ? "–" : points(change),
                  percent(stages && stages[2]),
                ]
              : [];
            return h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                `${of(group).length} ${name}`,
                h(
                  "small",
                  {},
                  plural(
                    of(group).reduce((sum, c) => sum + counts[c], 0),
                    "sample",
                  ),
                ),
              ),
              ...cells.map((text, i) =>
                h(
                  "td",
                  i === 2 && Math.abs(change) >= 5 ? { class: change < 0 ? "loss" : "gain" } : {},
                  text,
                ),
              ),
            );
          }),
        ),
      ),
    );
    const more = [];
    if (own) {
      more.push(
        "Accuracy in percent on the global test set, of the model it received, its model after the local update, and the next global model.",
      );
      if (own.in_local !== null)
        more.push(
          `Updated, its model is right on ${percent(own.in_local)} % of its own mix of classes` +
            (own.out_local !== null ? ` and on ${percent(own.out_local)} % of the others' mix.` : "."),
        );
      if (own.deviation !== null)
        more.push(
          `By FedLC's bound, ${percent(own.deviation)} % of its pairs of a majority and a minority class push the minority class away.`,
        );
    }
    $("client-more").textContent = more.join(" ");

    // Majority classes first, then minority, then vacant; within a group the largest first.
    const order = counts
      .map((_, c) => c)
      .sort((a, b) => kinds[a] - kinds[b] || counts[b] - counts[a] || a - b);
    const C = order.length,
      row = C <= 24 ? 24 : C <= 60 ? 16 : 12,
      height = C * row + 56,
      every = row >= 16 ? 1 : Math.ceil(16 / row);
    const left = 14 + 7 * Math.max(...federation.classes.map((name) => Math.min(name.length, 14)));
    const base = {
      height,
      hovermode: "closest",
      yaxis: {
        range: [C - 0.4, -0.6],
        tickvals: order.map((_, i) => i).filter((i) => i % every === 0),
        ticktext: order.filter((_, i) => i % every === 0).map((c) => tick(federation.classes[c], 14)),
        showgrid: true,
        ticks: "",
      },
    };
    const hues = GROUPS.map((name) => css("--" + name));
    draw(
      "holds",
      [
        {
          type: "bar",
          orientation: "h",
          x: order.map((c) => counts[c]),
          y: order.map((_, i) => i),
          marker: { color: order.map((c) => hues[kinds[c]]) },
          text: row < 16 ? undefined : order.map((c) => (counts[c] ? number(counts[c]) : "vacant")),
          textposition: "outside",
          cliponaxis: false,
          textfont: { size: 11, color: css("--muted") },
          customdata: order.map(
            (c) => `${plain(federation.classes[c])}: ${plural(counts[c], "sample")} (${GROUPS[kinds[c]]})`,
          ),
          hovertemplate: "%{customdata}<extra></extra>",
        },
      ],
      {
        ...base,
        margin: { l: left, r: 46, t: 6, b: 40 },
        bargap: 0.3,
        xaxis: { title: "samples", range: [0, Math.max(1, ...counts) * 1.06], nticks: 4, tickformat: ",d" },
      },
      `${clientName(federation, client)}: ${
        order
          .filter((c) => counts[c])
          .map((c) => `${federation.classes[c]} ${counts[c]}`)
          .join(", ") || "no samples"
      }`,
    );
    $("effect-figure").hidden = !own;
    if (!own) return;
    const value = (key, c) => (own[key][c] === null ? null : own[key][c] / 100);
    const about = order.map(
      (c) =>
        `${plain(federation.classes[c])} (${GROUPS[kinds[c]]})<br>received ${percent(own.before[c])} %, updated ${percent(own.after[c])} %, averaged ${percent(own.aggregated[c])} %`,
    );
    const hollow = css("--paper"),
      ink = css("--ink"),
      size = row < 16 ? 6 : 9;
    const dots = (key, name, legendrank, marker) => ({
      type: "scatter",
      mode: "markers",
      name,
      x: order.map((c) => value(key, c)),
      y: order.map((_, i) => i),
      text: about,
      hovertemplate: "%{text}<extra></extra>",
      marker,
      legendrank,
    });
    draw(
      "effect",
      [
        {
          type: "scatter",
          mode: "lines",
          showlegend: false,
          hoverinfo: "skip",
          line: { color: css("--muted"), width: 1.5 },
          x: order.flatMap((c) => [value("before", c), value("after", c), null]),
          y: order.flatMap((_, i) => [i, i, null]),
        },
        dots("before", "received", 1, { size, color: hollow, line: { color: ink, width: 1.5 } }),
        dots("aggregated", "averaged", 3, { size, symbol: "diamond", color: css("--c2") }),
        dots("after", "updated", 2, { size, color: css("--c1") }),
      ],
      {
        ...base,
        height: height + 28,
        margin: { l: left, r: 14, t: 34, b: 40 },
        showlegend: true,
        legend: legendAbove(),
        xaxis: { title: "accuracy %", range: [-3, 103], tickvals: [0, 25, 50, 75, 100] },
      },
      `${clientName(federation, client)}, round ${probe.round}, accuracy received, updated and averaged: ` +
        order
          .map(
            (c) =>
              `${federation.classes[c]} ${percent(own.before[c])}, ${percent(own.after[c])}, ${percent(own.aggregated[c])}`,
          )
          .join("; "),
    );
  }
  function told(probe, client) {
    // one client of a probed round
    const at = probe.clients.indexOf(client),
      one = (key) => (probe[key].length === 1 ? probe[key][0] : probe[key][at]);
    return {
      before: one("before"),
      after: probe.after[at],
      aggregated: one("aggregated"),
      groups: probe.groups[at],
      in_local: probe.in_local[at],
      out_local: probe.out_local[at],
      deviation: probe.deviation[at],
    };
  }
  function missing(run, client) {
    const rounds = run.rounds.probed;
    if (!run.probe_every && !rounds.length)
      return "What local updates did to each class was not recorded in this run. To see it, run it again with --probe every=10.";
    if (!rounds.length)
      return `No round has been probed yet: the first will be round ${Math.min(run.probe_every || 1, run.total)}.`;
    return `${clientName(data.federations[run.federation], client)} took part in none of the probed rounds (${rounds.length > 8 ? rounds.length + " of them" : rounds.join(", ")}). Run it again with --probe every=1, or a larger cohort, to see this client.`;
  }
  function choose(client) {
    const N = data.federations[pick(chosen.run).federation].counts.length;
    if (client < 0 || client >= N) return;
    chosen.client = client;
    chosen.picked = true;
    showClients();
  }

  // Confusion, experiment, environment

  function showConfusion() {
    chosen.confusion = fill(
      $("confusion-run"),
      data.runs.map((run) => [run.path, runName(run)]),
      chosen.confusion,
    );
    const run = pick(chosen.confusion),
      names = data.federations[run.federation].classes,
      C = names.length;
    $("matrix").hidden = !run.confusion;
    $("confusion-note").textContent = run.confusion
      ? ""
      : run.finished
        ? "Too many classes for this page: unskew figure confusion draws them."
        : "It is written when the run ends.";
    if (!run.confusion) return;
    const sums = run.confusion.map((row) => row.reduce((a, b) => a + b, 0));
    const shares = run.confusion.map((row, i) => row.map((n) => (sums[i] ? (100 * n) / sums[i] : null)));
    const width = $("matrix").parentElement.clientWidth,
      left = 32 + 7 * Math.max(...names.map((name) => Math.min(name.length, 14)));
    const bar = 66,
      side = Math.min(width - left - bar, 560),
      cell = side / C,
      every = Math.max(1, Math.ceil(15 / cell)),
      written = cell >= 30;
    const shown = names.map((_, c) => c).filter((c) => c % every === 0),
      labels = shown.map((c) => tick(names[c], 14));
    draw(
      "matrix",
      [
        {
          type: "heatmap",
          z: shares,
          zmin: 0,
          zmax: 100,
          colorscale: scale("--low"),
          xgap: C <= 40 ? 1 : 0,
          ygap: C <= 40 ? 1 : 0,
          text: shares.map((row, i) =>
            row.map((share, j) =>
              written ? (share === null ? "" : share >= 0.5 ? share.toFixed(0) : "") : "",
            ),
          ),
          texttemplate: written ? "%{text}" : undefined,
          textfont: { size: 12 },
          customdata: shares.map((row, i) =>
            row.map(
              (share, j) =>
                `${plain(names[i])} answered ${plain(names[j])}: ${number(run.confusion[i][j])} of ${number(sums[i])}${share === null ? "" : ` (${share.toFixed(1)} %)`}`,
            ),
          ),
          hovertemplate: "%{customdata}<extra></extra>",
          colorbar: {
            thickness: 10,
            outlinewidth: 0,
            x: 1.01,
            len: 1,
            lenmode: "fraction",
            ypad: 0,
            ticksuffix: " %",
            tickfont: { color: css("--muted"), size: 11 },
          },
        },
      ],
      {
        width: left + side + bar,
        height: 8 + side + left,
        margin: { l: left, r: bar, t: 8, b: left, autoexpand: false },
        hovermode: "closest",
        xaxis: {
          title: "answered",
          tickvals: shown,
          ticktext: labels,
          tickangle: left > 60 ? -60 : 0,
          showgrid: false,
          ticks: "",
        },
        yaxis: {
          title: "class",
          autorange: "reversed",
          tickvals: shown,
          ticktext: labels,
          showgrid: false,
          ticks: "",
        },
      },
      `Confusion matrix of ${runName(run)}: ` +
        names
          .map((name, i) => `${name} ${sums[i] ? shares[i][i].toFixed(0) + " % right" : "not tested"}`)
          .join(", "),
    );
  }

  function showSetup() {
    chosen.setup = fill(
      $("setup-run"),
      data.runs.map((run) => [run.path, runName(run)]),
      chosen.setup,
    );
    const run = pick(chosen.setup);
    $("setup-path").textContent =
      run.path + (run.finished
        ? ""
        : ` (${run.failed ? "failed" : "ended or under way"} at round ${run.done} of ${run.total})`);
    if ($("experiment").textContent !== run.experiment) $("experiment").textContent = run.experiment;
    const shown = (value) =>
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
      ...Object.entries(run.environment).flatMap(([key, value]) => [
        h("dt", {}, key.replaceAll("_", " ")),
        h("dd", {}, shown(value)),
      ]),
    );
  }

  // All of it

  function showWords() {
    showAnswers();
    showProgress(false);
    $("main").hidden = !data.runs.length;
    if (!data.runs.length) return;
    showTables();
    showSiteTables();
    showChips();
    showSetup();
  }
  function showCharts() {
    if (!data.runs.length) return;
    showCurves();
    showSites();
    showClients();
    showConfusion();
  }
  function listen() {
    $("metric").addEventListener("change", (event) => {
      chosen.metric = event.target.value;
      showCurves();
    });
    for (const radio of document.querySelectorAll("input[name=seeds]"))
      radio.addEventListener("change", () => {
        chosen.seeds = radio.value;
        showCurves();
      });
    $("all").addEventListener("click", () => showOnly(true));
    $("none").addEventListener("click", () => showOnly(false));
    $("run").addEventListener("change", (event) => {
      chosen.run = event.target.value;
      showClients();
    });
    $("client").addEventListener("change", (event) => choose(Number(event.target.value)));
    $("previous").addEventListener("click", () => choose(chosen.client - 1));
    $("next").addEventListener("click", () => choose(chosen.client + 1));
    $("round").addEventListener("change", (event) => {
      chosen.round = event.target.value;
      showClients();
    });
    $("site-measure").addEventListener("change", (event) => {
      chosen.siteMeasure = event.target.value;
      showSiteTables();
      showSites();
    });
    $("site-run").addEventListener("change", (event) => {
      chosen.site = event.target.value;
      showSites();
    });
    $("confusion-run").addEventListener("change", (event) => {
      chosen.confusion = event.target.value;
      showConfusion();
    });
    $("setup-run").addEventListener("change", (event) => {
      chosen.setup = event.target.value;
      showSetup();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
    let width = window.innerWidth,
      timer = 0;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return; // a phone's address bar comes and goes
      width = window.innerWidth;
      clearTimeout(timer);
      timer = setTimeout(showCharts, 200);
    });
  }
  async function poll() {
    try {
      const answer = await fetch("data.json?seen=" + encodeURIComponent(data.revision), {
        cache: "no-store",
      });
      if (answer.status === 200) {
        data = await answer.json();
        showWords();
        showCharts();
      } else showProgress(!answer.ok);
    } catch {
      showProgress(true);
    }
    setTimeout(poll, POLL);
  }

  showWords(); // at once; Plotly, further down the page, takes its time
  document.addEventListener("DOMContentLoaded", () => {
    showCharts();
    listen();
    if (LIVE) setTimeout(poll, POLL);
  });
})();
