//! TLS of connections (`rtsps`): handshakes by a thread of their own, and records in the loop that sends.
//!
//! A handshake costs a signature, up to a millisecond of a processor, and comes when a stranger likes: what is due of others does
//! not wait for it. The thread has a second descriptor of each socket; the loop's [`super::connection::Connection`] has its place
//! among all others meanwhile, with their limits and times, and ends both by a shutdown.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bonsai_tls::{Renewable, ServerConnection, is_handshake};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// Handshakes at a time. With one more, the oldest ends.
pub(super) const MOST: usize = 512;

/// Records that are read at once before other connections are.
const TURNS: usize = 16;

/// Bytes of a request in plain text that are looked at.
const PLAIN: usize = 2048;

/// The descriptor that tells of new sockets; numbers of handshakes are below it.
const WAKE: u64 = u64::MAX;

/// TLS of a connection behind its handshake.
#[derive(Debug)]
pub(super) struct Tls {
    session: ServerConnection,
    sealed: Vec<u8>,
}

impl Tls {
    fn new(mut session: ServerConnection) -> Self {
        // Each call takes out what it has put in.
        session.set_buffer_limit(None);
        Self {
            session,
            sealed: Vec::new(),
        }
    }

    /// Bytes as records, together with what TLS has to say of itself.
    ///
    /// # Errors
    /// The bytes cannot be encrypted.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.session.writer().write_all(bytes)?;
        let mut sealed = std::mem::take(&mut self.sealed);
        while self.session.wants_write() {
            self.session.write_tls(&mut sealed)?;
        }
        Ok(sealed)
    }

    /// Takes the memory of records back.
    pub(super) fn reuse(&mut self, mut sealed: Vec<u8>) {
        sealed.clear();
        self.sealed = sealed;
    }

    /// True if TLS has something of its own to send.
    pub(super) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// True if bytes have come that are not read.
    pub(super) fn has_more(&mut self) -> bool {
        let state = self.session.process_new_packets();
        state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Reads what the other side wrote: 0 at its end, `WouldBlock` where nothing is there.
    ///
    /// # Errors
    /// Errors of the socket, and bytes that are no TLS.
    pub(super) fn read(&mut self, socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        for _ in 0..TURNS {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            match self.session.read_tls(socket) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let processed = self.session.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        // Records without bytes: others have their turn.
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Says that nothing follows, if that is taken at once.
    pub(super) fn farewell(&mut self, socket: &mut TcpStream) {
        self.session.send_close_notify();
        let _ = self.session.write_tls(socket);
    }
}

/// A handshake that is over.
#[derive(Debug)]
pub(super) struct Shaken {
    pub(super) number: u64,
    pub(super) tls: Result<Box<Tls>, Failed>,
}

/// The reason why there is no TLS; none to be told of where the other side has gone.
type Failed = Option<String>;

/// Socket of a handshake that begins, and its number.
type Job = (u64, TcpStream);

/// The thread. It ends with this.
#[derive(Debug)]
pub(super) struct Handshakes {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
    shelf: Arc<Shelf>,
    last: u64,
}

#[derive(Debug)]
struct Shelf {
    shaken: Mutex<Vec<Shaken>>,
    bell: OwnedFd,
}

impl Handshakes {
    /// Starts it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn start(certificate: Arc<Renewable>) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (jobs, asked) = channel();
        let wake = Arc::new(eventfd(0, flags)?);
        let shelf = Arc::new(Shelf {
            shaken: Mutex::default(),
            bell: eventfd(0, flags)?,
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let thread = Thread {
            certificate,
            asked,
            wake: Arc::clone(&wake),
            shelf: Arc::clone(&shelf),
            epoll,
            shaking: HashMap::new(),
        };
        thread::Builder::new()
            .name("tls".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self {
            jobs,
            wake,
            shelf,
            last: 0,
        })
    }

    /// Begins one; its number.
    ///
    /// # Errors
    /// No second descriptor, or no thread any more.
    pub(super) fn begin(&mut self, socket: &TcpStream) -> io::Result<u64> {
        self.last += 1;
        let job = (self.last, socket.try_clone()?);
        self.jobs.send(job).map_err(|_| io::ErrorKind::BrokenPipe)?;
        rustix::io::write(&*self.wake, &1_u64.to_ne_bytes())?;
        Ok(self.last)
    }

    /// Handshakes that are over since the last time; its descriptor can be read when there are some.
    pub(super) fn take(&self) -> Vec<Shaken> {
        let _ = rustix::io::read(&self.shelf.bell, &mut [0; 8]);
        std::mem::take(&mut *self.shelf.shaken())
    }
}

impl AsFd for Handshakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shelf.bell.as_fd()
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        // The thread wakes, and finds that nothing can be asked any more.
        let (jobs, _) = channel();
        self.jobs = jobs;
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Shelf {
    fn shaken(&self) -> std::sync::MutexGuard<'_, Vec<Shaken>> {
        self.shaken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Thread {
    certificate: Arc<Renewable>,
    asked: Receiver<Job>,
    wake: Arc<OwnedFd>,
    shelf: Arc<Shelf>,
    epoll: OwnedFd,
    shaking: HashMap<u64, Shaking>,
}

struct Shaking {
    socket: TcpStream,
    /// TLS, from the first byte on.
    session: Option<ServerConnection>,
    waits: EventFlags,
}

impl Thread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                match event.data.u64() {
                    WAKE if !self.begin() => return,
                    WAKE => {}
                    number => self.turn(number),
                }
            }
        }
    }

    /// Takes new sockets; false where there will be no more.
    fn begin(&mut self) -> bool {
        use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        loop {
            let (number, socket) = match self.asked.try_recv() {
                Ok(job) => job,
                Err(Empty) => return true,
                Err(Disconnected) => return false,
            };
            let waits = EventFlags::IN;
            match epoll::add(&self.epoll, &socket, EventData::new_u64(number), waits) {
                Ok(()) => {
                    let shaking = Shaking {
                        socket,
                        session: None,
                        waits,
                    };
                    self.shaking.insert(number, shaking);
                }
                Err(errno) => self.over(number, Err(Some(errno.to_string()))),
            }
        }
    }

    /// Goes on with one.
    fn turn(&mut self, number: u64) {
        let Some(shaking) = self.shaking.get_mut(&number) else {
            return;
        };
        let went_on = shaking.go_on(&self.certificate);
        if let Ok(false) = went_on {
            let session = shaking.session.as_ref();
            let mut waits = EventFlags::IN;
            waits.set(EventFlags::OUT, session.is_some_and(|of| of.wants_write()));
            if waits != shaking.waits {
                shaking.waits = waits;
                let data = EventData::new_u64(number);
                let _ = epoll::modify(&self.epoll, &shaking.socket, data, waits);
            }
            return;
        }
        let Some(shaking) = self.shaking.remove(&number) else {
            return;
        };
        // The other descriptor of the socket would keep it in the list.
        let _ = epoll::delete(&self.epoll, &shaking.socket);
        let tls = match (went_on, shaking.session) {
            (Ok(_), Some(session)) => Ok(Box::new(Tls::new(session))),
            (Ok(_), None) => Err(None),
            (Err(why), _) => Err(why),
        };
        self.over(number, tls);
    }

    fn over(&self, number: u64, tls: Result<Box<Tls>, Failed>) {
        self.shelf.shaken().push(Shaken { number, tls });
        // A count that is full wakes, too.
        let _ = rustix::io::write(&self.shelf.bell, &1_u64.to_ne_bytes());
    }
}

impl Shaking {
    /// True if the handshake is over; an error where there will be none.
    fn go_on(&mut self, certificate: &Renewable) -> Result<bool, Failed> {
        let socket = &mut self.socket;
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let mut first = [0; PLAIN];
                let length = match socket.peek(&mut first) {
                    Ok(0) => return Err(None),
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(failed(&error)),
                };
                if !is_handshake(first[0]) {
                    let _ = socket.read(&mut first);
                    let _ = socket.write(plain_refusal(&first[..length]).as_bytes());
                    let _ = socket.shutdown(Shutdown::Write);
                    let why = "it asks without TLS, and this port has rtsps alone";
                    return Err(Some(why.to_owned()));
                }
                let session = ServerConnection::new(certificate.config());
                none.insert(session.map_err(|error| failed(&error))?)
            }
        };
        loop {
            while session.wants_write() {
                match session.write_tls(socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed(&error)),
                }
            }
            if !session.is_handshaking() {
                return Ok(true);
            }
            match session.read_tls(socket) {
                Ok(0) => return Err(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
            if let Err(error) = session.process_new_packets() {
                // The client is told by an alert.
                let _ = session.write_tls(socket);
                return Err(failed(&error));
            }
        }
    }
}

fn failed(error: &dyn std::error::Error) -> Failed {
    Some(format!("its TLS handshake fails: {error}"))
}

/// The answer to a request that came without TLS. Players show the line of its status.
fn plain_refusal(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    let number = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        (name.eq_ignore_ascii_case("cseq") && is_number && value.len() < 10).then_some(value)
    });
    let number = number.map(|number| format!("CSeq: {number}\r\n"));
    format!(
        "RTSP/1.0 400 This port speaks TLS: ask for rtsps://\r\n{}Connection: close\r\n\r\n",
        number.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_tls_is_answered_in_words() {
        let said = plain_refusal(b"OPTIONS rtsp://h/ RTSP/1.0\r\ncseq: 7\r\n\r\n");
        assert!(
            said.starts_with("RTSP/1.0 400 This port speaks TLS"),
            "{said}"
        );
        assert!(said.contains("\r\nCSeq: 7\r\n"), "{said}");
        for odd in [
            &b"\xff\xfe"[..],
            b"CSeq: a\r\n",
            b"CSeq: 12345678901\r\n",
            b"",
        ] {
            assert!(!plain_refusal(odd).contains("CSeq"));
        }
    }
}
