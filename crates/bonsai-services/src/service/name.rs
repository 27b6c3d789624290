//! Names of services.

use std::path::Path;

use crate::refusal::Refusal;

/// The most letters of a name.
const NAME_MAX: usize = 63;

/// How many numbers are tried after a program's name.
pub(super) const NUMBERS: u32 = 10_000;

/// Whether `name` may be a service's name.
///
/// # Errors
/// A [`Refusal`] that says what a name looks like.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > NAME_MAX {
        format!("it has more than {NAME_MAX} letters")
    } else if name.starts_with(['.', '-']) {
        "it starts with a dot or a dash".to_owned()
    } else if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        format!("it has {c:?} in it")
    } else {
        return Ok(());
    };
    let text = format!(
        "{name:?} cannot be the name of a service, {why}: names are made of letters, digits, \
         dots, underscores and dashes, such as vod-1"
    );
    Err(Refusal::input(text))
}

/// A name made from a program's file name, with room for a number.
pub fn name_like(program: &Path) -> String {
    let file = program.file_name().unwrap_or_default().to_string_lossy();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = file
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(NAME_MAX - "-10000".len())
        .collect();
    match name.strip_prefix(['.', '-']) {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "service".to_owned(),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "vod-1", "A.b_c", &"x".repeat(NAME_MAX)] {
            check_name(name).expect(name);
        }
        for name in ["", ".a", "-a", "a/b", "a b", "ä", &"x".repeat(NAME_MAX + 1)] {
            check_name(name).expect_err(name);
        }
        for (program, name) in [
            ("/usr/sbin/nginx", "nginx"),
            ("my prog", "my_prog"),
            (".hidden", "_hidden"),
            ("-x", "_x"),
            ("/", "service"),
        ] {
            assert_eq!(name_like(Path::new(program)), name);
        }
        check_name(&format!(
            "{}-{NUMBERS}",
            name_like(Path::new(&"y".repeat(200)))
        ))
        .expect("fits");
    }
}
