// Parts that screens share: buttons, fields, menus, empty states, dialogs, copying, saving.

import { h, fill } from "./dom.js";
import { icon } from "./icons.js";

export const button = (text, onclick, options = {}) => {
  const { look = "", icon: sign, ...rest } = options;
  return h(`button.button${look ? `.${look}` : ""}`, { type: "button", onclick, ...rest }, sign ? icon(sign) : null, text);
};

// A button that shows a sign only; its words are for those who cannot see it, and for hovering.
export const signButton = (sign, label, onclick, options = {}) =>
  h("button.sign", { type: "button", "aria-label": label, title: label, onclick, ...options }, icon(sign));

// A menu to choose from; choices: pairs of value and words, or plain values.
export function choice(label, choices, value, onchange, options = {}) {
  const entries = choices.map((each) => (Array.isArray(each) ? each : [each, each]));
  const made = h(
    "select",
    { "aria-label": label, onchange: () => onchange(made.value), ...options },
    entries.map(([key, words]) => h("option", { value: key, selected: key === value }, words)),
  );
  return made;
}

// A label in front of a control.
export const field = (words, control) => h("label.field", {}, h("span", {}, words), control);

// A place that is wider than the screen at times, and can then be scrolled by keys too. look: further classes.
export const scroller = (label, look, ...children) => h(`div.scroll${look}`, { tabindex: 0, role: "region", "aria-label": label }, children);

// Nothing to show: what that means, and what to do about it.
export const empty = (title, text, ...more) =>
  h("div.empty", {}, icon("fish"), h("h2", {}, title), text ? h("p", {}, text) : null, more);

// A command in a terminal, with a button that copies it.
export function command(text) {
  return h("div.command", {}, h("code", {}, text), signButton("copy", `Copy: ${text}`, (event) => copy(text, event.currentTarget)));
}

export async function copy(text, by) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = h("textarea.unseen", { value: text, "aria-hidden": "true" });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  toast("Copied");
  by?.classList.add("done");
  setTimeout(() => by?.classList.remove("done"), 1200);
}

// A word in the corner, gone after a while.
export function toast(text, kind = "") {
  const made = h(`p.toast${kind ? `.${kind}` : ""}`, {}, text);
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 8000 : 2500);
}

// Hands the browser a file to save.
export function save(name, content, type = "text/plain") {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// A dialog over the page; `build(close)` gives its content. Escape and a click beside it close it.
export function dialog(title, build) {
  const made = h("dialog.panel", { "aria-labelledby": "dialog-title" });
  const close = () => made.close();
  fill(made, h("h2#dialog-title", {}, title), build(close));
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => { if (event.target === made) close(); });
  document.body.append(made);
  made.showModal();
  return made;
}

// A menu that hangs from a button; items: pairs of words and function.
export function menu(sign, label, items) {
  const list = h("div.menu", { role: "menu" }, items.map(([words, run]) =>
    h("button", { type: "button", role: "menuitem", onclick: () => { close(); run(); } }, words)));
  const opener = signButton(sign, label, () => (made.classList.contains("open") ? close() : open()), {
    "aria-haspopup": "menu", "aria-expanded": "false",
  });
  const made = h("div.menu-home", {}, opener, list);
  const outside = (event) => { if (!made.contains(event.target)) close(); };
  const key = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
      opener.focus();
    } else if (by) {
      event.preventDefault();
      const entries = [...list.children];
      entries[(entries.indexOf(document.activeElement) + by + entries.length) % entries.length].focus();
    }
  };
  const open = () => {
    made.classList.add("open");
    opener.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
    made.addEventListener("keydown", key);
    list.firstChild?.focus();
  };
  const close = () => {
    made.classList.remove("open");
    opener.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    made.removeEventListener("keydown", key);
  };
  return made;
}
