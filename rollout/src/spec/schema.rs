//! The JSON Schema of a job, made from the tables the checker reads. Editors use it; the checker
//! stays the authority, since a schema cannot say what spans fields.

use serde_json::{Map, Value, json};

use super::fields::{Choice, Expands, Grammar, Object, Shape};
use super::tables::JOB;

/// Draft 2020-12, with one definition per kind of map.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    define(&JOB, &mut definitions);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rollyard job (rollyard/v1, RolloutJob)",
        "$ref": "#/$defs/Job",
        "$defs": definitions,
    })
}

fn define(object: &'static Object, definitions: &mut Map<String, Value>) {
    if definitions.contains_key(object.name) {
        return;
    }
    definitions.insert(object.name.to_owned(), Value::Null);
    let mut properties = Map::new();
    for field in object.fields() {
        let mut property = shape(field.shape, definitions);
        let mut doc = field.doc.to_owned();
        if let Some(instead) = field.later {
            doc = format!("{doc} Not available yet; instead: {instead}.");
        }
        property.insert("description".to_owned(), doc.into());
        properties.insert(field.name.to_owned(), property.into());
    }
    let required: Vec<&str> =
        object.fields().filter(|field| field.required).map(|field| field.name).collect();
    let mut definition = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        definition["required"] = json!(required);
    }
    definitions.insert(object.name.to_owned(), definition);
}

fn shape(of: Shape, definitions: &mut Map<String, Value>) -> Map<String, Value> {
    let value = match of {
        Shape::Scalar(grammar, expands) => scalar(grammar, expands),
        Shape::Choice(choices) => json!({ "enum": values(choices) }),
        Shape::List { of, min, max } => {
            json!({ "type": "array", "items": shape(*of, definitions), "minItems": min, "maxItems": max })
        }
        Shape::Map { keys, of, max } => json!({
            "type": "object",
            "propertyNames": scalar(keys, Expands::Never),
            "additionalProperties": shape(*of, definitions),
            "maxProperties": max,
        }),
        Shape::Object(object) => {
            define(object, definitions);
            json!({ "$ref": format!("#/$defs/{}", object.name) })
        }
        Shape::Either { of, .. } => {
            let alternatives: Vec<Value> = of.iter().map(|one| shape(*one, definitions).into()).collect();
            json!({ "anyOf": alternatives })
        }
        Shape::Row => json!({ "type": "object" }),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn values(choices: &[Choice]) -> Vec<&'static str> {
    choices.iter().map(|choice| choice.value).collect()
}

fn scalar(grammar: Grammar, expands: Expands) -> Value {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    let fixed = match grammar {
        // Text takes any scalar as it is written.
        Grammar::Text { bytes_max } => {
            json!({ "type": ["string", "number", "boolean"], "maxLength": bytes_max })
        }
        Grammar::Shell | Grammar::Column => json!({ "type": "string", "minLength": 1 }),
        Grammar::Name => text("^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"),
        Grammar::PlainName => text("^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$"),
        Grammar::EnvName => text("^[A-Z_][A-Z0-9_]*$"),
        Grammar::Bool => json!({ "type": "boolean" }),
        Grammar::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Grammar::Number { min, max } if min > f64::MIN => {
            json!({ "type": "number", "minimum": min, "maximum": max })
        }
        Grammar::Number { .. } => json!({ "type": "number" }),
        Grammar::Amount => json!({ "type": ["string", "number"], "minimum": 0 }),
        Grammar::Cpu => {
            json!({ "type": ["string", "number"], "pattern": "^([0-9]+m|[0-9]+(\\.[0-9]{1,3})?)$" })
        }
        Grammar::Bytes => {
            json!({ "type": ["string", "integer"], "pattern": "^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$" })
        }
        Grammar::Duration { .. } => text("^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"),
        Grammar::Trigger => text("^([1-9][0-9]* (turns|actions)|([0-9]+(d|h|m|s|ms))+)$"),
        Grammar::SandboxPath | Grammar::Workdir => text("^/"),
        Grammar::Artifact => text("^[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+$"),
        Grammar::Mode => json!({ "type": ["string", "integer"], "pattern": "^[0-7]{3,4}$" }),
        Grammar::ExitCode => text("^[0-9]{1,3}$"),
        Grammar::Url => text("^https?://"),
        Grammar::RowColumn => text("^\\$\\{row\\..*\\}$"),
        Grammar::Cron
        | Grammar::Timezone
        | Grammar::OutputPath
        | Grammar::ClientPath
        | Grammar::User
        | Grammar::MediaType
        | Grammar::Image
        | Grammar::Layer
        | Grammar::Table => json!({ "type": "string", "minLength": 1 }),
    };
    let patterned = fixed.get("pattern").is_some() || fixed.get("type") == Some(&json!("integer"));
    match expands {
        Expands::When(_) if patterned => json!({ "anyOf": [fixed, text("\\$\\{")] }),
        _ => fixed,
    }
}
