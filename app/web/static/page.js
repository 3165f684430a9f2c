// Runs once for the chat page: keeps the newest words in view, labels Gradio's own controls, closes the drawer.
const label = () => {
  const words = document.querySelector(".wd-hint")?.dataset;
  if (!words) return; // they come with the first answer of the server
  document.documentElement.lang = words.language;
  document.querySelector("#wd-box textarea")?.setAttribute("aria-label", words.question);
  for (const [name, said] of [["submit-button", words.send], ["stop-button", words.stop]]) {
    const button = document.querySelector(`#wd-box .${name}`);
    if (button && button.ariaLabel !== said) { button.ariaLabel = said; button.title = said; }
  }
};

const start = () => {
  const scroller = document.querySelector("#wd-scroll");
  const foot = document.querySelector("#wd-foot");
  if (!scroller || !foot) { requestAnimationFrame(start); return; } // Gradio mounts the parts one by one
  let follow = true;
  let asking = false;
  scroller.addEventListener("scroll", () => {
    follow = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 120;
  }, { passive: true });
  new MutationObserver(() => {
    const live = document.querySelector("#wd-live article, #wd-live .wd-error") !== null;
    if (live && !asking) follow = true; // a question was sent: show it, wherever the reader was
    asking = live;
    if (follow) scroller.scrollTop = scroller.scrollHeight;
  }).observe(scroller, { childList: true, subtree: true, characterData: true });
  new MutationObserver(label).observe(foot, { childList: true, subtree: true });
  label();
};
start();

const closeDrawer = () => document.querySelector("#wd-app")?.classList.remove("wd-nav-open");
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrawer(); });
document.addEventListener("click", (event) => {
  if (!event.target.closest("#wd-side, .wd-header")) closeDrawer();
});
// The open conversation's id stands in the address after "#"; writing it ourselves raises no hashchange.
window.addEventListener("hashchange", () => location.reload());
