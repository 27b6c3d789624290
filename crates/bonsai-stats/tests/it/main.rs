//! Known answers, properties, and how often the intervals are right.

mod bootstrap;
mod histogram;
mod sample;
mod sharing;

/// Whether two numbers agree to 12 digits.
fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs()).max(1.0)
}

/// Asserts that a result agrees with a known answer.
#[track_caller]
fn assert_close(got: Option<f64>, want: f64) {
    let got = got.expect("a result");
    assert!(close(got, want), "{got} is not {want}");
}
