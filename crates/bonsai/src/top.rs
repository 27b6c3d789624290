//! `bonsai top`: services live in the terminal.

mod app;
mod draw;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bonsai_services::observe::Sampler;
use bonsai_services::refusal::Refusal;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use signal_hook::consts::{SIGHUP, SIGTERM};

use self::app::App;
use crate::cli::Top;
use crate::output::{Paint, print, print_json};

/// Width of a picture that is printed as text.
const WIDTH: u16 = 100;

/// How long a key may go unseen, so that a signal to end is noticed.
const PATIENCE: Duration = Duration::from_millis(200);

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
    let mut sampler = Sampler::new(args.service.as_deref())?;
    if args.json {
        loop {
            print_json(&sampler.look()?, true)?;
            std::thread::sleep(args.interval);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let mut terminal = ratatui::try_init()?;
    let shown = live(&mut terminal, &mut sampler, args.interval, &ended);
    ratatui::restore();
    shown.map(|()| 0)
}

fn once(args: &Top) -> anyhow::Result<u8> {
    let mut sampler = Sampler::new(args.service.as_deref())?;
    let observation = sampler.measure(args.interval)?;
    if args.json {
        print_json(&observation, true)?;
        return Ok(0);
    }
    let mut app = App::new(false);
    app.update(observation);
    print(&picture(&app)?)?;
    Ok(0)
}

/// One picture as text.
fn picture(app: &App) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(WIDTH, draw::height(app)))?;
    terminal.draw(|frame| draw::draw(frame, app))?;
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let mut text = String::new();
    for line in buffer.content.chunks(width) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    sampler: &mut Sampler,
    interval: Duration,
    ended: &AtomicBool,
) -> anyhow::Result<()> {
    let mut app = App::new(Paint::stdout().is_on());
    app.update(sampler.look()?);
    let mut next = Instant::now() + interval;
    while !ended.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, &app))?;
        let rest = next.saturating_duration_since(Instant::now());
        if event::poll(rest.min(PATIENCE))? {
            if let Event::Key(key) = event::read()?
                && !pressed(&mut app, key)
            {
                return Ok(());
            }
        } else if Instant::now() >= next {
            app.update(sampler.look()?);
            // After a pause (a stopped terminal) the rhythm starts anew.
            next = (next + interval).max(Instant::now());
        }
    }
    Ok(())
}

/// What a key does; `false` to end.
fn pressed(app: &mut App, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Up | KeyCode::Char('k') => app.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => app.choose(1),
        KeyCode::PageUp => app.choose(-10),
        KeyCode::PageDown => app.choose(10),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::tests::{observation, service};

    #[test]
    fn keys() {
        let mut app = App::new(false);
        app.update(observation(vec![service(
            "a",
            &[("read", 1e6, 5e5), ("send", 1e6, 1e6)],
        )]));
        let mut press = |code| pressed(&mut app, KeyEvent::new(code, KeyModifiers::NONE));
        assert!(press(KeyCode::Down));
        assert!(press(KeyCode::Char('x')));
        assert!(!press(KeyCode::Char('q')));
        assert_eq!(
            app.chosen().map(|(_, limit)| limit.name.as_str()),
            Some("send")
        );
    }

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
}
