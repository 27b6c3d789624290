//! A file with reads that hang, and the viewers of another.

use std::time::{Duration, Instant};

use bonsai_stream::serve::Engine;

use crate::fuse::Folder;
use crate::serve::{is_bye, set_up, status};
use crate::support::{Served, Viewer, clip, plan, skip};

/// Payloads of the packets up to the end, in order.
fn all(viewer: &mut Viewer) -> Vec<Vec<u8>> {
    while !viewer.packets.iter().any(is_bye) {
        viewer.next();
    }
    let packets = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
    packets.map(|(_, bytes)| bytes[12..].to_vec()).collect()
}

#[test]
fn a_file_that_hangs_holds_up_its_own_viewers_alone() {
    let test = "a_file_that_hangs_holds_up_its_own_viewers_alone";
    let outer = tempfile::tempdir().expect("a folder");
    let Some(film) = clip(test, outer.path()) else {
        return;
    };
    let film = std::fs::read(film).expect("a film");
    let root = outer.path().join("films");
    std::fs::create_dir(&root).expect("made");
    let folder = match Folder::mount(&root, film) {
        Ok(folder) => folder,
        Err(why) => return skip(test, &why),
    };
    for engine in [Engine::Classic, Engine::Fast] {
        let served = Served::new(plan(&root, engine));
        let urls = ["hung.mp4", "good.mp4"].map(|name| served.url(name));
        // More viewers of the hung file than it has threads.
        let mut hung: Vec<(Viewer, String)> = (0..6)
            .map(|_| {
                let mut viewer = Viewer::new(served.at);
                let session = set_up(&mut viewer, &urls[0]);
                (viewer, session)
            })
            .collect();
        folder.hang(true);
        for (viewer, session) in &mut hung {
            assert_eq!(
                status(&viewer.ask(&format!("PLAY {}", urls[0]), session)),
                200
            );
        }
        let begin = Instant::now();
        while folder.hung() == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing is read");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut other = Viewer::new(served.at);
        let session = set_up(&mut other, &urls[1]);
        assert_eq!(
            status(&other.ask(&format!("PLAY {}", urls[1]), &session)),
            200
        );
        let expected = all(&mut other);
        assert!(expected.len() > 100, "{engine:?}: {}", expected.len());
        // The other has seen all of its film, and these hang still, but can be talked to.
        assert!(folder.hung() > 0, "{engine:?}");
        for (viewer, session) in &mut hung {
            let answer = viewer.ask(&format!("GET_PARAMETER {}", urls[0]), session);
            assert_eq!(status(&answer), 200);
            // The parameter sets are no sample.
            let came = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
            assert!(came.count() <= 1, "{engine:?}");
        }
        folder.hang(false);
        for (viewer, _) in &mut hung {
            assert_eq!(all(viewer), expected, "{engine:?}");
        }
        let summary = served.end();
        assert_eq!((summary.dropped, summary.sessions), (0, 7), "{engine:?}");
    }
}
