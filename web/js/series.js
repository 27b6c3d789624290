// Columns of numbers for plots; `null` is unknown.

/** What of a total the columns leave, moment by moment; unknown where the total is. */
export function remainder(total, columns) {
  return total.map((all, at) => {
    if (all === null) return null;
    let left = all;
    for (const column of columns) left -= column[at] ?? 0;
    // Sums of single precision are not exact.
    return left < 1e-6 * all ? 0 : left;
  });
}

/** Columns on top of each other. A service that is not there leaves the sum as it is. */
export function stack(columns) {
  let below = null;
  return columns.map((column) => {
    const base = below;
    below = column.map((value, at) =>
      value === null && (base?.[at] ?? null) === null ? null : (base?.[at] ?? 0) + (value ?? 0),
    );
    return below;
  });
}

/** Times in seconds and columns of the fields of a history; where points are missing there is a
 * gap, not a line. */
export function columnsOf(series, keys) {
  const times = [];
  const columns = keys.map(() => []);
  let last = null;
  for (const point of series.points) {
    if (last !== null && point.unix_ms - last > 1.5 * series.step_ms) {
      times.push((last + series.step_ms) / 1000);
      for (const column of columns) column.push(null);
    }
    times.push(point.unix_ms / 1000);
    keys.forEach((key, at) => columns[at].push(point[key] ?? null));
    last = point.unix_ms;
  }
  return { times, columns };
}
