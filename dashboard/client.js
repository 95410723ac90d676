// Asking the server, and noticing when it is away.

/** A request that has no answer after so long counts as failed. */
const TIMEOUT_MS = 5000;

/** The JSON of one of the server's answers. Throws an `Error` that says why there is none. */
export async function ask(path) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
  try {
    const answer = await fetch(path, { signal: stop.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${(await answer.text()).trim()}`);
    return await answer.json();
  } catch (error) {
    throw stop.signal.aborted ? new Error("no answer in 5 s") : error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Calls `act` now and then again `pauseMs` after each end of it; `failed` hears why it threw.
 * One call at a time, however slow the server is.
 */
export async function every(pauseMs, act, failed) {
  for (;;) {
    try {
      await act();
    } catch (error) {
      failed(error);
    }
    await new Promise((next) => setTimeout(next, pauseMs()));
  }
}
