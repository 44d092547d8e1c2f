//! `sandbox`, `fork`, `pause`, `resume`, `kill`: the life of a sandbox that a client created.

use std::collections::BTreeMap;
use std::path::Path;

use rollout::image::ImageRef;
use rollout_wire::v1::{
    CreateSandboxRequest, ForkSandboxRequest, GetSandboxRequest, KillSandboxesRequest, LifecycleReply,
    ListSandboxesRequest, PauseSandboxRequest, ResumeSandboxRequest,
};

use super::Context;
use super::begun::Begun;
use super::specs::fresh_key;
use crate::args::sandboxes::{
    Fork, Kill, Pair, Pause, Resume, SandboxCommand, SandboxCreate, SandboxId, SandboxLs,
};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::{local_images, view};

/// Rows of one page.
const PAGE_ROWS: u32 = 1000;
/// Sandboxes that one request ends, as the yard bounds it; more are sent in several.
const KILL_IDS_MAX: usize = 1000;

pub async fn sandbox(context: &Context, command: &SandboxCommand) -> Result<ExitStatus, Error> {
    match command {
        SandboxCommand::Create(args) => create(context, args).await,
        SandboxCommand::Ls(args) => ls(context, args).await,
        SandboxCommand::Show(args) => show(context, args).await,
    }
}

/// A sandbox as the yard takes it.
pub fn named(text: &str) -> Result<String, Error> {
    let parsed: Result<rollout::SandboxId, _> = text.parse();
    parsed.map(|id| id.to_string()).map_err(|_| Error::BadTarget {
        text: rollout::text::shown(text, 80),
        expected: "a sandbox (ROLLOUT@NODE, or ROLLOUT); list them with `rollyard sandbox ls`",
    })
}

pub fn pairs(pairs: &[Pair]) -> BTreeMap<String, String> {
    pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect()
}

async fn create(context: &Context, args: &SandboxCreate) -> Result<ExitStatus, Error> {
    let client = Client::connect(context.url()?).await?;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let request = CreateSandboxRequest {
        idempotency_key: args.idempotency_key.clone().unwrap_or_else(fresh_key),
        image: handed_in(&client, &args.image).await?,
        request_cpu: text(&args.cpu),
        request_memory: text(&args.memory),
        limit_cpu: text(&args.limit_cpu),
        limit_memory: text(&args.limit_memory),
        limit_disk: text(&args.limit_disk),
        limit_pids: args.limit_pids,
        labels: pairs(&args.labels),
        env: pairs(&args.env),
        user: text(&args.user),
        workdir: text(&args.workdir),
        idle_timeout_ms: args.idle_timeout.map(|time| time.0),
        timeout_ms: args.timeout.map(|time| time.0),
        start_timeout_ms: args.start_timeout.map(|time| time.0),
        checkpoint: text(&args.checkpoint),
        project: String::new(),
        park_after_ms: args.park_after.map(|time| time.0),
        idle_mode: text(&args.idle_mode),
    };
    let begun = Begun {
        context,
        client: &client,
        keys: vec![request.idempotency_key.clone()],
        first: asks_registry(&request.image).then(|| {
            let image = rollout::text::shown(&request.image, 200);
            format!("asking its registry for image `{image}` (`host` and `dir:/PATH` need none)")
        }),
        is_own: args.idempotency_key.is_none(),
    };
    let call = async { client.done(client.sandboxes().create(request).await) };
    let made = begun.wait(Box::pin(call)).await.map_err(in_options)?;
    Context::print(&context.output.made(&[view::Sandbox::from(made)]))?;
    Ok(ExitStatus::Success)
}

/// An image of this machine is sent, and named as the yard has it then.
async fn handed_in(client: &Client, image: &str) -> Result<String, Error> {
    if !image.parse::<ImageRef>().is_ok_and(|reference| reference.is_local()) {
        return Ok(image.to_owned());
    }
    let mut pins = BTreeMap::new();
    local_images::hand_in(client, Path::new("."), &[image.to_owned()], &mut pins).await?;
    Ok(pins.remove(image).map_or_else(|| image.to_owned(), |pin| format!("stored:{}", pin.digest)))
}

fn asks_registry(image: &str) -> bool {
    matches!(image.parse(), Ok(ImageRef::Registry(_)))
}

/// A field of the request that no value looks like, and its option.
const OPTIONS: [(&str, &str); 12] = [
    ("request_cpu", "cpu"),
    ("request_memory", "memory"),
    ("limit_cpu", "limit-cpu"),
    ("limit_memory", "limit-memory"),
    ("limit_disk", "limit-disk"),
    ("limit_pids", "limit-pids"),
    ("idle_timeout_ms", "idle-timeout"),
    ("timeout_ms", "timeout"),
    ("start_timeout_ms", "start-timeout"),
    ("park_after_ms", "park-after"),
    ("idle_mode", "idle-mode"),
    ("idempotency_key", "idempotency-key"),
];

/// What the yard says of fields of the request, of the options they come from.
fn in_options(error: Error) -> Error {
    let Error::Refused { code, message, hint, exit } = error else { return error };
    let shown = |mut words: String| {
        for (field, option) in OPTIONS {
            let (field, option) = (format!("`{field}`"), format!("`--{option}`"));
            words = words.replace(&format!("field {field}"), &option).replace(&field, &option);
        }
        words
    };
    Error::Refused { code, message: shown(message), hint: hint.map(shown), exit }
}

async fn ls(context: &Context, args: &SandboxLs) -> Result<ExitStatus, Error> {
    let client = Client::connect(context.url()?).await?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let (mut rows, mut page_token) = (Vec::new(), String::new());
    loop {
        let page_size = u32::try_from(limit - rows.len()).unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS);
        let labels = pairs(&args.selector);
        let request = ListSandboxesRequest { labels, ended_too: args.all, page_size, page_token };
        let reply = client.done(client.sandboxes().list(request).await)?;
        rows.extend(reply.sandboxes.into_iter().map(view::Sandbox::from));
        page_token = reply.next_page_token;
        if page_token.is_empty() || rows.len() >= limit {
            break;
        }
    }
    let more = !page_token.is_empty() || rows.len() > limit;
    rows.truncate(limit);
    Context::print(&context.output.sandboxes(&rows))?;
    if more {
        context.talk.say(&format!("there are more; see them with --limit above {limit}"));
    }
    Ok(ExitStatus::Success)
}

async fn show(context: &Context, args: &SandboxId) -> Result<ExitStatus, Error> {
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let request = GetSandboxRequest { sandbox };
    let told = view::Sandbox::from(client.done(client.sandboxes().get(request).await)?);
    Context::print(&context.output.sandbox(&told))?;
    Ok(ExitStatus::Success)
}

pub async fn fork(context: &Context, args: &Fork) -> Result<ExitStatus, Error> {
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let request = ForkSandboxRequest {
        sandbox,
        count: args.count,
        idempotency_key: args.idempotency_key.clone().unwrap_or_else(fresh_key),
        labels: pairs(&args.labels),
    };
    let begun = Begun {
        context,
        client: &client,
        keys: (0..args.count).map(|index| format!("{}-{index}", request.idempotency_key)).collect(),
        first: None,
        is_own: args.idempotency_key.is_none(),
    };
    let call = async { client.done(client.sandboxes().fork(request).await) };
    let reply = begun.wait(Box::pin(call)).await?;
    let made: Vec<_> = reply.sandboxes.into_iter().map(view::Sandbox::from).collect();
    Context::print(&context.output.made(&made))?;
    Ok(ExitStatus::Success)
}

pub async fn pause(context: &Context, args: &Pause) -> Result<ExitStatus, Error> {
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let (version, park) = (args.version, args.park);
    let request = PauseSandboxRequest { sandbox: sandbox.clone(), claim: String::new(), version, park };
    print_lifecycle(context, &sandbox, client.done(client.sandboxes().pause(request).await)?)
}

pub async fn resume(context: &Context, args: &Resume) -> Result<ExitStatus, Error> {
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let request =
        ResumeSandboxRequest { sandbox: sandbox.clone(), claim: String::new(), version: args.version };
    print_lifecycle(context, &sandbox, client.done(client.sandboxes().resume(request).await)?)
}

fn print_lifecycle(context: &Context, sandbox: &str, reply: LifecycleReply) -> Result<ExitStatus, Error> {
    let told = view::Lifecycle {
        sandbox: sandbox.to_owned(),
        rung: reply.rung,
        version: reply.version,
        reclaimed_bytes: reply.reclaimed_bytes,
    };
    Context::print(&context.output.lifecycle(&told))?;
    Ok(ExitStatus::Success)
}

/// What cannot be ended does not keep the others.
pub async fn kill(context: &Context, args: &Kill) -> Result<ExitStatus, Error> {
    let ids = args.sandboxes.iter().map(|id| named(id)).collect::<Result<Vec<_>, _>>()?;
    let client = Client::connect(context.url()?).await?;
    let by_labels = KillSandboxesRequest {
        labels: pairs(&args.selector),
        reason: args.reason.clone(),
        ..KillSandboxesRequest::default()
    };
    let by_name = |ids: &[String]| KillSandboxesRequest {
        sandboxes: ids.to_vec(),
        reason: args.reason.clone(),
        ..KillSandboxesRequest::default()
    };
    let requests = match ids.as_slice() {
        [] => vec![by_labels],
        ids => ids.chunks(KILL_IDS_MAX).map(by_name).collect(),
    };
    let mut whole = view::Killed { killed: Vec::new(), failed: Vec::new() };
    for request in requests {
        let part = view::Killed::from(client.done(client.sandboxes().kill(request).await)?);
        whole.killed.extend(part.killed);
        whole.failed.extend(part.failed);
    }
    Context::print(&context.output.killed(&whole))?;
    if whole.killed.is_empty() && whole.failed.is_empty() {
        context.talk.say(match ids.len() {
            0 => "nothing was ended: no sandbox that runs has these labels",
            1 => "nothing was ended: it had ended before",
            _ => "nothing was ended: they had ended before",
        });
    }
    let Some(first) = whole.failed.first() else { return Ok(ExitStatus::Success) };
    for one in &whole.failed {
        let shown = |text: &str| rollout::text::shown(text, 240);
        context.talk.say(&format!("{}: {} ({})", shown(&one.sandbox), shown(&one.message), shown(&one.code)));
    }
    // What it refuses of a name that it knows is the sandbox of a step.
    let of_job = whole.failed.iter().find(|one| one.code == "bad_request");
    let job = of_job.and_then(|one| one.sandbox.parse::<rollout::SandboxId>().ok());
    let job = job.map(|id| id.rollout.group.job.to_string());
    Err(Error::KillFailed { failed: whole.failed.len(), first: first.sandbox.clone(), job })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn fields_of_a_request_are_the_options_they_come_from() {
        for (told, expected) in [
            ("field `limit_memory`: `1GB` is no size", "`--limit-memory`: `1GB` is no size"),
            ("`limit_cpu` of at least the request", "`--limit-cpu` of at least the request"),
            ("field `request_cpu`: 0", "`--cpu`: 0"),
            ("field `idle_timeout_ms`: 1ms", "`--idle-timeout`: 1ms"),
            ("`park_after_ms` of `timeout_ms`", "`--park-after` of `--timeout`"),
            ("user `user` of image `memory`", "user `user` of image `memory`"),
        ] {
            let told = Error::Refused {
                code: "bad_request".to_owned(),
                message: told.to_owned(),
                hint: Some(told.to_owned()),
                exit: ExitStatus::BadInput,
            };
            let shown = in_options(told);
            assert_eq!((shown.to_string().as_str(), shown.hint().as_deref()), (expected, Some(expected)));
        }
        let options = args::sandboxes::create_options();
        assert!(OPTIONS.iter().all(|(_, option)| options.iter().any(|known| known == option)));
    }
}
