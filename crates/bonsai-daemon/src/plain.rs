//! Texts that come in: names, paths and reasons are of plain characters ([`bonsai_units::text`]), wherever they stand in a
//! document. They are shown to other users than wrote them, in terminals, logs and metrics.

use bonsai_api::Config;
use bonsai_units::text::{check_plain, escaped};
use serde_json::Value;

/// Maximum length of a reason, in characters. The schema of the interface says the same.
pub(crate) const REASON: usize = 1000;

/// Checks every name and every text of a document.
///
/// # Errors
/// The place of the first that is not plain, and its character.
pub(crate) fn document(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => check_plain(text),
        Value::Array(values) => values.iter().try_for_each(document),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            check_plain(name)?;
            document(value).map_err(|why| format!("{}: {why}", escaped(name)))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Checks a configuration.
///
/// # Errors
/// See [`document`].
pub(crate) fn config(config: &Config) -> Result<(), String> {
    // Paths that are no UTF-8 are no JSON.
    let value = serde_json::to_value(config).map_err(|error| error.to_string())?;
    document(&value)
}

/// Checks the reason of a change.
///
/// # Errors
/// The character that is not plain, or the length.
pub fn reason(text: &str) -> Result<(), String> {
    let length = text.chars().count();
    if length > REASON {
        return Err(format!(
            "reason: {length} characters are more than the {REASON} that one may have"
        ));
    }
    check_plain(text).map_err(|why| format!("reason: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_place_of_a_document_takes_what_steers_a_terminal() {
        document(&json!({"services": {"ä": {"limits": {"send": "1MB/s"}}}, "n": [1, null, true]}))
            .expect("plain");
        for odd in [
            "\u{1b}[31m",
            "a\r\nb",
            "\0",
            "\u{202e}",
            "\u{9b}2J",
            "\u{200b}",
            "\u{7f}",
        ] {
            for value in [
                json!(odd),
                json!({odd: 1}),
                json!({"a": {"b": [{"c": odd}]}}),
                json!([[odd]]),
            ] {
                let why = document(&value).expect_err("it is not plain");
                assert!(why.chars().all(bonsai_units::text::is_plain), "{why:?}");
            }
            reason(&format!("x{odd}")).expect_err("it is not plain");
        }
        let why = document(&json!({"a": {"b": "\u{7}"}})).expect_err("a bell");
        assert!(why.starts_with("a: b: ") && why.contains("U+0007"), "{why}");
        reason(&"ä".repeat(REASON)).expect("as long as may be");
        reason(&"ä".repeat(REASON + 1)).expect_err("longer");
    }

    #[test]
    fn a_configuration_with_such_a_text_is_refused() {
        for text in [
            "[services.a]\ntarget = \"container:x\\u001b[31m\"",
            "[classes.\"a\\u202Eb\".send]\nweight = 2",
            "[groups.\"a\\nb\".send]\nweight = 2",
            "[links.\"e\\u001b0\"]\ntx = \"1MB/s\"",
            "[api]\nread-group = \"a\\u0007\"",
            "[daemon]\nstate = \"/a\\nb\"",
        ] {
            let why = crate::parse_config(text).expect_err(text);
            assert!(why.chars().all(bonsai_units::text::is_plain), "{why:?}");
            let parsed: Config = toml::from_str(text).expect("TOML");
            crate::plan::check(&parsed).expect_err(text);
        }
    }
}
