/** The settings that the terms of a run are made of; made by docs/tables.py. */

/** The range of a setting; `Term` in shared/terms/values.py explains it. */
export interface Term {
  readonly least?: number;
  readonly most?: number;
  readonly above?: boolean;
  readonly default?: boolean | number | string;
  readonly words?: readonly string[];
  readonly pattern?: string;
}

export const TERMS = {
  "method": {},
  "rounds": { least: 1, most: 1000000 },
  "steps": { least: 1, most: 65535 },
  "queries": { least: 1, most: 65535 },
  "batch": { least: 1 },
  "epsilon": { most: 1, above: true },
  "differences": { words: ["central", "forward", "components"] },
  "objective": { default: "cross-entropy" },
  "learning-rate": {},
  "clip": {},
  "seed-policy": { words: ["shared", "independent", "pool"] },
  "pool-size": { least: 1, most: 1048576 },
  "cohort.timeout": { above: true },
  "cohort.minimum": { least: 1 },
  "cohort.clusters": { least: 2, most: 64 },
  "cohort.clustering-rounds": { least: 1 },
  "evaluate.every": {},
  "evaluate.test": {},
  "evaluate.best": {},
  "evaluate.retrieved": { most: 64, default: 0 },
  "personal.rounds": { most: 1000000 },
  "personal.when": { default: "end", pattern: "^(end|every [1-9]\\d{0,6} rounds?|on-data|always)$" },
  "personal.retrain": { default: false },
  "personal.own-words": { default: false },
  "personal.prior": { default: "own", words: ["own", "common"] },
  "personal.learning-rate": { default: "auto" },
  "personal.pull": { most: 0.5, above: true, default: 0.0625 },
  "personal.part": { default: "label bias" },
  "privacy.mode": { default: "none", words: ["none", "central", "local", "distributed"] },
  "privacy.clip": { most: 1000000.0, above: true, default: 1.0 },
  "privacy.adaptive-clip": { default: false },
  "privacy.noise-multiplier": { most: 1000000.0, default: 0.0 },
  "privacy.epsilon": { most: 1000000.0, default: 0.0 },
  "privacy.delta": { most: 1, above: true, default: 1e-05 },
  "privacy.honest-share": { most: 1, default: 0.0 },
  "privacy.secure-aggregation": { default: false },
  "privacy.bucket": { most: 1048576, default: 0 },
} satisfies Readonly<Record<string, Term>>;

export type TermKey = keyof typeof TERMS;
