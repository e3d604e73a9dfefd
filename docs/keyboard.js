// What is wider than its place scrolls by keyboard too: tables, which Material wraps when it has loaded, formulas, code.
"use strict";
addEventListener("load", () => {
  const called = (region) => {
    const heads = [...region.querySelectorAll("th")].map((cell) => cell.textContent.trim()).filter(Boolean);
    return heads.length ? "Table: " + heads.slice(0, 3).join(", ") : region.matches("code") ? "Code" : "Formula";
  };
  const look = () => {
    for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .formula, pre > code")) {
      if (region.scrollWidth <= region.clientWidth) {
        for (const name of ["tabindex", "role", "aria-label"]) region.removeAttribute(name);
        continue;
      }
      region.tabIndex = 0;
      region.setAttribute("role", "region");
      region.setAttribute("aria-label", called(region));
    }
  };
  look();
  addEventListener("resize", look);
});
