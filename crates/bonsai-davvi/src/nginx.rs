//! A configuration of nginx that serves a library, and nothing else of the machine.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;

use crate::{Error, Library};

/// How nginx serves a library.
#[derive(Clone, Debug)]
pub struct Nginx {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whom its workers run as, where root starts it; otherwise what nginx was built with.
    pub user: Option<String>,
    /// Pages of this origin may read what it serves (CORS), such as `http://127.0.0.1:8000`; `*` for all.
    pub origin: Option<String>,
}

/// The configuration: a file of its own for `nginx -c`. Its workers need to be able to read the library.
///
/// # Errors
/// The library's path or what was asked for cannot be written in it.
pub fn nginx(library: &Library, how: &Nginx) -> Result<String, Error> {
    let state = library.private("nginx");
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&state);
    made.map_err(Error::file(&state, "cannot be made"))?;
    let root = library.path();
    let quoted = |path: &std::path::Path| {
        let text = path
            .to_str()
            .filter(|text| !text.contains(|c: char| c == '$' || c.is_control()));
        text.map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))).ok_or_else(|| {
            Error::input(format!(
                "{}: nginx cannot be told of a path with $ or control characters, or that is no UTF-8",
                root.display()
            ))
        })
    };
    let in_state = |name: &str| quoted(&state.join(name));
    let user = match &how.user {
        Some(user) if is_word(user) => format!("user {user};\n"),
        Some(user) => return Err(Error::input(format!("{user:?} is no user"))),
        None => String::new(),
    };
    let origin = match &how.origin {
        Some(origin) if is_origin(origin) => {
            format!(
                "\n        add_header Access-Control-Allow-Origin \"{origin}\";\n        \
                     add_header Access-Control-Expose-Headers \"Content-Length, Content-Range, ETag\";"
            )
        }
        Some(origin) => {
            return Err(Error::input(format!(
                "{origin:?} is no origin: write http://HOST[:PORT] or *"
            )));
        }
        None => String::new(),
    };
    // Listing, symbolic links and everything that is no playlist or segment stay closed.
    Ok(format!(
        r#"# Made by `bonsai davvi nginx`: serves a library, and nothing else.
# bonsai run --name davvi --limit send=80Mbit/s -- nginx -e stderr -c THIS_FILE
{user}daemon off;
worker_processes auto;
pid {pid};
error_log stderr warn;
# Without these a new binary (SIGUSR2) would run without its limits.
env LD_PRELOAD;
env BONSAI_LEDGER;

events {{
    worker_connections 8192;
}}

http {{
    types {{
        application/vnd.apple.mpegurl m3u8;
        application/dash+xml mpd;
        video/mp4 mp4;
    }}
    default_type application/octet-stream;
    access_log off;
    server_tokens off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 65s;
    # Whoever is slow to ask or to take holds a connection for no longer than this.
    client_header_timeout 10s;
    send_timeout 30s;
    client_max_body_size 1k;
    client_body_temp_path {body};
    proxy_temp_path {proxy};
    fastcgi_temp_path {fastcgi};
    uwsgi_temp_path {uwsgi};
    scgi_temp_path {scgi};
    open_file_cache max=10000 inactive=60s;
    open_file_cache_valid 10s;

    server {{
        listen {listen};
        server_name _;
        root {root};
        autoindex off;
        disable_symlinks on from=$document_root;
        # Another video may come to have the name of one: ETags tell whether it is still the same.
        add_header Cache-Control "private, no-cache";{origin}

        location / {{
            return 404;
        }}
        location ~ "^/[a-z0-9][a-z0-9_-]*/(master|audio|[0-9]+p)\.m3u8$" {{
            limit_except GET {{ deny all; }}
        }}
        location ~ "^/[a-z0-9][a-z0-9_-]*/manifest\.mpd$" {{
            limit_except GET {{ deny all; }}
        }}
        location ~ "^/[a-z0-9][a-z0-9_-]*/(audio|[0-9]+p)/(init|[0-9]+)\.mp4$" {{
            limit_except GET {{ deny all; }}
        }}
    }}
}}
"#,
        pid = in_state("pid")?,
        body = in_state("body")?,
        proxy = in_state("proxy")?,
        fastcgi = in_state("fastcgi")?,
        uwsgi = in_state("uwsgi")?,
        scgi = in_state("scgi")?,
        listen = how.listen,
        root = quoted(root)?,
    ))
}

fn is_word(text: &str) -> bool {
    let is_of_words = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=32).contains(&text.len()) && text.bytes().all(is_of_words)
}

fn is_origin(text: &str) -> bool {
    let host = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let is_of_hosts = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
    text == "*"
        || host.is_some_and(|host| (1..=255).contains(&host.len()) && host.bytes().all(is_of_hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Readers;

    #[test]
    fn nothing_that_is_asked_for_is_a_directive() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = |name: &str| {
            Library::make(&folder.path().join(name), Readers::Owner).expect("a library")
        };
        let how = Nginx {
            listen: "127.0.0.1:8080".parse().expect("an address"),
            user: None,
            origin: None,
        };
        let text = nginx(&library("my \"films\" \\ 1"), &how).expect("a configuration");
        assert!(text.contains("listen 127.0.0.1:8080;"), "{text}");
        assert!(text.contains(r#"my \"films\" \\ 1";"#), "{text}");
        assert!(
            !text.contains("user ") && !text.contains("Access-Control"),
            "{text}"
        );
        nginx(&library("a$b"), &how).expect_err("a variable");
        nginx(&library("a\nb"), &how).expect_err("two lines");
        for user in ["", "a b", "root; daemon on"] {
            let how = Nginx {
                user: Some(user.to_owned()),
                ..how.clone()
            };
            nginx(&library("c"), &how).expect_err(user);
        }
        for (origin, is_good) in [
            ("*", true),
            ("http://[::1]:80", true),
            ("http://a\"; x", false),
            ("a", false),
        ] {
            let how = Nginx {
                origin: Some(origin.to_owned()),
                ..how.clone()
            };
            assert_eq!(nginx(&library("d"), &how).is_ok(), is_good, "{origin}");
        }
    }
}
