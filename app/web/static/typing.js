// Shared by the chat page and the widget. Loaded before page.js and widget_page.js.

// Show the times of agents' messages in the reader's time zone.
const showTimes = (place) => {
  const style = { dateStyle: "medium", timeStyle: "short" };
  for (const time of place.querySelectorAll("time:empty"))
    time.textContent = new Date(time.dateTime).toLocaleString(document.documentElement.lang, style);
};

// Send the text of a box after each pause in typing, so that the server can search early.
// box: a selector. send: returns a promise; "" cancels the text sent before.
const whileTyping = (box, send) => {
  let pause;
  let sent = "";
  let isSending = false;
  const look = async (field) => {
    if (isSending) { pause = setTimeout(look, 400, field); return; } // one at a time; the last text is always sent
    if (field.value === sent) return;
    sent = field.value;
    isSending = true;
    try { await send(sent); } catch { /* a failure has no effect */ }
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
