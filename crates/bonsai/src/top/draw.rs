//! The picture of `bonsai top`.

use bonsai_services::observe::{LimitView, ServiceView, WaitingView};
use bonsai_units::format_duration_ns;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};

use super::app::{App, Message, Mode, Row};
use super::order::calls;
use super::select::full;
use crate::output::count;
use crate::status::rates;

/// Cells of a bar, where there is room.
const BAR: u16 = 20;

/// Cells that a name has before a bar has any.
const NAME: u16 = 24;

/// Cells of the other columns: asked, got, share, waits, the longest of nearly all.
const NUMBERS: [u16; 5] = [11, 11, 6, 8, 8];

/// Lines of the history.
const HISTORY: u16 = 4;

/// Lines that a message may have.
const MESSAGE: u16 = 4;

/// Below so many lines the history is left out.
const LOW: u16 = 12;

/// Lines that the whole picture takes.
pub(super) fn height(app: &App) -> u16 {
    let rows = u16::try_from(app.rows().len()).unwrap_or(u16::MAX);
    // Title, header of the table, and history with its title.
    rows.saturating_add(2 + HISTORY + 1)
        .max((HISTORY + 5).max(LOW))
}

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    let history = if area.height < LOW { 0 } else { HISTORY + 1 };
    let foot = u16::from(app.has_keys);
    let message = match &app.message {
        Some(message) if area.height > 2 => lines_of(message, area.width).min(MESSAGE),
        _ => 0,
    };
    let parts = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(history),
        Constraint::Length(message),
        Constraint::Length(foot),
    ];
    let [title, limits, history, told, foot] = if area.height > 1 {
        Layout::vertical(parts).areas(area)
    } else {
        // What is typed is the last that goes.
        let none = Rect::new(area.x, area.y, 0, 0);
        [none, none, none, none, area]
    };
    let style = Styles { colour: app.colour };
    frame.render_widget(Paragraph::new(title_line(app)), title);
    if app.mode == Mode::Help {
        frame.render_widget(Paragraph::new(HELP), limits);
    } else {
        draw_limits(frame, limits, app, &style);
        draw_history(frame, history, app, &style);
    }
    if let Some(message) = &app.message {
        let (text, colour) = match message {
            Message::Done(text) => (text, Color::Green),
            Message::Wrong(text) => (text, Color::Yellow),
        };
        let text = Paragraph::new(text.as_str()).style(style.with(colour));
        frame.render_widget(text.wrap(Wrap { trim: true }), told);
    }
    if app.has_keys {
        draw_foot(frame, foot, app);
    }
}

/// What all keys do.
const HELP: &str = "\
up, down, page up, page down, home, end   choose a limit, or a service without any
e or Enter   change it; then Enter again, or Esc to leave it:
               5MB/s, off             the chosen limit
               read=20MB/s:burst=1MB  another limit of the service, as for bonsai set
               send.min=40Mbit/s      what it always gets of its group, or by the daemon
               send.max=off           the most it gets
               weight=3               its part of the rest, 1 to 1000
             several may be written, with blanks between them
u            take the last change back that was made here, where the daemon runs
/            show only services or limits with a text in their names; Esc: all
s            sort by the next: name, got, full, waits
r            the other way round
Esc          one step back
q            quit";

/// Lines that a message takes, if its words are not long.
fn lines_of(message: &Message, width: u16) -> u16 {
    let (Message::Done(text) | Message::Wrong(text)) = message;
    let width = usize::from(width.max(1));
    let mut lines = 1;
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines += 1;
            used = length;
        } else {
            used += length + usize::from(used > 0);
        }
    }
    lines
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let (before, line) = match &app.mode {
        Mode::Filter(line) => ("filter".to_owned(), line),
        Mode::Edit(edit) => (edit.service.clone(), &edit.line),
        Mode::Watch | Mode::Help => {
            let text = match (app.is_asking, &app.mode) {
                (true, _) => "being done ...".to_owned(),
                (false, Mode::Help) => "any key: back".to_owned(),
                _ => hints(app),
            };
            frame.render_widget(Paragraph::new(Line::styled(text, Styles::dim())), area);
            return;
        }
    };
    let mut before = format!("{before}: ");
    let mut after = if app.is_asking {
        "  being done ..."
    } else {
        ""
    };
    let width = usize::from(area.width);
    if width < before.chars().count() + after.len() + 10 {
        before.clear();
        after = "";
    }
    let room = width.saturating_sub(before.chars().count() + after.len());
    let (shown, cursor) = line.window(room);
    let at = u16::try_from(before.chars().count() + cursor).unwrap_or(u16::MAX);
    let text = if line.is_selected() {
        Styles::chosen()
    } else {
        Style::new()
    };
    let spans = vec![
        Span::styled(before, Styles::bold()),
        Span::styled(shown, text),
        Span::styled(after, Styles::dim()),
    ];
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
    if !app.is_asking && at < area.width {
        frame.set_cursor_position((area.x + at, area.y));
    }
}

fn hints(app: &App) -> String {
    let undo = if app.has_daemon { "u undo  " } else { "" };
    format!(
        "e change  {undo}/ filter  s sort: {}  r reverse  ? help  q quit",
        app.sort.name()
    )
}

struct Styles {
    colour: bool,
}

impl Styles {
    fn bold() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn dim() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn chosen() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn with(&self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

fn title_line(app: &App) -> Line<'static> {
    let (shown, all) = app.services();
    let services = count(all as u64, "service", "services");
    let text = if app.filter.is_empty() {
        services
    } else {
        format!("{shown} of {services}, with {}", app.filter)
    };
    Line::from(vec![
        Span::styled("bonsai", Styles::bold()),
        Span::raw(format!("  {text}")),
    ])
}

fn draw_limits(frame: &mut Frame<'_>, area: Rect, app: &App, style: &Styles) {
    let rows = app.rows();
    if rows.is_empty() {
        let text = if app.filter.is_empty() {
            "no service is running"
        } else {
            "no service and no limit has that in its name"
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let chosen = rows.iter().position(|row| app.is_chosen(row));
    let [asked, got, share, waits, longest] = NUMBERS.map(Constraint::Length);
    let taken: u16 = NUMBERS.iter().sum();
    // One cell between any two columns.
    let bar = area.width.saturating_sub(NAME + taken + 6).min(BAR);
    let widths = [
        Constraint::Fill(1),
        asked,
        got,
        Constraint::Length(bar),
        share,
        waits,
        longest,
    ];
    let header = ["", "asked", "got", "", "", "waits/s", "p99 wait"];
    let header = TableRow::new(header.map(|text| Line::raw(text).right_aligned()));
    let header = header.style(Styles::dim());
    let lines = rows.iter().map(|row| match row {
        Row::Service(service) => service_row(service, style),
        Row::Limit(service, limit) => limit_row(service, limit, usize::from(bar), style),
        Row::Waiting(waiting) => waiting_row(waiting),
    });
    let table = Table::new(lines, widths)
        .header(header)
        .row_highlight_style(Styles::chosen());
    // Selecting the line scrolls to it.
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

fn service_row(service: &ServiceView, style: &Styles) -> TableRow<'static> {
    let problem = match (
        &service.error,
        service.uncovered.iter().filter(|view| !view.ended).count(),
    ) {
        (Some(_), _) => "cannot be read".to_owned(),
        (None, 0) => String::new(),
        (None, n) => format!("{n} not covered"),
    };
    let processes = match &service.target {
        Some(target) => target.clone(),
        None => count(service.processes.len() as u64, "process", "processes"),
    };
    let limits = match service.waiting.len() {
        _ if service.limits.is_empty() => "no limits".to_owned(),
        0 => String::new(),
        n => format!("{n} waiting"),
    };
    TableRow::new([
        Line::styled(service.name.clone(), Styles::bold()),
        Line::styled(processes, Styles::dim()),
        Line::styled(limits, Styles::dim()),
        Line::styled(problem, style.with(Color::Yellow)),
    ])
}

fn limit_row(
    service: &ServiceView,
    limit: &LimitView,
    cells: usize,
    style: &Styles,
) -> TableRow<'static> {
    let [asked, got] = rates(limit);
    let share = full(limit);
    let waits = limit.recent.count as f64 * 1_000.0 / service.interval_ms.max(1) as f64;
    let colour = if limit.recent.count > 0 {
        Color::Yellow
    } else {
        Color::Green
    };
    TableRow::new([
        Line::raw(format!("  {}", limit.name)),
        Line::raw(asked).right_aligned(),
        Line::raw(got).right_aligned(),
        Line::styled(
            share.map_or_else(String::new, |share| bar(share, cells)),
            style.with(colour),
        ),
        Line::raw(share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)))
            .right_aligned(),
        Line::raw(format!("{waits:.1}")).right_aligned(),
        Line::raw(
            limit
                .recent
                .p99_ns
                .map_or_else(|| "-".to_owned(), format_duration_ns),
        )
        .right_aligned(),
    ])
}

/// Who waits: thread, limit and call, and for how long so far.
fn waiting_row(waiting: &WaitingView) -> TableRow<'static> {
    let who = format!("    {} {}", waiting.program, waiting.tid);
    let limit = waiting.limit.as_deref().map_or("-", calls);
    let cells = [
        Line::styled(who, Styles::dim()),
        Line::styled("waits for", Styles::dim()).right_aligned(),
        Line::raw(limit.to_owned()).right_aligned(),
        Line::styled(format!("in {}", waiting.call), Styles::dim()),
        Line::raw(""),
        Line::styled("so far", Styles::dim()).right_aligned(),
        Line::raw(format_duration_ns(waiting.waited_ns)).right_aligned(),
    ];
    TableRow::new(cells)
}

/// A bar for a share of 0 to 1; more is full.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the bar's length"
)]
fn bar(share: f64, cells: usize) -> String {
    let filled = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
    "█".repeat(filled) + &"·".repeat(cells.saturating_sub(filled))
}

fn draw_history(frame: &mut Frame<'_>, area: Rect, app: &App, style: &Styles) {
    let Some((service, Some(limit))) = app.chosen() else {
        return;
    };
    let [title, graph] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let [asked, _] = rates(limit);
    let text = format!("{} {}, up to {asked}", service.name, limit.name);
    frame.render_widget(Paragraph::new(Line::styled(text, Styles::dim())), title);
    let history = app.history(service, limit);
    let width = usize::from(graph.width);
    let latest = &history[history.len().saturating_sub(width)..];
    let data: Vec<u64> = latest
        .iter()
        .map(|got| thousandths(*got, limit.asked))
        .collect();
    let graph_widget = Sparkline::default()
        .data(&data)
        .max(1_000)
        .style(style.with(Color::Cyan));
    frame.render_widget(graph_widget, graph);
}

/// A rate in thousandths of what was asked for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; beyond the range a cast saturates"
)]
fn thousandths(got: f64, asked: f64) -> u64 {
    (got / asked.max(0.001) * 1_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_share_and_one_length() {
        for (share, filled) in [(0.0, 0), (0.5, 10), (0.99, 20), (1.0, 20), (3.0, 20)] {
            let bar = bar(share, 20);
            assert_eq!(bar.matches('█').count(), filled, "{share}");
            assert_eq!(bar.chars().count(), 20);
        }
    }
}
