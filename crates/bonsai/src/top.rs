//! `bonsai top`: services live in the terminal, and changes of them.

mod app;
mod draw;
mod keys;
mod line;
mod made;
mod order;
mod select;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bonsai_services::observe::Sampler;
use bonsai_services::refusal::Refusal;
use bonsai_units::text::is_plain;
use crossterm::event::{self, Event};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGTERM};

use self::app::App;
use self::keys::Do;
use self::made::{Answer, History};
pub(crate) use self::select::Sort;
use crate::cli::Top;
use crate::daemon::{Outside, samplers};
use crate::output::{Paint, print, print_json};
use crate::set;

/// Width of a picture that is printed as text.
const WIDTH: u16 = 100;

/// How long a key may go unseen, so that a signal to end is noticed.
const PATIENCE: Duration = Duration::from_millis(200);

/// The same while an answer is waited for.
const SHORT: Duration = Duration::from_millis(20);

/// Shows services until `q` is pressed.
///
/// # Errors
/// There is no such service, or standard output is no terminal.
pub(crate) fn run(args: &Top) -> anyhow::Result<u8> {
    if args.once {
        return once(args);
    }
    let has_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.json && !has_terminal {
        let text = "top needs a terminal: bonsai top --once prints one picture, --json lines of \
                    JSON, bonsai status text";
        return Err(Refusal::input(text));
    }
    let (mut sampler, outside) = samplers(args.service.as_deref())?;
    if args.json {
        loop {
            let mut observation = sampler.look()?;
            outside.add(&mut observation);
            print_json(&observation, true)?;
            std::thread::sleep(args.interval);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let mut app = app(args, Paint::stdout().is_on());
    app.has_keys = true;
    let mut terminal = ratatui::try_init()?;
    let shown = live(
        &mut terminal,
        (&mut sampler, &outside),
        &mut app,
        args.interval,
        &ended,
    );
    ratatui::restore();
    shown.map(|()| 0)
}

fn app(args: &Top, colour: bool) -> App {
    let mut app = App::new(colour);
    app.sort = args.sort;
    app.filter.clone_from(&args.filter);
    app
}

fn once(args: &Top) -> anyhow::Result<u8> {
    let (mut sampler, outside) = samplers(args.service.as_deref())?;
    let mut observation = sampler.measure(args.interval)?;
    outside.add(&mut observation);
    if args.json {
        print_json(&observation, true)?;
        return Ok(0);
    }
    let mut app = app(args, false);
    app.update(observation);
    print(&picture(&app)?)?;
    Ok(0)
}

/// One picture as text.
fn picture(app: &App) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(WIDTH, draw::height(app)))?;
    terminal.draw(|frame| {
        draw::draw(frame, app);
        make_plain(frame.buffer_mut());
    })?;
    Ok(text_of(terminal.backend()))
}

/// Replaces what is not plain in a picture: names in it come from others, and a terminal turns text round at some of them.
fn make_plain(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if !cell.symbol().chars().all(is_plain) {
            cell.set_char(char::REPLACEMENT_CHARACTER);
        }
    }
}

fn text_of(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for line in buffer.content.chunks(width) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    (sampler, outside): (&mut Sampler, &Outside),
    app: &mut App,
    interval: Duration,
    ended: &AtomicBool,
) -> anyhow::Result<()> {
    let mut look = |app: &mut App| -> anyhow::Result<()> {
        app.has_daemon = bonsai_daemon::socket_path().is_ok_and(|socket| socket.exists());
        let mut observation = sampler.look()?;
        outside.add(&mut observation);
        app.update(observation);
        Ok(())
    };
    let mut asked = Asked::default();
    let mut made = History::default();
    look(app)?;
    let mut next = Instant::now() + interval;
    while !ended.load(Ordering::Relaxed) {
        if let Some(answer) = asked.answer() {
            if let Ok(answer) = &answer {
                made.note(answer);
            }
            keys::answered(app, answer.map(|answer| answer.lines.join("; ")));
        }
        terminal.draw(|frame| {
            draw::draw(frame, app);
            make_plain(frame.buffer_mut());
        })?;
        let rest = next.saturating_duration_since(Instant::now());
        let patience = if app.is_asking { SHORT } else { PATIENCE };
        if event::poll(rest.min(patience))? {
            let key = match event::read()? {
                Event::Key(key) => key,
                Event::Resize(..) => {
                    // One that is as large as before may have lost what was on it in between. To
                    // clear it would ask where the cursor is, which not every terminal answers.
                    let size = terminal.size()?;
                    terminal.resize(Rect::new(0, 0, size.width, size.height))?;
                    continue;
                }
                _ => continue,
            };
            match keys::pressed(app, key) {
                Do::Nothing => {}
                Do::End => break,
                Do::Set(set) => asked.ask(move || Ok(Answer::changed(set::change(&set)?))),
                Do::Undo => {
                    let last = made.last();
                    asked.ask(move || made::undo(last));
                }
            }
        } else if Instant::now() >= next {
            look(app)?;
            // After a pause (a stopped terminal) the rhythm starts anew.
            next = (next + interval).max(Instant::now());
        }
    }
    // What was asked for is done, even if nobody looks any more.
    asked.wait();
    Ok(())
}

/// What is under way beside the picture: a daemon may take its time to answer.
#[derive(Debug, Default)]
struct Asked {
    thread: Option<JoinHandle<anyhow::Result<Answer>>>,
}

impl Asked {
    fn ask(&mut self, what: impl FnOnce() -> anyhow::Result<Answer> + Send + 'static) {
        self.thread = Some(std::thread::spawn(what));
    }

    /// The answer, once it is there.
    fn answer(&mut self) -> Option<Result<Answer, String>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        Some(match thread.join() {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(format!("{error:#}")),
            Err(_) => Err("the change was begun, and failed half-way".to_owned()),
        })
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::Message;
    use crate::top::app::tests::{observation, service};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    #[test]
    fn a_picture_has_every_limit_and_its_bar() {
        let mut app = App::new(false);
        app.update(observation(vec![
            service("a", &[("read", 1e6, 5e5), ("send", 1e6, 1e6)]),
            service("b", &[]),
        ]));
        let text = picture(&app).expect("a picture");
        let line = |word: &str| {
            text.lines()
                .find(|line| line.contains(word))
                .unwrap_or_else(|| panic!("{word}:\n{text}"))
        };
        let filled = |word: &str| line(word).matches('█').count();
        assert_eq!((filled("read"), filled("send")), (10, 20), "{text}");
        assert!(
            line("read").contains("1 MB/s") && line("read").contains("500 kB/s"),
            "{text}"
        );
        assert!(text.contains("no limits"), "{text}");
    }

    #[test]
    fn an_empty_picture_says_so() {
        let mut app = App::new(false);
        app.update(observation(Vec::new()));
        let text = picture(&app).expect("a picture");
        assert!(text.contains("no service is running"), "{text}");
    }

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| draw::draw(frame, app))
            .expect("a picture");
        text_of(terminal.backend())
    }

    fn busy() -> App {
        let mut app = App::new(false);
        app.has_keys = true;
        app.has_daemon = true;
        app.update(observation(vec![
            service(
                "vod",
                &[("read", 1e6, 5e5), ("group daemon-pool send", 1e6, 1e6)],
            ),
            service("web", &[]),
        ]));
        app
    }

    fn press(app: &mut App, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                c => KeyCode::Char(c),
            };
            keys::pressed(app, KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    #[test]
    fn eighty_columns_show_everything() {
        let mut app = busy();
        press(&mut app, "e5MB/s");
        app.message = Some(Message::Wrong(
            "min of vod 60 Mbit/s + web 50 Mbit/s = 110 Mbit/s is 10 Mbit/s more than send has, \
             100 Mbit/s; lower one, or say overcommit = \"scale\""
                .to_owned(),
        ));
        let expected = "\
bonsai  2 services
                               asked         got                waits/s p99 wait
vod                      0 processes
  read                        1 MB/s    500 kB/s ███···   50 %      0.0        -
  group daemon-pool send      1 MB/s      1 MB/s ██████  100 %      0.0        -
web                      0 processes no limits



vod read, up to 1 MB/s


█
█
min of vod 60 Mbit/s + web 50 Mbit/s = 110 Mbit/s is 10 Mbit/s more than send
has, 100 Mbit/s; lower one, or say overcommit = \"scale\"
vod: 5MB/s
";
        let shown = screen(&app, 80, 17);
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn no_size_is_too_small() {
        let mut apps = [busy(), busy(), busy(), busy(), App::new(true)];
        press(&mut apps[1], "/vo");
        press(&mut apps[2], "?");
        press(&mut apps[3], "e\n");
        for app in &mut apps {
            app.message = app
                .message
                .take()
                .or(Some(Message::Done("done".to_owned())));
            for (width, height) in [
                (1, 1),
                (2, 40),
                (200, 1),
                (10, 3),
                (40, 10),
                (79, 5),
                (300, 90),
            ] {
                screen(app, width, height);
            }
        }
        assert!(screen(&apps[2], 80, 24).contains("take the last change back"));
        assert!(screen(&apps[1], 40, 10).contains("filter: vo"));
        assert!(
            screen(&apps[3], 20, 6).contains("read="),
            "what is typed is seen first"
        );
    }

    #[test]
    fn the_foot_says_which_keys_there_are() {
        let mut app = busy();
        let foot = |app: &App| screen(app, 80, 24).lines().last().map(str::to_owned);
        assert_eq!(
            foot(&app).as_deref(),
            Some("e change  u undo  / filter  s sort: name  r reverse  ? help  q quit")
        );
        app.has_daemon = false;
        press(&mut app, "s/send\n");
        let shown = screen(&app, 80, 24);
        assert!(shown.contains("1 of 2 services, with send"), "{shown}");
        assert_eq!(
            foot(&app).as_deref(),
            Some("e change  / filter  s sort: got  r reverse  ? help  q quit")
        );
    }
}
