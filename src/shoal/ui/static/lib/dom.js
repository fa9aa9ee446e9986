// Elements without markup: what comes from a run folder is text, and stays text.

const SVG = "http://www.w3.org/2000/svg";

// h("a.name", { href, onclick, hidden, dataset, style }, ...children): classes and an id may follow the tag.
export function h(tag, options = {}, ...children) {
  const [name, ...marks] = tag.split(/(?=[.#])/);
  return furnish(document.createElement(name), marks, options, children);
}

// The same for SVG: s("path", { d, class: "line" }).
export function s(tag, options = {}, ...children) {
  const [name, ...marks] = tag.split(/(?=[.#])/);
  return furnish(document.createElementNS(SVG, name), marks, options, children);
}

function furnish(element, marks, options, children) {
  for (const mark of marks) mark[0] === "#" ? (element.id = mark.slice(1)) : element.classList.add(mark.slice(1));
  for (const [key, value] of Object.entries(options)) set(element, key, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, key, value) {
  if (key === "style") for (const [name, each] of Object.entries(value)) element.style.setProperty(name, each);
  else if (key === "dataset") Object.assign(element.dataset, value);
  else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (value === true) element.setAttribute(key, "");
  else if (value !== false && value !== null && value !== undefined) {
    if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value);
  }
}

// Shows these children and nothing else.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// The same, but children that are there already stay where they are: what has the focus keeps it.
export function arrange(element, children) {
  children.forEach((child, i) => { if (element.children[i] !== child) element.insertBefore(child, element.children[i] ?? null); });
  while (element.children.length > children.length) element.lastChild.remove();
}

// Changes the text of an element only if it is another one: nothing is laid out again for nothing.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A function that runs once, soon after the last of many calls.
export function later(run, milliseconds = 0) {
  let waiting = 0;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => run(...given), milliseconds);
  };
}

// A function that runs at most once per frame.
export function framed(run) {
  let waiting = 0;
  return (...given) => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => run(...given));
  };
}
