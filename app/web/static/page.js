// Runs once for the chat page: keeps the start of the answer visible, labels Gradio's controls, closes the side list.
const label = () => {
  const words = document.querySelector(".wd-hint")?.dataset;
  if (!words) return; // the first response of the server contains them
  document.querySelector("#wd-box textarea")?.setAttribute("aria-label", words.question);
  for (const [name, said] of [["submit-button", words.send], ["stop-button", words.stop]]) {
    const button = document.querySelector(`#wd-box .${name}`);
    if (button && button.ariaLabel !== said) { button.ariaLabel = said; button.title = said; }
  }
};

// The text for screen readers: an answer is being written, then the whole answer.
const speak = (words) => {
  const region = document.querySelector("#wd-spoken");
  if (region) region.textContent = words;
};

const start = () => {
  const scroller = document.querySelector("#wd-scroll");
  const foot = document.querySelector("#wd-foot");
  if (!scroller || !foot) { requestAnimationFrame(start); return; } // Gradio adds the parts one by one
  let asking = false;
  let conversation; // the conversation that was last scrolled to its end
  let top = null; // scroll position set when the question was sent; null after the reader scrolls
  for (const act of ["wheel", "touchmove", "pointerdown", "keydown"])
    scroller.addEventListener(act, () => { top = null; }, { passive: true });
  // Scroll the question to the top, and add the space below that this needs. Then the start of the answer does not move
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
      conversation = location.hash || null; // a new conversation gets its id only now
      speak([...document.querySelectorAll("#wd-transcript .wd-text")].pop()?.innerText ?? "");
    }
    if (live || conversation === null || conversation === location.hash) hold();
    else {
      conversation = location.hash; // another conversation was opened: show its end
      scroller.style.removeProperty("--wd-room");
      scroller.scrollTop = scroller.scrollHeight;
    }
    asking = live !== null;
  }).observe(scroller, { childList: true, subtree: true, characterData: true });
  new MutationObserver(label).observe(foot, { childList: true, subtree: true });
  label();
};
start();

// An agent may join without a request: check every minute while the page is visible, and when it becomes visible.
const look = () => { if (!document.hidden && location.hash) trigger("look", {}); };
setInterval(look, 60_000);
document.addEventListener("visibilitychange", look);
const closeDrawer = () => document.querySelector("#wd-app")?.classList.remove("wd-nav-open");
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrawer(); });
document.addEventListener("click", (event) => {
  if (!event.target.closest("#wd-side, .wd-header")) closeDrawer();
});
whileTyping("#wd-box textarea", async (text) => {
  if (document.querySelector(".wd-hint")?.dataset.typing === undefined) return; // the server does not search early
  const body = JSON.stringify({ text, conversation_id: location.hash.slice(1) });
  await fetch("/typing", { method: "POST", headers: { "content-type": "application/json" }, body, keepalive: true });
});
// The URL contains the open conversation's id after "#". Our own changes of it cause no hashchange event.
window.addEventListener("hashchange", () => location.reload());
