//! Processes with streams, and forwarded ports.

use rollout_wire::v1::{self, exec_input, exec_output, exec_start, forward_input, forward_output};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::driver::{Driven, Lab, code, shell};

crate::sessions![
    a_process_is_fed_and_heard_while_it_runs,
    what_its_limits_keep_from_starting_is_refused_so,
    a_terminal_is_driven,
    a_client_that_goes_away_takes_the_tree_along,
    a_detached_process_goes_on_alone,
    a_client_that_does_not_listen_makes_the_process_wait,
    a_call_that_takes_nothing_holds_up_no_other,
    descriptors_that_run_out_are_refused_by_name,
    a_signal_is_heard_behind_input_that_nobody_takes,
    a_reader_that_is_slow_holds_up_no_end_and_is_told,
    a_client_whose_call_broke_off_goes_on_with_the_next_byte,
    a_named_process_is_begun_once,
    a_process_ends_at_its_deadline,
    a_port_is_forwarded_both_ways,
    nothing_leads_to_the_sockets_of_the_executor,
];

pub struct Exec {
    pub inputs: mpsc::Sender<v1::ExecInput>,
    pub outputs: Streaming<v1::ExecOutput>,
}

pub fn start(driven: &Driven, script: &str) -> v1::ExecStart {
    v1::ExecStart {
        sandbox: driven.name.clone(),
        claim: driven.claim.clone(),
        command: Some(exec_start::Command::Shell(script.to_owned())),
        ..v1::ExecStart::default()
    }
}

impl Exec {
    pub async fn new(driven: &Driven, start: v1::ExecStart) -> Result<Self, Status> {
        let (inputs, queue) = mpsc::channel(16);
        let first = exec_input::Input::Start(start);
        inputs.send(v1::ExecInput { input: Some(first) }).await.unwrap();
        let outputs = driven.client.clone().exec(ReceiverStream::new(queue)).await?.into_inner();
        Ok(Self { inputs, outputs })
    }

    pub async fn send(&self, input: exec_input::Input) {
        self.inputs.send(v1::ExecInput { input: Some(input) }).await.unwrap();
    }

    pub async fn next(&mut self) -> exec_output::Output {
        self.outputs.message().await.unwrap().expect("it goes on").output.unwrap()
    }

    /// Everything to the end.
    pub async fn rest(mut self) -> (Vec<u8>, Vec<u8>, v1::ExecEnded) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match self.next().await {
                exec_output::Output::Started(started) => assert!(started.pid > 1),
                exec_output::Output::Stdout(bytes) => out.extend(bytes),
                exec_output::Output::Stderr(bytes) => err.extend(bytes),
                exec_output::Output::Ended(ended) => {
                    assert!(self.outputs.message().await.unwrap().is_none(), "the last");
                    return (out, err, ended);
                }
            }
        }
    }

    /// The same of one with a name, which waits for a word of its client.
    pub async fn rest_named(mut self) -> (Vec<u8>, Vec<u8>, v1::ExecEnded) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match self.next().await {
                exec_output::Output::Started(_) => {}
                exec_output::Output::Stdout(bytes) => out.extend(bytes),
                exec_output::Output::Stderr(bytes) => err.extend(bytes),
                exec_output::Output::Ended(ended) => {
                    self.send(exec_input::Input::HangUp(true)).await;
                    assert!(self.outputs.message().await.unwrap().is_none(), "the last");
                    return (out, err, ended);
                }
            }
        }
    }

    /// Output until these words are in it.
    pub async fn until(&mut self, words: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(words) {
            match self.next().await {
                exec_output::Output::Stdout(bytes) | exec_output::Output::Stderr(bytes) => {
                    seen.push_str(&String::from_utf8_lossy(&bytes));
                }
                exec_output::Output::Started(_) => {}
                exec_output::Output::Ended(ended) => panic!("ended {ended:?} after {seen:?}"),
            }
        }
        seen
    }
}

async fn a_process_is_fed_and_heard_while_it_runs(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let mut begin = start(&sandbox, "read x; echo got $x; cat | wc -c; echo $A >&2; exit 6");
    begin.env = [("A".to_owned(), "b".to_owned())].into();
    let mut exec = Exec::new(&sandbox, begin).await.unwrap();
    exec.send(exec_input::Input::Stdin(b"line\n".to_vec())).await;
    assert_eq!(exec.until("got line\n").await, "got line\n");
    for _ in 0..10 {
        exec.send(exec_input::Input::Stdin(vec![b'z'; 64 << 10])).await;
    }
    exec.send(exec_input::Input::CloseStdin(true)).await;
    let (out, err, ended) = exec.rest().await;
    assert_eq!((out.as_slice(), err.as_slice()), (&b"655360\n"[..], &b"b\n"[..]));
    assert_eq!((ended.exit_code, ended.timed_out), (Some(6), false));
    let exec = Exec::new(
        &sandbox,
        start(&sandbox, "trap 'echo told; exit 9' USR1; echo up; while :; do sleep 0.01; done"),
    )
    .await
    .unwrap();
    let mut exec = exec;
    exec.until("up\n").await;
    exec.send(exec_input::Input::Signal(10)).await;
    let (out, _, ended) = exec.rest().await;
    assert_eq!((out.as_slice(), ended.exit_code), (&b"told\n"[..], Some(9)));
    let exec = Exec::new(&sandbox, start(&sandbox, "cat > /dev/null")).await.unwrap();
    exec.send(exec_input::Input::Stdin(vec![0; (64 << 10) + 1])).await;
    let mut outputs = exec.outputs;
    let refused = loop {
        match outputs.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(code(&refused), "bad_request");
    let mut absent = start(&sandbox, "true");
    absent.user = "nobody-here".to_owned();
    assert_eq!(code(&Exec::new(&sandbox, absent).await.err().unwrap()), "command_not_started");
    lab.finish(&sandbox).await;
}

/// Whatever was on its way when a call broke off comes again, and nothing else does.
async fn a_client_whose_call_broke_off_goes_on_with_the_next_byte(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let script = "echo begun >> begun; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo line $i; \
                  [ $((i % 1000)) -eq 0 ] && echo err $i >&2; done; exit 5";
    let mut begin = v1::ExecStart { exec_id: "count".to_owned(), ..start(&sandbox, script) };
    let (mut out, mut err, mut broken) = (Vec::new(), Vec::new(), 0);
    // A call whose inputs end in order has all it wants.
    let mut open = Vec::new();
    let ended = 'calls: loop {
        let mut exec = Exec::new(&sandbox, begin.clone()).await.unwrap();
        open.push(exec.inputs.clone());
        let before = out.len() + err.len();
        loop {
            match exec.next().await {
                exec_output::Output::Started(started) => assert!(started.pid > 1),
                exec_output::Output::Stdout(bytes) => out.extend(bytes),
                exec_output::Output::Stderr(bytes) => err.extend(bytes),
                exec_output::Output::Ended(ended) => break 'calls ended,
            }
            let received =
                v1::ExecReceived { stdout_bytes: out.len() as u64, stderr_bytes: err.len() as u64 };
            begin.resume = Some(received);
            // Every third call says what came: the rest is known by what it goes on behind.
            if broken % 3 == 0 {
                exec.send(exec_input::Input::Received(received)).await;
            }
            if out.len() + err.len() > before + 20_000 {
                break;
            }
        }
        broken += 1;
    };
    assert!(broken > 5, "{broken}");
    let lines: String = (1..=30_000).map(|n| format!("line {n}\n")).collect();
    let errors: String = (1..=30).map(|n| format!("err {n}000\n")).collect();
    assert_eq!((String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap()), (lines, errors));
    assert_eq!(ended.exit_code, Some(5));
    // Its end, too, is told again to a client that may not have heard it.
    let mut again = Exec::new(&sandbox, begin.clone()).await.unwrap();
    assert!(matches!(again.next().await, exec_output::Output::Started(_)));
    assert_eq!(again.next().await, exec_output::Output::Ended(ended));
    again.send(exec_input::Input::HangUp(true)).await;
    assert!(again.outputs.message().await.unwrap().is_none());
    let lost = Exec::new(&sandbox, begin).await.err().unwrap();
    assert_eq!(code(&lost), "exec_lost");
    assert_eq!(sandbox.said("times", "wc -l < begun").await, "1");
    lab.finish(&sandbox).await;
}

async fn a_named_process_is_begun_once(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let named = |id: &str, script: &str| v1::ExecStart { exec_id: id.to_owned(), ..start(&sandbox, script) };
    let work = named("work", "echo begun >> begun; echo up; sleep 1000");
    let mut first = Exec::new(&sandbox, work.clone()).await.unwrap();
    first.until("up\n").await;
    // A call that was sent again finds it, though the first has not broken off.
    let mut second = Exec::new(&sandbox, work.clone()).await.unwrap();
    second.until("up\n").await;
    assert!(first.outputs.message().await.unwrap().is_none(), "the client is at the other");
    let known = v1::ExecReceived { stdout_bytes: 2, stderr_bytes: 0 };
    let resumed = v1::ExecStart { resume: Some(known), ..work.clone() };
    let mut half = Exec::new(&sandbox, resumed).await.unwrap();
    assert_eq!(code(&half.outputs.message().await.unwrap_err()), "bad_request");
    // It goes on while nobody is there, until somebody says that nobody comes back.
    let mut third = Exec::new(&sandbox, work).await.unwrap();
    third.until("up\n").await;
    assert_eq!(sandbox.said("runs", "ps -e | grep -c sleep; wc -l < begun").await, "1\n1");
    third.send(exec_input::Input::HangUp(true)).await;
    while third.outputs.message().await.unwrap().is_some() {}
    let gone = "while ps -e | grep -q sleep; do sleep 0.01; done; echo gone";
    assert_eq!(sandbox.said("gone", gone).await, "gone");
    for (id, problem) in [("no/name", "bad_request"), ("absent", "exec_lost")] {
        let resume = Some(v1::ExecReceived::default());
        let refused = Exec::new(&sandbox, v1::ExecStart { resume, ..named(id, "true") }).await;
        assert_eq!(code(&refused.err().unwrap()), problem);
    }
    let pty = Some(v1::PtySize { columns: 80, rows: 24 });
    let refused = Exec::new(&sandbox, v1::ExecStart { pty, ..named("pty", "true") }).await;
    assert_eq!(code(&refused.err().unwrap()), "bad_request");
    // A program that is not there takes no name.
    let absent = v1::ExecStart { user: "nobody-here".to_owned(), ..named("absent", "true") };
    assert_eq!(code(&Exec::new(&sandbox, absent).await.err().unwrap()), "command_not_started");
    let (out, _, ended) = Exec::new(&sandbox, named("absent", "echo now")).await.unwrap().rest_named().await;
    assert_eq!((out.as_slice(), ended.exit_code), (&b"now\n"[..], Some(0)));
    lab.finish(&sandbox).await;
}

async fn what_its_limits_keep_from_starting_is_refused_so(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    // The last one is in the place of the shell that could fork no more.
    let full = "(i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done) 2>/dev/null; sleep 1000 & echo full; read x";
    let mut bomb = Exec::new(&sandbox, start(&sandbox, full)).await.unwrap();
    bomb.until("full\n").await;
    let refused = Exec::new(&sandbox, start(&sandbox, "true")).await.err().unwrap();
    assert_eq!(code(&refused), "process_limit", "{refused:?}");
    let recorded = sandbox.done("none", shell("true")).await;
    assert_eq!(recorded.code, "process_limit", "{recorded:?}");
    lab.finish(&sandbox).await;
}

async fn a_terminal_is_driven(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let mut begin = start(
        &sandbox,
        "trap 'stty size' WINCH; tty; stty size; echo $TERM; read x; echo ready; while :; do sleep 0.01; done",
    );
    begin.pty = Some(v1::PtySize { columns: 91, rows: 17 });
    let mut exec = Exec::new(&sandbox, begin).await.unwrap();
    let seen = exec.until("xterm-256color").await;
    assert!(seen.contains("/dev/pts/") && seen.contains("17 91"), "{seen}");
    exec.send(exec_input::Input::Stdin(b"go\r".to_vec())).await;
    // Not the echo of the keys: from here on it takes the signal.
    exec.until("ready").await;
    exec.send(exec_input::Input::Resize(v1::PtySize { columns: 20, rows: 10 })).await;
    exec.until("10 20").await;
    exec.send(exec_input::Input::Stdin(b"\x03".to_vec())).await;
    let (_, _, ended) = exec.rest().await;
    assert!(ended.signal == Some(2) || ended.exit_code == Some(130), "{ended:?}");
    lab.finish(&sandbox).await;
}

async fn a_client_that_goes_away_takes_the_tree_along(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let script = "(setsid sleep 1007 &); sleep 1007 & echo up; sleep 1007";
    let mut exec = Exec::new(&sandbox, start(&sandbox, script)).await.unwrap();
    exec.until("up\n").await;
    assert_eq!(sandbox.said("there", "pgrep -xc -f 'sleep 1007'").await, "3");
    drop(exec);
    sandbox.said("gone", "while pgrep -x -f 'sleep 1007' > /dev/null; do sleep 0.01; done").await;
    lab.finish(&sandbox).await;
}

async fn a_detached_process_goes_on_alone(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let script = "i=0; while :; do i=$((i+1)); echo $i; echo $i > n.new; mv n.new n; sleep 0.001; done";
    let mut begin = start(&sandbox, script);
    begin.detach = true;
    let mut exec = Exec::new(&sandbox, begin).await.unwrap();
    exec.until("5\n").await;
    drop(exec);
    let wait = "a=$(cat n); while [ $(cat n) -lt $((a+20000/100)) ]; do sleep 0.01; done; echo on";
    assert_eq!(sandbox.said("on", wait).await, "on");
    lab.finish(&sandbox).await;
}

async fn a_client_that_does_not_listen_makes_the_process_wait(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let script = "i=0; while :; do i=$((i+1)); head -c 100000 /dev/zero; echo $i > n; done";
    let exec = Exec::new(&sandbox, start(&sandbox, script)).await.unwrap();
    // Until nothing moves: what is on the way is bounded.
    let stands = "while :; do a=$(cat n 2>/dev/null); sleep 0.3; [ -n \"$a\" ] && [ \"$a\" = \"$(cat n)\" ] && break; done; cat n";
    let count: u64 = sandbox.said("stands", stands).await.parse().unwrap();
    assert!(count < 2000, "{count} x 100 kB were taken and nobody listens");
    drop(exec);
    lab.finish(&sandbox).await;
}

async fn a_signal_is_heard_behind_input_that_nobody_takes(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let script = "trap 'exit 9' INT; echo up; while :; do sleep 0.01; done";
    let mut exec = Exec::new(&sandbox, start(&sandbox, script)).await.unwrap();
    exec.until("up\n").await;
    for _ in 0..8 {
        exec.send(exec_input::Input::Stdin(vec![b'x'; 64 << 10])).await;
    }
    exec.send(exec_input::Input::Signal(2)).await;
    assert_eq!(exec.rest().await.2.exit_code, Some(9));
    lab.finish(&sandbox).await;
}

async fn a_reader_that_is_slow_holds_up_no_end_and_is_told(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    sandbox.said("make", "head -c 12000000 /dev/zero > large").await;
    let request = v1::ReadFileRequest {
        sandbox: sandbox.name.clone(),
        path: "large".to_owned(),
        ..v1::ReadFileRequest::default()
    };
    let mut reading = sandbox.client.clone().read_file(request).await.unwrap().into_inner();
    let mut exec = Exec::new(&sandbox, start(&sandbox, "exec cat large /dev/zero")).await.unwrap();
    // Until what is between them and their readers is full.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let began = std::time::Instant::now();
    lab.finish(&sandbox).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    let mut bytes = 0;
    let told = loop {
        match reading.message().await {
            Ok(Some(chunk)) => bytes += chunk.data.len(),
            Ok(None) => panic!("it ended as if it were whole, after {bytes}"),
            Err(told) => break told,
        }
    };
    assert_eq!(code(&told), "sandbox_ended");
    let told = loop {
        match exec.outputs.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended as if nothing were"),
            Err(told) => break told,
        }
    };
    assert_eq!(code(&told), "sandbox_ended");
}

async fn a_process_ends_at_its_deadline(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let mut begin = start(&sandbox, "(setsid sleep 1008 &); echo up; sleep 1008");
    begin.timeout_ms = Some(300);
    let exec = Exec::new(&sandbox, begin).await.unwrap();
    let (out, _, ended) = exec.rest().await;
    assert_eq!((out.as_slice(), ended.timed_out, ended.exit_code), (&b"up\n"[..], true, None));
    assert_eq!(sandbox.said("gone", "pgrep -xc -f 'sleep 1008'; true").await, "0");
    lab.finish(&sandbox).await;
}

pub struct Forward {
    pub inputs: mpsc::Sender<v1::ForwardInput>,
    pub outputs: Streaming<v1::ForwardOutput>,
}

impl Forward {
    pub async fn new(driven: &Driven, port: u32) -> Result<Self, Status> {
        let (inputs, queue) = mpsc::channel(16);
        let open = v1::ForwardOpen { sandbox: driven.name.clone(), claim: driven.claim.clone(), port };
        let first = v1::ForwardInput { input: Some(forward_input::Input::Open(open)) };
        inputs.send(first).await.unwrap();
        let mut outputs = driven.client.clone().forward(ReceiverStream::new(queue)).await?.into_inner();
        let opened = outputs.message().await?.unwrap();
        assert_eq!(opened.output, Some(forward_output::Output::Opened(true)));
        Ok(Self { inputs, outputs })
    }

    pub async fn send(&self, input: forward_input::Input) {
        self.inputs.send(v1::ForwardInput { input: Some(input) }).await.unwrap();
    }

    /// A connection to a port that will be listened on.
    pub async fn until_there(driven: &Driven, port: u32) -> Self {
        loop {
            match Self::new(driven, port).await {
                Ok(forward) => return forward,
                Err(status) => assert_eq!(code(&status), "port_refused"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

/// Echoes in capitals on port 8080, and says how much it heard at the end of the input.
pub const ECHO: &str = r#"perl -MSocket -e '$| = 1; socket(my $l, PF_INET, SOCK_STREAM, 0); setsockopt($l, SOL_SOCKET, SO_REUSEADDR, 1); bind($l, pack_sockaddr_in(8080, inet_aton("127.0.0.1"))) or die; listen($l, 8); while (accept(my $c, $l)) { my $n = 0; while (sysread($c, my $x, 65536)) { $n += length $x; my $y = uc $x; my $o = 0; while ($o < length $y) { $o += syswrite($c, $y, length($y) - $o, $o) } } syswrite($c, "heard $n"); close $c }' > /dev/null 2>&1 & echo up"#;

async fn a_port_is_forwarded_both_ways(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    sandbox.said("serve", ECHO).await;
    let mut forward = Forward::until_there(&sandbox, 8080).await;
    let sent = 40 * (64 << 10);
    let inputs = forward.inputs.clone();
    let sending = tokio::spawn(async move {
        for _ in 0..40 {
            let data = forward_input::Input::Data(vec![b'a'; 64 << 10]);
            inputs.send(v1::ForwardInput { input: Some(data) }).await.unwrap();
        }
        let close = forward_input::Input::Close(true);
        inputs.send(v1::ForwardInput { input: Some(close) }).await.unwrap();
    });
    let mut heard = Vec::new();
    loop {
        match forward.outputs.message().await.unwrap().unwrap().output.unwrap() {
            forward_output::Output::Data(data) => heard.extend(data),
            forward_output::Output::Closed(_) => break,
            forward_output::Output::Opened(_) => panic!("twice"),
        }
    }
    sending.await.unwrap();
    let words = format!("heard {sent}");
    assert_eq!(heard.len(), sent + words.len());
    assert!(heard[..sent].iter().all(|byte| *byte == b'A') && heard.ends_with(words.as_bytes()));
    for port in [0, 65_536] {
        assert_eq!(code(&Forward::new(&sandbox, port).await.err().unwrap()), "bad_request");
    }
    assert_eq!(code(&Forward::new(&sandbox, 9).await.err().unwrap()), "port_refused");
    lab.finish(&sandbox).await;
}

/// Hostile case 7: find the executor's socket and forge a finish.
async fn nothing_leads_to_the_sockets_of_the_executor(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let path = lab.yard.config.data_dir.join("sandboxes.sock");
    assert!(path.exists());
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for (id, user) in [("a", "rollout"), ("b", "root")] {
        let script = format!(
            "ls {} 2>&1 | grep -c 'No such file'; tail -n +2 /proc/net/unix | wc -l; find / -xdev -type s 2>/dev/null | wc -l",
            path.display()
        );
        let command = Some(v1::run_command::Command::Shell(script));
        let run = v1::RunCommand { command, user: user.to_owned(), ..v1::RunCommand::default() };
        let result = session.done(id, v1::act_request::Payload::Run(run)).await;
        assert_eq!(result.stdout, b"1\n0\n0\n", "{user}: {result:?}");
    }
    lab.finish(&session).await;
}

async fn a_call_that_takes_nothing_holds_up_no_other(lab: &mut Lab) {
    let (stalled, other) = (lab.sandbox().await, lab.sandbox().await);
    let exec = Exec::new(&stalled, start(&stalled, "sleep 1000")).await.unwrap();
    let (inputs, sent) = (exec.inputs.clone(), std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let counter = std::sync::Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        for _ in 0..32 {
            let input = exec_input::Input::Stdin(vec![0; 64 << 10]);
            inputs.send(v1::ExecInput { input: Some(input) }).await.unwrap();
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    // Until no more of it goes out.
    let count = || sent.load(std::sync::atomic::Ordering::Relaxed);
    let mut before = usize::MAX;
    while before != count() || before == 0 {
        before = count();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    let said = other.said("beside", "echo here");
    let said = tokio::time::timeout(std::time::Duration::from_secs(20), said).await;
    assert_eq!(said.expect("it is served over the same connection"), "here");
    sending.abort();
    drop(exec);
    lab.finish(&stalled).await;
    lab.finish(&other).await;
}

/// Hostile: a driver that leaves process after process behind.
async fn descriptors_that_run_out_are_refused_by_name(lab: &mut Lab) {
    use nix::sys::resource::{Resource, setrlimit};
    // Before the first is taken.
    setrlimit(Resource::RLIMIT_NOFILE, 1_424, 1_424).unwrap();
    let greedy = lab.sandbox_with(|step| step.resources.as_mut().unwrap().limit_pids = 256).await;
    let other = lab.sandbox().await;
    let mut left = 0;
    let refused = loop {
        let result = greedy.done(&format!("leave-{left}"), shell("sleep 1000 & echo left")).await;
        if !result.code.is_empty() {
            break result;
        }
        left += 1;
        assert!(left < 200, "nothing bounds them");
    };
    assert_eq!(refused.code, "too_many_calls", "{refused:?}");
    assert!(refused.message.contains("limit of 180 (open files of the executor)"), "{refused:?}");
    assert_eq!(left, 45, "four for each");
    let no_room = Forward::new(&other, 8080).await.err().unwrap();
    assert_eq!(code(&no_room), "too_many_calls", "{no_room:?}");
    assert_eq!(code(&Exec::new(&other, start(&other, "true")).await.err().unwrap()), "too_many_calls");
    // Nothing but that is the matter, and what goes gives its own back.
    other.stat("/etc/passwd").await.unwrap();
    lab.finish(&greedy).await;
    assert_eq!(other.said("again", "echo here").await, "here");
    lab.finish(&other).await;
}
