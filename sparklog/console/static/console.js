// Keys, a limit of the live tail, and SQL sent with Ctrl-Enter, which htmx lacks. Every page also works without scripts.
"use strict";

const TAIL_ROWS_MAX = 500;

function isTyping(element) {
  return element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement;
}

document.addEventListener("keydown", (event) => {
  const focused = document.activeElement;
  if (event.key === "/" && !isTyping(focused) && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === "Escape" && isTyping(focused)) {
    focused.blur();
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && focused instanceof HTMLTextAreaElement) {
    event.preventDefault();
    focused.form.querySelector("[data-run]").click();
  }
});

// A tail that runs for hours must not fill the browser's memory.
document.addEventListener("htmx:afterSettle", () => {
  const rows = document.querySelector("tbody[data-tail]");
  while (rows && rows.rows.length > TAIL_ROWS_MAX) {
    rows.deleteRow(-1);
  }
});

// Inserts a topic's name at the cursor.
document.addEventListener("click", (event) => {
  const name = event.target instanceof Element ? event.target.closest("[data-insert]") : null;
  const area = document.querySelector("textarea[data-sql]");
  if (name && area) {
    area.setRangeText(name.dataset.insert, area.selectionStart, area.selectionEnd, "end");
    area.focus();
  }
});
