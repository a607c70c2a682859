// Log-probabilities of tokens by llama.cpp: reads JSON from stdin, writes JSON to stdout.
import { pathToFileURL } from "node:url";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { library, model, adapter, prompts, candidates } = JSON.parse(Buffer.concat(chunks));
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(library));
const llama = await getLlama({
  gpu: false,
  build: "never",
  skipDownload: true,
  logLevel: LlamaLogLevel.error,
});
const loaded = await llama.loadModel({ modelPath: model, useMmap: false });
const lora = adapter ? { adapters: [{ filePath: adapter, scale: 1 }] } : undefined;
const context = await loaded.createContext({ contextSize: 512, threads: 1, lora });
const sequence = context.getSequence();
const results = [];
for (const prompt of prompts) {
  await sequence.clearHistory();
  const last = [prompt.at(-1), { generateNext: { probabilities: true } }];
  const output = await sequence.controlledEvaluate([...prompt.slice(0, -1), last]);
  const probabilities = output.at(-1).next.probabilities;
  results.push(candidates.map((token) => Math.log(probabilities.get(token))));
}
process.stdout.write(JSON.stringify(results), () => process.exit(0));
