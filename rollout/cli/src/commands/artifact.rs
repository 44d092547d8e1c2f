//! `artifact`: the bytes of an output. Exact in a pipe or a file; on a terminal everything that
//! could steer it is escaped.

use rollout_wire::v1::ReadArtifactRequest;
use serde_json::json;

use super::Context;
use super::jobs::Target;
use super::logs::Printer;
use crate::args::Artifact;
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::output::json;

pub async fn artifact(context: &Context, args: &Artifact) -> Result<ExitStatus, Error> {
    let Target::Step(rollout, step) = Target::parse(&args.target)? else {
        return Err(Error::BadTarget {
            text: args.target.clone(),
            expected: "ROLLOUT/STEP; `rollyard show ROLLOUT` lists the outputs",
        });
    };
    let request = ReadArtifactRequest {
        rollout: rollout.to_string(),
        step: step.to_string(),
        name: args.name.clone(),
        attempt: args.attempt,
    };
    let question = async |client: &Client| {
        let mut chunks = client.done(client.jobs().read_artifact(request).await)?;
        let mut printer = Printer::new(context.format, args.raw);
        while let Some(chunk) = chunks.message().await.map_err(|status| client.failed(status))? {
            if printer.json {
                Context::print(&as_json(&chunk.data))?;
            } else {
                printer.bytes(0, &chunk.data).map_err(Error::Stdout)?;
            }
        }
        Ok(())
    };
    // What was kept never changes.
    context.ask(question, |()| false).await?;
    Ok(ExitStatus::Success)
}

/// One object a line; bytes that are not UTF-8 come as hex, so that nothing is lost.
fn as_json(data: &[u8]) -> String {
    json::line(&match std::str::from_utf8(data) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "hex": hex::encode(data) }),
    })
}
