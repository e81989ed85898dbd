// The console's one script: what is marked as live is read anew every few seconds. Everything
// works without it. No part is replaced that somebody is just using.
"use strict";

(() => {
  const toggle = document.getElementById("live");
  const parts = [...document.querySelectorAll("[data-live]")];
  if (!toggle || !parts.length) return;
  const every = Math.min(...parts.map((each) => Number(each.dataset.every || 5)));
  const wasPressed = () => toggle.getAttribute("aria-pressed") === "true";
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    toggle.setAttribute("aria-pressed", String(!wasPressed()));
    toggle.textContent = wasPressed() ? "Live" : "Not live";
  });

  const isInUse = (part) => {
    const selection = document.getSelection();
    const hasSelection =
      selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    return (
      hasSelection ||
      part.contains(document.activeElement) ||
      part.querySelector("details.sure[open], details.more[open]")
    );
  };

  const replace = (part, fresh) => {
    // A traceback that was opened stays so.
    for (const before of part.querySelectorAll("details[id]")) {
      const after = fresh.querySelector(`#${CSS.escape(before.id)}`);
      if (after) after.open = before.open;
    }
    if (part.innerHTML !== fresh.innerHTML) part.replaceChildren(...fresh.childNodes);
  };

  let failures = 0;
  const look = async () => {
    if (document.hidden || !wasPressed()) return;
    try {
      const answer = await fetch(location.href, {
        headers: { Accept: "text/html" },
        credentials: "same-origin",
      });
      if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) {
        location.reload();
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && !isInUse(part)) replace(part, fresh);
      }
      failures = 0;
      toggle.textContent = "Live";
    } catch {
      failures += 1;
      toggle.textContent = "Not live: it does not answer";
    }
  };

  const again = async () => {
    await look();
    setTimeout(again, Math.min(every * 2 ** failures, 60) * 1000);
  };
  setTimeout(again, every * 1000);
})();
