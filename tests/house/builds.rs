//! Nothing is built twice: all that the program is made of, tests are made of too.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cargo;

/// Numbers what cargo would build: two units have one number iff they are the same, down to the features
/// of everything below them.
#[derive(Default)]
struct Units(BTreeMap<String, usize>);

impl Units {
    /// The numbers of what this build is made of, each with its name.
    fn of(&mut self, build: &[&str]) -> BTreeMap<usize, String> {
        let graph = ["--locked", "-Z", "unstable-options", "--unit-graph"];
        let args = [build, &graph].concat();
        // The option has no stable form. Nothing is compiled by it.
        let graph = cargo::json(&args, &[("RUSTC_BOOTSTRAP", "1")]);
        let units = graph["units"].as_array().expect("units");
        let mut numbers = vec![None; units.len()];
        let numbered =
            (0..units.len()).map(|index| (self.number(units, index, &mut numbers), name(&units[index])));
        // Examples of documentation are never kept.
        numbered.filter(|(_, name)| !name.contains(" doctest ")).collect()
    }

    fn number(&mut self, units: &[Value], index: usize, numbers: &mut [Option<usize>]) -> usize {
        if let Some(number) = numbers[index] {
            return number;
        }
        let mut unit = units[index].clone();
        // Profiles that say the same are one, whatever their name.
        unit["profile"]["name"] = Value::Null;
        for dependency in unit["dependencies"].as_array_mut().expect("dependencies") {
            let below = dependency["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            dependency["index"] = self.number(units, below.expect("an index"), numbers).into();
        }
        let next = self.0.len();
        let number = *self.0.entry(unit.to_string()).or_insert(next);
        numbers[index] = Some(number);
        number
    }
}

fn name(unit: &Value) -> String {
    let package = cargo::text(unit, "pkg_id").rsplit('/').next().unwrap_or_default();
    format!("{package} {} {}", cargo::text(unit, "mode"), unit["features"])
}

#[test]
fn the_program_and_its_tests_are_built_of_the_same() {
    let mut units = Units::default();
    let tests = units.of(&["build", "--workspace", "--all-targets"]);
    for build in [["build"].as_slice(), &["test", "--workspace"]] {
        let needed = units.of(build);
        assert!(needed.len() > 100, "{build:?}: {} units", needed.len());
        let twice: BTreeSet<_> =
            needed.iter().filter(|(number, _)| !tests.contains_key(number)).map(|(_, name)| name).collect();
        assert!(
            twice.is_empty(),
            "built for `cargo {build:?}` and again, otherwise, for the tests; name the features that the tests \
             ask for in rollout/cli/Cargo.toml, or ask for fewer: {twice:#?}"
        );
    }
}
