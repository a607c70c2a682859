/** The page, which shows the client's status and calls its methods. */

import type { Accuracies, Prediction, Status } from "./status.ts";
import { CallError, WorkerClient } from "./interface.ts";
import { pastedRows, readRows } from "./rows.ts";
import type { NewExample } from "./own-examples.ts";
import type { Row, Task } from "./task.ts";
import { fill, TEXTS } from "./texts.ts";

const SHOWN_EXAMPLES = 200;
const SHOWN_DIGITS = 12;

/** Returns the element with an id that exists on the page. */
function at<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

function made<K extends keyof HTMLElementTagNameMap>(
  name: K,
  text = "",
  attributes: Readonly<Record<string, string>> = {},
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function show(id: string, isShown: boolean): void {
  at(id).hidden = !isShown;
}

function size(bytes: number): string {
  if (bytes >= 1e6) return fill(TEXTS.megabytes, (bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0));
  return fill(TEXTS.kilobytes, (bytes / 1e3).toFixed(1));
}

function percent(share: number): string {
  return fill(TEXTS.percent, Math.round(100 * share));
}

function complain(error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  at("problem").textContent = error instanceof CallError ? message : fill(TEXTS.problem, message);
  show("problem", true);
  at("problem").scrollIntoView({ block: "nearest" });
}

/** Shows a problem until it is resolved; an empty text hides it. */
function showTrouble(text: string): void {
  if (at("trouble").textContent !== text) at("trouble").textContent = text;
  show("trouble", text !== "");
}

/** Runs an element's action while the element is disabled, and shows any error. */
async function doing(button: HTMLButtonElement, work: () => Promise<void>): Promise<void> {
  button.disabled = true;
  show("problem", false);
  try {
    await work();
  } catch (error) {
    complain(error);
  } finally {
    button.disabled = false;
  }
}

function onSubmit(id: string, work: (form: HTMLFormElement) => Promise<void>): void {
  const form = at<HTMLFormElement>(id);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void doing(form.querySelector("button")!, () => work(form));
  });
}

let shown: Task | null = null;
let isRefreshing = false;
let isStale = false;

const client = new WorkerClient((event) => {
  show("elsewhere", event === "elsewhere");
  if (event !== "elsewhere") void refresh();
}, showTrouble);
window.samara = client.forApps();

/** Shows the status, and again if it changes meanwhile. */
async function refresh(): Promise<void> {
  isStale = true;
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    while (isStale) {
      isStale = false;
      showStatus(await client.status());
    }
  } catch (error) {
    complain(error);
  } finally {
    isRefreshing = false;
  }
}

function showStatus(status: Status): void {
  show("joining", !status.hasJoined);
  show("running", status.hasJoined);
  showTrouble(status.problem);
  const { programBytes } = status;
  at("download").textContent = programBytes ? fill(TEXTS.download, size(programBytes)) : "";
  if (!status.hasJoined) return;
  for (const section of document.querySelectorAll<HTMLElement>("[data-needs-task]"))
    section.hidden = !status.task;
  if (status.task) showTask(status.task);
  at("dot").className = status.connection === "attached" ? "on" : "";
  const connection = TEXTS.connections[status.connection];
  const waiting = status.isHeldBack ? TEXTS.heldBack : connection;
  at("connection").textContent = status.isPaused ? TEXTS.paused : waiting;
  at("round").textContent = status.run
    ? fill(TEXTS.round, Math.min(status.round, status.rounds), status.rounds)
    : TEXTS.notBegun;
  const rounds = at<HTMLProgressElement>("rounds");
  [rounds.max, rounds.value] = [Math.max(1, status.rounds), status.round];
  showActivity(status);
  showCounts(status);
  at("sent").textContent = fill(TEXTS.sent, status.sent.answers, size(status.sent.bytes));
  const { epsilon } = status.sent;
  at("noised").textContent = epsilon ? fill(TEXTS.noised, epsilon.toPrecision(3)) : "";
  showLimit(status);
  const digest = status.digest.slice(0, SHOWN_DIGITS);
  at("digest").textContent = digest && fill(TEXTS.digest, digest);
  showAccuracies(status.accuracies);
  const pause = at("pause");
  pause.textContent = status.isPaused ? TEXTS.resume : TEXTS.pause;
  pause.setAttribute("aria-pressed", String(status.isPaused));
  if (at<HTMLDetailsElement>("own").open) void showExamples();
}

function showCounts({ task, counts: [train, validation, test], refused, labels }: Status): void {
  const isAllRefused = refused > 0 && train + validation + test === 0;
  at("few").textContent = train < 2 ? TEXTS.fewTexts : TEXTS.oneLabel;
  show("few", task !== null && !isAllRefused && (train < 2 || labels < 2));
  at("counts").textContent = fill(TEXTS.counts, train, validation + test);
  at("refused").textContent = isAllRefused ? TEXTS.allRefused : fill(TEXTS.refused, refused);
  show("refused", refused > 0);
}

function showActivity({ activity, task }: Status): void {
  const { name, done, of } = activity;
  const text = TEXTS.activities[name];
  const isLoading = name === "loading" || (name === "nothing" && !task);
  const share = percent(of ? done / of : 0);
  at("activity").textContent =
    name === "reading" ? fill(text, done, of) : fill(isLoading ? TEXTS.activities.loading : text, share);
  const bar = at<HTMLProgressElement>("doing");
  bar.hidden = name === "nothing";
  if (of) [bar.max, bar.value] = [of, done];
  else bar.removeAttribute("value");
}

function showLimit({ epsilonLimit, stoppedBy, round, rounds }: Status): void {
  const stopped = round < rounds ? stoppedBy : null;
  at("stopped").textContent = stopped ? fill(TEXTS.stoppedBy[stopped], epsilonLimit) : "";
  show("stopped", stopped !== null);
  const limit = at<HTMLInputElement>("limit");
  if (document.activeElement !== limit) limit.value = epsilonLimit ? String(epsilonLimit) : "";
}

/** Creates the fields and labels of the task. */
function showTask(task: Task): void {
  if (JSON.stringify(task) === JSON.stringify(shown)) return;
  shown = task;
  const inputs = (prefix: string, hint: string): HTMLElement[] =>
    task.fields.flatMap((field) => {
      const id = `${prefix}-${field}`;
      const name = task.fields.length > 1 ? field : TEXTS.text;
      const area = made("textarea", "", { id, name: field, required: "", rows: "3" });
      if (!hint || task.fields.length > 1) return [made("label", name, { for: id }), area];
      area.setAttribute("aria-describedby", `${id}-hint`);
      const said = made("p", hint, { id: `${id}-hint`, class: "hint" });
      return [made("label", name, { for: id }), area, said];
    });
  at("fields").replaceChildren(...inputs("add", TEXTS.severalTexts));
  at("try-fields").replaceChildren(...inputs("ask", ""));
  const choices = task.words.map((word, label) => {
    const choice = made("label", "", { class: "choice" });
    const radio = made("input", "", {
      type: "radio",
      name: "label",
      value: String(label),
      required: "",
    });
    choice.append(radio, made("span", word.trim()));
    return choice;
  });
  at("labels").replaceChildren(...choices);
  const label = (task.label ?? "label").split("|")[0]!;
  at("file-hint").textContent = fill(TEXTS.fileHint, task.fields.join(", "), label);
}

function showAccuracies(found: Accuracies | null): void {
  const isKnown = found !== null && found.examples > 0;
  at("accuracy-hint").textContent = isKnown
    ? fill(TEXTS.accuracyHint, found.examples)
    : TEXTS.accuracyNone;
  const bars = !isKnown
    ? []
    : (["base", "global", "personal"] as const).map((which) => {
        const bar = made("div", "", { class: `bar ${which}` });
        const value = made("dd");
        value.append(barOf(found[which]), made("span", percent(found[which])));
        bar.append(made("dt", TEXTS[which]), value);
        return bar;
      });
  at("accuracies").replaceChildren(...bars);
}

function barOf(share: number): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const [bar, filled] = [
    document.createElementNS(space, "svg"),
    document.createElementNS(space, "rect"),
  ];
  bar.setAttribute("aria-hidden", "true");
  filled.setAttribute("width", `${100 * share}%`);
  filled.setAttribute("height", "100%");
  bar.append(filled);
  return bar;
}

async function showExamples(): Promise<void> {
  const examples = await client.examples();
  const items = examples.slice(-SHOWN_EXAMPLES).reverse().map(({ id, row, label, isRefused }) => {
    const text = Object.values(row).join(" · ");
    const item = made("li");
    const remove = made("button", TEXTS.remove, {
      "aria-label": fill(TEXTS.removeNamed, text.slice(0, 60)),
    });
    remove.addEventListener("click", () => void doing(remove, () => client.removeExample(id)));
    const name = isRefused ? TEXTS.isRefused : (shown?.words[label]?.trim() ?? "");
    item.append(made("b", name), made("span", text), remove);
    return item;
  });
  at("examples").replaceChildren(...items);
}

function rowOf(form: HTMLFormElement): Row {
  const areas = [...form.querySelectorAll("textarea")];
  return Object.fromEntries(areas.map(({ name, value }) => [name, value.trim()]));
}

async function addExamples(examples: readonly NewExample[]): Promise<void> {
  await client.addExamples(examples);
  at("add-said").textContent = fill(TEXTS.added, examples.length);
}

/** Adds the rows of a file, and reports invalid ones. */
async function addFile(file: File, task: Task): Promise<void> {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    at("add-said").textContent = TEXTS.notUtf8;
    return;
  }
  const { examples, wrongLines, lacks } = readRows(text, task);
  if (examples.length) await addExamples(examples);
  else if (lacks)
    at("add-said").textContent = fill(TEXTS.lacks, lacks.missing.join(", "), lacks.found.join(", "));
  else if (!wrongLines.length) at("add-said").textContent = TEXTS.noRows;
  if (wrongLines.length && !lacks)
    at("add-said").textContent = fill(
      TEXTS.wrongLines,
      examples.length,
      wrongLines.length,
      task.fields.join(", "),
      task.words.map((word) => word.trim()).join(", "),
      wrongLines[0]!,
    );
}

function showAnswers({ labels, ...models }: Prediction): void {
  const table = made("table");
  const head = made("tr");
  head.append(made("th", ""), ...labels.map((label) => made("th", label, { scope: "col" })));
  table.createTHead().append(head);
  const body = table.createTBody();
  for (const which of ["base", "global", "personal"] as const) {
    const shares = models[which];
    if (!shares) continue;
    const line = made("tr");
    line.append(made("th", TEXTS[which], { scope: "row" }));
    line.append(...shares.map((share) => made("td", percent(share))));
    body.append(line);
  }
  at("answers").replaceChildren(table);
}

for (const element of document.querySelectorAll<HTMLElement>("[data-text]")) {
  const text: unknown = (TEXTS as Readonly<Record<string, unknown>>)[element.dataset["text"]!];
  element.textContent = String(text);
}
if (location.hash.startsWith("#join=")) at<HTMLInputElement>("code").value = location.hash.slice(6);

onSubmit("join", async () => {
  at("join-said").textContent = TEXTS.joining;
  try {
    await client.join(at<HTMLInputElement>("code").value);
    history.replaceState(null, "", location.pathname); // the code is used up
  } finally {
    at("join-said").textContent = "";
  }
  await refresh();
});

onSubmit("add", async (form) => {
  const label = Number(new FormData(form).get("label"));
  const row = rowOf(form);
  const fields = Object.keys(row);
  const only = fields.length === 1 ? fields[0]! : null;
  await addExamples(only ? pastedRows(row[only]!, only, label) : [{ row, label }]);
  for (const area of form.querySelectorAll("textarea")) area.value = "";
});

at<HTMLInputElement>("file").addEventListener("change", async ({ target }) => {
  const input = target as HTMLInputElement;
  const file = input.files?.[0];
  if (!file) return;
  show("problem", false);
  at("add-said").textContent = TEXTS.adding;
  try {
    const { task } = await client.status(); // the page may not have shown the task yet
    if (!task) throw new CallError(TEXTS.noTask);
    await addFile(file, task);
  } catch (error) {
    at("add-said").textContent = "";
    complain(error);
  }
  input.value = "";
});

onSubmit("try", async (form) => {
  at("answers").textContent = TEXTS.asking;
  try {
    showAnswers(await client.predict(rowOf(form)));
  } catch (error) {
    at("answers").textContent = "";
    throw error;
  }
});

at("own").addEventListener("toggle", () => void showExamples());
at<HTMLButtonElement>("pause").addEventListener("click", ({ currentTarget }) => {
  const button = currentTarget as HTMLButtonElement;
  const isPaused = button.getAttribute("aria-pressed") === "true";
  void doing(button, () => client.pause(!isPaused));
});
at<HTMLInputElement>("limit").addEventListener("change", ({ currentTarget }) => {
  const limit = currentTarget as HTMLInputElement;
  if (limit.reportValidity()) client.limitEpsilon(limit.valueAsNumber || 0).catch(complain);
});
at("leave").addEventListener("click", () => at<HTMLDialogElement>("sure").showModal());
at<HTMLDialogElement>("sure").addEventListener("close", async ({ currentTarget }) => {
  if ((currentTarget as HTMLDialogElement).returnValue !== "yes") return;
  try {
    await client.leave();
    try {
      localStorage.clear();
    } catch {
      // a browser that stores nothing has nothing to forget
    }
    at("join-said").textContent = TEXTS.left;
  } catch (error) {
    complain(error);
  }
});

// a page kept in the back/forward cache would otherwise remain the phone
addEventListener("pagehide", () => client.end());
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
// without it, the page still works while there is a network
if ("serviceWorker" in navigator)
  navigator.serviceWorker.register("service-worker.js").catch(console.warn);
void navigator.storage?.persist?.();
const { offerConditions } = await import("./conditions.ts");
offerConditions(client);
