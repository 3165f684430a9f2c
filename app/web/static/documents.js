// The admin's page of documents: uploads one file after another, shows how far each is, forgets documents on request.
"use strict";

const STAGES = { reading: "reading", embedding: "indexing", encoding: "the model reads it" };

async function follow(response, show) {
  if (!response.ok) throw new Error((await response.text()).trim() || `error ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection broke off: what was finished is kept");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const event of lines.map((line) => JSON.parse(line))) {
      if (event.error) throw new Error(event.error.message);
      if (event.result) return event.result;
      show(`${STAGES[event.stage] ?? event.stage} ${event.done} of ${event.total}`);
    }
  }
}

async function upload(event) {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  const collection = document.getElementById("collection").value.trim();
  button.disabled = true;
  let failed = 0;
  for (const file of document.getElementById("files").files) {
    const line = document.createElement("li");
    const show = (text) => { line.textContent = `${file.name}: ${text}`; };
    document.getElementById("progress").append(line);
    show("uploading");
    try {
      const query = new URLSearchParams({ name: file.name, collection });
      const response = await fetch(`/admin/documents/upload?${query}`, { method: "POST", body: file });
      const report = await follow(response, show);
      const warnings = report.warnings.map((warning) => warning.reason).join("; ");
      show(report.unchanged ? "unchanged" : `in, ${report.passages} passages${warnings ? ` (${warnings})` : ""}`);
      line.className = "wd-done";
    } catch (error) {
      failed += 1;
      show(error.message.startsWith(`${file.name}: `) ? error.message.slice(file.name.length + 2) : error.message);
      line.className = "wd-error";
    }
  }
  button.disabled = false;
  form.reset();
  if (!failed) window.setTimeout(() => window.location.reload(), 1500);
}

async function forget(button) {
  const name = button.dataset.document;
  if (!window.confirm(`Forget ${name}? Its text, vectors, quotations and encoded passages are removed.`)) return;
  button.disabled = true;
  button.textContent = "Forgetting";
  try {
    const body = JSON.stringify({ document: name });
    await follow(await fetch("/admin/documents/forget", { method: "POST", body, headers: { "content-type": "application/json" } }), () => {});
    window.location.reload();
  } catch (error) {
    button.textContent = error.message;
  }
}

document.getElementById("upload").addEventListener("submit", upload);
for (const button of document.querySelectorAll(".wd-forget")) button.addEventListener("click", () => forget(button));
