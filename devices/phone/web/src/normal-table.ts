/**
 * The frozen table of 65,536 normal quantiles from which directions are drawn.
 *
 * Entry i is round(2048 · Φ⁻¹((i + ½) / 65,536)), half to even. The table is antisymmetric. Its
 * upper half is stored as compressed differences between neighbours, as in shared/protocol/normal_table.py.
 */

import { sha256, toHex, type Bytes } from "./bytes.ts";

/** The SHA-256 of the table's bytes, which every layout names. */
export const TABLE_SHA256 = "06c028f826eb57a7feaddfc1b1f141350b9cbfbfafce0ba7368dc97db6711ecd";

const UPPER_HALF_DIFFERENCES =
  "eNrtksuO00AQRSvJEIbX8AYhHhJoJCTEhgUrVqzZ8wl8Bp/DL7JCwsrL46TttO1+VHWftNzurrp1761yRNrfQvp+ITNp" +
  "VHLro0KXfDFU+F+gggoqqKCCCiolqzAXps9ccIxjHNM93cPFF4YLrtq5mApfi6nQCXNEvUZ1poVfy37pkJnwpaiggopp" +
  "FUyEqTMR3OIWbbTLYmIefCMmDhNeLXtl3nyHBd8HZZRxhNNindJZ+Z0xIeJ8YeLEmQJfkenQFe7tuMRNXTOgp5omxtzr" +
  "8ci8YrLQP85L0sRhvWhmpRnNpPCHYmmKJXFocc13wR3M6KFnx4U9b6U4pjsmTLTcKFNguuV3hoPaHNCBJVZcUa+vHqc2" +
  "lGx7os+SkHRZtiMbOvSYvppuYMzFWLoKylbc0AkTJDYUYwJ1TQ8nCxQUKMBWgw8qcVamCzrKh6Ifax5wZbsO51aY4Lag" +
  "pk+/FI90T6QvQuf4y6ldJy8s4Vio0VRTFqte3ZK6q2um5U7Uau+lVtSqqaELGG0o6nNQvmPumu641aoOG9U2tKyg4dKi" +
  "RDZO1p5OHib9qtOxJTmyXKmbJwVreo3ciuU75ea64TK9tk7GfBwplTX2Ba4WhjzcZKww26ivDaWHN3WFlmrtTPFZdStr" +
  "O/ugmFWpqmWwWNXRrm4doY85H1s+jVxRWwqaqrSralSKoRnXZ/oaHdXheTSo1Od1gc+oChYq4+AtouIy5M/lYrJQX1/E" +
  "SnU+Fj2ZuLVpETG4YqjPr9DIoE+prrcF9hRVMdDpULqy4WpyRuNWxsHMrdCrpIc5PD5uVVymPAxaMmny4VHjsVMrwlWn" +
  "ZbW0a2KMgw6HS5cLVeEXjYkKU9V/T1E5LzMOMxU9vy7cKX7VdIRfPB4q1i0sOm5kHm5sNHzmfNYP4Y+ahg5brftJURkC" +
  "FS7jG40TGZf3u81DhcOOO83DTLuPQc3LTcHN2+eixmXC3oajftlw7zGZsbl5p/NRv7NvZvg2/u6OuVB90eHMcG4MRsNa" +
  "zkAsPaPnIsuB7Liz36k/MvweivbHzu/+9+7p9OaOTH/8bkP3c7v7dvp2n/rPrrtvbrtWnpmV87wafLv37skVWZ3kj+P7" +
  "vf99fD6/LhznC+fufrp7+7556q5bR6d27z77vXvarnXnvT48+719r+X2jXf7dNflbr/c7dt15/C0626ztvu93b5d9w/r" +
  "QfNcNfvVZj3crEeb9ViebNZTedas5/JCXjbrVbNeyxt5K+/kvXyQa/kon+SzfJGv8k2+yw/5Kb/kt/yRv/Jv8R9tyCGb";

async function inflate(compressed: Bytes): Promise<ArrayBuffer> {
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function load(): Promise<Int16Array<ArrayBuffer>> {
  const compressed = Uint8Array.from(atob(UPPER_HALF_DIFFERENCES), (one) => one.charCodeAt(0));
  const differences = new Int16Array(await inflate(compressed));
  const table = new Int16Array(2 * differences.length);
  let quantile = 0;
  differences.forEach((difference, index) => {
    quantile += difference;
    table[differences.length + index] = quantile;
    table[differences.length - 1 - index] = -quantile;
  });
  if (toHex(await sha256(new Uint8Array(table.buffer))) !== TABLE_SHA256)
    throw new Error("the normal table is damaged; load the page again");
  return table;
}

/** 65,536 ascending integers; multiplied by 2⁻¹¹ they are standard normal quantiles. */
export const NORMAL_TABLE: Int16Array = await load();
