//! The description of the interface, with what the types alone do not say: how amounts are
//! written, how things may be called, and what a merge patch may be.

use serde_json::{Map, Value, json};

/// How amounts look, by their format. Whatever is read looks like this; what looks like this may
/// still be too much, too little or too fine.
const AMOUNTS: [(&str, &str); 4] = [
    ("percent", r"^\s*[0-9]{1,3}(\.[0-9]{1,3})?\s*%\s*$"),
    (
        "rate",
        r"^\s*[0-9]+(\.[0-9]+)?\s*(%|(([kMGT]i?|Ki)?(B|bit)|calls?)?\s*/\s*s)\s*$",
    ),
    ("size", r"^\s*[0-9]+(\.[0-9]+)?\s*([kMGT]i?|Ki)?B\s*$"),
    (
        "span",
        r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|µs|μs|ms|s|min|h)\s*$",
    ),
];

/// How classes, groups and services are called; `user:name` for services of others.
const NAMES: [(&str, &str); 4] = [
    ("classes", r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"),
    ("groups", r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"),
    (
        "links",
        r"^((netns|container|vm):[^\s/]+(/[^\s/:]{1,15})?|[^\s/:]{1,15})$",
    ),
    ("services", r"^([^:]+:)?[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"),
];

/// A revision as it is told in `ETag`, or any.
const REVISION: &str = r#"^\s*(\*|"\+?[0-9]+")\s*$"#;

const SCHEMAS: &str = "#/components/schemas/";

/// Completes a description that was made of the types.
pub(super) fn complete(mut description: Value) -> Value {
    amounts(&mut description);
    for (field, pattern) in NAMES {
        let path = format!("/components/schemas/Config/properties/{field}/propertyNames");
        if let Some(Value::Object(names)) = description.pointer_mut(&path) {
            names.insert("pattern".to_owned(), json!(pattern));
        }
    }
    let Some(Value::Object(mut schemas)) = description
        .pointer_mut("/components/schemas")
        .map(Value::take)
    else {
        return description;
    };
    if let Some(Value::Object(paths)) = description.get_mut("paths") {
        let operations = paths.values_mut().filter_map(Value::as_object_mut);
        let bodies = operations
            .flat_map(Map::values_mut)
            .filter_map(|operation| {
                operation.pointer_mut("/requestBody/content/application~1merge-patch+json/schema")
            });
        for body in bodies {
            *body = patch_of(body, &mut schemas);
        }
    }
    description["components"]["schemas"] = Value::Object(schemas);
    description
}

/// Says how each amount is written, and a revision.
fn amounts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("name").is_some_and(|name| name == "If-Match") {
                let schema = json!({"type": "string", "pattern": REVISION, "example": "\"7\""});
                fields.insert("schema".to_owned(), schema);
            }
            // As the registry of the OpenAPI Initiative writes it.
            if let Some(Value::String(format)) = fields.get_mut("format") {
                *format = format.replace("u-int", "uint");
            }
            let format = fields.get("format").and_then(Value::as_str);
            let known = AMOUNTS.iter().find(|(name, _)| Some(*name) == format);
            if let Some((_, pattern)) = known {
                fields.insert("pattern".to_owned(), json!(pattern));
            }
            fields.values_mut().for_each(amounts);
        }
        Value::Array(items) => items.iter_mut().for_each(amounts),
        _ => {}
    }
}

/// What may stand in a merge patch (RFC 7396) where a document has `schema`: any part of it, and
/// `null` for what is to go. Objects that are named get a second name, which is added.
fn patch_of(schema: &Value, schemas: &mut Map<String, Value>) -> Value {
    let Some(name) = schema["$ref"]
        .as_str()
        .and_then(|to| to.strip_prefix(SCHEMAS))
    else {
        return match schema {
            Value::Object(fields) if fields.contains_key("properties") => patched(fields, schemas),
            Value::Object(fields) if fields.contains_key("additionalProperties") => {
                patched(fields, schemas)
            }
            Value::Object(fields) if fields.contains_key("oneOf") => {
                let mut fields = fields.clone();
                if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
                    for choice in choices {
                        *choice = patch_of(choice, schemas);
                    }
                }
                fields.remove("default");
                Value::Object(fields)
            }
            other => other.clone(),
        };
    };
    let Some(Value::Object(fields)) = schemas.get(name).cloned() else {
        return schema.clone();
    };
    if !fields.contains_key("properties") {
        return without_default(schema);
    }
    let patch = format!("{name}Patch");
    if !schemas.contains_key(&patch) {
        schemas.insert(patch.clone(), Value::Null);
        let made = patched(&fields, schemas);
        schemas.insert(patch.clone(), made);
    }
    let mut to = without_default(schema);
    to["$ref"] = json!(format!("{SCHEMAS}{patch}"));
    to
}

fn without_default(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(fields) = &mut schema {
        fields.remove("default");
    }
    schema
}

/// An object of which each part may be given, left out, or be `null`.
fn patched(fields: &Map<String, Value>, schemas: &mut Map<String, Value>) -> Value {
    let mut fields = fields.clone();
    fields.remove("required");
    fields.remove("default");
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for property in properties.values_mut() {
            *property = or_null(patch_of(property, schemas));
        }
    }
    if let Some(more) = fields.get_mut("additionalProperties")
        && more.is_object()
    {
        *more = or_null(patch_of(more, schemas));
    }
    Value::Object(fields)
}

fn or_null(mut schema: Value) -> Value {
    let nothing = json!({"type": "null"});
    let Value::Object(fields) = &mut schema else {
        return schema;
    };
    fields.remove("default");
    if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
        if !choices.contains(&nothing) {
            choices.push(nothing);
        }
        return schema;
    }
    let counted = fields.contains_key("enum");
    match fields.get_mut("type") {
        Some(Value::Array(types)) if types.contains(&json!("null")) => schema,
        Some(one @ Value::String(_)) if !counted => {
            *one = json!([one, "null"]);
            schema
        }
        _ => json!({"oneOf": [schema, nothing]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_may_have_null_for_each_part() {
        let described: Value = serde_json::from_str(&crate::openapi()).expect("JSON");
        let body = "/paths/~1v1~1config/patch/requestBody/content/application~1merge-patch+json";
        let body = described.pointer(body).expect("a body");
        assert_eq!(body["schema"]["$ref"], "#/components/schemas/ConfigPatch");
        let schemas = &described["components"]["schemas"];
        let config = &schemas["ConfigPatch"]["properties"];
        let null = json!({"type": "null"});
        assert!(
            config["services"]["type"]
                .as_array()
                .is_some_and(|t| t.contains(&json!("null")))
        );
        assert!(
            config["policy"]["oneOf"]
                .as_array()
                .is_some_and(|c| c.contains(&null))
        );
        let max = &schemas["TermsPatch"]["properties"]["max"];
        assert_eq!(max["type"], json!(["string", "null"]));
        assert!(max["pattern"].is_string());
        assert!(schemas["Config"]["properties"]["policy"]["oneOf"].is_null());
    }

    #[test]
    fn whatever_is_named_is_described() {
        fn names(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(to)) = fields.get("$ref") {
                        found.push(to.clone());
                    }
                    fields.values().for_each(|value| names(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| names(value, found)),
                _ => {}
            }
        }
        let described: Value = serde_json::from_str(&crate::openapi()).expect("JSON");
        let mut found = Vec::new();
        names(&described, &mut found);
        assert!(found.len() > 50);
        for to in found {
            let path = to.strip_prefix('#').expect("in the same document");
            assert!(
                described.pointer(path).is_some_and(Value::is_object),
                "{to}"
            );
        }
    }
}
