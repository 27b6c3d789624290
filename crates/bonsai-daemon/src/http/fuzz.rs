//! What the fuzz targets call of requests.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Query;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use bonsai_api::{AdmitRequest, QosReport, Undo};
use serde::de::DeserializeOwned;

use super::body::{Failure, read, revision};
use super::{auth, events, export, past, routes, tokens};

/// Reads a body.
pub(crate) fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    read(bytes)
}

fn one_line(failure: &Failure) {
    let text = &failure.0.detail;
    assert!(!text.is_empty());
    assert!((400..500).contains(&failure.0.status), "{text}");
}

/// Reads any bytes as what stands behind the question mark, and as the bodies that have a type.
pub fn queries(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(uri) = format!("/v1/x?{text}").parse::<Uri>()
    {
        drop(Query::<routes::How>::try_from_uri(&uri));
        drop(Query::<events::How>::try_from_uri(&uri));
        drop(Query::<past::Part>::try_from_uri(&uri));
        drop(Query::<export::What>::try_from_uri(&uri));
        if let Ok(Query(range)) = Query::<past::Range>::try_from_uri(&uri)
            && let Ok((from, to)) = range.seconds()
        {
            assert!(from < to, "{from} {to}");
        }
    }
    let failures = [
        read::<Undo>(bytes).err(),
        read::<QosReport>(bytes).err(),
        read::<AdmitRequest>(bytes).err(),
        read::<tokens::Wished>(bytes).err(),
    ];
    failures.iter().flatten().for_each(one_line);
}

/// Reads lines as `Host`, `Origin`, `Authorization` and `If-Match`. A name is let through only if
/// it is one of those that there are.
pub fn heads(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for name in [header::HOST, header::ORIGIN, header::AUTHORIZATION] {
        let value = lines.next().map(HeaderValue::from_bytes);
        if let Some(Ok(value)) = value {
            headers.insert(name, value);
        }
    }
    let more = ["media.example".to_owned()];
    for to in ["127.0.0.1:7117", "[::1]:7117", "192.0.2.7:443"] {
        let to: SocketAddr = to.parse().expect("an address");
        match auth::is_ours(&headers, to, &more) {
            Ok(()) => lets_through(&headers, to),
            Err(problem) => assert_eq!(problem.status, 403),
        }
    }
    if let Ok(token) = auth::shown(&headers) {
        assert_eq!(token, token.trim());
    }
    let rest = lines.next().unwrap_or_default();
    match revision(&String::from_utf8_lossy(rest)) {
        Ok(Some(number)) => assert!(String::from_utf8_lossy(rest).contains(&number.to_string())),
        Ok(None) => assert!(rest.contains(&b'*')),
        Err(failure) => one_line(&failure),
    }
}

fn lets_through(headers: &HeaderMap, to: SocketAddr) {
    if !to.ip().is_loopback() {
        return;
    }
    let known = |text: &str| {
        let text = text.to_ascii_lowercase();
        let bare = match text.rsplit_once(':') {
            Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => bare,
            _ => text.as_str(),
        };
        let ip = bare.trim_matches(['[', ']']).parse::<IpAddr>();
        let name = bare.strip_suffix('.').unwrap_or(bare);
        ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
            || ["localhost", "media.example", "127.0.0.1"].contains(&name)
    };
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str());
    let host = text(header::HOST).expect("there is one").expect("text");
    assert!(known(host), "{host}");
    if let Some(origin) = text(header::ORIGIN) {
        let origin = origin.expect("text");
        let (_, name) = origin.split_once("://").expect("a scheme");
        let is_hosts = name.eq_ignore_ascii_case(host);
        let is_other = known(name) && name.to_ascii_lowercase().contains("media.example");
        assert!(is_hosts || is_other, "{origin}");
    }
}
