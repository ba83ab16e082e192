// Live parts of the page: widths of bars from the data beside them, and fresh HTML whenever the hub says that something changed.
"use strict";

function drawBars(root) {
  for (const bar of root.querySelectorAll("[data-width]")) bar.style.width = bar.dataset.width + "%";
}

function follow(part) {
  const live = document.getElementById("live");
  let busy = false, again = false, shownAt = Date.now();
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(part.dataset.part + location.search, { headers: { Accept: "text/html" } });
      if (answer.redirected) { location.assign("/sign-in"); return; }
      if (answer.ok) {
        const place = window.scrollY;
        part.innerHTML = await answer.text();
        drawBars(part);
        window.scrollTo(0, place);
        shownAt = Date.now();
      }
    } catch { /* the hub is away: the event source says so and tries again */ }
    busy = false;
    if (again) { again = false; setTimeout(refresh, 300); }
  }
  const source = new EventSource("/api/v1/events");
  source.onopen = () => { live.textContent = "live"; live.className = "live on"; refresh(); };
  source.onerror = () => { live.textContent = "connection lost, trying again"; live.className = "live off"; };
  for (const topic of ["clusters", "placements", "workloads", "queues", "resync"]) source.addEventListener(topic, refresh);
  // Ages grow even when nothing happens.
  setInterval(() => { if (Date.now() - shownAt > 4000 && !document.hidden) refresh(); }, 1000);
}

drawBars(document);
const part = document.querySelector("[data-part]");
if (part) follow(part); else document.getElementById("live")?.remove();
