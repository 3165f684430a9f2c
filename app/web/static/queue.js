// The agents' pages: redraws the changed parts every two seconds, and sends the agent's actions.
"use strict";

const PERIOD_MS = 2000;
const problem = document.getElementById("wd-problem");
const { rows, case: home } = document.body.dataset;

// An unchanged part is not redrawn, so it keeps typed text, open sources and the focus.
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

// An unsent answer is kept when the case is closed (then read-only) and during a new sign-in.
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

// Only new messages are added, so sources that the agent opened in earlier messages stay open.
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
  if (now.case) window.location.assign(now.case); // the conversation continues as another case
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

// Insert a text below the typed text. The agent can correct it before sending.
function insert(text) {
  const box = document.getElementById("wd-answer");
  box.value = box.value.trim() && !box.value.startsWith("/") ? `${box.value}\n\n${text}` : text;
  document.getElementById("wd-faq").hidden = true;
  box.focus();
}

// After "/", list the FAQ pairs that contain the typed words.
async function search(box) {
  const list = document.getElementById("wd-faq");
  const query = box.value.slice(1);
  const found = box.value.startsWith("/") ? await fetch(`/admin/queue/faq?${new URLSearchParams({ query })}`) : null;
  if (box.value.slice(1) !== query) return; // the text has changed meanwhile
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
