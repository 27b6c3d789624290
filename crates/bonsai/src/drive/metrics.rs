//! Metrics of a server over HTTP, in the text format that is asked for: OpenMetrics 1.0, or the older one of Prometheus.
//!
//! A thread of its own answers them from counters that are kept anyway: no request of a client waits for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bonsai_daemon::exposition::accepted;
use bonsai_nbd::control::{ExportStatus, status};
use bonsai_nbd::export::Export;
use bonsai_services::refusal::Refusal;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::escape::say;

/// Connections at a time; a scraper has one. The oldest that has not asked makes way for the next.
const MOST_CONNECTIONS: usize = 16;
/// How long one may take to ask, and how long it may be open.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one may take to ask where others wait.
const GRACE: Duration = Duration::from_millis(100);
/// How long nobody is let in after a failure, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers at an address, and on a socket that was passed on, until the process ends.
///
/// # Errors
/// There is no listening, or no thread.
pub(super) fn start(
    at: Option<SocketAddr>,
    passed: Option<TcpListener>,
    exports: &[Arc<Export>],
) -> anyhow::Result<()> {
    let bound = at.map(|at| {
        let failed = |error| Refusal::input(format!("--metrics {at}: cannot listen: {error}"));
        TcpListener::bind(at).map_err(failed)
    });
    for listener in bound.transpose()?.into_iter().chain(passed) {
        listener.set_nonblocking(true)?;
        let exports = Arc::<[Arc<Export>]>::from(exports);
        let at = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve(listener, &exports)) {
                    say!("bonsai: metrics: {error}");
                }
            })?;
        say!("bonsai: metrics are at http://{at}/metrics");
    }
    Ok(())
}

async fn serve(listener: TcpListener, exports: &Arc<[Arc<Export>]>) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut open: VecDeque<Asking> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        make_way(&mut open).await;
        let exports = Arc::clone(exports);
        let has_asked = Arc::<AtomicBool>::default();
        let own = Arc::clone(&has_asked);
        let connection = tokio::spawn(async move {
            let service = service_fn(|request| {
                own.store(true, Ordering::Relaxed);
                let answer = answer(&request, &exports);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // How it ends is the scraper's business.
            let _ = timeout(CONNECTION_TIMEOUT, connection).await;
        });
        open.push_back(Asking {
            connection: connection.abort_handle(),
            since: Instant::now(),
            has_asked,
        });
    }
}

/// A connection.
struct Asking {
    connection: AbortHandle,
    since: Instant,
    has_asked: Arc<AtomicBool>,
}

/// Sees to it that there is room for one more. Whoever asks half a question, or none, keeps nobody out, and has a moment to ask.
async fn make_way(open: &mut VecDeque<Asking>) {
    loop {
        open.retain(|one| !one.connection.is_finished());
        if open.len() < MOST_CONNECTIONS {
            return;
        }
        let silent = open
            .iter()
            .position(|one| !one.has_asked.load(Ordering::Relaxed));
        let at = silent.unwrap_or(0);
        let left = open
            .get(at)
            .map(|one| GRACE.saturating_sub(one.since.elapsed()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            sleep(left).await;
            continue;
        }
        if let Some(one) = open.remove(at) {
            one.connection.abort();
        }
    }
}

fn answer(request: &Request<Incoming>, exports: &[Arc<Export>]) -> Response<Full<Bytes>> {
    let of = |code: StatusCode, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = code;
        response
    };
    if request.uri().path() != "/metrics" {
        return of(
            StatusCode::NOT_FOUND,
            "metrics are at /metrics\n".to_owned(),
        );
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = of(StatusCode::METHOD_NOT_ALLOWED, String::new());
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    match text(exports) {
        Ok(text) => {
            let accept = request.headers().get(ACCEPT);
            let (kind, text) = accepted(accept.and_then(|accept| accept.to_str().ok()), text);
            let mut response = of(StatusCode::OK, text);
            let kind = HeaderValue::from_static(kind);
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(error) => of(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfExport {
    export: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOperation {
    export: String,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForReason {
    export: String,
    reason: &'static str,
}

/// The metrics as they are now.
fn text(exports: &[Arc<Export>]) -> Result<String, std::fmt::Error> {
    let status: Vec<ExportStatus> = exports.iter().map(|export| status(export)).collect();
    let mut registry = Registry::with_prefix("bonsai");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of this program", build);
    requests(&mut registry, &status);
    sharing(&mut registry, &status);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// A metric of each export.
fn each<M: Default>(
    family: &Family<OfExport, M>,
    status: &[ExportStatus],
    set: impl Fn(&M, &ExportStatus),
) {
    for of in status {
        let export = of.name.clone();
        set(&family.get_or_create(&OfExport { export }), of);
    }
}

fn requests(registry: &mut Registry, status: &[ExportStatus]) {
    let requests = Family::<OfOperation, Counter>::default();
    let bytes = Family::<OfOperation, Counter>::default();
    let errors = Family::<ForReason, Counter>::default();
    for of in status {
        let label = |operation| OfOperation {
            export: of.name.clone(),
            operation,
        };
        for (operation, count) in [
            ("read", of.reads),
            ("write", of.writes),
            ("flush", of.flushes),
        ] {
            requests.get_or_create(&label(operation)).inc_by(count);
        }
        for (operation, count) in [("read", of.read_bytes), ("write", of.written_bytes)] {
            bytes.get_or_create(&label(operation)).inc_by(count);
        }
        for (reason, count) in [("invalid", of.refused), ("failed", of.failed)] {
            let export = of.name.clone();
            errors
                .get_or_create(&ForReason { export, reason })
                .inc_by(count);
        }
    }
    registry.register(
        "block_requests",
        "Requests that were done; zeroes and trims are writes, writes with FUA are flushes as well",
        requests,
    );
    let help = "Bytes that were read and written, redirected or not; of zeroes and trims those that they are about";
    registry.register_with_unit("block_request", help, Unit::Bytes, bytes);
    registry.register(
        "block_request_errors",
        "Requests that made no sense (invalid), or that the disk failed (failed)",
        errors,
    );
    let connections = Family::<OfExport, Gauge>::default();
    each(&connections, status, |gauge, of| {
        gauge.set(signed(of.connections));
    });
    registry.register("block_connections", "Connections now", connections);
    let sizes = Family::<OfExport, Gauge>::default();
    each(&sizes, status, |gauge, of| {
        gauge.set(signed(of.size));
    });
    registry.register_with_unit("block_size", "Size of the image", Unit::Bytes, sizes);
    let cached = Family::<OfExport, Counter>::default();
    each(&cached, status, |counter, of| {
        counter.inc_by(of.at_once);
    });
    let help = "Reads that the page cache had, in this place or another";
    registry.register("block_cached_reads", help, cached);
}

fn sharing(registry: &mut Registry, status: &[ExportStatus]) {
    let shared = |of: &ExportStatus| of.sharing.clone();
    let mut counter = |name: &str,
                       unit: Option<Unit>,
                       help: &str,
                       get: fn(&bonsai_nbd::control::SharingStatus) -> u64| {
        let family = Family::<OfExport, Counter>::default();
        each(&family, status, |counter, of| {
            if let Some(shared) = shared(of) {
                counter.inc_by(get(&shared));
            }
        });
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    };
    counter(
        "block_saved_reads",
        None,
        "Reads that needed no disk, as their blocks were elsewhere or zero",
        |of| of.reads_saved,
    );
    counter(
        "block_redirected",
        Some(Unit::Bytes),
        "Bytes that came from the page cache in another block's place",
        |of| of.redirected_bytes,
    );
    counter(
        "block_zero",
        Some(Unit::Bytes),
        "Bytes that were answered as zeroes without a read",
        |of| of.zero_bytes,
    );
    counter(
        "block_outside_writes",
        None,
        "Times that another program wrote to the image",
        |of| of.outside_writes,
    );
    let kept = Family::<ForReason, Counter>::default();
    for (of, shared) in status.iter().filter_map(|of| Some((of, shared(of)?))) {
        for (reason, count) in [
            ("unknown", shared.not_known),
            ("leader", shared.leads),
            ("cold", shared.cold),
            ("split", shared.split),
            ("raced", shared.raced),
            ("mismatch", shared.wrong),
        ] {
            let export = of.name.clone();
            kept.get_or_create(&ForReason { export, reason })
                .inc_by(count);
        }
    }
    let help = "Blocks of 4 KiB that were read where they are, by the reason";
    registry.register("block_unredirected_blocks", help, kept);
    // Of all exports together: there is one map.
    if let Some(shared) = status.iter().find_map(shared) {
        for (name, help, value) in [
            (
                "block_map",
                "Memory of the map of blocks",
                shared.metadata_bytes,
            ),
            (
                "block_map_limit",
                "The most memory that the map may take",
                shared.metadata_limit,
            ),
        ] {
            let gauge: Gauge<i64> = Gauge::default();
            gauge.set(signed(value));
            registry.register_with_unit(name, help, Unit::Bytes, gauge);
        }
        for (name, help, value) in [
            (
                "block_map_blocks",
                "Blocks whose content is known",
                shared.known_blocks,
            ),
            (
                "block_map_contents",
                "Different contents of these",
                shared.contents,
            ),
        ] {
            let gauge: Gauge<i64> = Gauge::default();
            gauge.set(signed(value));
            registry.register(name, help, gauge);
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
