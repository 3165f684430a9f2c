// The page of the API: sends test requests and shows their responses. The key is stored only in its field. No cookie is
// sent, so a request here has only the permissions of its key.
"use strict";

function addressOf(form) {
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const { name, value } of form.querySelectorAll("input")) {
    if (path.includes(`{${name}}`)) path = path.replace(`{${name}}`, () => encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  return query.size ? `${path}?${query}` : path;
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function tryOut(event) {
  event.preventDefault();
  const form = event.target;
  const [button, shown, body] = ["button", "pre", "textarea"].map((one) => form.querySelector(one));
  const headers = body ? { "content-type": "application/json" } : {};
  const key = document.getElementById("key").value.trim();
  if (key) headers.authorization = `bearer ${key}`;
  button.disabled = true;
  try {
    const options = { method: form.dataset.method, headers, body: body?.value, credentials: "omit" };
    const reply = await fetch(addressOf(form), options);
    shown.textContent = `${reply.status} ${reply.statusText}\n${readable(await reply.text())}`;
  } catch (error) {
    shown.textContent = error.message;
  }
  shown.hidden = button.disabled = false;
}

for (const form of document.querySelectorAll("form[data-path]")) form.addEventListener("submit", tryOut);
