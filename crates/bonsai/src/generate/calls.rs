//! `docs/reference/calls.md`: the table of calls.

use bonsai_calls::symbols::SYMBOLS;
use bonsai_calls::{BY_NR, CALLS, CLASSES, Call, Class, Fd, ProcIo, Shape};

/// The page.
pub(super) fn page() -> String {
    let mut text = String::from(
        "# Calls and classes\n\nWritten by `cargo xtask gen` from the table of calls in \
         `bonsai-calls`.\n\nA limit is on a class or on a single call. A limit in bytes/s applies \
         to those of its calls that move bytes, a limit in calls/s to all of them. A name that is \
         both a class and a call is the class.\n\n## Classes\n\n| class | what is in it |\n|---|---|\n",
    );
    for (_, name, about) in CLASSES {
        text.push_str(&format!("| `{name}` | {about} |\n"));
    }
    text.push_str(
        "\n## Calls\n\nThe columns:\n\n- *number*: on x86-64.\n- *bytes*: `in` are charged when \
         they have arrived, `out` are waited for before the call; calls without bytes wait before \
         the call.\n- *on*: the kind of descriptor, where the call is counted by it. `file` is a \
         regular file or block device, `other` a pipe, terminal, character device or anything \
         else. `sendfile` goes by its destination, `splice` by its end that is not the pipe.\n\
         - *classes*: besides `all`, which has every call in it.\n- *kernel*: the counter of \
         `/proc/PID/io` that `bonsai audit` compares with.\n- *symbols*: the functions of libc \
         that are entered besides the system calls in libc itself.\n\n\
         | call | number | bytes | on | classes | kernel | symbols |\n|---|--:|---|---|---|---|---|\n",
    );
    for (index, call) in CALLS.iter().enumerate() {
        text.push_str(&row(index, call));
    }
    text
}

fn row(index: usize, call: &Call) -> String {
    let bytes = match call.shape {
        Shape::In => "in",
        Shape::Out => "out",
        Shape::Count => "",
    };
    let on = match call.fd {
        Fd::Any => "",
        Fd::File => "file",
        Fd::Socket => "socket",
        Fd::Other => "other",
    };
    let kernel = match call.proc_io {
        ProcIo::None => "",
        ProcIo::Read => "rchar",
        ProcIo::Write => "wchar",
        ProcIo::Both => "rchar, wchar",
    };
    let classes = call.classes.iter().filter(|class| *class != Class::All);
    let classes: Vec<String> = classes.map(|class| format!("`{}`", class.name())).collect();
    // The symbols of a call stand with the first of its entries.
    let first = usize::from(BY_NR[usize::from(call.nr)]);
    let symbols: Vec<String> = SYMBOLS
        .iter()
        .filter(|symbol| usize::from(symbol.call) == first && index == first)
        .map(|symbol| format!("`{}`", symbol.name))
        .collect();
    let name = call.name;
    format!(
        "| `{name}` | {} | {bytes} | {on} | {} | {kernel} | {} |\n",
        call.nr,
        classes.join(", "),
        symbols.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_and_class_and_symbol_is_there_once() {
        let page = page();
        let rows = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
        for (_, name, _) in CLASSES {
            assert!(rows(&format!("| `{name}` | ")) >= 1, "{name}");
        }
        for call in CALLS {
            let entries = CALLS.iter().filter(|other| other.nr == call.nr).count();
            assert_eq!(
                rows(&format!("| `{}` | {} |", call.name, call.nr)),
                entries,
                "{}",
                call.name
            );
        }
        for symbol in SYMBOLS {
            let word = format!("`{}`", symbol.name);
            let last_cells = page
                .lines()
                .filter_map(|line| line.trim_end_matches(" |").rsplit("| ").next());
            let times: usize = last_cells
                .map(|cell| cell.split(", ").filter(|s| *s == word).count())
                .sum();
            assert!(times >= 1, "{word}");
        }
    }
}
