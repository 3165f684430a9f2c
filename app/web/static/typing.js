// What the chat page and the widget share. Stands before page.js and widget_page.js.

// The times of agents' messages, in the reader's zone.
const showTimes = (place) => {
  const style = { dateStyle: "medium", timeStyle: "short" };
  for (const time of place.querySelectorAll("time:empty"))
    time.textContent = new Date(time.dateTime).toLocaleString(document.documentElement.lang, style);
};

// Sends what stands in a box once nothing was typed for a moment, so that the desk is ready when it is sent.
// box: a selector. send: gives a promise; "" takes back what was sent before.
const whileTyping = (box, send) => {
  let pause;
  let sent = "";
  let isSending = false;
  const look = async (field) => {
    if (isSending) { pause = setTimeout(look, 400, field); return; } // one at a time, and the last one in any case
    if (field.value === sent) return;
    sent = field.value;
    isSending = true;
    try { await send(sent); } catch { /* no code waits for it */ }
    isSending = false;
  };
  document.addEventListener("input", (event) => {
    if (!event.target.matches(box)) return;
    clearTimeout(pause);
    pause = setTimeout(look, 400, event.target);
  });
  addEventListener("pagehide", () => {
    clearTimeout(pause);
    if (sent) send("").catch(() => {});
    sent = "";
  });
};
