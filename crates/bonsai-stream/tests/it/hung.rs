//! Files with calls that hang, and the viewers of another.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_stream::serve::{Engine, Pipelines};
use bonsai_stream::watch::{Arrivals, Plan, Video, watch};

use crate::fuse::Folder;
use crate::serve::{is_bye, set_up, status};
use crate::support::{Served, Viewer, clip, plan, session, skip};

/// A folder of films, in another one, and what is in that.
fn films(test: &str, outer: &Path) -> Option<Folder> {
    let film = std::fs::read(clip(test, outer)?).expect("a film");
    let root = outer.join("films");
    std::fs::create_dir(&root).expect("made");
    match Folder::mount(&root, film) {
        Ok(folder) => Some(folder),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}

/// Waits until `count` calls hang.
fn wait(folder: &Folder, count: u32) {
    let begin = Instant::now();
    while folder.hung() < count {
        let hung = folder.hung();
        assert!(begin.elapsed() < Duration::from_secs(20), "{hung} hang");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn play(viewer: &mut Viewer, url: &str, session: &str) {
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), session)), 200);
}

/// Payloads of the packets up to the end, in order.
fn all(viewer: &mut Viewer) -> Vec<Vec<u8>> {
    while !viewer.packets.iter().any(is_bye) {
        viewer.next();
    }
    let packets = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
    packets.map(|(_, bytes)| bytes[12..].to_vec()).collect()
}

/// The longest gap of four viewers, which lose nothing.
fn watch_all(server: SocketAddr, url: &str) -> u64 {
    let plan = Plan {
        videos: vec![Video {
            url: Url::parse(url).expect("an address"),
            server,
        }],
        lower: Lower::Udp,
        viewers: 4,
        arrivals: Arrivals::Crowd,
        length: Duration::from_secs(30),
        step: Duration::from_secs(20),
        threads: 1,
        seed: 1,
        thresholds: Thresholds::default(),
    };
    let outcome = watch(&plan, &|_, _| ()).expect("they watch");
    let mut longest = 0;
    for viewer in &outcome.viewers {
        assert_eq!(viewer.failure, None);
        assert_eq!(viewer.tracks.len(), 2);
        for track in &viewer.tracks {
            assert_eq!(track.stream.lost, 0);
            longest = longest.max(track.stream.gap_max_ns);
        }
    }
    longest
}

#[test]
fn a_file_that_hangs_holds_up_its_own_viewers_alone() {
    const MEMORY: &str =
        "[[pipeline]]\nclips = [\"**\"]\nsource = [\"sample\", \"memory=64MiB\"]\n";
    let test = "a_file_that_hangs_holds_up_its_own_viewers_alone";
    let outer = tempfile::tempdir().expect("a folder");
    let Some(folder) = films(test, outer.path()) else {
        return;
    };
    let root = outer.path().join("films");
    for (engine, ways) in [
        (Engine::Classic, ""),
        (Engine::Fast, ""),
        (Engine::Fast, MEMORY),
    ] {
        let mut plan = plan(&root, engine);
        plan.pipelines = Pipelines::read(ways, engine, &plan.parts).expect("right");
        let served = Served::new(plan);
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
            play(viewer, &urls[0], session);
        }
        wait(&folder, 1);
        let (at, good) = (served.at, urls[1].clone());
        let others = std::thread::spawn(move || watch_all(at, &good));
        let mut other = Viewer::new(served.at);
        let session = set_up(&mut other, &urls[1]);
        play(&mut other, &urls[1], &session);
        let expected = all(&mut other);
        assert!(expected.len() > 100, "{engine:?}: {}", expected.len());
        let gap_ns = others.join().expect("they watch");
        println!("{engine:?} {ways}: longest gap {} us", gap_ns / 1000);
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
        assert_eq!((summary.dropped, summary.sessions), (0, 11), "{engine:?}");
    }
}

#[test]
fn files_that_cannot_be_opened_read_or_closed_hold_up_their_own_viewers_alone() {
    let test = "files_that_cannot_be_opened_read_or_closed_hold_up_their_own_viewers_alone";
    let outer = tempfile::tempdir().expect("a folder");
    let Some(folder) = films(test, outer.path()) else {
        return;
    };
    let root = outer.path().join("films");
    // The first server's last viewer leaves while the film hangs; the second knows nothing of the film.
    let served = [(); 2].map(|()| Served::new(plan(&root, Engine::Fast)));
    let url = served[0].url("hung.mp4");
    let mut last = Viewer::new(served[0].at);
    let session = set_up(&mut last, &url);
    folder.hang(true);
    assert_eq!(status(&last.ask(&format!("TEARDOWN {url}"), &session)), 200);
    wait(&folder, 1);
    let mut hung: Vec<Viewer> = ["hung.mp4", "lost.mp4"]
        .iter()
        .flat_map(|name| [name; 3])
        .map(|name| {
            let mut viewer = Viewer::new(served[1].at);
            let url = served[1].url(name);
            viewer.write(&format!("SETUP {url}/track1"), crate::serve::TCP);
            viewer
        })
        .collect();
    wait(&folder, 3);
    for served in &served {
        let url = served.url("good.mp4");
        let mut other = Viewer::new(served.at);
        let session = set_up(&mut other, &url);
        play(&mut other, &url, &session);
        assert!(all(&mut other).len() > 100);
    }
    assert!(folder.hung() >= 3);
    folder.hang(false);
    for viewer in &mut hung {
        let answer = viewer.next().expect("an answer");
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(!self::session(&answer).is_empty());
    }
    for served in served {
        assert_eq!(served.end().dropped, 0);
    }
}
