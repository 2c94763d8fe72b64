// Small things: elements, numbers as they are printed, names, looks of methods.

const GROUPS = ["majority", "minority", "vacant"];
const $ = (id) => document.getElementById(id);
let data = JSON.parse($("data").textContent);
const LIVE = "revision" in data; // served by a watch

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => document.documentElement.clientWidth < 600;

// Numbers

const known = (value) => value !== null && value !== undefined;
// As Python prints it: of two numbers that are equally near, the even one. Only multiples of a power of 1/2 are
// exactly between two, and times a power of 2 is exact.
function fixed(value, digits) {
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
  const steps = value * 10 ** digits;
  const even = 2 * Math.round(steps / 2);
  return (even / 10 ** digits).toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
}
const number = (value) => value.toLocaleString("en");
const percent = (value) => (known(value) ? fixed(100 * value, 1) : "–"); // of a fraction
const points = (value) => {
  const text = fixed(100 * Math.abs(value), 1);
  return (text === "0.0" ? "±" : value > 0 ? "+" : "−") + text;
};
const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;
const short = (value) => (value >= 100 ? number(Math.round(value)) : String(Number(value.toPrecision(3))));
function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}
// In NumPy's order, so that means end in the same digit here and in the table.
function sum(values) {
  if (values.length < 8) return values.reduce((a, b) => a + b, 0);
  const parts = values.slice(0, 8),
    whole = values.length - (values.length % 8);
  for (let i = 8; i < whole; i++) parts[i % 8] += values[i];
  const [a, b, c, d, e, f, g, i] = parts;
  return values.slice(whole).reduce((all, value) => all + value, a + b + (c + d) + (e + f + (g + i)));
}
const mean = (values) => sum(values) / values.length;
const deviation = (values, middle) =>
  values.length < 2 ? null : Math.sqrt(sum(values.map((value) => (value - middle) * (value - middle))) / (values.length - 1));

// Names

const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // for Plotly
const brief = (name, most = 20) => (name.length <= most ? name : name.slice(0, most - 8) + "…" + name.slice(-7));
const tick = (name, most) => plain(brief(name, most));
// A name that breaks only after what separates a method from its settings, and where a part of it is very long.
function breakable(name) {
  const part = (text) => h("span", text.length <= 24 ? { class: "whole" } : {}, text);
  return name.split(/(?<=[:,+ ])(?=\S)/).flatMap((text, i) => (i ? [h("wbr"), part(text)] : [part(text)]));
}
const title = (method) => data.methods[method].title;
const blockOf = (method) => data.blocks[data.methods[method].block];
const runsOf = (method) => data.runs.filter((run) => run.method === method);
const runName = (run) => `${title(run.method)}, seed ${run.seed}`;
const several = () => data.blocks.length > 1;

// Looks

const dashOf = (method, width) => look(method).dash.map((part) => part * width); // strokes and gaps in pixels
const dark = () =>
  matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.classList.contains("printing");
const look = (method) => data.methods[method].look;
const colour = (method) => look(method)[dark() ? "dark" : "light"];
const tint = (hex, alpha) => {
  const v = parseInt(hex.slice(1), 16);
  return `rgba(${v >> 16},${(v >> 8) & 255},${v & 255},${alpha})`;
};
const SHAPES = {
  circle: "M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0",
  square: "M-3.5,-3.5h7v7h-7z",
  diamond: "M0,-4.8L4.8,0L0,4.8L-4.8,0z",
  "triangle-up": "M0,-4.6L4.6,3.6H-4.6z",
  "triangle-down": "M0,4.6L4.6,-3.6H-4.6z",
  "triangle-left": "M-4.6,0L3.6,4.6V-4.6z",
  "triangle-right": "M4.6,0L-3.6,4.6V-4.6z",
  cross: "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
  x: "M-4.2,-2.2L-2.2,-4.2L0,-2L2.2,-4.2L4.2,-2.2L2,0L4.2,2.2L2.2,4.2L0,2L-2.2,4.2L-4.2,2.2L-2,0z",
  star: "M0,-5L1.3,-1.6L4.8,-1.5L2,0.7L3,4.2L0,2.2L-3,4.2L-2,0.7L-4.8,-1.5L-1.3,-1.6z",
  hexagon2: "M-4.4,0L-2.2,-3.8H2.2L4.4,0L2.2,3.8H-2.2z",
  "diamond-tall": "M0,-5L2.9,0L0,5L-2.9,0z",
};
function swatch(method) {
  const own = look(method),
    paint = `light-dark(${own.light}, ${own.dark})`;
  return svg(
    "svg",
    { width: 30, height: 12, viewBox: "0 0 30 12", class: "swatch", "aria-hidden": "true", style: `color: ${paint}` },
    svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, "stroke-width": 2.5, stroke: "currentColor", "stroke-dasharray": dashOf(method, 2.5).join(" ") }),
    svg("path", { d: SHAPES[own.symbol] || SHAPES.circle, transform: "translate(15 6)", fill: "currentColor" }),
  );
}
