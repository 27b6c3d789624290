//! What `bonsai gen` writes.

use crate::support::Place;

#[test]
fn the_same_files_come_out_whatever_the_terminal() {
    let files = |columns: &str| {
        let place = Place::bare();
        let out = place.path().join("out");
        let output = place
            .bonsai(&["gen"])
            .arg(&out)
            .env("COLUMNS", columns)
            .output();
        let output = output.expect("bonsai");
        assert!(output.status.success(), "{output:?}");
        let mut found = Vec::new();
        let mut folders = vec![out.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path
                        .strip_prefix(&out)
                        .expect("below")
                        .display()
                        .to_string();
                    found.push((name, std::fs::read_to_string(&path).expect("text")));
                }
            }
        }
        found.sort();
        found
    };
    let wide = files("200");
    assert_eq!(wide, files("40"));
    let names: Vec<&str> = wide.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = [
        "api/openapi.json",
        "completions/bash/bonsai.bash",
        "completions/fish/bonsai.fish",
        "completions/zsh/_bonsai",
        "docs/reference/calls.md",
        "docs/reference/cli.md",
        "docs/reference/config.md",
        "docs/reference/coverage.md",
        "man/bonsai-admit.1",
        "man/bonsai-attach.1",
        "man/bonsai-audit.1",
        "man/bonsai-capacity.1",
        "man/bonsai-config.1",
        "man/bonsai-cpu.1",
        "man/bonsai-daemon.1",
        "man/bonsai-davvi.1",
        "man/bonsai-detach.1",
        "man/bonsai-disk.1",
        "man/bonsai-doctor.1",
        "man/bonsai-drive.1",
        "man/bonsai-group.1",
        "man/bonsai-history.1",
        "man/bonsai-link.1",
        "man/bonsai-log.1",
        "man/bonsai-page.1",
        "man/bonsai-report.1",
        "man/bonsai-run.1",
        "man/bonsai-serve.1",
        "man/bonsai-set.1",
        "man/bonsai-shares.1",
        "man/bonsai-sim.1",
        "man/bonsai-stats.1",
        "man/bonsai-status.1",
        "man/bonsai-token.1",
        "man/bonsai-top.1",
        "man/bonsai-trace.1",
        "man/bonsai-undo.1",
        "man/bonsai-watch.1",
        "man/bonsai-why.1",
        "man/bonsai.1",
    ];
    assert_eq!(names, wanted);
    for (name, text) in &wide {
        assert!(text.ends_with('\n'), "{name}");
        assert!(
            !text.contains("bonsai gen"),
            "{name} speaks of the hidden command"
        );
    }
}
