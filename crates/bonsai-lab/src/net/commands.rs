//! `bonsai-bench net send` and `net recv`: both ends as programs, for any namespace or machine; what
//! they found is JSON on standard output.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use bonsai_units::{Rate, Unit};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::traffic::{Protocol, SendSpec};
use super::{tcp, udp};

/// One end.
#[derive(Debug, Subcommand)]
pub(crate) enum End {
    /// Send datagrams with numbers and instants, or connections' bytes.
    Send(SendArgs),
    /// Receive until a signal comes or the time is over, then say what came.
    Recv(RecvArgs),
}

/// What is sent.
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Where to, such as 10.0.0.2:7000.
    to: SocketAddrV4,
    /// What carries it.
    #[arg(long, value_enum, default_value = "udp")]
    protocol: Protocol,
    /// Of all flows, such as 100Mbit/s: of layer 2 for datagrams, of payload for connections; as much
    /// as goes where it is not given.
    #[arg(long, value_parser = bytes_per_sec)]
    rate: Option<u64>,
    /// Flows.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    flows: u16,
    /// Bytes of payload of a datagram.
    #[arg(long, default_value_t = 1_400)]
    message: u32,
    /// Datagrams in one call: more than one for high rates.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    segments: u16,
    /// Bytes that a socket of datagrams may have waiting, as SO_SNDBUF counts them.
    #[arg(long)]
    queue: Option<u32>,
    /// Congestion control of connections, such as cubic.
    #[arg(long)]
    congestion: Option<String>,
    /// For so many seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// What is received.
#[derive(Debug, Args)]
pub(crate) struct RecvArgs {
    /// The port.
    port: u16,
    /// What carries it.
    #[arg(long, value_enum, default_value = "udp")]
    protocol: Protocol,
    /// Keep each arrival of datagrams.
    #[arg(long)]
    arrivals: bool,
    /// The MTU of the way.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u64).range(576..=65_535))]
    mtu: u64,
    /// For so many seconds at most.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
}

/// Runs it.
///
/// # Errors
/// What the system says.
pub(crate) fn run(end: &End) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let text = match end {
        End::Send(args) => {
            let spec = args.spec();
            let sent = match args.protocol {
                Protocol::Udp => udp::Sender::open(&spec, args.to)?.run(&stop)?,
                Protocol::Tcp => tcp::Sender::open(&spec, args.to)?.run(&stop)?,
            };
            serde_json::to_string(&sent)?
        }
        End::Recv(args) => {
            let over = Arc::clone(&stop);
            let length = Duration::from_secs(args.seconds);
            std::thread::spawn(move || {
                std::thread::sleep(length);
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let quiet = Duration::from_millis(100);
            let received = match args.protocol {
                Protocol::Udp => udp::Receiver::open(args.port, args.arrivals)?.run(&stop, quiet),
                Protocol::Tcp => tcp::Receiver::open(args.port, args.mtu)?.run(&stop, quiet),
            };
            serde_json::to_string(&received?)?
        }
    };
    use std::io::Write;
    writeln!(std::io::stdout(), "{text}").context("standard output")
}

fn bytes_per_sec(text: &str) -> Result<u64, String> {
    let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
    let bytes = rate.milli() / 1_000;
    if rate.unit() != Unit::Bytes || bytes == 0 {
        return Err("a rate of bytes is needed, such as 100Mbit/s".to_owned());
    }
    Ok(bytes)
}

impl SendArgs {
    fn spec(&self) -> SendSpec {
        SendSpec {
            protocol: self.protocol,
            flows: self.flows,
            message: self.message,
            segments: self.segments,
            queue: self.queue,
            congestion: self.congestion.clone(),
            ..SendSpec::udp(self.rate, Duration::from_secs(self.seconds))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_bytes_and_more_than_none() {
        assert_eq!(bytes_per_sec("100Mbit/s"), Ok(12_500_000));
        for bad in ["", "5/s", "0B/s", "x"] {
            bytes_per_sec(bad).expect_err(bad);
        }
    }
}
