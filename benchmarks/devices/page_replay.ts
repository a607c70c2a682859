// Elements per second of the page's replay: [size, seeds, distribution, repetitions] as arguments.
// The processor's own time is read where there is such a clock, since others use the machine.

import { replay, zeroState } from "../../devices/phone/web/src/replay.ts";
import type { Distribution } from "../../devices/phone/web/src/philox.ts";

const [size, count, , repetitions] = process.argv.slice(2).map(Number) as number[];
const distribution = process.argv[4] as Distribution;
const seeds = BigUint64Array.from({ length: count! }, (_, index) => BigInt(index) + 7n);
const coefficients = Int32Array.from(seeds, (_, index) => 2 ** 30 - index);
const entries = [{ seeds, scalars: { shift: 0, coefficients } }];
const state = zeroState(size!);
replay(state, entries, distribution);
const speeds = Array.from({ length: repetitions! }, () => {
  const before = process.cpuUsage();
  replay(state, entries, distribution);
  const { user, system } = process.cpuUsage(before);
  return (1e6 * size! * count!) / (user + system);
});
console.log(JSON.stringify(speeds));
