// Answers of the server for the last minutes, kept in this page alone.

/** Older answers are forgotten. */
const KEPT_SECONDS = 930;

export class History {
  #samples = [];

  /** Takes an answer in. Those of an earlier process stay: charts show both, with a gap. */
  add(overview) {
    const last = this.#samples.at(-1);
    if (last && overview.now <= last.now) this.#samples.pop();
    this.#samples.push(overview);
    const oldest = overview.now - KEPT_SECONDS;
    while (this.#samples[0].now < oldest) this.#samples.shift();
  }

  get latest() {
    return this.#samples.at(-1);
  }

  /**
   * The two answers whose difference is what happened in the last `seconds`, as far back as this
   * page knows the process. `from` is null when nothing but the counts since the start is known.
   */
  window(seconds) {
    const to = this.latest;
    const same = this.#samples.filter(
      (one) => one.started === to.started && one.now >= to.now - seconds && one !== to,
    );
    return { from: same[0] ?? null, to };
  }

  /** Neighbouring answers of the last `seconds`, as pairs; never of two processes. */
  steps(seconds) {
    const oldest = this.latest.now - seconds;
    const pairs = [];
    for (let i = 1; i < this.#samples.length; i += 1) {
      const [from, to] = [this.#samples[i - 1], this.#samples[i]];
      if (from.now >= oldest && from.started === to.started) pairs.push({ from, to });
    }
    return pairs;
  }
}
