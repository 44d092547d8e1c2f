//! Reading a reward: from the bytes of a reward file, or from a grader's exit code.
//!
//! A reward is finite, inside the declared range and unambiguous, or it is a [`RewardProblem`]:
//! a grader's failure is never a zero.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::outcome::Reward;
use crate::plan::{GraderPlan, RewardSource};
use crate::text::shown;

/// The largest reward file, in bytes.
pub const REWARD_FILE_BYTES_MAX: u64 = 64 << 10;

/// The key of a reward file that holds rewards per turn: checked here, no component.
pub const TURN_REWARDS_KEY: &str = "turn_rewards";

/// The key that holds the reward unless the spec names another.
pub const REWARD_KEY: &str = "reward";

const SHOWN_CHARS_MAX: usize = 80;

/// Why there is no reward. The text is the message of `reward_bad`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewardProblem {
    #[error("the grader wrote no reward file ({})", paths.join(", "))]
    Missing { paths: Vec<String> },
    /// `found` with its article: `a FIFO`, `a directory`, `a symlink`.
    #[error("reward file {path} is {found}, not a regular file")]
    NotAFile { path: String, found: String },
    #[error("reward file {path} cannot be read: {problem}")]
    Unreadable { path: String, problem: String },
    #[error("reward file {path} was there before the grader began")]
    Planted { path: String },
    #[error("reward file {path} has {bytes} bytes; at most {REWARD_FILE_BYTES_MAX} are read")]
    TooLarge { path: String, bytes: u64 },
    #[error("reward file {path} is empty")]
    Empty { path: String },
    #[error("reward file {path} cannot be parsed: {problem}")]
    Unparsable { path: String, problem: String },
    #[error("reward file {path}: {key} is {found}, not a number")]
    WrongType { path: String, key: String, found: &'static str },
    #[error("reward file {path} has no key `{key}` (keys: {})", present.join(", "))]
    KeyMissing { path: String, key: String, present: Vec<String> },
    #[error("reward file {path} has several keys and none is `{REWARD_KEY}`: {}", present.join(", "))]
    SeveralKeys { path: String, present: Vec<String> },
    /// NaN, an infinity, or beyond a 32-bit float.
    #[error("reward {value} is not a finite 32-bit number")]
    NotFinite { value: f64 },
    #[error("reward {value} is outside the range {low} to {high}")]
    OutOfRange { value: f64, low: f64, high: f64 },
    #[error("exit code {code} is not in the grader's `exit` map")]
    ExitUnlisted { code: i32 },
    #[error("the grader has no exit code to read a reward from")]
    NoExitCode,
    #[error("this grader takes its reward from {expected}")]
    OtherSource { expected: &'static str },
}

/// The reward in the `bytes` of the file at `path`, the first of the plan's paths that exists.
/// A path that ends in `.json` holds an object or a number, any other a single number.
pub fn from_file(path: &str, bytes: &[u8], plan: &GraderPlan) -> Result<Reward, RewardProblem> {
    let RewardSource::File { key, .. } = &plan.source else {
        return Err(RewardProblem::OtherSource { expected: "its exit code" });
    };
    // By the whole path: what is shown of it may end earlier.
    let is_json = path.ends_with(".json");
    let path = shown(path, SHOWN_CHARS_MAX);
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if size > REWARD_FILE_BYTES_MAX {
        return Err(RewardProblem::TooLarge { path, bytes: size });
    }
    if bytes.trim_ascii().is_empty() {
        return Err(RewardProblem::Empty { path });
    }
    if !is_json {
        return checked(number(&path, bytes)?, Vec::new(), plan);
    }
    match serde_json::from_slice(bytes) {
        Err(problem) => {
            let problem = shown(&problem.to_string(), 2 * SHOWN_CHARS_MAX);
            Err(RewardProblem::Unparsable { path, problem })
        }
        Ok(Document::Number(value)) => checked(value, Vec::new(), plan),
        Ok(Document::Other(found)) => {
            let key = "the document".to_owned();
            Err(RewardProblem::WrongType { path, key, found })
        }
        Ok(Document::Object(entries)) => object(path, entries, key.as_deref(), plan),
    }
}

/// The reward that the plan's exit map gives for `exit_code`.
pub fn from_exit(exit_code: Option<i32>, plan: &GraderPlan) -> Result<Reward, RewardProblem> {
    let RewardSource::Exit(rewards) = &plan.source else {
        return Err(RewardProblem::OtherSource { expected: "a reward file" });
    };
    let code = exit_code.ok_or(RewardProblem::NoExitCode)?;
    let value = rewards.get(&code).ok_or(RewardProblem::ExitUnlisted { code })?;
    checked(*value, Vec::new(), plan)
}

fn number(path: &str, bytes: &[u8]) -> Result<f64, RewardProblem> {
    let unparsable = |problem: String| RewardProblem::Unparsable { path: path.to_owned(), problem };
    let text = std::str::from_utf8(bytes).map_err(|e| unparsable(e.to_string()))?.trim();
    text.parse().map_err(|_| unparsable(format!("`{}` is not a single number", shown(text, SHOWN_CHARS_MAX))))
}

fn object(
    path: String,
    entries: Vec<(String, Entry)>,
    key: Option<&str>,
    plan: &GraderPlan,
) -> Result<Reward, RewardProblem> {
    let named = |key: &str| format!("key `{}`", shown(key, SHOWN_CHARS_MAX));
    let mut numbers = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        match entry {
            Entry::Number(value) => numbers.push((name, value)),
            Entry::TurnRewards if key != Some(TURN_REWARDS_KEY) => {}
            Entry::TurnRewards => {
                return Err(RewardProblem::WrongType { path, key: named(&name), found: "a list" });
            }
            Entry::Other(found) => return Err(RewardProblem::WrongType { path, key: named(&name), found }),
        }
    }
    let present = || numbers.iter().take(8).map(|(name, _)| shown(name, SHOWN_CHARS_MAX)).collect();
    let position = |key: &str| numbers.iter().position(|(name, _)| name == key);
    let found = match key {
        Some(key) => position(key),
        None if numbers.len() > 1 => match position(REWARD_KEY) {
            None => return Err(RewardProblem::SeveralKeys { path, present: present() }),
            found => found,
        },
        None => (!numbers.is_empty()).then_some(0),
    };
    let Some(found) = found else {
        let key = shown(key.unwrap_or(REWARD_KEY), SHOWN_CHARS_MAX);
        return Err(RewardProblem::KeyMissing { path, key, present: present() });
    };
    let (_, value) = numbers.remove(found);
    checked(value, numbers, plan)
}

fn checked(value: f64, components: Vec<(String, f64)>, plan: &GraderPlan) -> Result<Reward, RewardProblem> {
    #[allow(clippy::cast_possible_truncation, reason = "an overflow gives an infinity, refused here")]
    let single = value as f32;
    if !single.is_finite() {
        return Err(RewardProblem::NotFinite { value });
    }
    if let Some((low, high)) = plan.range
        && !(low..=high).contains(&value)
    {
        return Err(RewardProblem::OutOfRange { value, low, high });
    }
    Ok(Reward { value: single, components })
}

/// A reward file, entries in its order. JSON itself has no NaN and no infinity.
enum Document {
    Number(f64),
    Object(Vec<(String, Entry)>),
    Other(&'static str),
}

enum Entry {
    Number(f64),
    /// A valid value of [`TURN_REWARDS_KEY`].
    TurnRewards,
    Other(&'static str),
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = Document;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a number")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Document, E> {
                Ok(Document::Number(value))
            }
            #[allow(clippy::cast_precision_loss, reason = "rewards are floats")]
            fn visit_u64<E>(self, value: u64) -> Result<Document, E> {
                Ok(Document::Number(value as f64))
            }
            #[allow(clippy::cast_precision_loss, reason = "rewards are floats")]
            fn visit_i64<E>(self, value: i64) -> Result<Document, E> {
                Ok(Document::Number(value as f64))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Document, E> {
                Ok(Document::Other("a boolean"))
            }
            fn visit_str<E>(self, _: &str) -> Result<Document, E> {
                Ok(Document::Other("text"))
            }
            fn visit_unit<E>(self) -> Result<Document, E> {
                Ok(Document::Other("null"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Document, A::Error> {
                while list.next_element::<de::IgnoredAny>()?.is_some() {}
                Ok(Document::Other("a list"))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        let key = shown(&key, SHOWN_CHARS_MAX);
                        return Err(de::Error::custom(format_args!("key `{key}` is there twice")));
                    }
                    let entry = if key == TURN_REWARDS_KEY {
                        check_turns(map.next_value()?)?;
                        Entry::TurnRewards
                    } else {
                        match map.next_value()? {
                            Document::Number(value) => Entry::Number(value),
                            Document::Object(_) => Entry::Other("an object"),
                            Document::Other(found) => Entry::Other(found),
                        }
                    };
                    entries.push((key, entry));
                }
                Ok(Document::Object(entries))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnReward {
    turn: u32,
    reward: f64,
}

fn check_turns<E: de::Error>(turns: Vec<TurnReward>) -> Result<(), E> {
    let mut seen = BTreeSet::new();
    for TurnReward { turn, reward } in turns {
        #[allow(clippy::cast_possible_truncation, reason = "an overflow gives an infinity, refused here")]
        let finite = (reward as f32).is_finite();
        if !finite {
            return Err(E::custom(format_args!("the reward of turn {turn} is not a finite 32-bit number")));
        }
        if !seen.insert(turn) {
            return Err(E::custom(format_args!("`{TURN_REWARDS_KEY}` has turn {turn} twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{OnAgentTimeout, OnGraderTimeout};

    fn plan(source: RewardSource, range: Option<(f64, f64)>) -> GraderPlan {
        GraderPlan {
            source,
            range,
            regrades: 1,
            on_agent_timeout: OnAgentTimeout::Grade,
            on_timeout: OnGraderTimeout::Invalid,
        }
    }

    fn file(key: Option<&str>) -> GraderPlan {
        plan(RewardSource::File { paths: vec![], key: key.map(str::to_owned) }, None)
    }

    fn json(text: &str) -> Result<Reward, RewardProblem> {
        from_file("/r/reward.json", text.as_bytes(), &file(None))
    }

    #[test]
    fn a_reward_is_a_number_the_key_reward_or_the_only_key() {
        for (text, value) in [
            ("1", 1.0),
            (" -0.25\n", -0.25),
            ("{\"reward\": 0.5}", 0.5),
            ("{\"score\": 2}", 2.0),
            ("{\"a\": 1, \"reward\": 3, \"b\": 2}", 3.0),
            ("{\"turn_rewards\": [{\"turn\": 0, \"reward\": 1}], \"x\": 4}", 4.0),
        ] {
            assert_eq!(json(text).map(|r| r.value), Ok(value), "{text}");
        }
        let named = from_file("a.json", b"{\"a\": 1, \"reward\": 3}", &file(Some("a")));
        assert_eq!(named, Ok(Reward { value: 1.0, components: vec![("reward".into(), 3.0)] }));
    }

    #[test]
    fn a_long_path_is_json_by_its_own_end_not_by_what_is_shown_of_it() {
        let path = format!("/{}/reward.json", "x".repeat(2 * SHOWN_CHARS_MAX));
        assert_eq!(from_file(&path, b"{\"reward\": 1}", &file(None)).map(|r| r.value), Ok(1.0));
    }

    #[test]
    fn the_other_keys_are_components_in_the_order_of_the_file() {
        let reward = json("{\"z\": 1, \"reward\": 0, \"a\": 2.5, \"m\": -3}").unwrap();
        let names: Vec<_> = reward.components.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(names, [("z", 1.0), ("a", 2.5), ("m", -3.0)]);
    }

    #[test]
    fn every_other_document_is_a_problem_that_says_which() {
        for (text, words) in [
            ("", "is empty"),
            ("  \n", "is empty"),
            ("{", "cannot be parsed"),
            ("NaN", "cannot be parsed"),
            ("{\"reward\": NaN}", "cannot be parsed"),
            ("{\"reward\": Infinity}", "cannot be parsed"),
            ("{\"reward\": 1e400}", "cannot be parsed"),
            ("{\"reward\": 1e39}", "not a finite 32-bit number"),
            ("1 2", "cannot be parsed"),
            ("[1]", "the document is a list, not a number"),
            ("\"1\"", "the document is text"),
            ("true", "the document is a boolean"),
            ("null", "the document is null"),
            ("{}", "no key `reward`"),
            ("{\"a\": 1, \"b\": 2}", "several keys and none is `reward`: a, b"),
            ("{\"reward\": \"1\"}", "key `reward` is text, not a number"),
            ("{\"reward\": true}", "key `reward` is a boolean"),
            ("{\"reward\": null}", "key `reward` is null"),
            ("{\"reward\": [1]}", "key `reward` is a list"),
            ("{\"reward\": {\"x\": 1}}", "key `reward` is an object"),
            ("{\"reward\": 1, \"note\": \"ok\"}", "key `note` is text"),
            ("{\"reward\": 1, \"reward\": 0}", "key `reward` is there twice"),
            ("{\"reward\": 1, \"turn_rewards\": [{\"turn\": 0}]}", "missing field `reward`"),
            ("{\"reward\": 1, \"turn_rewards\": [{\"turn\": -1, \"reward\": 1}]}", "invalid value"),
            ("{\"reward\": 1, \"turn_rewards\": 3}", "invalid type"),
            (
                "{\"reward\": 1, \"turn_rewards\": [{\"turn\": 1, \"reward\": 1}, {\"turn\": 1, \"reward\": 1}]}",
                "turn 1 twice",
            ),
        ] {
            let message = json(text).map_err(|p| p.to_string()).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
        let message = from_file("a.json", b"{\"a\": 1}", &file(Some("b"))).unwrap_err().to_string();
        assert!(message.contains("no key `b` (keys: a)"), "{message}");
    }

    #[test]
    fn a_text_file_is_a_single_number() {
        let text = |bytes: &[u8]| from_file("/r/reward.txt", bytes, &file(None));
        assert_eq!(text(b" 0.75\n").map(|r| r.value), Ok(0.75));
        for (bytes, words) in [
            (&b"nan"[..], "not a finite"),
            (b"inf", "not a finite"),
            (b"-1e39", "not a finite"),
            (b"0.5 0.6", "not a single number"),
            (b"{\"reward\": 1}", "not a single number"),
            (b"\xff\xfe", "invalid utf-8"),
            (b"", "is empty"),
        ] {
            let message = text(bytes).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        let large = vec![b' '; 1 + usize::try_from(REWARD_FILE_BYTES_MAX).unwrap()];
        assert!(matches!(text(&large), Err(RewardProblem::TooLarge { bytes: 65_537, .. })));
    }

    #[test]
    fn a_range_refuses_what_is_outside_and_keeps_its_ends() {
        let source = RewardSource::File { paths: vec![], key: None };
        let ranged = plan(source, Some((0.0, 0.1)));
        let value = |text: &str| from_file("r.txt", text.as_bytes(), &ranged).map(|r| r.value);
        assert_eq!((value("0"), value("0.1")), (Ok(0.0), Ok(0.1)));
        for text in ["-0.001", "0.1001", "1"] {
            assert!(matches!(value(text), Err(RewardProblem::OutOfRange { .. })), "{text}");
        }
    }

    #[test]
    fn an_exit_map_gives_listed_codes_only() {
        let exit = plan(RewardSource::Exit([(0, 1.0), (1, 0.0)].into()), None);
        assert_eq!(from_exit(Some(0), &exit).map(|r| r.value), Ok(1.0));
        assert_eq!(from_exit(Some(1), &exit).map(|r| r.value), Ok(0.0));
        assert_eq!(from_exit(Some(124), &exit), Err(RewardProblem::ExitUnlisted { code: 124 }));
        assert_eq!(from_exit(None, &exit), Err(RewardProblem::NoExitCode));
        assert!(from_exit(Some(0), &file(None)).is_err());
        assert!(from_file("r.txt", b"1", &exit).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_finite_reward_or_a_problem(bytes: Vec<u8>, is_json: bool) {
            let path = if is_json { "r.json" } else { "r.txt" };
            if let Ok(reward) = from_file(path, &bytes, &file(None)) {
                prop_assert!(reward.value.is_finite());
            }
        }

        #[test]
        fn json_like_text_gives_a_finite_reward_or_a_problem(text in "[{}\\[\\]\":,0-9eE+.\\-a-c \n]{0,40}") {
            if let Ok(reward) = json(&text) {
                prop_assert!(reward.value.is_finite());
                prop_assert!(reward.components.iter().all(|(_, value)| value.is_finite()));
            }
        }

        #[test]
        fn a_number_is_a_reward_iff_it_is_finite_as_a_single(value: f64) {
            let text = format!("{value:?}");
            let got = from_file("r.txt", text.as_bytes(), &file(None));
            #[allow(clippy::cast_possible_truncation)]
            let single = value as f32;
            prop_assert_eq!(got.is_ok(), single.is_finite());
            if let Ok(reward) = got {
                prop_assert_eq!(reward.value, single);
            }
        }
    }
}
