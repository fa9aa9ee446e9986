// The table of all worlds gets buttons that show those of one kind. Without scripts all are shown.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    const column = heads.indexOf("kind");
    if (column < 0 || heads.indexOf("world") < 0) continue;
    const rows = [...table.querySelectorAll("tbody tr")];
    const kindOf = (row) => row.cells[column].textContent.trim();
    const bar = document.createElement("div");
    bar.className = "gallery-filter";
    for (const kind of ["all", ...new Set(rows.map(kindOf))]) {
      const button = document.createElement("button");
      button.textContent = kind;
      button.setAttribute("aria-pressed", kind === "all");
      button.addEventListener("click", () => {
        for (const other of bar.children) other.setAttribute("aria-pressed", other === button);
        for (const row of rows) row.hidden = kind !== "all" && kindOf(row) !== kind;
      });
      bar.append(button);
    }
    (table.closest(".table-wrapper") ?? table).before(bar);
  }
});
