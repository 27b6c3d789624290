//! What the README claims to be covered is the table that `bonsai doctor` prints.

use super::Finding;
use super::tree::Tree;

const README: &str = "README.md";
const TABLE: &str = "docs/reference/coverage.md";

/// Rows of the tables of programs that the README lacks. A tree without either page has
/// no findings.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(readme), Some(table)) = (tree.text(README), tree.text(TABLE)) else {
        return Vec::new();
    };
    let stands = |row: &str| readme.lines().any(|line| line == row);
    // The last table says what the columns are.
    let rows = table
        .lines()
        .take_while(|line| !line.starts_with("| column"))
        .filter(|line| line.starts_with('|'));
    rows.filter(|row| !stands(row))
        .map(|row| {
            let what = format!("the table of what is covered lacks {row:?}");
            Finding::new(README, 1, what, format!("copy the tables of {TABLE}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_to_stand_in_the_readme() {
        let table =
            "# C\n\n| run | a |\n|---|---|\n| x | limited |\n\n| column | by |\n|---|---|\n";
        let check = |readme: &str| check(&Tree::of(&[(README, readme), (TABLE, table)]));
        assert_eq!(check("| run | a |\n|---|---|\n| x | limited |\n"), []);
        let found = check("| run | a |\n|---|---|\n| x | named |\n");
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
