/** Every text of the page, in English; `{0}` and `{1}` are placeholders. */

export const TEXTS = {
  title: "Samara",
  tagline: "Your own model, from your own texts, on your own device.",
  noScript: "This page needs JavaScript.",
  elsewhere: "This page is open in another tab. Close the other tab, and this tab continues.",

  joinHeading: "Take part",
  joinWhat:
    "You are invited to help a language model learn a task. Your browser runs the model, tries small changes of the model on texts that you label, and tells the server how much better or worse each change was.",
  leavesHeading: "What leaves this device",
  leavesYes:
    "Numbers: the change of the error on your texts for each tried change of the model, the mean error, counts of right and wrong answers on texts kept for evaluation, the number of your texts, and the kind of browser.",
  leavesNo: "Your texts, your labels, and your private model never leave it.",
  leavesCare:
    "Such numbers can still reveal something about your texts to the operator of the server. Take part only if you trust the operator. In some runs, this page adds noise, or masks that let the server see only sums over many people.",
  costsHeading: "What it costs",
  costs:
    "The model is downloaded once, and each of your texts goes through it once. On a phone, training runs only while this page is open and visible.",
  download: "The download is {0}.",
  code: "Invitation",
  codeHint: "The link or the code that the operator sent you.",
  consent: "I have read this and want to take part.",
  join: "Take part",
  joining: "Making a key and registering it …",

  textsHeading: "Your texts",
  textsHint:
    "Add texts, and choose a label for each text. About 30 of 100 texts are kept apart, to measure the quality of the model.",
  text: "Text",
  severalTexts: "Several lines add several texts with the same label.",
  label: "Label",
  add: "Add",
  file: "From a file",
  fileHint: "JSON lines or CSV with {0} and {1}.",
  adding: "Reading the file …",
  noTask: "The model's program has not arrived yet. Choose the file again in a moment.",
  added: "{0} added.",
  wrongLines:
    "{0} added, {1} left out: see line {4}. A row needs {2}, of at most 1,048,576 characters, and a label: {3}.",
  lacks: "Nothing was added: the file has no column {0}. It has: {1}.",
  noRows: "Nothing was added: the file has no rows.",
  notUtf8: "Nothing was added: the file is not encoded in UTF-8. Save it as UTF-8, then choose it again.",
  counts: "{0} texts to learn from, {1} kept apart.",
  showTexts: "Show my texts",
  remove: "Delete",
  removeNamed: "Delete the text: {0}",
  refused: "{0} of your texts are left out: the model cannot read them. Delete them, or write them in other words.",
  allRefused:
    "The model can read none of your texts, so nothing is trained. Delete them, and add texts in a language of the model.",
  isRefused: "not readable",

  trainingHeading: "Training",
  round: "Round {0} of {1}",
  notBegun: "Waiting for the first round.",
  connections: {
    closed: "Not connected.",
    connecting: "Connecting to the server …",
    waiting: "The server does not answer. This page tries again by itself.",
    attached: "Connected.",
    finished: "The run is finished. Your model stays here.",
    rejected: "The server no longer accepts this browser. Ask the operator for a new invitation.",
  },
  activities: {
    nothing: "Nothing to do right now.",
    loading: "Loading the model: {0}",
    reading: "Reading your texts: {0} of {1}",
    training: "Trying changes of the model on your texts …",
    evaluating: "Counting right and wrong answers …",
    personal: "Fitting your private model …",
  },
  fewTexts: "Add at least 2 texts to learn from; with fewer texts, nothing is trained.",
  oneLabel: "All your texts to learn from have the same label. Add texts with another label, so that the model can learn the difference.",
  sent: "Sent so far: {0} answers, {1} in all.",
  noised:
    "Noise in these answers hides your texts. All answers together have cost ε = {0} of your privacy (δ = 0.00001).",
  stoppedBy: {
    reached: "Your privacy limit of ε = {0} is reached: this page takes part in no more rounds.",
    "no noise":
      "No noise hides your texts in this run, so your privacy limit does not let this page take part.",
  },
  digest: "State of the common model: {0}",

  accuracyHeading: "Right answers on your texts",
  accuracyHint: "On {0} texts that are kept apart from training.",
  accuracyNone: "No text is kept apart yet; add more.",
  base: "Before: base model",
  global: "Common model",
  personal: "Your private model",

  tryHeading: "Try it",
  tryHint: "What do the models make of a text? It stays on this device.",
  ask: "Ask",
  asking: "Asking …",

  controlHeading: "Your choice",
  pause: "Pause",
  resume: "Continue",
  paused: "Paused: nothing is computed, and nothing is sent.",
  heldBack: "Waiting: a condition that you chose below is not met. Nothing is computed or sent.",
  onlyOnPower: "Only while charging",
  onlyOnWifi: "Only on Wi-Fi",
  keepAwake: "Keep the screen on",
  limit: "Privacy limit ε",
  limitHint:
    "Every answer reveals a little about your texts, even with noise. ε measures how much all answers together can reveal: 1 is little, 10 is much. If one more answer would exceed your limit, this page takes part in no more rounds. It takes part in no round of a run without noise. Empty: no limit.",
  leave: "Leave and delete everything",
  leaveSure: "Delete key, texts and models from this browser? This cannot be undone.",
  left: "Everything was deleted from this browser.",
  yes: "Delete everything",
  no: "Keep",

  percent: "{0} %",
  megabytes: "{0} MB",
  kilobytes: "{0} kB",
  problem: "Something went wrong: {0}",
  notAccepted: "The server does not accept this page, for reason {0}. Tell the operator this number.",
  reasons: {
    code: "The invitation is incomplete. Copy the link again.",
    version: "The invitation is for another version of this page. Ask the operator for a new invitation.",
    trust: "The answer does not come from the server of this invitation. Nothing was sent to it.",
    revoked: "The key of this browser was revoked. Ask the operator for a new invitation.",
    unknown: "There is no such invitation. Ask the operator for a new invitation.",
    used: "The invitation was used by another device. Ask the operator for a new invitation.",
    ended: "The invitation has expired. Ask the operator for a new invitation.",
    taken: "The key of this browser belongs to another client. Delete everything and try again.",
    busy: "Too many devices join at the moment. Try again in a minute.",
    offline: "The server does not answer. Try again later.",
    program:
      "The model cannot be downloaded, because the server does not answer. The texts that you have added are kept. This page tries again by itself.",
    insecure:
      "This page needs a secure address. Open the link that the operator sent you, which begins with https.",
    script:
      "This page does not start. Load it again; if it still does not, update the browser or use another one.",
    slow: "This page has not started yet. Close other tabs of it, then load it again.",
    refused:
      "This browser does not let the page store data, so it cannot take part. Open the link in a window that is not private, and allow this site to store data in the browser's settings; then load the page again.",
    full: "This device has no room left for this page, so no new data are kept or sent. Earlier data are still there. Free some space on the device; this page then continues by itself.",
    blocked: "Another tab holds the data of this page. Close all tabs of this page, then open it again.",
    runs: "This page keeps the private models of at most 32 runs, and already has 32. To make room, leave and delete everything, then ask for a new invitation.",
    lost: "The browser has closed the storage of this page, or the data were deleted. Load the page again.",
    example:
      "An example needs a text of at most 1,048,576 characters in each field, and one of the labels. Nothing was added.",
    row: "Nothing was asked: give a text of at most 1,048,576 characters in each of these fields: {0}.",
    unreadable: "The model cannot read this text. Write it in other words.",
  },
} as const;

/** Returns a text with its placeholders filled in. */
export function fill(text: string, ...given: readonly (string | number)[]): string {
  return text.replace(/\{(\d)\}/g, (_, at: string) => String(given[Number(at)]));
}
