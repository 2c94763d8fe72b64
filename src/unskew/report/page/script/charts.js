// Charts, and what can be saved of them.

const shown = new Map(); // by the id of a chart: { name, title, data, layout, head, rows }

// `saved` is what it shows as a table: { name, title, head, rows }.
function draw(id, traces, layout, label, saved) {
  const chart = $(id),
    muted = css("--muted"),
    paper = css("--paper"),
    ink = css("--ink");
  const axis = {
    gridcolor: css("--grid"),
    linecolor: css("--line"),
    zeroline: false,
    tickfont: { color: muted, size: 12 },
    fixedrange: true,
  };
  for (const name of Object.keys(layout))
    if (/^[xy]axis/.test(name)) {
      const own = layout[name];
      layout[name] = {
        ...axis,
        ...own,
        title: own.title ? { text: own.title, standoff: 8, font: { color: muted, size: 13 } } : undefined,
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
    width: chart.clientWidth || undefined,
    ...layout,
  };
  chart.setAttribute("aria-label", label);
  shown.set(id, { ...saved, traces, layout: whole });
  if (!chart.dataset.saves) {
    chart.dataset.saves = "true";
    chart.closest("figure").append(saves(id));
  }
  return Plotly.react(id, traces, whole, { displayModeBar: false, responsive: false, doubleClick: false });
}
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

// Heat maps

const scale = (low) => [
  [0, css(low)],
  [1, css("--high")],
];
const diverging = () => [
  [0, css("--loss")],
  [0.5, css("--even")],
  [1, css("--gain")],
];
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
function luminance(colours) {
  const [r, g, b] = colours.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
// The numbers in the cells of a heat map, in black or white, whichever stands out more from the cell.
function cellText(z, low, high, colours, write) {
  const stops = colours.map(([at, hex]) => [at, rgb(hex)]);
  const inks = ["#000000", "#ffffff"];
  const groups = inks.map(() => ({ x: [], y: [], text: [] }));
  z.forEach((row, i) =>
    row.forEach((value, j) => {
      const text = known(value) ? write(value) : "";
      if (!text) return;
      const at = Math.min(1, Math.max(0, (value - low) / (high - low)));
      const upper = Math.max(1, stops.findIndex(([stop]) => at <= stop)),
        [from, a] = stops[upper - 1],
        [to, b] = stops[upper];
      const cell = luminance(a.map((v, k) => v + ((b[k] - v) * (at - from)) / (to - from)));
      const best = contrast(cell, 0) >= contrast(cell, 1) ? 0 : 1;
      groups[best].x.push(j);
      groups[best].y.push(i);
      groups[best].text.push(text);
    }),
  );
  return groups.map((group, i) => ({
    type: "scatter",
    mode: "text",
    hoverinfo: "skip",
    showlegend: false,
    textfont: { size: 12, color: inks[i] },
    ...group,
  }));
}
const colourBar = (more = {}) => ({
  thickness: 10,
  outlinewidth: 0,
  ypad: 0,
  ticksuffix: "\u00a0%",
  tickfont: { color: css("--muted"), size: 11 },
  ...more,
});
// Room for names of classes under a picture that is so many pixels wide.
function classTicks(names, width) {
  const long = Math.max(...names.map((name) => Math.min(name.length, 14))),
    cell = width / names.length,
    tilted = long * 7.5 > cell,
    step = Math.max(1, Math.ceil((tilted ? 15 : 8) / cell));
  const at = names.map((_, c) => c).filter((c) => c % step === 0);
  return {
    room: tilted ? 24 + 6.2 * long : 34,
    axis: {
      tickvals: at,
      ticktext: at.map((c) => tick(names[c], 14)),
      tickangle: tilted ? -60 : 0,
      showgrid: false,
      ticks: "",
    },
  };
}
const wide = (id, otherwise = 800) => $(id).clientWidth || otherwise;

// Saving

function save(name, content, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const fileName = (text) => "unskew-" + text.replace(/[^\w.=-]+/g, "-").replace(/^-+|-+$/g, "");
function csv(head, rows) {
  const cell = (value) => {
    if (!known(value)) return "";
    // A spreadsheet takes for a formula what begins like one and is no number.
    const text = typeof value === "number" ? String(value) : String(value).replace(/^(?=[=+\-@\t\r])/, "'");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",") + "\n").join("");
}
function saves(id) {
  const button = (text, what, act) => {
    const each = h("button", { type: "button", "data-save": text.toLowerCase(), "aria-label": `Save ${what} as ${text}` }, text);
    each.addEventListener("click", () => act(shown.get(id)));
    return each;
  };
  return h(
    "p",
    { class: "saves" },
    h("span", { "aria-hidden": "true" }, "Save"),
    button("PNG", "the chart", (chart) => saveImage(id, chart, "png")),
    button("SVG", "the chart", (chart) => saveImage(id, chart, "svg")),
    button("CSV", "the numbers of the chart", (chart) => save(fileName(chart.name) + ".csv", csv(chart.head, chart.rows), "text/csv")),
  );
}
// The title of a panel, above its upper left corner.
const panelTitle = (text, x, y, colour) => ({
  text,
  x,
  y,
  xref: "paper",
  yref: "paper",
  xanchor: "left",
  yanchor: "bottom",
  showarrow: false,
  font: { size: 13, color: css(colour) },
});
async function saveImage(id, chart, format) {
  const more = 54, // pixels above the chart, for what the page says around it
    own = chart.layout.showlegend,
    blocks = chosenBlocks(),
    under = blocks.length === 1 ? `<br><span style="font-size: 12px">${plain(blocks[0].title)}</span>` : "";
  const layout = {
    ...chart.layout,
    title: { text: plain(chart.title) + under, x: 0, xref: "paper", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { t: under ? 26 : 12 }, font: { size: 15 } },
    margin: { ...chart.layout.margin, t: (chart.layout.margin.t || 0) + more },
    showlegend: own || chart.traces.some((trace) => trace.showlegend),
    ...(own ? {} : { legend: { orientation: "v", x: 1.02, y: 1, font: { size: 12 } } }),
  };
  const address = await Plotly.toImage(
    { data: chart.traces, layout },
    { format, width: chart.layout.width || $(id).clientWidth, height: chart.layout.height + more, scale: format === "png" ? 2 : 1 },
  );
  const text = address.slice(address.indexOf(",") + 1);
  const content = format === "svg" ? decodeURIComponent(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  save(fileName(chart.name) + "." + format, content, format === "svg" ? "image/svg+xml" : "image/png");
}
