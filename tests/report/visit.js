// Uses the page as a person would, and writes what it saw as JSON into the element "seen".
const seen = {errors: window.errors, ran: window.ran || null};
const pick = (id, value) => { document.getElementById(id).value = value; document.getElementById(id).dispatchEvent(new Event("change")); };
const cards = () => document.querySelectorAll(".card").length;
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
seen.table = [...document.querySelectorAll("#methods tr[data-method]")].map(r => [r.dataset.method, ...[...r.children].slice(1).map(c => c.firstChild ? c.firstChild.textContent.trim() : "")]);
seen.classes = [...document.getElementById("class").options].slice(1).map(o => o.textContent);
seen.all = cards();
pick("class", "0"); seen.first_class = cards(); pick("class", "");
pick("outcome", "right"); seen.right = cards();
pick("outcome", "wrong"); seen.wrong = cards();
pick("outcome", "disagree"); seen.disagree = cards(); pick("outcome", "");
pick("order", "lowest"); seen.confidences = [...document.querySelectorAll(".card span")].map(s => +s.textContent.split("· ").pop());
press("ArrowRight"); press("ArrowRight"); seen.current = [...document.querySelectorAll(".card")].findIndex(c => c.classList.contains("current"));
press("Enter"); seen.open = document.getElementById("large").open;
const before = document.querySelectorAll(".gallery rect").length; press("1"); seen.hidden = before - document.querySelectorAll(".gallery rect").length;
const done = document.createElement("pre"); done.id = "seen"; done.textContent = JSON.stringify(seen); document.body.append(done);
