// For all admin pages: shows times and the number of waiting customers, asks before actions that cannot be undone, and redraws live pages.
"use strict";

const since = new Intl.RelativeTimeFormat(document.documentElement.lang, { style: "short", numeric: "auto" });
function ago(moment) {
  const minutes = Math.round((moment - Date.now()) / 60_000);
  if (minutes > -60) return since.format(minutes, "minute");
  return minutes > -1440 ? since.format(Math.round(minutes / 60), "hour") : since.format(Math.round(minutes / 1440), "day");
}

// Fill in empty times. With data-ago, show how long ago the time was.
function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]:not([datetime=''])")) {
    const moment = new Date(time.dateTime);
    time.title = moment.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
    if (time.dataset.ago !== undefined) time.textContent = ago(moment);
    else time.textContent ||= time.title;
  }
}

// Show the number of waiting customers in the navigation and the title of every page.
const title = document.title;
function showWaiting(number) {
  document.getElementById("wd-waiting").textContent = number || "";
  document.title = number ? `(${number}) ${title}` : title;
}
async function countWaiting() {
  const response = await fetch("/admin/queue/waiting").catch(() => null);
  if (response?.ok) showWaiting((await response.json()).waiting);
}

document.addEventListener("submit", (event) => {
  const { sure } = event.submitter?.dataset ?? {};
  if (sure && !window.confirm(sure)) event.preventDefault();
});

// Redraw only the changed parts, so that other parts keep their selection and the focus.
const live = document.querySelector("main[data-live]");
let seen = [...(live?.children ?? [])].map((part) => part.outerHTML);
async function redrawLive() {
  const response = await fetch(window.location.href).catch(() => null);
  if (!response?.ok) return; // the old numbers stay; the next attempt may succeed
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = [...page.querySelector("main").children];
  const now = fresh.map((part) => part.outerHTML);
  if (fresh.length !== live.children.length) live.replaceChildren(...fresh);
  else fresh.forEach((part, at) => { if (now[at] !== seen[at]) replacePart(live.children[at], part); });
  seen = now;
  showTimes();
}
function replacePart(old, part) {
  const opened = [...old.querySelectorAll("details")].map((one) => one.open);
  part.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] ?? false; });
  old.replaceWith(part);
}

showTimes();
if (!document.body.dataset.rows) { // the queue's own page counts its rows
  countWaiting();
  window.setInterval(countWaiting, 15_000);
}
if (live) window.setInterval(redrawLive, 5000);
