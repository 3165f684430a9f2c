// The round button on a page of another site, and the frame in which the chat opens. The server adds a call
// of this function with name, colour and texts. The page's styles do not affect these elements, and no style is inline.
(desk) => {
  const tag = document.currentScript;
  const { origin } = new URL(tag.src);
  const language = tag.dataset.language ?? navigator.language;
  // A light page gets a light chat, even if the visitor's system prefers dark.
  const theme = () => {
    const named = ["light", "dark"].find((one) => one === tag.dataset.theme);
    const paint = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
    const [page, body] = [document.documentElement, document.body].map((one) => getComputedStyle(one));
    const isDark = page.colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
    for (const colour of [isDark ? "black" : "white", page.backgroundColor, body.backgroundColor]) {
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
    }
    const [red, green, blue] = paint.getImageData(0, 0, 1, 1).data;
    return named ?? (red + green + blue < 384 ? "dark" : "light");
  };
  const words = desk.labels[language.toLowerCase().split("-")[0]] ?? desk.labels.en;
  const host = document.createElement("div");
  host.id = "warmdesk-widget";
  const root = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    :host { all: initial; }
    button, iframe { position: fixed; z-index: 2147483000; box-sizing: border-box; border: 0; padding: 0; }
    [hidden] { display: none; }
    button { right: 20px; bottom: 20px; width: 56px; height: 56px; border-radius: 50%; cursor: pointer;
      display: grid; place-items: center; background: ${desk.colour}; color: #fff; box-shadow: 0 4px 16px rgb(0 0 0 / .25); }
    button:focus-visible { outline: 3px solid #fff; box-shadow: 0 0 0 6px ${desk.colour}; }
    svg { width: 26px; height: 26px; fill: none; stroke: currentColor; stroke-width: 1.75; stroke-linecap: round; stroke-linejoin: round; }
    button.news::after { content: ""; position: absolute; right: 2px; top: 2px; width: 12px; height: 12px;
      border-radius: 50%; border: 2px solid #fff; background: #c22; }
    iframe { right: 20px; bottom: 88px; width: min(400px, 100vw - 40px); height: min(640px, 100vh - 108px);
      border-radius: 16px; box-shadow: 0 8px 40px rgb(0 0 0 / .25); background: Canvas; }
    @media (max-width: 480px) { iframe { inset: 0; width: 100%; height: 100%; border-radius: 0; }
      iframe:not([hidden]) ~ button { display: none; } }
  `);
  root.adoptedStyleSheets = [sheet];
  root.innerHTML = `<iframe hidden allow="clipboard-write"></iframe><button type="button">
    <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 5h16v11H9l-5 4z"/></svg></button>`;
  const frame = root.querySelector("iframe");
  const button = root.querySelector("button");
  frame.title = desk.name;

  // Only for the server's own page: the token identifies the customer.
  const greet = () => frame.contentWindow.postMessage({ warmdesk: "open", visitor: tag.dataset.visitor ?? "", shown: !frame.hidden }, origin);
  const load = () => {
    frame.style.colorScheme = theme();
    frame.src = `${origin}/widget?${new URLSearchParams({ language, theme: theme() })}`;
  };
  const name = (news) => {
    button.classList.toggle("news", news);
    button.setAttribute("aria-label", news ? words.news : frame.hidden ? words.open : words.close);
  };
  const show = (open) => {
    frame.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    name(false);
    if (!open) { button.focus(); return; }
    frame.focus();
    if (frame.src) greet();
    else load();
  };
  // Store or return whether an agent has the conversation. Some browsers store nothing.
  const kept = (value) => {
    try {
      if (value) sessionStorage.setItem(host.id, value);
      return sessionStorage.getItem(host.id);
    } catch { return null; }
  };
  const hear = {
    close: () => show(false),
    news: () => { if (frame.hidden) name(true); },
    person: (on) => kept(on ? "yes" : "no"),
  };
  frame.addEventListener("load", () => { if (frame.src) greet(); });
  button.addEventListener("click", () => show(frame.hidden));
  root.addEventListener("keydown", (event) => { if (event.key === "Escape" && !frame.hidden) show(false); });
  addEventListener("message", (event) => {
    if (event.origin === origin && event.source === frame.contentWindow) hear[event.data?.warmdesk]?.(event.data.on);
  });
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-label", words.open);
  const add = () => {
    document.body.append(host);
    if (kept() === "yes") load(); // an agent answers: every page of the site shows new messages
  };
  if (document.body) add();
  else document.addEventListener("DOMContentLoaded", add);
}
