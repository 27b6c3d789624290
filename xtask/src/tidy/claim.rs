//! What the README claims to be covered is the table that `bonsai doctor` prints.

use super::Finding;
use super::tree::Tree;

const README: &str = "README.md";
const TABLE: &str = "docs/reference/coverage.md";

/// Tables of programs that the README lacks, whole or in part. A tree without either page
/// has no findings.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(readme), Some(page)) = (tree.text(README), tree.text(TABLE)) else {
        return Vec::new();
    };
    let said = tables(readme);
    // The last table says what the columns are.
    let claimed = tables(page);
    let claimed = claimed
        .iter()
        .take_while(|table| !table[0].starts_with("| column"));
    claimed
        .filter(|table| !said.contains(table))
        .map(|table| {
            let what = format!("the table {:?} of what is covered is not there", table[0]);
            Finding::new(README, 1, what, format!("copy it from {TABLE}"))
        })
        .collect()
}

/// The tables of a page: their rows, whose neighbours they are.
fn tables(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().collect();
    let parts = lines.split(|line| !line.starts_with('|'));
    parts
        .filter(|rows| !rows.is_empty())
        .map(<[&str]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_to_stand_in_the_readme() {
        let run = "| run | a |\n|---|---|\n| x | limited |\n";
        let attach = "| attach | a |\n|---|---|\n| x | limited |\n";
        let columns = "| column | by |\n|---|---|\n";
        let page = format!("# C\n\n{run}\n{attach}\n{columns}");
        let check = |readme: &str| check(&Tree::of(&[(README, readme), (TABLE, &page)]));
        assert_eq!(check(&format!("{run}\n{attach}\nText\n")), []);
        for (readme, missing) in [
            (run.to_owned(), 1),
            (format!("{run}\n{}", attach.replace("limited", "named")), 1),
            // Its row stands in another table.
            (format!("{run}\n| attach | a |\n|---|---|\n"), 1),
            (format!("{run}| y | named |\n"), 2),
        ] {
            assert_eq!(check(&readme).len(), missing, "{readme}");
        }
    }
}
