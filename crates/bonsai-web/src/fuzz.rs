//! What the fuzz targets call.

use axum::extract::Query;
use axum::http::Uri;

use crate::library::asked::Asked;

/// Reads any bytes as what stands behind the question mark: it is asked for, or refused in a sentence.
pub fn asked(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(uri) = format!("/personal/master.m3u8?{text}").parse::<Uri>() else {
        return;
    };
    let Ok(Query(asked)) = Query::<Asked>::try_from_uri(&uri) else {
        return;
    };
    let errors = [asked.query().err(), asked.of().err(), asked.cut().err()];
    for error in errors.into_iter().flatten() {
        assert!(error.is_input() && !error.to_string().is_empty());
    }
}
