//! Cases 36 to 38: specs that are too large, too deep, circular, or named to deceive. The checker
//! answers with a code and stays small.

use std::fmt::Write as _;

use rollout::spec::{Checked, DiagnosticCode, check};

pub const CASES: &[(&str, fn())] = &[
    ("case_36_circles_and_twins_are_named_by_their_steps", circles_and_twins_are_named_by_their_steps),
    (
        "case_36_graphs_too_large_are_refused_before_they_are_made",
        graphs_too_large_are_refused_before_they_are_made,
    ),
    (
        "case_37_documents_that_grow_are_refused_by_their_limit",
        documents_that_grow_are_refused_by_their_limit,
    ),
    ("case_37_quantities_are_what_they_say_or_refused", quantities_are_what_they_say_or_refused),
    ("case_38_names_are_refused_or_safe_to_print", names_are_refused_or_safe_to_print),
    ("case_38_environments_and_arguments_have_bounds", environments_and_arguments_have_bounds),
];

/// The most memory a check may take, over what the process had.
const PEAK_MAX_KIB: u64 = 256 << 10;

/// Checks while watching the peak of this process, from a peak that was reset.
fn bounded(text: &str) -> Checked {
    // 5: the peak starts again at what is resident now.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be reset");
    let before = status("VmRSS");
    let checked = check(text, "hostile.yaml");
    let peak = status("VmHWM");
    assert!(peak < before + PEAK_MAX_KIB, "{} KiB for {} bytes", peak - before, text.len());
    let shown = checked.render(text);
    let bad = shown.chars().find(|c| *c != '\n' && *c != ' ' && !c.is_ascii_graphic());
    assert_eq!(bad, None, "what is printed is plain");
    assert!(shown.len() < 1 << 20, "{} bytes are printed", shown.len());
    checked
}

fn status(field: &str) -> u64 {
    let text = tests::census::status(std::process::id().cast_signed(), field).expect("a status");
    text.trim_end_matches(" kB").parse().expect("kB")
}

#[track_caller]
fn refused(text: &str, code: DiagnosticCode) -> Checked {
    let checked = bounded(text);
    let codes: Vec<_> = checked.errors().map(|error| error.code).collect();
    assert!(checked.plan.is_none(), "no plan");
    assert!(codes.contains(&code), "{code} among {codes:?}");
    checked
}

#[track_caller]
fn accepted(text: &str) {
    let checked = bounded(text);
    let wrong: Vec<_> = checked.errors().map(|error| (error.code, error.message.clone())).collect();
    assert!(checked.plan.is_some(), "{wrong:?}");
}

fn job(steps: &str) -> String {
    format!(
        "apiVersion: rollyard/v1\nkind: RolloutJob\nname: hostile\ntasks: {{from: {{inline: [{{n: \"1\"}}]}}}}\ngroup: {{size: 1}}\ndefaults: {{image: host}}\nsteps:\n{steps}"
    )
}

fn circles_and_twins_are_named_by_their_steps() {
    let circle = job(
        "  - {name: a, run: x, needs: [c]}\n  - {name: b, run: x, needs: [a]}\n  - {name: c, run: x, needs: [b]}\n",
    );
    let checked = refused(&circle, DiagnosticCode::DagCycle);
    let message =
        checked.errors().find(|error| error.code == DiagnosticCode::DagCycle).unwrap().message.clone();
    for step in ["a", "b", "c"] {
        assert!(message.contains(step), "{message}");
    }
    refused(&job("  - {name: a, run: x, needs: [a]}\n"), DiagnosticCode::DagCycle);
    refused(&job("  - {name: a, run: x}\n  - {name: a, run: x}\n"), DiagnosticCode::DuplicateStep);
    refused(&job("  - {name: a, run: x, needs: [lost]}\n"), DiagnosticCode::UnknownStep);
    accepted(&job(
        "  - {name: a, run: x}\n  - {name: b, run: x, needs: [a]}\n  - {name: c, run: x, needs: [b]}\n",
    ));
}

fn graphs_too_large_are_refused_before_they_are_made() {
    let chain = |count: usize| {
        let mut text = String::from("  - {name: s0, run: x}\n");
        for step in 1..count {
            writeln!(text, "  - {{name: s{step}, run: x, needs: [s{}]}}", step - 1).unwrap();
        }
        job(&text)
    };
    accepted(&chain(64));
    refused(&chain(65), DiagnosticCode::TooLarge);
    for count in [10_000, 100_000, 1_000_000] {
        refused(&chain(count), DiagnosticCode::TooLarge);
    }
    let fan_in = |count: usize| {
        let mut text = String::new();
        for step in 0..count {
            writeln!(text, "  - {{name: s{step}, run: x}}").unwrap();
        }
        let needs: Vec<_> = (0..count).map(|step| format!("s{step}")).collect();
        let grader = "grader: {}, run: x, from: s0, isolate: reuse";
        writeln!(text, "  - {{name: last, {grader}, needs: [{}]}}", needs.join(", ")).unwrap();
        job(&text)
    };
    accepted(&fan_in(63));
    refused(&fan_in(100_000), DiagnosticCode::TooLarge);
    // As wide by an alias, in a few bytes.
    let mut aliased = String::from(
        "x: &a [s, s, s, s, s, s, s, s, s, s]\ny: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n",
    );
    aliased += "z: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nw: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\nv: [*d, *d, *d, *d]\n";
    refused(&aliased, DiagnosticCode::TooLarge);
}

fn documents_that_grow_are_refused_by_their_limit() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        writeln!(bomb, "a{level}: &a{level} [{}]", [below.as_str(); 9].join(", ")).unwrap();
    }
    refused(&bomb, DiagnosticCode::TooLarge);
    // Few nodes and much text.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), ["*a"; 1_000].join(", "));
    refused(&long, DiagnosticCode::TooLarge);
    for depth in [40, 20_000, 500_000] {
        refused(&format!("a: {}{}", "[".repeat(depth), "]".repeat(depth)), DiagnosticCode::TooLarge);
        refused(&format!("a: {}", "[".repeat(depth)), DiagnosticCode::TooLarge);
    }
    let indented: String = (0..1_000).fold(String::new(), |text, depth| text + &" ".repeat(depth) + "a:\n");
    refused(&indented, DiagnosticCode::TooLarge);
    refused(&"- ".repeat(400_000), DiagnosticCode::TooLarge);
    refused(&"x".repeat(2 << 20), DiagnosticCode::TooLarge);
    let base = job("  - {name: a, run: x}\n");
    refused(&format!("{base}retry: {{<<: {{limit: 1}}}}\n"), DiagnosticCode::MergeKey);
    refused(&format!("{base}name: again\n"), DiagnosticCode::DuplicateKey);
    refused(
        &base.replace("name: hostile", "name: !!python/object:os.system hostile"),
        DiagnosticCode::YamlTag,
    );
    refused(&base.replace("hostile", "ho\0stile"), DiagnosticCode::YamlSyntax);
    accepted(&base);
    accepted(&base.replace("group: {size: 1}", "group: &g {size: 1}"));
}

fn quantities_are_what_they_say_or_refused() {
    let with = |field: &str, value: &str| {
        job(&format!("  - {{name: a, run: x, resources: {{{field}: {value}}}}}\n"))
    };
    for (field, value) in
        [("cpu", "2"), ("cpu", "500m"), ("cpu", "0.5"), ("memory", "64Mi"), ("disk", "1Gi"), ("pids", "64")]
    {
        accepted(&with(field, value));
    }
    for value in [
        "NaN",
        ".nan",
        ".inf",
        "-.inf",
        "inf",
        "-1",
        "0",
        "1e400",
        "18446744073709551616",
        "0x10",
        "0o17",
        "1_000",
        "+1",
        "\"\"",
        "1e3",
        "99999999999Ti",
        "1 Gi",
        "\"1\\n\"",
        "\"\u{0661}\"",
        "[1]",
        "{a: 1}",
        "~",
        "0m",
        "1.2345",
    ] {
        for field in ["cpu", "memory", "disk", "pids"] {
            let checked = bounded(&with(field, value));
            let codes: Vec<_> = checked.errors().map(|error| (error.code, error.line)).collect();
            let expected = [
                DiagnosticCode::BadType,
                DiagnosticCode::BadValue,
                DiagnosticCode::BadRelation,
                DiagnosticCode::UnknownField,
            ];
            let named = codes.iter().any(|(code, line)| expected.contains(code) && *line == 8);
            assert!(checked.plan.is_none() && named, "{field}: {value}: {codes:?}");
        }
    }
    for size in ["0", "-1", "1025", "4294967297", "1e3", "eight", "1.5"] {
        let text = job("  - {name: a, run: x}\n").replace("size: 1", &format!("size: {size}"));
        assert!(bounded(&text).plan.is_none(), "group.size {size}");
    }
}

fn names_are_refused_or_safe_to_print() {
    let named =
        |name: &str| job(&format!("  - {{name: {}, run: x}}\n", serde_json::to_string(name).unwrap()));
    for name in ["a", "step-1", "A_b", &"x".repeat(63)] {
        accepted(&named(name));
    }
    for name in [
        "",
        "../x",
        "/x",
        "a/b",
        "..",
        ".",
        "-rf",
        "--help",
        "a b",
        "a.b",
        "x\u{202e}txt",
        "\u{0430}dmin",
        "a\u{200b}b",
        "\u{feff}a",
        "\u{1f600}",
        "a\nb",
        "a\u{1b}[31m",
        "a\u{7f}",
        "a=b",
        "$(id)",
        "`id`",
        "a;b",
        &"x".repeat(300),
        "a\u{0301}",
        "${row.n}",
    ] {
        for text in [
            named(name),
            job("  - {name: a, run: x}\n")
                .replace("name: hostile", &format!("name: {}", serde_json::to_string(name).unwrap())),
        ] {
            let checked = bounded(&text);
            // A job's name may hold a dot, a step's not.
            assert!(checked.plan.is_none() || name == "a.b", "{name:?} is a name");
        }
    }
    // Paths and users are no names, and stay inside all the same.
    for output in ["../../etc/passwd", "/a/../b", "a/../../b", "", "a\u{0}b"] {
        let text = format!(
            "  - {{name: a, run: x, outputs: [{{name: o, path: {}}}]}}\n",
            serde_json::to_string(output).unwrap()
        );
        assert!(bounded(&job(&text)).plan.is_none(), "{output:?} is a path");
    }
}

fn environments_and_arguments_have_bounds() {
    let env = |count: usize| {
        let entries: Vec<_> = (0..count).map(|n| format!("V{n}: x")).collect();
        job(&format!("  - {{name: a, run: x, env: {{{}}}}}\n", entries.join(", ")))
    };
    accepted(&env(256));
    refused(&env(300), DiagnosticCode::TooLarge);
    for key in ["A=B", "=", "A B", "-x", "1A", "A\u{200b}", "", "LD\nPRELOAD"] {
        let text =
            job(&format!("  - {{name: a, run: x, env: {{{}: x}}}}\n", serde_json::to_string(key).unwrap()));
        assert!(bounded(&text).plan.is_none(), "{key:?} is a variable's name");
    }
    let argument =
        |bytes: usize| job(&format!("  - {{name: a, agent: {{command: [echo, {}]}}}}\n", "x".repeat(bytes)));
    accepted(&argument(100 << 10));
    refused(&argument(3 << 20), DiagnosticCode::TooLarge);
    assert!(bounded(&argument(200 << 10)).plan.is_none(), "an argument the kernel would not take");
    let many = |count: usize| {
        job(&format!("  - {{name: a, agent: {{command: [{}]}}}}\n", vec!["x"; count].join(", ")))
    };
    accepted(&many(256));
    assert!(bounded(&many(257)).plan.is_none());
}
