// @ts-check
/** Quantiles of histograms in the format of Prometheus: the upper bound of the bucket that they are in. */

/**
 * @param {{labels: Record<string, string>, value: number}[]} buckets
 * @param {Record<string, string>} [labels] only series with these
 * @param {number[]} [shares]
 * @returns {(number | null)[]}
 */
export function quantiles(buckets, labels = {}, shares = [0.5, 0.95, 0.99]) {
  /** @type {Map<number, number>} */
  const sums = new Map();
  for (const row of buckets) {
    if (!Object.entries(labels).every(([k, v]) => row.labels[k] === v)) continue;
    const bound = row.labels.le === "+Inf" ? Infinity : Number(row.labels.le);
    sums.set(bound, (sums.get(bound) || 0) + row.value);
  }
  const rising = [...sums].sort((a, b) => a[0] - b[0]);
  const all = rising.at(-1)?.[1] || 0;
  return shares.map((share) => (all ? (rising.find(([, n]) => n >= share * all)?.[0] ?? null) : null));
}
