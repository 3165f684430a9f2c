// The agents' pages: draws what changed every two seconds, and sends what the agent does.
"use strict";

const PERIOD_MS = 2000;
const problem = document.getElementById("wd-problem");
const { rows, case: home } = document.body.dataset;
const title = document.title;

// An unchanged part stays as it is, so that typed text, open sources and the focus survive.
const drawn = {};
function draw(id, html) {
  if (drawn[id] === html) return;
  const first = drawn[id] === undefined;
  drawn[id] = html;
  document.getElementById(id).innerHTML = html;
  if (id === "wd-controls" && !first) document.getElementById("wd-answer")?.focus();
}

// Messages are only ever added; those that are there keep what the agent opened in them.
const turns = document.getElementById("wd-turns");
function drawTurns(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const added = [...fresh.content.children].slice(turns.children.length);
  if (!added.length) return;
  turns.append(...added);
  showTimes();
  window.scrollTo({ top: document.body.scrollHeight });
}

function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    time.textContent = moment.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
  }
}

function show(now) {
  if (rows) {
    draw("wd-rows", now.rows);
    document.title = now.waiting ? `(${now.waiting}) ${title}` : title;
  } else {
    drawTurns(now.turns);
    draw("wd-controls", now.controls);
  }
}

async function tried(path, body) {
  const options = body && { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  try {
    const response = await fetch(path, options);
    if (response.status === 401) window.location.assign("/admin/login");
    const now = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(now.error ?? problem.dataset.broken);
    problem.textContent = "";
    show(now);
    return true;
  } catch (error) {
    problem.textContent = error instanceof TypeError ? problem.dataset.broken : error.message;
    return false;
  }
}

async function answer(form) {
  const box = form.elements.text;
  const text = box.value;
  if (!text.trim() || box.disabled) return;
  box.disabled = true;
  const sent = await tried(`${home}/answer`, { text });
  box.disabled = false;
  if (sent) box.value = "";
  box.focus();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("#wd-controls button[data-act]");
  if (button) tried(`${home}/${button.dataset.act}`, {});
});
document.addEventListener("submit", (event) => {
  if (event.target.dataset.act !== "answer") return;
  event.preventDefault();
  answer(event.target);
});
document.addEventListener("keydown", (event) => {
  if (event.target.id !== "wd-answer" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  answer(event.target.form);
});

async function follow() {
  await tried(rows ?? `${home}/now`);
  window.setTimeout(follow, PERIOD_MS);
}
showTimes();
follow();
