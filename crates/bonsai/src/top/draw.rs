//! The picture of `bonsai top`.

use bonsai_services::observe::{LimitView, ServiceView, WaitingView};
use bonsai_units::format_duration_ns;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row as TableRow, Sparkline, Table, TableState};

use super::app::{App, Row};
use crate::output::count;
use crate::status::rates;

/// Cells of a bar.
const BAR: usize = 20;

/// Lines of the history.
const HISTORY: u16 = 4;

/// Lines that the whole picture takes.
pub(super) fn height(app: &App) -> u16 {
    let rows = u16::try_from(app.rows().len()).unwrap_or(u16::MAX);
    // Title, header of the table, and history with its title.
    rows.saturating_add(2 + HISTORY + 1).max(HISTORY + 5)
}

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let parts = [
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(HISTORY + 1),
    ];
    let [title, limits, history] = Layout::vertical(parts).areas(frame.area());
    let style = Styles { colour: app.colour };
    frame.render_widget(Paragraph::new(title_line(app)), title);
    draw_limits(frame, limits, app, &style);
    draw_history(frame, history, app, &style);
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
    let rows = app.rows();
    let services = rows
        .iter()
        .filter(|row| matches!(row, Row::Service(_)))
        .count() as u64;
    Line::from(vec![
        Span::styled("bonsai", Styles::bold()),
        Span::raw(format!("  {}", count(services, "service", "services"))),
        Span::styled("   arrow keys choose, q quits", Styles::dim()),
    ])
}

fn draw_limits(frame: &mut Frame<'_>, area: Rect, app: &App, style: &Styles) {
    let rows = app.rows();
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("no service is running"), area);
        return;
    }
    let chosen = rows.iter().position(|row| match row {
        Row::Limit(service, limit) => app.is_chosen(service, limit),
        Row::Service(_) | Row::Waiting(_) => false,
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(u16::try_from(BAR).unwrap_or(0)),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let header =
        TableRow::new(["", "asked", "got", "", "", "waits/s", "p99 wait"]).style(Styles::dim());
    let lines = rows.iter().map(|row| match row {
        Row::Service(service) => service_row(service, style),
        Row::Limit(service, limit) => limit_row(service, limit, style),
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
    let processes = count(service.processes.len() as u64, "process", "processes");
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

fn limit_row(service: &ServiceView, limit: &LimitView, style: &Styles) -> TableRow<'static> {
    let [asked, got] = rates(limit);
    // Of a limit per stream, what all of them get together is no share of it.
    let got_of_one = limit.got.filter(|_| !limit.per_stream);
    let share = got_of_one.map(|got| got / limit.asked);
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
        Line::styled(share.map_or_else(String::new, bar), style.with(colour)),
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
    let limit = waiting.limit.as_deref().unwrap_or("-");
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
fn bar(share: f64) -> String {
    let filled = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    "█".repeat(filled) + &"·".repeat(BAR - filled)
}

fn draw_history(frame: &mut Frame<'_>, area: Rect, app: &App, style: &Styles) {
    let Some((service, limit)) = app.chosen() else {
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
            let bar = bar(share);
            assert_eq!(bar.matches('█').count(), filled, "{share}");
            assert_eq!(bar.chars().count(), BAR);
        }
    }
}
