// Elements from names and texts. Text becomes text nodes only, so no value is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Replace an element's children, but leave them where a reader of screens would hear no news. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The scrolling frame of a table. */
export function frame(label) {
  return el("div", { class: "table", role: "region", tabindex: "0", "aria-label": `Table: ${label}` });
}

/** A frame whose rows stand one below the other where the screen is narrow. */
export function stacked(holder) {
  holder.classList.add("stacked");
  return holder;
}

/** A table whose first column names the rows; cells are texts or elements. */
export function table(caption, heads, rows) {
  const [first, ...rest] = heads;
  const named = rest.map((head) => head.textContent ?? head);
  const cell = (content, index) => el("td", { "data-of": named[index] }, ...[content].flat());
  return el(
    "table",
    {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...[first, ...rest].map((head) => el("th", { scope: "col" }, head)))),
    el(
      "tbody",
      {},
      ...rows.map(([name, ...cells]) =>
        el("tr", {}, el("th", { scope: "row" }, ...[name].flat()), ...cells.map(cell)),
      ),
    ),
  );
}

/** A folded part of the page, drawn only while it is open. */
export function folded(id, title, heading = "h2") {
  const body = el("div", { class: "body" });
  const details = el("details", { id }, el("summary", {}, el(heading, {}, title)), body);
  let draw = null;
  const redraw = () => {
    if (details.open && draw) renew(body, draw());
  };
  details.addEventListener("toggle", redraw);
  details.update = (drawing) => {
    draw = drawing;
    redraw();
  };
  return details;
}

/** Replace an element's children; frames of tables stay in place, and with them scroll and focus. */
export function renew(parent, drawn) {
  const isFrame = (element) => element.classList.contains("table");
  const label = (element) => element.getAttribute("aria-label");
  const before = [...parent.children];
  drawn.forEach((element, index) => {
    const old = before[index];
    if (!old) parent.append(element);
    else if (isFrame(old) && isFrame(element) && label(old) === label(element)) old.replaceChildren(...element.childNodes);
    else if (old !== element) old.replaceWith(element);
  });
  for (const old of before.slice(drawn.length)) old.remove();
}
