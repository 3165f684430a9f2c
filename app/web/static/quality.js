// The agents' pages: saves, pins and deletes FAQ pairs, and shows the progress.
"use strict";

async function save(pair, show) {
  show(words("saving"));
  return follow(await send("/admin/faq", pair), show);
}

async function submit(event) {
  event.preventDefault();
  const form = event.target;
  const [button, outcome] = [form.querySelector("button"), document.getElementById("outcome")];
  const [line, answer] = outcome.children;
  const show = (text) => { line.textContent = text; };
  const value = (id) => document.getElementById(id).value;
  const pair = { question: value("question"), answer: value("answer"), wordings: value("wordings").split("\n") };
  if (form.dataset.id) pair.id = Number(form.dataset.id);
  button.disabled = true;
  outcome.hidden = false;
  answer.hidden = true;
  line.className = "";
  try {
    const saved = await save(pair, show);
    form.dataset.id = saved.id; // the next save changes this pair
    if (saved.problem) {
      line.className = "wd-error";
      show(`${words("unasked")} ${saved.problem}`);
    } else {
      show(words(saved.is_verbatim ? "verbatim" : "model"));
      answer.textContent = saved.answer;
      answer.hidden = false;
    }
    await redraw(["#pairs"], "/admin/faq");
  } catch (error) {
    line.className = "wd-error";
    show(error.message);
  }
  button.disabled = false;
}

async function pin(button) {
  const line = button.parentElement.querySelector("[role=status]");
  button.disabled = true;
  try {
    await save({ question: button.dataset.question, answer: button.dataset.answer }, (text) => { line.textContent = text; });
    line.textContent = words("pinned");
  } catch (error) {
    line.textContent = error.message;
    button.disabled = false;
  }
}

async function remove(button) {
  if (!window.confirm(words("delete"))) return;
  button.disabled = true;
  try {
    await follow(await send("/admin/faq/delete", { id: Number(button.dataset.delete) }), () => {});
    window.location.assign("/admin/faq");
  } catch (error) {
    button.textContent = error.message;
  }
}

document.getElementById("faq")?.addEventListener("submit", submit);
for (const button of document.querySelectorAll("[data-pin]")) button.addEventListener("click", () => pin(button));
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-delete]");
  if (button) remove(button);
});
