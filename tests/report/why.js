// Opens an image and reads what explains its box; then filters by what was left out.
const seen = {errors: window.errors, ran: window.ran || null};
const cards = () => [...document.querySelectorAll(".card")];
const dashed = parent => [...parent.querySelectorAll(".other")].filter(e => getComputedStyle(e).display !== "none").length;
const pick = (id, value) => { document.getElementById(id).value = value; document.getElementById(id).dispatchEvent(new Event("change")); };
pick("order", "file");
seen.hint = document.getElementById("hint").textContent;
seen.kept_hidden = document.getElementById("kept").hidden;
seen.low = cards().filter(c => c.classList.contains("low")).length;
seen.left_out = cards().filter(c => c.innerText.includes("left out")).length;
seen.before = dashed(cards()[0]);
const read = () => {
  const d = document.getElementById("large"), rows = [...d.querySelectorAll(".why tr")].slice(1);
  return {
    caption: (d.querySelector("caption") || {}).textContent || null,
    rows: rows.map(r => [...r.children].map(c => c.textContent).filter(t => t)),
    bars: rows.map(r => [...r.querySelectorAll("svg rect")].map(b => [+b.getAttribute("x"), +b.getAttribute("width")])),
    dashed: dashed(d), notes: [...d.querySelectorAll(".sides > div + div p")].map(p => p.textContent),
    fits: d.scrollWidth <= d.clientWidth && d.getBoundingClientRect().right <= window.innerWidth,
  };
};
seen.opened = cards().slice(0, 4).map(c => { c.click(); const what = read(); document.getElementById("large").close(); return what; });
seen.after = dashed(cards()[3]);
if (!seen.kept_hidden) { pick("kept", "low"); seen.only_low = cards().length; pick("kept", "kept"); seen.only_kept = cards().length; }
const done = document.createElement("pre"); done.id = "seen"; done.textContent = JSON.stringify(seen); document.body.append(done);
