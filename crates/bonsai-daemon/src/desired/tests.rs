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
        uid: None,
        until_unix_ms: until,
        owner: false,
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
            "there is no setting \"sent\" here",
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

fn by(actor: &str, patch: Value) -> Change {
    Change {
        actor: actor.to_owned(),
        owner: true,
        ..change(patch, None)
    }
}

/// Further limits of a service, each of `n` names at a rate.
fn limits(n: usize, rate: &Value) -> Value {
    let limits: serde_json::Map<_, _> = (0..n).map(|i| (format!("a{i}"), rate.clone())).collect();
    json!({"services": {"vod": {"limits": limits}}})
}

#[test]
fn what_makes_no_difference_is_not_kept() {
    let mut state = desired(FILE);
    let before = state.kept().clone();
    for patch in [
        limits(1000, &Value::Null),
        json!({}),
        weight_of(2),
        json!({"services": {"vod": {"class": null, "send": {"min": "1000kB/s"}}}}),
        json!({"services": {"other": null}}),
        // Tables with nothing in them.
        json!({"services": {"other": {}}}),
        json!({"services": {"other": {"send": {"max": null}, "limits": {}}}}),
    ] {
        let told = state.change(by("alice", patch), anything).expect("nothing");
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(*state.kept(), before);
    }
    // Of one that does, the rest is not.
    let mut patch = limits(1000, &Value::Null);
    merge(&mut patch, &weight_of(3));
    state
        .change(by("alice", patch), anything)
        .expect("a change");
    let skeleton = json!({"services": {"vod": {"limits": {}, "send": {"weight": 3}}}});
    let kept = &state.kept().changes[0].patch;
    assert!([weight_of(3), skeleton].contains(kept), "{kept}");
    // Under one that ends, it is what will be seen.
    state
        .change(change(weight_of(9), Some(1000)), anything)
        .expect("for a time");
    state
        .change(change(weight_of(9), None), anything)
        .expect("for good");
    state.expire(1000, anything);
    assert_eq!(weight(&state), Some(9));
}

#[test]
fn owners_leave_room_for_others() {
    let mut state = desired(FILE);
    let first = state.revision();
    state
        .change(change(weight_of(3), None), anything)
        .expect("of root");
    let refused = |state: &mut Desired, actor: &str, patch| {
        let error = state.change(by(actor, patch), anything);
        error.expect_err("too much").to_string()
    };
    let error = refused(&mut state, "alice", limits(4000, &json!("1000000/s")));
    assert!(
        error.contains("alice") && error.contains("64 KiB"),
        "{error}"
    );
    // However often they change everything.
    for n in 0..30 {
        let patch = limits(1000, &json!(format!("{}/s", 1000 + n)));
        state
            .change(by("alice", patch), anything)
            .expect("a change");
    }
    let kept = serde_json::to_string(state.kept()).expect("JSON").len();
    assert!(kept < 400_000, "{kept} bytes");
    state
        .undo(Some(first), 0, anything)
        .expect("the first one of root is still a step");
    assert_eq!((weight(&state), state.kept().changes.len()), (Some(2), 0));
}

#[test]
fn of_changes_and_steps_a_part_is_not_for_owners() {
    let one = |n: usize| by(&format!("user{}", n % 40), json!({(format!("s{n}")): 1}));
    let many: Vec<Change> = (0..900).map(one).collect();
    let error = bounds::fits(&many, &by("bob", json!({}))).expect_err("too many");
    assert!(error.to_string().contains("users have made"), "{error}");
    bounds::fits(&many, &change(json!({}), None)).expect("root's are still taken");
    let full: Vec<Change> = (0..1000).map(one).collect();
    bounds::fits(&full, &change(json!({}), None)).expect_err("too many");
    // Steps: root's first ones, and then those of owners only.
    let step = |n: u64| step::Step {
        revision: n,
        added: vec![n + 1],
        replaced: Vec::new(),
        owner: n >= 50,
    };
    let mut steps = Vec::new();
    for n in 0..500 {
        steps.push(step(n));
        bounds::steps(&mut steps);
    }
    assert_eq!(steps.len(), 100);
    let of_root = steps.iter().filter(|step| !step.owner);
    assert_eq!(of_root.count(), 50);
    let added: Vec<u64> = steps.iter().flat_map(|step| step.added.clone()).collect();
    assert_eq!(added, (1..=500).collect::<Vec<u64>>(), "none is lost");
}

#[test]
fn what_cannot_end_is_said_and_the_others_end() {
    let file = "[capacity]\nsend = \"100MB/s\"\n[services.vod.send]\nmin = \"60MB/s\"\n";
    let check = crate::plan::check;
    let mut state = desired(file);
    let min = |name: &str, rate: &str| json!({"services": {name: {"send": {"min": rate}}}});
    for (patch, until) in [
        (min("vod", "20MB/s"), Some(1000)),
        (min("web", "60MB/s"), None),
        (weight_of(7), Some(1000)),
        (min("third", "1MB/s"), Some(1001)),
    ] {
        state.change(change(patch, until), check).expect("a change");
    }
    let (told, _) = state.expire(1000, check).expect("one ends");
    assert_eq!((told.len(), weight(&state)), (1, None));
    let stuck = state.stuck().to_vec();
    assert_eq!(stuck.len(), 1, "{stuck:?}");
    assert!(stuck[0].why.contains("more than send has"), "{stuck:?}");
    // It keeps nobody from ending later, nor from being undone, and is still said.
    assert!(state.expire(1000, check).is_none());
    let (told, _) = state.expire(1001, check).expect("the third ends");
    assert_eq!((told.len(), state.stuck().len()), (1, 1));
    let media = json!({"services": {"vod": {"class": "media"}}});
    let media_there = json!({"classes": {"media": {}}});
    for patch in [media_there, media] {
        state.change(change(patch, None), check).expect("a change");
    }
    state.undo(None, 1001, check).expect("a step back");
    // Once it may, it ends.
    state
        .change(change(min("web", "40MB/s"), None), check)
        .expect("lower");
    let (told, _) = state.expire(1002, check).expect("it ends");
    assert_eq!((told.len(), state.stuck().len()), (1, 0));
    assert_eq!(told[0].to.as_deref(), Some("60MB/s"));
}

#[test]
fn what_was_kept_in_the_form_before_is_in_force() {
    let config: Config = toml::from_str(FILE).expect("a configuration");
    let change =
        json!({"revision": 2, "actor": "root", "until_unix_ms": null, "patch": weight_of(3)});
    let kept = json!({
        "version": 1,
        "revision": 2,
        "changes": [change],
        "steps": [{"revision": 1, "changes": []}],
    });
    let kept: Kept = serde_json::from_value(kept).expect("what was kept");
    let (mut state, notes) = Desired::new(&config, Some(kept), anything).expect("a state");
    assert_eq!((weight(&state), notes.len()), (Some(3), 1), "{notes:?}");
    state.undo(None, 0, anything).expect_err("no step");
}

fn max_of(service: &str, rate: &str) -> Value {
    json!({"services": {service: {"send": {"max": rate}}}})
}

#[test]
fn what_others_have_said_stays_below_what_an_owner_says() {
    let max = |config: &Config| {
        let send = config.services.get("own")?.send.as_ref()?;
        send.max.map(|max| max.to_string())
    };
    let without_alice = |state: &Desired| {
        let config = state.without(("alice", None), anything);
        max(&config.expect("a configuration"))
    };
    let mut state = desired(FILE);
    let root = change(max_of("own", "5MB/s"), None);
    state.change(root, anything).expect("of root");
    for rate in ["3MB/s", "2MB/s"] {
        let own = by("alice", max_of("own", rate));
        state.change(own, anything).expect("lower");
        assert_eq!(max(state.effective()).as_deref(), Some(rate));
        assert_eq!(without_alice(&state).as_deref(), Some("5MB/s"));
    }
    assert_eq!(state.kept().changes.len(), 2, "her own are replaced");
    // What root says is so, also where it is what she has said.
    let mut state = desired(FILE);
    let own = by("alice", max_of("own", "3MB/s"));
    state.change(own, anything).expect("a bound");
    assert_eq!(without_alice(&state), None);
    let root = change(max_of("own", "3MB/s"), None);
    state.change(root, anything).expect("the same");
    assert_eq!(without_alice(&state).as_deref(), Some("3MB/s"));
}

#[test]
fn who_is_named_by_an_owner_alone_is_promised_nothing() {
    let check = crate::plan::check;
    let file = "[capacity]\nsend = \"10MB/s\"\n[classes.default.send]\nmin = \"6MB/s\"\n";
    let mut state = desired(file);
    let by_owner = |state: &Desired| -> Vec<bool> {
        let services = state.effective().services.values();
        services.map(|service| service.by_owner).collect()
    };
    for (who, service) in [("alice", "alice:vod"), ("bob", "bob:web")] {
        let own = by(who, max_of(service, "8MB/s"));
        state.change(own, check).expect("only a bound");
    }
    assert_eq!(by_owner(&state), [true, true]);
    // The next daemon knows it, too.
    let kept = serde_json::to_string(state.kept()).expect("JSON");
    let kept: Kept = serde_json::from_str(&kept).expect("what was kept");
    let config: Config = toml::from_str(file).expect("a configuration");
    let (again, notes) = Desired::new(&config, Some(kept), check).expect("a state");
    assert_eq!((by_owner(&again), notes.len()), (vec![true, true], 0));
    // Whom others name is promised what its class guarantees, and there is no room for two.
    let root = |service: &str| change(json!({"services": {service: {"mode": "static"}}}), None);
    state.change(root("alice:vod"), check).expect("6 of 10");
    assert_eq!(by_owner(&state), [false, true]);
    let error = state.change(root("bob:web"), check).expect_err("12 of 10");
    assert!(error.to_string().contains("more than send has"), "{error}");
    state.undo(None, 0, check).expect("a step back");
    assert_eq!(by_owner(&state), [true, true]);
}

#[test]
fn a_user_who_was_renamed_is_the_same() {
    let mut desired = desired("");
    let of = |actor: &str, uid| Change {
        uid,
        ..by(
            actor,
            json!({"services": {"vod": {"send": {"max": "5MB/s"}}}}),
        )
    };
    desired
        .change(of("alice", Some(7)), anything)
        .expect("a change");
    assert_eq!(desired.changes_of(("alicia", Some(7))), 1, "by her number");
    assert_eq!(
        desired.changes_of(("alice", Some(8))),
        0,
        "another user of that name"
    );
    assert_eq!(
        desired.changes_of(("alice", None)),
        1,
        "where no number is known"
    );
    let without = desired
        .without(("alicia", Some(7)), anything)
        .expect("a configuration");
    assert!(without.services.is_empty(), "{without:?}");
    // Kept before numbers were: by name.
    let kept = serde_json::to_string(desired.kept()).expect("JSON");
    let kept = kept.replace("\"uid\":7,", "");
    let kept: Kept = serde_json::from_str(&kept).expect("what an older daemon kept");
    let (old, _) = Desired::new(&Config::default(), Some(kept), anything).expect("taken");
    assert_eq!(old.changes_of(("alice", Some(7))), 1);
}
