//! One raw connection of an executor that says whatever a test has it say.

use rollout::IncarnationId;
use rollout_wire::v1;
use rollout_wire::v1::command::Kind as Command;
use rollout_wire::v1::nodes_client::NodesClient;
use rollout_wire::v1::report::Kind as Report;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::yard::{HANG, Yard, channel};

/// One raw connection of an executor.
pub struct Liar {
    reports: mpsc::Sender<v1::ReportBatch>,
    commands: Streaming<v1::CommandBatch>,
}

fn capacity() -> v1::Capacity {
    v1::Capacity {
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        disk_bytes: 64 << 30,
        sandboxes: 64,
        ..v1::Capacity::default()
    }
}

pub fn greeting(node: &str) -> v1::Hello {
    let incarnation = IncarnationId::from_bits(rand::random()).to_string();
    v1::Hello { node: node.to_owned(), incarnation, capacity: Some(capacity()), ..v1::Hello::default() }
}

impl Liar {
    pub async fn attach(yard: &Yard, hello: v1::Hello) -> Self {
        let mut client = NodesClient::new(channel(&yard.socket()).await)
            .max_encoding_message_size(usize::MAX)
            .max_decoding_message_size(usize::MAX);
        let (reports, stream) = mpsc::channel(64);
        let commands = client.attach(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut liar = Self { reports, commands };
        liar.say(vec![Report::Hello(hello)]).await;
        liar
    }

    pub async fn say(&mut self, kinds: Vec<Report>) {
        let reports = kinds.into_iter().map(|kind| v1::Report { kind: Some(kind) }).collect();
        // A stream that the scheduler closed takes nothing more.
        let _ = self.reports.send(v1::ReportBatch { reports }).await;
    }

    /// The next command that `wanted` takes.
    pub async fn next<T>(&mut self, mut wanted: impl FnMut(Command) -> Option<T>) -> T {
        let next = async {
            loop {
                let batch = self.commands.message().await.unwrap().expect("the stream goes on");
                for command in batch.commands {
                    if let Some(found) = command.kind.and_then(&mut wanted) {
                        return found;
                    }
                }
            }
        };
        tokio::time::timeout(HANG, next).await.expect("an answer")
    }

    pub async fn refused(&mut self) -> v1::Refuse {
        self.next(|command| match command {
            Command::Refuse(refuse) => Some(refuse),
            _ => None,
        })
        .await
    }
}

pub fn ended(rollout: &str, step: u32, generation: u64) -> Report {
    let times = v1::Times { taken_at_us: 1, ended_at_us: 1, ..v1::Times::default() };
    Report::Ended(v1::AttemptEnded {
        attempt: Some(v1::AttemptRef { rollout: rollout.to_owned(), step, attempt: 0 }),
        generation,
        outcome: Some(v1::Outcome { times: Some(times), ..v1::Outcome::default() }),
        kept: true,
    })
}
