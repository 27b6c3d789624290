use super::*;
use serde_json::json;

fn anything(_: &Config) -> Result<(), String> {
    Ok(())
}

fn no_weight_above_ten(config: &Config) -> Result<(), String> {
    let weights = config
        .services
        .values()
        .filter_map(|s| s.send.as_ref()?.weight);
    match weights.max() {
        Some(weight) if weight > 10 => Err(format!("weight {weight} is above 10")),
        _ => Ok(()),
    }
}

fn desired(text: &str) -> Desired {
    let config: Config = toml::from_str(text).expect("a configuration");
    Desired::new(&config, None, anything).expect("a state").0
}

fn change(patch: Value, until: Option<u64>) -> Change {
    Change {
        revision: 0,
        actor: "root".to_owned(),
        until_unix_ms: until,
        patch,
    }
}

fn weight(desired: &Desired) -> Option<u16> {
    desired
        .effective()
        .services
        .get("vod")?
        .send
        .as_ref()?
        .weight
}

fn weight_of(n: u16) -> Value {
    json!({"services": {"vod": {"send": {"weight": n}}}})
}

const FILE: &str = "[services.vod]\nsend = { min = \"1MB/s\", weight = 2 }\n";

#[test]
fn changes_are_made_and_undone() {
    let mut state = desired(FILE);
    let first = state.revision();
    let told = state
        .change(change(weight_of(3), None), anything)
        .expect("a change");
    assert_eq!(told.len(), 1);
    assert_eq!((weight(&state), state.revision()), (Some(3), first + 1));
    state
        .change(change(weight_of(4), None), anything)
        .expect("a change");
    assert_eq!(
        state.kept().changes.len(),
        1,
        "the one before says nothing any more"
    );
    state.undo(None, 0, anything).expect("a step back");
    assert_eq!(weight(&state), Some(3));
    state.undo(None, 0, anything).expect("a step back");
    assert_eq!((weight(&state), state.revision()), (Some(2), first + 4));
    let error = state.undo(None, 0, anything).expect_err("nothing left");
    assert_eq!(error.to_string(), "there is no change to undo");
}

#[test]
fn several_changes_are_undone_at_once() {
    let mut state = desired(FILE);
    let first = state.revision();
    for n in 3..6 {
        state
            .change(change(weight_of(n), None), anything)
            .expect("a change");
    }
    state
        .undo(Some(77), 0, anything)
        .expect_err("no such revision");
    state
        .undo(Some(first), 0, anything)
        .expect("three steps back");
    assert_eq!(weight(&state), Some(2));
}

#[test]
fn a_change_that_ends_leaves_what_it_covered() {
    let mut state = desired(FILE);
    state
        .change(change(weight_of(5), None), anything)
        .expect("for good");
    state
        .change(change(weight_of(9), Some(1000)), anything)
        .expect("for a time");
    state
        .change(
            change(json!({"services": {"vod": {"class": "media"}}}), None),
            anything,
        )
        .expect("another one");
    assert_eq!(weight(&state), Some(9));
    assert!(state.expire(999, anything).is_none());
    let (told, whose) = state.expire(1000, anything).expect("it ends");
    assert_eq!((told.len(), whose.as_str()), (1, "root"));
    assert_eq!(weight(&state), Some(5));
    assert_eq!(
        state.effective().services["vod"].class.as_deref(),
        Some("media")
    );
    // What had ended does not come back by undoing.
    state.undo(None, 1000, anything).expect("a step back");
    assert_eq!(weight(&state), Some(5));
}

#[test]
fn a_clock_that_is_set_moves_the_end_of_a_change() {
    let mut state = desired(FILE);
    assert!(!state.shift(5000), "nothing is for a time");
    state
        .change(change(weight_of(9), Some(10_000)), anything)
        .expect("for a time");
    assert!(state.shift(3_600_000));
    assert!(state.expire(3_609_999, anything).is_none());
    assert!(state.shift(-3_600_000 - 9000));
    assert!(state.expire(999, anything).is_none());
    state.expire(1000, anything).expect("it ends");
    // Back to before the epoch, where there is nothing to end by.
    state
        .change(change(weight_of(9), Some(10_000)), anything)
        .expect("for a time");
    assert!(state.shift(i64::MIN));
    state.expire(0, anything).expect("it ends");
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut state = desired(FILE);
    let before = (state.revision(), state.effective().clone());
    let wrong = [
        (weight_of(11), "weight 11 is above 10"),
        (
            json!({"services": {"vod": {"send": {"min": 7}}}}),
            "services.vod.send.min: ",
        ),
        (
            json!({"services": {"vod": {"sent": {}}}}),
            "unknown field `sent`",
        ),
        (
            json!({"daemon": {"period": "1s"}}),
            "[daemon] is settled when the daemon starts",
        ),
        (json!([]), "a change is a JSON object"),
    ];
    for (patch, expected) in wrong {
        let error = state
            .change(change(patch, None), no_weight_above_ten)
            .expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(before, (state.revision(), state.effective().clone()));
}

#[test]
fn a_restart_keeps_changes_and_never_repeats_a_revision() {
    let mut state = desired(FILE);
    state
        .change(change(weight_of(3), None), anything)
        .expect("a change");
    let text = serde_json::to_string(state.kept()).expect("JSON");
    let kept: Kept = serde_json::from_str(&text).expect("what was kept");
    let config: Config = toml::from_str(FILE).expect("a configuration");
    let (again, notes) = Desired::new(&config, Some(kept.clone()), anything).expect("a state");
    assert_eq!((weight(&again), notes.len()), (Some(3), 0));
    assert!(again.revision() > state.revision());
    // A file that it does not fit any more.
    let strict = |config: &Config| match config.services.get("vod").and_then(|s| s.send.as_ref()) {
        Some(terms) if terms.weight == Some(3) => Err("no threes".to_owned()),
        _ => Ok(()),
    };
    let (left, notes) = Desired::new(&config, Some(kept), strict).expect("a state");
    assert_eq!((weight(&left), notes.len()), (Some(2), 1));
    assert!(notes[0].contains("no threes"), "{notes:?}");
}

#[test]
fn a_file_that_was_changed() {
    let mut state = desired(FILE);
    state
        .change(change(weight_of(3), None), anything)
        .expect("a change");
    let text = format!("{FILE}[daemon]\nperiod = \"50ms\"\n[capacity]\nsend = \"1Gbit/s\"\n");
    let config: Config = toml::from_str(&text).expect("a configuration");
    let (told, notes) = state.reload(&config, anything).expect("a new file");
    assert!(told.iter().any(|d| d.path == "capacity.send"), "{told:?}");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(weight(&state), Some(3));
}
