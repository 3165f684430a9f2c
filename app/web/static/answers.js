// The actions of an answer's buttons, in the chat page and in the widget. Loaded before chat.js and widget_page.js.
// word: name of a data attribute of the place. It contains a text in the page's language.
const say = (place, word) => {
  const said = place.querySelector(".wd-said");
  const words = said.dataset[word] ?? "";
  said.textContent = words;
  setTimeout(() => { if (said.textContent === words) said.textContent = ""; }, 4000);
};

const press = (button) => {
  const place = button.closest("[data-message]");
  const on = button.getAttribute("aria-pressed") !== "true";
  for (const other of place.querySelectorAll("[data-act=feedback]"))
    other.setAttribute("aria-pressed", String(on && other === button));
  const value = on ? button.dataset.value : "none";
  place.querySelector("form").hidden = value !== "down";
  if (value === "down") place.querySelector("input").focus();
  return value;
};

// The reason that the reader chose, and the text that the reader wrote.
const reasonOf = ({ submitter, target }) => [submitter?.value, target.reason.value].filter(Boolean).join(": ");

const showSource = (button) => {
  const source = button.closest(".wd-answer").querySelector(`.wd-citation[data-source="${button.dataset.source}"]`);
  if (!source) return;
  source.open = true;
  source.querySelector("summary").focus({ preventScroll: true });
  source.scrollIntoView({ block: "nearest", behavior: "smooth" });
};

const copy = (button) => {
  const place = button.closest("[data-message]");
  const text = button.closest(".wd-answer").querySelector(".wd-text").innerText;
  const copied = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error());
  copied.then(() => say(place, "copied"), () => say(place, "failed"));
};
