//! The hash of a document: the same for the same content, however it is laid out.
//!
//! Canonical form: JSON with sorted keys and no spaces. A plain scalar that is a JSON number,
//! `true`, `false` or `null` stays as written (`1.10` is not `1.1`: in `env` they differ); any
//! other scalar is a string. So YAML and the JSON it stands for hash alike.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::grammar::json_number;
use super::tree::{Entry, Node, Value};

pub(crate) fn spec_hash(root: &Node) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(json(root).as_bytes())))
}

/// The document in canonical form: it means the same, and has the same hash.
pub(crate) fn json(root: &Node) -> String {
    let mut text = String::new();
    write(root, &mut text);
    text
}

fn write(node: &Node, out: &mut String) {
    match &node.value {
        Value::Scalar { text, plain } => {
            let typed =
                *plain && (matches!(text.as_str(), "true" | "false" | "null") || json_number(text).is_some());
            if typed {
                out.push_str(text);
            } else if node.is_null() {
                out.push_str("null");
            } else {
                string(text, out);
            }
        }
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Map(entries) => {
            let mut sorted: Vec<&Entry> = entries.iter().collect();
            sorted.sort_by(|a, b| a.key.cmp(&b.key));
            out.push('{');
            for (index, entry) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                string(&entry.key, out);
                out.push(':');
                write(&entry.value, out);
            }
            out.push('}');
        }
    }
}

fn string(text: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{}", serde_json::Value::from(text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::unquoted;

    fn hash(text: &str) -> String {
        spec_hash(&unquoted::read(text).root.unwrap())
    }

    #[test]
    fn layout_and_order_do_not_count_and_content_does() {
        let yaml = hash("# a job\nname: x\nsteps:\n  - {run: 'a', n: 1.10}\nempty:\n");
        assert_eq!(yaml, hash(r#"{"steps": [{"n": 1.10, "run": "a"}], "empty": null, "name": "x"}"#));
        assert_ne!(yaml, hash("name: x\nsteps:\n  - {run: 'a', n: 1.1}\nempty:\n"));
        assert_ne!(hash("a: 'true'"), hash("a: true"));
        assert_eq!(hash("b: &b {x: 1}\nc: *b"), hash("b: {x: 1}\nc: {x: 1}"));
    }
}
