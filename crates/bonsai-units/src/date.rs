/// The day of a time in the calendar, UTC: `2026-01-31`.
///
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
#[must_use]
pub fn format_date(unix_s: u64) -> String {
    // Years begin in March, and so end with the day that some have and others have not.
    let days = unix_s / 86_400 + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + next)
}

/// A time in UTC, to the second (RFC 3339): `2026-01-31T12:34:56Z`.
#[must_use]
pub fn format_utc(unix_s: u64) -> String {
    let second = unix_s % 86_400;
    format!(
        "{}T{:02}:{:02}:{:02}Z",
        format_date(unix_s),
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}
