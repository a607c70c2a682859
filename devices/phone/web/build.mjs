// Copies what the page needs beside its compiled modules, and lists every file with its SHA-256.

import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";

const page = new URL("../../../build/phone-page/", import.meta.url).pathname;
const here = new URL("./", import.meta.url).pathname;
const runtime = join(here, "node_modules/onnxruntime-web/dist");
const tokenizers = join(here, "node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs");
const library = join(page, "library");

cpSync(join(here, "static"), page, { recursive: true });
mkdirSync(library, { recursive: true });
cpSync(join(runtime, "ort.wasm.min.mjs"), join(library, "onnxruntime.mjs"));
cpSync(join(runtime, "ort.webgpu.min.mjs"), join(library, "onnxruntime-webgpu.mjs"));
const engines = ["ort-wasm-simd-threaded", "ort-wasm-simd-threaded.asyncify"];
for (const name of engines.flatMap((engine) => [`${engine}.mjs`, `${engine}.wasm`]))
  cpSync(join(runtime, name), join(library, name));
cpSync(tokenizers, join(library, "tokenizers.mjs"));

const list = join(page, "integrity.json");
const files = readdirSync(page, { recursive: true, withFileTypes: true })
  .filter((one) => one.isFile())
  .map((one) => join(one.parentPath, one.name))
  .filter((file) => file !== list)
  .map((file) => [relative(page, file), createHash("sha256").update(readFileSync(file)).digest("hex")])
  .sort(([one], [other]) => (one < other ? -1 : 1));
writeFileSync(list, JSON.stringify(Object.fromEntries(files), null, 1) + "\n");
