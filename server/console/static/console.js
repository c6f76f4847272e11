// Comfort only: every page works without it.
for (const all of document.querySelectorAll("[data-all]")) {
  const boxes = [...all.form.elements].filter((e) => e.name === all.dataset.all);
  const sync = () => {
    const ticked = boxes.filter((b) => b.checked).length;
    all.checked = ticked === boxes.length;
    all.indeterminate = ticked > 0 && !all.checked;
  };
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    all.indeterminate = false;
  });
  for (const box of boxes) box.addEventListener("change", sync);
}

// "/" goes to the search field, as it does elsewhere.
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  const field = document.querySelector("[data-slash]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey || !field) return;
  event.preventDefault();
  field.focus();
});
