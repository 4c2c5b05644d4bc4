// Asks for the page again and puts in place what has changed of it: where the reader has scrolled to, and what is open, stays.
"use strict";
const PARTS = "#summary, #looked, #capture, #notes, #runs, #report, figure";

function putInPlace(fresh) {
  for (const part of fresh.querySelectorAll(PARTS)) {
    const shown = document.getElementById(part.id);
    if (!shown) return location.reload(); // another experiment is served here now
    for (const open of shown.querySelectorAll("details[open]")) part.querySelector("#" + open.id)?.setAttribute("open", "");
    if (shown.innerHTML !== part.innerHTML) shown.replaceChildren(...part.childNodes);
  }
  document.title = fresh.title;
  return undefined;
}

async function picturesReady(fresh) {
  const shown = new Set([...document.images].map((image) => image.src));
  const waiting = [...fresh.images].filter((image) => !shown.has(image.src)).map((image) => {
    const early = new Image();
    early.src = image.src;
    return early.decode().catch(() => undefined);
  });
  await Promise.all(waiting);
}

async function refresh() {
  const lost = document.getElementById("lost");
  try {
    const reply = await fetch("/", { cache: "no-store" });
    if (!reply.ok) throw new Error(reply.statusText);
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    await picturesReady(fresh);
    putInPlace(fresh);
    lost.hidden = true;
  } catch {
    lost.textContent = "Not refreshed: pipeline watch does not answer any more. What is shown is as of the time above.";
    lost.hidden = false;
  }
  again();
}

function again() {
  setTimeout(refresh, Number(document.body.dataset.milliseconds));
}

again();
