// Clients: who holds what, what a local update did, and the same client under all methods.

const clientName = (federation, client) => federation.names[client] || `client ${client}`;
const clientTitle = (federation, client) => federation.names[client] || `Client ${client}`;
function clientText(federation, client) {
  const size = federation.counts[client].reduce((a, b) => a + b, 0),
    vacant = [...federation.groups[client]].filter((g) => g === "2").length;
  return `${federation.names[client] || client}: ${plural(size, "sample")}, ${vacant} of ${federation.classes.length} classes vacant`;
}
function showClients() {
  // Clients on other machines may keep what they hold to themselves.
  const told = (run) => data.federations[run.federation].counts.length > 0;
  $("clients").hidden = $("clients-link").hidden = !data.runs.some(told);
  if ($("clients").hidden) return;
  const run = pickRun("method", "seed", ["method", "seed"], { among: told }).runs[0];
  if (!run) return;
  const federation = data.federations[run.federation];
  const wanted = chosen.client === "" ? (run.probes.at(-1)?.clients[0] ?? 0) : chosen.client;
  const client = Number(
    fill($("client"), federation.counts.map((_, each) => [String(each), clientText(federation, each)]), wanted),
  );
  showPartition(run, federation, client);
  showClient(run, federation, client);
}
function showPartition(run, federation, client) {
  const N = federation.counts.length,
    C = federation.classes.length,
    rows = N <= 24 ? 22 : N <= 60 ? 12 : Math.max(Math.min(3, 3000 / N), 620 / N);
  const most = federation.counts.reduce((largest, row) => Math.max(largest, ...row), 1);
  const called = Math.max(0, ...federation.names.map((name) => Math.min(name.length, 18))), // characters, 0 for numbers
    apart = Math.max(1, Math.ceil(16 / rows)),
    left = called ? 16 + 7 * called : 52;
  const { room, axis } = classTicks(federation.classes, wide("partition") - left - 80);
  const marks = [1, 10, 100, 1000, 10000, 100000, 1000000].filter((mark) => mark <= most);
  const shared = data.runs.filter((each) => each.federation === run.federation);
  const methods = new Set(shared.map((each) => each.method)).size;
  $("partition-caption").textContent =
    `Samples of each class at each client: seed ${run.seed}` +
    (several() ? ` of ${blockOf(run.method).short}` : "") +
    (methods > 1 ? ", the same for all methods" : "");
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
        text: federation.counts.map((row, each) =>
          row.map(
            (n, c) =>
              `${plain(clientName(federation, each))}, ${plain(federation.classes[c])}: ${plural(n, "sample")} (${GROUPS[federation.groups[each][c]]})`,
          ),
        ),
        hovertemplate: "%{text}<extra></extra>",
        colorbar: colourBar({
          ticksuffix: "",
          tickvals: marks.map(Math.log10),
          ticktext: marks.map(number),
          title: { text: "samples", side: "right", font: { color: css("--muted"), size: 12 } },
        }),
      },
    ],
    {
      height: N * rows + room + 46,
      margin: { l: left, r: 8, t: 8, b: room },
      hovermode: "closest",
      xaxis: axis,
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
          y0: client - 0.5,
          y1: client + 0.5,
          line: { color: css("--pick"), width: 2 },
          layer: "above",
        },
      ],
    },
    `Samples of ${C} classes at ${plural(N, "client")}; ${clientName(federation, client)} is chosen`,
    {
      name: `clients-seed-${run.seed}`,
      title: $("partition-caption").textContent,
      head: ["client", ...federation.classes],
      rows: federation.counts.map((row, each) => [federation.names[each] || each, ...row]),
    },
  );
  if (!$("partition").dataset.clickable) {
    $("partition").dataset.clickable = "true";
    $("partition").on("plotly_click", (event) => chooseClient(Math.round(event.points[0].y)));
  }
}
function chooseClient(client) {
  if (client >= 0 && client < $("client").options.length) change({ client: String(client) }, showClients);
}

function showClient(run, federation, client) {
  const counts = federation.counts[client],
    kinds = [...federation.groups[client]].map(Number),
    classes = federation.classes;
  const of = (group) => kinds.map((kind, c) => (kind === group ? c : -1)).filter((c) => c >= 0);
  const held = (group) => of(group).reduce((all, c) => all + counts[c], 0);
  $("client-title").textContent = clientTitle(federation, client);
  $("client-text").textContent =
    `${plural(counts.reduce((a, b) => a + b, 0), "sample")} of ${plural(counts.filter(Boolean).length, "class", "classes")}; ${of(2).length} of ${counts.length} classes are vacant.`;
  const found = run.probes.filter((probe) => probe.clients.includes(client));
  $("round-control").hidden = !found.length;
  const round = fill($("round"), found.map((each) => [String(each.round), String(each.round)]), chosen.round || found.at(-1)?.round);
  const probe = found.find((each) => String(each.round) === round),
    own = probe && told(probe, client);
  $("probe-note").textContent = own
    ? run.probes.length < run.rounds.probed.length
      ? "To keep the page small, single clients are shown for some of the probed rounds."
      : ""
    : missing(run, client);
  $("groups-caption").textContent = own ? `${clientTitle(federation, client)} under ${runName(run)}, round ${round}` : "";
  $("groups").replaceChildren(
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...["its classes", ...(own ? ["received", "updated", "change", "averaged"] : [])].map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        ...GROUPS.map((name, group) => {
          const stages = own && own.groups[group],
            moved = stages && known(stages[0]) && known(stages[1]) ? stages[1] - stages[0] : null;
          const sign = moved === null ? "±" : points(moved)[0];
          return h(
            "tr",
            {},
            h("th", { scope: "row" }, name, h("small", {}, `${plural(of(group).length, "class", "classes")}, ${plural(held(group), "sample")}`)),
            ...(own
              ? [
                  h("td", {}, percent(stages?.[0])),
                  h("td", {}, percent(stages?.[1])),
                  h("td", sign === "±" ? {} : { class: sign === "+" ? "gain" : "loss" }, moved === null ? "–" : points(moved)),
                  h("td", {}, percent(stages?.[2])),
                ]
              : []),
          );
        }),
      ),
    ),
  );
  const more = [];
  if (own) {
    more.push("Accuracy in percent on the global test set, of the model it received, its model after the local update, and the next global model, averaged over the clients of the round.");
    if (known(own.in_local))
      more.push(
        `Updated, its model is right on ${percent(own.in_local)}\u00a0% of its own mix of classes` +
          (known(own.out_local) ? ` and on ${percent(own.out_local)}\u00a0% of the others' mix.` : "."),
      );
    if (own.deviation > 0)
      more.push(
        `By FedLC's bound, another step on its samples would move its model away from the minority class in ${percent(own.deviation)}\u00a0% of its pairs of a majority and a minority class.`,
      );
  }
  $("client-more").textContent = more.join(" ");

  $("effect-figure").hidden = $("side").hidden = !own;
  $("client-figures").classList.toggle("alone", !own);
  // Majority classes first, then minority, then vacant; within a group the largest first.
  const order = counts.map((_, c) => c).sort((a, b) => kinds[a] - kinds[b] || counts[b] - counts[a] || a - b);
  const C = order.length,
    row = C <= 24 ? 24 : C <= 60 ? 16 : 12,
    height = C * row + 84,
    every = row >= 16 ? 1 : Math.ceil(16 / row);
  const left = 14 + 7 * Math.max(...classes.map((name) => Math.min(name.length, 14)));
  const base = {
    height,
    hovermode: "closest",
    yaxis: {
      range: [C - 0.4, -0.6],
      tickvals: order.map((_, i) => i).filter((i) => i % every === 0),
      ticktext: order.filter((_, i) => i % every === 0).map((c) => tick(classes[c], 14)),
      showgrid: true,
      ticks: "",
    },
  };
  const hues = GROUPS.map((name) => css("--" + name));
  $("holds-caption").textContent = `Samples it holds (seed ${run.seed})`;
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
        customdata: order.map((c) => `${plain(classes[c])}: ${plural(counts[c], "sample")} (${GROUPS[kinds[c]]})`),
        hovertemplate: "%{customdata}<extra></extra>",
      },
    ],
    {
      ...base,
      margin: { l: left, r: 46, t: 34, b: 40 },
      bargap: 0.3,
      xaxis: { title: "samples", range: [0, Math.max(1, ...counts) * 1.06], nticks: 4, tickformat: ",d" },
    },
    `${clientTitle(federation, client)}: ${
      order
        .filter((c) => counts[c])
        .map((c) => `${classes[c]} ${counts[c]}`)
        .join(", ") || "no samples"
    }`,
    {
      name: `${clientName(federation, client)}-samples-seed-${run.seed}`,
      title: `${clientTitle(federation, client)}: samples it holds (seed ${run.seed})`,
      head: ["class", "samples", "kind"],
      rows: order.map((c) => [classes[c], counts[c], GROUPS[kinds[c]]]),
    },
  );
  if (!own) return;
  const value = (key, c) => (known(own[key][c]) ? 100 * own[key][c] : null);
  const about = order.map(
    (c) =>
      `${plain(classes[c])} (${GROUPS[kinds[c]]})<br>received ${percent(own.before[c])}\u00a0%, updated ${percent(own.after[c])}\u00a0%, averaged ${percent(own.aggregated[c])}\u00a0%`,
  );
  const size = row < 16 ? 6 : 9;
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
  $("effect-caption").textContent = `Accuracy of each class around its update: ${runName(run)}, round ${round}`;
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
      // The ring is last, and larger: what lies on it shows.
      dots("aggregated", "averaged", 3, { size, symbol: "diamond", color: css("--averaged") }),
      dots("after", "updated", 2, { size, color: css("--updated") }),
      dots("before", "received", 1, { size: size + 4, symbol: "circle-open", color: css("--ink"), line: { width: 1.5 } }),
    ],
    {
      ...base,
      margin: { l: left, r: 14, t: 34, b: 40 },
      showlegend: true,
      legend: legendAbove(),
      xaxis: { title: "accuracy %", range: [-3, 103], tickvals: [0, 25, 50, 75, 100] },
    },
    `${clientTitle(federation, client)}, ${runName(run)}, round ${round}, accuracy received, updated and averaged: ` +
      order.map((c) => `${classes[c]} ${percent(own.before[c])}, ${percent(own.after[c])}, ${percent(own.aggregated[c])}`).join("; "),
    {
      name: `${clientName(federation, client)}-${runName(run)}-round-${round}`,
      title: `${clientTitle(federation, client)}: ${runName(run)}, round ${round}`,
      head: ["class", "kind", "received", "updated", "averaged"],
      rows: order.map((c) => [classes[c], GROUPS[kinds[c]], own.before[c], own.after[c], own.aggregated[c]]),
    },
  );
  showSide(run, federation, client, Number(round), order, kinds);
}
function told(probe, client) {
  // one client of a probed round
  const at = probe.clients.indexOf(client),
    fractions = (hundredths) => hundredths.map((value) => (known(value) ? value / 10000 : null)),
    one = (key) => fractions(probe[key].length === 1 ? probe[key][0] : probe[key][at]);
  return {
    before: one("before"),
    after: fractions(probe.after[at]),
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
  if (!rounds.length) return `No round has been probed yet: the first will be round ${Math.min(run.probe_every || 1, run.total)}.`;
  return `${clientTitle(data.federations[run.federation], client)} took part in none of the probed rounds (${rounds.length > 8 ? rounds.length + " of them" : rounds.join(", ")}). Run it again with --probe every=1, or a larger cohort, to see this client.`;
}

// The same client, seed and round under every method.
function showSide(run, federation, client, round, order, kinds) {
  const block = blockOf(run.method);
  const entries = block.rows.flatMap(({ name, method }) => {
    const same = runsOf(method).find((each) => each.seed === run.seed && each.federation === run.federation);
    const probe = same?.probes.find((each) => each.round === round && each.clients.includes(client));
    return probe ? [{ name, method, own: told(probe, client) }] : [];
  });
  $("side").hidden = entries.length < 2;
  if (entries.length < 2) return;
  const absent = block.rows.filter((row) => !entries.some((entry) => entry.method === row.method)).map((row) => row.name);
  $("side-title").textContent = `${clientTitle(federation, client)} under every method: seed ${run.seed}, round ${round}`;
  $("side-note").textContent =
    "Accuracy in percent on the global test set: updated is its own model after the local update, averaged the next global model." +
    (absent.length ? ` Not probed there: ${absent.join(", ")}.` : "");
  const stage = (place, title, group) => ({
    key: `${group}-${place}`,
    title: `${GROUPS[group]}, ${title}`,
    value: (entry) => entry.own.groups[group]?.[place],
    cell: (entry) => h("td", {}, percent(entry.own.groups[group]?.[place])),
  });
  const columns = [nameColumn(), ...[0, 1, 2].flatMap((group) => (kinds.includes(group) ? [stage(1, "updated", group), stage(2, "averaged", group)] : []))];
  refill($("side-table"), [sortable("side", "This client under every method", columns, entries, { redraw: showClients })]);

  const classes = federation.classes,
    long = Math.max(...entries.map(({ name }) => Math.min(name.length, 22))),
    left = 16 + 7 * long;
  const parts = ["after", "aggregated"];
  const stacked = narrow(),
    width = (wide("side-map") - (stacked ? left : left + 24) - 70) / (stacked ? 1 : 2);
  const names = order.map((c) => classes[c]),
    { room, axis } = classTicks(names, width);
  const step = 26,
    H = entries.length * step;
  const titles = ["updated: its own model", "averaged: the next global model"];
  const traces = [],
    layout = {
      height: stacked ? 2 * H + 2 * room + 64 : H + room + 34,
      margin: { l: left, r: 8, t: 30, b: room },
      hovermode: "closest",
      annotations: [],
    };
  const inner = layout.height - 30 - room;
  parts.forEach((key, part) => {
    const place = part ? "2" : "";
    const z = entries.map(({ own }) => order.map((c) => (known(own[key][c]) ? 100 * own[key][c] : null)));
    traces.push(
      {
        type: "heatmap",
        z,
        zmin: 0,
        zmax: 100,
        xaxis: "x" + place,
        yaxis: "y" + place,
        colorscale: scale("--low"),
        showscale: part === 1,
        xgap: order.length <= 40 ? 1 : 0,
        ygap: 1,
        hoverongaps: false,
        customdata: entries.map(({ name, own }) =>
          order.map((c) => `${plain(name)}, ${plain(classes[c])} (${GROUPS[kinds[c]]}): ${["updated", "averaged"][part]} ${percent(own[key][c])}\u00a0%`),
        ),
        hovertemplate: "%{customdata}<extra></extra>",
        colorbar: colourBar(),
      },
      ...(width / order.length >= 26 ? cellText(z, 0, 100, scale("--low"), (value) => fixed(value, 0)) : []).map((trace) => ({
        ...trace,
        xaxis: "x" + place,
        yaxis: "y" + place,
      })),
    );
    const share = (H / inner) * 1,
      x = stacked ? [0, 1] : part ? [0.5 + 0.01, 1] : [0, 0.5 - 0.01],
      y = stacked ? (part ? [0, share] : [1 - share, 1]) : [0, 1];
    layout["xaxis" + place] = { ...axis, domain: x, anchor: "y" + place, range: [-0.5, order.length - 0.5] };
    layout["yaxis" + place] = {
      domain: y,
      anchor: "x" + place,
      range: [entries.length - 0.5, -0.5],
      tickvals: entries.map((_, i) => i),
      ticktext: entries.map(({ name }) => tick(name, 22)),
      showticklabels: stacked || !part,
      showgrid: false,
      ticks: "",
    };
    layout.annotations.push(panelTitle(titles[part], x[0], y[1], "--muted"));
    // Lines between majority, minority and vacant classes.
    layout.shapes = layout.shapes || [];
    order.forEach((c, i) => {
      if (i && kinds[c] !== kinds[order[i - 1]])
        layout.shapes.push({
          type: "line",
          xref: "x" + place,
          yref: "y" + place,
          x0: i - 0.5,
          x1: i - 0.5,
          y0: -0.5,
          y1: entries.length - 0.5,
          line: { color: css("--pick"), width: 2 },
        });
    });
  });
  $("side-caption").textContent = `Each class, ${GROUPS.filter((_, group) => kinds.includes(group)).join(", then ")}`;
  draw(
    "side-map",
    traces,
    layout,
    `${$("side-title").textContent}: ` +
      entries.map(({ name, own }) => `${name} ${order.map((c) => `${classes[c]} updated ${percent(own.after[c])}, averaged ${percent(own.aggregated[c])}`).join(", ")}`).join("; "),
    {
      name: `${clientName(federation, client)}-methods-seed-${run.seed}-round-${round}`,
      title: $("side-title").textContent,
      head: ["method", "class", "kind", "updated", "averaged"],
      rows: entries.flatMap(({ name, own }) => order.map((c) => [name, classes[c], GROUPS[kinds[c]], own.after[c], own.aggregated[c]])),
    },
  );
}
