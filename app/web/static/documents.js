// The admins' page of documents: uploads files one by one, reads synchronised folders, deletes documents, shows the
// results, and redraws the changed parts.
"use strict";

const redrawn = () => redraw([".wd-facts", "#folders", "#listed"]);
const part = (id) => document.getElementById(id);
const reason = (error) => (error instanceof TypeError ? words("broken") : error.message); // fetch gives no better reason

function say(id, text, failed = false) {
  part(id).textContent = text;
  part(id).classList.toggle("wd-error", failed);
  part(id).classList.toggle("wd-done", !failed);
}

async function uploadOne(file, collection, line) {
  const show = (text) => { line.textContent = `${file.name}: ${text}`; };
  try {
    if (file.size > WORDS.most) throw new Error(words("large"));
    show(words("uploading"));
    const query = new URLSearchParams({ name: file.name, collection });
    const response = await fetch(`/admin/documents/upload?${query}`, { method: "POST", body: file });
    const report = await follow(response, show);
    const warnings = report.warnings.map((warning) => warning.reason).join("; ");
    const done = report.unchanged ? words("unchanged") : words("done", { passages: report.passages });
    show(done + (warnings && words("warnings", { warnings })));
    line.className = "wd-done";
    return true;
  } catch (error) {
    const text = reason(error);
    show(text.startsWith(`${file.name}: `) ? text.slice(file.name.length + 2) : text);
    line.className = "wd-error";
    return false;
  }
}

async function upload(event) {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  const collection = part("collection").value.trim();
  const lines = [...part("files").files].map((file) => {
    const line = document.createElement("li");
    line.textContent = `${file.name}: ${words("waiting")}`;
    return [file, line];
  });
  part("progress").replaceChildren(...lines.map(([, line]) => line));
  say("uploaded", "");
  button.disabled = true;
  let done = 0;
  for (const [file, line] of lines) done += await uploadOne(file, collection, line);
  say("uploaded", words(done === lines.length ? "all" : "some", { done, total: lines.length }), done < lines.length);
  button.disabled = false;
  part("files").value = "";
  await redrawn();
}

async function read(folder, path, body) {
  const show = (text) => say("synchronised", `${folder}: ${text}`);
  show(words("starting"));
  const soon = window.setTimeout(redrawn, 2000); // then the page has a button that stops the run
  try {
    const result = await follow(await send(path, body), show);
    const left = result.num_files ? ` ${words("left_out", { number: result.num_files })}` : "";
    if (result.problem) say("synchronised", `${folder}: ${result.problem}`, true);
    else say("synchronised", words("synced", { folder, ...result }) + left);
    return true;
  } catch (error) {
    say("synchronised", `${folder}: ${reason(error)}`, true);
    return false;
  } finally {
    window.clearTimeout(soon);
    await redrawn();
  }
}

const isWebsite = () => /^https?:\/\//i.test(part("folder").value.trim());

// A website has more fields, and is read once a day by default.
function adapt() {
  const changed = part("site").hidden === isWebsite();
  part("site").hidden = part("try").hidden = !isWebsite();
  part("pages").disabled = !isWebsite();
  if (changed) part("unit").value = isWebsite() ? 1440 : 60;
}

function wanted() {
  const every_minutes = Number(part("every").value) * Number(part("unit").value);
  const site = { pages: Number(part("pages").value), include: part("include").value, exclude: part("exclude").value };
  return { folder: part("folder").value.trim(), collection: part("into").value.trim(), every_minutes, ...site };
}

async function tryOut() {
  const list = part("tried");
  const line = (text, inner = []) => {
    const item = document.createElement("li");
    item.textContent = text;
    if (inner.length) item.append(document.createElement("ul"));
    item.lastElementChild?.append(...inner.map((one) => line(one)));
    return item;
  };
  part("try").disabled = true;
  try {
    const show = (text) => list.replaceChildren(line(text));
    show(words("starting"));
    const reasons = await follow(await send("/admin/documents/folders/try", wanted()), show);
    list.replaceChildren(line(words("tried")), ...reasons.map((one) => line(`${one.words}: ${one.number}`, one.examples)));
  } catch (error) {
    list.replaceChildren(line(reason(error)));
  }
  part("try").disabled = false;
}

async function synchronise(event) {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  const source = wanted();
  button.disabled = true;
  if (await read(source.folder, "/admin/documents/folders", source)) {
    form.reset();
    part("tried").replaceChildren();
    adapt();
    part("folder-form").open = false;
  }
  button.disabled = false;
}

function change(button) {
  const minutes = Number(button.dataset.minutes);
  const unit = [1440, 60, 1].find((one) => minutes % one === 0);
  part("folder").value = button.dataset.folder;
  part("into").value = button.dataset.collection;
  for (const name of ["pages", "include", "exclude"]) part(name).value = button.dataset[name];
  adapt();
  part("every").value = minutes / unit;
  part("unit").value = unit;
  part("folder-form").open = true;
  part("every").focus();
}

// Send a request and show its result in the element `id`.
async function tell(id, path, body, said, before = "") {
  try {
    const done = await follow(await send(path, body), () => {});
    say(id, said(done));
  } catch (error) {
    say(id, before + reason(error), true);
  }
  await redrawn();
}

async function end(button) {
  const { folder } = button.dataset;
  if (!window.confirm(words("end", { folder }))) return;
  await tell("synchronised", "/admin/documents/folders/remove", { folder }, () => words("ended", { folder }), `${folder}: `);
}

async function forgetAt(button, kind, body, said) {
  button.disabled = true;
  button.textContent = words("forgetting");
  await tell("deleted", `/admin/documents/${kind}`, body, said);
}

async function forgetCollection(button) {
  const { collection, name, documents } = button.dataset;
  if (!window.confirm(words("collection", { name, documents }))) return;
  await forgetAt(button, "collections/forget", { collection }, (done) => words("forgotten", { name, documents: done.documents }));
}

async function forget(button) {
  const name = button.dataset.document;
  const folders = [...document.querySelectorAll("#folders [data-act=run]")].map((one) => one.dataset.folder);
  const back = folders.some((folder) => name.startsWith(`${folder}/`)) ? `\n${words("comes_back")}` : "";
  if (window.confirm(words("forget", { name }) + back)) await forgetAt(button, "forget", { document: name }, () => "");
}

async function stop({ dataset: { folder } }) {
  await tell("synchronised", "/admin/documents/folders/stop", { folder }, () => words("stopping", { folder }));
}

async function lose({ dataset: { folder } }) {
  if (!window.confirm(words("lose", { folder }))) return;
  await read(folder, "/admin/documents/folders/run", { folder, accepts_losses: true });
}

const ACTS = {
  run: (button) => read(button.dataset.folder, "/admin/documents/folders/run", { folder: button.dataset.folder }),
  stop, lose, change, end, forget, "forget-collection": forgetCollection,
};
part("upload").addEventListener("submit", upload);
part("synchronise").addEventListener("submit", synchronise);
part("folder").addEventListener("input", adapt);
part("try").addEventListener("click", tryOut);
adapt();
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (button) ACTS[button.dataset.act](button);
});
