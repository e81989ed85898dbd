// The console's one script: what is marked as live is read anew when the server tells of a change
// (server-sent events), and every few seconds while it can't. Everything works without it. No part
// is replaced that somebody is just using. Escape closes the question that a button asks.
"use strict";

// A sign-in link has its code behind the #, which is not sent. It is removed from the history. The
// next page asks before it signs in: the link may be somebody else's.
(() => {
  const form = document.getElementById("sign-in");
  const code = new URLSearchParams(location.hash.slice(1)).get("once");
  if (!form || !code || !code.startsWith("pgbeat_once_")) return;
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.token.value = code;
  form.action += "/link";
  form.requestSubmit();
})();

// A change of many jobs continues by itself.
(() => {
  const form = document.querySelector("form[data-go-on]");
  if (form) setTimeout(() => form.requestSubmit(form.querySelector("[name=sure]")), 50);
})();

// Times are written in UTC, or in the browser's time zone if the viewer wants that. `localized`
// rewrites what the server sends.
const localized = (() => {
  const KEY = "pgbeat-local-time";
  const UTC = /\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)? UTC\b/g;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const button = document.getElementById("zone");
  let isLocal = false;
  try {
    isLocal = localStorage.getItem(KEY) === "yes";
  } catch {}  // storage may be forbidden
  const two = (number) => String(number).padStart(2, "0");
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const said = (text) =>
    text.replace(UTC, (whole, date, minutes, seconds = "") => {
      const at = new Date(`${date}T${minutes}${seconds}Z`);
      return isNaN(at) ? whole : `${day(at)} ${clock(at)}${seconds} local time`;
    });

  const rewrite = (root) => {
    if (!isLocal) return root;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.parentElement?.closest("pre, code, textarea") && node.data.includes("UTC"))
        node.data = said(node.data);
    }
    for (const each of root.querySelectorAll("[title*=UTC]")) each.title = said(each.title);
    for (const each of root.querySelectorAll("[data-at]")) {
      const at = new Date(each.dataset.at);
      each.textContent = each.textContent.includes(":")
        ? clock(at)
        : at.toLocaleDateString("en", { weekday: "short", day: "2-digit" });
    }
    return root;
  };

  if (button) {
    button.hidden = false;
    button.setAttribute("aria-pressed", String(isLocal));
    if (isLocal) document.getElementById("zone-said").textContent = `Times are in ${zone}`;
    button.addEventListener("click", () => {
      try {
        localStorage.setItem(KEY, isLocal ? "no" : "yes");
      } catch {
        return;
      }
      location.reload();
    });
  }
  rewrite(document.getElementById("main"));
  return rewrite;
})();

// On a phone the navigation is wider than the window: the current page's link is in sight.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

addEventListener("keydown", (event) => {
  const asked = event.key === "Escape" && document.querySelector("details.sure[open]");
  if (!asked) return;
  asked.open = false;
  asked.querySelector("summary").focus();
});

(() => {
  const toggle = document.getElementById("live");
  const parts = [...document.querySelectorAll("[data-live]")];
  const changes = document.body.dataset.changes;
  if (!toggle || !parts.length) return;
  // Milliseconds: between two readings, at least; to the next one though nothing was told, for
  // times that are shown pass; to the next stream after one that was refused.
  const least = 1000 * Math.min(...parts.map((each) => Number(each.dataset.every || 5)));
  const SLOW = 20_000, REFUSED = 60_000;
  const isPressed = () => toggle.getAttribute("aria-pressed") === "true";
  const say = (words) => {
    if (isPressed()) toggle.textContent = words;
  };

  const isInUse = (part) => {
    const selection = document.getSelection();
    const hasSelection =
      selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    return (
      hasSelection ||
      part.contains(document.activeElement) ||
      part.querySelector("details.sure[open], details.more[open], .tick input:checked")
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
  const read = async () => {
    try {
      const answer = await fetch(location.href, {
        headers: { Accept: "text/html" },
        credentials: "same-origin",
      });
      if (answer.redirected) {  // to a sign-in page
        location.reload();
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && !isInUse(part)) replace(part, localized(fresh));
      }
      failures = 0;
      say("Live");
    } catch {
      failures += 1;
      say("Not live: it does not answer");
    }
  };

  // -- when it is read

  const isWanted = () => !document.hidden && isPressed();
  const isTold = () => stream?.readyState === EventSource.OPEN && !failures;
  let stream = null;
  let timer = 0;
  let readAt = performance.now();
  let isReading = false, isStale = false;

  const wait = (milliseconds) => {
    clearTimeout(timer);
    timer = setTimeout(look, milliseconds);
  };
  const look = async () => {
    isReading = true;
    isStale = false;
    await read();
    isReading = false;
    readAt = performance.now();
    if (!isWanted()) return;
    wait(isStale ? least : isTold() ? SLOW : Math.min(least * 2 ** failures, 60_000));
  };
  const changed = () => {
    // Not all pages at the same moment.
    const soon = 50 + 150 * Math.random();
    if (isReading) isStale = true;
    else wait(Math.max(soon, readAt + least - performance.now()));
  };

  // Browsers open few connections to a host: a tab that nobody sees has none.
  const listen = () => {
    if (!changes || stream || !isWanted()) return;
    stream = new EventSource(changes);
    stream.addEventListener("changed", changed);
    stream.addEventListener("error", () => {
      if (stream?.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(listen, REFUSED);
      }
      if (isWanted() && !isReading) wait(least);
    });
  };
  const hush = () => {
    stream?.close();
    stream = null;
    clearTimeout(timer);
  };
  const settle = () => {
    if (!isWanted()) return hush();
    listen();
    if (!isReading) wait(least);
  };

  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const wasPressed = isPressed();
    toggle.setAttribute("aria-pressed", String(!wasPressed));
    toggle.textContent = wasPressed ? "Not live" : "Live";
    settle();
  });
  document.addEventListener("visibilitychange", settle);
  addEventListener("pagehide", hush);
  addEventListener("pageshow", settle);
  settle();
})();

// Dragging over the bars of a load picks a time: the list of the jobs that were created in it.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  let drag = null;
  const step = (event) => {
    const box = drag.svg.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    return Math.max(0, Math.min(drag.points - 1, Math.floor(part * drag.points)));
  };
  addEventListener("pointerdown", (event) => {
    const svg = event.button === 0 && event.target.closest?.(".load svg.ends");
    if (!svg) return;
    const { brush, since, step: length, points } = svg.closest("[data-brush]").dataset;
    drag = { svg, brush, since: +since, length: +length, points: +points };
    drag.first = drag.last = step(event);
  });
  addEventListener("dragstart", (event) => drag && event.preventDefault());
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.last = step(event);
    if (drag.last !== drag.first && !drag.rect) {
      drag.rect = document.createElementNS(SVG, "rect");
      drag.rect.setAttribute("class", "brush");
      drag.rect.setAttribute("height", "100");
      drag.svg.append(drag.rect);
    }
    const [from, to] = [drag.first, drag.last].sort((a, b) => a - b);
    drag.rect?.setAttribute("x", (1000 * from) / drag.points);
    drag.rect?.setAttribute("width", (1000 * (to - from + 1)) / drag.points);
  });
  addEventListener("pointerup", () => {
    const done = drag;
    drag = null;
    if (!done?.rect) return;  // a click follows the link of its bar
    const [from, to] = [done.first, done.last].sort((a, b) => a - b);
    const stamp = (number) =>
      new Date(1000 * (done.since + number * done.length)).toISOString().slice(0, 16) + "Z";
    const where = new URL(done.brush, location.href);
    where.searchParams.set("from", stamp(from));
    where.searchParams.set("until", stamp(to + 1));
    location.assign(where);
  });
  addEventListener("pointercancel", () => {
    drag?.rect?.remove();
    drag = null;
  });
})();

// `/` goes to the page's search. Ctrl-K (or the link) finds anything by its name: what the page of
// that link lists is shown in a dialog, while somebody types.
(() => {
  const link = document.getElementById("find");
  let dialog, input, list, timer, asked = 0;
  const isTyping = () => document.activeElement?.matches("input, textarea, select");

  const build = () => {
    dialog = document.createElement("dialog");
    dialog.className = "palette";
    dialog.setAttribute("aria-label", "Find");
    input = document.createElement("input");
    list = document.createElement("ul");
    const set = (element, values) => {
      for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    };
    set(input, {
      role: "combobox", "aria-expanded": "true", "aria-controls": "found", "aria-label": "Find",
      "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: "200",
      placeholder: "A schedule, task, lane, job, page or action",
    });
    set(list, { id: "found", role: "listbox", "aria-label": "Found", class: "choices" });
    dialog.append(input, list);
    document.body.append(dialog);
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(read, 120);
    });
    dialog.addEventListener("keydown", steer);
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  };

  const options = () => [...list.querySelectorAll("[role=option]")];
  const choose = (option) => {
    for (const each of options()) each.setAttribute("aria-selected", String(each === option));
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  };
  const steer = (event) => {
    const all = options();
    const at = all.findIndex((each) => each.getAttribute("aria-selected") === "true");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && all.length) choose(all[(at + step + all.length) % all.length]);
    else if (event.key === "Enter" && at >= 0) all[at].querySelector("a").click();
    else return;
    event.preventDefault();
  };
  const read = async () => {
    const mine = ++asked;
    const where = new URL(link.href);
    where.searchParams.set("text", input.value);
    const answer = await fetch(where, { headers: { Accept: "text/html" } }).catch(() => null);
    if (mine !== asked || !answer?.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    list.replaceChildren(...(page.getElementById("choices")?.childNodes ?? []));
    list.querySelectorAll("li:not(.none)").forEach((each, number) => {
      each.id = `found-${number}`;
      each.setAttribute("role", "option");
      each.querySelector("a").tabIndex = -1;
    });
    choose(options()[0]);
  };
  const open = () => {
    if (!dialog) build();
    if (dialog.open) return;
    input.value = "";
    list.replaceChildren();
    dialog.showModal();
    input.focus();
    read();
  };

  link?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
  addEventListener("keydown", (event) => {
    if (link && event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      open();
    } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !isTyping()) {
      const field = document.querySelector("[role=search] input:not([type=hidden])");
      if (!field) return;
      event.preventDefault();
      field.focus();
      field.select();
    }
  });
})();

// A form that has a preview shows it while somebody writes; its buttons do so at once.
(() => {
  for (const form of document.querySelectorAll("form[data-preview]")) {
    const place = form.querySelector(".preview");
    let timer, asked = 0;
    const show = async (verb) => {
      const mine = ++asked;
      const body = new URLSearchParams(new FormData(form));
      body.set("do", verb);
      const answer = await fetch(form.dataset.preview, { method: "POST", body }).catch(() => null);
      if (mine !== asked || !answer?.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      place.replaceChildren(...page.body.childNodes);
    };
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(show, 350, "preview");
    });
    form.addEventListener("click", (event) => {
      const button = event.target.closest("button[name=do]");
      if (button?.value !== "preview" && button?.value !== "test") return;
      event.preventDefault();
      clearTimeout(timer);
      show(button.value);
    });
  }
})();
