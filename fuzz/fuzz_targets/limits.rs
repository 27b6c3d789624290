//! Any text as a limit, a setting, a rate, an amount or a time: it is refused in one
//! line, or means the same when it is printed and read again.
#![no_main]

use bonsai_units::{Burst, Bytes, LimitSpec, Rate, Setting, parse_duration};
use libfuzzer_sys::fuzz_target;
use std::fmt::{Debug, Display};
use std::str::FromStr;

fn again<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Display + Debug,
{
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>().as_ref().ok(), Some(&value)),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
}

fuzz_target!(|text: &str| {
    again::<LimitSpec>(text);
    again::<Setting>(text);
    again::<Rate>(text);
    again::<Burst>(text);
    again::<Bytes>(text);
    let _ = parse_duration(text);
});
