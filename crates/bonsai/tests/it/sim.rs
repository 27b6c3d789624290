//! Caches over a trace, by the command.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Place, Said};

/// Two guests that read the same 40 blocks, each twice, and then one of them writes.
fn trace(place: &Place) -> PathBuf {
    let mut text = String::new();
    let mut line = |sector: u64, op: &str, device: &str, content: u64| {
        text += &format!("1000 7 qemu {sector} 8 {op} {device} 0 {content:032x}\n");
    };
    for _ in 0..2 {
        for device in ["8", "9"] {
            (0..40).for_each(|n| line(n * 8, "R", device, 100 + n));
        }
    }
    (0..10).for_each(|n| line(n * 8, "W", "9", 500 + n));
    let from = place.path().join("two.fiu");
    std::fs::write(&from, text).expect("a text");
    let to = place.path().join("two.btr");
    let said = place.say(&[
        "trace",
        "import",
        from.to_str().expect("text"),
        "-o",
        to.to_str().expect("text"),
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    to
}

fn sim(place: &Place, args: &[&str]) -> Said {
    place.say(&[&["sim"], args].concat())
}

fn json(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str(&said.out).expect("JSON")
}

#[test]
fn schemes_save_what_they_should_in_every_format() {
    let place = Place::bare();
    let trace = trace(&place);
    let trace = trace.to_str().expect("text");
    let schemes = "plain,drive,drive:scan,drive:intra,ideal";
    let run = [
        "run", trace, "--cache", "200KiB", "--scheme", schemes, "--policy", "lru",
    ];
    let found = json(&sim(&place, &[&run[..], &["--json"]].concat()));
    let saved: Vec<u64> = found["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|row| row["read_hits"].as_u64().expect("hits"))
        .collect();
    // 50 blocks of memory: 40 contents fit, 80 blocks do not, and LRU has none of them when it comes round.
    assert_eq!(saved, [0, 80, 120, 0, 120]);
    let csv = sim(&place, &[&run[..], &["--csv"]].concat());
    assert_eq!((csv.code, csv.out.lines().count()), (Some(0), 6), "{csv:?}");
    assert!(
        csv.out
            .lines()
            .nth(3)
            .expect("a row")
            .starts_with("204800,drive:scan,lru,160,10,120,"),
        "{csv:?}"
    );
    let page = place.path().join("page.html");
    let text = sim(
        &place,
        &[&run[..], &["--html", page.to_str().expect("text")]].concat(),
    );
    assert!(text.out.contains("75.00"), "{text:?}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.matches("<svg").count() == 2,
        "{page}"
    );
}

#[test]
fn a_curve_has_the_sizes_between() {
    let place = Place::bare();
    let trace = trace(&place);
    let trace = trace.to_str().expect("text");
    let found = json(&sim(
        &place,
        &["curve", trace, "--scheme", "plain,ideal", "--json"],
    ));
    let last = |n: usize| {
        found["curves"][n]["points"]
            .as_array()
            .and_then(|points| points.last().cloned())
            .expect("points")
    };
    assert_eq!(last(0)["cache_bytes"], 80 * 4096);
    assert_eq!(
        (
            last(0)["reads_saved"].as_f64(),
            last(1)["reads_saved"].as_f64()
        ),
        (Some(0.5), Some(0.75))
    );
    let said = sim(&place, &["curve", trace, "--scheme", "drive:invalidate"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        said.err,
        "bonsai: drive:invalidate has no curve: what a write invalidates is known again when a read misses, which depends \
         on the cache; bonsai sim run simulates it at given sizes, and --scheme plain has a curve of every trace\n"
    );
}

/// A trace without contents, as blkparse, MSR, fio and the ARC paper's are.
#[test]
fn schemes_without_a_curve_are_left_out_and_named() {
    let place = Place::bare();
    let text: String = (0..300)
        .map(|n| format!("{} 1 0 {n}\n", n * 7 % 40))
        .collect();
    let [from, to] = ["a.lis", "a.btr"].map(|name| place.path().join(name).display().to_string());
    std::fs::write(&from, text).expect("written");
    let said = place.say(&["trace", "import", &from, "--format", "arc", "-o", &to]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = sim(&place, &["curve", &to]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let heading = said.out.lines().find(|line| line.contains("cache  "));
    let words: Vec<&str> = heading.expect("a table").split_whitespace().collect();
    assert_eq!(words, ["cache", "plain", "ideal"], "{said:?}");
    assert_eq!(
        said.err,
        "bonsai: drive has no curve: the trace does not say what every block holds; it is left out (bonsai sim run \
         simulates it at given sizes)\n\
         bonsai: drive:scan has no curve: the trace does not say what every block holds; it is left out (bonsai sim run \
         simulates it at given sizes)\n"
    );
    let page = place.path().join("page.html").display().to_string();
    let found = json(&sim(&place, &["curve", &to, "--json", "--html", &page]));
    assert_eq!(found["curves"].as_array().map(Vec::len), Some(2));
    assert_eq!(found["left_out"][1]["scheme"], "drive:scan");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("drive has no curve"), "{page}");
    let said = sim(&place, &["curve", &to, "--scheme", "drive,iodedup:10%"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("--scheme plain"), "{said:?}");
    for args in [
        &["table", &to, "--cache", "64KiB"][..],
        &["run", &to, "--cache", "64KiB"],
        &[
            "curve", &to, "--scheme", "plain", "--sample", "8", "--seed", "7",
        ],
    ] {
        let said = sim(&place, args);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    }
    let page = place.path().join("stat.html").display().to_string();
    let said = place.say(&["trace", "stat", &to, "--html", &page]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn the_table_has_published_figures_beside_ours() {
    let place = Place::bare();
    let trace = trace(&place);
    let trace = trace.to_str().expect("text");
    let said = sim(&place, &["table", trace, "--cache", "200KiB"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let row = |words: &[&str]| {
        let found = |line: &str| {
            line.split_whitespace()
                .take(words.len())
                .eq(words.iter().copied())
        };
        said.out.lines().any(found)
    };
    assert!(row(&["two", "drive", "52.94", "50.00", "4.00"]), "{said:?}");
    assert!(
        row(&[
            "homes+webvm",
            "drive",
            "67.60",
            "18.50",
            "6.50",
            "published,",
            "slides"
        ]),
        "{said:?}"
    );
}

#[test]
fn traces_are_one_row_with_a_plus_between() {
    let place = Place::bare();
    let path = trace(&place);
    let one = path.to_str().expect("text");
    let other = place.path().join("more.btr");
    std::fs::copy(&path, &other).expect("copied");
    let both = format!("{one}+{}", other.display());
    let [page, figure] = ["t.html", "t.svg"].map(|name| place.path().join(name));
    let args = [
        "table",
        one,
        &both,
        "--cache",
        "200KiB",
        "--html",
        page.to_str().expect("text"),
        "--figure",
        figure.to_str().expect("text"),
        "--json",
    ];
    let found = json(&sim(&place, &args));
    let row = &found["traces"][1];
    assert_eq!(row["trace"], "two+more");
    // Twice the blocks, with the same contents.
    assert_eq!(row["runs"][0]["reads"], 320);
    let ideal = [
        "run", &both, "--cache", "200KiB", "--scheme", "ideal", "--json",
    ];
    let ideal = json(&sim(&place, &ideal));
    assert_eq!(
        (&ideal["blocks"], &ideal["contents"]),
        (&160.into(), &50.into())
    );
    assert_eq!(ideal["runs"][0]["read_hits"], 280);
    let text = std::fs::read_to_string(page).expect("a page");
    assert!(
        text.matches("<svg").count() == 1 && text.contains("two+more"),
        "{text}"
    );
    assert!(text.contains("<td>published, slides</td>"), "{text}");
    let text = std::fs::read_to_string(figure).expect("a figure");
    assert!(
        text.starts_with("<svg") && text.contains("homes+webvm"),
        "{text}"
    );
    // What is wrong with one of them has its name.
    std::fs::write(&other, &std::fs::read(one).expect("a trace")[..100]).expect("written");
    let said = sim(&place, &["curve", &both]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("more.btr: the trace is cut off"),
        "{said:?}"
    );
}

#[test]
fn mistakes_are_one_sentence() {
    let place = Place::bare();
    let trace = trace(&place);
    let trace = trace.to_str().expect("text");
    let text = place.path().join("rows.csv");
    std::fs::write(&text, "a,b\n1,2\n").expect("written");
    let text = text.to_str().expect("text");
    let out = place.path().join("out").display().to_string();
    let out = out.as_str();
    for (args, words) in [
        (
            &["run", trace, "--cache", "1000B"][..],
            "whole blocks of 4 KiB",
        ),
        (&["run", trace, "--cache", "1TiB"], "at most 256 GiB"),
        (&["run", trace, "--cache", "-1MiB"], "\"-1MiB\""),
        (
            &["run", trace, "--cache", "1MiB", "--scheme", "drive:max=1B"],
            "at least 128KiB",
        ),
        (
            &["run", trace, "--cache", "1MiB", "--scheme", "magic"],
            "there is no scheme `magic`",
        ),
        (
            &["run", trace, "--cache", "1MiB", "--policy", "mru"],
            "there is no policy `mru`",
        ),
        (
            &["run", trace, "--cache", "1MiB", "--latency", "disk=8"],
            "`disk=8` is no time",
        ),
        (
            &[
                "run",
                trace,
                "--cache",
                "1MiB",
                "--latency",
                "disk=8ms,disk=9ms",
            ],
            "disk was given before",
        ),
        (
            &["table", trace, "--html", out, "--figure", out],
            "it cannot be --html and --figure",
        ),
        (
            &["curve", trace, "--figure", "/no/such/folder/plot.svg"],
            "/no/such/folder/plot.svg: cannot be written: No such file",
        ),
        (
            &["run", text, "--cache", "1MiB"],
            "import it with its columns named, such as: bonsai trace import ",
        ),
        (&["curve", "/none.btr"], "/none.btr: "),
        (&["curve", trace, "--sample", "2"], "2"),
    ] {
        let said = sim(&place, args);
        assert_eq!(
            (said.code, said.err.lines().count()),
            (Some(2), 1),
            "{said:?}"
        );
        assert!(said.err.contains(words) && said.out.is_empty(), "{said:?}");
    }
}
