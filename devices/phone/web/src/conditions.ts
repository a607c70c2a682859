/** The owner's conditions for work, as far as the browser can tell: power, Wi-Fi, and screen on. */

import type { WorkerClient } from "./interface.ts";

interface Battery extends EventTarget {
  readonly charging: boolean;
}

interface Network extends EventTarget {
  readonly type?: string;
}

type Knowing = Navigator & {
  readonly getBattery?: () => Promise<Battery>;
  readonly connection?: Network;
};

/** A condition of the owner's: its checkbox, and whether it is met. */
interface Condition {
  readonly box: HTMLInputElement;
  readonly isMet: () => boolean;
}

/**
 * Shows the conditions that this browser can check, and holds the client back while one is not met.
 */
export function offerConditions(client: WorkerClient): void {
  const knowing: Knowing = navigator;
  const conditions: Condition[] = [];
  let isHeldBack = false;
  const check = (): void => {
    const isMet = conditions.every(({ box, isMet }) => !box.checked || isMet());
    if (isMet !== isHeldBack) return;
    isHeldBack = !isMet;
    void client.holdBack(isHeldBack);
  };
  const offer = (name: string, teller: EventTarget, event: string, isMet: () => boolean): void => {
    const box = document.getElementById(name) as HTMLInputElement;
    box.checked = remembered(name) === "yes";
    document.getElementById(`${name}-choice`)!.hidden = false;
    conditions.push({ box, isMet });
    box.addEventListener("change", () => {
      remember(name, box.checked ? "yes" : "no");
      check();
    });
    teller.addEventListener(event, check);
    check();
  };
  const { connection } = knowing;
  if (connection?.type !== undefined)
    offer("wifi", connection, "change", () => ["wifi", "ethernet"].includes(connection.type!));
  void knowing.getBattery?.().then((battery) =>
    offer("power", battery, "chargingchange", () => battery.charging),
  );
  if ("wakeLock" in navigator) offerWakeLock();
}

/** Returns the stored value of a choice; null where the browser stores nothing. */
function remembered(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch (error) {
    console.warn("the choice is for as long as the page is open:", error);
  }
}

/** Keeps the screen on while the page is visible, if the owner wants it. */
function offerWakeLock(): void {
  const box = document.getElementById("awake") as HTMLInputElement;
  document.getElementById("awake-choice")!.hidden = false;
  let lock: WakeLockSentinel | null = null;
  const follow = async (): Promise<void> => {
    const isWanted = box.checked && document.visibilityState === "visible";
    if (!isWanted) await lock?.release();
    lock = isWanted ? await navigator.wakeLock.request("screen").catch(() => null) : null;
  };
  box.addEventListener("change", () => void follow());
  document.addEventListener("visibilitychange", () => void follow());
}
