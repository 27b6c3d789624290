//! The receiving end of the bulk copier: a relay that its connections go through,
//! which counts what arrives.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use rustix::net::{self, sockopt};

use crate::meter::Meter;
use crate::sockets::{connect, socket};

/// The receive buffer of a relayed connection that takes turns, bytes: what has
/// not had its turn must wait at the sender.
const SMALL_BUFFER: usize = 64 << 10;

/// Listens for the bulk copier; each connection goes on to `target`.
///
/// # Errors
/// Nothing can listen there.
pub(crate) fn listen(
    meter: &Arc<Meter>,
    address: SocketAddr,
    target: SocketAddr,
) -> anyhow::Result<()> {
    let listener =
        listener(meter, address).with_context(|| format!("cannot listen on {address}"))?;
    let meter = Arc::clone(meter);
    // Ends with the process, as do the connections.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let meter = Arc::clone(&meter);
            match stream {
                Ok(stream) => drop(thread::spawn(move || connection(&meter, &stream, target))),
                Err(error) => meter.fail(format!("the relay takes no connections: {error}")),
            }
        }
    });
    Ok(())
}

fn listener(meter: &Meter, listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = socket(listen, meter.takes_turns().then_some(SMALL_BUFFER))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &listen)?;
    net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// Carries one connection both ways. That it ends, also in the middle, is the
/// copier's own affair; how much came is what counts.
fn connection(meter: &Meter, from: &TcpStream, target: SocketAddr) {
    let Ok(to) = connect(target, None) else {
        meter.fail(format!("the relay's target {target} does not answer"));
        return;
    };
    let (Ok(mut up_from), Ok(mut up_to)) = (from.try_clone(), to.try_clone()) else {
        meter.fail("the relay has no more descriptors".to_owned());
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; meter.chunk()];
            while let Ok(bytes) = meter.read(&mut up_from, &mut buffer) {
                meter.bulk.add(meter.now(), bytes);
                if bytes == 0 || up_to.write_all(&buffer[..bytes]).is_err() {
                    break;
                }
            }
            // It may be closed already.
            let _ = up_to.shutdown(Shutdown::Write);
            let _ = up_from.shutdown(Shutdown::Read);
        });
        // Answers are few; they are neither counted nor held up.
        let _ = io::copy(&mut &to, &mut &*from);
        let _ = from.shutdown(Shutdown::Write);
        let _ = to.shutdown(Shutdown::Read);
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::link::Link;
    use crate::record::BIN_NS;

    #[test]
    fn the_relay_counts_and_carries_both_ways() -> anyhow::Result<()> {
        for link in [None, Some(Link::new(100_000_000))] {
            let echo = TcpListener::bind("127.0.0.1:0")?;
            let target = echo.local_addr()?;
            thread::spawn(move || {
                let (stream, _) = echo.accept()?;
                io::copy(&mut &stream, &mut &stream)
            });
            let meter = Arc::new(Meter::new(link));
            let listener = listener(&meter, "127.0.0.1:0".parse()?)?;
            let address = listener.local_addr()?;
            let counted = Arc::clone(&meter);
            let carrier = thread::spawn(move || {
                connection(
                    &counted,
                    &listener.accept().expect("a connection").0,
                    target,
                );
            });
            let mut stream = TcpStream::connect(address)?;
            let sent = vec![7; 300_000];
            let mut writer = stream.try_clone()?;
            let writing = thread::spawn(move || {
                writer.write_all(&sent)?;
                writer.shutdown(Shutdown::Write)
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back)?;
            writing.join().expect("a writer")?;
            carrier.join().expect("a carrier");
            assert_eq!(back.len(), 300_000);
            assert_eq!(
                meter.bulk.until(meter.now() + BIN_NS).iter().sum::<u64>(),
                300_000
            );
        }
        Ok(())
    }
}
