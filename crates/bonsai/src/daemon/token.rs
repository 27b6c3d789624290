//! `bonsai token`.

use bonsai_api::{Token, TokenScope};
use bonsai_services::observe::{SCHEMA, unix_ms};
use bonsai_units::format_duration_ns;
use serde_json::json;

use super::{needed, said};
use crate::cli::TokenCommand;
use crate::output::{finish, print, print_json, table};

/// Makes, lists and revokes tokens.
///
/// # Errors
/// No daemon, or it will not.
pub(crate) fn token(command: &TokenCommand) -> anyhow::Result<u8> {
    let client = needed()?;
    match command {
        TokenCommand::Create {
            name,
            scope,
            lasts,
            json,
        } => {
            let scope = if scope == "write" {
                TokenScope::Write
            } else {
                TokenScope::Read
            };
            let made = client.make_token(name, scope, *lasts).map_err(said)?;
            if *json {
                print_json(&made, false)?;
            } else {
                print(&format!("{}\n", made.token))?;
            }
        }
        TokenCommand::List { json } => {
            let tokens = client.tokens().map_err(said)?;
            if *json {
                print_json(&tokens, false)?;
            } else {
                print(&listed(&tokens, unix_ms()))?;
            }
        }
        TokenCommand::Revoke { name, json } => {
            client.revoke_token(name).map_err(said)?;
            if *json {
                print_json(&json!({"schema": SCHEMA, "revoked": name}), false)?;
            }
        }
    }
    Ok(0)
}

/// Tokens, and when each ends; at a time, ms since 1970.
fn listed(tokens: &[Token], now: u64) -> String {
    let mut rows = table(&["token", "page of", "may", "holds"], &[]);
    for token in tokens {
        let may = match token.scope {
            TokenScope::Read => "read",
            TokenScope::Write => "read and write",
        };
        let time = |ms: u64| format_duration_ns(ms.saturating_mul(1_000_000));
        let holds = match token.until_unix_ms {
            None => "for good".to_owned(),
            Some(until) if token.expired => {
                format!(
                    "expired {} ago, and is refused",
                    time(now.saturating_sub(until))
                )
            }
            Some(until) => format!("{} more", time(until.saturating_sub(now))),
        };
        let page_of = token.page_of.as_deref().unwrap_or("-");
        rows.add_row([token.name.as_str(), page_of, may, &holds]);
    }
    finish(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_each_token_is_listed() {
        let token = |name: &str, until_unix_ms, expired| Token {
            name: name.to_owned(),
            page_of: None,
            scope: TokenScope::Read,
            created_unix_ms: 0,
            until_unix_ms,
            expired,
        };
        let tokens = [
            token("good", None, false),
            token("short", Some(10_000), true),
            token("long", Some(72_000), false),
        ];
        let text = listed(&tokens, 12_000);
        let line = |name: &str| {
            let of_it = |line: &&str| line.trim_start().starts_with(name);
            text.lines().find(of_it).expect("a line").to_owned()
        };
        assert!(line("good").ends_with("for good"), "{text}");
        assert!(
            line("short").ends_with("expired 2 s ago, and is refused"),
            "{text}"
        );
        assert!(
            line("long").ends_with(" more") && !line("long").contains("expired"),
            "{text}"
        );
    }
}
