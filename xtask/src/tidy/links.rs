//! Relative links between Markdown pages lead somewhere.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::{Tree, extension};

/// A link and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    target: String,
}

/// Every relative link to a file, a folder or a heading that is not there.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_markdown(path)) {
        for link in links(text) {
            if let Some((what, right)) = broken(tree, path, &link.target) {
                findings.push(Finding::new(path, link.line, what, right));
            }
        }
    }
    findings
}

fn is_markdown(path: &str) -> bool {
    extension(path) == Some("md")
}

/// Why the link `target` on the page `page` leads nowhere.
fn broken(tree: &Tree, page: &str, target: &str) -> Option<(String, String)> {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    if scheme.is_some_and(|s| {
        s.chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    }) {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let place = if file.is_empty() {
        Some(page.to_owned())
    } else {
        resolve(page, file)
    };
    let Some(place) = place.filter(|place| tree.has(place)) else {
        return Some((
            format!("the link to {target} leads nowhere"),
            "name a file of this repository, relative to this page".to_owned(),
        ));
    };
    if heading.is_empty() || !is_markdown(&place) {
        return None;
    }
    let anchors = tree.text(&place).map(anchors).unwrap_or_default();
    (!anchors.contains(heading)).then(|| {
        (
            format!("the link to {target} leads to no heading"),
            format!("name a heading of {place} in lower case, with - for blanks"),
        )
    })
}

/// `target` seen from the folder of `page`; `None` when it leaves the repository.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The lines of `text` outside of code blocks, numbered from 1, without inline code.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => {
                fence = mark;
                None
            }
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                None
            }
            (Some(_), _) => None,
            (None, None) => Some((at + 1, without_inline_code(line))),
        }
    })
}

fn without_inline_code(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    let closed = pieces.len() % 2 == 1;
    let kept = pieces
        .iter()
        .enumerate()
        .filter(|(at, _)| at % 2 == 0 || (!closed && at + 1 == pieces.len()));
    kept.map(|(_, piece)| *piece).collect::<Vec<_>>().join("`")
}

fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        let mut add = |target: &str| {
            let target = target.trim();
            let target = match target.strip_prefix('<') {
                Some(bracketed) => bracketed.split('>').next(),
                None => target.split_whitespace().next(),
            };
            links.extend(target.map(|target| Link {
                line,
                target: target.to_owned(),
            }));
        };
        for (at, _) in prose.match_indices("](") {
            add(up_to_closing(&prose[at + 2..]));
        }
        for attribute in ["src=\"", "href=\""] {
            for (at, _) in prose.match_indices(attribute) {
                let rest = &prose[at + attribute.len()..];
                add(rest.split('"').next().unwrap_or(rest));
            }
        }
        if let Some((_, target)) = prose
            .trim_start()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
        {
            add(target);
        }
    }
    links
}

/// `rest` up to the parenthesis that closes the one before it.
fn up_to_closing(rest: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return &rest[..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    rest
}

/// The anchors of a page: its headings the way code hosts write them, and explicit ids.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut fenced: BTreeSet<usize> = (1..=text.lines().count()).collect();
    for (line, prose) in prose(text) {
        fenced.remove(&line);
        for attribute in ["id=\"", "name=\""] {
            for (at, _) in prose.match_indices(attribute) {
                anchors.extend(
                    prose[at + attribute.len()..]
                        .split('"')
                        .next()
                        .map(str::to_owned),
                );
            }
        }
    }
    for (at, line) in text.lines().enumerate() {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if (1..=6).contains(&level) && title.starts_with(' ') && !fenced.contains(&(at + 1)) {
            let base = anchor(title.trim());
            let repeated = (1..).map(|n| format!("{base}-{n}"));
            let free = std::iter::once(base.clone())
                .chain(repeated)
                .find(|name| !anchors.contains(name));
            anchors.extend(free);
        }
    }
    anchors
}

fn anchor(title: &str) -> String {
    let mut text = title.to_owned();
    // Of a link only its text counts.
    while let Some(open) = text.find("](") {
        let end = text[open..]
            .find(')')
            .map_or(text.len(), |close| open + close + 1);
        text.replace_range(open..end, "");
    }
    text.to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
            .iter()
            .map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn links_of_every_form_are_seen() {
        let text =
            "[a](b.md) ![c](<d e.png>) [f](g_(h).md \"title\")\n[i]: j.md\n<img src=\"k.svg\">\n";
        let targets: Vec<_> = links(text)
            .into_iter()
            .map(|link| (link.line, link.target))
            .collect();
        let wanted = [(1, "b.md"), (1, "d e.png"), (1, "g_(h).md"), (3, "k.svg")]
            .map(|(l, t)| (l, t.to_owned()));
        assert_eq!(
            targets
                .iter()
                .filter(|(l, _)| *l != 2)
                .cloned()
                .collect::<Vec<_>>(),
            wanted
        );
        assert_eq!(targets.iter().filter(|(l, _)| *l == 2).count(), 1);
    }

    #[test]
    fn code_holds_no_links() {
        let text =
            "`[a](b.md)` x\n```\n[a](b.md)\n~~~\n```\n~~~\n[a](b.md)\n~~~\n[one](real.md) `x\n";
        assert_eq!(
            links(text),
            [Link {
                line: 9,
                target: "real.md".to_owned()
            }]
        );
    }

    #[test]
    fn a_link_leads_to_a_file_or_folder_of_the_tree() {
        let page = "[a](../README.md) [b](other.md) [c](/docs) [d](./) [e](https://x.org/y) [f](mailto:a@b.c)\n\
                    [g](gone.md)\n[h](../../out.md)\n";
        assert_eq!(
            found(&[
                ("README.md", ""),
                ("docs/other.md", ""),
                ("docs/page.md", page)
            ]),
            [
                "docs/page.md:2 the link to gone.md leads nowhere",
                "docs/page.md:3 the link to ../../out.md leads nowhere"
            ]
        );
    }

    #[test]
    fn a_link_leads_to_a_heading() {
        let page = "# The `run` command\n## Twice\n## Twice\n```\n# no heading\n```\n<a id=\"own\"></a>\n\
                    [a](#the-run-command) [b](#twice-1) [c](#own)\n[d](#no-heading)\n[e](b.md#see-that-here)\n[f](b.md#x)\n";
        let other = "## See [that](page.md), here\n";
        assert_eq!(
            found(&[("a.md", page), ("b.md", other), ("page.md", "")]),
            [
                "a.md:9 the link to #no-heading leads to no heading",
                "a.md:11 the link to b.md#x leads to no heading"
            ]
        );
    }
}
