// Runs once for each HTML part of the chat page (Gradio's js_on_load: element and trigger are given).
// Clicks are delegated, because the part's content is redrawn; all data comes from data-* attributes.
// word: a data attribute of the place, which holds the words in the page's language.
const say = (place, word) => {
  const said = place.querySelector(".wd-said");
  const words = said.dataset[word] ?? "";
  said.textContent = words;
  setTimeout(() => { if (said.textContent === words) said.textContent = ""; }, 4000);
};
const app = () => document.querySelector("#wd-app");
const closeNav = () => app().classList.remove("wd-nav-open");
const focusBox = () => matchMedia("(hover: hover)").matches && document.querySelector("#wd-box textarea")?.focus({ preventScroll: true });

const press = (button) => {
  const place = button.closest("[data-message]");
  const on = button.getAttribute("aria-pressed") !== "true";
  for (const other of place.querySelectorAll("[data-act=feedback]"))
    other.setAttribute("aria-pressed", String(on && other === button));
  const value = on ? button.dataset.value : "none";
  trigger("verdict", { message: place.dataset.message, value, reason: "" });
  place.querySelector("form").hidden = value !== "down";
  if (value === "down") place.querySelector("input").focus();
  say(place, on ? "thanks" : "");
};

const confirmDelete = (button) => {
  if (button.classList.contains("wd-sure")) {
    trigger("remove", { id: button.dataset.id });
    return;
  }
  const title = button.title;
  button.classList.add("wd-sure");
  button.title = button.dataset.sure;
  button.setAttribute("aria-description", button.dataset.sure);
  setTimeout(() => { button.classList.remove("wd-sure"); button.title = title; }, 3000);
};

element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  const act = button.dataset.act;
  if (act === "example") trigger("example", { text: button.dataset.text });
  if (act === "open" || act === "new") { trigger("open", { id: button.dataset.id ?? "" }); closeNav(); focusBox(); }
  if (act === "delete") confirmDelete(button);
  if (act === "feedback") press(button);
  if (act === "copy") {
    const place = button.closest("[data-message]");
    const text = button.closest(".wd-answer").querySelector(".wd-text").innerText;
    navigator.clipboard?.writeText(text).then(() => say(place, "copied"), () => say(place, "failed"));
  }
  if (act === "menu") {
    const open = app().classList.toggle("wd-nav-open");
    if (open) document.querySelector("#wd-side button")?.focus();
  }
});

element.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  const place = form.closest("[data-message]");
  trigger("verdict", { message: place.dataset.message, value: "down", reason: form.reason.value });
  form.hidden = true;
  say(place, "thanks");
});
