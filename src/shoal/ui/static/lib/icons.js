// Signs of the page, drawn on 18 by 18.

import { s } from "./dom.js";

const PATHS = {
  runs: "M3 4.5h12M3 9h12M3 13.5h12",
  compare: "M2.5 13.5c2.5 0 3-6 5.5-6s3 3 7.5-3M2.5 10c3 0 4 4 7 4s3-2.5 6-2.5",
  population: "M3 3h5v5H3ZM10 3h5v5h-5ZM3 10h5v5H3ZM10 10h5v5h-5Z",
  sweep: "M3 3v12M7 3v12M11 3v12M15 3v12M3 11l4-5 4 7 4-6",
  cluster: "M9 2.5v4M4 11.5h10M9 6.5v5M4 11.5v3M14 11.5v3M9 11.5v3",
  environments: "M2.5 13.5 7 6l3 4.5 1.8-2.5 3.7 5.5Z",
  new: "M9 3.5v11M3.5 9h11",
  search: "M8 13A5 5 0 1 0 8 3a5 5 0 0 0 0 10ZM15 15l-3.5-3.5",
  copy: "M6.5 6.5h8v8h-8ZM11.5 6.5v-3h-8v8h3",
  tag: "M3 3.5h5.5l6.5 6.5-5 5L3.5 8.5ZM6.3 6.7v.01",
  sun: "M9 12.2a3.2 3.2 0 1 0 0-6.4 3.2 3.2 0 0 0 0 6.4ZM9 1.8v1.6M9 14.6v1.6M1.8 9h1.6M14.6 9h1.6M3.9 3.9 5 5M13 13l1.1 1.1M3.9 14.1 5 13M13 5l1.1-1.1",
  moon: "M15 10.6A6.4 6.4 0 0 1 7.4 3a6.4 6.4 0 1 0 7.6 7.6Z",
  help: "M9 15.6A6.6 6.6 0 1 0 9 2.4a6.6 6.6 0 0 0 0 13.2ZM7.1 7.2c.2-1.2 1-1.7 2-1.7s1.9.7 1.9 1.7c0 1.5-2 1.5-2 3M9 12.6v.01",
  close: "M4.5 4.5l9 9M13.5 4.5l-9 9",
  save: "M9 3v8M5.8 8.2 9 11.4l3.2-3.2M3.5 14.5h11",
  back: "M11 4 6 9l5 5",
  open: "M7 4l5 5-5 5",
  down: "M4 7l5 5 5-5",
  play: "M6 4v10l8-5Z",
  pause: "M6 4v10M12 4v10",
  edit: "M3.5 14.5 4 11.5 11.5 4a1.4 1.4 0 0 1 2 0l.5.5a1.4 1.4 0 0 1 0 2L6.5 14ZM10.5 5l2.5 2.5",
  fish: "M16.2 9 9.3 13.4A5.6 5.6 0 1 1 9.3 4.6Z",
  more: "M4.5 9v.01M9 9v.01M13.5 9v.01",
  bad: "M9 3 16 15H2ZM9 7.5V11M9 13v.01",
};

export const icon = (name) =>
  s("svg", { viewBox: "0 0 18 18", "aria-hidden": "true", class: `icon icon-${name}` }, s("path", { d: PATHS[name] ?? PATHS.more }));
