//! JSON merge patches (RFC 7396), and what two documents differ in.

use std::collections::BTreeMap;

use bonsai_api::Difference;
use serde_json::{Map, Value};

/// Applies a patch to a document: section 2 of the RFC.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                merge(target.entry(name).or_insert(Value::Null), value);
            }
        }
    }
}

/// Whether nothing is left of `first` once `second` has been applied after it: whatever it says,
/// the second says at the same place, or above.
pub(crate) fn replaces(second: &Value, first: &Value) -> bool {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => first
            .iter()
            .all(|(name, old)| second.get(name).is_some_and(|new| replaces(new, old))),
        (_, Value::Object(_)) => false,
        _ => true,
    }
}

/// What of a patch makes a difference to `target`, the document as it is, or may make one later:
/// `over` are patches that will be gone one day, and `under` is the document without them.
pub(crate) fn needed(
    patch: &Value,
    target: Option<&Value>,
    under: Option<&Value>,
    over: &[&Value],
) -> Option<Value> {
    // What is covered as a whole may be anything once it is seen again.
    if over.iter().any(|over| !over.is_object()) {
        return Some(patch.clone());
    }
    let Value::Object(fields) = patch else {
        let same = match patch {
            Value::Null => target.is_none(),
            value => target == Some(value),
        };
        return (!same || !over.is_empty()).then(|| patch.clone());
    };
    let mut left = Map::new();
    for (name, value) in fields {
        let target = target.and_then(|target| target.get(name));
        let under = under.and_then(|under| under.get(name));
        let over: Vec<&Value> = over.iter().filter_map(|over| over.get(name)).collect();
        if let Some(value) = needed(value, target, under, &over) {
            left.insert(name.clone(), value);
        }
    }
    // One that says nothing makes an object, where there is none.
    let is_there = |document: Option<&Value>| document.is_some_and(Value::is_object);
    let nothing = left.is_empty() && is_there(target) && is_there(under);
    (!nothing).then_some(Value::Object(left))
}

/// A document without the tables of services that have nothing in them, which say nothing. One of a class or a group has its
/// name.
pub(crate) fn without_empty(document: &Value) -> Value {
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut()
        && let Some(services) = fields.get_mut("services")
        && empty(services)
    {
        fields.remove("services");
    }
    document
}

/// Takes out tables with nothing in them; true where nothing is left.
fn empty(value: &mut Value) -> bool {
    let Value::Object(fields) = value else {
        return false;
    };
    fields.retain(|_, value| !empty(value));
    fields.is_empty()
}

/// What is different in `after`, by path.
pub(crate) fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let (before, after) = (leaves(before), leaves(after));
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let pairs = paths
        .into_iter()
        .map(|path| (path, before.get(path), after.get(path)));
    pairs
        .filter(|(_, from, to)| from != to)
        .map(|(path, from, to)| Difference {
            path: path.clone(),
            from: from.cloned(),
            to: to.cloned(),
        })
        .collect()
}

fn leaves(value: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    walk(value, &mut String::new(), &mut found);
    found
}

fn walk(value: &Value, path: &mut String, found: &mut BTreeMap<String, String>) {
    let Value::Object(fields) = value else {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        found.insert(path.clone(), text);
        return;
    };
    for (name, value) in fields {
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        walk(value, path, found);
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 7396, appendix A.
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ];
        for (mut target, patch, expected) in cases {
            merge(&mut target, &patch);
            assert_eq!(target, expected, "{patch}");
        }
    }

    #[test]
    fn differences_have_paths() {
        let before = json!({"services": {"vod": {"send": {"min": "1MB/s"}, "class": "media"}}});
        let after = json!({"services": {"vod": {"send": {"min": "2MB/s", "weight": 3}}}});
        let told: Vec<String> = differences(&before, &after)
            .into_iter()
            .map(|d| format!("{}: {:?} {:?}", d.path, d.from, d.to))
            .collect();
        assert_eq!(
            told,
            [
                "services.vod.class: Some(\"media\") None",
                "services.vod.send.min: Some(\"1MB/s\") Some(\"2MB/s\")",
                "services.vod.send.weight: None Some(\"3\")",
            ]
        );
        assert!(differences(&after, &after).is_empty());
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("x"))];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        })
    }

    fn objects() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[ab]", documents(), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn what_is_replaced_may_be_forgotten(
            base in documents(),
            first in documents(),
            second in documents(),
        ) {
            prop_assume!(replaces(&second, &first));
            let mut with = base.clone();
            merge(&mut with, &first);
            merge(&mut with, &second);
            let mut without = base;
            merge(&mut without, &second);
            prop_assert_eq!(with, without);
        }

        #[test]
        fn what_makes_no_difference_may_be_left_out(
            base in objects(),
            over in prop::collection::vec(objects(), 0..3),
            patch in objects(),
        ) {
            let with = |kept: &[bool], last: Option<&Value>| {
                let mut document = base.clone();
                let patches = over.iter().zip(kept).filter(|(_, kept)| **kept);
                for patch in patches.map(|(patch, _)| patch).chain(last) {
                    merge(&mut document, patch);
                }
                document
            };
            let (all, none) = (with(&[true; 2], None), with(&[], None));
            let each: Vec<&Value> = over.iter().collect();
            let left = needed(&patch, Some(&all), Some(&none), &each);
            for kept in [[true, true], [false, true], [true, false], [false, false]] {
                prop_assert_eq!(with(&kept, left.as_ref()), with(&kept, Some(&patch)));
            }
            if over.is_empty() && with(&[], Some(&patch)) == none {
                prop_assert_eq!(left, None);
            }
        }
    }
}
