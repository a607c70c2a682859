/** What goes wrong with what comes from outside, by the part of the format that it is in. */

/** Bytes are no sound frame. */
export class FrameError extends Error {}

/** Changes do not fit a state. */
export class ReplayError extends Error {}

/** A layout, ledger, snapshot or state is damaged, or of another run. */
export class LedgerError extends Error {}
