//! Where an export is (`doc/uri.md` of the NBD project).

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use thiserror::Error;

/// The port of NBD.
const PORT: u16 = 10_809;

/// The server of an export.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// Its port.
        port: u16,
    },
}

/// An export, as `nbd+unix:///EXPORT?socket=PATH` or `nbd://HOST:PORT/EXPORT`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Uri {
    /// Its server.
    pub place: Place,
    /// Its name; the empty one is the server's only one, or its first.
    pub export: String,
}

/// A text that names no export.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text:?} {why}; write nbd+unix:///EXPORT?socket=PATH or nbd://HOST:PORT/EXPORT")]
pub struct UriError {
    text: String,
    why: &'static str,
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let wrong = |why| UriError {
            text: text.to_owned(),
            why,
        };
        let url = url::Url::parse(text).map_err(|_| wrong("is no URI"))?;
        let decoded = |part: &str, why| {
            let text = percent_decode_str(part).decode_utf8();
            text.map(|text| text.into_owned()).map_err(|_| wrong(why))
        };
        let place = match url.scheme() {
            "nbd+unix" => {
                // Not as in forms of the web: a plus sign stands for itself.
                let query = url.query().unwrap_or_default();
                let socket = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("socket="))
                    .filter(|path| !path.is_empty())
                    .ok_or_else(|| wrong("has no socket"))?;
                Place::Unix(decoded(socket, "has a socket that is no UTF-8")?.into())
            }
            "nbd" => {
                let host = url.host_str().filter(|host| !host.is_empty());
                let host = host.ok_or_else(|| wrong("has no host"))?;
                Place::Tcp {
                    // An address of version 6 stands in brackets.
                    host: host.trim_matches(['[', ']']).to_owned(),
                    port: url.port().unwrap_or(PORT),
                }
            }
            "nbds" | "nbds+unix" => return Err(wrong("wants TLS, which is not spoken here")),
            _ => return Err(wrong("is of no server of NBD")),
        };
        let path = url.path().strip_prefix('/').unwrap_or_default();
        Ok(Self {
            place,
            export: decoded(path, "has an export that is no UTF-8")?,
        })
    }
}

impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Unix(socket) => {
                write!(f, "export {:?} at {}", self.export, socket.display())
            }
            Place::Tcp { host, port } => write!(f, "export {:?} at {host}:{port}", self.export),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_have_their_places() {
        let unix = |export: &str, path: &str| Uri {
            place: Place::Unix(path.into()),
            export: export.to_owned(),
        };
        let tcp = |export: &str, host: &str, port| Uri {
            place: Place::Tcp {
                host: host.to_owned(),
                port,
            },
            export: export.to_owned(),
        };
        for (text, expected) in [
            (
                "nbd+unix:///web?socket=/run/a.sock",
                unix("web", "/run/a.sock"),
            ),
            ("nbd+unix:///?socket=/a%20b+c", unix("", "/a b+c")),
            ("nbd+unix:///a%2Fb/c?x=1&socket=s", unix("a/b/c", "s")),
            ("nbd://localhost", tcp("", "localhost", 10_809)),
            ("nbd://localhost:99/web", tcp("web", "localhost", 99)),
            ("nbd://[::1]:99/web", tcp("web", "::1", 99)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("", "is no URI"),
            ("web", "is no URI"),
            ("http://localhost/", "of no server of NBD"),
            ("nbd:///web", "no host"),
            ("nbd+unix:///web", "no socket"),
            ("nbd+unix:///web?socket=", "no socket"),
            ("nbds://localhost", "TLS"),
            ("nbd://localhost/%ff", "no UTF-8"),
        ] {
            let said = text.parse::<Uri>().expect_err(text).to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
