// The table of all environments gets buttons that show some of them. Without scripts all are shown.
const FILTERS = {
  kind: (row) => row.kind,
  agents: (row) => {
    const count = row.agents.split("\n").reduce((sum, group) => sum + parseInt(group), 0);
    return count === 1 ? "1 agent" : count === 2 ? "2 agents" : count < 10 ? "3 to 9 agents" : "10 or more agents";
  },
  action: (row) => (row.action.includes("choice") ? "discrete actions" : "continuous actions"),
};

// One line for each group of agents.
const textOf = (cell) => cell.innerHTML.replaceAll(/<br[^>]*>/g, "\n").replaceAll(/<[^>]*>/g, "").trim();

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    if (!["environment", ...Object.keys(FILTERS)].every((name) => heads.includes(name))) continue;
    const rows = [...table.querySelectorAll("tbody tr")].map((line) => {
      const cells = Object.fromEntries(heads.map((name, i) => [name, textOf(line.cells[i])]));
      return { line, values: Object.fromEntries(Object.entries(FILTERS).map(([name, of]) => [name, of(cells)])) };
    });
    const wanted = {};
    const bars = Object.keys(FILTERS).map((name) => {
      const bar = document.createElement("div");
      bar.className = "gallery-filter";
      bar.setAttribute("role", "group");
      bar.setAttribute("aria-label", name);
      const values = [...new Set(rows.map((row) => row.values[name]))];
      values.sort((a, b) => parseInt(a) - parseInt(b) || 0); // numbers of agents; others stay in their order
      for (const value of ["all", ...values]) {
        const button = document.createElement("button");
        button.textContent = value;
        button.setAttribute("aria-pressed", value === "all");
        button.addEventListener("click", () => {
          for (const other of bar.children) other.setAttribute("aria-pressed", other === button);
          wanted[name] = value === "all" ? undefined : value;
          for (const row of rows) row.line.hidden = Object.keys(FILTERS).some((f) => wanted[f] && row.values[f] !== wanted[f]);
        });
        bar.append(button);
      }
      return bar;
    });
    (table.closest(".table-wrapper") ?? table).before(...bars);
  }
});
