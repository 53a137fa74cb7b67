// Collects what a person reads on the page: title, text, visible menus and labels.
const seen = {errors: window.errors, title: document.title, heading: document.querySelector("h1").innerText};
const visible = [...document.querySelectorAll("body *")].filter(e => e.getClientRects().length);
document.querySelector(".card").click(); // opens the large image
seen.menus = [...document.querySelectorAll("select")].filter(e => visible.includes(e)).map(e => [...e.options].map(o => o.textContent));
seen.labels = visible.flatMap(e => [e.title || "", e.getAttribute("aria-label") || ""]).filter(text => text);
seen.over_boxes = [...document.querySelectorAll(".frame text")].map(e => e.textContent);
seen.facts = [...document.querySelectorAll(".card .facts")].map(e => e.innerText);
seen.text = document.body.innerText + " " + [...document.querySelectorAll("svg text")].map(e => e.textContent).join(" ");
const done = document.createElement("pre"); done.id = "seen"; done.textContent = JSON.stringify(seen); document.body.append(done);
