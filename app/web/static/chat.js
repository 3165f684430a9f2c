// Runs once for each HTML part of the chat page (Gradio's js_on_load: element and trigger are given).
// Clicks are delegated, because the part's content is redrawn; all data comes from data-* attributes.
const app = () => document.querySelector("#wd-app");
const closeNav = () => app().classList.remove("wd-nav-open");
const focusBox = () => matchMedia("(hover: hover)").matches && document.querySelector("#wd-box textarea")?.focus({ preventScroll: true });

const beginRename = (item) => {
  const form = item.querySelector("form");
  item.querySelector(".wd-open").hidden = true;
  item.querySelector("details").open = false;
  form.hidden = false;
  form.title.focus();
  form.title.select();
};

const endRename = (form) => {
  if (form.hidden) return;
  form.hidden = true; // first: hiding removes the focus, which calls this function again
  form.closest("li").querySelector(".wd-open").hidden = false;
};

element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act], a[data-act]");
  if (!button) return;
  const act = button.dataset.act;
  if (act === "example") trigger("example", { text: button.dataset.text });
  if (act === "open" || act === "new") { trigger("open", { id: button.dataset.id ?? "" }); closeNav(); focusBox(); }
  if (act === "delete") trigger("remove", { id: button.dataset.id });
  if (act === "restore") trigger("restore", { id: button.dataset.id });
  if (act === "erase" && confirm(button.dataset.sure)) {
    const failed = () => alert(button.dataset.failed);
    fetch("/my-data/delete", { method: "POST" }).then((done) => { if (done.ok) location.assign("/"); else failed(); }, failed);
  }
  if (act === "rename") beginRename(button.closest("li"));
  if (act === "retry" || act === "edit") trigger(act, {});
  if (act === "feedback") {
    const place = button.closest("[data-message]");
    const value = press(button);
    trigger("verdict", { message: place.dataset.message, value, reason: "" });
    say(place, value === "none" ? "" : "thanks");
  }
  if (act === "person") trigger("person", { act: button.dataset.person, email: "" });
  if (act === "source") showSource(button);
  if (act === "copy") copy(button);
  if (act === "skip") {
    event.preventDefault(); // the part of the URL after "#" is the open conversation
    document.querySelector("#wd-box textarea")?.focus();
  }
  if (act === "menu") {
    const open = app().classList.toggle("wd-nav-open");
    if (open) document.querySelector("#wd-side button")?.focus();
  }
});

element.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.hasAttribute("action")) return; // the browser sends this form
  event.preventDefault();
  if (form.email) { trigger("person", { act: "ask", email: form.email.value }); return; }
  if (form.dataset.act === "rename") {
    trigger("rename", { id: form.closest("li").dataset.id, title: form.title.value });
    endRename(form);
    return;
  }
  const place = form.closest("[data-message]");
  trigger("verdict", { message: place.dataset.message, value: "down", reason: reasonOf(event) });
  form.hidden = true;
  say(place, "thanks");
});

element.addEventListener("focusout", (event) => {
  const form = event.target.closest("form.wd-rename");
  if (form) endRename(form);
});
element.addEventListener("keydown", (event) => {
  const form = event.target.closest("form.wd-rename");
  if (form && event.key === "Escape") { endRename(form); event.stopPropagation(); }
});

let typed; // timer: search starts after a pause in typing
element.addEventListener("input", (event) => {
  if (event.target.dataset.act !== "find") return;
  clearTimeout(typed);
  typed = setTimeout(() => trigger("find", { text: event.target.value }), 250);
});
