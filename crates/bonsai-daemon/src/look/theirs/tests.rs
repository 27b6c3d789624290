use super::*;

#[test]
fn who_keeps_their_thread_waiting_is_not_waited_for() {
    let theirs = Theirs::of(54321, (0, 0));
    assert!(theirs.want_plain("vod", [Some(1); _]));
    // Nobody fulfils it, and no look ends.
    theirs.lock().looked_ns = monotonic_ns().saturating_sub(STALE_NS + 1);
    theirs.settle(Duration::from_secs(3600));
    let (found, problem) = theirs.found(monotonic_ns());
    assert!(found.is_empty() && problem.is_some());
}

#[test]
fn a_user_goes_by_their_number_until_their_name_is_known() {
    let theirs = Theirs::of(54321, (0, 0));
    let start_ns = theirs.started_ns;
    assert_eq!(theirs.label(start_ns), None, "it may be known in a moment");
    let late_ns = start_ns + NAMED_NS + 1;
    assert_eq!(theirs.label(late_ns).as_deref(), Some("54321"));
    theirs.lock().label = Some("alice".into());
    assert_eq!(theirs.label(late_ns).as_deref(), Some("alice"));
    assert_eq!(theirs.label(start_ns).as_deref(), Some("alice"));
}
