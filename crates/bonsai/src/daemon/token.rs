//! `bonsai token`.

use bonsai_api::TokenScope;

use super::{needed, said};
use crate::cli::TokenCommand;
use crate::output::{finish, print, table};

/// Makes, lists and revokes tokens.
///
/// # Errors
/// No daemon, or it will not.
pub(crate) fn token(command: &TokenCommand) -> anyhow::Result<u8> {
    let client = needed()?;
    match command {
        TokenCommand::Create { name, scope, lasts } => {
            let scope = if scope == "write" {
                TokenScope::Write
            } else {
                TokenScope::Read
            };
            let made = client.make_token(name, scope, *lasts).map_err(said)?;
            print(&format!("{}\n", made.token))?;
        }
        TokenCommand::List => {
            let mut rows = table(&["token", "may", "holds"], &[]);
            for token in client.tokens().map_err(said)? {
                let may = match token.scope {
                    TokenScope::Read => "read",
                    TokenScope::Write => "read and write",
                };
                let holds = if token.until_unix_ms.is_some() {
                    "for a time"
                } else {
                    "for good"
                };
                rows.add_row([token.name.as_str(), may, holds]);
            }
            print(&finish(&rows))?;
        }
        TokenCommand::Revoke { name } => client.revoke_token(name).map_err(said)?,
    }
    Ok(0)
}
