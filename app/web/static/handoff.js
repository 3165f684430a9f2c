// Runs once for the line above the box (Gradio's js_on_load): to a person, back to the machine, an address is left.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-person]");
  if (button) trigger("person", { act: button.dataset.person, email: "" });
});
// A person may join unasked: look once a minute while the page is seen, and when it is seen again.
const look = () => { if (!document.hidden && location.hash) trigger("look", {}); };
setInterval(look, 60_000);
document.addEventListener("visibilitychange", look);
element.addEventListener("submit", (event) => {
  event.preventDefault();
  trigger("person", { act: "ask", email: event.target.elements.email.value });
});
