//! Files that a person names, read with an end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Reads a file of at most so many bytes. The bytes themselves are counted, since devices and files of the kernel say nothing of
/// their length. A pipe is read where the shell has made it (`<(...)`), and not by its name, where nothing may ever come.
///
/// # Errors
/// The system's error, or one sentence.
pub fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let is_passed = ["/dev/fd", "/dev/stdin", "/proc"]
        .iter()
        .any(|of| path.starts_with(of));
    let named = std::fs::metadata(path)?;
    if named.file_type().is_fifo() && !is_passed {
        return Err(io::Error::other("it is a pipe: name a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it has more than {most} bytes, which none by hand has"
        )));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// The same; and if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read_bounded(path, most)?)
        .map_err(|_| io::Error::other("it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_read_to_a_bound() {
        for (path, most) in [("/dev/zero", 4096), ("/proc/self/maps", 10)] {
            let error = read_bounded(Path::new(path), most).expect_err(path);
            assert!(error.to_string().contains("more than"), "{error}");
        }
        let nothing = read_bounded(Path::new("/dev/null"), 1).expect("nothing");
        assert!(nothing.is_empty());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("four");
        std::fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).expect("as many as may be"), "four");
        read_text(&path, 3).expect_err("one more");
        std::fs::write(&path, [0xff]).expect("written");
        read_text(&path, 3).expect_err("no UTF-8");
        read_text(folder.path(), 3).expect_err("a folder");
    }

    #[test]
    fn a_named_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("skipped: mkfifo is not installed");
            return;
        }
        let error = read_bounded(&path, 10).expect_err("nothing may ever come");
        assert!(error.to_string().contains("pipe"), "{error}");
    }
}
