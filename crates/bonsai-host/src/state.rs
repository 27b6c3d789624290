use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// The directory for what outlives a restart, created if need be, for its owner alone.
///
/// # Errors
/// There is no such path, or those of the system.
pub fn state_dir() -> io::Result<PathBuf> {
    let path = state_dir_path().ok_or_else(|| {
        io::Error::other(
            "none of BONSAI_STATE_DIR, XDG_STATE_HOME and HOME says where state may be kept",
        )
    })?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The path that [`state_dir`] would give: `$BONSAI_STATE_DIR`, else `/var/lib/bonsai` for root, else
/// `$XDG_STATE_HOME/bonsai` or `~/.local/state/bonsai`. As the XDG specification has it, relative paths are ignored.
#[must_use]
pub fn state_dir_path() -> Option<PathBuf> {
    let root = rustix::process::geteuid().is_root();
    choose(
        |name| std::env::var_os(name).filter(|value| !value.is_empty()),
        root,
    )
}

fn choose(var: impl Fn(&str) -> Option<OsString>, root: bool) -> Option<PathBuf> {
    if let Some(path) = var("BONSAI_STATE_DIR") {
        return Some(path.into());
    }
    if root {
        return Some(PathBuf::from("/var/lib/bonsai"));
    }
    let absolute = |path: &PathBuf| path.is_absolute();
    let named = var("XDG_STATE_HOME").map(PathBuf::from).filter(absolute);
    let home = || Some(PathBuf::from(var("HOME")?).join(".local/state")).filter(absolute);
    Some(named.or_else(home)?.join("bonsai"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_where_the_variables_say() {
        let with = |given: &'static [(&str, &str)], root| {
            let var = |name: &str| {
                let found = given.iter().find(|(of, _)| *of == name);
                found.map(|(_, value)| OsString::from(value))
            };
            choose(var, root)
        };
        let is = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            with(&[("BONSAI_STATE_DIR", "/own"), ("HOME", "/home/a")], true),
            is("/own")
        );
        assert_eq!(with(&[("HOME", "/home/a")], true), is("/var/lib/bonsai"));
        assert_eq!(
            with(&[("HOME", "/home/a")], false),
            is("/home/a/.local/state/bonsai")
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "/s"), ("HOME", "/home/a")], false),
            is("/s/bonsai")
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")], false),
            is("/h/.local/state/bonsai")
        );
        assert_eq!(with(&[("HOME", "home")], false), None);
    }
}
