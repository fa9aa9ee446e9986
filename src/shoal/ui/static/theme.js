// Loaded before anything is painted: the theme that was chosen here, or else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("shoal-theme"); } catch { /* storage may be forbidden: then the system's */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
