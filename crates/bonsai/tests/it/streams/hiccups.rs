//! A server that is stopped for a moment: nothing of a film is left out for that.

use std::time::Duration;

use super::{Served, watch};
use crate::support::{self, Place, signal};

/// No picture but the first can be decoded without those before it, so that one that is left out would cost all behind it.
#[test]
fn a_hiccup_costs_no_viewer_a_picture() {
    let test = "a_hiccup_costs_no_viewer_a_picture";
    let place = Place::bare();
    let folder = place.path().join("films");
    std::fs::create_dir(&folder).expect("made");
    let words = "-preset ultrafast -g 1000 -bf 0 -pix_fmt yuv420p -b:v 800k";
    let sources = ["testsrc2=size=320x240:rate=25"];
    let path = folder.join("film.mp4");
    if support::film(test, path, &sources, 8, words).is_none() {
        return;
    }
    // Another load may hold the server up for as long as a lack would.
    let tries = std::iter::repeat_with(|| {
        let served = Served::start(place.bonsai(&["serve"]), &folder, &[]);
        let pid = served.child.as_ref().expect("it runs").id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for ms in [50, 100, 150, 300, 1000] {
                    std::thread::sleep(Duration::from_millis(800));
                    signal(pid, "STOP");
                    std::thread::sleep(Duration::from_millis(ms));
                    signal(pid, "CONT");
                }
            });
            for by in ["tcp", "udp"] {
                let (place, url) = (&place, &served.url);
                scope.spawn(move || watch(place, url, "2", &["--by", by]));
            }
        });
        let summary = served.end();
        assert_eq!(summary["sessions"], 4, "{summary:#}");
        summary
    });
    let tries: Vec<_> = tries
        .take(3)
        .take_while(|summary| summary["dropped"] != 0)
        .collect();
    assert!(tries.len() < 3, "{tries:#?}");
}
