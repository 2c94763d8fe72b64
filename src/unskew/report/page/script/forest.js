// The picture one sees first: how far each method is from the reference, and whether that is significant.

const forestBlocks = () => chosenBlocks().filter((block) => block.forest);
const hasIntervals = (block) => block.forest.rows.some((row) => row.cells.some((each) => each.interval));

function showForestWords() {
  const blocks = forestBlocks();
  $("forest").hidden = $("forest-link").hidden = !blocks.length;
  if (!blocks.length) return;
  const references = [...new Set(blocks.map((block) => block.reference))];
  $("forest-title").textContent = `Against ${references.length === 1 ? references[0] : "the reference"}`;
  $("forest-lede").textContent = blocks.some(hasIntervals)
    ? "Difference in points on the same seeds, with its 95 % interval. Filled: significant after " +
      "Holm's correction for many methods. Hollow: not significant."
    : "Difference in points on the same seeds. Intervals, and which is better, need three seeds or more.";
  const key = blocks.map((block) => block.title).join("|");
  if ($("forests").dataset.key !== key) {
    $("forests").dataset.key = key;
    $("forests").replaceChildren(
      ...blocks.flatMap((block, i) => [
        h(
          "figure",
          {},
          h("figcaption", { id: `forest-caption-${i}` }),
          h("div", { class: "chart", id: `forest-chart-${i}`, role: "img" }),
        ),
        h("details", {}, h("summary", {}, "As a table, with how many seeds it would take"), h("div", { id: `forest-table-${i}` })),
      ]),
    );
  }
  blocks.forEach((block, i) => {
    const { measures, rows, seeds, round } = block.forest;
    $(`forest-caption-${i}`).textContent =
      `${several() ? block.short + ": difference" : "Difference"} to ${block.reference}, ${plural(seeds, "seed")}` +
      (hasIntervals(block) ? "" : ", too few for intervals") +
      (round === null ? "" : `, round ${round}, the last that all runs have reached`);
    const method = (row) => block.rows.find((each) => each.name === row.name).method;
    const columns = [
      { ...nameColumn(), cell: (row) => nameColumn().cell({ ...row, method: method(row) }) },
      ...measures.map((measure, at) => ({
        key: measure,
        title: measure,
        value: (row) => row.cells[at].difference,
        cell: (row) =>
          h("td", {}, row.cells[at].settled ? h("strong", {}, row.cells[at].text) : row.cells[at].text, h("small", {}, row.cells[at].verdict)),
      })),
    ];
    refill($(`forest-table-${i}`), [sortable("forest", `Differences to ${block.reference}`, columns, rows)]);
  });
}

function showForests() {
  forestBlocks().forEach((block, i) => {
    const { measures, rows } = block.forest;
    const of = rows.map((row) => block.rows.find((each) => each.name === row.name).method);
    const stacked = narrow(),
      panels = measures.length,
      step = rows.length <= 4 ? 30 : 24,
      inner = rows.length * step,
      long = Math.max(...rows.map((row) => Math.min(row.name.length, stacked ? 16 : 26))),
      left = 18 + 7 * long,
      between = 70; // pixels from one panel to the next below it: its ticks and its title
    const layout = {
      height: (stacked ? panels * inner + (panels - 1) * between : inner) + 30 + 46,
      margin: { l: left, r: 14, t: 30, b: 46 },
      hovermode: "closest",
      annotations: [],
    };
    const whole = layout.height - 76;
    const traces = [];
    measures.forEach((measure, at) => {
      const place = at ? String(at + 1) : "";
      const cells = rows.map((row) => row.cells[at]);
      const ends = cells.flatMap((cell) => [0, cell.difference ?? 0, ...(cell.interval || [])]).map((value) => 100 * value);
      const low = Math.min(...ends),
        high = Math.max(...ends),
        pad = Math.max(1, 0.06 * (high - low));
      const gap = 0.04,
        w = (1 - gap * (panels - 1)) / panels,
        x = stacked ? [0, 1] : [at * (w + gap), at * (w + gap) + w],
        top = stacked ? 1 - (at * (inner + between)) / whole : 1,
        y = stacked ? [Math.max(0, top - inner / whole), top] : [0, 1];
      cells.forEach((cell, n) => {
        if (!known(cell.difference)) return;
        const paint = colour(of[n]);
        traces.push({
          type: "scatter",
          mode: "markers",
          showlegend: false,
          name: plain(rows[n].name),
          meta: { method: rows[n].name, measure, settled: cell.settled },
          xaxis: "x" + place,
          yaxis: "y" + place,
          x: [100 * cell.difference],
          y: [n],
          error_x: cell.interval
            ? {
                type: "data",
                symmetric: false,
                array: [100 * (cell.interval[1] - cell.difference)],
                arrayminus: [100 * (cell.difference - cell.interval[0])],
                color: paint,
                thickness: 1.8,
                width: 4,
              }
            : undefined,
          marker: {
            symbol: "circle",
            size: 10,
            color: cell.settled ? paint : css("--paper"),
            line: { color: paint, width: 2 },
          },
          text: [`${plain(rows[n].name)}, ${measure}: ${cell.text} points, ${plain(cell.verdict)}`],
          hovertemplate: "%{text}<extra></extra>",
        });
      });
      layout["xaxis" + place] = {
        domain: x,
        anchor: "y" + place,
        range: [low - pad, high + pad],
        title: stacked && at < panels - 1 ? "" : "points",
        nticks: stacked || wide(`forest-chart-${i}`) > 900 ? 6 : 4,
        zeroline: true,
        zerolinecolor: css("--muted"),
        zerolinewidth: 1.5,
      };
      layout["yaxis" + place] = {
        domain: y,
        anchor: "x" + place,
        range: [rows.length - 0.4, -0.6],
        tickvals: rows.map((_, n) => n),
        ticktext: rows.map((row) => tick(row.name, stacked ? 16 : 26)),
        showticklabels: stacked || at === 0,
        ticks: "",
      };
      layout.annotations.push(panelTitle(`<b>${plain(measure)}</b>`, x[0], y[1], "--ink"));
    });
    draw(
      `forest-chart-${i}`,
      traces,
      layout,
      `Differences to ${block.reference} in points: ` +
        rows.map((row) => `${row.name}: ${measures.map((measure, at) => `${measure} ${row.cells[at].text}, ${row.cells[at].verdict}`).join("; ")}`).join(". "),
      {
        name: `against-${block.reference}${block.short && "-" + block.short}`,
        title: $(`forest-caption-${i}`).textContent,
        head: ["method", "measure", "difference", "low", "high", "settled", "verdict"],
        rows: rows.flatMap((row) =>
          measures.map((measure, at) => {
            const cell = row.cells[at];
            return [row.name, measure, cell.difference, ...(cell.interval || [null, null]), cell.settled ? "yes" : "no", cell.verdict];
          }),
        ),
      },
    );
  });
}
