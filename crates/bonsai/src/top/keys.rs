//! What keys do.
//!
//! ```text
//!            e, Enter            Enter
//!   Watch ─────────────> Edit ───────────> asked ──> done: Watch; refused: Edit, as it was typed
//!     │ /                 Esc: Watch
//!     ├─────> Filter     Enter: Watch, filtered; Esc: Watch, all
//!     └─────> Help       any key: Watch
//! ```

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::{App, Edit, Message, Mode};
use super::line::Line;
use super::order;
use crate::cli::Set;

/// What is to be done because of a key.
#[derive(Debug)]
pub(super) enum Do {
    /// Nothing but what the picture shows.
    Nothing,
    /// The end.
    End,
    /// A change.
    Set(Box<Set>),
    /// The last change is taken back.
    Undo,
}

/// Takes a key.
pub(super) fn pressed(app: &mut App, key: KeyEvent) -> Do {
    if key.kind == KeyEventKind::Release {
        return Do::Nothing;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return Do::End;
    }
    match std::mem::take(&mut app.mode) {
        Mode::Watch => watch(app, key),
        Mode::Filter(line) => {
            filter(app, line, key);
            Do::Nothing
        }
        Mode::Edit(edit) => change(app, edit, key),
        Mode::Help => Do::Nothing,
    }
}

/// Takes the answer to what was asked for.
pub(super) fn answered(app: &mut App, answer: Result<String, String>) {
    app.is_asking = false;
    match answer {
        Ok(text) => {
            if matches!(app.mode, Mode::Edit(_)) {
                app.mode = Mode::Watch;
            }
            app.message = Some(Message::Done(text));
        }
        Err(text) => app.message = Some(Message::Wrong(text)),
    }
}

fn watch(app: &mut App, key: KeyEvent) -> Do {
    match key.code {
        KeyCode::Char('q') => return Do::End,
        // One step back at a time.
        KeyCode::Esc if app.message.is_some() => app.message = None,
        KeyCode::Esc => {
            app.filter.clear();
            app.keep_choice();
        }
        KeyCode::Up | KeyCode::Char('k') => app.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => app.choose(1),
        KeyCode::PageUp => app.choose(-10),
        KeyCode::PageDown => app.choose(10),
        KeyCode::Home => app.choose(isize::MIN),
        KeyCode::End => app.choose(isize::MAX),
        KeyCode::Char('s') => app.sort = app.sort.next(),
        KeyCode::Char('r') => app.is_reversed = !app.is_reversed,
        KeyCode::Char('/') => app.mode = Mode::Filter(Line::new(&app.filter)),
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => app.mode = Mode::Help,
        KeyCode::Char('e') | KeyCode::Enter => edit(app),
        KeyCode::Char('u') => return undo(app),
        _ => {}
    }
    Do::Nothing
}

/// Begins to change what is chosen.
fn edit(app: &mut App) {
    let Some((service, limit)) = app.chosen() else {
        app.message = Some(Message::Wrong("there is nothing to change".to_owned()));
        return;
    };
    let of = limit.map(|limit| order::calls(&limit.name).to_owned());
    let text = match (&of, limit) {
        (Some(of), Some(limit)) if *of == limit.name => format!("{of}={}", limit.setting),
        // What the daemon or a group gives is no setting of the service.
        (Some(of), _) => format!("{of}="),
        (None, _) => String::new(),
    };
    app.mode = Mode::Edit(Edit {
        service: service.name.clone(),
        of,
        line: Line::selected(&text),
    });
    app.message = None;
}

fn undo(app: &mut App) -> Do {
    if app.is_asking {
        return Do::Nothing;
    }
    if !app.has_daemon {
        let text = "only the daemon can take changes back, and none runs (bonsai daemon)";
        app.message = Some(Message::Wrong(text.to_owned()));
        return Do::Nothing;
    }
    app.is_asking = true;
    Do::Undo
}

fn filter(app: &mut App, mut line: Line, key: KeyEvent) {
    match key.code {
        KeyCode::Enter => return,
        KeyCode::Esc => app.filter.clear(),
        _ => {
            line.press(key);
            app.filter = line.text();
            app.mode = Mode::Filter(line);
        }
    }
    app.keep_choice();
}

fn change(app: &mut App, mut edit: Edit, key: KeyEvent) -> Do {
    if key.code == KeyCode::Esc {
        app.message = None;
        return Do::Nothing;
    }
    // What is asked for is what stands there until it is answered.
    if app.is_asking {
        app.mode = Mode::Edit(edit);
        return Do::Nothing;
    }
    let mut wanted = Do::Nothing;
    if key.code == KeyCode::Enter {
        match order::parse(&edit.service, edit.of.as_deref(), &edit.line.text()) {
            Ok(set) => {
                app.is_asking = true;
                app.message = None;
                wanted = Do::Set(Box::new(set));
            }
            Err(error) => app.message = Some(Message::Wrong(error.to_string())),
        }
    } else if edit.line.press(key) {
        app.message = None;
    }
    app.mode = Mode::Edit(edit);
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::tests::{observation, service};
    use crate::top::select::Sort;

    fn app() -> App {
        let mut app = App::new(false);
        app.update(observation(vec![
            service("a", &[("read", 1e6, 5e5), ("send", 1e6, 1e6)]),
            service("b", &[]),
        ]));
        app
    }

    fn press(app: &mut App, code: KeyCode) -> Do {
        pressed(app, KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn type_in(app: &mut App, text: &str) {
        for c in text.chars() {
            assert!(matches!(press(app, KeyCode::Char(c)), Do::Nothing));
        }
    }

    fn wrong(app: &App) -> &str {
        match &app.message {
            Some(Message::Wrong(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_of_the_picture() {
        let mut app = app();
        press(&mut app, KeyCode::Down);
        press(&mut app, KeyCode::Char('x'));
        let (_, limit) = app.chosen().expect("chosen");
        assert_eq!(limit.map(|limit| limit.name.as_str()), Some("send"));
        press(&mut app, KeyCode::End);
        assert_eq!(
            app.chosen().map(|(service, _)| service.name.as_str()),
            Some("b")
        );
        press(&mut app, KeyCode::Home);
        press(&mut app, KeyCode::Char('s'));
        press(&mut app, KeyCode::Char('r'));
        assert_eq!((app.sort, app.is_reversed), (Sort::Got, true));
        press(&mut app, KeyCode::Char('?'));
        assert_eq!(app.mode, Mode::Help);
        press(&mut app, KeyCode::Char('q'));
        assert_eq!(app.mode, Mode::Watch, "help is left first");
        assert!(matches!(press(&mut app, KeyCode::Esc), Do::Nothing));
        assert!(matches!(press(&mut app, KeyCode::Char('q')), Do::End));
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        app.mode = Mode::Filter(Line::default());
        assert!(matches!(pressed(&mut app, end), Do::End));
    }

    #[test]
    fn a_filter_is_typed_kept_and_left() {
        let mut app = app();
        press(&mut app, KeyCode::Char('/'));
        type_in(&mut app, "sq");
        assert_eq!(app.services(), (0, 2), "q is a letter here");
        press(&mut app, KeyCode::Backspace);
        assert_eq!(app.services(), (1, 2));
        press(&mut app, KeyCode::Enter);
        assert_eq!((app.filter.as_str(), &app.mode), ("s", &Mode::Watch));
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.services(), (2, 2));
        press(&mut app, KeyCode::Char('/'));
        type_in(&mut app, "b");
        press(&mut app, KeyCode::Esc);
        assert_eq!((app.filter.as_str(), &app.mode), ("", &Mode::Watch));
    }

    #[test]
    fn a_limit_is_typed_refused_and_taken() {
        let mut app = app();
        press(&mut app, KeyCode::Char('e'));
        let Mode::Edit(edit) = &app.mode else {
            panic!("{:?}", app.mode)
        };
        assert_eq!(
            (edit.service.as_str(), edit.line.text()),
            ("a", "read=".to_owned())
        );
        pressed(
            &mut app,
            KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL),
        );
        press(&mut app, KeyCode::Enter);
        assert!(wrong(&app).contains("nothing is typed"));
        type_in(&mut app, "quick");
        assert_eq!(app.message, None);
        let Do::Set(set) = press(&mut app, KeyCode::Enter) else {
            panic!("nothing to do")
        };
        assert_eq!(
            (set.service.as_str(), set.limits),
            ("a", vec!["read=quick".to_owned()])
        );
        // Nothing is typed over what is asked for, and nothing else is asked for.
        type_in(&mut app, "x");
        assert!(matches!(press(&mut app, KeyCode::Enter), Do::Nothing));
        answered(&mut app, Err("that is no rate".to_owned()));
        assert_eq!(wrong(&app), "that is no rate");
        let Mode::Edit(edit) = &app.mode else {
            panic!("{:?}", app.mode)
        };
        assert_eq!(edit.line.text(), "quick", "it can be corrected");
        pressed(
            &mut app,
            KeyEvent::new(KeyCode::Char('w'), KeyModifiers::CONTROL),
        );
        type_in(&mut app, "off");
        let Do::Set(set) = press(&mut app, KeyCode::Enter) else {
            panic!("nothing to do")
        };
        assert_eq!(set.limits, ["read=unlimited"]);
        answered(&mut app, Ok("done".to_owned()));
        assert_eq!(
            (&app.mode, &app.message),
            (&Mode::Watch, &Some(Message::Done("done".to_owned())))
        );
    }

    #[test]
    fn whoever_leaves_is_told_nevertheless() {
        let mut app = app();
        press(&mut app, KeyCode::Enter);
        type_in(&mut app, "5MB/s");
        assert!(matches!(press(&mut app, KeyCode::Enter), Do::Set(_)));
        press(&mut app, KeyCode::Esc);
        press(&mut app, KeyCode::Char('/'));
        answered(&mut app, Ok("done".to_owned()));
        assert!(matches!(app.mode, Mode::Filter(_)));
        assert_eq!(app.message, Some(Message::Done("done".to_owned())));
    }

    #[test]
    fn undo_is_the_daemons() {
        let mut app = app();
        assert!(matches!(press(&mut app, KeyCode::Char('u')), Do::Nothing));
        assert!(wrong(&app).contains("none runs"));
        app.has_daemon = true;
        assert!(matches!(press(&mut app, KeyCode::Char('u')), Do::Undo));
        assert!(
            matches!(press(&mut app, KeyCode::Char('u')), Do::Nothing),
            "once"
        );
    }

    #[test]
    fn nothing_to_change_is_said() {
        let mut app = App::new(false);
        app.update(observation(Vec::new()));
        press(&mut app, KeyCode::Enter);
        assert_eq!(wrong(&app), "there is nothing to change");
    }
}
