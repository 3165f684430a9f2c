// For all admin pages: times, the number of waiting customers, a question before what cannot be undone, and pages that draw themselves again.
"use strict";

const since = new Intl.RelativeTimeFormat(document.documentElement.lang, { style: "short", numeric: "auto" });
function ago(moment) {
  const minutes = Math.round((moment - Date.now()) / 60_000);
  if (minutes > -60) return since.format(minutes, "minute");
  return minutes > -1440 ? since.format(Math.round(minutes / 60), "hour") : since.format(Math.round(minutes / 1440), "day");
}

// A time without words gets some: with data-ago how long ago it was.
function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]:not([datetime=''])")) {
    const moment = new Date(time.dateTime);
    time.title = moment.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
    if (time.dataset.ago !== undefined) time.textContent = ago(moment);
    else time.textContent ||= time.title;
  }
}

// The number of customers who wait, in the navigation and the title of every page.
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

// Only what has changed is drawn, so that a selection and the focus stay elsewhere.
const live = document.querySelector("main[data-live]");
let seen = [...(live?.children ?? [])].map((part) => part.outerHTML);
async function redrawLive() {
  const response = await fetch(window.location.href).catch(() => null);
  if (!response?.ok) return; // the old numbers stay, and the next look may succeed
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
