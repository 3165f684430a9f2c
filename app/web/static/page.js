// Runs once for the chat page: keeps the answer's beginning in view, labels Gradio's own controls, closes the drawer.
const label = () => {
  const words = document.querySelector(".wd-hint")?.dataset;
  if (!words) return; // they come with the first answer of the server
  document.querySelector("#wd-box textarea")?.setAttribute("aria-label", words.question);
  for (const [name, said] of [["submit-button", words.send], ["stop-button", words.stop]]) {
    const button = document.querySelector(`#wd-box .${name}`);
    if (button && button.ariaLabel !== said) { button.ariaLabel = said; button.title = said; }
  }
};

// What a screen reader is told: that an answer is on its way, and the whole answer when it has ended.
const speak = (words) => {
  const region = document.querySelector("#wd-spoken");
  if (region) region.textContent = words;
};

const start = () => {
  const scroller = document.querySelector("#wd-scroll");
  const foot = document.querySelector("#wd-foot");
  if (!scroller || !foot) { requestAnimationFrame(start); return; } // Gradio mounts the parts one by one
  let asking = false;
  let conversation; // whose end was shown
  let top = null; // where the reader was taken when the question was sent, until he scrolls himself
  for (const act of ["wheel", "touchmove", "pointerdown", "keydown"])
    scroller.addEventListener(act, () => { top = null; }, { passive: true });
  // The question goes to the top, with as much room below it as that takes: so the answer's beginning stays where it is
  // while the answer grows.
  const hold = () => {
    const question = [...scroller.querySelectorAll(".wd-question")].pop();
    if (!question) { scroller.style.removeProperty("--wd-room"); return; }
    const parts = [...scroller.children].map((part) => part.getBoundingClientRect());
    const used = Math.max(...parts.filter((part) => part.height).map((part) => part.bottom)) - question.getBoundingClientRect().top;
    scroller.style.setProperty("--wd-room", `${Math.max(0, scroller.clientHeight - used - 40)}px`);
    if (top === null) return;
    top = scroller.scrollTop + question.getBoundingClientRect().top - scroller.getBoundingClientRect().top - 16;
    scroller.scrollTop = top;
  };
  new MutationObserver(() => {
    showTimes(scroller);
    const live = document.querySelector("#wd-live .wd-question, #wd-live .wd-error");
    if (live && !asking) {
      top = 0;
      speak(document.querySelector("#wd-live .wd-waiting")?.innerText ?? live.innerText);
    }
    if (!live && asking) {
      conversation = location.hash || null; // it may have its address only now
      speak([...document.querySelectorAll("#wd-transcript .wd-text")].pop()?.innerText ?? "");
    }
    if (live || conversation === null || conversation === location.hash) hold();
    else {
      conversation = location.hash; // a conversation was opened: show its end
      scroller.style.removeProperty("--wd-room");
      scroller.scrollTop = scroller.scrollHeight;
    }
    asking = live !== null;
  }).observe(scroller, { childList: true, subtree: true, characterData: true });
  new MutationObserver(label).observe(foot, { childList: true, subtree: true });
  label();
};
start();

// A person may join unasked: look once a minute while the page is seen, and when it is seen again.
const look = () => { if (!document.hidden && location.hash) trigger("look", {}); };
setInterval(look, 60_000);
document.addEventListener("visibilitychange", look);
const closeDrawer = () => document.querySelector("#wd-app")?.classList.remove("wd-nav-open");
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrawer(); });
document.addEventListener("click", (event) => {
  if (!event.target.closest("#wd-side, .wd-header")) closeDrawer();
});
whileTyping("#wd-box textarea", async (text) => {
  if (document.querySelector(".wd-hint")?.dataset.typing === undefined) return; // the desk does not want it
  const body = JSON.stringify({ text, conversation_id: location.hash.slice(1) });
  await fetch("/typing", { method: "POST", headers: { "content-type": "application/json" }, body, keepalive: true });
});
// The open conversation's id stands in the address after "#"; writing it ourselves raises no hashchange.
window.addEventListener("hashchange", () => location.reload());
