//! Programs in a terminal: a pseudo terminal of their own, and what would be seen on it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Longer than a picture takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program in a terminal, which ends with it.
pub(crate) struct Terminal {
    keys: File,
    terminal: OwnedFd,
    program: Child,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program in a terminal of that many lines and columns.
    pub(crate) fn start(command: &Command, lines: u16, columns: u16) -> Self {
        // Whoever inherited this end would keep the terminal open.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags).expect("a pseudo terminal");
        grantpt(&keys).expect("granted");
        unlockpt(&keys).expect("unlocked");
        let name = ptsname(&keys, Vec::new()).expect("its name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(&*name, flags, Mode::empty()).expect("the terminal");
        resize(&terminal, lines, columns);
        // As a login does: a session of its own, whose terminal this is.
        let mut session = Command::new("/usr/bin/setsid");
        session.args(["--ctty", "--"]).arg(command.get_program());
        session
            .args(command.get_args())
            .env("TERM", "xterm-256color");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        let end = || Stdio::from(terminal.try_clone().expect("a descriptor"));
        session.stdin(end()).stdout(end()).stderr(end());
        let program = session.spawn().expect("it starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            size(lines),
            size(columns),
            0,
        )));
        let shown = Arc::clone(&screen);
        let keys = File::from(keys);
        let mut output = keys.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It ends with the last who has the terminal open.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                let mut screen = shown.lock().unwrap_or_else(PoisonError::into_inner);
                screen.process(&bytes[..n]);
            }
        });
        Self {
            keys,
            terminal,
            program,
            screen,
        }
    }

    /// What is seen.
    pub(crate) fn text(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen().contents()
    }

    /// Whether it is as a shell wants it: lines and echo, and the screen there was before.
    pub(crate) fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.terminal).expect("modes").local_modes;
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
            && !screen.screen().alternate_screen()
            && !screen.screen().hide_cursor()
    }

    /// Waits until something that is seen is so.
    pub(crate) fn until(&self, what: &str, so: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !so(&self.text()) {
            assert!(
                start.elapsed() < PATIENCE,
                "never: {what}:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a text is seen, on however many lines.
    pub(crate) fn shows(&self, text: &str) {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.until(text, |shown| words(shown).contains(&words(text)));
    }

    /// Presses keys, as the bytes that a terminal sends for them.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Makes it larger or smaller, as a window does.
    pub(crate) fn resize(&self, lines: u16, columns: u16) {
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen_mut().set_size(size(lines), size(columns));
        drop(screen);
        resize(&self.terminal, lines, columns);
    }

    /// Waits until the program ends; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.program.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it goes on:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The program, to send it signals.
    pub(crate) fn program(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.program)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a terminal has cells")
}

fn resize(terminal: &OwnedFd, lines: u16, columns: u16) {
    let size = Winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("a size");
}
