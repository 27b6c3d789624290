//! One server, from its start to its end, with the trace replayed against it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use super::images::{Images, STEM};
use super::{Arm, Cell, Turn};
use crate::cage::Cage;
use crate::child::Running;
use crate::context::Context;

/// Requests under way: four of each guest.
pub(super) const DEPTH: u32 = 16;

/// How long a server may take to listen; a scan of 1.1 GB is in it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures one. With `check`, the client compares each block, which costs it as much as all else that it does: numbers of
/// such a turn are those of the client.
///
/// # Errors
/// It does not start, or something it answers is wrong.
pub(super) fn measure(
    context: &Context,
    images: &Images,
    cell: Cell,
    arm: Arm,
    check: bool,
) -> anyhow::Result<Turn> {
    images.forget()?;
    let mut cage = Cage::new(cell.memory << 20)?;
    if let Some(speed) = cell.disk {
        cage = cage.disk(context.scratch(), speed * 1_000_000)?;
    }
    let socket = context.scratch().join("replay.sock");
    let _ = fs::remove_file(&socket);
    let runtime = context.scratch().join("runtime");
    let server = serve(context, &cage, images, arm, &socket)?;
    let before = read_bytes(server.pid())?;
    let replayed = replay(context, images, cell, &socket, check)?;
    let disk = read_bytes(server.pid())? - before;
    let redirected = match arm {
        Arm::Nbdkit | Arm::Exact | Arm::Plain => 0,
        Arm::Learn | Arm::Scan => redirected(context, &runtime)?,
    };
    server.end(Duration::from_secs(20))?;
    let number = |path: &str| {
        let found = replayed.pointer(path).and_then(Value::as_f64);
        found.with_context(|| format!("no {path} in what the replay says"))
    };
    let whole = |path: &str| {
        let found = replayed.pointer(path).and_then(Value::as_u64);
        found.with_context(|| format!("no {path} in what the replay says"))
    };
    if check {
        let (checked, unchecked) = (whole("/blocks/checked")?, whole("/blocks/unchecked")?);
        anyhow::ensure!(checked > 0 && unchecked == 0, "reads were not checked");
    }
    Ok(Turn {
        arm,
        disk,
        scan: if arm == Arm::Scan { before } else { 0 },
        wall_s: number("/wall_s")?,
        requests: whole("/requests/read")?,
        read: whole("/bytes/read")?,
        redirected,
        p50_us: number("/latency_us/p50")?,
        p99_us: number("/latency_us/p99")?,
    })
}

fn serve(
    context: &Context,
    cage: &Cage,
    images: &Images,
    arm: Arm,
    socket: &Path,
) -> anyhow::Result<Running> {
    if matches!(arm, Arm::Nbdkit | Arm::Exact) {
        let mut dir = std::ffi::OsString::from("dir=");
        dir.push(images.folder());
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-r", "-U"]).arg(socket);
        command.arg("file").arg(dir);
        command.args((arm == Arm::Exact).then_some("fadvise=random"));
        let server = Running::start(&mut cage.holds(&command))?;
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(socket).is_err() {
            anyhow::ensure!(Instant::now() < deadline, "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        return Ok(server);
    }
    let mut command = Command::new(context.bonsai()?);
    command
        .args(["drive", "serve", "--read-only", "--socket"])
        .arg(socket);
    command.args(images.paths());
    match arm {
        Arm::Nbdkit | Arm::Exact | Arm::Plain => command.arg("--plain"),
        Arm::Learn => command.args(["--group", "guests"]),
        Arm::Scan => command.args(["--group", "guests", "--scan"]),
    };
    for (name, folder) in [
        ("BONSAI_RUNTIME_DIR", "runtime"),
        ("BONSAI_STATE_DIR", "state"),
    ] {
        command.env(name, context.scratch().join(folder));
    }
    let mut server = Running::start(&mut cage.holds(&command))?;
    for _ in images.paths() {
        while !server.line(PATIENCE)?.contains(" is served at ") {}
    }
    if arm == Arm::Scan {
        // Images are served before they are scanned.
        while !server.line(PATIENCE)?.contains("all images are scanned") {}
    }
    Ok(server)
}

fn replay(
    context: &Context,
    images: &Images,
    cell: Cell,
    socket: &Path,
    check: bool,
) -> anyhow::Result<Value> {
    let mut command = Command::new(context.bonsai()?);
    command.args(["trace", "replay"]).arg(&images.trace);
    let to = format!("nbd+unix:///{STEM}.{{device}}?socket={}", socket.display());
    command.args(["--to", &to, "--speed", "max", "--json"]);
    command.args(check.then_some("--check"));
    command.args(["--depth", &DEPTH.to_string()]);
    command.args(cell.merged.then_some("--merge"));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        output.status.success(),
        "bonsai trace replay: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_str(&text)?)
}

/// Bytes that a process had storage read.
fn read_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: cannot be read"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    let bytes = line.and_then(|number| number.parse().ok());
    bytes.with_context(|| format!("{path}: no read_bytes"))
}

/// What the server says of itself.
fn redirected(context: &Context, runtime: &Path) -> anyhow::Result<u64> {
    let mut command = Command::new(context.bonsai()?);
    command.args(["drive", "status", "--json"]);
    let output = command.env("BONSAI_RUNTIME_DIR", runtime).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    Ok(sum(&status, "redirected_bytes"))
}

/// All numbers of a name, wherever they stand.
fn sum(value: &Value, name: &str) -> u64 {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| match value.as_u64() {
                Some(number) if key == name => number,
                _ => sum(value, name),
            })
            .sum(),
        Value::Array(all) => all.iter().map(|value| sum(value, name)).sum(),
        _ => 0,
    }
}
