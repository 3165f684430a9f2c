// The agents' pages: draws what changed every two seconds, and sends what the agent does.
"use strict";

const PERIOD_MS = 2000;
const problem = document.getElementById("wd-problem");
const { rows, case: home } = document.body.dataset;

// An unchanged part stays as it is, so that typed text, open sources and the focus survive.
const drawn = {};
function draw(id, html) {
  if (drawn[id] === html) return;
  const first = drawn[id] === undefined;
  const typed = id === "wd-controls" ? unsent(first) : "";
  const { id: focused } = document.activeElement ?? {};
  const at = document.activeElement?.getAttribute("href");
  drawn[id] = html;
  document.getElementById(id).innerHTML = html;
  if (at) document.getElementById(id).querySelector(`a[href="${CSS.escape(at)}"]`)?.focus();
  if (typed) keep(typed);
  if (id === "wd-controls" && (!first || focused === "wd-answer")) document.getElementById("wd-answer")?.focus();
}

// A half-written answer survives the end of the case (read-only then) and a new sign-in.
function unsent(first) {
  const stored = first ? sessionStorage.getItem(home) : "";
  if (first) sessionStorage.removeItem(home);
  return (document.getElementById("wd-answer") ?? document.getElementById("wd-unsent"))?.value || stored;
}
function keep(typed) {
  const box = document.getElementById("wd-answer");
  if (box) box.value = typed;
  else document.getElementById("wd-controls").append(Object.assign(document.createElement("textarea"), { id: "wd-unsent", value: typed, readOnly: true, ariaLabel: turns.dataset.unsent, title: turns.dataset.unsent }));
}

// Messages are only ever added; those that are there keep what the agent opened in them.
const turns = document.getElementById("wd-turns");
function drawTurns(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const added = [...fresh.content.children].slice(turns.children.length);
  if (!added.length) return;
  turns.append(...added);
  window.scrollTo({ top: document.body.scrollHeight });
}

function show(now) {
  if (now.case) window.location.assign(now.case); // it goes on under another number
  else if (now.text) insert(now.text);
  else if (rows) {
    draw("wd-rows", now.rows);
    showWaiting(now.waiting);
    document.getElementById("wd-news").textContent = document.title;
  } else {
    drawTurns(now.turns);
    draw("wd-controls", now.controls);
  }
  showTimes();
}

async function tried(path, body) {
  const options = body && { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  try {
    const response = await fetch(path, options);
    if (response.status === 401) {
      if (!rows) sessionStorage.setItem(home, body?.text || unsent(false));
      window.location.assign(`/admin/login?next=${encodeURIComponent(window.location.pathname)}`);
    }
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
  box.value = "";
  const sent = await tried(`${home}/answer`, { text });
  box.disabled = false;
  if (!sent) keep(text);
  box.focus();
}

// Below what is there: an agent corrects it before it is sent.
function insert(text) {
  const box = document.getElementById("wd-answer");
  box.value = box.value.trim() && !box.value.startsWith("/") ? `${box.value}\n\n${text}` : text;
  document.getElementById("wd-faq").hidden = true;
  box.focus();
}

// "/" and some words: the FAQ that has them.
async function search(box) {
  const list = document.getElementById("wd-faq");
  const query = box.value.slice(1);
  const found = box.value.startsWith("/") ? await fetch(`/admin/queue/faq?${new URLSearchParams({ query })}`) : null;
  if (box.value.slice(1) !== query) return; // more was typed
  const pairs = found?.ok ? await found.json() : [];
  list.replaceChildren(...pairs.map((pair) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: pair.question, title: pair.answer });
    button.addEventListener("click", () => insert(pair.answer));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  list.hidden = !pairs.length;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("#wd-controls button[data-act]");
  if (!button || (button.dataset.sure && !window.confirm(button.dataset.sure))) return;
  tried(`${home}/${button.dataset.act}`, {});
});
document.addEventListener("input", (event) => {
  if (event.target.id === "wd-answer") search(event.target);
});
document.addEventListener("submit", (event) => {
  if (event.target.dataset.act !== "answer") return;
  event.preventDefault();
  answer(event.target);
});
document.addEventListener("keydown", (event) => {
  if (event.target.id !== "wd-answer" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  const first = document.querySelector("#wd-faq:not([hidden]) button");
  if (first) first.click();
  else answer(event.target.form);
});

async function follow() {
  await tried(rows ?? `${home}/now`);
  window.setTimeout(follow, PERIOD_MS);
}
follow();
