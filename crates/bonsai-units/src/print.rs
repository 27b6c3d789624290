//! Printing: exactly, for machines, and with three digits, for people.

/// Decimal prefixes as powers of ten.
pub(crate) const DECIMAL: [(&str, u32); 5] = [("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12)];

/// Binary prefixes as powers of two.
const BINARY: [(&str, u32); 4] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];

/// `value * 10^-scale` exactly, without a prefix and without needless zeros.
pub(crate) fn exact(value: u64, scale: u32) -> String {
    let one = 10_u64.pow(scale);
    let (whole, rest) = (value / one, value % one);
    if rest == 0 {
        return whole.to_string();
    }
    let width = usize::try_from(scale).unwrap_or(usize::MAX);
    format!(
        "{whole}.{}",
        format!("{rest:0width$}").trim_end_matches('0')
    )
}

/// `value * 10^-scale` exactly, with the decimal or binary prefix that makes
/// it shortest; a prefix above the value is not used. `scale` is at most 3.
pub(crate) fn exact_prefixed(value: u64, scale: u32) -> String {
    let thousandths = 10_u64.pow(scale);
    let decimal = DECIMAL
        .iter()
        .rev()
        .filter(|(_, power)| *power == 0 || value / thousandths >= 10_u64.pow(*power));
    let decimal = decimal.map(|(prefix, power)| exact(value, scale + power) + prefix);
    let binary = BINARY.iter().filter_map(|(prefix, power)| {
        let one = thousandths << power;
        (value >= one && value.is_multiple_of(one)).then(|| format!("{}{prefix}", value / one))
    });
    // The first of the shortest: decimal before binary, 999.4k before 999400.
    decimal
        .chain(binary)
        .min_by_key(String::len)
        .unwrap_or_default()
}

/// One unit of a ladder: it is used from `from` ticks on and is `ticks` long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rung {
    pub(crate) from: u128,
    pub(crate) ticks: u128,
    pub(crate) name: &'static str,
}

impl Rung {
    /// A unit that is used from one of it on.
    pub(crate) const fn new(ticks: u128, name: &'static str) -> Self {
        Self {
            from: ticks,
            ticks,
            name,
        }
    }
}

/// `ticks` in the fitting unit of `ladder`, rounded to three significant
/// digits or to whole units, whichever is finer.
pub(crate) fn human(ticks: u128, ladder: &[Rung]) -> String {
    let at = ladder
        .iter()
        .rposition(|rung| rung.from <= ticks)
        .unwrap_or(0);
    let rung = ladder[at];
    let decimals = match ticks / rung.ticks {
        100.. => 0,
        10.. => 1,
        1.. => 2,
        0 => 3,
    };
    let scale = 10_u128.pow(decimals);
    let rounded = (ticks * scale + rung.ticks / 2) / rung.ticks;
    // 999.6 kB is 1 MB, not 1000 kB.
    if let Some(next) = ladder.get(at + 1)
        && rounded * rung.ticks >= next.from * scale
    {
        return human(next.from, ladder);
    }
    // At most three digits and `scale` decimals: far from the end of u64.
    let rounded = u64::try_from(rounded).unwrap_or(u64::MAX);
    exact(rounded, decimals) + rung.name
}
