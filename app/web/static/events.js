// For admin pages: the texts of the page, and the stream of events from the server.
"use strict";

const WORDS = JSON.parse(document.getElementById("words").textContent);
const words = (name, values = {}) => WORDS[name].replace(/\{(\w+)\}/g, (all, key) => values[key] ?? all);

async function follow(response, show) {
  if (!response.ok) throw new Error((await response.text()).trim() || words("status", { status: response.status }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error(words("broken"));
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const event of lines.map((line) => JSON.parse(line))) {
      if (event.error) throw new Error(event.error.message);
      if (event.result) return event.result;
      show(words("progress", { ...event, stage: WORDS[event.stage] ?? event.stage }));
    }
  }
}

// Fetch a page and redraw parts of this page from it.
async function redraw(places, address = window.location.href) {
  const response = await fetch(address);
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const place of places) document.querySelector(place).replaceWith(page.querySelector(place));
}

const send = (path, body) =>
  fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
