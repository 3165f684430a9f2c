// For all admin pages: exact times, a question before what cannot be undone, and pages that draw themselves again.
"use strict";

function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!Number.isNaN(moment.valueOf()))
      time.title = moment.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
  }
}

document.addEventListener("submit", (event) => {
  const { sure } = event.submitter?.dataset ?? {};
  if (sure && !window.confirm(sure)) event.preventDefault();
});

// Only what has changed is drawn, so that a selection and the focus stay elsewhere.
const live = document.querySelector("main[data-live]");
let drawn = [...(live?.children ?? [])].map((part) => part.outerHTML);
async function redrawLive() {
  const response = await fetch(window.location.href).catch(() => null);
  if (!response?.ok) return; // the old numbers stay, and the next look may succeed
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = [...page.querySelector("main").children];
  const now = fresh.map((part) => part.outerHTML);
  if (fresh.length !== live.children.length) live.replaceChildren(...fresh);
  else fresh.forEach((part, at) => { if (now[at] !== drawn[at]) replace(live.children[at], part); });
  drawn = now;
  showTimes();
}
function replace(old, part) {
  const opened = [...old.querySelectorAll("details")].map((one) => one.open);
  part.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] ?? false; });
  old.replaceWith(part);
}

showTimes();
if (live) window.setInterval(redrawLive, 5000);
