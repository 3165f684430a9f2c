// The admin's page of documents: uploads one file after another, shows how far each is, forgets documents on request.
"use strict";

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
    show(words("uploading"));
    try {
      const query = new URLSearchParams({ name: file.name, collection });
      const response = await fetch(`/admin/documents/upload?${query}`, { method: "POST", body: file });
      const report = await follow(response, show);
      const warnings = report.warnings.map((warning) => warning.reason).join("; ");
      const done = report.unchanged ? words("unchanged") : words("done", { passages: report.passages });
      show(done + (warnings && words("warnings", { warnings })));
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
  if (!window.confirm(words("forget", { name }))) return;
  button.disabled = true;
  button.textContent = words("forgetting");
  try {
    await follow(await send("/admin/documents/forget", { document: name }), () => {});
    window.location.reload();
  } catch (error) {
    button.textContent = error.message;
  }
}

document.getElementById("upload").addEventListener("submit", upload);
for (const button of document.querySelectorAll(".wd-forget")) button.addEventListener("click", () => forget(button));
