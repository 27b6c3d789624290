//! Errors of parsers in the words of a document's author: its types are those of TOML and JSON, not Rust's.

use crate::limits::nearest;

/// A sentence of serde's, such as `invalid type: string "40Mbit/s", expected struct Terms`, without words of the program's own.
#[must_use]
pub fn of_document(message: &str) -> String {
    let message = message.trim_end();
    // JSON ends with where it was, which a path says better.
    let (message, place) = match message.rfind(" at line ") {
        Some(at) => message.split_at(at),
        None => (message, ""),
    };
    let said = typed(message)
        .or_else(|| unknown(message))
        .or_else(|| missing(message))
        .unwrap_or_else(|| message.to_owned());
    said + place
}

fn typed(message: &str) -> Option<String> {
    let rest = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|start| message.strip_prefix(start))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let text = found.strip_prefix("string ");
    // A rate in the place of a table of terms is the mistake that is made most.
    if let (Some(text), "struct Terms") = (text, expected) {
        return Some(format!(
            "{text} stands for a table: write {{ max = {text} }}, or min"
        ));
    }
    let found = match text {
        Some(text) => text.to_owned(),
        None => self::found(found),
    };
    Some(format!(
        "{found} is not what belongs here: write {}",
        wanted(expected)
    ))
}

/// The value that was found, with its type as the documents call it.
fn found(text: &str) -> String {
    let (kind, value) = text.split_once(' ').unwrap_or((text, ""));
    match kind {
        "integer" | "boolean" | "character" => value.trim_matches('`').to_owned(),
        "floating" => value
            .trim_start_matches("point ")
            .trim_matches('`')
            .to_owned(),
        "map" | "struct" | "newtype" => "a table".to_owned(),
        "sequence" | "tuple" => "a list".to_owned(),
        "null" | "unit" | "Option" => "nothing".to_owned(),
        _ if text.parse::<u64>().is_ok() => format!("a list of {text}"),
        _ => text.to_owned(),
    }
}

/// The value that would be right.
fn wanted(expected: &str) -> String {
    let word = match expected {
        "a string" | "string" | "path string" | "str" => "a text in quotes",
        "a boolean" | "bool" => "true or false",
        "a map" | "a table" => "a table",
        "a sequence" => "a list",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not negative, in its range",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number in its range",
        "f32" | "f64" => "a number",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged") => {
            "a table"
        }
        _ if expected.starts_with("enum ") || expected.contains("variant") => {
            "one of the words that it knows, in quotes"
        }
        other => return other.to_owned(),
    };
    word.to_owned()
}

fn unknown(message: &str) -> Option<String> {
    let (what, rest) = match message.strip_prefix("unknown field ") {
        Some(rest) => ("setting", rest),
        None => ("word", message.strip_prefix("unknown variant ")?),
    };
    let (name, known) = rest.strip_prefix('`')?.split_once('`')?;
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let near = nearest(name, known.iter().copied());
    let near = near.map_or_else(String::new, |near| format!("; is {near} meant?"));
    if known.is_empty() {
        return Some(format!(
            "there is no {what} {name:?} here, nor any other{near}"
        ));
    }
    Some(format!(
        "there is no {what} {name:?} here, there are {}{near}",
        known.join(", ")
    ))
}

fn missing(message: &str) -> Option<String> {
    let name = message.strip_prefix("missing field `")?.strip_suffix('`')?;
    Some(format!("{name} is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_said_in_the_words_of_the_document() {
        for (said, words) in [
            (
                "invalid type: string \"40Mbit/s\", expected struct Terms",
                "\"40Mbit/s\" stands for a table: write { max = \"40Mbit/s\" }, or min",
            ),
            (
                "invalid type: integer `5`, expected a string",
                "5 is not what belongs here: write a text in quotes",
            ),
            (
                "invalid type: floating point `1.5`, expected u16",
                "1.5 is not what belongs here: write a whole number, not negative, in its range",
            ),
            (
                "invalid type: map, expected a boolean",
                "a table is not what belongs here: write true or false",
            ),
            (
                "invalid type: sequence, expected struct Config at line 1 column 2",
                "a list is not what belongs here: write a table at line 1 column 2",
            ),
            (
                "unknown field `sned`, expected one of `read`, `write`, `send`",
                "there is no setting \"sned\" here, there are read, write, send; is send meant?",
            ),
            (
                "unknown variant `dynamik`, expected `static` or `dynamic`",
                "there is no word \"dynamik\" here, there are static, dynamic; is dynamic meant?",
            ),
            ("missing field `key`", "key is missing"),
            ("\"5\" has no unit", "\"5\" has no unit"),
        ] {
            assert_eq!(of_document(said), words);
        }
    }
}
