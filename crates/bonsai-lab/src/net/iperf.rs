//! `iperf3` in rooms: a second opinion on what a link carries.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rooms::Room;
use super::traffic::Place;

/// What it says.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Opinion {
    /// Payload that the receiver got, bytes a second.
    pub(crate) payload: f64,
    /// Segments sent again; of datagrams those that were lost.
    pub(crate) retransmitted: u64,
}

/// What it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// So many connections.
    pub(crate) flows: u16,
    /// Their congestion control.
    pub(crate) congestion: &'a str,
    /// For so many seconds.
    pub(crate) seconds: u64,
}

const PORT: u16 = 5_201;

/// Sends as much as goes from one room to another.
///
/// # Errors
/// It is not installed, or fails.
pub(crate) fn run(from: &Room, to: Place<'_>, ask: Ask<'_>) -> anyhow::Result<Opinion> {
    let patience = Duration::from_secs(ask.seconds + 10);
    let port = PORT.to_string();
    // Without a client it ends all the same.
    let idle = (ask.seconds + 10).to_string();
    let mut server = Command::new("iperf3");
    server.args([
        "-s",
        "-1",
        "-p",
        &port,
        "--idle-timeout",
        &idle,
        "--forceflush",
    ]);
    let mut server = to.room.start(&mut server)?;
    loop {
        // It says so when it listens.
        if server.line(patience)?.contains("listening") {
            break;
        }
    }
    let mut client = Command::new("iperf3");
    client.args(["-c", &to.address.to_string(), "-p", &port, "--json"]);
    client.args(["-P", &ask.flows.to_string(), "-C", ask.congestion]);
    client.args(["-t", &ask.seconds.to_string()]);
    let text = from.start(&mut client)?.finish(patience)?;
    opinion(&text)
}

fn opinion(text: &str) -> anyhow::Result<Opinion> {
    let said: Value = serde_json::from_str(text).context("iperf3: no JSON")?;
    if let Some(error) = said.get("error") {
        anyhow::bail!("iperf3: {error}");
    }
    let number = |path: &str| said.pointer(path).and_then(Value::as_f64);
    let rate = number("/end/sum_received/bits_per_second");
    let again = said
        .pointer("/end/sum_sent/retransmits")
        .and_then(Value::as_u64);
    Ok(Opinion {
        payload: rate.context("iperf3: it does not say what was received")? / 8.0,
        retransmitted: again.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let text = r#"{"end":{"sum_sent":{"retransmits":7,"bits_per_second":9.0},
                       "sum_received":{"bits_per_second":80.0}}}"#;
        let expected = Opinion {
            payload: 10.0,
            retransmitted: 7,
        };
        assert_eq!(opinion(text).expect("read"), expected);
        for bad in ["", "{}", r#"{"error":"unable to connect"}"#] {
            opinion(bad).expect_err("no report");
        }
    }
    #[test]
    fn it_runs_in_rooms() {
        const TEST: &str = "it_runs_in_rooms";
        use super::super::rooms::{Pair, Wire, tests};
        if !crate::child::is_installed("iperf3") {
            return tests::skip(TEST, "iperf3 is not installed");
        }
        let Some(pair) = tests::made(TEST, Pair::new(Wire::default())) else {
            return;
        };
        let ask = Ask {
            flows: 2,
            congestion: "reno",
            seconds: 1,
        };
        let opinion = run(&pair.client, pair.server(), ask).expect("an opinion");
        assert!(opinion.payload > 0.0, "{opinion:?}");
    }
}
