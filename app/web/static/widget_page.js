// The chat within a page of another site. A frame there has no cookies: the visitor's token is stored here and sent in
// a header. A token from the other page is used but not stored, because only that page knows who is signed in.
const $ = (selector) => document.querySelector(selector);
const { scroller, transcript, live, back, handoff, form, box, send, stop, spoken } = Object.fromEntries(
  ["scroller", "transcript", "live", "back", "handoff", "form", "box", "send", "stop", "spoken"].map((id) => [id, $(`#wd-${id}`)]),
);
const words = document.body.dataset;
const origins = JSON.parse(words.origins);
const session = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("");
let signed = null; // the token from the other page; "" for none
let token = "";
let conversation = "";
let busy = false;
let follow = true; // until the reader scrolls

const kept = (name, value) => {
  try {
    if (value === undefined) return localStorage.getItem(`warmdesk-${name}`) ?? "";
    localStorage.setItem(`warmdesk-${name}`, value);
  } catch { /* the browser stores nothing for frames: values are lost when this page closes */ }
  return "";
};

const own = async (path, options = {}) => {
  const headers = { "accept-language": document.documentElement.lang, "content-type": "application/json" };
  if (token) headers.authorization = `bearer ${token}`;
  const response = await fetch(path, { credentials: "omit", headers, ...options });
  if (!response.ok) throw new Error(response.status === 401 ? words.ended : words.broken);
  return response;
};
const call = (path, body = {}, options = {}) =>
  own(`/widget/${path}`, { method: "POST", body: JSON.stringify(body), ...options });

const fail = (error) => {
  const shown = $("#wd-failed").content.cloneNode(true);
  shown.querySelector("span").textContent = Object.values(words).includes(error.message) ? error.message : words.broken;
  live.replaceChildren(shown);
};

const answering = (on) => { send.hidden = on; stop.hidden = !on; };

const draw = (view) => {
  if (view.conversation_id !== undefined) { conversation = view.conversation_id; kept("conversation", conversation); }
  back.hidden = conversation !== "" || !kept("last");
  if (view.transcript !== undefined) transcript.innerHTML = view.transcript;
  showTimes(transcript);
  if (view.live !== undefined) live.innerHTML = view.live;
  if (view.box !== undefined) box.value = view.box;
  if (view.answering !== undefined) answering(view.answering);
  if (view.editing) form.dataset.editing = "yes"; // it was not replaced: the next question may replace it
  const last = [...scroller.querySelectorAll(".wd-question")].pop();
  if (follow && last) scroller.scrollTop = last.offsetTop - 12; // so the start of the answer stays visible while it grows
};

// The status line above the box: who answers, and buttons for an agent or the assistant. It is updated periodically.
let mark = ""; // of the displayed line
let next;
let isWithPerson = false;
const line = async (act = "", email = "", again = false) => {
  clearTimeout(next);
  try {
    const shown = await (await call("person", { session, conversation_id: conversation, act, email })).json();
    if (again && shown.mark !== mark) tell("news");
    if (shown.live !== isWithPerson) tell("person", shown.live);
    isWithPerson = shown.live;
    if (act || (again && shown.mark !== mark && !busy)) draw(await redrawn(shown.conversation_id));
    if (shown.mark !== mark) handoff.innerHTML = shown.html;
    mark = shown.mark;
    $("[data-act=new]").hidden = shown.live; // a waiting customer must not leave by mistake
  } catch (error) {
    if (!again) fail(error);
  }
  if (conversation) next = setTimeout(line, isWithPerson ? 2000 : 60_000, "", "", true); // an agent may join without a request
};
const redrawn = async (id) => (await call("open", { session, conversation_id: id })).json();

const ask = async (question, replaces_last = false) => {
  if (busy || !question.trim()) return;
  busy = follow = true;
  try {
    const { body } = await call("ask", { session, question, conversation_id: conversation, replaces_last });
    const lines = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await lines.read(); !part.done; part = await lines.read()) {
      const whole = (rest + part.value).split("\n");
      rest = whole.pop();
      for (const line of whole) draw(JSON.parse(line));
      spoken.textContent = $("#wd-live .wd-waiting")?.innerText ?? spoken.textContent;
    }
    if (!live.firstChild) spoken.textContent = [...transcript.querySelectorAll(".wd-text")].pop()?.innerText ?? "";
  } catch (error) {
    box.value = question;
    fail(error);
  }
  busy = false;
  answering(false);
  line();
};

const open = async (id) => {
  try {
    if (!token) token = (await (await call("visitor")).json()).token;
    if (!signed) kept("visitor", token);
    draw(await redrawn(id));
    line();
  } catch (error) { fail(error); }
};

const judge = (place, value, reason = "") => {
  call("feedback", { conversation_id: conversation, message_id: place.dataset.message, value, reason }).then(
    () => { say(place, value === "none" ? "" : "thanks"); line(); },
    fail,
  );
};

const lastQuestion = () => [...scroller.querySelectorAll(".wd-bubble")].pop()?.textContent ?? "";
const tell = (what, on) => parent.postMessage({ warmdesk: what, on }, "*"); // contains nothing secret
const leave = () => tell("close");

const acts = {
  close: leave,
  new: () => { if (conversation) kept("last", conversation); box.value = ""; open(""); box.focus(); },
  back: () => { open(kept("last")); box.focus(); },
  example: (button) => ask(button.dataset.text),
  retry: () => ask(lastQuestion(), true),
  edit: () => { box.value = lastQuestion(); form.dataset.editing = "yes"; box.focus(); },
  feedback: (button) => judge(button.closest("[data-message]"), press(button)),
  person: (button) => line(button.dataset.person),
  keep: () => save("/my-data"),
  erase: () => { $("#wd-sure").hidden = false; }, // browsers show no confirm() in a frame of another site
  erased: () => { $("#wd-sure").hidden = true; erase(); },
  source: (button) => { follow = false; showSource(button); },
  copy,
};

// A link cannot send the header with the token, so files are fetched, then saved.
const save = async (path) => {
  try {
    const response = await own(path);
    const name = /filename(?:\*=UTF-8''|=")([^;"]+)/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "";
    const address = URL.createObjectURL(await response.blob());
    Object.assign(document.createElement("a"), { href: address, download: decodeURIComponent(name) }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  } catch (error) { fail(error); }
};
const erase = async () => {
  try {
    await own("/my-data/delete", { method: "POST" });
    if (!signed) { token = ""; kept("visitor", ""); } // the next request gets a new visitor
    kept("last", "");
    $(".wd-data").open = false;
    await open("");
  } catch (error) { fail(error); }
};

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="/sources/"]');
  if (link) { event.preventDefault(); save(link.href); return; }
  const button = event.target.closest("button[data-act]");
  if (button) acts[button.dataset.act]?.(button);
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target === form) {
    const editing = form.dataset.editing === "yes";
    delete form.dataset.editing;
    ask(box.value, editing);
    return;
  }
  if (handoff.contains(event.target)) { line("ask", event.target.elements.email.value); return; }
  const place = event.target.closest("[data-message]");
  event.target.hidden = true;
  judge(place, "down", reasonOf(event));
});
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
whileTyping("#wd-box", async (text) => {
  if (words.typing === undefined || !token) return; // the server does not search early
  await call("typing", { text, conversation_id: conversation }, { keepalive: true });
});
stop.addEventListener("click", () => { call("stop", { session }).catch(fail); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") leave(); });
for (const act of ["wheel", "touchmove", "pointerdown"])
  scroller.addEventListener(act, () => { follow = false; }, { passive: true });

const start = (visitor) => {
  if (visitor === signed) return undefined;
  signed = visitor;
  token = visitor || kept("visitor");
  return open(kept("conversation"));
};
addEventListener("message", (event) => {
  if (event.source !== parent || !origins.includes(event.origin) || event.data?.warmdesk !== "open") return;
  start(String(event.data.visitor ?? ""));
  if (!event.data.shown) return;
  if (matchMedia("(pointer: coarse)").matches) $("h1").focus(); // do not open the on-screen keyboard yet
  else box.focus();
});
if (parent === window) start(""); // opened directly, not in a frame
