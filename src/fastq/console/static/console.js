// What every page has: a question before what cannot be taken back, and "/" to the search field.
"use strict";

document.addEventListener("submit", (event) => {
  const form = event.target;
  const question = form.dataset.confirm;
  if (!question || form.dataset.confirmed) return;
  event.preventDefault();
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  text.textContent = question;
  const yes = document.createElement("button");
  yes.textContent = "Yes";
  yes.className = "danger";
  const no = document.createElement("button");
  no.textContent = "No";
  no.autofocus = true;
  dialog.append(text, yes, " ", no);
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  no.addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => {
    form.dataset.confirmed = "1";
    dialog.close();
    form.requestSubmit(event.submitter);
  });
  dialog.showModal();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
  const field = document.querySelector("[data-key='/']");
  if (field) {
    event.preventDefault();
    field.focus();
  }
});
