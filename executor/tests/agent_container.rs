//! Attempts end to end on this kernel: the real agent and the container backend, with a scheduler
//! played over the real wire. The binary becomes the broker, so it has a main of its own. Not
//! root: every test is listed as skipped, with the reason.

#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "agent/fake.rs"]
mod fake;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "agent/yard.rs"]
mod yard;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig};
use libtest_mimic::{Arguments, Failed, Trial};
use rollout_wire::v1::{self, command, output::Source};
use yard::{Yard, attempt, grader, order, output};

type HostYard = Yard<Container>;
type Test = for<'a> fn(&'a mut HostYard) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How long a broker may take to clean up after its executor: a hang guard.
const CLEAN_UP: Duration = Duration::from_secs(60);

fn main() {
    executor::broker::run_if_asked();
    let is_root = nix::unistd::geteuid().is_root();
    let tests: [(&str, Test); 10] = [
        ("a_step_succeeds_and_hands_in_what_it_made", |yard| Box::pin(success(yard))),
        ("a_step_out_of_time_is_told_and_then_killed", |yard| Box::pin(timeout(yard))),
        ("a_daemon_neither_delays_the_end_nor_outlives_it", |yard| Box::pin(daemon(yard))),
        ("limits_of_the_kernel_are_named", |yard| Box::pin(limits(yard))),
        ("a_chain_goes_on_in_one_sandbox", |yard| Box::pin(chain(yard))),
        ("a_grader_goes_on_where_its_agent_worked_with_tests_of_its_own", |yard| Box::pin(in_place(yard))),
        ("a_grader_reads_no_fifo_and_no_link", |yard| Box::pin(rewards(yard))),
        ("a_flood_of_output_is_capped", |yard| Box::pin(flood(yard))),
        ("a_workspace_goes_from_sandbox_to_sandbox_higher_than_a_stack", |yard| Box::pin(stacks(yard))),
        ("a_step_that_was_killed_goes_on_from_its_last_checkpoint", |yard| Box::pin(goes_on(yard))),
    ];
    let trial = |(name, test): (&str, Test)| {
        let runner = move || {
            run(test);
            Ok::<(), Failed>(())
        };
        let kind = if is_root { "" } else { "SKIPPED: needs root" };
        Trial::test(name, runner).with_ignored_flag(!is_root).with_kind(kind)
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit();
}

/// Runs a test on a backend of its own, and requires an empty census at its end.
fn run(test: Test) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    // The directory must outlive the broker's clean-up: removed below.
    let kept = dir.keep();
    runtime.block_on(async {
        let backend = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).expect("a backend");
        let dir = tempfile::tempdir().unwrap();
        let mut yard = Yard::start_on(backend, dir, |config| config.data_dir = data_dir.clone()).await;
        test(&mut yard).await;
        yard.end().await;
        let census = census::take(&data_dir).unwrap();
        assert!(census.holds_no_sandbox(), "left while the broker lives: {census}");
    });
    drop(runtime);
    let deadline = Instant::now() + CLEAN_UP;
    loop {
        let census = census::take(&data_dir).unwrap();
        if census.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "left: {census}");
        std::thread::sleep(Duration::from_millis(10));
    }
    census::remove_parents(&data_dir).expect("the parents are empty");
    std::fs::remove_dir_all(kept).unwrap();
}

fn small(kind: &str, sample: u32, script: &str) -> v1::StartAttempt {
    let mut order = if kind == "grader" { grader(script) } else { order(kind, script) };
    order.attempt = Some(attempt(sample, 0));
    let resources = order.step.as_mut().unwrap().resources.as_mut().unwrap();
    (resources.request_memory_bytes, resources.limit_memory_bytes) = (64 << 20, 64 << 20);
    (resources.request_disk_bytes, resources.limit_disk_bytes) = (16 << 20, 16 << 20);
    resources.limit_pids = 64;
    order
}

fn code(outcome: &v1::Outcome) -> &str {
    outcome.failure.as_ref().map_or("", |failure| &failure.code)
}

async fn success(yard: &mut HostYard) {
    let blob = yard.blobs.put(bytes::Bytes::from_static(b"input")).await.unwrap();
    let script = "id -un; pwd; echo $HOME $LANG >&2; cat in; cat /etc/note; echo made > made; exit 0";
    let mut order = small("agent", 0, script);
    order.inputs =
        vec![v1::Input { path: "in".to_owned(), sha256: blob.sha256, size: blob.size, tree: false }];
    let step = order.step.as_mut().unwrap();
    let content = Some(v1::file::Content::Text("note".to_owned()));
    step.files = vec![v1::File { path: "/etc/note".to_owned(), content, mode: 0o644 }];
    step.outputs = vec![
        output("made", Source::Path("made".to_owned()), 100),
        output("listing", Source::Command("cat made in".to_owned()), 100),
        output("none", Source::Path("none".to_owned()), 100),
    ];
    let outcome = yard.run(order).await;
    assert_eq!(code(&outcome), "output_missing", "{:?}", outcome.failure);
    assert_eq!((outcome.exit_code, outcome.signal, outcome.oom), (Some(0), None, false));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "rollout\n/workspace\ninputnote");
    assert_eq!(yard.blob(outcome.stderr.as_ref().unwrap()).await, "/workspace C.UTF-8\n");
    let names: Vec<_> = outcome.artifacts.iter().map(|a| (a.name.as_str(), a.size)).collect();
    assert_eq!(names, [("made", 5), ("listing", 10)]);
    assert!(outcome.image_digest.starts_with("host:"), "{}", outcome.image_digest);
    assert!(outcome.usage.unwrap().cpu_ms.is_some());
}

async fn timeout(yard: &mut HostYard) {
    for (sample, (script, exit_code, signal)) in (0..).zip([
        ("sleep 1000", None, Some(15)),
        ("trap 'exit 0' TERM; while :; do sleep 0.01; done", Some(0), None),
        ("trap '' TERM; while :; do sleep 0.01; done", None, Some(9)),
    ]) {
        let mut order = small("agent", sample, script);
        let step = order.step.as_mut().unwrap();
        (step.timeout_ms, step.grace_ms) = (500, 500);
        let outcome = yard.run(order).await;
        assert_eq!((code(&outcome), outcome.timed_out), ("agent_timeout", true), "{script}");
        assert_eq!((outcome.exit_code, outcome.signal), (exit_code, signal), "{script}");
    }
}

async fn daemon(yard: &mut HostYard) {
    let script = "(setsid sleep 1000; echo late) & (while :; do echo x > made; done) & sleep 0.05; echo done";
    let mut order = small("agent", 0, script);
    order.step.as_mut().unwrap().outputs = vec![output("made", Source::Path("made".to_owned()), 2)];
    let outcome = yard.run(order).await;
    assert_eq!(outcome.exit_code, Some(0));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "done\n");
}

async fn limits(yard: &mut HostYard) {
    let fill = "head -c 32M /dev/zero > full; echo unreachable";
    let inodes = "i=0; while :; do : > f$i; i=$((i+1)); done";
    for (sample, (script, codes)) in (0..).zip([
        ("tail /dev/zero", &["oom_guest"][..]),
        (fill, &["disk_quota"]),
        // A tmpfs of 16 MiB holds few enough inodes to use up.
        (inodes, &["disk_quota"]),
        ("i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done", &["pids_limit"]),
    ]) {
        let outcome = yard.run(small("agent", sample, script)).await;
        assert!(codes.contains(&code(&outcome)), "{script}: {:?}", outcome.failure);
    }
}

async fn chain(yard: &mut HostYard) {
    let mut first = small("run", 0, "echo one > a");
    first.keep = true;
    assert_eq!(code(&yard.run(first).await), "");
    let mut second = small("run", 0, "cat a; echo two >> a");
    (second.attempt, second.continue_from) = (Some(attempt(0, 1)), Some(attempt(0, 0)));
    second.keep = true;
    let outcome = yard.run(second).await;
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "one\n");
    let release = v1::ReleaseSandbox { attempt: Some(attempt(0, 1)), generation: 1 };
    yard.send(command::Kind::Release(release)).await;
}

/// The agent leaves tests, a link where they come, a process and a full disk.
async fn in_place(yard: &mut HostYard) {
    let dir = tempfile::tempdir().unwrap();
    let tests = "if grep -l sleep /proc/[0-9]*/comm; then exit 1; fi; echo 0.5 > /logs/verifier/reward.txt";
    std::fs::create_dir(dir.path().join("tests")).unwrap();
    std::fs::write(dir.path().join("tests/test.sh"), tests).unwrap();
    let (out, bounds) = (dir.path().join("packed"), images::layers::Bounds::new(rollout::Bytes(1 << 20)));
    let packed = images::layers::pack_directory(&dir.path().join("tests"), "tests", &out, &bounds).unwrap();
    let stored = yard.blobs.put(bytes::Bytes::from(std::fs::read(&out).unwrap())).await.unwrap();
    assert_eq!(stored.sha256, packed.layer.blob);
    let forged = "echo 1 > /logs/verifier/reward.txt";
    let plants = [
        "true".to_owned(),
        format!("mkdir /tests; echo '{forged}' > /tests/test.sh; touch /tests/conftest.py; sleep 1000 &"),
        format!("mkdir mine; echo '{forged}' > mine/test.sh; ln -s /workspace/mine /tests"),
        "ln -s /etc /tests; (while :; do ln -sfn /etc /tests; done) &".to_owned(),
        "head -c 32M /dev/zero > /workspace/full || true".to_owned(),
    ];
    for (sample, plant) in (0..).zip(&plants) {
        let mut agent = small("agent", sample, &format!("echo 42 > answer; {plant}"));
        agent.keep = true;
        agent.step.as_mut().unwrap().user = "root".to_owned();
        let ended = yard.run(agent).await;
        assert_eq!(code(&ended), "", "{plant}: {:?}", ended.failure);
        let mut grade =
            small("grader", sample, "cat answer; ls -A /tests; [ ! -e /etc/test.sh ]; sh /tests/test.sh");
        (grade.attempt, grade.continue_from) = (Some(attempt(sample, 1)), Some(attempt(sample, 0)));
        let step = grade.step.as_mut().unwrap();
        step.user = "root".to_owned();
        step.layers = vec![packed.layer.to_string()];
        let outcome = yard.run(grade).await;
        if plant.contains("full") {
            assert_eq!(code(&outcome), "not_found");
            let message = outcome.failure.unwrap().message;
            assert!(message.contains("a larger disk limit is needed"), "{message}");
            continue;
        }
        let said = yard.blob(outcome.stdout.as_ref().unwrap()).await;
        assert_eq!(said, "42\ntest.sh\n", "{plant}");
        assert_eq!(outcome.reward.as_ref().map(|reward| reward.value), Some(0.5), "{plant}: {outcome:?}");
    }
}

/// More saved workspaces in a row than a stack has layers.
async fn stacks(yard: &mut HostYard) {
    let mut base: Option<v1::Checkpoint> = None;
    let mut heights = Vec::new();
    for step in 0..36u32 {
        let script = format!(
            "cat log 2>/dev/null || true; echo {step} >> log; rm -rf d; mkdir d; echo {step} > d/f{step}; rm -f g{}; touch g{step}",
            step.wrapping_sub(1)
        );
        let mut order = small("run", 0, &script);
        (order.attempt, order.base) = (Some(attempt(0, step)), base);
        order.step.as_mut().unwrap().checkpoint_after = true;
        let outcome = yard.run(order).await;
        assert_eq!(code(&outcome), "", "{:?}", outcome.failure);
        let before: String = (0..step).map(|step| format!("{step}\n")).collect();
        assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, before);
        let checkpoint = outcome.checkpoint.expect("a checkpoint");
        assert_eq!(checkpoint.image, outcome.image_digest);
        heights.push(checkpoint.layers.len());
        base = Some(checkpoint);
    }
    assert_eq!(heights[..32], (1..=32).collect::<Vec<_>>());
    assert_eq!(heights[32..], [1, 2, 3, 4], "a full stack became one layer");
    let mut order = small("run", 1, "tail -1 log; ls; ls d");
    order.base = base;
    let outcome = yard.run(order).await;
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "35\nd\ng35\nlog\nf35\n");
}

/// Saved while it runs, killed, started again over what was saved.
async fn goes_on(yard: &mut HostYard) {
    let script = "while :; do i=$(cat n 2>/dev/null || echo 0); echo $((i+1)) > m; mv m n; done";
    let mut order = small("agent", 0, script);
    order.step.as_mut().unwrap().checkpoint_every_ms = Some(20);
    yard.send(command::Kind::Start(order)).await;
    let pick = |r: &v1::report::Kind| match r {
        v1::report::Kind::Checkpoint(taken) => taken.checkpoint.clone().filter(|c| !c.layers.is_empty()),
        _ => None,
    };
    let mut bases = Vec::new();
    while bases.len() < 4 {
        bases.push(yard.wait("checkpoint", pick).await);
    }
    let kill = v1::KillAttempt {
        attempt: Some(attempt(0, 0)),
        generation: 1,
        code: "cancelled".to_owned(),
        reason: "enough".to_owned(),
    };
    yard.send(command::Kind::Kill(kill)).await;
    assert_eq!(code(&yard.ended().await.outcome.unwrap()), "cancelled");
    let mut counts = Vec::new();
    for (sample, base) in (1..).zip(bases) {
        assert_eq!(base.layers.len(), 1, "each replaces the one before");
        let mut order = small("run", sample, "cat n");
        order.base = Some(base);
        let outcome = yard.run(order).await;
        let count: u64 = yard
            .blob(outcome.stdout.as_ref().unwrap())
            .await
            .iter()
            .filter(|byte| byte.is_ascii_digit())
            .fold(0, |n, byte| n * 10 + u64::from(byte - b'0'));
        counts.push(count);
    }
    // Two may be of the moments before and after a move.
    assert!(counts.is_sorted() && counts[0] > 0 && counts[3] > counts[0], "{counts:?}");
}

async fn rewards(yard: &mut HostYard) {
    let file = "/logs/verifier/reward.json";
    for (sample, (script, reward, words)) in (0..).zip([
        (format!("echo '{{\"reward\": 0.5, \"tests\": 3}}' > {file}; exit 3"), Some(0.5), ""),
        (format!("mkfifo {file}"), None, "FIFO"),
        (format!("mkdir {file}"), None, "directory"),
        (format!("ln -s /etc/passwd {file}"), None, "symlink"),
        (format!("truncate -s 1G {file}"), None, "1073741824 bytes"),
        ("true".to_owned(), None, "no reward file"),
        (format!("echo 0.25 > {file}; (while :; do echo 1 > {file}; done) & sleep 0.01; kill $!; echo 0.25 > {file}"), Some(0.25), ""),
    ]) {
        let outcome = yard.run(small("grader", sample, &script)).await;
        assert_eq!(outcome.reward.as_ref().map(|r| r.value), reward, "{script}: {:?}", outcome.failure);
        let message = outcome.failure.map(|failure| failure.message).unwrap_or_default();
        assert!(message.to_lowercase().contains(&words.to_lowercase()), "{script}: {message}");
    }
}

async fn flood(yard: &mut HostYard) {
    let outcome = yard.run(small("agent", 0, "yes | head -c 30000000; printf '\\377\\033[31m' >&2")).await;
    assert_eq!(code(&outcome), "");
    let stdout = outcome.stdout.unwrap();
    let expected = (8 << 20, 30_000_000, true);
    assert_eq!((stdout.stored_bytes, stdout.written_bytes, stdout.truncated), expected);
    assert_eq!(
        yard.blob(outcome.stderr.as_ref().unwrap()).await,
        "\u{1b}[31m".as_bytes().iter().copied().fold(vec![0xff], |mut v, b| {
            v.push(b);
            v
        })
    );
}
