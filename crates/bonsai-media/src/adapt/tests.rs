//! Numbers worked out by hand.

use std::sync::Arc;

use super::rules::{Bola, Bolae, Davvi, Dynamic, Throughput};
use super::*;

fn near(here: f64, by_hand: f64) -> bool {
    (here - by_hand).abs() <= 1e-4 * by_hand.abs()
}

fn ladder(bitrates: &[f64]) -> Ladder {
    Ladder::new(2_000.0, bitrates.to_vec(), None).expect("a ladder")
}

fn view(ladder: &Ladder, level_ms: f64, kbps: f64) -> View<'_> {
    View {
        ladder,
        level_ms,
        estimate: Estimate {
            kbps,
            latency_ms: 0.0,
        },
    }
}

fn fetched(quality: usize, abandoned_to: Option<usize>) -> Fetched {
    Fetched {
        quality,
        time_ms: 1_000.0,
        abandoned_to,
    }
}

#[test]
fn the_worse_of_two_averages_is_the_estimate() {
    let mut estimator = Estimator::new([3_000.0, 8_000.0], 3_000.0);
    assert_eq!(estimator.now(), None);
    estimator.push(3e6, 3_100.0, 100.0);
    let first = estimator.now().expect("an estimate");
    assert!(near(first.kbps, 1_000.0) && near(first.latency_ms, 100.0));
    // Half a life of the quick one: (1000 + 2 x 500) / 3; of the slow one 0.7711 is left: 717.7.
    estimator.push(1.5e6, 3_400.0, 400.0);
    let second = estimator.now().expect("an estimate");
    assert!(near(second.kbps, 666.667), "{second:?}");
    // A half-life is one segment to the quick one: (100 + 2 x 400) / 3.
    assert!(near(second.latency_ms, 300.0), "{second:?}");
    // What comes from memory at once is no division by zero.
    estimator.push(1e6, 0.0, 0.0);
    assert!(estimator.now().expect("an estimate").kbps.is_finite());
}

#[test]
fn latency_is_part_of_what_can_be_afforded() {
    let ladder = ladder(&[500.0, 1_000.0, 2_000.0]);
    let mut view = view(&ladder, 0.0, 0.0);
    assert_eq!(view.affordable(1_000.0), 1);
    view.estimate.latency_ms = 100.0;
    // 100 ms and 2000 ms are more than 2000 ms.
    assert_eq!(view.affordable(1_000.0), 0);
    assert_eq!(view.affordable(1_100.0), 1);
    assert_eq!(view.affordable(0.0), 0);
}

#[test]
fn throughput_keeps_a_margin_and_what_the_buffer_lasts_for() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0]);
    let settings = Settings::default();
    let mut rule = Throughput::new(&settings);
    assert_eq!(rule.choose(1, &view(&ladder, 20e3, 2_222.0)).quality, 0);
    assert_eq!(rule.choose(1, &view(&ladder, 20e3, 2_223.0)).quality, 1);
    // 5 Mbit/s carry the highest, with 8 Mbit; 0.9 of what comes in 1 s are 4.5, then 4.05, then 3.6.
    let mut rule = Throughput::new(&settings);
    let low = view(&ladder, 1_000.0, 5_000.0);
    let chosen = [(); 3].map(|()| rule.choose(1, &low).quality);
    assert_eq!(chosen, [1, 1, 0]);
    let mut rule = Throughput::new(&Settings {
        insufficient_buffer: false,
        ..settings
    });
    assert_eq!(rule.choose(1, &low).quality, 2);
}

#[test]
fn throughput_gives_up_what_takes_nearly_twice_as_long_as_it_plays() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0]);
    let mut rule = Throughput::new(&Settings::default());
    let at = |time_ms: f64, came_bits: f64| Progress {
        quality: 2,
        size_bits: 8e6,
        came_bits,
        time_ms,
        first_byte_ms: 0.0,
    };
    let view = view(&ladder, 20e3, 9_000.0);
    // At 2.2 Mbit/s it takes 3.64 s, and at 2.3 Mbit/s 3.48 s: 3.6 s are allowed.
    assert_eq!(rule.abandon(&at(1_000.0, 2.2e6), &view), Some(0));
    assert_eq!(rule.abandon(&at(1_000.0, 2.3e6), &view), None);
    assert_eq!(rule.abandon(&at(499.0, 0.1e6), &view), None);
}

#[test]
fn bola_chooses_by_the_level() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0]);
    let mut rule = Bola::new(&ladder, &Settings::default());
    // At the start the buffer counts as one of 3 segments: V p = 4000 / (ln 4 + 5) = 626.34, and the
    // qualities are worth nothing from 3131.7, 3565.9 and 4000 ms on.
    let chosen = [2_000.0, 3_000.0, 3_500.0]
        .map(|level_ms| rule.choose(1, &view(&ladder, level_ms, 100e3)).quality);
    assert_eq!(chosen, [0, 1, 2]);
    // Up, it goes a step further than the network carries, or stays.
    let mut rule = Bola::new(&ladder, &Settings::default());
    assert_eq!(rule.choose(1, &view(&ladder, 3_500.0, 1_500.0)).quality, 1);
    assert_eq!(rule.choose(1, &view(&ladder, 3_500.0, 100.0)).quality, 1);
    // In mid-film, of 25 s: V p = 23000 / 6.386 = 3601.5, and 3 s are nothing.
    assert_eq!(rule.choose(100, &view(&ladder, 3_500.0, 100e3)).quality, 0);
}

#[test]
fn bola_e_starts_with_what_the_network_carries() {
    let ladder = ladder(&[1_000.0, 2_000.0]);
    let mut rule = Bolae::new(&ladder, &Settings::default());
    // gp = ln 2 / 1.5, V p = 10000 / gp = 21640: from 16640 ms on, the second is better.
    assert_eq!(rule.choose(1, &view(&ladder, 2_000.0, 9e3)), Choice::now(1));
    rule.fetched(&fetched(1, None), &view(&ladder, 4_000.0, 9e3));
    assert_eq!(rule.choose(2, &view(&ladder, 4_000.0, 9e3)), Choice::now(1));
    // What was given up leaves 10 s with what is made up.
    rule.fetched(&fetched(1, Some(0)), &view(&ladder, 4_000.0, 9e3));
    assert_eq!(rule.choose(2, &view(&ladder, 4_000.0, 9e3)), Choice::now(0));
    rule.sought(9);
    assert_eq!(rule.choose(9, &view(&ladder, 2_000.0, 9e3)), Choice::now(1));
}

#[test]
fn bola_e_waits_where_the_buffer_is_too_full_for_a_quality() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0]);
    let mut rule = Bolae::new(
        &ladder,
        &Settings {
            insufficient_buffer: false,
            ..Settings::default()
        },
    );
    assert_eq!(
        rule.choose(1, &view(&ladder, 2_000.0, 500.0)),
        Choice::now(0)
    );
    // V p = 23000 / (1 + ln 4 + 4) = 3601.5: the second quality is worth nothing from 20503.6 ms on.
    let choice = rule.choose(2, &view(&ladder, 22_000.0, 500.0));
    assert_eq!(choice.quality, 1);
    assert!(near(choice.wait_ms, 1_496.4), "{choice:?}");
    // A full buffer is made up for: 5 s more are 5 s less to wait, and the rest.
    rule.waited(5_000.0);
    let choice = rule.choose(2, &view(&ladder, 17_000.0, 500.0));
    assert_eq!(choice, Choice::now(1));
}

#[test]
fn dynamic_is_bola_above_ten_seconds() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0]);
    let mut rule = Dynamic::new(&ladder, &Settings::default());
    // Throughput has 3 Mbit/s less a tenth. BOLA would have the lowest, then the highest, or a step more
    // than the network carries.
    let levels = [9_000.0, 22_500.0, 22_500.0];
    let chosen = levels.map(|level_ms| rule.choose(100, &view(&ladder, level_ms, 3_000.0)).quality);
    assert_eq!(chosen, [1, 2, 2]);
    assert_eq!(
        rule.choose(100, &view(&ladder, 9_000.0, 3_000.0)).quality,
        1
    );
}

#[test]
fn davvi_goes_a_step_at_a_time_and_lets_the_buffer_carry() {
    let ladder = ladder(&[1_000.0, 2_000.0, 4_000.0, 8_000.0]);
    // Low is below 6.25 s, high from 18.75 s on.
    let cases = [
        (0, 1_900.0, 90e3, 0),
        (3, 1_900.0, 90e3, 0),
        (0, 5_000.0, 90e3, 0),
        (3, 5_000.0, 2_500.0, 1),
        (0, 7_000.0, 90e3, 1),
        (3, 7_000.0, 2_500.0, 2),
        (2, 7_000.0, 5_000.0, 2),
        (3, 20_000.0, 500.0, 3),
        (2, 20_000.0, 90e3, 3),
    ];
    for (last, level_ms, kbps, quality) in cases {
        let mut rule = Davvi::new(&Settings::default());
        let view = view(&ladder, level_ms, kbps);
        rule.fetched(&fetched(last, None), &view);
        let choice = rule.choose(5, &view);
        assert_eq!(choice, Choice::now(quality), "{last} {level_ms} {kbps}");
    }
    let mut rule = Davvi::new(&Settings::default());
    let progress = Progress {
        quality: 3,
        size_bits: 16e6,
        came_bits: 2.5e6,
        time_ms: 1_000.0,
        first_byte_ms: 0.0,
    };
    // 13.5 Mbit at 2.5 Mbit/s are 5.4 s.
    assert_eq!(rule.abandon(&progress, &view(&ladder, 5_500.0, 9e3)), None);
    assert_eq!(
        rule.abandon(&progress, &view(&ladder, 5_300.0, 9e3)),
        Some(1)
    );
}

#[test]
fn a_player_starts_stalls_and_switches() {
    let settings = Settings {
        start_ms: 4_000.0,
        resume_ms: 4_000.0,
        ..Settings::default()
    };
    let mut player = Player::new(&settings, 2);
    let qualities = [(0, 1_000.0), (1, 2_000.0)];
    let push =
        |player: &mut Player, (quality, kbps): (usize, f64)| player.push(quality, kbps, 2_000.0);
    push(&mut player, qualities[0]);
    player.pass(1_000.0, &mut ());
    push(&mut player, qualities[1]);
    assert_eq!(player.phase(), Phase::Playing);
    let dry = player.pass(5_000.0, &mut ());
    assert_eq!((dry.ms, dry.began), (1_000.0, true));
    assert!(player.level_ms().is_sign_positive());
    push(&mut player, qualities[1]);
    assert_eq!(player.phase(), Phase::Stalled);
    player.pass(500.0, &mut ());
    push(&mut player, qualities[0]);
    player.pass(3_000.0, &mut ());
    player.pause(true);
    player.pass(700.0, &mut ());
    player.pause(false);
    assert_eq!(player.level_ms(), 1_000.0);
    assert_eq!(player.level_after_ms(1_200.0), 0.0);

    let summary = player.summary();
    assert_eq!(summary.startup_ms, Some(1_000.0));
    assert_eq!(summary.played_ms, 7_000.0);
    assert_eq!(summary.paused_ms, 700.0);
    assert_eq!((summary.stalls, summary.stall_ms), (1, 1_500.0));
    assert!(near(summary.rebuffer_ratio, 1_500.0 / 8_500.0));
    assert!(near(summary.mean_kbps, 11_000.0 / 7.0));
    assert_eq!((summary.switches_up, summary.switches_down), (1, 1));
    assert_eq!(summary.oscillations, 1);
    assert_eq!(summary.mean_switch_kbps(), Some(1_000.0));
    assert_eq!(summary.in_quality_ms, [3_000.0, 4_000.0]);
    assert_eq!(summary.least_level_ms, Some(0.0));
    // 6000 of bitrate, less 2000 of switches, 4500 of stalls and 3000 of start.
    let score = Weights::default().score(&summary).expect("a score");
    assert_eq!((score.total, score.per_segment), (-3_500.0, -875.0));
    assert_eq!(Weights::default().score(&Summary::default()), None);
}

#[test]
fn a_switch_back_after_a_while_is_no_oscillation() {
    let mut player = Player::new(&Settings::default(), 2);
    for (quality, ms) in [(0, 2_000.0), (1, 31_000.0), (0, 29_000.0), (1, 2_000.0)] {
        player.push(quality, 1_000.0, ms);
    }
    player.pass(64_000.0, &mut ());
    let summary = player.summary();
    assert_eq!((summary.switches(), summary.oscillations), (3, 1));
}

#[test]
fn a_seek_and_a_real_player_that_stands_still_are_told_apart() {
    let mut player = Player::new(&Settings::default(), 1);
    player.push(0, 1_000.0, 10_000.0);
    player.pass(1_000.0, &mut ());
    player.stand(true);
    player.pass(300.0, &mut ());
    player.stand(false);
    assert_eq!(player.level_ms(), 9_000.0);
    player.seek();
    player.pass(400.0, &mut ());
    player.push(0, 1_000.0, 10_000.0);
    player.complete();
    player.pass(20_000.0, &mut ());
    let summary = player.summary();
    assert_eq!(
        (summary.stalls, summary.stall_ms, summary.seek_ms),
        (1, 300.0, 400.0)
    );
    assert_eq!(
        (summary.startup_ms, summary.played_ms),
        (Some(0.0), 11_000.0)
    );
    assert_eq!(player.phase(), Phase::Ended);
}

fn fetching(session: &mut Session) -> (usize, usize) {
    match session.next_step() {
        Next::Fetch { segment, quality } => (segment, quality),
        other => panic!("a fetch, not {other:?}"),
    }
}

#[test]
fn a_full_buffer_is_waited_for() {
    let settings = Settings {
        buffer_ms: 5_000.0,
        ..Settings::default()
    };
    let mut session = Session::new(Arc::new(ladder(&[1_000.0])), settings).expect("a session");
    for segment in 0..2 {
        assert_eq!(fetching(&mut session), (segment, 0));
        session.fetched(2e6, 100.0, 10.0);
    }
    assert_eq!(session.next_step(), Next::Wait(1_000.0));
    session.pass(400.0, &mut ());
    assert_eq!(session.next_step(), Next::Wait(600.0));
    session.pass(600.0, &mut ());
    assert_eq!(fetching(&mut session), (2, 0));
    session.no_more();
    assert_eq!(session.next_step(), Next::End);
    session.pass(3_000.0, &mut ());
    assert!(session.is_over());
    assert_eq!(session.summary().stalls, 0);
}

#[test]
fn what_is_fetched_after_giving_up_is_as_set() {
    for (after_abandon, quality) in [(AfterAbandon::Take, 0), (AfterAbandon::Ask, 1)] {
        let settings = Settings {
            rule: Rule::Throughput,
            insufficient_buffer: false,
            after_abandon,
            ..Settings::default()
        };
        let ladder = Arc::new(ladder(&[1_000.0, 2_000.0]));
        let mut session = Session::new(ladder, settings).expect("a session");
        fetching(&mut session);
        session.fetched(2e6, 100.0, 0.0);
        assert_eq!(fetching(&mut session), (1, 1));
        let progress = Progress {
            quality: 1,
            size_bits: 4e6,
            came_bits: 1e6,
            time_ms: 1_000.0,
            first_byte_ms: 0.0,
        };
        assert_eq!(session.progress(&progress), Some(0));
        session.abandoned(0, 1e6, 1_000.0, 0.0);
        assert_eq!(session.progress(&progress), None);
        assert_eq!(fetching(&mut session), (1, quality));
        session.seek(7);
        assert_eq!(fetching(&mut session).0, 7);
    }
}

#[test]
fn a_run_on_a_network_of_two_speeds_adds_up() {
    let film = Movie::new(2_000.0, vec![1_000.0], vec![vec![2e6]; 2]).expect("a film");
    let period = |duration_ms, bandwidth_kbps| Period {
        duration_ms,
        bandwidth_kbps,
        latency_ms: 100.0,
    };
    let trace = Trace::new(vec![period(1_100.0, 1_000.0), period(1e9, 500.0)]).expect("a network");
    let run = simulate(&film, &trace, &Settings::default()).expect("a run");
    // 0.1 s of latency, 1 s for half of it, 2 s for the rest; then 4.1 s for the next, of which 2 s play.
    assert_eq!(run.summary.startup_ms, Some(3_100.0));
    assert!(near(run.summary.stall_ms, 2_100.0));
    assert!(near(run.sabre.play_s, 9.2));
    assert!(near(run.summary.rebuffer_ratio, 2.1 / 6.1));
    assert_eq!((run.summary.stalls, run.summary.fetched), (1, 2));
}
