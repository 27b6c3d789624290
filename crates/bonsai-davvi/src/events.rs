//! Annotations: what happens when, from CSV (RFC 4180).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, format_position, parse_position};

/// The most bytes of a file.
const MOST_BYTES: u64 = 32 << 20;
/// The most events of a video.
const MOST_EVENTS: usize = 200_000;
/// The most columns.
const MOST_COLUMNS: usize = 32;
/// The most bytes of a field.
const MOST_FIELD: usize = 8 << 10;
/// The most wrong lines that are told.
const MOST_TOLD: usize = 10;
/// The most players of an event.
const MOST_PLAYERS: usize = 100;

/// Something that happens in a video.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, ms from the start.
    pub at_ms: u64,
    /// What: `goal`, `tackle`; may be empty.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Who: numbers or names.
    #[serde(default)]
    pub players: Vec<String>,
    /// What was said of it.
    #[serde(default)]
    pub text: String,
    /// Everything else, by the names of the columns: `card`, `team`, ...
    #[serde(flatten)]
    pub fields: BTreeMap<String, String>,
}

/// The names that fields of [`Event`] have.
const OWN: [&str; 5] = ["at_ms", "time", "type", "players", "text"];

/// Reads annotations: a line of names of columns, then a line for each event. `time` has to be
/// there (`MM:SS`, `H:MM:SS`, or with a unit); `type`, `players` (several apart by `;`, `|` or, in
/// quotes, commas) and `text` are known; other columns are fields that can be searched by their name.
/// Columns are apart by commas, semicolons or tabs, whichever the first line has.
///
/// # Errors
/// The file cannot be read, or a line of it makes no sense: which, and why.
pub fn read_events(path: &Path) -> Result<Vec<Event>, Error> {
    let wrong = |error: std::io::Error| {
        Error::input(format!("{}: cannot be read: {error}", path.display()))
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(wrong)?;
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(wrong)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::input(format!(
            "{}: more than 32 MiB are no annotations",
            path.display()
        )));
    }
    parse(&bytes).map_err(|why| Error::input(format!("{}: {why}", path.display())))
}

/// Reads annotations as [`read_events`] does, from memory.
///
/// # Errors
/// A line makes no sense: which, and why.
pub fn parse_events(bytes: &[u8]) -> Result<Vec<Event>, Error> {
    parse(bytes).map_err(Error::Input)
}

/// Refuses events after the end of their video.
pub(crate) fn within(events: &[Event], length_ms: u64) -> Result<(), String> {
    let late = events.iter().filter(|event| event.at_ms >= length_ms);
    let late: Vec<String> = late.map(|event| format_position(event.at_ms)).collect();
    let end = format_position(length_ms);
    match &late[..] {
        [] => Ok(()),
        [one] => Err(format!(
            "an event at {one} is after the end of the video, {end}"
        )),
        [first @ .., last] => {
            let (first, further) = first.split_at(first.len().min(MOST_TOLD));
            let further = match further.len() {
                0 => String::new(),
                further => format!(", {further} more"),
            };
            Err(format!(
                "events at {}{further} and {last} are after the end of the video, {end}",
                first.join(", ")
            ))
        }
    }
}

/// What a column holds.
enum Column {
    Time,
    Type,
    Players,
    Text,
    Other(String),
}

fn parse(bytes: &[u8]) -> Result<Vec<Event>, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter(bytes))
        .trim(csv::Trim::All)
        .from_reader(bytes);
    quotes(bytes, delimiter(bytes))?;
    let columns = columns(reader.headers().map_err(|error| said(bytes, &error))?)?;
    let mut events = Vec::new();
    let mut wrong = Vec::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                wrong.push(said(bytes, &error));
                continue;
            }
        };
        let line = line(bytes, record.position());
        if events.len() == MOST_EVENTS {
            return Err(format!(
                "line {line}: more than {MOST_EVENTS} events are too many"
            ));
        }
        match event(&columns, &record) {
            Ok(event) => events.push(event),
            Err(why) => wrong.push(format!("line {line}: {why}")),
        }
    }
    if !wrong.is_empty() {
        let further = wrong.len().saturating_sub(MOST_TOLD);
        wrong.truncate(MOST_TOLD);
        if further > 0 {
            wrong.push(format!("and {further} more"));
        }
        return Err(wrong.join("; "));
    }
    // What happens at once stays in the order of the file.
    events.sort_by_key(|event| event.at_ms);
    Ok(events)
}

/// Refuses quotation marks that are not what they stand for, which the reader takes as text up to the next of them, so
/// that events go missing: one that is not closed, text behind a closing one, and a field over several lines of
/// which one is an event by itself.
fn quotes(bytes: &[u8], delimiter: u8) -> Result<(), String> {
    let mut line = 1;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'"' {
            // A mark within a field that does not begin with one is text.
            let rest = &bytes[at..];
            let end = rest
                .iter()
                .position(|byte| *byte == delimiter || b"\r\n".contains(byte));
            let Some(end) = end else { return Ok(()) };
            line += u64::from(rest[end] == b'\n');
            at += end + 1;
            continue;
        }
        let began = line;
        at += 1;
        loop {
            match bytes.get(at..) {
                Some([b'"', b'"', ..]) => at += 2,
                Some([b'"', ..]) => break,
                Some([end @ (b'\r' | b'\n'), rest @ ..]) => {
                    line += u64::from(*end == b'\n');
                    at += 1;
                    let cell = rest.split(|byte| *byte == delimiter || b"\r\n".contains(byte));
                    let cell = cell.map(|cell| String::from_utf8_lossy(cell)).next();
                    if cell.is_some_and(|cell| parse_position(cell.trim()).is_ok()) {
                        return Err(format!(
                            "line {began}: a quotation mark is open, and line {line} begins with a time: close it"
                        ));
                    }
                }
                Some([_, ..]) => at += 1,
                _ => return Err(format!("line {began}: a quotation mark is not closed")),
            }
        }
        at += 1;
        let rest = &bytes[at..];
        let end = rest
            .iter()
            .position(|byte| *byte == delimiter || b"\r\n".contains(byte));
        let behind = &rest[..end.unwrap_or(rest.len())];
        if !behind.trim_ascii().is_empty() {
            return Err(format!(
                "line {line}: there is text behind a closing quotation mark: write \"\" for one within a text"
            ));
        }
        let Some(end) = end else { return Ok(()) };
        line += u64::from(rest[end] == b'\n');
        at += end + 1;
    }
    Ok(())
}

fn delimiter(bytes: &[u8]) -> u8 {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let most = [b',', b';', b'\t'].into_iter().rev();
    most.max_by_key(|wanted| line.iter().filter(|byte| *byte == wanted).count())
        .unwrap_or(b',')
}

/// The line on which a record begins. Its position is before the empty lines that were skipped.
fn line(bytes: &[u8], position: Option<&csv::Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let at = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let rest = bytes.get(at..).unwrap_or_default();
    let ends = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    position.line() + ends.filter(|byte| **byte == b'\n').count() as u64
}

fn said(bytes: &[u8], error: &csv::Error) -> String {
    let line = line(bytes, error.position());
    match error.kind() {
        csv::ErrorKind::Utf8 { err, .. } => {
            format!("line {line}: field {} is no UTF-8", err.field() + 1)
        }
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("line {line}: it has {len} fields, and the first line {expected_len}")
        }
        _ => error.to_string(),
    }
}

fn columns(header: &csv::StringRecord) -> Result<Vec<Column>, String> {
    let mut seen = BTreeSet::new();
    if header.len() > MOST_COLUMNS {
        return Err(format!(
            "line 1: {} columns are too many: {MOST_COLUMNS} are taken",
            header.len()
        ));
    }
    let columns = header.iter().map(|name| {
        let name = name.to_lowercase();
        let is_name = (1..=32).contains(&name.len())
            && name
                .chars()
                .all(|c| c.is_alphanumeric() || c == '-' || c == '_' || c == ' ');
        if !is_name {
            return Err(format!(
                "line 1: {name:?} is no name of a column: write letters, digits, - and _"
            ));
        }
        let column = match name.as_str() {
            "time" => Column::Time,
            "type" | "event" => Column::Type,
            "players" | "player" => Column::Players,
            "text" => Column::Text,
            other if OWN.contains(&other) => {
                return Err(format!("line 1: no column can be called {other:?}"));
            }
            other => Column::Other(other.to_owned()),
        };
        let key = match &column {
            Column::Time => "time",
            Column::Type => "type",
            Column::Players => "players",
            Column::Text => "text",
            Column::Other(other) => other,
        };
        if !seen.insert(key.to_owned()) {
            return Err(format!("line 1: there are two columns for {key:?}"));
        }
        Ok(column)
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    if seen.contains("time") {
        Ok(columns)
    } else {
        Err("line 1: no column is called time: the first line has the names of the columns, such as time,type,players,text".to_owned())
    }
}

fn event(columns: &[Column], record: &csv::StringRecord) -> Result<Event, String> {
    let mut event = Event {
        at_ms: 0,
        kind: String::new(),
        players: Vec::new(),
        text: String::new(),
        fields: BTreeMap::new(),
    };
    for (column, value) in columns.iter().zip(record) {
        if value.len() > MOST_FIELD {
            return Err(format!(
                "a field of {} bytes is too long: {MOST_FIELD} are taken",
                value.len()
            ));
        }
        if value.chars().any(|c| c.is_control() && !c.is_whitespace()) {
            return Err("there is a control character in it".to_owned());
        }
        match column {
            Column::Time => event.at_ms = parse_position(value)?,
            Column::Type => event.kind = value.to_owned(),
            Column::Players => {
                let each = value.split([',', ';', '|']).map(str::trim);
                event.players = each
                    .filter(|one| !one.is_empty())
                    .map(str::to_owned)
                    .collect();
                if event.players.len() > MOST_PLAYERS {
                    return Err(format!(
                        "{} players are too many for an event",
                        event.players.len()
                    ));
                }
            }
            Column::Text => event.text = value.to_owned(),
            Column::Other(_) if value.is_empty() => {}
            Column::Other(name) => {
                event.fields.insert(name.clone(), value.to_owned());
            }
        }
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn annotations_are_read() {
        let text = "\u{feff}Time,Type,Players,Card,Text\n\
                    12:34,tackle,\"8, 14\",yellow,\"A sliding tackle, late\"\n\
                    0:05,kick-off,,,\n\n\
                    12:34,free kick,Tore André Flo;9,,Wide\n";
        let events = parse(text.as_bytes()).expect("annotations");
        assert_eq!(events.len(), 3);
        assert_eq!(
            (events[0].at_ms, events[0].kind.as_str()),
            (5_000, "kick-off")
        );
        assert!(events[0].players.is_empty() && events[0].fields.is_empty());
        assert_eq!(events[1].players, ["8", "14"]);
        assert_eq!(events[1].fields["card"], "yellow");
        assert_eq!(events[1].text, "A sliding tackle, late");
        assert_eq!(events[2].players, ["Tore André Flo", "9"]);
        // As spreadsheets write it where the comma is in numbers.
        let events = parse("time;text\r\n1:00;\"a, b\"\r\n".as_bytes()).expect("annotations");
        assert_eq!(events[0].text, "a, b");
        assert_eq!(parse(b"time\n").expect("none"), []);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, said) in [
            ("", "line 1: no column is called time"),
            ("12:34,goal\n", "line 1: \"12:34\" is no name"),
            ("type,text\ngoal,x\n", "line 1: no column is called time"),
            ("time,time\n", "two columns for \"time\""),
            ("time,at_ms\n", "no column can be called \"at_ms\""),
            (
                "time,type\n1:00,goal\n1:00\n",
                "line 3: it has 1 fields, and the first line 2",
            ),
            (
                "time,type\n1:00,goal\n\n90,goal\n",
                "line 4: \"90\" is no time in a video",
            ),
            (
                "time,type\n1:00,\"a\nb\"\nx,y\n",
                "line 4: \"x\" is no time",
            ),
            (
                "time,type\n1:00,a\u{1b}b\n",
                "line 2: there is a control character",
            ),
        ] {
            let answer = parse(text.as_bytes()).expect_err(text);
            assert!(answer.contains(said), "{text:?}: {answer}");
        }
        let latin = parse(b"time,text\n1:00,\xe6\n").expect_err("no UTF-8");
        assert_eq!(latin, "line 2: field 2 is no UTF-8");
        let long = format!("time,text\n1:00,{}\n", "x".repeat(MOST_FIELD + 1));
        assert!(
            parse(long.as_bytes())
                .expect_err("too long")
                .starts_with("line 2: a field of")
        );
    }

    #[test]
    fn a_quotation_mark_swallows_no_event() {
        for (text, words) in [
            (
                "time,text\n0:01,\"open\n0:02,b\n0:03,c\n",
                "line 2: a quotation mark is open",
            ),
            (
                "time,text\n0:01,\"open",
                "line 2: a quotation mark is not closed",
            ),
            (
                "time,text\n0:01,\"open\nx\n",
                "line 2: a quotation mark is not closed",
            ),
            (
                "time,text\n0:01,\"a: \"\"b\"\" c\n0:02,b\n",
                "line 2: a quotation mark is open",
            ),
            ("time,text\n0:01,\"a\" b\n", "line 2: there is text behind"),
            (
                "time,text\r\n0:01,\"a\r\n0:02,b\"\r\n",
                "line 2: a quotation mark is open",
            ),
            (
                "time;text\n0:01;\"a\" \n0:02;\"b\"c\n",
                "line 3: there is text behind",
            ),
            ("\"time,text\n0:01,a\n", "line 1: a quotation mark is open"),
        ] {
            let said = parse(text.as_bytes()).expect_err(text);
            assert!(said.starts_with(words), "{text:?}: {said}");
        }
        for (text, events) in [
            ("time,text\n0:01,\"a \"\"b\"\" c\"\n0:02,\"x,y\"\n", 2),
            ("time,text\n0:01,\"two\nlines\"\n0:02,5\" nails\n", 2),
            ("\"time\",\"text\"\r\n\"0:01\",\"\"\r\n", 1),
        ] {
            assert_eq!(
                parse(text.as_bytes()).expect(text).len(),
                events,
                "{text:?}"
            );
        }
    }

    #[test]
    fn all_wrong_lines_are_told_at_once() {
        let said = parse(b"time,text\nx,a\n0:01,b\n0:02\ny,c\n").expect_err("wrong");
        for line in ["line 2: ", "; line 4: ", "; line 5: "] {
            assert!(said.contains(line), "{said}");
        }
        let many = format!("time\n{}", "x\n".repeat(30));
        let said = parse(many.as_bytes()).expect_err("wrong");
        assert!(said.ends_with("; and 20 more"), "{said}");
    }

    #[test]
    fn an_event_after_the_end_is_refused() {
        let events = parse(b"time\n1:00\n2:00\n").expect("annotations");
        within(&events, 120_001).expect("within");
        let said = within(&events, 120_000).expect_err("after the end");
        assert_eq!(said, "an event at 2:00 is after the end of the video, 2:00");
        let said = within(&events, 60_000).expect_err("after the end");
        assert_eq!(
            said,
            "events at 1:00 and 2:00 are after the end of the video, 1:00"
        );
    }

    proptest! {
        #[test]
        fn each_line_with_a_time_is_an_event_or_an_error(
            texts in proptest::collection::vec("[a ,\"]{0,6}", 1..8),
        ) {
            let mut file = "time,text\n".to_owned();
            for (number, text) in texts.iter().enumerate() {
                file.push_str(&format!("0:0{number},{text}\n"));
            }
            if let Ok(events) = parse(file.as_bytes()) {
                prop_assert_eq!(events.len(), texts.len());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"time,type,players,text\n", &bytes[..]].concat());
        }

        #[test]
        fn what_was_read_is_kept(text in "[a-zæøå ,;\"]{0,40}") {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(["time", "text"]).expect("written");
            writer.write_record(["1:00", &text]).expect("written");
            let bytes = writer.into_inner().expect("written");
            let events = parse(&bytes).expect("annotations");
            prop_assert_eq!(events[0].text.as_str(), text.trim());
            let kept = serde_json::to_vec(&events).expect("JSON");
            let again: Vec<Event> = serde_json::from_slice(&kept).expect("JSON");
            prop_assert_eq!(again, events);
        }
    }
}
